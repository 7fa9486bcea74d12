"""The log of one partition: segments of record batches, and all that is known about them.

    log_start_offset ≤ recovery_point ≤ log_end_offset
                       synced up to here; a loss of power can take what follows

Batches stay as they came: headers are read, offset and epoch patched in place, one write. State
changes only after that write has succeeded, so a full disk leaves the log as it was. Bytes beyond
`log_end_offset` are no part of the log and are never read: an append may be written beside the
loop while readers go on.

Appends, truncation, rolls and removals of one log are made one at a time by its owner; reads may
come between. No clock here: `now_ms` is passed. An error of the disk becomes StorageError; once a
sync has failed, nobody knows what reached the disk, and every later append or flush fails too.
"""

import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from dataplane.log.config import LogConfig
from dataplane.log.epochs import LeaderEpochs
from dataplane.log.files import LogFile, OpenFiles, storage_error, storage_errors
from dataplane.log.folder import LogFolder, Unsynced
from dataplane.log.names import (
    CLEANED,
    EPOCH_CHECKPOINT,
    LOG,
    OFFSET_INDEX,
    SWAP,
    TIME_INDEX,
    file_name,
)
from dataplane.log.producers import BatchMark, ProducerStateTable
from dataplane.log.recovery import LoadedLog
from dataplane.log.segment import (
    MAX_RELATIVE_OFFSET,
    Segment,
    SegmentState,
    walk_headers,
)
from dataplane.log.segments import Segments
from dataplane.log.slices import LogSlice
from dataplane.log.timestamps import (
    Candidate,
    TimestampOffset,
    next_candidate,
    youngest_candidates,
    youngest_of,
)
from metaquorum.runtime.seams import Disk, File, StorageError
from wire.errors import ErrorCode, KafkaError
from wire.records import (
    BatchHeader,
    assign,
    set_log_append_time,
)

__all__ = ["AppendResult", "LogSlice", "PartitionLog", "SegmentSpan", "TimestampOffset"]

logger = logging.getLogger(__name__)

NO_TIMESTAMP: Final = -1


class AppendResult(NamedTuple):
    first_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 where records keep the times their producer gave
    is_duplicate: bool = False


class SegmentSpan(NamedTuple):
    """One segment as retention sees it."""

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int  # the largest timestamp in it, or when it was made if there is none


@dataclass(slots=True)
class _Write:
    """An append that was checked and given its place, and is not written yet."""

    segment: Segment
    position: int
    first_offset: int
    last_offset: int
    append_time_ms: int


