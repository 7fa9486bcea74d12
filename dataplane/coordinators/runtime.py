"""Runs the shards of one coordinator: each on the worker that leads its partition of the topic.

    elected in epoch E -> load -> operations: decide -> append -> commit -> replay -> answer
    other leader or epoch -> unload: every waiting request is answered with NOT_COORDINATOR

A shard belongs to one replica in one leader epoch (`HostedShard`). The change of the leader wakes
the partition's watchers, so the shard is unloaded before a later request can find it. A new epoch
loads again from empty, as another worker may have led in between.

An append is not an answer: a write is replayed and answered once the high watermark has passed its
records in the same leader epoch. That makes them as durable as those of a producer with acks=all.
After the time limit the client gets an error, and the records may still be committed.

    write refused, by cause                               error for clients
    the partition has another leader, or is offline       NOT_COORDINATOR
    fewer in-sync replicas than min.insync.replicas       COORDINATOR_NOT_AVAILABLE
    a full disk; too many bytes pending; not in time      COORDINATOR_NOT_AVAILABLE
    a record larger than max.message.bytes                MESSAGE_TOO_LARGE

Work on the event loop is done in time slices: loads, replays and unloads. An operation, and an
append of its records, is one step; callers bound its size. Only the runtime appends to the topic:
records that another part of the worker appends in the same leader epoch are replayed by the next
load only.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final, Generic, Protocol, TypeVar, overload

import trio

from dataplane.coordinators.appending import (
    EncodedBatch,
    encoded_batches,
    for_clients,
    needs_flush,
    not_coordinator,
    split_oversized,
)
from dataplane.coordinators.delayed_write import DelayedWrite
from dataplane.coordinators.hosted_shard import (
    MAX_UNWRITTEN_BYTES,
    HostedShard,
    ShardState,
    pending_bytes,
)
from dataplane.coordinators.loading import LoadsShards, ShardLoader, UnreadableRecordsError
from dataplane.coordinators.shard import CoordinatorRecord, Shard, Write
from dataplane.network.delayed import Timers
from dataplane.partition.partition import Partition
from dataplane.replication.replica_manager import ReplicaManager
from dataplane.scheduling.time_slices import PIECE_ROWS, at_once
from metaquorum.runtime import StorageError
from wire.primitives.errors import ErrorCode, KafkaError
from wire.primitives.frozen import frozen
from wire.records.batches import parse_header
from wire.records.compression import Codec

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
T = TypeVar("T")

# Partitions that load at the same time: each has a chunk in memory, and reads in a worker thread.
MAX_LOADS: Final = 3
# Seconds until records of timers that could not be appended are tried again, as in Kafka.
WRITE_RETRY_S: Final = 0.5


@frozen
class RuntimeLimits:
    """Bounds of one runtime, and how it writes."""

    load_buffer_bytes: int = 5 << 20  # offsets.load.buffer.size
    shard_pending_bytes: int = 16 << 20  # memory of the uncommitted writes of one shard
    total_pending_bytes: int = 64 << 20  # memory of those of all shards
    codec: Codec = Codec.NONE  # offsets.topic.compression.codec


class RunsCoordinators(LoadsShards, Protocol):
    """Capability to append to the partitions of this worker, and to be called by timers."""

    @property
    def replica_manager(self) -> ReplicaManager: ...

    @property
    def timers(self) -> Timers: ...


class CoordinatorRuntime(Generic[S]):
    """The shards of one internal topic on this worker."""

    def __init__(
        self,
        worker: RunsCoordinators,
        topic: str,
        make_shard: Callable[[int], S],
        limits: Callable[[], RuntimeLimits] = RuntimeLimits,
    ) -> None:
        """Create the runtime without shards; `run` loads them.

        `make_shard` returns an empty shard for a partition index. `limits` returns the limits in
        force, which may be dynamic configs.
        """
        self.pending_bytes = 0  # memory of the uncommitted writes of all shards
        self._worker = worker
        self._topic = topic
        self._make_shard = make_shard
        self._limits = limits
        self._hosted: dict[int, HostedShard[S]] = {}
        self._to_load: dict[HostedShard[S], None] = {}
        self._to_advance: dict[HostedShard[S], None] = {}
        self._wanted = trio.Event()  # there is something to load or to advance
        self._loading: dict[HostedShard[S], _Loading] = {}
        self._loads = trio.Semaphore(MAX_LOADS)
        self._appending: HostedShard[S] | None = None
        self._closed = False
        worker.replica_manager.on_elected[topic] = self._elected

    # Requests

    def shards(self) -> Mapping[int, S]:
        """Return the active shards by the index of their partition."""
        return {index: each.shard for index, each in self._hosted.items() if each.is_active}

    @property
    def loading_count(self) -> int:
        """Number of partitions that are loading or wait to load."""
        return len(self._to_load) + len(self._loading)

    def check(self, index: int) -> None:
        """Raise KafkaError, as `call` does, unless the shard of this partition is active."""
        self._hosted_at(index).check()

    @overload
    def call(
        self, index: int, operation: Callable[[S], Write[T]], timeout_ms: int
    ) -> T | DelayedWrite: ...

    @overload
    def call(
        self, index: int, operation: Callable[[S], T | Write[T]], timeout_ms: int
    ) -> T | DelayedWrite: ...

    def call(self, index: int, operation: Callable[[S], Any], timeout_ms: int) -> Any:
        """Return the answer of `operation`, which gets the shard of the partition.

        If it returns a Write, the result is a DelayedWrite, which completes with the write's answer
        or a KafkaError; it is that answer at once if the write is committed at once. `timeout_ms`
        limits the wait. Raises KafkaError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, and the
        errors of refused writes at the top of this file.
        """
        hosted = self._hosted_at(index)
        hosted.check()
        try:
            decided = operation(hosted.shard)
            if not isinstance(decided, Write):
                return decided
            if not decided.records:
                return decided.answer
            response = self._write(hosted, decided, timeout_ms)
            return response.complete() if response.is_ready else response
        finally:
            self._set_alarm(hosted)

    def _hosted_at(self, index: int) -> HostedShard[S]:
        """Return the shard of the current leader epoch. Raises KafkaError (NOT_COORDINATOR)."""
        hosted = self._hosted.get(index)
        if hosted is not None:
            if hosted.is_current:
                return hosted
            self._unload(hosted)
        raise not_coordinator(f"{self._topic}-{index}")

    # Writes

    def _write(self, hosted: HostedShard[S], write: Write[Any], timeout_ms: int) -> DelayedWrite:
        """Append the records of the write; return the response, which may be ready.

        Raises KafkaError.
        """
        response = DelayedWrite(write)
        try:
            self._append_unwritten(hosted)
            self._append(hosted, write.records, response)
        except KafkaError as error:
            if hosted.is_current:
                response.refuse(error)
            raise
        if self._can_replay_now(hosted, response):
            at_once(hosted.replay_committed(hosted.partition.high_watermark, self._replayed))
            return response
        if hosted.has_committed:
            self._advance_soon(hosted)
        response.timer = self._worker.timers.call_after(
            max(0, timeout_ms) / 1000, partial(self._time_out, hosted, response)
        )
        return response

    def _can_replay_now(self, hosted: HostedShard[S], response: DelayedWrite) -> bool:
        """Return whether the write is committed, short, and the first one to replay."""
        first = hosted.pending[0]
        return (
            hosted.has_committed
            and first.response is response
            and len(first.records) <= PIECE_ROWS
            and not needs_flush(hosted.partition)
        )

    def _append_unwritten(self, hosted: HostedShard[S]) -> None:
        """Append the records of timers that precede all other writes. Raises KafkaError."""
        if not hosted.unwritten:
            return
        try:
            self._append(hosted, hosted.unwritten.copy(), None)
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            self._drop_oversized(hosted)
        hosted.retry_at = inf
        if hosted.has_committed:
            self._advance_soon(hosted)

    def _drop_oversized(self, hosted: HostedShard[S]) -> None:
        fitting, oversized = split_oversized(
            hosted.unwritten, hosted.partition.config, self._limits().codec
        )
        for record in oversized:
            log.error(
                "partition %s: a coordinator record of %d bytes is larger than max.message.bytes"
                " or segment.bytes of the topic and is dropped; increase these configs",
                hosted.partition,
                len(record.key) + len(record.value or b""),
            )
        hosted.unqueue(len(hosted.unwritten))
        hosted.queue(fitting)
        if fitting:
            self._append(hosted, fitting, None)

    def _append(
        self,
        hosted: HostedShard[S],
        records: Sequence[CoordinatorRecord],
        response: DelayedWrite | None,
    ) -> None:
        """Append the records; without a response they are the first ones of `unwritten`.

        Raises KafkaError for clients. Earlier batches of the records may be appended then.
        """
        partition, limits, now_ms = hosted.partition, self._limits(), self._worker.clock.now_ms()
        self._check_room(hosted, records, limits)
        batches = encoded_batches(records, partition.config, limits.codec, now_ms)
        for number, batch in enumerate(batches, 1):
            end_offset = self._append_batch(hosted, batch)
            answers = response if number == len(batches) else None
            self.pending_bytes += hosted.appended(
                batch.records, end_offset, batch.timestamp_ms, answers
            )
            if response is None:
                hosted.unqueue(len(batch.records))

    def _check_room(
        self, hosted: HostedShard[S], records: Sequence[CoordinatorRecord], limits: RuntimeLimits
    ) -> None:
        """Raise KafkaError (COORDINATOR_NOT_AVAILABLE) if too many bytes are pending."""
        added = pending_bytes(records)
        if hosted.pending and hosted.pending_bytes + added > limits.shard_pending_bytes:
            problem = f"the uncommitted records of partition {hosted.partition}"
        elif self.pending_bytes and self.pending_bytes + added > limits.total_pending_bytes:
            problem = f"the uncommitted records of the partitions of {self._topic}"
        else:
            return
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"{problem} have reached their memory limit: in-sync replicas do not follow",
        )

    def _append_batch(self, hosted: HostedShard[S], batch: EncodedBatch) -> int:
        """Append the batch; return its end offset. Raises KafkaError for clients."""
        partition = hosted.partition
        if partition.appending.locked():
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"another append to {partition} is running"
            )
        self._appending = hosted
        try:
            partition.check_append(-1)
            result = partition.log.append(
                batch.data, [parse_header(batch.data)], hosted.leader_epoch, batch.timestamp_ms
            )
            partition.appended(len(batch.data))
        except StorageError as error:
            self._worker.partition_failed(partition, error)
            if hosted.is_current:
                problem = f"disk error while writing to partition {partition}"
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, problem) from error
            raise not_coordinator(partition) from error
        except KafkaError as error:
            raise for_clients(partition, error) from error
        finally:
            self._appending = None
        return result.last_offset + 1

    def _time_out(self, hosted: HostedShard[S], response: DelayedWrite) -> None:
        response.refuse(
            KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"not all in-sync replicas of {hosted.partition} had the records in time",
            )
        )
        self._set_alarm(hosted)

    def _replayed(self, size_bytes: int) -> None:
        self.pending_bytes -= size_bytes

    # Timers of shards

    def _set_alarm(self, hosted: HostedShard[S]) -> None:
        """Call `_run_timers` when the shard's next timer is due, or earlier."""
        if not hosted.is_active or (due := hosted.next_due) >= hosted.alarm_at:
            return
        if hosted.alarm is not None:
            hosted.alarm.cancel()
        worker = self._worker
        hosted.alarm_at = due
        hosted.alarm = worker.timers.call_after(
            max(0.0, due - worker.clock.monotonic()), partial(self._run_timers, hosted)
        )

    def _run_timers(self, hosted: HostedShard[S]) -> None:
        hosted.alarm, hosted.alarm_at = None, inf
        if not hosted.is_active:
            return
        now = self._worker.clock.monotonic()
        if hosted.unwritten_bytes <= MAX_UNWRITTEN_BYTES and hosted.shard.next_due <= now:
            hosted.queue(hosted.shard.due(now))
        try:
            self._append_unwritten(hosted)
        except KafkaError as error:
            if hosted.retry_at == inf:
                log.warning(
                    "the records of timers of partition %s are not written: %s; they are tried"
                    " again every %s s",
                    hosted.partition,
                    error.message,
                    WRITE_RETRY_S,
                )
            hosted.retry_at = now + WRITE_RETRY_S
        self._set_alarm(hosted)

    # Leadership

    def _elected(self, partition: Partition) -> None:
        """Add the shard of a partition that this worker leads in a new epoch."""
        before = self._hosted.get(partition.index)
        if before is not None:
            self._unload(before)
        if self._closed or not partition.is_served:
            return
        shard = self._make_shard(partition.index)
        hosted = HostedShard(partition, shard, self._changed)
        self._hosted[partition.index] = hosted
        partition.waiters.add(hosted)
        self._to_load[hosted] = None
        self._wanted.set()

    def _changed(self, hosted: HostedShard[S]) -> None:
        """Handle a change of the partition, within that change."""
        if not hosted.is_current:
            self._unload(hosted)
        elif hosted in self._loading:
            self._loading[hosted].moved.set()
        elif hosted is not self._appending and hosted.has_committed:
            self._advance_soon(hosted)

    def _advance_soon(self, hosted: HostedShard[S]) -> None:
        self._to_advance[hosted] = None
        self._wanted.set()

    def _unload(self, hosted: HostedShard[S]) -> None:
        """Detach the shard at once; answer its requests and free it in slices."""
        if not self._detach(hosted):
            return
        log.info("unloading partition %s of epoch %d", hosted.partition, hosted.leader_epoch)
        self._worker.slicer.finish_in_background(hosted.unload())

    def _detach(self, hosted: HostedShard[S]) -> bool:
        """Make the shard UNLOADED; return False if it was."""
        if hosted.state is ShardState.UNLOADED:
            return False
        hosted.state = ShardState.UNLOADED
        if self._hosted.get(hosted.partition.index) is hosted:
            del self._hosted[hosted.partition.index]
        self._to_load.pop(hosted, None)
        self._to_advance.pop(hosted, None)
        self.pending_bytes -= hosted.pending_bytes
        if hosted.alarm is not None:
            hosted.alarm.cancel()
        if hosted in self._loading:
            self._loading[hosted].scope.cancel()
        return True

    def close(self) -> None:
        """Remove all shards, and answer all waiting requests, at once: the worker stops."""
        self._closed = True
        for hosted in list(self._hosted.values()):
            hosted.partition.waiters.discard(hosted)
            if self._detach(hosted):
                at_once(hosted.unload())

    # Tasks

    async def run(self) -> None:
        """Load the shards of elected partitions, and replay committed writes."""
        for partition in self._worker.replica_manager.of_topic(self._topic):
            if partition.is_served and partition.index not in self._hosted:
                self._elected(partition)
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                while self._to_load:
                    nursery.start_soon(self._load, _pop_first(self._to_load))
                while self._to_advance:
                    await self._advance(_pop_first(self._to_advance))

    async def _advance(self, hosted: HostedShard[S]) -> None:
        """Replay the committed writes of the shard, flushed if flush.messages requires it."""
        partition = hosted.partition
        while hosted.is_active and needs_flush(partition):
            try:
                await partition.flush(self._worker.disk)
            except StorageError as error:
                self._worker.partition_failed(partition, error)
                return
        end_offset = partition.log.log_end_offset
        for _ in hosted.replay_committed(end_offset, self._replayed):
            await self._worker.slicer.pause()
        if hosted.is_active and hosted.has_committed:
            self._advance_soon(hosted)
        self._set_alarm(hosted)

    async def _load(self, hosted: HostedShard[S]) -> None:
        if not hosted.is_current:
            return
        loading = self._loading[hosted] = _Loading()
        try:
            with loading.scope:
                while hosted.partition.is_catching_up:
                    loading.moved = trio.Event()
                    await loading.moved.wait()
                async with self._loads:
                    await self._load_committed(hosted)
        finally:
            del self._loading[hosted]

    async def _load_committed(self, hosted: HostedShard[S]) -> None:
        partition = hosted.partition
        loader = ShardLoader(
            self._worker,
            partition,
            hosted.shard,
            lambda: hosted.is_current,
            self._limits().load_buffer_bytes,
        )
        try:
            if not await loader.load():
                return
        except UnreadableRecordsError as error:
            hosted.state = ShardState.FAILED
            log.error(
                "cannot load partition %s: %s; its coordinator is not available: if there are other"
                " in-sync replicas, stop this worker so that one of them leads, remove the folder"
                " %s, and start the worker; otherwise restore the folder from a backup",
                partition,
                error,
                partition.log.folder,
            )
            return
        hosted.state = ShardState.ACTIVE
        done = loader.statistics
        log.info(
            "loaded partition %s in leader epoch %d: %d records, %d bytes, %.1f s",
            partition,
            hosted.leader_epoch,
            done.records,
            done.size_bytes,
            done.seconds,
        )
        self._set_alarm(hosted)


class _Loading:
    """Scope of the task that loads a shard, and an event for moves of the high watermark."""

    __slots__ = ("moved", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.moved = trio.Event()


def _pop_first(hosted: dict[HostedShard[S], None]) -> HostedShard[S]:
    first = next(iter(hosted))
    del hosted[first]
    return first
