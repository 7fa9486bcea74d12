"""One shard on the worker that leads its partition, in one leader epoch. Plain state, no I/O.

    LOADING --the committed records of earlier epochs are replayed--> ACTIVE
    LOADING --the log is damaged or cannot be read------------------> FAILED
    any     --other leader or epoch, offline, deleted, shutdown-----> UNLOADED

    state       request for the shard
    LOADING     COORDINATOR_LOAD_IN_PROGRESS
    ACTIVE      the operation decides
    FAILED      NOT_COORDINATOR
    UNLOADED    NOT_COORDINATOR

A write of an ACTIVE shard:

    appended --the high watermark passes it--> replayed --> answered
       |-----not in time--> answered with COORDINATOR_NOT_AVAILABLE; replayed if it is committed
       '-----UNLOADED-----> answered with NOT_COORDINATOR; the next leader replays it, or its log
                            does not have it

Writes are replayed in the order of their offsets, and only in the leader epoch of their append. So
are the markers of transactions. One that ends a long transaction is applied in several steps; the
batches after it wait.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final, Generic, TypeVar

from metaquorum.dataplane.coordinators.client_budget import UNKNOWN
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord, Shard, TransactionalShard
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.network.delayed import Timer
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.partition.waiting import CommitWaiter
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, Steps, pause, step
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import NO_PRODUCER_ID

S = TypeVar("S", bound=Shard)

# Records that are replayed in one step, and those of the batch that exceeds this number.
REPLAYED_AT_ONCE: Final = 512
# Records to which a marker is equal in REPLAYED_AT_ONCE: its end of a transaction is a short step.
MARKER_RECORDS: Final = 16
# Memory of a pending record and a pending batch, without key and value.
_RECORD_BYTES: Final = 150
_BATCH_BYTES: Final = 1000


class State(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    UNLOADED = "unloaded"


# Constants, because Python 3.11 looks up members of an enum slowly.
_ACTIVE: Final = State.ACTIVE
_UNLOADED: Final = State.UNLOADED


@dataclass(slots=True, eq=False)
class PendingBatch:
    """A batch that was appended and is not replayed yet; the last one of a write has callbacks.

    `producer_id` is that of a transactional batch; a `marker` is a batch without other records.
    `client` is that of the request in the budgets.
    """

    records: Sequence[CoordinatorRecord]
    end_offset: int
    size_bytes: int
    due: float  # time limit, monotonic seconds
    committed: Callable[[], object] | None = None
    failed: Callable[[ErrorCode], object] | None = None
    producer_id: int = NO_PRODUCER_ID
    marker: TransactionMarker | None = None
    client: str = UNKNOWN


def pending_bytes(records: Sequence[CoordinatorRecord]) -> int:
    """Return the memory of a batch with these records until it is replayed, estimated."""
    size_bytes = sum([len(each.key) + len(each.value or b"") for each in records])
    return _BATCH_BYTES + size_bytes + len(records) * _RECORD_BYTES


def _transactional(shard: object) -> TransactionalShard | None:
    return shard if isinstance(shard, TransactionalShard) else None


class HostedShard(Generic[S]):
    """A shard, its leader epoch, and the batches that wait for their commit."""

    def __init__(self, partition: Partition, shard: S) -> None:
        """Create the shard of the partition's current leader, which is LOADING."""
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        # Log end offset at the start of the leader epoch: earlier records are loaded.
        self.first_offset = partition.log.log_end_offset
        self.shard = shard
        self.transactional: TransactionalShard | None = _transactional(shard)
        self.state = State.LOADING
        self.pending: deque[PendingBatch] = deque()
        self.pending_bytes = 0
        self._pending_by_client: dict[str, int] = {}  # the same bytes
        self.waiter: CommitWaiter | None = None
        self.is_flushing = False
        self.is_replaying = False  # the rest of the committed batches is replayed later
        self.timer: Timer | None = None  # calls the shard's `due`
        self.timer_due = inf
        self.limit_timer: Timer | None = None  # for the time limit of `pending`
        # Rest of the transaction that the first batch of `pending`, a marker, ends.
        self._ending: Steps[None] | None = None

    @property
    def is_current(self) -> bool:
        """Whether this worker has led the partition since the same epoch, and it is online."""
        return self.state is not _UNLOADED and self.partition.leads_since(self.leader_epoch)

    @property
    def is_active(self) -> bool:
        return self.state is _ACTIVE and self.partition.leads_since(self.leader_epoch)

    def check(self) -> None:
        """Raise the KafkaError for a request, unless the shard is ACTIVE and current."""
        if not self.is_current:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"this worker does not lead partition {self.partition}"
            )
        if self.state is State.LOADING:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"the coordinator is loading partition {self.partition}",
            )
        if self.state is not State.ACTIVE:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR,
                f"the coordinator cannot load partition {self.partition}: see the worker's log",
            )

    @property
    def needs_flush(self) -> bool:
        """Whether flush.messages requires a flush before a write is answered."""
        plog = self.partition.log
        return bool(self.pending) and plog.config.flush_messages <= plog.unflushed_records

    @property
    def has_committed(self) -> bool:
        """Whether a pending batch is committed."""
        return bool(self.pending) and self.pending[0].end_offset <= self.partition.high_watermark

    def is_committed_at_once(self, end_offset: int) -> bool:
        """Return whether the batch that was just appended is committed, and the next to replay.

        It is, usually, if the partition has a single replica.
        """
        plog = self.partition.log
        return (
            not self.pending
            and end_offset <= self.partition.high_watermark
            and self.partition.config.log.flush_messages > plog.log_end_offset - plog.recovery_point
        )

    def appended(self, batch: PendingBatch) -> None:
        self.pending.append(batch)
        self.pending_bytes += batch.size_bytes
        self._pending_by_client[batch.client] = self.pending_of(batch.client) + batch.size_bytes
        if batch.producer_id == NO_PRODUCER_ID or self.transactional is None:
            self.shard.appended(batch.records)
        else:
            self.transactional.appended_in_transaction(batch.records, batch.producer_id)

    def pending_of(self, client: str) -> int:
        """Return the memory of the client's pending batches, in bytes."""
        return self._pending_by_client.get(client, 0)

    def _forget(self, batch: PendingBatch) -> None:
        self.pending_bytes -= batch.size_bytes
        left = self._pending_by_client.pop(batch.client) - batch.size_bytes
        if left:
            self._pending_by_client[batch.client] = left

    def replay(self, now: float) -> int:
        """Replay committed batches in order and answer their writes; return the bytes of memory.

        Ends after REPLAYED_AT_ONCE records, `has_committed` is true then.
        """
        replay, left, freed_bytes = self.shard.replay, REPLAYED_AT_ONCE, 0
        while left > 0 and self.has_committed and self.state is State.ACTIVE:
            batch = self.pending[0]
            if batch.marker is not None and not self._end_transaction(batch.marker, now):
                break
            self.pending.popleft()
            self._forget(batch)
            freed_bytes += batch.size_bytes
            if batch.producer_id == NO_PRODUCER_ID or self.transactional is None:
                for record in batch.records:
                    replay(record, now)
            else:
                for record in batch.records:
                    self.transactional.replay_transactional(record, batch.producer_id, now)
            left -= len(batch.records) if batch.marker is None else MARKER_RECORDS
            if batch.committed is not None:
                batch.committed()
        return freed_bytes

    def _end_transaction(self, marker: TransactionMarker, now: float) -> bool:
        """Replay the marker, or a part of it; return whether that is done."""
        if self.transactional is None:
            return True
        if self._ending is None:
            self._ending = self.transactional.replay_marker(marker, now)
            if self._ending is None:
                return True
        if step(self._ending) is None:
            return False
        self._ending = None
        return True

    def refuse_late(self, now: float) -> None:
        """Fail the writes whose time limit has passed; they are replayed if they are committed."""
        late = []
        for batch in self.pending:
            if batch.due > now:
                break
            if batch.failed is not None:
                late.append(batch.failed)
                batch.failed = batch.committed = None
        for failed in late:
            failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    @property
    def oldest_due(self) -> float | None:
        """Time limit of the oldest write that waits for an answer; None if there is none."""
        return next((each.due for each in self.pending if each.failed is not None), None)

    async def unload(self) -> None:
        """Answer everything that waits with NOT_COORDINATOR and free the shard, in pieces."""
        while self.pending:
            failed = self.pending.popleft().failed
            if failed is not None:
                failed(ErrorCode.NOT_COORDINATOR)
            if len(self.pending) % PIECE_ROWS == 0:
                await pause()
        await self.shard.unload()
