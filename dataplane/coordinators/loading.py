"""Loads a shard: reads the committed log of its partition, and replays the records in slices.

    log start                               start of the leader epoch
    | chunk | chunk | ... read and checked   | -> replayed in slices of the event loop
    |                 in worker threads      |

The high watermark must have reached the start of the leader's epoch: all records of earlier leaders
below that are committed, and those that are not in this log never were. Compaction and retention
may run meanwhile. They leave gaps in the offsets, and move records to other files: a chunk whose
file was removed is read again. So is one that could not be read while the disk or the process has a
transient failure. Memory: one chunk, and one decompressed piece of a batch.

Records of leader epochs before the partition's `unclean_epoch` are doubtful: what followed them may
be lost.

A transaction may still be open at the end: its marker follows in the leader's own epoch.
Compaction may have removed records of a transaction, or all of them, but not the marker of those
that are left.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import trio

from metaquorum.dataplane.coordinators.hosted_shard import HostedShard
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord, Shard, TransactionalShard
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.files import ColdError
from metaquorum.dataplane.log.segments.markers import marker_at
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.log.segments.slices import LogSlice
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, Steps, TimeSlicer, pause, step
from metaquorum.runtime import Clock, Disk, File, StorageError
from metaquorum.runtime.interfaces import sleep
from metaquorum.wire.primitives.errors import KafkaError, WireError
from metaquorum.wire.records.batches import BatchHeader, BatchState, batches, scan
from metaquorum.wire.records.records import ControlType, record_spans

S = TypeVar("S", bound=Shard)

# Seconds between attempts to read a chunk.
RETRY_S: Final = 5.0
# Size of the records of one piece; PIECE_ROWS of them without values are one piece, too.
PIECE_BYTES: Final = 16_384
_ROW_BYTES: Final = PIECE_BYTES // PIECE_ROWS


class LoadError(Exception):
    """Raised if the log is damaged or cannot be read; the message names the offset."""


class LoadParts(Protocol):
    """Parts of the worker that a load uses."""

    @property
    def clock(self) -> Clock: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def slicer(self) -> TimeSlicer: ...


class Chunk(NamedTuple):
    """Whole batches of a log, checked, with the position of each."""

    data: bytes
    batches: list[tuple[int, BatchHeader]]
    next_offset: int


class ShardLoader(Generic[S]):
    """One load of one shard. It ends early if the leadership ends."""

    def __init__(
        self,
        parts: LoadParts,
        fail: Callable[[Partition, StorageError], object],
        hosted: HostedShard[S],
        buffer_bytes: int,
    ) -> None:
        """Prepare the load in chunks of about `buffer_bytes` (offsets.load.buffer.size).

        `fail` is called with the errors of reads.
        """
        self.began = parts.clock.monotonic()
        self.record_count = 0
        self._parts = parts
        self._fail = fail
        self._hosted = hosted
        self._buffer_bytes = buffer_bytes
        self._offset = 0

    async def wait_committed(self) -> None:
        """Wait until the high watermark has reached the start of the leader epoch."""
        hosted, partition = self._hosted, self._hosted.partition
        while hosted.is_current and partition.high_watermark < hosted.first_offset:
            woken = trio.Event()
            waiter = partition.wait_committed(hosted.first_offset, woken.set)
            try:
                await woken.wait()
            finally:
                partition.stop_waiting(waiter)

    async def load(self) -> None:
        """Replay the committed records of earlier epochs, and restore the shard. Raises LoadError.

        Records below the high watermark of the epoch's start are committed; those above it become
        committed, or are truncated, before this leader's own first record.
        """
        hosted, slicer = self._hosted, self._parts.slicer
        self._offset = hosted.partition.log.log_start_offset
        while hosted.is_current and self._offset < hosted.first_offset:
            chunk = await self._read()
            if chunk is not None:
                await self._while_current(self._replayed(chunk))
                slicer.discard(chunk.batches)
        if not hosted.is_current:
            return  # its shard is being freed
        restored = hosted.shard.restore(self._parts.clock.monotonic())
        await self._while_current(restored)

    async def _while_current(self, work: Steps[None]) -> None:
        try:
            while step(work) is None and self._hosted.is_current:
                await pause()
        finally:
            work.close()

    async def _read(self) -> Chunk | None:
        """Return the next chunk, or None if it must be read again. Raises LoadError."""
        hosted, parts = self._hosted, self._parts
        plog = hosted.partition.log
        self._offset = offset = max(self._offset, plog.log_start_offset)  # retention
        if offset >= hosted.first_offset:
            return None
        try:
            return await read_chunk(
                plog, parts.disk, offset, hosted.first_offset, self._buffer_bytes
            )
        except EOFError:  # the file was removed, as by compaction: others have its records
            await sleep(parts.clock, RETRY_S)
        except KafkaError as error:
            if offset >= plog.log_start_offset and hosted.is_current:
                raise LoadError(f"offset {offset}: {error}") from error
        except StorageError as error:
            self._fail(hosted.partition, error)
            if hosted.is_current:  # the failure is transient, the partition is online
                await sleep(parts.clock, RETRY_S)
        return None

    async def _replayed(self, chunk: Chunk) -> None:
        """Replay the records of the chunk from the next offset on, in pieces. Raises LoadError."""
        offset, shard = self._offset, self._hosted.shard
        unclean_epoch = self._hosted.partition.state.unclean_epoch
        transactional = self._hosted.transactional
        count, left = 0, PIECE_BYTES
        for position, header in chunk.batches:
            base_offset = header.base_offset
            try:
                if header.is_control:
                    if transactional is not None and base_offset >= offset:
                        await _end_transaction(transactional, chunk.data, position, header)
                    left -= _ROW_BYTES
                    if left <= 0:
                        left = PIECE_BYTES
                        await pause()
                    continue
                replay = shard.replay
                if header.is_transactional and transactional is not None:
                    replay = partial(_replay_transactional, transactional, header.producer_id)
                is_doubtful = header.leader_epoch < unclean_epoch
                for data, spans in record_spans(chunk.data, position, header):
                    for (
                        _, _, _, delta, _, key_at, key_length, value_at, value_length, _, _
                    ) in spans:  # fmt: skip
                        if base_offset + delta < offset or key_length < 0:
                            continue
                        value = (
                            data[value_at : value_at + value_length] if value_length >= 0 else None
                        )
                        long = replay(
                            CoordinatorRecord(
                                data[key_at : key_at + key_length], value, None, is_doubtful
                            ),
                            0.0,
                        )
                        if long is not None:
                            await long
                        count += 1
                        left -= _ROW_BYTES + max(value_length, 0)
                        if left <= 0:
                            left = PIECE_BYTES
                            await pause()
            except WireError as error:
                raise LoadError(
                    f"the batch at offset {header.base_offset} is malformed: {error}"
                ) from error
            await pause()
        self.record_count += count
        self._offset = chunk.next_offset


def _replay_transactional(
    shard: TransactionalShard, producer_id: int, record: CoordinatorRecord, now: float
) -> Steps[None] | None:
    return shard.replay_transactional(record, producer_id, now)


async def _end_transaction(
    shard: TransactionalShard, data: bytes, position: int, header: BatchHeader
) -> None:
    """Replay the marker in a control batch."""
    found = marker_at(data, position, header)
    if found is None:
        return
    is_commit = found.control_type is ControlType.COMMIT
    marker = TransactionMarker(
        header.producer_id, header.producer_epoch, found.coordinator_epoch, is_commit
    )
    long = shard.replay_marker(marker, 0.0)
    if long is not None:
        await long


async def read_chunk(
    log: PartitionLog, disk: Disk, offset: int, end_offset: int, max_bytes: int
) -> Chunk:
    """Read batches from `offset` on: at least one, and otherwise at most `max_bytes`.

    Raises LoadError, KafkaError (OFFSET_OUT_OF_RANGE), StorageError, or EOFError if the segment
    was deleted meanwhile.
    """
    while True:
        try:
            found = log.read_hot(offset, max_bytes, end_offset, min_one=True)
            break
        except ColdError as cold:
            await cold.warm(disk)
    name, file = f"{log.topic}-{log.partition}", found.acquire()
    try:
        with found.reading():  # reports errors, on the event loop
            checked = await disk.run(partial(_read_and_check, file, found, name))
    finally:
        found.release()
    if isinstance(checked, LoadError):
        raise checked
    return checked._replace(next_offset=max(checked.next_offset, offset))


def _read_and_check(file: File, found: LogSlice, name: str) -> Chunk | LoadError:
    """Read and check in a worker thread. Errors of the batches are returned, not raised."""
    data = file.read(found.size_bytes, found.position)
    if len(data) < found.size_bytes:
        return LoadError(f"{file.path} ends before position {found.position + found.size_bytes}")
    headers: list[tuple[int, BatchHeader]] = []
    next_offset = 0
    try:
        for position, header in batches(data):
            checked = scan(data, position)
            if checked.state is not BatchState.WHOLE:
                return LoadError(
                    f"the batch at offset {header.base_offset} of {name} is damaged:"
                    f" {checked.problem}"
                )
            headers.append((position, header))
            next_offset = header.last_offset + 1
    except KafkaError as error:
        return LoadError(f"a batch after offset {next_offset} of {name} is damaged: {error}")
    if not headers:
        return LoadError(f"there is no whole batch at offset {found.first_offset} of {name}")
    return Chunk(data, headers, next_offset)
