"""A node with two log directories: the disk of one hangs, and holds up nothing of the other."""

import errno
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from metaquorum.metadata.image import partition_record
from metaquorum.metadata.replay import replay
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.records.records import Record, encode_batch
from tests.dataplane.handlers.log_dirs.two_dirs import HangingDisk, log_dirs, two_dirs
from tests.dataplane.serving import WORLD_BEGAN_MS, RawClient, batch_of, in_trio

OFFLINE = ErrorCode.KAFKA_STORAGE_ERROR
LARGE = bytes(1_000_000)  # not written on the event loop


@in_trio
async def test_a_disk_that_hangs_holds_up_no_duty_of_another_one(tmp_path: Path) -> None:
    (a, b) = tmp_path / "a", tmp_path / "b"
    disk = HangingDisk(a)
    disk.go_on.set()
    delays = {"log_segment_delete_delay_ms": 1000}
    async with two_dirs(tmp_path, disk, **delays) as (served, client):
        dirs = served.worker.replica_manager.log_dirs
        await client.create("old", 2)
        for index in range(2):
            await client.produce("old", batch_of(b"x"), partition=index)
        assert await client.delete("old") == 0
        disk.go_on.clear()
        try:
            disk.fail("write", ".log", errno.ENOSPC)
            for index in range(2):
                await client.produce("t", batch_of(b"x"), partition=index, error=OFFLINE)
            assert len(dirs.full) == 2
            disk.faults.clear()
            with trio.fail_after(20):
                while dirs.online[1] in dirs.full or any(b.glob("old-*")):
                    await trio.sleep(0.05)
                assert dirs.online[0] in dirs.full
                assert disk.hanging >= 2
                b.rename(tmp_path / "aside")
                while not dirs.failed:
                    await trio.sleep(0.05)
        finally:
            disk.go_on.set()
        assert [one.path for one in dirs.failed] == [str(b)]


@in_trio
async def test_a_disk_that_hangs_holds_up_no_flush_retention_or_checkpoint_of_another(
    tmp_path: Path,
) -> None:
    disk = HangingDisk(tmp_path / "a")
    disk.go_on.set()
    periods = {
        "log_flush_interval_ms": 1,
        "log_retention_ms": 1,
        "log_retention_check_interval_ms": 300,
        "log_flush_offset_checkpoint_interval_ms": 100,
        "replica_high_watermark_checkpoint_interval_ms": 100,
    }
    async with two_dirs(tmp_path, disk, **periods) as (served, client):
        (_, b) = served.worker.replica_manager.log_dirs.online
        plog = b.partitions["t", 1]
        disk.go_on.clear()
        try:
            for _ in range(2):
                for index in range(2):
                    await client.produce("t", batch_of(b"x"), partition=index)
                with trio.fail_after(20):
                    while not (
                        plog.log_end_offset
                        == plog.recovery_point
                        == plog.log_start_offset
                        == plog.noted_recovery_point
                        == plog.noted_log_start_offset
                        == b.checkpoints.high_watermarks["t", 1]
                    ):
                        await trio.sleep(0.05)
            assert disk.hanging >= 4
        finally:
            disk.go_on.set()


@in_trio
async def test_a_disk_that_hangs_holds_up_no_change_of_topics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own logs are deleted once it responds; a topic's name is free before that."""
    a, b = tmp_path / "a", tmp_path / "b"
    disk = HangingDisk(a)
    disk.go_on.set()
    delays = {"log_segment_delete_delay_ms": 100}
    async with two_dirs(tmp_path, disk, **delays) as (served, client):
        dirs = served.worker.replica_manager.log_dirs
        (of_a, _) = dirs.online
        disk.go_on.clear()
        try:
            with trio.fail_after(30):
                assert await client.delete("t") == 0
                await client.create("t", 2)
                for index in range(2):
                    await client.produce("t", batch_of(b"new"), partition=index)
                    assert dirs.log(("t", index)).folder == f"{b}/t-{index}"
                while any(b.glob("t-*-delete")):
                    await trio.sleep(0.05)
            with trio.fail_after(30):
                shown = await log_dirs(client)
            assert [shown[name].error_code for name in "ab"] == [OFFLINE, ErrorCode.NONE]
            assert any(a.glob("t-0"))
            assert not of_a.partitions
        finally:
            disk.go_on.set()
        with trio.fail_after(30):
            while any(a.glob("t-*")):
                await trio.sleep(0.05)
        assert not dirs.failed
        await client.create("u", 2)
        assert len(of_a.partitions) == 2
    lines = [record.getMessage() for record in caplog.records if str(a) in record.getMessage()]
    assert ["has not responded" in line for line in lines] == [True, False]
    assert "responds again" in lines[1]


class HangsAtCleaning(HangingDisk):
    """A disk that hangs from the first file of a cleaned segment on."""

    def check(self, action: str, path: str) -> None:
        if ".cleaned" in path and path.startswith(self._path) and not self.hanging:
            self.go_on.clear()
        super().check(action, path)


