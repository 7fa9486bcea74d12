"""Truncation below the recovery point, then other records, with a loss of power at any point."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import pytest
import trio
import trio.testing

from metaquorum.dataplane.log.dirs.log_dir import LogDir, NewPartition
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.recovery.checkpoints import LogOffsets
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.runtime.interfaces import StorageError
from tests.dataplane.log.logs import headers_of, make_batch, read_headers
from tests.metaquorum.quorum.storage.crash_disk import Crash, CrashDisk

pytestmark = pytest.mark.slow  # loses power at every write

T = TypeVar("T")
AT = ("t", 0)
ONE_SEGMENT = LogConfig(segment_bytes=100_000, index_interval_bytes=150)
SMALL_SEGMENTS = LogConfig(segment_bytes=300, index_interval_bytes=150)
LOSSES = 11  # power losses at each disk operation; each keeps another part of the unsynced bytes
Found = list[tuple[int, int]]  # base offset and leader epoch of each batch
Story = Callable[[LogDir, PartitionLog, CrashDisk], Awaitable[None]]


async def opened(disk: CrashDisk, config: LogConfig) -> LogDir:
    disk.make_dirs("/logs")
    log_dir = LogDir.open(disk, "/logs", locked=disk.identity("/logs"))
    await log_dir.load(lambda topic: config, 0)
    return log_dir


def follow(log: PartitionLog, *batches: tuple[int, int], records: int = 2) -> None:
    """Append batches of a leader, given by base offset and leader epoch."""
    for base_offset, epoch in batches:
        data = make_batch(records, base_offset=base_offset, leader_epoch=epoch, value=b"v" * epoch)
        log.append_as_follower(memoryview(data), headers_of(data), 0)


OLD: Found = [(offset, 3) for offset in range(0, 40, 2)]


async def written(disk: CrashDisk, config: LogConfig, log_start: int = 0) -> LogDir:
    """Write a log, sync it, and write its recovery point to the checkpoint."""
    log_dir = await opened(disk, config)
    await log_dir.create([NewPartition(*AT, bytes(range(16)), config)], 0)
    log = log_dir.partitions[AT]
    follow(log, *OLD)
    await log.flush(disk)
    log.advance_log_start(log_start)
    await log_dir.checkpoint(lambda: {AT: 40})
    assert log.noted_recovery_point == 40
    return log_dir


def found_in(log: PartitionLog) -> Found:
    return [(h.base_offset, h.leader_epoch) for h in read_headers(log, end=log.log_end_offset)]


def crash_everywhere(
    config: LogConfig, scenario: Story, check: Callable[[PartitionLog], None]
) -> None:
    """Try recovery after a loss of power, and after a kill, at every disk operation."""

    async def play(fail_at: int | None) -> tuple[CrashDisk, int]:
        disk = CrashDisk()
        log_dir = await written(disk, config)
        began = disk.operations
        if fail_at is not None:
            disk.fail_at = began + fail_at
        try:
            await scenario(log_dir, log_dir.partitions[AT], disk)
        except Crash:
            pass
        return disk, disk.operations - began

    _, operations = trio.run(play, None)
    for at in range(operations + 1):
        disk, _ = trio.run(play, at)
        for found in disk.survivors(1000 * at + 1, LOSSES):
            log_dir = trio.run(opened, found, config)
            assert not log_dir.offline, at
            check(log_dir.partitions[AT])


@pytest.mark.parametrize("config", [ONE_SEGMENT, SMALL_SEGMENTS])
def test_a_cut_below_the_recovery_point_is_recovered_from_wherever_power_goes(
    config: LogConfig,
) -> None:
    kept = [batch for batch in OLD if batch[0] < 8]
    new = [(offset, 4) for offset in range(8, 48, 2)]

    async def cuts(log_dir: LogDir, log: PartitionLog, disk: CrashDisk) -> None:
        async with log_dir.cutting({AT: log.offsets_after_truncation(8)}):
            log.truncate_to(8)
            await log.flush(disk)
        follow(log, *new)

    def check(log: PartitionLog) -> None:
        found = found_in(log)
        assert found[:4] == kept
        assert found in (OLD[: len(found)], (kept + new)[: len(found)])
        assert log.log_end_offset == 2 * len(found)
        assert log.epochs.epoch_at(log.log_end_offset - 1) == found[-1][1]

    crash_everywhere(config, cuts, check)


@pytest.mark.parametrize("start", [1000, 40, 31])
def test_a_log_that_begins_anew_is_recovered_wherever_power_goes(start: int) -> None:
    new = [(start + 2 * number, 4) for number in range(12)]

    async def begins_anew(log_dir: LogDir, log: PartitionLog, disk: CrashDisk) -> None:
        async with log_dir.cutting({AT: log.offsets_after_full_truncation(start)}):
            log.truncate_fully_and_start_at(start)
            await log.flush(disk)
        follow(log, *new)

    def check(log: PartitionLog) -> None:
        found = found_in(log)
        # The rest of the old log, which must be truncated anyway, may begin later.
        first = log.log_start_offset // 2
        assert found in (OLD[first : first + len(found)], new[: len(found)])

    crash_everywhere(SMALL_SEGMENTS, begins_anew, check)


def test_a_log_that_is_cut_before_its_start_keeps_what_comes_there() -> None:
    """With the old checkpoint of log starts, recovery would drop the new records before it."""

    async def main() -> None:
        disk = CrashDisk()
        log_dir = await written(disk, ONE_SEGMENT, log_start=30)
        log = log_dir.partitions[AT]
        async with log_dir.cutting({AT: log.offsets_after_truncation(20)}):
            log.truncate_to(20)
        assert (log.log_start_offset, log.log_end_offset) == (20, 20)
        follow(log, (20, 4), (22, 4))
        log_dir = await opened(disk.survivor(None), ONE_SEGMENT)
        assert found_in(log_dir.partitions[AT]) == [(20, 4), (22, 4)]

    trio.run(main)


def test_no_checkpoint_says_more_than_is_left_while_a_log_is_cut() -> None:
    """Other tasks write checkpoints at any time; a write may be in progress or be cancelled."""

    async def main() -> None:
        disk = CrashDisk()
        log_dir = await written(disk, ONE_SEGMENT)
        log = log_dir.partitions[AT]
        with trio.CancelScope() as scope:
            scope.cancel()
            await log_dir.checkpoint()
        assert log.noted_recovery_point == 40
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log_dir.checkpoint)
            await trio.testing.wait_all_tasks_blocked()
            async with log_dir.cutting({AT: log.offsets_after_truncation(8)}):
                await log_dir.checkpoint()
                assert recovery_point_of(disk) == log.noted_recovery_point == 8
                assert log.synced_offset == 40
        await log_dir.checkpoint()
        assert recovery_point_of(disk) == log.noted_recovery_point == 40
        async with log_dir.cutting({AT: LogOffsets(8)}):
            log_dir.take_offline(AT, StorageError("it cannot be cut"))
        await log_dir.checkpoint()
        assert recovery_point_of(disk) == 8

    trio.run(main)


def recovery_point_of(disk: CrashDisk) -> int:
    text = disk.synced_files["/logs/recovery-point-offset-checkpoint"].synced.decode()
    return int(text.split()[-1])


def test_a_cut_of_which_checkpoints_do_not_know_is_a_mistake() -> None:
    async def main() -> None:
        log_dir = await written(CrashDisk(), ONE_SEGMENT)
        log = log_dir.partitions[AT]
        with pytest.raises(AssertionError, match="below the recovery point on disk, 40"):
            log.truncate_to(8)
        with pytest.raises(AssertionError, match="below the recovery point on disk, 40"):
            log.truncate_fully_and_start_at(8)
        assert found_in(log) == OLD

    trio.run(main)


def test_a_directory_that_cannot_write_checkpoints_says_which_logs_must_not_be_cut() -> None:
    async def main() -> None:
        disk = CrashDisk()
        log_dir = await written(disk, ONE_SEGMENT)
        dirs = LogDirs([log_dir], (), (), disk, Random(0))
        log = log_dir.partitions[AT]
        disk.full_at_bytes = disk.used_bytes()
        async with dirs.cutting({AT: log.offsets_after_truncation(8)}) as uncut:
            assert "No space left" in str(uncut[AT])
        disk.full_at_bytes = None
        async with dirs.cutting({AT: log.offsets_after_truncation(8)}) as uncut:
            assert not uncut
            log.truncate_to(8)

    trio.run(main)


def test_a_log_of_which_all_is_deleted_begins_where_it_ended_wherever_power_goes() -> None:
    """Its only segment is new, and the earlier ones are being deleted."""

    async def deletes(log_dir: LogDir, log: PartitionLog, disk: CrashDisk) -> None:
        log.roll(0)
        log.advance_log_start(40)
        await log.delete_old_segments(disk)
        follow(log, (40, 3), (42, 3))
        log.remove_deleted()

    def check(log: PartitionLog) -> None:
        assert log.log_end_offset >= 40

    crash_everywhere(SMALL_SEGMENTS, deletes, check)


class HeldDisk(CrashDisk):
    """Disk whose next call in a worker thread, once `holds`, does not begin."""

    holds = False

    async def run(self, function: Callable[[], T]) -> T:
        if self.holds:
            self.holds = False
            await trio.sleep_forever()
        return await super().run(function)


@pytest.mark.parametrize("noted", ["before", "being written", "after"])
def test_synced_records_outlive_a_loss_of_power_while_those_before_them_are_deleted(
    noted: str,
) -> None:
    """A loss of power may keep any of several removals that are not synced.

    After the recovery point on the disk, recovery would drop all records behind a gap; before it,
    it would keep the gap, as if the log had been compacted.
    """

    async def play(fail_at: int | None) -> tuple[CrashDisk, int]:
        disk = HeldDisk()
        log_dir = await written(disk, SMALL_SEGMENTS)
        log = log_dir.partitions[AT]
        follow(log, *[(offset, 3) for offset in range(40, 80, 2)])
        await log.flush(disk)  # the checkpoint still has the old recovery point
        if noted == "after":
            await log_dir.checkpoint()
        async with trio.open_nursery() as nursery:
            if noted == "being written":
                disk.holds = True
                nursery.start_soon(log_dir.checkpoint)
                await trio.testing.wait_all_tasks_blocked()
            began = disk.operations
            if fail_at is not None:
                disk.fail_at = began + fail_at
            try:
                log.advance_log_start(70)
                assert await log.delete_old_segments(disk) > 3
                log.remove_deleted()
            except Crash:
                pass
            nursery.cancel_scope.cancel()
        assert recovery_point_of(disk) == (80 if noted == "after" else 40)
        return disk, disk.operations - began

    _, operations = trio.run(play, None)
    for at in range(operations + 1):
        disk, _ = trio.run(play, at)
        for found in disk.survivors(1000 * at + 1, LOSSES):
            log_dir = trio.run(opened, found, SMALL_SEGMENTS)
            assert not log_dir.offline, at
            log = log_dir.partitions[AT]
            assert log.log_end_offset == 80, at
            found_batches = found_in(log)
            assert found_batches[-5:] == [(offset, 3) for offset in range(70, 80, 2)]
            offsets = [offset for offset, _ in found_batches]
            assert offsets == [*range(offsets[0], 80, 2)], at
