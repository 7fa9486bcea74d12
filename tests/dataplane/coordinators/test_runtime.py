"""Operations on shards: appended, committed, replayed, answered.

The test plays the other replica.
"""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from dataplane.coordinators.delayed_write import DelayedWrite, wait_answer
from dataplane.coordinators.runtime import WRITE_RETRY_S, RuntimeLimits
from dataplane.coordinators.shard import CoordinatorRecord, Write
from dataplane.partition.partition import Partition
from tests.dataplane.coordinators.counters import (
    OTHER,
    TIMEOUT_MS,
    TOPIC,
    Counters,
    CounterShard,
    add,
    assign,
    error_of,
    holds,
    partition_of,
    replicate,
    result_of,
    running,
    until_active,
    value_of,
)
from tests.dataplane.replication.replicas import state
from tests.dataplane.serving import FaultyDisk, Served, in_trio, serving
from wire.primitives.errors import ErrorCode, KafkaError

E = ErrorCode


@asynccontextmanager
async def alone(
    folder: Path,
    disk: FaultyDisk | None = None,
    limits: RuntimeLimits | None = None,
    **configs: Any,
) -> AsyncIterator[tuple[Served, Counters, Partition]]:
    """Run the counters on a worker that has the only replica."""
    async with serving(folder, disk=disk) as served:
        client = await served.connect()
        await client.create(TOPIC, cleanup_policy="compact", **configs)
        async with running(served.worker, limits) as counters:
            await until_active(counters)
            yield served, counters, partition_of(served)


@asynccontextmanager
async def replicated(
    folder: Path, limits: RuntimeLimits | None = None, **configs: Any
) -> AsyncIterator[tuple[Served, Counters, Partition]]:
    """Run the counters on worker 1, the leader in epoch 1; worker 2 is in sync."""
    async with alone(folder, limits=limits, **configs) as (served, counters, partition):
        replicate(served, partition)
        holds(partition)
        await until_active(counters)
        yield served, counters, partition


def delayed(counters: Counters, key: bytes = b"a", timeout_ms: int = TIMEOUT_MS) -> DelayedWrite:
    answer = counters.call(0, add(key), timeout_ms)
    assert isinstance(answer, DelayedWrite)
    return answer


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


# One replica


@in_trio
async def test_the_write_of_a_single_replica_is_answered_at_once(tmp_path: Path) -> None:
    async with alone(tmp_path) as (_, counters, partition):
        assert counters.call(0, add(b"a"), TIMEOUT_MS) == 1
        assert counters.call(0, add(b"a", 5), TIMEOUT_MS) == 6
        assert counters.call(0, value_of(b"a"), TIMEOUT_MS) == 6
        assert partition.log.log_end_offset == 2
        assert counters.pending_bytes == 0


@in_trio
async def test_a_write_without_records_is_answered_at_once(tmp_path: Path) -> None:
    async with alone(tmp_path) as (_, counters, partition):
        assert counters.call(0, lambda _: Write([], "nothing"), TIMEOUT_MS) == "nothing"
        assert partition.log.log_end_offset == 0


@in_trio
async def test_records_are_stored_with_their_time_and_as_tombstones(tmp_path: Path) -> None:
    async with alone(tmp_path) as (served, counters, _):
        before_ms = served.worker.clock.now_ms()
        records = [CoordinatorRecord(b"a", b"7"), CoordinatorRecord(b"b", None)]
        counters.call(0, lambda _: Write(records, None), TIMEOUT_MS)
        client = await served.connect()
        assert await client.values(TOPIC) == [b"7", None]
        times = counters.shards()[0].timestamps
        assert times[0] == times[1]
        assert before_ms <= times[0] <= served.worker.clock.now_ms()