@in_trio
async def test_a_disk_that_hangs_holds_up_no_cleaning_of_another(tmp_path: Path) -> None:
    """Also with one cleaner thread, which cleans the log of that disk first."""
    disk = HangsAtCleaning(tmp_path / "a")
    disk.go_on.set()
    configs = {"log_cleaner_backoff_ms": 50, "log_cleaner_threads": 1}
    async with two_dirs(tmp_path, disk, **configs) as (served, client):
        dirs = served.worker.replica_manager.log_dirs
        (of_a, of_b) = dirs.online
        await client.create("k", 2, cleanup_policy="compact", internal_segment_bytes=300)
        try:
            with trio.fail_after(30):
                for index, log_dir in enumerate((of_a, of_b)):
                    assert ("k", index) in log_dir.partitions
                    for number in range(12):
                        batch = encode_batch([Record(0, WORLD_BEGAN_MS, b"%d" % (number % 2), b"")])
                        await client.produce("k", batch, partition=index)
                    while not disk.hanging:
                        await trio.sleep(0.05)
                while not dirs.cleaner_offset(("k", 1)):
                    await trio.sleep(0.05)
            assert not dirs.cleaner_offset(("k", 0))
            assert dirs.is_unresponsive(of_a)
            assert not dirs.is_unresponsive(of_b)
        finally:
            disk.go_on.set()
        with trio.fail_after(30):
            while not dirs.cleaner_offset(("k", 0)):
                await trio.sleep(0.05)


async def _hang_at_append(disk: HangingDisk, client: RawClient, nursery: trio.Nursery) -> None:
    """Let a producer append to partition 0 of t, in a thread that does not return."""
    disk.go_on.clear()
    nursery.start_soon(partial(client.produce, "t", batch_of(LARGE), acks=1))
    while not disk.hanging:
        await trio.sleep(0.01)


@in_trio
async def test_an_append_that_hangs_holds_up_no_deletion_and_keeps_its_folder(
    tmp_path: Path,
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    disk = HangingDisk(a)
    disk.go_on.set()
    async with two_dirs(tmp_path, disk, log_segment_delete_delay_ms=100) as (served, client):
        dirs = served.worker.replica_manager.log_dirs
        producer = await served.connect()
        async with trio.open_nursery() as nursery:
            try:
                with trio.fail_after(30):
                    await _hang_at_append(disk, producer, nursery)
                    assert await client.delete("t") == 0
                    await client.create("t", 2)
                    for index in range(2):
                        await client.produce("t", batch_of(b"new"), partition=index)
                        assert dirs.log(("t", index)).folder == f"{b}/t-{index}"
                    # Deleted while the directory is known to hang: nothing waits.
                    await client.create("u")
                    assert await client.delete("u") == 0
                assert any(a.glob("t-0"))
            finally:
                disk.go_on.set()
        with trio.fail_after(30):
            while any(a.glob("t-*")):
                await trio.sleep(0.05)
        assert not dirs.failed
        assert await client.values("t") == [b"new"]


@in_trio
async def test_an_append_that_hangs_holds_up_the_new_state_of_no_other_partition(
    tmp_path: Path,
) -> None:
    """The partition itself gets the newest state after the append, which is of its epoch before."""
    disk = HangingDisk(tmp_path / "a")
    disk.go_on.set()
    async with two_dirs(tmp_path, disk) as (served, _):
        worker = served.worker
        manager = worker.replica_manager
        first, second = (manager.by_name("t", index) for index in range(2))
        away = worker.worker_id + 1
        image = worker.image

        async def publish(*leaders: int) -> None:
            nonlocal image
            states = [
                replace(
                    one.state,
                    replicas=(worker.worker_id, away),
                    isr=(worker.worker_id, away),
                    leader=leader,
                    leader_epoch=image.topics["t"].partitions[one.index].leader_epoch + 1,
                )
                for one, leader in zip((first, second), leaders, strict=True)
            ]
            image, delta = replay(
                image,
                [
                    partition_record(first.topic_id, index, state)
                    for index, state in enumerate(states)
                ],
            )
            await manager.publish(delta, image)

        producer = await served.connect()
        epoch = first.leader_epoch
        async with trio.open_nursery() as nursery:
            try:
                with trio.fail_after(30):
                    await _hang_at_append(disk, producer, nursery)
                    await publish(worker.worker_id, away)
                    assert (first.leader_epoch, second.leader_epoch) == (epoch, epoch + 1)
                    await publish(away, worker.worker_id)
                    await publish(away, worker.worker_id)
                assert (first.leader_epoch, second.leader_epoch) == (epoch, epoch + 3)
                assert (first.leader_id, second.leader_id) == (worker.worker_id,) * 2
            finally:
                disk.go_on.set()
        with trio.fail_after(30):
            while first.leader_epoch != epoch + 3:
                await trio.sleep(0.01)
        assert first.leader_id == away
