"""Loads of shards from logs of all forms: compressed, compacted, cut at the start, damaged."""

import errno
import gc
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from dataplane.coordinators import loading
from dataplane.coordinators.runtime import MAX_LOADS, RuntimeLimits
from dataplane.partition.partition import Partition
from metaquorum.runtime.system import RealDisk
from tests.dataplane.coordinators.counters import (
    OTHER,
    TIMEOUT_MS,
    TOPIC,
    CounterShard,
    assign,
    error_of,
    partition_of,
    running,
    until_active,
    value_of,
)
from tests.dataplane.replication.replicas import state
from tests.dataplane.serving import (
    WORLD_BEGAN_MS,
    FaultyDisk,
    Served,
    Simulated,
    append_unvalidated,
    in_trio,
    serving,
    simulated,
)
from wire.primitives.errors import ErrorCode
from wire.records.batches import pack_batch, parse_header
from wire.records.compression import Codec
from wire.records.records import (
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
)

T = TypeVar("T")
E = ErrorCode
Rows = Sequence[tuple[bytes | None, bytes | None]]
SMALL = RuntimeLimits(load_buffer_bytes=200)


def batch(*rows: tuple[bytes | None, bytes | None], **options: Any) -> bytearray:
    records = [Record(i, WORLD_BEGAN_MS + i, key, value) for i, (key, value) in enumerate(rows)]
    return encode_batch(records, **options)


@asynccontextmanager
async def holding(
    folder: Path, *batches: bytearray, disk: RealDisk | None = None, **configs: Any
) -> AsyncIterator[tuple[Served, Partition]]:
    """Serve a topic with these batches; no coordinator runs yet."""
    async with serving(folder, disk=disk) as served:
        client = await served.connect()
        await client.create(TOPIC, **configs)
        partition = partition_of(served)
        for data in batches:
            append_unvalidated(partition, data)
        yield served, partition


@in_trio
async def test_all_records_are_replayed_in_order_before_the_timers_start(tmp_path: Path) -> None:
    rows: Rows = [(b"%d" % (n % 7), b"%d" % n) for n in range(300)]
    batches = [batch(*rows[first : first + 10]) for first in range(0, 300, 10)]
    async with (
        holding(tmp_path, *batches) as (served, _),
        running(served.worker, SMALL) as counters,
    ):
        shard = await until_active(counters)
        assert shard.replayed == rows
        assert shard.timestamps[:11] == [WORLD_BEGAN_MS + n for n in (*range(10), 0)]
        assert len(shard.loads) == 1


@pytest.mark.parametrize("codec", list(Codec))
@in_trio
async def test_compressed_batches_are_loaded(tmp_path: Path, codec: Codec) -> None:
    rows: Rows = [(b"key", b"%d" % n) for n in range(200)] + [(b"key", None)]
    async with (
        holding(tmp_path, batch(*rows, codec=codec)) as (served, _),
        running(served.worker, SMALL) as counters,
    ):
        assert (await until_active(counters)).replayed == rows