class PartitionLog:
    __slots__ = (
        "_config",
        "_epochs_dirty",
        "_failure",
        "_files",
        "_flushing",
        "_folder",
        "_last_flush_ms",
        "_opened_end_offset",
        "_replacements",
        "_retired",
        "_segments",
        "_tail_dirty",
        "_truncations",
        "_unsynced_segments",
        "_writing",
        "epochs",
        "log_end_offset",
        "log_start_offset",
        "lost_bytes",
        "lost_end_offset",
        "partition",
        "producers",
        "recovery_point",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        files: OpenFiles,
        config: LogConfig,
        topic: str,
        partition: int,
        loaded: LoadedLog,
        now_ms: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = loaded.topic_id or bytes(16)
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self._opened_end_offset = loaded.log_end_offset
        # What opening it has cut: so many bytes, and offsets at least up to there (-1: unknown).
        self.lost_bytes: Final = loaded.truncated_bytes
        self.lost_end_offset: Final = loaded.lost_end_offset
        self.epochs: LeaderEpochs = loaded.epochs
        self.producers: ProducerStateTable = loaded.producers
        self._files = files
        self._folder = LogFolder(
            files, loaded.folder, loaded.snapshot_offsets, loaded.unsynced, loaded.is_made
        )
        self._config = config
        self._segments = Segments(
            [
                Segment(files, loaded.folder, config, state, now_ms, create=not loaded.is_made)
                for state in loaded.segments
            ],
            self.log_end_offset,
        )
        self._segments.active.bytes_since_index = loaded.bytes_since_index
        self._last_flush_ms = now_ms
        self._flushing: trio.Event | None = None
        self._failure: str | None = None
        self._epochs_dirty = False
        self._unsynced_segments: list[Segment] = []
        self._retired: list[Segment] = []
        self._tail_dirty = False
        self._truncations = 0
        self._replacements = 0
        self._writing = False

    def __repr__(self) -> str:
        return (
            f"<log {self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset})>"
        )

    # What is known

    @property
    def folder(self) -> str:
        return self._folder.path

    @property
    def config(self) -> LogConfig:
        return self._config

    def configure(self, config: LogConfig) -> None:
        """From now on the log does as `config` says."""
        self._config = config
        for segment in self._segments:
            segment.configure(config)

    @property
    def is_made(self) -> bool:
        """Whether there is a folder yet, or any file."""
        return self._folder.is_made

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def first_segment_offset(self) -> int:
        return self._segments.first_offset

    @property
    def active_segment_offset(self) -> int:
        return self._segments.active.base_offset

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def synced_offset(self) -> int:
        """What a start may rely on: before it the segments are synced, with their indexes."""
        if self._unsynced_segments:
            return min(self.recovery_point, self._unsynced_segments[0].base_offset)
        return self.recovery_point

    @property
    def unflushed_records(self) -> int:
        """How many of the newest records a loss of power could take."""
        return self.log_end_offset - self.recovery_point

    @property
    def segments(self) -> Sequence[Segment]:
        """As they are now, the active one last."""
        return tuple(self._segments)

    @property
    def truncations(self) -> int:
        """How often records were cut from its end."""
        return self._truncations

    def sealed_segments(self) -> list[tuple[Segment, int]]:
        """All but the active one, and where each ends."""
        return list(self._segments.with_end_offsets(self.log_end_offset))[:-1]

    def segment_spans(self) -> Iterator[SegmentSpan]:
        """What retention has to know of each segment, oldest first."""
        for segment, end_offset in self._segments.with_end_offsets(self.log_end_offset):
            newest_ms = segment.max_timestamp
            yield SegmentSpan(
                segment.base_offset,
                end_offset,
                segment.size_bytes,
                newest_ms if newest_ms >= 0 else segment.created_ms,
            )

    @property
    def failure(self) -> str | None:
        """Why this log takes no more appends; None while it does."""
        return self._failure

    # Appending

    def append(
        self,
        records: bytearray | memoryview,
        headers: Sequence[BatchHeader],
        leader_epoch: int,
        now_ms: int,
    ) -> AppendResult:
        """The batches are in the log, with offsets and `leader_epoch` patched into `records`.

        `records` are the bytes of `headers`, one batch behind the other, each checked by
        `wire.records.check_batch`. Batches that the log has already are answered with their
        place. KafkaError: producer's sequence or epoch, RECORD_LIST_TOO_LARGE. StorageError
        (DiskFullError if that is all): nothing was appended.
        """
        duplicate = self.producers.check(headers)
        if duplicate is not None:
            return self._duplicate(duplicate, headers)
        write = self._prepare(records, headers, leader_epoch, now_ms)
        try:
            write.segment.file.get().write(records, write.position)
        except OSError as error:
            raise self._undo(write, error) from error
        return self._commit(write, headers, now_ms)

    async def append_beside(
        self,
        disk: Disk,
        records: bytearray | memoryview,
        headers: Sequence[BatchHeader],
        leader_epoch: int,
        now_ms: int,
    ) -> AppendResult:
        """As `append`, but the write is made beside the loop: for large batches.

        Readers may go on meanwhile. No other append, roll or truncation may.
        """
        duplicate = self.producers.check(headers)
        if duplicate is not None:
            return self._duplicate(duplicate, headers)
        write = self._prepare(records, headers, leader_epoch, now_ms)
        try:
            self._writing = True
            with write.segment.file.pinned() as file:
                await disk.run(lambda: file.write(records, write.position))
        except OSError as error:
            raise self._undo(write, error) from error
        except BaseException:  # cancelled before it began
            self._tail_dirty = True
            raise
        finally:
            self._writing = False
        return self._commit(write, headers, now_ms)

    def append_as_follower(
        self, records: bytearray | memoryview | bytes, headers: Sequence[BatchHeader], now_ms: int
    ) -> AppendResult:
        """The batches are in the log with the offsets and epochs that they carry.

        CORRUPT_MESSAGE unless these ascend from `log_end_offset` on; gaps are allowed.
        """
        next_offset = self.log_end_offset
        for header in headers:
            if header.base_offset < next_offset or header.leader_epoch < self.epochs.latest:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"offset {header.base_offset} in epoch {header.leader_epoch} cannot follow "
                    f"offset {next_offset - 1} in epoch {self.epochs.latest}",
                )
            next_offset = header.next_offset
        max_timestamp = max(header.max_timestamp for header in headers)
        segment = self._segment_for(len(records), next_offset - 1, max_timestamp, now_ms)
        for header in headers:
            if header.leader_epoch != self.epochs.latest:
                self.assign_epoch(header.leader_epoch, header.base_offset)
        write = _Write(segment, segment.size_bytes, headers[0].base_offset, next_offset - 1, -1)
        try:
            segment.file.get().write(records, write.position)
        except OSError as error:
            raise self._undo(write, error) from error
        return self._commit(write, headers, now_ms, as_follower=True)

    def _duplicate(self, mark: BatchMark, headers: Sequence[BatchHeader]) -> AppendResult:
        time = mark.timestamp if self._config.log_append_time else NO_TIMESTAMP
        first = mark.first_offset
        count = sum(header.last_offset_delta + 1 for header in headers)
        return AppendResult(first, first + count - 1, time, True)

    def _prepare(
        self,
        records: bytearray | memoryview,
        headers: Sequence[BatchHeader],
        leader_epoch: int,
        now_ms: int,
    ) -> _Write:
        first = offset = self.log_end_offset
        append_time = now_ms if self._config.log_append_time else NO_TIMESTAMP
        max_timestamp = append_time
        position = 0
        for header in headers:
            assign(records, position, offset, leader_epoch)
            if append_time >= 0:
                set_log_append_time(records, position, header, append_time)
            elif header.max_timestamp > max_timestamp:
                max_timestamp = header.max_timestamp
            position += header.batch_bytes
            offset += header.last_offset_delta + 1
        assert position == len(records)
        segment = self._segment_for(position, offset - 1, max_timestamp, now_ms)
        if leader_epoch != self.epochs.latest:
            self.assign_epoch(leader_epoch, first)
        return _Write(segment, segment.size_bytes, first, offset - 1, append_time)

    def _segment_for(
        self, size_bytes: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> Segment:
        """The active segment, a new one if this append must not go to the present one."""
        assert not self._writing
        if self._failure is not None:
            raise StorageError(self._failure)
        if not self._folder.is_made:
            self._folder.make(self.topic_id)
        if self._epochs_dirty:
            self._write_epochs()
        if self._tail_dirty:
            self._clean_tail()
        active = self._segments.active
        config = self._config
        size_after = active.size_bytes + size_bytes
        if size_after > config.segment_bytes and size_bytes > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size_bytes} bytes, a segment holds {config.segment_bytes}",
            )
        if active.size_bytes and (
            size_after > config.segment_bytes
            or active.indexes_full
            or last_offset - active.base_offset > MAX_RELATIVE_OFFSET
            or self._waited_ms(active, max_timestamp, now_ms) > config.segment_ms
        ):
            self.roll(now_ms)
            active = self._segments.active
        if last_offset - active.base_offset > MAX_RELATIVE_OFFSET:
            self.roll(now_ms)
            active = self._segments.active
        return active

    def _waited_ms(self, active: Segment, max_timestamp: int, now_ms: int) -> int:
        """How long the segment has been filled, by its records' times if they have any."""
        first = active.first_timestamp
        jitter = self._config.segment_jitter_ms
        if jitter:
            # Any spread will do that is not the same for all partitions.
            jitter = (
                zlib.crc32(f"{self.topic}-{self.partition}/{active.base_offset}".encode()) % jitter
            )
        if first >= 0 and max_timestamp >= 0:
            return max_timestamp - first + jitter
        return now_ms - active.created_ms + jitter

    def _undo(self, write: _Write, error: OSError) -> StorageError:
        self._tail_dirty = True
        if self.epochs.truncate_from_end(self.log_end_offset + 1):
            self._epochs_dirty = True
        try:
            self._clean_tail()
        except StorageError as second:
            logger.warning("%s", second)
        return storage_error(error, "append to", write.segment.file.path)

    def _clean_tail(self) -> None:
        """Nothing of a failed append is left in the file."""
        active = self._segments.active
        with storage_errors("truncate", active.file.path):
            file = active.file.get()
            if file.size() > active.size_bytes:
                file.truncate(active.size_bytes)
        self._tail_dirty = False

    def _commit(
        self,
        write: _Write,
        headers: Sequence[BatchHeader],
        now_ms: int,
        as_follower: bool = False,
    ) -> AppendResult:
        segment = write.segment
        position = write.position
        append_time = write.append_time_ms
        offset = write.first_offset
        for header in headers:
            if as_follower:
                offset = header.base_offset
            last_offset = offset + header.last_offset_delta
            max_timestamp = append_time if append_time >= 0 else header.max_timestamp
            segment.note(position, header.batch_bytes, last_offset, max_timestamp)
            if header.producer_id >= 0:
                self.producers.update(header, last_offset, max_timestamp, now_ms)
            self._segments.note(last_offset, position)
            position += header.batch_bytes
            offset = last_offset + 1
        self.log_end_offset = offset
        return AppendResult(write.first_offset, write.last_offset, append_time)

    def roll(self, now_ms: int) -> None:
        """Appends go to a new segment from here on; the present one is complete. StorageError.

        An empty segment stays the active one.
        """
        sealed = self._segments.active
        end = self.log_end_offset
        if not sealed.size_bytes and sealed.base_offset == end:
            return
        with storage_errors("roll", sealed.file.path):
            sealed.seal()
            with self._failing("sync"):
                self._folder.settle_names(are_being_synced=self._flushing is not None)
            segment = self._new_segment(end, now_ms)
        self._unsynced_segments.append(sealed)
        self._segments.add(segment)
        self._folder.write_snapshot(end, self.producers)

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        if not self._folder.is_made:
            self._folder.make(self.topic_id)
        state = SegmentState(base_offset, 0, 0, 0, NO_TIMESTAMP, NO_TIMESTAMP)
        segment = Segment(self._files, self.folder, self._config, state, now_ms, create=True)
        file = segment.file.get()
        if file.size():
            file.truncate(0)
        self._folder.names_changed()
        return segment

    def assign_epoch(self, leader_epoch: int, start_offset: int | None = None) -> None:
        """`leader_epoch` begins at `start_offset` (the log's end).

        On disk, too, though not synced; a log without a folder keeps it in memory until it has one.
        """
        start = self.log_end_offset if start_offset is None else start_offset
        if self.epochs.assign(leader_epoch, start):
            self._epochs_dirty = True
        self._write_epochs()

    def drop_unused_epochs(self) -> None:
        """Epochs without a record are forgotten: who led in one and follows now wrote nothing."""
        if self.epochs.truncate_from_end(self.log_end_offset):
            self._epochs_dirty = True
            self._write_epochs()

    @property
    def _has_unwritten_epochs(self) -> bool:
        return self._epochs_dirty and self._folder.is_made

    def _write_epochs(self) -> None:
        if self._has_unwritten_epochs:
            self._folder.write(EPOCH_CHECKPOINT, self.epochs.encode())
            self._epochs_dirty = False

    # Reading

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, min_one: bool = False
    ) -> LogSlice:
        """Batches from the one that holds `offset` on, out of one segment, about `max_bytes`.

        No batch that reaches `end_offset` (a high watermark) is in it. At `max_bytes` the last
        batch is cut, as Kafka does and clients expect, but the first one is always whole: with
        `min_one` however large it is, else there is nothing if it does not fit. Empty, too, at
        and beyond `end_offset`. KafkaError(OFFSET_OUT_OF_RANGE) outside of the log.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic}-{self.partition}, which has "
                f"{self.log_start_offset} to {self.log_end_offset}",
            )
        if offset >= end_offset or offset == self.log_end_offset:
            return LogSlice(self._segments.active.file, 0, 0, offset)
        segment, start = self._segments.find(offset)
        if end_offset >= self.log_end_offset:
            end = segment.size_bytes
        else:
            end = self._segments.end_in(segment, end_offset)
        size = end - start
        if size > max_bytes:
            _, first = next(segment.walk(start))
            if first.batch_bytes <= max_bytes:
                size = max_bytes
            else:
                size = min(size, first.batch_bytes) if min_one else 0
        elif end_offset <= self.log_end_offset:
            self._segments.read_upto(segment, end_offset, end)
        return LogSlice(segment.file, start, max(size, 0), offset)

    def offset_for_timestamp(self, timestamp: int, end_offset: int) -> TimestampOffset | None:
        """The first record before `end_offset` that is not older than `timestamp`, if any.

        Takes as long as opening batches does: see `candidate_since`. CORRUPT_MESSAGE if one cannot
        be opened.
        """
        start_offset = self.log_start_offset
        while (candidate := self.candidate_since(timestamp, start_offset, end_offset)) is not None:
            with candidate.records.pinned() as file:
                found = candidate.first_since(file, timestamp, start_offset)
            if found is not None:
                return found if found.offset < end_offset else None
            start_offset = candidate.header.last_offset + 1
        return None

    def candidate_since(
        self, timestamp: int, start_offset: int, end_offset: int
    ) -> Candidate | None:
        """The first batch in [start_offset, end_offset) that may have a record not older."""
        return next_candidate(
            list(self._segments), timestamp, max(start_offset, self.log_start_offset), end_offset
        )

    def max_timestamp(self, end_offset: int) -> TimestampOffset | None:
        """The record with the largest timestamp, the first of several, if it is before the end."""
        opened = []
        for candidate in self.youngest_candidates():
            with candidate.records.pinned() as file:
                opened.append(candidate.youngest(file, self.log_start_offset))
        found = youngest_of(opened)
        return found if found is not None and found.offset < end_offset else None

    def youngest_candidates(self) -> list[Candidate]:
        """The batches of which one has the record with the largest timestamp: two at most."""
        return youngest_candidates(list(self._segments), self.log_start_offset)

    # Cutting

    def truncate_to(self, offset: int) -> bool:
        """Nothing at or after `offset` is left; False if there was nothing. StorageError.

        `log_end_offset` is `offset`, or less where a batch or a gap went across it. Write the
        recovery points (`LogDir.checkpoint`) before appending again: the one on disk may lie
        beyond the end now. Slow when many producers' state has to be read again.
        """
        assert not self._writing
        if offset >= self.log_end_offset:
            return False
        if offset < self._segments.first_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        self._truncations += 1
        with self._failing("truncate"):
            while (segment := self._segments.pop_behind(offset)) is not None:
                self._remove_segment(segment)
            end = self._segments.active.truncate_to(offset)
            if end >= self.log_start_offset:
                self._end_at(end)
                self._reload_producers()
                return True
        # Nothing is left from the start on: whatever is before it was deleted already.
        self.truncate_fully_and_start_at(min(offset, self.log_start_offset))
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """The log is empty, and begins and ends at `offset`. StorageError."""
        assert not self._writing
        self._truncations += 1
        with self._failing("truncate"):
            for segment in reversed(list(self._segments)):
                self._remove_segment(segment)
            self._segments = Segments([self._new_segment(offset, 0)], offset)
            self.log_start_offset = offset
            self.epochs.truncate_from_end(0)
            self._epochs_dirty = True
            self._folder.drop_snapshots_behind(-1)
            self.producers = ProducerStateTable()
            self._end_at(offset)

    def _end_at(self, offset: int) -> None:
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self._tail_dirty = False
        self._unsynced_segments = [s for s in self._unsynced_segments if s in self._segments]
        self._segments.forget_places(offset)
        if self.epochs.truncate_from_end(offset):
            self._epochs_dirty = True
        self._write_epochs()
        self._folder.drop_snapshots_behind(offset)

    def _remove_segment(self, segment: Segment) -> None:
        segment.remove()
        self._folder.names_changed()

    def _reload_producers(self) -> None:
        """Producers as the log, as it is now, tells of them."""
        now_ms = max((e.last_seen_ms for e in self.producers.entries.values()), default=0)
        if not self.producers.entries:
            return
        newest = self._folder.newest_snapshot()
        table, start = newest or (ProducerStateTable(), self.log_start_offset)
        for segment in self._segments.since(start):
            for _, header in walk_headers(segment.file.get(), 0, segment.size_bytes):
                if header.producer_id >= 0 and header.base_offset >= start:
                    table.update(header, header.last_offset, header.max_timestamp, now_ms)
        self.producers = table

    @contextmanager
    def _failing(self, action: str) -> Iterator[None]:
        """What cannot be completed leaves this log unfit for appends."""
        try:
            yield
        except (OSError, StorageError) as error:
            if isinstance(error, OSError):
                failure = storage_error(error, action, self.folder)
            else:
                failure = error
            self._failure = str(failure)
            raise failure from error

    # Removing what is old

    def advance_log_start(self, offset: int) -> bool:
        """Records before `offset` are gone for readers; False if they were.

        It survives a restart after the next `LogDir.checkpoint`. OFFSET_OUT_OF_RANGE beyond the
        end of the log; the caller keeps it at or below the high watermark.
        """
        if offset > self.log_end_offset or offset < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the log of {self.topic}-{self.partition} ends at {self.log_end_offset}",
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        if self.epochs.truncate_from_start(offset):
            self._epochs_dirty = True
        return True

    def delete_old_segments(self) -> int:
        """Segments that end before `log_start_offset` are `.deleted`; how many.

        Never the active one. `remove_deleted` removes them for good.
        """
        count = 0
        while (segment := self._segments.pop_before(self.log_start_offset)) is not None:
            count += 1
            self._retired.append(segment)
            if segment in self._unsynced_segments:
                self._unsynced_segments.remove(segment)
            with storage_errors("rename", segment.file.path):
                segment.retire()
            self._folder.names_changed()
        self._folder.drop_snapshots_before(self._segments.first_offset)
        self._write_epochs()
        return count

    # Compaction

    async def replace_segments(
        self, disk: Disk, old: Sequence[Segment], state: SegmentState
    ) -> bool:
        """The segment whose synced files end in `.cleaned` is in the place of `old`, for good.

        False if the log has been cut, or moved, meanwhile: then nothing has changed. `old` are
        `.deleted`, and readable as long as those of retention are. StorageError.

            .cleaned → .swap   synced: what is found now stands for all of `old`
            old → .deleted     synced, so that no part of `old` is found without the .swap
            .swap → its name
        """
        folder = self.folder
        if not self._segments.has_sealed(old):
            return False
        with storage_errors("rename", folder):
            self._rename_all(state.base_offset, CLEANED, SWAP)
        with trio.CancelScope(shield=True):
            if not await self._sync_names(disk, folder):
                return False
            if not self._segments.has_sealed(old):
                for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
                    self._folder.remove(file_name(state.base_offset, suffix) + SWAP)
                return False
            with self._failing("replace segments of"):
                segment = self._swap(old, state)
                if await self._sync_names(disk, folder) and segment in self._segments:
                    segment.settle()
                    self._folder.names_changed()
        return True

    def _rename_all(self, base_offset: int, ending: str, new_ending: str) -> None:
        for suffix in (OFFSET_INDEX, TIME_INDEX, LOG):
            path = os.path.join(self.folder, file_name(base_offset, suffix))
            self._files.disk.rename(path + ending, path + new_ending)
        self._folder.names_changed()

    def _swap(self, old: Sequence[Segment], state: SegmentState) -> Segment:
        made_ms = old[-1].created_ms
        segment = Segment(self._files, self.folder, self._config, state, made_ms, ending=SWAP)
        end = self._segments.end_of(old[-1])
        self._segments.replace(old, segment)
        self._replacements += 1
        for each in old:
            self._retired.append(each)
            if each in self._unsynced_segments:
                self._unsynced_segments.remove(each)
            each.retire(f".{self._replacements}")
        self._folder.drop_snapshots_between(state.base_offset, end)
        return segment

    async def _sync_names(self, disk: Disk, folder: str) -> bool:
        """The folder's names survive a loss of power; False if it has another name now."""
        try:
            with storage_errors("sync", folder):
                await disk.run(lambda: disk.sync_dir(folder))
        except StorageError:
            if self.folder == folder:
                raise
        return self.folder == folder

    def remove_deleted(self, count: int | None = None) -> None:
        """Files of segments deleted before are gone: the `count` that were deleted first, or all.

        Slow if they are large: for `Disk.run`.
        """
        retired = self._retired[:count]
        del self._retired[: len(retired)]
        with storage_errors("remove", self.folder):
            for segment in retired:
                segment.remove()

    def expire_producers(self, now_ms: int) -> int:
        return self.producers.expire(now_ms, self._config.producer_id_expiration_ms)

    # Durability

    def needs_flush(self, now_ms: int) -> bool:
        """flush.messages or flush.ms ask for a flush, or a complete segment was never synced."""
        unflushed = self.log_end_offset - self.recovery_point
        if unflushed >= self._config.flush_messages or self._unsynced_segments:
            return True
        return unflushed > 0 and now_ms - self._last_flush_ms >= self._config.flush_ms

    async def flush(self, disk: Disk, now_ms: int | None = None) -> None:
        """What was appended before this call survives a loss of power. StorageError.

        Callers that wait together share one sync.
        """
        target = self.log_end_offset
        while self._failure is None and (
            self.recovery_point < min(target, self.log_end_offset)
            or self._unsynced_segments
            or self._has_unwritten_epochs
            or not self._folder.is_synced
        ):
            if self._flushing is not None:
                await self._flushing.wait()
                continue
            self._flushing = trio.Event()
            try:
                await self._flush_once(disk)
            finally:
                self._flushing.set()
                self._flushing = None
            if now_ms is not None:
                self._last_flush_ms = now_ms
        if self._failure is not None:
            raise StorageError(self._failure)

    async def _flush_once(self, disk: Disk) -> None:
        self._write_epochs()
        end, truncations = self.log_end_offset, self._truncations
        # One segment at a time: there may be more than files may be open.
        while self._unsynced_segments:
            segment = self._unsynced_segments[0]
            await self._sync_files(disk, segment.all_files(), None)
            if self._unsynced_segments[:1] == [segment]:  # not truncated meanwhile
                del self._unsynced_segments[0]
        unsynced = self._folder.take_unsynced()
        try:
            await self._sync_files(disk, (self._segments.active.file,), unsynced)
        except BaseException:  # failed, or cancelled before it began
            self._folder.give_back(unsynced)
            raise
        if truncations == self._truncations:
            self.recovery_point = max(self.recovery_point, end)

    async def _sync_files(
        self, disk: Disk, files: Sequence[LogFile], unsynced: Unsynced | None
    ) -> None:
        opened: list[File] = []

        def sync() -> None:
            for file in opened:
                file.sync()
            if unsynced is not None:
                unsynced.sync(disk)

        with self._failing("sync"):
            try:
                opened.extend(file.acquire() for file in files)
                await disk.run(sync)
            finally:
                for file in files[: len(opened)]:
                    file.release()

    async def close_clean(self, disk: Disk) -> None:
        """All of it is on disk and synced, so that the next start need not scan. StorageError."""
        unsynced = self.prepare_close()
        with self._failing("sync"):
            await disk.run(lambda: unsynced.sync(disk))
        self.closed_clean()

    def prepare_close(self) -> Unsynced:
        """All of it is on disk, and no file is open; what is to be synced yet. StorageError.

        For when nobody uses the log any more: this may be called beside the loop. `closed_clean`
        follows when the sync has succeeded.
        """
        if self._failure is not None:
            raise StorageError(self._failure)
        active = self._segments.active
        with self._failing("close"):
            if active.size_bytes and self._is_changed():
                # Its indexes are trusted after this, so they are synced with it.
                active.seal()
                self._unsynced_segments.append(active)
                self._folder.names_changed()
            if self._needs_snapshot():
                self._folder.write_snapshot(self.log_end_offset, self.producers)
            self._write_epochs()
        unsynced = self._folder.take_unsynced()
        names = {file.name for each in self._unsynced_segments for file in each.all_files()}
        if self.recovery_point < self.log_end_offset:
            names.add(active.file.name)
        unsynced.names |= names
        self.close()
        return unsynced

    def closed_clean(self) -> None:
        """What `prepare_close` told was synced."""
        self._unsynced_segments.clear()
        self.recovery_point = self.log_end_offset

    def _needs_snapshot(self) -> bool:
        """After a clean stop, no snapshot at all means that there are no producers."""
        offsets = self._folder.snapshot_offsets
        if not offsets and not self.producers.entries:
            return False
        return offsets[-1:] != [self.log_end_offset] and self.log_end_offset > 0

    def _is_changed(self) -> bool:
        return self.log_end_offset != self._opened_end_offset or self._truncations > 0

    def close(self) -> None:
        """No file is open; nothing was synced."""
        for segment in (*self._segments, *self._retired):
            segment.close()

    def moved(self, folder: str) -> None:
        """The folder was renamed; readers go on."""
        self._folder.path = folder
        for segment in (*self._segments, *self._retired):
            segment.moved(folder)
