"""One shard on the worker that leads its partition, in one leader epoch.

    LOADING --all records below the high watermark are replayed--> ACTIVE
    LOADING --a record is unreadable-----------------------------> FAILED
    any     --other leader or epoch, offline, deleted, shutdown--> UNLOADED

    state       request for the shard
    LOADING     COORDINATOR_LOAD_IN_PROGRESS
    ACTIVE      the operation decides
    FAILED      COORDINATOR_NOT_AVAILABLE
    UNLOADED    NOT_COORDINATOR

A write of an ACTIVE shard:

    decided --appended--> pending --high watermark--> committed --replayed--> answered
                             |---not in time------> answered with an error, replayed if it commits
                             '---UNLOADED---------> answered with NOT_COORDINATOR; the next leader
                                                    replays it, or its log does not have it

Pending writes are replayed in the order of their offsets. A write is only replayed while the
partition is in the leader epoch of the append. Plain state: the runtime appends, and calls.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from dataplane.coordinators.appending import encoded_bytes, not_coordinator
from dataplane.coordinators.delayed_write import DelayedWrite
from dataplane.coordinators.shard import CoordinatorRecord, Shard
from dataplane.network.delayed import Timer
from dataplane.partition.partition import Partition
from dataplane.scheduling.time_slices import PIECE_ROWS, Work
from wire.primitives.errors import ErrorCode, KafkaError

S = TypeVar("S", bound=Shard)

# Memory of a pending record and a pending batch, besides key and value.
_RECORD_OVERHEAD_BYTES: Final = 150
_BATCH_OVERHEAD_BYTES: Final = 1000
# Records of timers that wait for an append; with more of them, the shard's timers wait, too.
MAX_UNWRITTEN_BYTES: Final = 1 << 20


class ShardState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    UNLOADED = "unloaded"


class PendingBatch(NamedTuple):
    """An appended batch that is not replayed yet; the last batch of a write has the response."""

    end_offset: int
    timestamp_ms: int
    records: Sequence[CoordinatorRecord]
    size_bytes: int
    response: DelayedWrite | None


def pending_bytes(records: Sequence[CoordinatorRecord]) -> int:
    """Return the memory of a batch with these records until it is replayed, estimated."""
    size_bytes = sum([encoded_bytes(record) for record in records])
    return _BATCH_OVERHEAD_BYTES + size_bytes + len(records) * _RECORD_OVERHEAD_BYTES


class HostedShard(Generic[S]):
    """A shard and the batches that wait for their commit; a watcher of the partition."""

    __slots__ = (
        "_changed",
        "alarm",
        "alarm_at",
        "leader_epoch",
        "partition",
        "pending",
        "pending_bytes",
        "retry_at",
        "shard",
        "state",
        "unwritten",
        "unwritten_bytes",
    )

    def __init__(
        self, partition: Partition, shard: S, changed: "Callable[[HostedShard[S]], object]"
    ) -> None:
        """Create the shard of the current leader epoch, which is LOADING.

        `changed` is called when the high watermark moves, the leadership ends or the log directory
        fails, within that change: it must not append, and must not change the partition's watchers.
        """
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.state = ShardState.LOADING
        self.pending: deque[PendingBatch] = deque()
        self.pending_bytes = 0
        # Records of timers that could not be appended yet; they precede all other writes.
        self.unwritten: list[CoordinatorRecord] = []
        self.unwritten_bytes = 0
        self.retry_at = inf  # time of the next attempt to write them
        self.alarm: Timer | None = None
        self.alarm_at = inf
        self._changed = changed

    @property
    def is_current(self) -> bool:
        """Whether this worker still leads the partition in the same epoch, and it is online."""
        partition = self.partition
        return (
            self.state is not ShardState.UNLOADED
            and partition.is_served
            and partition.leader_epoch == self.leader_epoch
        )

    @property
    def is_active(self) -> bool:
        return self.state is ShardState.ACTIVE and self.is_current

    @property
    def has_committed(self) -> bool:
        """Whether a pending batch is committed and not replayed."""
        return bool(self.pending) and self.pending[0].end_offset <= self.partition.high_watermark

    @property
    def next_due(self) -> float:
        """Time at which timers are due, or their records are written again."""
        if self.unwritten_bytes > MAX_UNWRITTEN_BYTES:
            return self.retry_at
        return min(self.shard.next_due, self.retry_at)

    def check(self) -> None:
        """Raise the KafkaError for a request if the shard is not ACTIVE."""
        if not self.is_current:
            raise not_coordinator(self.partition)
        if self.state is ShardState.LOADING:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"the coordinator is loading partition {self.partition}",
            )
        if self.state is ShardState.FAILED:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the coordinator cannot load partition {self.partition}: see the worker's log",
            )

    # Watcher of the partition

    def note(self, new_bytes: int) -> bool:
        self._changed(self)
        return self.state is not ShardState.UNLOADED

    def wake(self) -> None:
        self._changed(self)
        if self.state is ShardState.UNLOADED:
            self.partition.waiters.discard(self)

    # Writes

    def queue(self, records: Sequence[CoordinatorRecord]) -> None:
        """Add records of timers, which precede all later writes."""
        self.unwritten += records
        self.unwritten_bytes += sum([encoded_bytes(record) for record in records])

    def unqueue(self, count: int) -> None:
        """Remove the first records of timers, which were appended."""
        self.unwritten_bytes -= sum([encoded_bytes(one) for one in self.unwritten[:count]])
        del self.unwritten[:count]

    def appended(
        self,
        records: Sequence[CoordinatorRecord],
        end_offset: int,
        timestamp_ms: int,
        response: DelayedWrite | None,
    ) -> int:
        """Add an appended batch; return its memory in bytes."""
        size_bytes = pending_bytes(records)
        self.pending.append(PendingBatch(end_offset, timestamp_ms, records, size_bytes, response))
        self.pending_bytes += size_bytes
        self.shard.appended(records)
        return size_bytes

    def replay_committed(self, end_offset: int, replayed: Callable[[int], object]) -> Work[None]:
        """Replay the committed batches before `end_offset` in order, and answer their writes.

        Yields between pieces. `replayed` is called with the memory of each batch that is no longer
        pending. Ends early if the shard is unloaded meanwhile. Only one may run at a time.
        """
        replay = self.shard.replay
        while self.is_active and self.has_committed and self.pending[0].end_offset <= end_offset:
            batch = self.pending[0]
            records, timestamp_ms = batch.records, batch.timestamp_ms
            for first in range(0, len(records), PIECE_ROWS):
                for record in records[first : first + PIECE_ROWS]:
                    replay(record, timestamp_ms=timestamp_ms)
                if first + PIECE_ROWS < len(records):
                    yield
                    if self.state is not ShardState.ACTIVE or not self.is_current:
                        return
            self.pending.popleft()
            self.pending_bytes -= batch.size_bytes
            replayed(batch.size_bytes)
            if batch.response is not None:
                batch.response.replayed()
            if self.pending:
                yield

    def unload(self) -> Work[None]:
        """Answer all writes with NOT_COORDINATOR, and free the shard; `state` is UNLOADED."""
        error = not_coordinator(self.partition)
        self.unwritten = []
        while self.pending:
            batch = self.pending.popleft()
            if batch.response is not None:
                batch.response.drop(error)
            if len(self.pending) % PIECE_ROWS == 0:
                yield
        yield from self.shard.unload()
