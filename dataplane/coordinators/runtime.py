"""Runs the shards of one internal topic: each on the worker that leads its partition.

    elected in epoch E -> load -> operations: decide -> append -> commit -> replay -> answer
    other leader or epoch -> unload: everything that waits is answered with NOT_COORDINATOR

A shard belongs to one replica in one leader epoch (`hosted_shard`). The step that makes this worker
the leader adds the shard, and each request compares the epochs: none finds the shard of an epoch
that has ended, or a leader without one. A new epoch loads again from empty, as another worker may
have hosted in between.

An operation on an active shard either answers at once, or returns a `Write`. Its records are
appended with the conditions of acks=all; when the high watermark passes them in the same leader
epoch, they are replayed, in the order of the log, and then the answer is given.

    a write is refused because                            answered to the client
    the partition has another leader, or is offline       NOT_COORDINATOR
    too few in-sync replicas, too many uncommitted        COORDINATOR_NOT_AVAILABLE
    bytes of the client or of the shard, or it is not
    committed in time
    a record is too large                                 RECORD_LIST_TOO_LARGE

Writes may be part of a producer's transaction, and `append_marker` ends transactions. Both are
replayed in the order of the log, as all else.

Loads, replays and unloads are done in time slices. An operation, and the append of its records, is
one step; callers bound its size. Source: the coordinator runtime of KIP-848; this one has no
threads and no snapshots, because the state follows committed records only.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from math import inf
from typing import Final, Generic, Protocol, TypeVar

import trio

from metaquorum.dataplane.coordinators.appending import (
    EncodedBatch,
    encoded_batches,
    encoded_record,
    refusal,
)
from metaquorum.dataplane.coordinators.asked import Asked
from metaquorum.dataplane.coordinators.client_budget import COORDINATOR, UNKNOWN
from metaquorum.dataplane.coordinators.hosted_shard import (
    HostedShard,
    PendingBatch,
    State,
    pending_bytes,
)
from metaquorum.dataplane.coordinators.loading import LoadError, LoadParts, ShardLoader
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord, Shard, TransactionOf, Write
from metaquorum.dataplane.log.segments.markers import MARKER_BYTES
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.network.delayed import Timers
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.scheduling.time_slices import at_once
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.runtime import StorageError
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import NO_PRODUCER_ID, BatchHeader, parse_header

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
T = TypeVar("T")

# Partitions that load at the same time: each has a chunk in memory, and reads in a worker thread.
MAX_LOADS: Final = 4
# Memory of uncommitted records, of one shard and of all. A client may have as much of a shard's as
# it leaves free there: half, the next one half of the rest, and so on; in any case one write. So
# may a shard of that of all: one whose followers do not fetch leaves room for the others. Records
# that no request has caused (markers, completions, expiry) may take the whole rest of a shard's.
MAX_PENDING_BYTES: Final = 32 << 20
MAX_TOTAL_PENDING_BYTES: Final = 64 << 20
_ACTIVE: Final = State.ACTIVE  # Python 3.11 looks up members of an enum slowly


class Partitions(Protocol):
    """The partitions of the worker, and what to do if one of them fails."""

    @property
    def on_elected(self) -> MutableMapping[str, Callable[[Partition], object]]:
        """Callbacks by topic, called in the step that makes this worker a partition's leader."""

    def of_topic(self, name: str) -> list[Partition]: ...

    def fail(self, partition: Partition, error: StorageError) -> None: ...


class RuntimeParts(LoadParts, Protocol):
    """Parts of the worker that a runtime uses."""

    @property
    def timers(self) -> Timers: ...

    async def wait_applied(self) -> None:
        """Wait until all parts of the worker have applied the metadata that is known now."""


