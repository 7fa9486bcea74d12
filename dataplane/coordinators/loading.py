"""Loads a shard: reads the committed log of its partition, and replays the records in slices.

    log start                                    high watermark
    | chunk | chunk | ... read in worker threads | -> replayed in slices of the event loop

The high watermark must have reached the start of the leader's epoch: all records of earlier leaders
below that are committed, and those that are not in this log never were. Compaction and retention
may run meanwhile. They leave gaps in the offsets, and move records to other files; a chunk whose
file was removed is read again.

Control batches (transaction markers) are skipped. So are batches of transactions, with a warning:
no version of this worker writes them to an internal topic.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

import trio

from dataplane.coordinators.shard import CoordinatorRecord, Shard
from dataplane.log.segments.files import ColdError, storage_error
from dataplane.log.segments.slices import LogSlice
from dataplane.partition.partition import Partition
from dataplane.scheduling.time_slices import PIECE_ROWS, Work
from dataplane.worker.capabilities import FailsPartitions, HasClock, HasDisk, HasSlicer
from metaquorum.runtime import StorageError
from wire.primitives.errors import ErrorCode, KafkaError, WireError
from wire.records.batches import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    BatchState,
    scan,
)
from wire.records.record_walk import RECORD_MIN_BYTES, Span
from wire.records.records import MAX_DECOMPRESSED_BYTES, new_walk, record_spans

log = logging.getLogger(__name__)

# Seconds between attempts to read a chunk while the disk or the process has a transient failure.
RETRY_S: Final = 5.0
# Batches with few records between two checks of the clock; one takes some microseconds.
_PIECE_BATCHES: Final = 32
# Records without compression up to this size are decoded in one piece.
_SMALL_BYTES: Final = 16_384


class LoadsShards(HasClock, HasDisk, HasSlicer, FailsPartitions, Protocol):
    """Capability to read logs in worker threads and replay them in slices."""


class UnreadableRecordsError(Exception):
    """Raised at a batch that is damaged or malformed; the message has its offset and problem."""


@dataclass(slots=True)
class LoadStatistics:
    """Work of one load; the seconds are those since its start."""

    records: int = 0
    size_bytes: int = 0
    seconds: float = 0.0


class ShardLoader:
    """One load of one shard."""

    def __init__(
        self,
        worker: LoadsShards,
        partition: Partition,
        shard: Shard,
        is_wanted: Callable[[], bool],
        buffer_bytes: int,
    ) -> None:
        """Prepare the load in chunks of about `buffer_bytes` (offsets.load.buffer.size).

        `is_wanted` returns False from the end of the leadership on.
        """
        self.statistics = LoadStatistics()
        self._worker = worker
        self._partition = partition
        self._shard = shard
        self._is_wanted = is_wanted
        self._buffer_bytes = buffer_bytes
        self._next_offset = 0
        self._skipped_transactions = False

    async def load(self) -> bool:
        """Replay all records below the high watermark, and start the shard's timers.

        Returns False if the leadership ended before. Raises UnreadableRecordsError.
        """
        worker, partition = self._worker, self._partition
        began_s = worker.clock.monotonic()
        self._next_offset = partition.log.log_start_offset
        while self._is_wanted() and self._next_offset < partition.high_watermark:
            offset, data = self._next_offset, await self._read()
            if data is not None:
                await self._run(self._replayed(data))
                if self._next_offset == offset and self._is_wanted():
                    self._refuse(offset, "the batches that were read end before this offset")
        if self._is_wanted():
            clock = worker.clock
            await self._run(self._shard.loaded(clock.now_ms(), clock.monotonic()))
        self.statistics.seconds = worker.clock.monotonic() - began_s
        return self._is_wanted()

    async def _run(self, work: Work[None]) -> None:
        """Run `work` in slices, until its end or that of the leadership."""
        await trio.lowlevel.checkpoint()
        slicer = self._worker.slicer
        while self._is_wanted():
            try:
                next(work)
            except StopIteration:
                return
            await slicer.pause()
        work.close()

    # Reading

    async def _read(self) -> bytes | None:
        """Return the next chunk; None if it must be read again, after a wait if a read failed."""
        partition = self._partition
        try:
            piece = await self._find()
            if piece is None:
                return None
            file = piece.acquire()
            try:
                with piece.reading():
                    return await self._worker.disk.run(
                        lambda: file.read(piece.size_bytes, piece.position)
                    )
            finally:
                piece.release()
        except (EOFError, FileNotFoundError):
            return None  # compaction has replaced the segment since: other files have its records
        except (StorageError, OSError) as error:
            failure = error if isinstance(error, StorageError) else self._failure(error)
            self._worker.partition_failed(partition, failure)
            if self._is_wanted():  # the failure is transient, the partition is online
                clock = self._worker.clock
                await clock.sleep_until(clock.monotonic() + RETRY_S)
            return None

    def _failure(self, error: OSError) -> StorageError:
        return storage_error(error, "open", self._partition.log.folder)

    async def _find(self) -> LogSlice | None:
        """Return the place of the next chunk; None if there may be one at another offset."""
        partition, log_ = self._partition, self._partition.log
        self._next_offset = max(self._next_offset, log_.log_start_offset)  # retention
        try:
            piece = log_.read_hot(
                self._next_offset, self._buffer_bytes, partition.high_watermark, min_one=True
            )
        except ColdError as cold:
            await cold.warm(self._worker.disk)
            return None
        except KafkaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and not self._is_wanted():
                return None
            self._refuse(self._next_offset, error.message)
        if piece.size_bytes:
            return piece
        if self._next_offset < partition.high_watermark:
            self._refuse(self._next_offset, "the log has no batch with this offset or a later one")
        return None

    # Replaying

    def _replayed(self, data: bytes) -> Work[None]:
        """Check and replay the complete batches of a chunk, in pieces."""
        position = batches = 0
        statistics = self.statistics
        while position < len(data):
            state, header, problem = scan(data, position)
            if state is BatchState.TORN and position:
                return  # the chunk ends within this batch
            if header is None or state is not BatchState.WHOLE:
                self._refuse(self._next_offset, problem)
            if header.is_control:
                pass
            elif header.is_transactional:
                self._warn_of_transaction(header)
            else:
                yield from self._replayed_batch(data, position, header)
            position += header.batch_bytes
            statistics.size_bytes += header.batch_bytes
            self._next_offset = max(self._next_offset, header.next_offset)
            batches += 1
            if not batches % _PIECE_BATCHES:
                yield

    def _replayed_batch(self, data: bytes, position: int, header: BatchHeader) -> Work[None]:
        replay, statistics = self._shard.replay, self.statistics
        base_timestamp = header.base_timestamp
        append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
        first_delta = self._next_offset - header.base_offset  # above 0: below the log start offset
        try:
            for piece, spans in _pieces(data, position, header):
                for first in range(0, len(spans), PIECE_ROWS):
                    for (
                        _, _, _, delta, timestamp, key_at, key_length, value_at, value_length, _, _
                    ) in spans[first : first + PIECE_ROWS]:  # fmt: skip
                        if delta < first_delta or key_length < 0:
                            continue
                        value = piece[value_at : value_at + value_length]
                        replay(
                            CoordinatorRecord(
                                piece[key_at : key_at + key_length],
                                value if value_length >= 0 else None,
                            ),
                            timestamp_ms=(
                                base_timestamp + timestamp if append_time is None else append_time
                            ),
                        )
                        statistics.records += 1
                    if first + PIECE_ROWS < len(spans):
                        yield
                if len(spans) > PIECE_ROWS:
                    yield
        except WireError as error:
            self._refuse(header.base_offset, str(error))

    def _warn_of_transaction(self, header: BatchHeader) -> None:
        if not self._skipped_transactions:
            self._skipped_transactions = True
            log.warning(
                "partition %s has a batch of a transaction at offset %d, which is not loaded:"
                " transactions are not supported in this topic",
                self._partition,
                header.base_offset,
            )

    def _refuse(self, offset: int, problem: str) -> NoReturn:
        raise UnreadableRecordsError(f"offset {offset} of {self._partition}: {problem}")


def _pieces(
    data: bytes, position: int, header: BatchHeader
) -> Iterable[tuple[bytes, Sequence[Span]]]:
    """Return the records of a batch in pieces; a small batch, the most frequent one, in one.

    Raises WireError, also from the iterator, as `record_spans`.
    """
    end, count = position + header.batch_bytes, header.record_count
    size_bytes = header.batch_bytes - HEADER_BYTES
    if (
        header.attributes & CODEC_MASK
        or size_bytes > _SMALL_BYTES
        or count * RECORD_MIN_BYTES > size_bytes
    ):
        return record_spans(data, position, header, MAX_DECOMPRESSED_BYTES)
    walk = new_walk(count, header.last_offset_delta, False)
    body, spans = data[position + HEADER_BYTES : end], list[Span]()
    walk.finish(size_bytes - walk.spans(body, spans))
    return ((body, spans),)
