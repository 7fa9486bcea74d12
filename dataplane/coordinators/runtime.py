"""Coordinators of one internal topic: a shard of state for each partition that this worker leads.

    the worker becomes leader of the partition in an epoch     LOADING
    the high watermark has reached the epoch's first offset,
    and the committed records before it are replayed           ACTIVE
    the log is damaged, or its directory has failed            FAILED, until another epoch
    the epoch ends, the topic is deleted, the worker stops     unloaded

An operation on an active shard either answers at once, or returns a `Write`. Its records are
appended with the conditions of acks=all; when the high watermark passes them in the same leader
epoch, they are replayed, in the order of the log, and then the answer is given. If that takes
longer than the time limit, the operation fails, although its records may still be committed: they
are replayed then. When the epoch ends, everything that waits is answered with NOT_COORDINATOR.

    error                          answered to the client
    not the leader, epoch ended    NOT_COORDINATOR
    loading                        COORDINATOR_LOAD_IN_PROGRESS
    too few in-sync replicas,      COORDINATOR_NOT_AVAILABLE
    the time limit, too many
    uncommitted bytes
    failed directory               NOT_COORDINATOR
    a record that is too large     RECORD_TOO_LARGE

Source: the coordinator runtime of KIP-848; this one has no threads and no snapshots, because the
state follows committed records only.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from math import inf
from typing import Final, Generic, Protocol, TypeVar

import trio

from dataplane.coordinators.loading import LoadError, read_chunk, replay_chunk
from dataplane.coordinators.shard import CoordinatorRecord, Shard, Write
from dataplane.network.delayed import Timer, Timers
from dataplane.partition.partition import CommitWaiter, Partition
from dataplane.scheduling.time_slices import TimeSlicer
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.runtime import Clock, Disk, StorageError
from wire.primitives.errors import ErrorCode, KafkaError
from wire.records.batches import parse_header
from wire.records.records import Record, encode_batch

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
T = TypeVar("T")

# Partitions that are loaded at the same time.
MAX_LOADS: Final = 4
# Uncommitted bytes of one shard, above which no more are written.
MAX_PENDING_BYTES: Final = 16 << 20
# Records of one batch, as many bytes: larger writes are several batches.
BATCH_BYTES: Final = 512 << 10
_NOT_WRITTEN: Final = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.RECORD_LIST_TOO_LARGE,
}


class State(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"


class Partitions(Protocol):
    """The partitions of the worker, and what to do if one of them fails."""

    def of_topic(self, name: str) -> list[Partition]: ...

    def fail(self, partition: Partition, error: StorageError) -> None: ...


class RuntimeParts(Protocol):
    """Parts of the worker that a runtime uses."""

    @property
    def clock(self) -> Clock: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def timers(self) -> Timers: ...

    @property
    def slicer(self) -> TimeSlicer: ...


@dataclass(slots=True, eq=False)
class _Pending:
    """Records that were appended and not replayed yet."""

    records: Sequence[CoordinatorRecord]
    end_offset: int
    size_bytes: int
    due: float  # time limit, monotonic seconds
    committed: Callable[[], object] | None
    failed: Callable[[ErrorCode], object] | None


class _Led(Generic[S]):
    """A partition in one leader epoch of this worker, and its shard."""

    def __init__(self, partition: Partition, shard: S) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.state = State.LOADING
        self.pending: deque[_Pending] = deque()
        self.pending_bytes = 0
        self.waiter: CommitWaiter | None = None
        self.is_flushing = False
        self.timer: Timer | None = None  # calls the shard's `due`
        self.timer_due = inf
        self.limit_timer: Timer | None = None  # for the time limit of `pending`
        self.is_unloaded = False

    @property
    def is_current(self) -> bool:
        partition = self.partition
        return (
            not self.is_unloaded
            and partition.is_served
            and partition.leader_epoch == self.leader_epoch
        )


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
        """Create the runtime without shards; `on_loaded` is called when a shard becomes active."""
        self.topic = topic
        self._on_loaded = on_loaded
        self.is_closed = False
        self.loaded_count = 0  # loads that have ended, since the start
        self.load_s = 0.0  # seconds of the last load
        self._parts = parts
        self._partitions = partitions
        self._make_shard = make_shard
        self._load_bytes = load_bytes
        self._time_limit_s = time_limit_s
        self._led: dict[int, _Led[S]] = {}
        self._to_load: deque[_Led[S]] = deque()
        self._to_flush: deque[_Led[S]] = deque()
        self._wanted = trio.Event()

    @property
    def active(self) -> Mapping[int, S]:
        """Shards of the partitions that are loaded, by partition index."""
        return {
            index: led.shard
            for index, led in self._led.items()
            if led.state is State.ACTIVE and led.is_current
        }

    @property
    def is_loading(self) -> bool:
        return any(led.state is State.LOADING and led.is_current for led in self._led.values())

    def counts(self) -> Counter[State]:
        """Return the number of partitions that this worker leads, by state."""
        return Counter(led.state for led in self._led.values() if led.is_current)

    # Operations

    def shard(self, index: int) -> S:
        """Return the active shard of a partition, to read from it.

        Raises KafkaError (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS).
        """
        return self._active(index).shard

    def _active(self, index: int) -> _Led[S]:
        led = self._led.get(index)
        if led is None or not led.is_current:
            if led is not None:
                self._unload(led)
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"this worker does not lead {self.topic}-{index}"
            )
        if led.state is not State.ACTIVE:
            code = (
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                if led.state is State.LOADING
                else ErrorCode.NOT_COORDINATOR
            )
            raise KafkaError(code, f"{led.partition} is {led.state.value}")
        return led

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
        led = self._active(index)
        outcome = operation(led.shard)
        if isinstance(outcome, Write):
            self._write(led, outcome, done, failed)
        elif outcome is not None:
            done(outcome)
        self._arm(led)

    def write(self, index: int, outcome: Write[None] | None) -> None:
        """Write records that no request waits for, unless the shard is not active."""
        led = self._led.get(index)
        if outcome is not None and led is not None and led.state is State.ACTIVE and led.is_current:
            self._write(led, outcome, _nothing, _nothing)

    def _write(
        self,
        led: _Led[S],
        outcome: Write[T | None],
        done: Callable[[T], object],
        failed: Callable[[ErrorCode], object],
    ) -> None:
        answer = outcome.answer

        def fail(code: ErrorCode) -> None:
            if outcome.on_failed is not None:
                outcome.on_failed(code)
            if answer is not None:
                failed(code)

        committed = None if answer is None else partial(done, answer)
        self._append(led, outcome.records, committed, fail)

    def _append(
        self,
        led: _Led[S],
        records: Sequence[CoordinatorRecord],
        committed: Callable[[], object] | None,
        failed: Callable[[ErrorCode], object],
    ) -> None:
        """Append the records; the last batch of them has the callbacks."""
        size_bytes = sum([len(each.key) + len(each.value or b"") for each in records])
        if led.pending and led.pending_bytes + size_bytes > MAX_PENDING_BYTES:
            failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        due = self._parts.clock.monotonic() + self._time_limit_s()
        try:
            for batch in _batches(records):
                end_offset, written_bytes = self._append_batch(led, batch)
                led.pending.append(_Pending(batch, end_offset, written_bytes, due, None, None))
                led.pending_bytes += written_bytes
        except KafkaError as error:
            self._settle(led)
            failed(_NOT_WRITTEN.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        except StorageError as error:
            self._partitions.fail(led.partition, error)
            self._settle(led)
            failed(ErrorCode.NOT_COORDINATOR)
            return
        led.pending[-1].committed, led.pending[-1].failed = committed, failed
        self._settle(led)

    def _append_batch(self, led: _Led[S], records: Sequence[CoordinatorRecord]) -> tuple[int, int]:
        """Append one batch; return its end offset and size. Raises KafkaError or StorageError."""
        partition = led.partition
        partition.check_append(-1)
        now_ms = self._parts.clock.now_ms()
        data = encode_batch(
            [Record(number, now_ms, each[0], each[1]) for number, each in enumerate(records)]
        )
        if len(data) > partition.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {len(data)} bytes exceeds the max.message.bytes of {self.topic}",
            )
        result = partition.log.append(data, [parse_header(data)], led.leader_epoch, now_ms)
        led.shard.appended(records)
        partition.appended(len(data))
        return result.last_offset + 1, len(data)

    # Commits

    def _settle(self, led: _Led[S]) -> None:
        """Replay what is committed, answer it, and wait for the rest."""
        partition, pending, now = led.partition, led.pending, self._parts.clock.monotonic()
        if not led.is_current:
            self._unload(led)
            return
        if pending and partition.log.config.flush_messages <= partition.log.unflushed_records:
            self._flush(led)
            return
        while pending and pending[0].end_offset <= partition.high_watermark:
            done = pending.popleft()
            led.pending_bytes -= done.size_bytes
            for record in done.records:
                led.shard.replay(record, now)
            if done.committed is not None:
                done.committed()
        if pending and led.waiter is None:
            led.waiter = partition.wait_committed(pending[0].end_offset, partial(self._woken, led))
            self._limit(led, now)
        self._arm(led)

    def _woken(self, led: _Led[S]) -> None:
        led.waiter = None
        self._parts.timers.call_after(0.0, partial(self._settle, led))

    def _flush(self, led: _Led[S]) -> None:
        if not led.is_flushing:
            led.is_flushing = True
            self._to_flush.append(led)
            self._wanted.set()

    def _limit(self, led: _Led[S], now: float) -> None:
        """Let the oldest pending records fail at their time limit."""
        if led.limit_timer is None:
            oldest = next((each for each in led.pending if each.failed is not None), None)
            if oldest is not None:
                led.limit_timer = self._parts.timers.call_after(
                    max(0.0, oldest.due - now), partial(self._over_limit, led)
                )

    def _over_limit(self, led: _Led[S]) -> None:
        led.limit_timer = None
        now = self._parts.clock.monotonic()
        for each in list(led.pending):
            if each.failed is not None and each.due <= now:
                failed, each.failed, each.committed = each.failed, None, None
                failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not led.is_unloaded:
            self._limit(led, now)
            self._arm(led)

    # Timers

    def _arm(self, led: _Led[S]) -> None:
        """Call the shard's `due` when it is due."""
        due = led.shard.next_due
        if due >= led.timer_due or led.is_unloaded or led.state is not State.ACTIVE:
            return
        if led.timer is not None:
            led.timer.cancel()
        led.timer_due = due
        delay_s = max(0.0, due - self._parts.clock.monotonic())
        led.timer = self._parts.timers.call_after(delay_s, partial(self._due, led))

    def _due(self, led: _Led[S]) -> None:
        led.timer, led.timer_due = None, inf
        if not led.is_current:
            self._unload(led)
            return
        now = self._parts.clock.monotonic()
        records = led.shard.due(now, self._parts.clock.now_ms())
        if records:
            # Not tried again: by then the group may have moved on, and an older record must not
            # follow a newer one. Another coordinator would find the old state, and do the same.
            self._append(led, records, None, _nothing)
        self._arm(led)

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
        for led in list(self._led.values()):
            if not led.is_current:
                self._unload(led)
        if self.is_closed:
            return
        for partition in self._partitions.of_topic(self.topic):
            if partition.is_served and partition.index not in self._led:
                led = _Led(partition, self._make_shard(partition.index))
                self._led[partition.index] = led
                self._to_load.append(led)
                self._wanted.set()

    def _unload(self, led: _Led[S]) -> None:
        """End a shard: answer everything that waits with NOT_COORDINATOR."""
        if led.is_unloaded:
            return
        led.is_unloaded = True
        if self._led.get(led.partition.index) is led:
            del self._led[led.partition.index]
        if led.waiter is not None:
            led.partition.stop_waiting(led.waiter)
        for timer in (led.timer, led.limit_timer):
            if timer is not None:
                timer.cancel()
        pending, led.pending = led.pending, deque()
        for each in pending:
            if each.failed is not None:
                each.failed(ErrorCode.NOT_COORDINATOR)
        led.shard.unload()

    def close(self) -> None:
        """End all shards, because the worker stops."""
        self.is_closed = True
        for led in list(self._led.values()):
            self._unload(led)

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

    async def _flush_one(self, led: _Led[S]) -> None:
        try:
            await led.partition.flush(self._parts.disk, self._parts.clock.now_ms())
        except StorageError as error:
            self._partitions.fail(led.partition, error)
        led.is_flushing = False
        self._settle(led)

    async def _load_one(self, led: _Led[S], limit: trio.CapacityLimiter) -> None:
        async with limit:
            began = self._parts.clock.monotonic()
            try:
                count = await self._load(led)
            except (LoadError, KafkaError) as error:
                self._fail_load(led, error)
                return
            except StorageError as error:
                self._partitions.fail(led.partition, error)
                self._fail_load(led, error)
                return
            if not led.is_current:
                self._unload(led)
                return
            now = self._parts.clock.monotonic()
            led.shard.loaded(now, self._parts.clock.now_ms())
            led.state = State.ACTIVE
            self.loaded_count += 1
            self.load_s = now - began
            log.info(
                "loaded %s in leader epoch %d: %d records in %.3f s",
                led.partition,
                led.leader_epoch,
                count,
                self.load_s,
            )
            self._arm(led)
            if self._on_loaded is not None:
                self._on_loaded(led.shard)

    def _fail_load(self, led: _Led[S], error: Exception) -> None:
        if not led.is_current:
            self._unload(led)
            return
        led.state = State.FAILED
        log.error(
            "cannot load %s: %s; its groups have no coordinator until another worker leads the"
            " partition: restart this worker if another one has an intact replica",
            led.partition,
            error,
        )

    async def _load(self, led: _Led[S]) -> int:
        """Replay the committed records of earlier epochs; return their number.

        Records below the high watermark of the epoch's start are committed; those above it become
        committed, or are truncated, before this leader's own first record.
        """
        plog = led.partition.log
        end_offset = plog.log_end_offset  # nothing is appended before the shard is active
        await self._wait_committed(led, end_offset)
        offset, count = plog.log_start_offset, 0
        replay = partial(_replay, led.shard)
        while offset < end_offset and led.is_current:
            try:
                chunk = await read_chunk(
                    plog, self._parts.disk, offset, end_offset, self._load_bytes
                )
            except (EOFError, KafkaError):
                if offset >= plog.log_start_offset:
                    raise
                offset = plog.log_start_offset  # compaction or retention was faster
                continue
            count += await self._parts.slicer.finish(replay_chunk(chunk, offset, replay), 0)
            offset = chunk.next_offset
        return count

    async def _wait_committed(self, led: _Led[S], end_offset: int) -> None:
        while led.is_current and led.partition.high_watermark < end_offset:
            woken = trio.Event()
            waiter = led.partition.wait_committed(end_offset, woken.set)
            try:
                await woken.wait()
            finally:
                led.partition.stop_waiting(waiter)


def _replay(shard: Shard, record: CoordinatorRecord) -> None:
    shard.replay(record, 0.0)


def _nothing(answer: object) -> None: ...


def _batches(records: Sequence[CoordinatorRecord]) -> list[list[CoordinatorRecord]]:
    """Divide records into batches of at most BATCH_BYTES, with at least one record each."""
    batches: list[list[CoordinatorRecord]] = [[]]
    size_bytes = 0
    for record in records:
        record_bytes = len(record.key) + len(record.value or b"") + 20
        if batches[-1] and size_bytes + record_bytes > BATCH_BYTES:
            batches.append([])
            size_bytes = 0
        batches[-1].append(record)
        size_bytes += record_bytes
    return batches