class CoordinatorRuntime(Generic[S]):
    """Shards of the topic's partitions; a publisher of the metadata loader, after the partitions.

    `make_shard` returns a new shard for a partition index.
    """

    def __init__(
        self,
        topic: str,
        parts: RuntimeParts,
        partitions: Partitions,
        make_shard: Callable[[int], S],
        *,
        load_bytes: int,
        time_limit_s: Callable[[], float],
        on_loaded: Callable[[S], object] | None = None,
    ) -> None:
        """Create the runtime without shards; `on_loaded` is called when a shard becomes active.

        `load_bytes` is offsets.load.buffer.size.
        """
        self.topic = topic
        self._on_loaded = on_loaded
        self.is_closed = False
        self.loaded_count = 0  # loads that have ended, since the start
        self.load_s = 0.0  # seconds of the last load
        self.pending_bytes = 0  # memory of uncommitted records of all shards
        self._parts = parts
        self._partitions = partitions
        self._make_shard = make_shard
        self._load_bytes = load_bytes
        self._time_limit_s = time_limit_s
        self._hosted: dict[int, HostedShard[S]] = {}
        self._to_load: deque[HostedShard[S]] = deque()
        self._to_flush: deque[HostedShard[S]] = deque()
        self._wanted = trio.Event()
        partitions.on_elected[topic] = self._elected

    @property
    def active(self) -> Mapping[int, S]:
        """Shards of the partitions that are loaded, by partition index."""
        return {index: each.shard for index, each in self._hosted.items() if each.is_active}

    @property
    def hosted_count(self) -> int:
        """Number of partitions with a shard in any state."""
        return len(self._hosted)

    @property
    def is_loading(self) -> bool:
        return any(
            each.state is State.LOADING and each.is_current for each in self._hosted.values()
        )

    def counts(self) -> Counter[State]:
        """Return the number of partitions that this worker leads, by state."""
        return Counter(each.state for each in self._hosted.values() if each.is_current)

    # Operations

    def shard(self, index: int) -> S:
        """Return the active shard of a partition, to read from it.

        Raises KafkaError (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS).
        """
        hosted = self._hosted.get(index)
        if (
            hosted is not None
            and hosted.state is _ACTIVE
            and hosted.partition.leads_since(hosted.leader_epoch)
        ):
            return hosted.shard
        return self._active(index).shard

    def _active(self, index: int) -> HostedShard[S]:
        hosted = self._hosted.get(index)
        if hosted is None:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"this worker does not lead {self.topic}-{index}"
            )
        if hosted.is_active:
            return hosted
        if not hosted.is_current:
            self._unload(hosted)
        hosted.check()
        return hosted

    def call(
        self,
        index: int,
        operation: Callable[[S], T | Write[T | None] | None],
        done: Callable[[T], object],
        failed: Callable[[ErrorCode], object],
    ) -> None:
        """Run `operation`, and call `done` with its answer once it holds, or `failed`.

        If the answer is None, the operation itself calls `done` later, or `Write.on_failed` was
        called. Raises KafkaError if there is no active shard.
        """
        hosted = self._active(index)
        outcome = operation(hosted.shard)
        if isinstance(outcome, Write):
            self._write(hosted, outcome, done, failed)
        elif outcome is not None:
            done(outcome)
        self._arm(hosted)

    def commit(self, index: int, write: Write[T], now_ms: int) -> T | ErrorCode | Asked[T]:
        """Write records that an operation on `shard(index)` has returned in this step.

        Return the answer if it holds now, as for most writes to a partition with a single replica;
        the error if the records are refused; otherwise what waits for the answer. The same as
        `call`, in half the time for one record: it has no callbacks unless the write has to wait.
        """
        hosted, records = self._hosted[index], write.records
        if len(records) != 1 or write.producer or write.on_failed or self.pending_bytes:
            asked: Asked[T] = Asked()
            self._write(hosted, write, asked.take, asked.take)
            self._arm(hosted)
            return asked
        clock, partition = self._parts.clock, hosted.partition
        try:
            partition.check_append(-1)
            data, header = encoded_record(records[0], partition.config, now_ms)
            end_offset = _append_batch(partition, data, header, now_ms)
        except (KafkaError, StorageError) as error:
            code = self._code_of(hosted, error)
            hosted.shard.refused(records, clock.monotonic())
            self._settle(hosted)
            self._arm(hosted)
            return code
        if hosted.is_committed_at_once(end_offset):
            hosted.shard.replay_appended(records, clock.monotonic)
            if hosted.shard.next_due < hosted.timer_due:
                self._arm(hosted)
            return write.answer
        asked = Asked()
        self._await_commit(
            hosted,
            records,
            end_offset,
            partial(asked.take, write.answer),
            asked.take,
            client=write.client,
        )
        self._settle(hosted)
        self._arm(hosted)
        return asked

    def append_marker(
        self,
        index: int,
        marker: TransactionMarker,
        done: Callable[[], object],
        failed: Callable[[ErrorCode], object],
    ) -> None:
        """Append the marker, which is replayed as the records before and after it are.

        `done` is called once the transaction has ended in the shard, and `failed` if the log
        refuses the marker or it is not committed in time: a retry is to follow, and does no harm.
        Raises KafkaError if there is no active shard.
        """
        hosted = self._active(index)
        code = self._refusal(hosted, (), COORDINATOR) if self.pending_bytes else None
        if code is None:
            code = self._append_marker(hosted, marker, done, failed)
        self._settle(hosted)
        if code is not None:
            failed(code)

    def _append_marker(
        self,
        hosted: HostedShard[S],
        marker: TransactionMarker,
        done: Callable[[], object],
        failed: Callable[[ErrorCode], object],
    ) -> ErrorCode | None:
        """Append the marker and let it wait for its commit; return the error if it is refused."""
        partition = hosted.partition
        try:
            partition.check_append(-1)
            result = partition.log.append_marker(
                marker, partition.leader_epoch, self._parts.clock.now_ms()
            )
            partition.appended(MARKER_BYTES)
        except (KafkaError, StorageError) as error:
            return self._code_of(hosted, error)
        self._await_commit(
            hosted, (), result.last_offset + 1, done, failed, marker=marker, client=COORDINATOR
        )
        return None

    def _code_of(self, hosted: HostedShard[S], error: KafkaError | StorageError) -> ErrorCode:
        """Return the error for the client whose write has failed."""
        if isinstance(error, KafkaError):
            return refusal(error)
        self._partitions.fail(hosted.partition, error)
        if hosted.is_current:  # a full disk may have space again
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NOT_COORDINATOR

    def _write(
        self,
        hosted: HostedShard[S],
        outcome: Write[T | None],
        done: Callable[[T], object],
        failed: Callable[[ErrorCode], object],
    ) -> None:
        answer = outcome.answer

        def fail(code: ErrorCode) -> None:
            if outcome.on_failed is not None:
                outcome.on_failed(code, self._parts.clock.monotonic())
            if answer is not None:
                failed(code)

        committed = None if answer is None else partial(done, answer)
        code = self._append(
            hosted, outcome.records, committed, fail, outcome.producer, outcome.client
        )
        if code is not None:
            fail(code)

    def _append(
        self,
        hosted: HostedShard[S],
        records: Sequence[CoordinatorRecord],
        committed: Callable[[], object] | None,
        failed: Callable[[ErrorCode], object] | None,
        producer: TransactionOf | None = None,
        client: str = UNKNOWN,
    ) -> ErrorCode | None:
        """Append the records; return the error for the client if they are refused.

        The first of several batches may be appended all the same; only the others are refused.
        `failed` is called if the records are not committed in time.
        """
        clock, partition = self._parts.clock, hosted.partition
        appended = 0
        code = self._refusal(hosted, records, client) if self.pending_bytes else None
        if code is None:
            now_ms = clock.now_ms()
            try:
                partition.check_append(-1)
                transaction_of = None if producer is None else producer[:2]
                *parts, last = encoded_batches(records, partition.config, now_ms, transaction_of)
                for batch in parts:
                    end_offset = self._write_batch(hosted, batch, now_ms, producer)
                    self._await_commit(
                        hosted, batch.records, end_offset, producer=producer, client=client
                    )
                    appended += len(batch.records)
                end_offset = self._write_batch(hosted, last, now_ms, producer)
            except (KafkaError, StorageError) as error:
                code = self._code_of(hosted, error)
            else:
                if producer is None and hosted.is_committed_at_once(end_offset):
                    hosted.shard.replay_appended(last.records, clock.monotonic)
                    if committed is not None:
                        committed()
                    return None
                self._await_commit(
                    hosted,
                    last.records,
                    end_offset,
                    committed,
                    failed,
                    producer=producer,
                    client=client,
                )
        if code is not None:
            hosted.shard.refused(records[appended:], clock.monotonic())
        self._settle(hosted)
        return code

    def _refusal(
        self, hosted: HostedShard[S], records: Sequence[CoordinatorRecord], client: str
    ) -> ErrorCode | None:
        """Return the error if the uncommitted records have reached a memory limit.

        A shard without pending batches takes any write, as long as all shards have room for it.
        """
        added = pending_bytes(records)
        of_client, of_shard = hosted.pending_of(client), hosted.pending_bytes
        if client == COORDINATOR:
            has_room = of_shard + added <= MAX_PENDING_BYTES
        elif of_client:
            has_room = of_client + of_shard + 2 * added <= MAX_PENDING_BYTES
        else:
            has_room = of_shard <= MAX_PENDING_BYTES
        if (hosted.pending and not has_room) or (
            of_shard + self.pending_bytes + 2 * added > MAX_TOTAL_PENDING_BYTES
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return None

    def _write_batch(
        self,
        hosted: HostedShard[S],
        batch: EncodedBatch,
        now_ms: int,
        producer: TransactionOf | None,
    ) -> int:
        """Append one batch; return its end offset. Raises KafkaError or StorageError."""
        partition, data = hosted.partition, batch.data
        header = parse_header(data)
        if producer is not None:
            partition.log.producers.check_verified(header, producer.verification)
        return _append_batch(partition, data, header, now_ms)

    def _await_commit(
        self,
        hosted: HostedShard[S],
        records: Sequence[CoordinatorRecord],
        end_offset: int,
        committed: Callable[[], object] | None = None,
        failed: Callable[[ErrorCode], object] | None = None,
        *,
        producer: TransactionOf | None = None,
        marker: TransactionMarker | None = None,
        client: str = UNKNOWN,
    ) -> None:
        """Let an appended batch wait for its commit."""
        size_bytes = pending_bytes(records)
        due = self._parts.clock.monotonic() + self._time_limit_s()
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        hosted.appended(
            PendingBatch(
                records, end_offset, size_bytes, due, committed, failed, producer_id, marker, client
            )
        )
        self.pending_bytes += size_bytes

    # Commits

    def _settle(self, hosted: HostedShard[S]) -> None:
        """Replay what is committed, answer it, and wait for the rest."""
        if not hosted.is_current:
            self._unload(hosted)
            return
        if hosted.needs_flush:
            self._flush(hosted)
            return
        now = self._parts.clock.monotonic()
        if not hosted.is_replaying:
            self.pending_bytes -= hosted.replay(now)
            if hosted.has_committed:
                hosted.is_replaying = True
                self._parts.timers.call_after(0.0, partial(self._go_on, hosted))
        if hosted.pending and hosted.waiter is None and not hosted.is_replaying:
            hosted.waiter = hosted.partition.wait_committed(
                hosted.pending[0].end_offset, partial(self._woken, hosted)
            )
        self._limit(hosted, now)
        self._arm(hosted)

    def _go_on(self, hosted: HostedShard[S]) -> None:
        hosted.is_replaying = False
        self._settle(hosted)

    def _woken(self, hosted: HostedShard[S]) -> None:
        hosted.waiter = None
        self._parts.timers.call_after(0.0, partial(self._settle, hosted))

    def _flush(self, hosted: HostedShard[S]) -> None:
        if not hosted.is_flushing:
            hosted.is_flushing = True
            self._to_flush.append(hosted)
            self._wanted.set()

    def _limit(self, hosted: HostedShard[S], now: float) -> None:
        """Let the oldest pending writes fail at their time limit."""
        if hosted.limit_timer is None and (due := hosted.oldest_due) is not None:
            hosted.limit_timer = self._parts.timers.call_after(
                max(0.0, due - now), partial(self._over_limit, hosted)
            )

    def _over_limit(self, hosted: HostedShard[S]) -> None:
        hosted.limit_timer = None
        now = self._parts.clock.monotonic()
        hosted.refuse_late(now)
        if hosted.is_current:
            self._limit(hosted, now)
            self._arm(hosted)

    # Timers

    def _arm(self, hosted: HostedShard[S]) -> None:
        """Call the shard's `due` when it is due."""
        due = hosted.shard.next_due
        if due >= hosted.timer_due or hosted.state is not _ACTIVE:
            return
        if hosted.timer is not None:
            hosted.timer.cancel()
        hosted.timer_due = due
        delay_s = max(0.0, due - self._parts.clock.monotonic())
        hosted.timer = self._parts.timers.call_after(delay_s, partial(self._due, hosted))

    def _due(self, hosted: HostedShard[S]) -> None:
        hosted.timer, hosted.timer_due = None, inf
        if not hosted.is_current:
            self._unload(hosted)
            return
        now = self._parts.clock.monotonic()
        slicer = self._parts.slicer
        records = hosted.shard.due(now, self._parts.clock.now_ms(), lambda: slicer.is_over)
        if records:
            self._append(hosted, records, None, None, None, COORDINATOR)
        self._arm(hosted)

    # Leadership

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Load the partitions that this worker has begun to lead, and unload others."""
        if any(
            topic is not None and topic.name == self.topic
            for change in delta.topics()
            for topic in change
        ):
            self.look()

    def look(self) -> None:
        """Compare the shards with the partitions that this worker leads now."""
        for hosted in list(self._hosted.values()):
            if not hosted.is_current:
                self._unload(hosted)
        for partition in self._partitions.of_topic(self.topic):
            if partition.index not in self._hosted:
                self._elected(partition)

    def _elected(self, partition: Partition) -> None:
        """Load the partition, which this worker leads in a new epoch, into a new shard.

        Its shard stays if this worker has led the epoch before, too: then nothing is missing.
        """
        before = self._hosted.get(partition.index)
        if before is not None and before.is_current:
            return
        if before is not None:
            self._unload(before)
        if self.is_closed or not partition.is_served:
            return
        hosted = HostedShard(partition, self._make_shard(partition.index))
        self._hosted[partition.index] = hosted
        self._to_load.append(hosted)
        self._wanted.set()

    def _unload(self, hosted: HostedShard[S]) -> None:
        """End a shard at once, and answer everything that waits with NOT_COORDINATOR in slices."""
        if self._detach(hosted):
            self._parts.slicer.finish_in_background(hosted.unload())

    def _detach(self, hosted: HostedShard[S]) -> bool:
        """Make the shard UNLOADED; return False if it was."""
        if hosted.state is State.UNLOADED:
            return False
        hosted.state = State.UNLOADED
        if self._hosted.get(hosted.partition.index) is hosted:
            del self._hosted[hosted.partition.index]
        self.pending_bytes -= hosted.pending_bytes
        if hosted.waiter is not None:
            hosted.partition.stop_waiting(hosted.waiter)
        for timer in (hosted.timer, hosted.limit_timer):
            if timer is not None:
                timer.cancel()
        return True

    def close(self) -> None:
        """End all shards, and answer everything that waits, at once: the worker stops."""
        self.is_closed = True
        for hosted in list(self._hosted.values()):
            if self._detach(hosted):
                at_once(hosted.unload())

    # Tasks

    async def run(self) -> None:
        """Load and flush."""
        limit = trio.CapacityLimiter(MAX_LOADS)
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                while self._to_load:
                    nursery.start_soon(self._load_one, self._to_load.popleft(), limit)
                while self._to_flush:
                    nursery.start_soon(self._flush_one, self._to_flush.popleft())

    async def _flush_one(self, hosted: HostedShard[S]) -> None:
        try:
            await hosted.partition.flush(self._parts.disk, self._parts.clock.now_ms())
        except StorageError as error:
            self._partitions.fail(hosted.partition, error)
        hosted.is_flushing = False
        self._settle(hosted)

    async def _load_one(self, hosted: HostedShard[S], limit: trio.CapacityLimiter) -> None:
        loader = ShardLoader(self._parts, self._partitions.fail, hosted, self._load_bytes)
        try:
            await loader.wait_committed()
            async with limit:
                await loader.load()
            # The election is published to one part after another. Until all have it, topics to
            # which committed offsets belong may be missing in the worker's image.
            await self._parts.wait_applied()
        except LoadError as error:
            hosted.state = State.FAILED
            log.error(
                "cannot load %s: %s; its coordinator is not available: if there are other in-sync"
                " replicas, stop this worker so that one of them leads, remove the folder %s, and"
                " start the worker; otherwise restore the folder from a backup",
                hosted.partition,
                error,
                hosted.partition.log.folder,
            )
        if not hosted.is_current:
            self._unload(hosted)
        elif hosted.state is State.LOADING:
            self._activate(hosted, loader)

    def _activate(self, hosted: HostedShard[S], loader: ShardLoader[S]) -> None:
        now = self._parts.clock.monotonic()
        hosted.shard.loaded(now, self._parts.clock.now_ms())
        hosted.state = State.ACTIVE
        self.loaded_count += 1
        self.load_s = now - loader.began
        log.info(
            "loaded %s in leader epoch %d: %d records in %.3f s",
            hosted.partition,
            hosted.leader_epoch,
            loader.record_count,
            self.load_s,
        )
        self._arm(hosted)
        if self._on_loaded is not None:
            self._on_loaded(hosted.shard)


def _append_batch(partition: Partition, data: bytearray, header: BatchHeader, now_ms: int) -> int:
    """Append one batch; return its end offset. Raises KafkaError or StorageError."""
    result = partition.log.append(data, header, partition.leader_epoch, now_ms)
    partition.appended(len(data))
    return result.last_offset + 1