@in_trio
async def test_a_long_write_is_replayed_in_pieces_and_then_answered(tmp_path: Path) -> None:
    async with alone(tmp_path, max_message_bytes=10_000) as (_, counters, partition):
        records = [CoordinatorRecord(b"%04d" % n, b"1") for n in range(1000)]
        answer = counters.call(0, lambda _: Write(records, "done"), TIMEOUT_MS)
        short = counters.call(0, add(b"0000"), TIMEOUT_MS)  # may not overtake the long one
        assert not counters.shards()[0].replayed
        assert await wait_answer(answer) == "done"
        assert await wait_answer(short) == 1
        assert partition.log.log_end_offset == 1001
        replayed = counters.shards()[0].replayed
        assert replayed == [(r.key, r.value) for r in records] + [(b"0000", b"1")]


@in_trio
async def test_batches_are_not_larger_than_the_topic_allows(tmp_path: Path) -> None:
    async with alone(tmp_path, max_message_bytes=2000) as (served, counters, _):
        records = [CoordinatorRecord(b"%04d" % n, b"1") for n in range(500)]
        await wait_answer(counters.call(0, lambda _: Write(records, None), TIMEOUT_MS))
        client = await served.connect()
        assert len(await client.values(TOPIC)) == 500
        too_large = Write([CoordinatorRecord(b"k", bytes(3000))], None)
        refused: list[KafkaError] = []
        late = Write(too_large.records, None, refused.append)
        assert error_of(lambda: counters.call(0, lambda _: late, 1)) == E.MESSAGE_TOO_LARGE
        assert [error.code for error in refused] == [E.MESSAGE_TOO_LARGE]
        assert counters.call(0, add(b"after"), TIMEOUT_MS) == 1


@in_trio
async def test_a_compressed_topic_stores_compressed_records(tmp_path: Path) -> None:
    async with alone(tmp_path, compression_type="gzip") as (served, counters, partition):
        value = b"1" + bytes(0)
        records = [CoordinatorRecord(b"same key", value)] * 60
        counters.call(0, lambda _: Write(records, None), TIMEOUT_MS)
        assert partition.bytes_in < 60 * len(b"same key")
        client = await served.connect()
        assert await client.values(TOPIC) == [value] * 60