@in_trio
async def test_control_batches_transactions_and_records_without_a_key_are_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marker = encode_marker(
        EndTransactionMarker(ControlType.COMMIT, 0), producer_id=6, producer_epoch=0, timestamp_ms=1
    )
    open_one = batch(
        (b"t", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True
    )
    async with (
        holding(
            tmp_path, batch((b"a", b"1")), open_one, marker, batch((None, b"1"), (b"b", b"2"))
        ) as (served, _),
        running(served.worker) as counters,
    ):
        assert (await until_active(counters)).replayed == [(b"a", b"1"), (b"b", b"2")]
    assert "a batch of a transaction at offset 1" in caplog.text


@in_trio
async def test_a_log_that_starts_within_a_batch_is_loaded_from_there(tmp_path: Path) -> None:
    rows: Rows = [(b"%d" % n, b"1") for n in range(10)]
    async with holding(tmp_path, batch(*rows[:5]), batch(*rows[5:])) as (served, partition):
        partition.log.advance_log_start(3)
        async with running(served.worker) as counters:
            assert (await until_active(counters)).replayed == rows[3:]


@in_trio
async def test_an_empty_log_is_loaded(tmp_path: Path) -> None:
    async with holding(tmp_path) as (served, _), running(served.worker) as counters:
        assert (await until_active(counters)).replayed == []


@in_trio
async def test_log_append_time_is_the_time_of_loaded_records(tmp_path: Path) -> None:
    async with holding(tmp_path, message_timestamp_type="LogAppendTime") as (served, partition):
        data = batch((b"a", b"1"))
        partition.log.append(data, [parse_header(data)], 0, WORLD_BEGAN_MS + 77)
        partition.appended(len(data))
        async with running(served.worker) as counters:
            assert (await until_active(counters)).timestamps == [WORLD_BEGAN_MS + 77]


def test_a_compacted_log_gives_the_same_last_values() -> None:
    """The loads run while the log cleaner replaces segments."""

    async def scenario(sim: Simulated) -> None:
        client = await sim.connect()
        await client.create(
            TOPIC,
            cleanup_policy="compact",
            internal_segment_bytes=2000,
            segment_ms=10_000_000,
        )
        partition = sim.worker.replica_manager.by_name(TOPIC, 0)
        for number in range(300):
            append_unvalidated(partition, batch((b"k%d" % (number % 5), b"%d" % number)))
        sizes = []
        for _ in range(30):
            async with running(sim.worker, RuntimeLimits(load_buffer_bytes=500)) as counters:
                shard = await until_active(counters)
                assert shard.replayed is not None
                last = dict(shard.replayed)
                assert last == {b"k%d" % key: b"%d" % (295 + key) for key in range(5)}
                sizes.append(len(shard.replayed))
            await sim.world.sleep(2)
        assert sizes[0] == 300
        assert sizes[-1] < 100

    simulated(scenario)


# Leadership


@in_trio
async def test_a_load_waits_until_the_start_of_the_epoch_is_committed(tmp_path: Path) -> None:
    async with (
        holding(tmp_path, batch((b"a", b"1"))) as (served, partition),
        running(served.worker) as counters,
    ):
        await until_active(counters)
        assign(served, partition, state(OTHER, 1, (1, OTHER)))
        uncommitted = batch((b"b", b"1"))
        partition.log.append(uncommitted, [parse_header(uncommitted)], 1, 0)
        assign(served, partition, state(1, 2, (1, OTHER)))
        assert partition.is_catching_up
        for _ in range(50):
            await trio.lowlevel.checkpoint()
            call_code = error_of(lambda: counters.check(0))
            assert call_code == E.COORDINATOR_LOAD_IN_PROGRESS
        leadership = partition.leader_state
        assert leadership is not None
        leadership.fetched(OTHER, -1, 2, 0, 2, trio.current_time())
        partition.advance()
        assert (await until_active(counters)).replayed == [(b"a", b"1"), (b"b", b"1")]


class GatedDisk(RealDisk):
    """This machine's disk; while `gate` is closed, reads of logs in worker threads wait."""

    def __init__(self) -> None:
        self.gate: trio.Event | None = None
        self.waiting = 0
        self.most_waiting = 0

    async def run(self, function: Callable[[], T]) -> T:
        if self.gate is not None:
            self.waiting += 1
            self.most_waiting = max(self.waiting, self.most_waiting)
            try:
                await self.gate.wait()
            finally:
                self.waiting -= 1
        return await super().run(function)


@in_trio
async def test_few_partitions_load_at_a_time_and_all_of_them_in_the_end(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create(TOPIC, 3 * MAX_LOADS)
        for index in range(3 * MAX_LOADS):
            append_unvalidated(partition_of(served, index), batch((b"a", b"1")))
        disk.gate = trio.Event()
        async with running(served.worker) as counters:
            while disk.waiting < MAX_LOADS:
                await trio.sleep(0.001)
            gate, disk.gate = disk.gate, None
            gate.set()
            for index in range(3 * MAX_LOADS):
                assert (await until_active(counters, index)).counters == {b"a": 1}
        assert disk.most_waiting == MAX_LOADS


@in_trio
async def test_a_load_that_the_end_of_the_leadership_overtakes_stops(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with holding(tmp_path, batch((b"a", b"1")), disk=disk) as (served, partition):
        disk.gate = trio.Event()
        made: list[CounterShard] = []
        async with running(served.worker, make=lambda _: _made(made)) as counters:
            while not disk.waiting:
                await trio.sleep(0.001)
            assert error_of(lambda: counters.check(0)) == E.COORDINATOR_LOAD_IN_PROGRESS
            assign(served, partition, state(OTHER, 1, (1, OTHER)))
            assert error_of(lambda: counters.check(0)) == E.NOT_COORDINATOR
            gate, disk.gate = disk.gate, None
            gate.set()
            assign(served, partition, state(1, 2, (1,)))
            assert await until_active(counters) is made[1]
            assert made[0].replayed == []
            assert made[0].is_unloaded
            assert made[1].replayed == [(b"a", b"1")]


def _made(made: list[CounterShard]) -> CounterShard:
    made.append(CounterShard())
    return made[-1]


# Damage


def damage(partition: Partition, position: int) -> None:
    """Change one byte of the only segment."""
    path = os.path.join(partition.log.folder, f"{0:020}.log")
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))


@in_trio
async def test_a_damaged_record_fails_the_load_with_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batches = [batch((b"a", b"1")), batch((b"b", b"1")), batch((b"c", b"1"))]
    async with holding(tmp_path, *batches) as (served, partition):
        damage(partition, len(batches[0]) + len(batches[1]) - 2)
        async with running(served.worker) as counters:
            while error_of(lambda: counters.check(0)) != E.COORDINATOR_NOT_AVAILABLE:
                await trio.sleep(0.001)
            assert counters.shards() == {}
            call = partial(counters.call, 0, value_of(b"a"), TIMEOUT_MS)
            assert error_of(call) == E.COORDINATOR_NOT_AVAILABLE
            text = caplog.text
            assert f"cannot load partition {TOPIC}-0: offset 1 of" in text
            assert "checksum" in text
            assert str(partition.log.folder) in text
            assign(served, partition, state(OTHER, 1, (1, OTHER)))
            assert error_of(call) == E.NOT_COORDINATOR


@pytest.mark.parametrize("body", [b"", b"\x00" * 20, b"\xff" * 20, b"\x0e" + bytes(10)])
@in_trio
async def test_bytes_that_are_no_records_fail_the_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    """The checksum is valid: the writer was wrong, not the disk."""
    whole = batch((b"a", b"1"))
    header = parse_header(whole)
    bad = pack_batch(header._replace(record_count=3, last_offset_delta=2), body)
    async with holding(tmp_path, whole, bad) as (served, _), running(served.worker) as counters:
        while error_of(lambda: counters.check(0)) != E.COORDINATOR_NOT_AVAILABLE:
            await trio.sleep(0.001)
        assert f"cannot load partition {TOPIC}-0: offset 1 of" in caplog.text


@in_trio
async def test_a_transient_failure_of_reads_delays_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "RETRY_S", 0.01)
    disk = FaultyDisk()
    async with holding(tmp_path, batch((b"a", b"1")), disk=disk) as (served, _):
        disk.fail("read", f"/{TOPIC}-0", errno.ENFILE)
        async with running(served.worker) as counters:
            for _ in range(20):
                await trio.sleep(0.002)
                assert error_of(lambda: counters.check(0)) == E.COORDINATOR_LOAD_IN_PROGRESS
            disk.faults.clear()
            assert (await until_active(counters)).replayed == [(b"a", b"1")]


