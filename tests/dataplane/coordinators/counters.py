"""A small shard for tests of the runtime: a map of counters, each changed by records."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import trio

from dataplane.coordinators.runtime import CoordinatorRuntime, RuntimeLimits
from dataplane.coordinators.shard import CoordinatorRecord, Write
from dataplane.partition.partition import Partition
from dataplane.scheduling.time_slices import Work
from metaquorum.metadata.image import PartitionImage
from tests.dataplane.replication.replicas import state
from tests.dataplane.serving import Served
from wire.primitives.errors import ErrorCode, KafkaError

TOPIC = "counters"
OTHER = 2  # the worker that a test plays
TIMEOUT_MS = 5000


class CounterShard:
    """Counters by name. A record adds its value to the counter of its key; a tombstone resets."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.counters: dict[bytes, int] = {}
        self.replayed: list[tuple[bytes, bytes | None]] | None = []  # None: not kept
        self.timestamps: list[int] = []
        self.uncommitted = 0
        self.loads: list[tuple[int, float]] = []
        self.is_unloaded = False
        self.timers: list[tuple[float, Callable[[], list[CoordinatorRecord]]]] = []

    def replay(self, record: CoordinatorRecord, *, timestamp_ms: int) -> None:
        assert not self.is_unloaded
        if self.replayed is not None:
            self.replayed.append((record.key, record.value))
            self.timestamps.append(timestamp_ms)
        if record.value is None:
            self.counters.pop(record.key, None)
        else:
            self.counters[record.key] = self.counters.get(record.key, 0) + int(record.value)

    def loaded(self, now_ms: int, now: float) -> Work[None]:
        self.loads.append((now_ms, now))
        yield

    def appended(self, records: Sequence[CoordinatorRecord]) -> None:
        self.uncommitted += len(records)

    def unload(self) -> Work[None]:
        self.is_unloaded = True
        yield

    def due(self, now: float) -> list[CoordinatorRecord]:
        due = [timer for timer in self.timers if timer[0] <= now]
        self.timers = [timer for timer in self.timers if timer[0] > now]
        return [record for _, call in due for record in call()]

    @property
    def next_due(self) -> float:
        return min((at for at, _ in self.timers), default=inf)


def add(key: bytes, amount: int = 1, refused: Any = None) -> Callable[[CounterShard], Write[int]]:
    """Return an operation that adds to the counter and answers its value as of the decision."""

    def operation(shard: CounterShard) -> Write[int]:
        record = CoordinatorRecord(key, b"%d" % amount)
        return Write([record], shard.counters.get(key, 0) + amount, refused)

    return operation


def value_of(key: bytes) -> Callable[[CounterShard], int]:
    return lambda shard: shard.counters.get(key, 0)


Counters = CoordinatorRuntime[CounterShard]


@asynccontextmanager
async def running(
    worker: Any,
    limits: RuntimeLimits | None = None,
    make: Callable[[int], CounterShard] = CounterShard,
) -> AsyncIterator[Counters]:
    """Run the counters of the worker; close them after the block."""
    chosen = limits or RuntimeLimits()
    counters = CoordinatorRuntime(worker, TOPIC, make, lambda: chosen)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(counters.run)
        yield counters
        counters.close()
        nursery.cancel_scope.cancel()


async def until_active(counters: Counters, index: int = 0) -> CounterShard:
    while index not in counters.shards():
        await trio.sleep(0.001)
    return counters.shards()[index]


def error_of(call: Callable[[], object]) -> ErrorCode | None:
    """Return the code of the KafkaError that `call` raises; None if it raises none."""
    try:
        call()
    except KafkaError as error:
        return error.code
    return None


def result_of(delayed: Any) -> Any:
    """Return the answer of a DelayedWrite that is ready, or the code of its error."""
    assert delayed.is_ready
    answer = delayed.complete()
    return answer.code if isinstance(answer, KafkaError) else answer


# The other replica, played by the test


def partition_of(served: Served, index: int = 0) -> Partition:
    found: Partition = served.worker.replica_manager.by_name(TOPIC, index)
    return found


def assign(served: Served, partition: Partition, image: PartitionImage) -> None:
    """Assign as the replica manager does when the metadata changes."""
    before = partition.leader_epoch
    partition.assign(image)
    if partition.is_leader and image.leader_epoch > before:
        served.worker.replica_manager.on_elected[TOPIC](partition)


def replicate(served: Served, partition: Partition, epoch: int = 1) -> None:
    """Make worker 1 the leader of two in-sync replicas in that epoch."""
    assign(served, partition, state(1, epoch, (1, OTHER)))


def holds(partition: Partition, offset: int | None = None) -> None:
    """Fetch as the other replica, which has all records before `offset`, by default all."""
    leadership, end = partition.leader_state, partition.log.log_end_offset
    assert leadership is not None
    at = end if offset is None else offset
    leadership.fetched(OTHER, -1, at, 0, end, trio.current_time())
    partition.advance()
