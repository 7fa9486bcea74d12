"""Replicas that move between the log directories of a node (AlterReplicaLogDirs)."""

import errno
import logging
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trio

from metaquorum.dataplane.log.segments.files import storage_error
from metaquorum.dataplane.log.segments.names import SYNCING
from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.dataplane.prometheus.log_dir_moves import add_log_dir_moves
from metaquorum.runtime import File
from metaquorum.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from metaquorum.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from metaquorum.wire.messages.describe_log_dirs import DescribeLogDirsTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.log_dirs.two_dirs import fetched, log_dirs, two_dirs
from tests.dataplane.handlers.test_admin_changes import BROKER, TOPIC, change
from tests.dataplane.held_up import HeldUpDisk
from tests.dataplane.serving import (
    FaultyDisk,
    RawClient,
    Served,
    Simulated,
    batch_of,
    in_trio,
    run_simulated,
    serving,
)
from tests.nodes import PATIENCE_S

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


async def move(client: RawClient, path: Path | str, topic: str = "t", index: int = 0) -> int:
    """Ask for a move; return the error code of the partition."""
    topics = [AlterReplicaLogDirTopic(name=topic, partitions=[index])]
    message = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(path), topics=topics)])
    answer = await client.call(ApiKey.ALTER_REPLICA_LOG_DIRS, message)
    (result,) = answer.results
    assert result.topic_name == topic
    (row,) = result.partitions
    assert row.partition_index == index
    return int(row.error_code)


def partition(served: Served, index: int = 0) -> Any:
    return served.worker.replica_manager.by_name("t", index)


async def wait_moved(served: Served, log_dir: str, index: int = 0) -> None:
    dirs = served.worker.replica_manager.log_dirs
    while served.worker.log_dir_mover.moves or Path(dirs.dir_of(("t", index)).path).name != log_dir:
        await trio.sleep(0.001)


async def rows(client: RawClient) -> dict[str, list[tuple[int, bool]]]:
    """Return the partitions in each directory, and whether they are future replicas."""
    return {
        name: [(row.partition_index, row.is_future_key) for row in topic.partitions]
        for name, result in (await log_dirs(client)).items()
        for topic in result.topics or [DescribeLogDirsTopic()]
    }


def stop_copying(served: Served) -> None:
    """Let all later moves wait for the quota."""
    quota = served.worker.log_dir_mover.quota
    quota.limit(1, quota_now(served))
    quota.record(1 << 40, quota_now(served))


def quota_now(served: Served) -> float:
    return float(served.worker.clock.monotonic())


@in_trio
async def test_a_replica_moves_with_its_records_epochs_and_producers(tmp_path: Path) -> None:
    async with two_dirs(tmp_path, segment_bytes=2000) as (served, client):
        for number in range(50):
            batch = batch_of(
                b"%d" % number * 30, producer_id=7, producer_epoch=0, base_sequence=number
            )
            await client.produce("t", batch)
        before = partition(served).log
        state = before.epochs.entries, set(before.producers.entries), before.log_end_offset
        values = await client.values("t")
        assert await move(client, tmp_path / "b") == 0
        await wait_moved(served, "b")
        after = partition(served).log
        assert after is not before
        assert (after.epochs.entries, set(after.producers.entries), after.log_end_offset) == state
        assert after.segment_count > 1
        assert await client.values("t") == values
        assert await rows(client) == {"a": [], "b": [(0, False), (1, False)]}
        # A duplicate of the last batch is recognized, and the next one is appended.
        again = batch_of(b"49" * 30, producer_id=7, producer_epoch=0, base_sequence=49)
        assert (await client.produce("t", again)).base_offset == 50
        assert after.log_end_offset == 51
        await client.produce("t", batch_of(b"new"))
    left = [*(tmp_path / "a").glob("t-0"), *(tmp_path / "a").glob("t-0.*-stray")]
    assert not left, "the former log must be deleted"
    async with two_dirs(tmp_path) as (served, client):
        assert await client.values("t") == [*values, b"new"]
        assert await rows(client) == {"a": [], "b": [(0, False), (1, False)]}
        assert await move(client, tmp_path / "a") == 0
        await wait_moved(served, "a")
        assert await client.values("t") == [*values, b"new"]
    async with two_dirs(tmp_path) as (served, client):
        assert await rows(client) == {"a": [(0, False)], "b": [(1, False)]}
        assert await client.values("t") == [*values, b"new"]