# Time


class Steps(trio.abc.Instrument):
    """CPU time of the longest step of a task."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._began_s: float | None = None  # None: within the step that added this instrument

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._began_s is not None:
            self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)


@pytest.mark.slow
@pytest.mark.parametrize("batch_records", [1, 20])
@in_trio
async def test_a_million_records_load_in_seconds_and_in_slices(
    tmp_path: Path, batch_records: int
) -> None:
    records, keys = 1_000_000, 100_000
    async with holding(tmp_path) as (served, partition):
        for first in range(0, records, batch_records):
            numbers = range(first, first + batch_records)
            rows = [(b"group-and-topic-and-partition-%d" % (n % keys), b"1") for n in numbers]
            append_unvalidated(partition, batch(*rows))
        steps = Steps()
        gc.collect()
        gc.freeze()  # as a started server does: collections do not walk the test's own objects
        trio.lowlevel.add_instrument(steps)

        def made(index: int) -> CounterShard:
            shard = CounterShard(index)
            shard.replayed = None
            return shard

        async with running(served.worker, make=made) as counters:
            began_s = time.thread_time()
            while not counters.shards():
                await trio.sleep(0.05)
            used_s = time.thread_time() - began_s
            counted = counters.shards()[0].counters
            assert len(counted) == keys
            assert set(counted.values()) == {records // keys}
        trio.lowlevel.remove_instrument(steps)
        gc.unfreeze()
        print(f"{batch_records} records per batch: {used_s:.1f} s, {steps.longest_s * 1000:.1f} ms")
        assert used_s < 30
        assert steps.longest_s < 0.010