@in_trio
async def test_with_flush_messages_an_answer_waits_for_the_flush(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with alone(tmp_path, disk, flush_messages=1) as (_, counters, partition):
        disk.synced.clear()
        answer = counters.call(0, add(b"a"), TIMEOUT_MS)
        assert isinstance(answer, DelayedWrite)
        assert not disk.synced
        assert await wait_answer(answer) == 1
        assert any(TOPIC in path for path in disk.synced)
        assert partition.log.unflushed_records == 0


# Commits


@in_trio
async def test_a_write_is_answered_after_it_is_committed_and_replayed(tmp_path: Path) -> None:
    async with replicated(tmp_path) as (_, counters, partition):
        first, second = delayed(counters), delayed(counters, b"b")
        shard = counters.shards()[0]
        assert shard.uncommitted == 2
        await turns()
        assert not first.is_ready
        assert shard.replayed == []
        holds(partition, 1)
        assert not first.is_ready, "answered within the fetch of a follower"
        assert await wait_answer(first) == 1
        assert not second.is_ready
        assert shard.replayed == [(b"a", b"1")]
        holds(partition)
        assert await wait_answer(second) == 1
        assert counters.pending_bytes == 0


@in_trio
async def test_decisions_do_not_see_records_that_are_not_committed(tmp_path: Path) -> None:
    async with replicated(tmp_path) as (_, counters, partition):
        write = delayed(counters)
        assert counters.call(0, value_of(b"a"), TIMEOUT_MS) == 0
        holds(partition)
        await wait_answer(write)
        assert counters.call(0, value_of(b"a"), TIMEOUT_MS) == 1


@in_trio
async def test_a_write_behind_others_that_are_committed_is_not_replayed_at_once(
    tmp_path: Path,
) -> None:
    """A step of the event loop would otherwise replay any number of writes."""
    async with replicated(tmp_path) as (served, counters, partition):
        writes = [delayed(counters) for _ in range(10)]
        assign(served, partition, state(1, 1, (1,), partition_epoch=2))
        assert partition.high_watermark == 10
        last = delayed(counters)
        assert counters.shards()[0].replayed == []
        await wait_answer(last)
        assert all(write.is_ready for write in writes)


@in_trio
async def test_a_write_that_is_late_is_refused_and_replayed_when_it_commits(
    tmp_path: Path,
) -> None:
    async with replicated(tmp_path) as (_, counters, partition):
        refused: list[KafkaError] = []
        answer: Any = counters.call(0, add(b"a", 1, refused.append), 20)
        with pytest.raises(KafkaError) as caught:
            await wait_answer(answer)
        assert caught.value.code == E.COORDINATOR_NOT_AVAILABLE
        assert refused == [caught.value]
        later = delayed(counters)
        holds(partition)
        await wait_answer(later)
        assert counters.shards()[0].replayed == [(b"a", b"1")] * 2
        assert len(refused) == 1


@in_trio
async def test_a_dropped_response_does_not_withdraw_the_write(tmp_path: Path) -> None:
    async with replicated(tmp_path) as (_, counters, partition):
        dropped, later = delayed(counters), delayed(counters)
        dropped.cancel()
        holds(partition)
        await wait_answer(later)
        assert counters.shards()[0].counters == {b"a": 2}


@in_trio
async def test_the_operation_of_a_dropped_response_hears_that_it_is_late(tmp_path: Path) -> None:
    async with replicated(tmp_path) as (_, counters, _):
        refused: list[KafkaError] = []
        answer: Any = counters.call(0, add(b"a", 1, refused.append), 10)
        answer.cancel()
        while not refused:
            await trio.sleep(0.001)
        assert refused[0].code == E.COORDINATOR_NOT_AVAILABLE


@in_trio
async def test_too_few_in_sync_replicas_refuse_a_write_before_it_is_appended(
    tmp_path: Path,
) -> None:
    async with replicated(tmp_path, min_insync_replicas=2) as (served, counters, partition):
        assign(served, partition, state(1, 1, (1, OTHER), (1,), 2))
        end = partition.log.log_end_offset
        call = partial(counters.call, 0, add(b"a"), TIMEOUT_MS)
        assert error_of(call) == E.COORDINATOR_NOT_AVAILABLE
        assert partition.log.log_end_offset == end
        assert counters.call(0, value_of(b"a"), TIMEOUT_MS) == 0


@in_trio
async def test_uncommitted_records_have_a_memory_limit(tmp_path: Path) -> None:
    limits = RuntimeLimits(shard_pending_bytes=10_000)
    async with replicated(tmp_path, limits) as (_, counters, partition):
        writes = []
        while error_of(lambda: writes.append(delayed(counters))) is None:
            assert counters.pending_bytes <= 10_000
        assert len(writes) > 3
        call = partial(counters.call, 0, add(b"a"), TIMEOUT_MS)
        assert error_of(call) == E.COORDINATOR_NOT_AVAILABLE
        holds(partition)
        assert [await wait_answer(write) for write in writes] == [1] * len(writes)
        assert counters.pending_bytes == 0
        delayed(counters)


# Leadership


@in_trio
async def test_a_write_in_flight_when_the_leadership_ends_is_answered_not_coordinator(
    tmp_path: Path,
) -> None:
    async with replicated(tmp_path) as (served, counters, partition):
        write, shard = delayed(counters), counters.shards()[0]
        assign(served, partition, state(OTHER, 2, (1, OTHER)))
        assert error_of(lambda: counters.call(0, value_of(b"a"), 1)) == E.NOT_COORDINATOR
        with pytest.raises(KafkaError) as caught:
            await wait_answer(write)
        assert caught.value.code == E.NOT_COORDINATOR
        partition.follow_to(1)  # the next leader commits the record
        await turns()
        assert shard.replayed == []
        assert shard.is_unloaded
        assert counters.pending_bytes == 0
        assert partition.waiters == set()


@in_trio
async def test_a_commit_in_the_step_that_ends_the_leadership_is_not_answered_as_success(
    tmp_path: Path,
) -> None:
    async with replicated(tmp_path) as (served, counters, partition):
        write = delayed(counters)
        holds(partition)
        assign(served, partition, state(OTHER, 2, (1, OTHER)))
        with pytest.raises(KafkaError) as caught:
            await wait_answer(write)
        assert caught.value.code == E.NOT_COORDINATOR


@in_trio
async def test_a_new_epoch_of_the_same_leader_loads_again(tmp_path: Path) -> None:
    async with replicated(tmp_path) as (served, counters, partition):
        write, shard = delayed(counters), counters.shards()[0]
        assign(served, partition, state(1, 2, (1, OTHER)))
        call = partial(counters.call, 0, value_of(b"a"), 1)
        assert error_of(call) == E.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(KafkaError) as caught:
            await wait_answer(write)
        assert caught.value.code == E.NOT_COORDINATOR
        await turns(50)
        assert error_of(call) == E.COORDINATOR_LOAD_IN_PROGRESS, "the record is not committed yet"
        holds(partition)
        again = await until_active(counters)
        assert again is not shard
        assert again.replayed == [(b"a", b"1")]
        assert call() == 1


@in_trio
async def test_a_stale_shard_is_not_used_even_if_its_watchers_were_not_woken(
    tmp_path: Path,
) -> None:
    async with replicated(tmp_path) as (_, counters, partition):
        partition.leader_epoch += 1
        assert error_of(lambda: counters.call(0, value_of(b"a"), 1)) == E.NOT_COORDINATOR
        assert counters.shards() == {}


@in_trio
async def test_the_end_of_the_leadership_stops_a_load(tmp_path: Path) -> None:
    async with replicated(tmp_path) as (served, counters, partition):
        for _ in range(3):
            delayed(counters)
        assign(served, partition, state(1, 2, (1, OTHER)))
        await turns(50)  # the load waits for the commit
        assert counters.loading_count == 1
        assign(served, partition, state(OTHER, 3, (1, OTHER)))
        await turns(50)
        assert counters.shards() == {}
        assert counters.loading_count == 0
        assign(served, partition, state(1, 4, (1, OTHER)))
        holds(partition)
        assert (await until_active(counters)).counters == {b"a": 3}


@in_trio
async def test_a_deleted_topic_is_unloaded_and_its_successor_is_empty(tmp_path: Path) -> None:
    async with alone(tmp_path) as (served, counters, _):
        counters.call(0, add(b"a"), TIMEOUT_MS)
        shard = counters.shards()[0]
        client = await served.connect()
        await client.delete(TOPIC)
        await turns()
        assert shard.is_unloaded
        assert error_of(lambda: counters.call(0, value_of(b"a"), 1)) == E.NOT_COORDINATOR
        await client.create(TOPIC)
        assert (await until_active(counters)).replayed == []


@in_trio
async def test_closing_answers_what_waits(tmp_path: Path) -> None:
    async with replicated(tmp_path) as (_, counters, partition):
        write, shard = delayed(counters), counters.shards()[0]
        counters.close()
        assert result_of(write) == E.NOT_COORDINATOR
        assert shard.is_unloaded
        assert partition.waiters == set()
        assert error_of(lambda: counters.call(0, value_of(b"a"), 1)) == E.NOT_COORDINATOR


@in_trio
async def test_a_partition_that_is_not_here_has_no_coordinator(tmp_path: Path) -> None:
    async with alone(tmp_path) as (_, counters, _):
        assert error_of(lambda: counters.check(7)) == E.NOT_COORDINATOR
        assert error_of(lambda: counters.check(0)) is None


# Failures of the disk


@in_trio
async def test_a_full_disk_refuses_writes_and_the_shard_stays(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with alone(tmp_path, disk) as (_, counters, _):
        counters.call(0, add(b"a"), TIMEOUT_MS)
        disk.fail("write", f"/{TOPIC}-0", errno.ENOSPC)
        call = partial(counters.call, 0, add(b"a"), TIMEOUT_MS)
        assert error_of(call) == E.COORDINATOR_NOT_AVAILABLE
        assert counters.call(0, value_of(b"a"), TIMEOUT_MS) == 1
        disk.faults.clear()
        assert call() == 2


@in_trio
async def test_a_failed_directory_unloads_the_shard(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log_dirs = (tmp_path / "one", tmp_path / "other")
    async with serving(tmp_path / "meta", disk=disk, log_dirs=log_dirs) as served:
        client = await served.connect()
        await client.create(TOPIC)
        async with running(served.worker) as counters:
            shard = await until_active(counters)
            disk.fail("write", f"/{TOPIC}-0", errno.EIO)
            call = partial(counters.call, 0, add(b"a"), TIMEOUT_MS)
            assert error_of(call) == E.NOT_COORDINATOR
            await turns()
            assert shard.is_unloaded
            assert error_of(call) == E.NOT_COORDINATOR


# Timers


def at(shard: CounterShard, due: float, key: bytes) -> None:
    shard.timers.append((due, lambda: [CoordinatorRecord(key, b"1")]))


@in_trio
async def test_due_timers_write_their_records(tmp_path: Path) -> None:
    async with alone(tmp_path) as (served, counters, _):
        now = served.worker.clock.monotonic()

        def set_timers(shard: CounterShard) -> None:
            at(shard, now + 0.03, b"late")
            at(shard, now + 0.01, b"early")

        counters.call(0, set_timers, TIMEOUT_MS)
        shard = counters.shards()[0]
        while len(shard.counters) < 2:
            await trio.sleep(0.001)
        assert shard.replayed == [(b"early", b"1"), (b"late", b"1")]
        assert served.worker.clock.monotonic() >= now + 0.03


@in_trio
async def test_the_records_of_timers_are_tried_again_before_later_writes(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with alone(tmp_path, disk) as (served, counters, _):
        shard = counters.shards()[0]
        disk.fail("write", f"/{TOPIC}-0", errno.ENOSPC)
        clock = served.worker.clock
        began = clock.monotonic()
        counters.call(0, lambda shard: at(shard, began, b"timer"), TIMEOUT_MS)
        while shard.timers:
            await trio.sleep(0.001)
        call = partial(counters.call, 0, add(b"a"), TIMEOUT_MS)
        assert error_of(call) == E.COORDINATOR_NOT_AVAILABLE
        disk.faults.clear()
        await wait_answer(call())
        assert shard.replayed == [(b"timer", b"1"), (b"a", b"1")]
        disk.fail("write", f"/{TOPIC}-0", errno.ENOSPC)
        counters.call(0, lambda shard: at(shard, began, b"second"), TIMEOUT_MS)
        while shard.timers:
            await trio.sleep(0.001)
        disk.faults.clear()
        while b"second" not in shard.counters:
            await trio.sleep(0.01)
        assert clock.monotonic() - began >= WRITE_RETRY_S


@in_trio
async def test_an_oversized_record_of_a_timer_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with alone(tmp_path, max_message_bytes=2000) as (served, counters, _):
        shard = counters.shards()[0]
        records = [CoordinatorRecord(b"big", b"0" * 3000), CoordinatorRecord(b"small", b"1")]
        now = served.worker.clock.monotonic()
        counters.call(0, lambda shard: shard.timers.append((now, lambda: records)), TIMEOUT_MS)
        while not shard.counters:
            await trio.sleep(0.001)
        assert shard.replayed == [(b"small", b"1")]
        assert "3003 bytes" in caplog.text