@in_trio
async def test_a_replica_moves_while_records_are_appended(tmp_path: Path) -> None:
    flushes = {"log.flush.interval.messages": 5}
    async with two_dirs(tmp_path, None, 1 << 20, **flushes) as (served, client):
        other = await served.connect()
        assert await move(client, tmp_path / "b") == 0
        count = 0
        while served.worker.log_dir_mover.moves or count < 20:
            count += 1
            await other.produce("t", batch_of(b"x" * 1000))
        await wait_moved(served, "b")
        for _ in range(5):
            await other.produce("t", batch_of(b"y"))
        assert partition(served).log.log_end_offset == count + 6
        assert len(await client.values("t")) == count + 6


@in_trio
async def test_errors_are_kafkas(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with two_dirs(tmp_path, disk) as (_, client):
        a, b = tmp_path / "a", tmp_path / "b"
        assert await move(client, tmp_path / "c") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await move(client, b, "missing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await move(client, b, index=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await move(client, b, "t" * 249) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await move(client, a) == 0  # no move
        assert await rows(client) == {"a": [(0, False)], "b": [(1, False)]}
        disk.fail("write", "/b/t-1/", errno.EIO)
        await client.produce("t", batch_of(b"x"), partition=1, error=ErrorCode.KAFKA_STORAGE_ERROR)
        assert await move(client, b) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await move(client, a, index=1) == ErrorCode.KAFKA_STORAGE_ERROR


@in_trio
async def test_a_directory_is_preferred_for_a_replica_that_is_created_later(
    tmp_path: Path,
) -> None:
    async with two_dirs(tmp_path) as (served, client):
        for index in range(3):
            code = await move(client, tmp_path / "b", "later", index)
            assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await client.create("later", 4)
        dirs = served.worker.replica_manager.log_dirs
        found = [Path(dirs.dir_of(("later", index)).path).name for index in range(4)]
        assert found == ["b", "b", "b", "a"]
        assert not dirs.preferred


@in_trio
async def test_a_future_replica_is_shown_and_the_old_directory_cancels_the_move(
    tmp_path: Path,
) -> None:
    async with two_dirs(tmp_path) as (served, client):
        stop_copying(served)
        assert await move(client, tmp_path / "b") == 0
        assert await move(client, tmp_path / "b") == 0  # the same move
        assert await rows(client) == {"a": [(0, False)], "b": [(0, True), (1, False)]}
        described = (await log_dirs(client))["b"].topics[0].partitions
        assert [row.offset_lag for row in described if row.is_future_key] == [1]
        assert len(list((tmp_path / "b").glob("t-0.*-future"))) == 1
        assert await move(client, tmp_path / "a") == 0
        assert await rows(client) == {"a": [(0, False)], "b": [(1, False)]}
        assert not list((tmp_path / "b").glob("t-0.*-future"))
        assert not served.worker.log_dir_mover.moves
        assert await client.values("t") == [b"0"]


@in_trio
async def test_a_move_begins_again_at_the_next_start(tmp_path: Path) -> None:
    async with two_dirs(tmp_path) as (served, client):
        stop_copying(served)
        assert await move(client, tmp_path / "b") == 0
    assert len(list((tmp_path / "b").glob("t-0.*-future"))) == 1
    async with two_dirs(tmp_path) as (served, client):
        await wait_moved(served, "b")
        assert await client.values("t") == [b"0"]
        assert await rows(client) == {"a": [], "b": [(0, False), (1, False)]}


async def half_copied(tmp_path: Path, **configs: object) -> tuple[int, list[bytes]]:
    """Stop a node that has copied a part of t-0 to b; return the end of the copy, and all values.

    The log has 60 records, in segments of 20,000 bytes; its last 64 KiB are copied in one step.
    """
    async with two_dirs(tmp_path, segment_bytes=20_000) as (served, client):
        for number in range(60):
            await client.produce("t", batch_of(b"%02d" % number * 1500))
        quota = served.worker.log_dir_mover.quota
        quota.limit(16_000, quota_now(served))  # steps of one batch
        assert await move(client, tmp_path / "b") == 0
        begun = served.worker.log_dir_mover.moves["t", 0]
        while begun.future.log_end_offset < 10:
            await trio.sleep(0.001)
        stop_copying(served)
        values = await client.values("t")
    return begun.future.log_end_offset, values  # a step that was under way has ended


def copied_bytes(served: Served) -> int:
    return int(served.worker.log_dir_mover.quota.bytes)


def continued(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records]
    return [text.partition(" continues at ")[2] for text in texts if " continues at " in text]


@in_trio
async def test_a_copy_continues_at_its_end_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    end, values = await half_copied(tmp_path)
    (future,) = (tmp_path / "b").glob("t-0.*-future")
    assert 10 <= end < 40
    async with two_dirs(tmp_path) as (served, client):
        await wait_moved(served, "b")
        assert await client.values("t") == values
        log = partition(served).log
        assert (log.log_end_offset, log.segment_count > 1) == (61, True)
        assert not log.was_damaged
        assert log.lost_bytes == 0
        assert 0 < copied_bytes(served) < log.size_bytes * (61 - end + 3) / 61
        await client.produce("t", batch_of(b"new"))
    assert continued(caplog) == [f"offset {end} of 61"]
    assert not future.exists()
    async with two_dirs(tmp_path) as (served, client):
        assert await client.values("t") == [*values, b"new"]


@in_trio
async def test_a_copy_with_a_torn_tail_continues_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    end, values = await half_copied(tmp_path)
    (future,) = (tmp_path / "b").glob("t-0.*-future")
    last = max(future.glob("*.log"))
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 10)
    async with two_dirs(tmp_path) as (served, client):
        await wait_moved(served, "b")
        assert await client.values("t") == values
        assert not partition(served).log.was_damaged
    assert continued(caplog) == [f"offset {end - 1} of 61"]


@in_trio
async def test_a_copy_ends_where_the_log_ends_after_a_loss_of_power(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    end, values = await half_copied(tmp_path)
    kept = lose_tail(tmp_path)
    assert 0 < kept < end
    async with two_dirs(tmp_path) as (served, client):
        await wait_moved(served, "b")
        await client.produce("t", batch_of(b"new"))
        assert await client.values("t") == [*values[:kept], b"new"]
        assert partition(served).log.log_end_offset == kept + 1
    assert continued(caplog) == [f"offset {kept} of {kept}"]


def lose_tail(tmp_path: Path) -> int:
    """Take the tail of the log, which the copy has, as a loss of power does; return its new end."""
    log = tmp_path / "a" / "t-0"
    for each in [*(tmp_path / "a").glob(".kafka_cleanshutdown"), *log.glob("*.snapshot")]:
        each.unlink()
    (tmp_path / "a" / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    _, *later = sorted(log.glob("*.log"))
    for each in later:
        for path in log.glob(f"{each.stem}.*"):
            path.unlink()
    return int(later[0].stem)


@in_trio
async def test_a_copy_is_written_in_worker_threads_while_the_disk_holds_up_writers(
    tmp_path: Path,
) -> None:
    async with two_dirs(tmp_path) as (served, client):
        for number in range(50):
            await client.produce("t", batch_of(b"%d" % number * 20_000))
        values = await client.values("t")
    disk = HeldUpDisk()
    async with two_dirs(tmp_path, disk) as (served, client):
        assert await move(client, tmp_path / "b") == 0
        await wait_moved(served, "b")
        assert await client.values("t") == values
        assert len(disk.in_loop) <= 1, "only what is left before the swap is written in the loop"
        assert disk.beside
        await client.produce("t", batch_of(b"new"))
        assert await client.values("t") == [*values, b"new"]


class HeldDisk(FaultyDisk):
    """A disk on which copies can be recovered once `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.released = Event()

    def open(self, path: str, *, create: bool = False) -> File:
        if "-future/" in path and path.endswith(".log"):
            assert self.released.wait(PATIENCE_S)
        return super().open(path, create=create)


@in_trio
async def test_a_copy_does_not_keep_records_that_others_replaced_before_it_is_recovered(
    tmp_path: Path,
) -> None:
    """After its restart a leader begins another leader epoch."""
    end, values = await half_copied(tmp_path)
    kept = lose_tail(tmp_path)
    disk = HeldDisk()
    async with two_dirs(tmp_path, disk) as (served, client):
        new = [b"%d" % number for number in range(end)]
        for value in new:
            await client.produce("t", batch_of(value))
        disk.released.set()
        await wait_moved(served, "b")
        assert await client.values("t") == [*values[:kept], *new]
        assert served.worker.log_dir_mover.continued_count == 1


@in_trio
async def test_the_copy_of_a_compacted_log_begins_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Compaction may have removed a tombstone whose record the copy has."""
    caplog.set_level(logging.INFO)
    _, values = await half_copied(tmp_path)
    async with two_dirs(tmp_path) as (served, client):
        stop_copying(served)
        assert await change(client, TOPIC, "t", {"cleanup.policy": "compact"}) == 0
    caplog.clear()
    async with two_dirs(tmp_path) as (served, client):
        await wait_moved(served, "b")
        assert copied_bytes(served) >= partition(served).log.size_bytes
        assert await client.values("t") == values
    assert continued(caplog) == []
    assert not list((tmp_path / "b").glob("t-0.*-future"))


@in_trio
async def test_a_copy_begins_again_after_a_sync_that_may_have_failed(tmp_path: Path) -> None:
    """Records that only the page cache has may be lost with the next loss of power."""
    _, values = await half_copied(tmp_path)
    (tmp_path / "b" / SYNCING).write_bytes(b"1")
    async with two_dirs(tmp_path) as (served, client):
        await wait_moved(served, "b")
        assert served.worker.log_dir_mover.continued_count == 0
        assert copied_bytes(served) >= partition(served).log.size_bytes
        assert await client.values("t") == values


@in_trio
async def test_a_move_can_be_cancelled_while_its_copy_is_recovered(tmp_path: Path) -> None:
    await half_copied(tmp_path)
    disk = HeldDisk()
    async with two_dirs(tmp_path, disk) as (served, client):
        assert served.worker.replica_manager.log_dirs.is_moving(("t", 0))
        assert await rows(client) == {"a": [(0, False)], "b": [(0, True), (1, False)]}
        assert await move(client, tmp_path / "b") == 0, "the same move"
        assert await move(client, tmp_path / "a") == 0
        assert await rows(client) == {"a": [(0, False)], "b": [(1, False)]}
        disk.released.set()
        while list((tmp_path / "b").glob("t-0.*-future")):
            await trio.sleep(0.001)
        assert not served.worker.log_dir_mover.moves


@in_trio
async def test_a_cancelled_copy_that_waits_to_be_recovered_is_deleted_at_once(
    tmp_path: Path,
) -> None:
    """Otherwise the move would begin again after the next restart."""
    await half_copied(tmp_path)
    async with two_dirs(tmp_path) as (served, client):
        stop_copying(served)
        assert await move(client, tmp_path / "a", index=1) == 0
    disk, one = HeldDisk(), {"num.replica.alter.log.dirs.threads": 1}
    async with two_dirs(tmp_path, disk, **one) as (_, client):
        for index, home in (0, "a"), (1, "b"):
            assert await move(client, tmp_path / home, index=index) == 0
        futures = [*tmp_path.glob("*/t-*-future")]
        disk.released.set()
    assert len(futures) == 1  # that of the one that is recovered


@in_trio
async def test_a_truncation_reaches_the_copy(tmp_path: Path) -> None:
    async with two_dirs(tmp_path, segment_bytes=2000) as (served, client):
        for number in range(60):
            await client.produce("t", batch_of(b"%d" % number * 100))
        mover, dirs = served.worker.log_dir_mover, served.worker.replica_manager.log_dirs
        assert await move(client, tmp_path / "b") == 0
        quota = mover.quota
        begun = mover.moves["t", 0]
        while begun.future.log_end_offset < 61:
            await trio.sleep(0.001)
        stop_copying(served)
        log, end = partition(served).log, 31
        if log is begun.log:  # not swapped yet
            async with dirs.cutting({("t", 0): log.offsets_after_truncation(end)}):
                log.truncate_to(end)
                await log.flush(served.worker.disk)
            partition(served).cut_to(end)
            assert dirs.log(("t", 0)) is log
            for number in range(60):
                await client.produce("t", batch_of(b"new %d" % number))
        quota.limit(1 << 60, mover.monotonic())
        await wait_moved(served, "b")
        values = await client.values("t")
        assert len(values) == partition(served).log.log_end_offset
        assert values[-1] == b"new 59"
        assert values[31] == b"new 0"
        records = sum(1 for _ in partition(served).log.segment_spans())
        assert records > 1


@in_trio
async def test_a_deleted_topic_ends_its_move(tmp_path: Path) -> None:
    async with two_dirs(tmp_path) as (served, client):
        stop_copying(served)
        assert await move(client, tmp_path / "b") == 0
        assert await client.delete("t") == 0
        await client.create("t", 2)
        while served.worker.log_dir_mover.moves:
            await trio.sleep(0.01)
        assert not list((tmp_path / "b").glob("t-0.*-future"))
        await client.produce("t", batch_of(b"of the new topic"))
        assert await client.values("t") == [b"of the new topic"]


@in_trio
async def test_deleted_records_stay_deleted_in_the_other_directory(tmp_path: Path) -> None:
    async with two_dirs(tmp_path, segment_bytes=1000) as (served, client):
        for _ in range(10):
            await client.produce("t", batch_of(b"a" * 100, b"b" * 100, b"c" * 100))
        rows = [DeleteRecordsPartition(partition_index=0, offset=12)]
        asked = DeleteRecordsRequest(
            timeout_ms=9000, topics=[DeleteRecordsTopic(name="t", partitions=rows)]
        )
        await client.call(ApiKey.DELETE_RECORDS, asked)  # within a batch
        values = await client.values("t", 12)
        assert await move(client, tmp_path / "b") == 0
        await wait_moved(served, "b")
        log = partition(served).log
        assert (log.log_start_offset, log.log_end_offset) == (12, 31)
        assert await client.values("t", 12) == values


@in_trio
async def test_a_full_target_is_tried_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("metaquorum.dataplane.replication.log_dir_mover.RETRY_S", 0.01)
    disk = FaultyDisk()
    async with two_dirs(tmp_path, disk) as (served, client):
        disk.fail("write", "-future/0", errno.ENOSPC)
        assert await move(client, tmp_path / "b") == 0
        while not served.worker.log_dir_mover.moves["t", 0].is_full:
            await trio.sleep(0.001)
        full = served.worker.replica_manager.log_dirs.full
        while [one.path for one in full] != [str(tmp_path / "b")]:
            await trio.sleep(0.001)
        await client.produce("t", batch_of(b"meanwhile"))
        disk.faults.clear()
        await wait_moved(served, "b")
        assert await client.values("t") == [b"0", b"meanwhile"]


@in_trio
async def test_a_move_to_a_full_directory_holds_up_no_other(tmp_path: Path) -> None:
    """There is one slot for moves; a move that waits for space does not hold it."""
    disk = FaultyDisk()
    async with two_dirs(tmp_path, disk, num_replica_alter_log_dirs_threads=1) as (served, client):
        await client.create("u")
        await client.produce("u", batch_of(b"u"))
        dirs = served.worker.replica_manager.log_dirs
        there = Path(dirs.dir_of(("u", 0)).path)
        disk.fail("write", "-future/0", errno.ENOSPC)
        assert await move(client, tmp_path / "b") == 0
        while not served.worker.log_dir_mover.moves["t", 0].is_full:
            await trio.sleep(0.001)
        other = tmp_path / ("a" if there.name == "b" else "b")
        (copy,) = (tmp_path / "b").glob("t-0.*-future")
        disk.fail("write", f"/{copy.name}/", errno.ENOSPC)
        assert await move(client, other, "u") == 0
        while dirs.dir_of(("u", 0)).path != str(other):
            await trio.sleep(0.001)
        assert ("t", 0) in served.worker.log_dir_mover.moves


@in_trio
async def test_a_failing_target_ends_the_move(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with two_dirs(tmp_path, disk) as (served, client):
        disk.fail("write", "-future/0", errno.EIO)
        assert await move(client, tmp_path / "b") == 0
        while served.worker.log_dir_mover.moves:
            await trio.sleep(0.001)
        assert (await log_dirs(client))["b"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await client.produce("t", batch_of(b"on"))
        assert await client.values("t") == [b"0", b"on"]
    async with serving(tmp_path / "data", log_dirs=(tmp_path / "a", tmp_path / "b")) as served:
        client = await served.connect()
        await wait_moved(served, "b")  # the move begins again
        assert await client.values("t") == [b"0", b"on"]


@pytest.mark.parametrize(
    ("action", "part"), [("write", "/a/t-0/.metaquorum_moved"), ("sync", "/a/t-0/")]
)
@in_trio
async def test_a_failing_source_ends_the_move_and_leaves_the_target_alone(
    tmp_path: Path, action: str, part: str
) -> None:
    disk = FaultyDisk()
    async with two_dirs(tmp_path, disk) as (served, client):
        disk.fail(action, part, errno.EIO)
        assert await move(client, tmp_path / "b") == 0
        while not disk.refused or served.worker.log_dir_mover.moves:
            await trio.sleep(0.001)
        codes = {name: row.error_code for name, row in (await log_dirs(client)).items()}
        assert codes == {"a": ErrorCode.KAFKA_STORAGE_ERROR, "b": ErrorCode.NONE}
        await client.produce("t", batch_of(b"on"), partition=1)
        assert (await fetched(client, 1)).high_watermark == 2


@in_trio
async def test_a_log_whose_id_cannot_be_read_stays_where_it_is(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    async with two_dirs(tmp_path, disk) as (served, client):
        assert await move(client, tmp_path / "b") == 0
        await wait_moved(served, "b")
        disk.fail("read", "/b/t-0/.metaquorum_moved", errno.EIO)
        assert await move(client, tmp_path / "a") == 0
        while not disk.refused or served.worker.log_dir_mover.moves:
            await trio.sleep(0.001)
        assert served.worker.log_dir_mover.failed_count == 1
        await client.produce("t", batch_of(b"on"))
        assert await client.values("t") == [b"0", b"on"]
        assert await rows(client) == {"a": [], "b": [(0, False), (1, False)]}
        assert {row.error_code for row in (await log_dirs(client)).values()} == {ErrorCode.NONE}


@pytest.mark.parametrize("action", ["read", "sync"])
@in_trio
async def test_an_error_of_the_former_log_is_one_of_its_directory(
    tmp_path: Path, action: str
) -> None:
    """A read or a sync of the former log may end after the move."""
    async with two_dirs(tmp_path) as (served, client):
        former = partition(served).log.folder
        assert await move(client, tmp_path / "b") == 0
        await wait_moved(served, "b")
        error = storage_error(OSError(errno.EIO, "it fails"), action, former)
        served.worker.partition_failed(partition(served), error)
        codes = {name: row.error_code for name, row in (await log_dirs(client)).items()}
        failed = action == "sync"
        assert codes == {
            "a": ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NONE,
            "b": ErrorCode.NONE,
        }
        await client.produce("t", batch_of(b"on"))
        assert await client.values("t") == [b"0", b"on"]


def test_a_move_keeps_its_rate() -> None:
    """The limit is changed while replicas move; each rate is kept within one percent."""

    async def rate_is_kept(node: Simulated, rate: int) -> None:
        quota = node.worker.log_dir_mover.quota
        await node.world.sleep(3)
        began, before = node.now, quota.bytes
        await node.world.sleep(60)
        assert quota.bytes - before == pytest.approx(rate * (node.now - began), rel=0.01)

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        await client.create("t", 2)
        for index in range(2):
            for _ in range(200):
                await client.produce("t", batch_of(bytes(20_000)), partition=index)
        mover, dirs = node.worker.log_dir_mover, node.worker.replica_manager.log_dirs
        paths = [one.path for one in dirs.online]
        assert await change(client, BROKER, "", {RATE: 20_000}) == 0
        await rate_in_force(node, 20_000)
        for index in range(2):
            (other,) = [path for path in paths if path != dirs.dir_of(("t", index)).path]
            assert await move(client, other, index=index) == 0
        await rate_is_kept(node, 20_000)
        assert await change(client, BROKER, "", {RATE: 50_000}) == 0
        await rate_in_force(node, 50_000)
        await rate_is_kept(node, 50_000)
        page = Page()
        add_log_dir_moves(page, mover)
        shown = b"".join(page.texts()).decode()
        assert "metaquorum_log_dir_moves 2" in shown
        assert "kafka_server_replicaalterlogdirsmanager_maxlag" in shown
        assert await change(client, BROKER, "", {RATE: None}) == 0
        while mover.moves:
            await node.world.sleep(0.1)
        assert mover.moved_count == 2
        assert partition_of(node).log.log_end_offset == 200

    run_simulated(scenario, log_dirs=("/data/a", "/data/b"))


def partition_of(node: Simulated) -> Any:
    return node.worker.replica_manager.by_name("t", 0)


async def rate_in_force(node: Simulated, rate: int) -> None:
    while node.worker.log_dir_mover.quota.rate_limit != rate:
        await node.world.sleep(0.01)
