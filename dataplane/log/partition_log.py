"""The log of one partition: record batches, and all that is known about them.

    log_start_offset ≤ recovery_point ≤ log_end_offset

A `LocalLog`, of which it is known whose records are in it, under which leaders, and which of them
readers may still ask for.

Batches stay as they came: headers are read, offset and epoch patched in place, one write. State
changes only after that write has succeeded, so a full disk leaves the log as it was. Bytes beyond
`log_end_offset` are no part of the log: an append may be written beside the loop while readers go
on.

Appends, truncation, rolls and removals of one log are made one at a time by its owner; reads may
come between. No clock here: `now_ms` is passed. An error of the disk becomes StorageError.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dataplane.log.local_log import NO_TIMESTAMP, LocalLog
from dataplane.log.recovery.checkpoints import LogOffsets
from dataplane.log.recovery.folder import Unsynced
from dataplane.log.recovery.recovery import LoadedLog
from dataplane.log.segments.config import LogConfig
from dataplane.log.segments.epochs import LeaderEpochs
from dataplane.log.segments.files import OpenFiles, storage_error
from dataplane.log.segments.names import DAMAGED
from dataplane.log.segments.producers import BatchMetadata, ProducerStateTable
from dataplane.log.segments.segment import Segment, walk_headers
from dataplane.log.segments.slices import LogSlice
from dataplane.log.segments.timestamps import Candidate, max_timestamp_candidates, next_candidate
from metaquorum.runtime.interfaces import Disk, StorageError
from wire.primitives.errors import ErrorCode, KafkaError
from wire.records.records import BatchHeader, assign, set_log_append_time

logger = logging.getLogger(__name__)

_new_tuple: Final = tuple.__new__  # of a NamedTuple, without a call in between


class AppendResult(NamedTuple):
    first_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 where records keep the times their producer gave
    is_duplicate: bool = False


@dataclass(slots=True)
class _Write:
    """An append that was checked and given its place, and is not written yet."""

    segment: Segment
    position: int
    first_offset: int
    last_offset: int
    append_time_ms: int


class PartitionLog(LocalLog):
    __slots__ = (
        "epochs",
        "log_start_offset",
        "lost_bytes",
        "lost_end_offset",
        "noted_log_start_offset",
        "producers",
        "was_damaged",
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
        super().__init__(files, config, topic, partition, loaded, now_ms)
        self.log_start_offset = loaded.log_start_offset
        self.noted_log_start_offset = loaded.noted.log_start_offset
        # What opening it has cut: so many bytes, and offsets at least up to there (-1: unknown).
        self.lost_bytes: Final = loaded.truncated_bytes
        self.lost_end_offset: Final = loaded.lost_end_offset
        self.was_damaged = loaded.is_damaged  # and the quorum has perhaps not been told
        self.epochs: LeaderEpochs = loaded.epochs
        self.producers: ProducerStateTable = loaded.producers

    def __repr__(self) -> str:
        return (
            f"<log {self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset})>"
        )

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
        `wire.records.records.check_batch`. Batches that the log has already are answered with their
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

    def _duplicate(self, mark: BatchMetadata, headers: Sequence[BatchHeader]) -> AppendResult:
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
            assign(records, position, header.batch_bytes, offset, leader_epoch)
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

    def _undo(self, write: _Write, error: OSError) -> StorageError:
        self._tail_dirty = True
        if self.epochs.truncate_from_end(self.log_end_offset + 1):
            self._folder.epochs_changed()
        try:
            self._clean_tail()
        except StorageError as second:
            logger.warning("%s", second)
        return storage_error(error, "append to", write.segment.file.path)

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
        return _new_tuple(AppendResult, (write.first_offset, write.last_offset, append_time, False))

    def roll(self, now_ms: int) -> bool:
        if not super().roll(now_ms):
            return False
        self._folder.write_snapshot(self.log_end_offset, self.producers)
        return True

    def forget_damage(self) -> None:
        """Whoever relied on what recovery cut off has been told. StorageError."""
        self.was_damaged = False
        self._folder.remove(DAMAGED)

    def assign_epoch(self, leader_epoch: int, start_offset: int | None = None) -> None:
        """`leader_epoch` begins at `start_offset` (the log's end).

        On disk, too, though not synced; a log without a folder keeps it in memory until it has one.
        """
        start = self.log_end_offset if start_offset is None else start_offset
        if self.epochs.assign(leader_epoch, start):
            self._folder.epochs_changed()
        self._folder.write_epochs()

    def drop_unused_epochs(self) -> None:
        """Epochs without a record are forgotten: who led in one and follows now wrote nothing."""
        if self.epochs.truncate_from_end(self.log_end_offset):
            self._folder.epochs_changed()
            self._folder.write_epochs()

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

    def read_hot(
        self, offset: int, max_bytes: int, end_offset: int, *, min_one: bool = False
    ) -> LogSlice:
        """As `read`. ColdError if looking for the place would wait for the disk."""
        files = self._files
        files.refuses_cold = True
        try:
            return self.read(offset, max_bytes, end_offset, min_one=min_one)
        finally:
            files.refuses_cold = False

    def candidate_since(
        self, timestamp: int, start_offset: int, end_offset: int
    ) -> Candidate | None:
        """The first batch in [start_offset, end_offset) that may have a record not older."""
        return next_candidate(
            list(self._segments), timestamp, max(start_offset, self.log_start_offset), end_offset
        )

    def max_timestamp_candidates(self) -> list[Candidate]:
        """The batches of which one has the record with the largest timestamp: two at most."""
        return max_timestamp_candidates(list(self._segments), self.log_start_offset)

    # Cutting

    def truncate_to(self, offset: int) -> bool:
        """Nothing at or after `offset` is left; False if there was nothing. StorageError.

        `log_end_offset` is `offset`, or less where a batch or a gap went across it. What the
        checkpoints on disk say must lie below that already, and stay there until this returns
        (`LogDirs.cutting`). `flush` before appending again: else a loss of power may leave old
        records, and new ones behind them, in a log that looks sound. Slow when many producers'
        state has to be read again.
        """
        assert not self._writing
        if offset >= self.log_end_offset:
            return False
        kept = self.offsets_after_truncation(offset)
        if kept.recovery_point < self.log_start_offset:
            # Nothing is left from the start on: whatever is before it was deleted already.
            self.truncate_fully_and_start_at(kept.log_start_offset)
            return True
        self._distrust_from(kept.recovery_point)
        self._truncations += 1
        with self._failing("truncate"):
            self._end_at(self._cut(offset))
            self._reload_producers()
        return True

    def first_cut_at(self, offset: int) -> int:
        """The first offset of what `truncate_to(offset)` removes. StorageError.

        That is `offset`, or less: of a batch that goes across it nothing is left.
        """
        if offset >= self.log_end_offset:
            return offset
        if offset < self._segments.first_offset:
            return min(offset, self.log_start_offset)
        return self._first_cut_at(offset)

    def offsets_after_truncation(self, offset: int) -> LogOffsets:
        """What checkpoints may say at most when the log is cut at `offset`. StorageError."""
        if offset >= self.log_end_offset:
            return LogOffsets(self.recovery_point, self.log_start_offset)
        if offset >= self._segments.first_offset:
            end = self._end_of_cut(offset)
            if end >= self.log_start_offset:
                return LogOffsets(end, self.log_start_offset)
        return self.offsets_after_full_truncation(min(offset, self.log_start_offset))

    def offsets_after_full_truncation(self, offset: int) -> LogOffsets:
        """As `offsets_after_truncation`, where the log is to begin anew at `offset`.

        No byte can be relied on then: a loss of power may bring back any of the segments that were
        removed, and leave none of those that are new.
        """
        return LogOffsets(0, min(offset, self.log_start_offset))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """The log is empty, and begins and ends at `offset`. StorageError."""
        assert not self._writing
        assert self.noted_log_start_offset <= offset
        self._distrust_from(0)
        self._truncations += 1
        with self._failing("truncate"):
            self._cut_all(offset)
            self.log_start_offset = offset
            self.epochs.truncate_from_end(0)
            self._folder.epochs_changed()
            self._folder.drop_snapshots_behind(-1)
            self.producers = ProducerStateTable()
            self._end_at(offset)

    def _end_at(self, offset: int) -> None:
        self._end_files_at(offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        if self.epochs.truncate_from_end(offset):
            self._folder.epochs_changed()
        self._folder.write_epochs()
        self._folder.drop_snapshots_behind(offset)

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
            self._folder.epochs_changed()
        return True

    async def delete_old_segments(self, disk: Disk) -> int:
        """Segments that end before `log_start_offset` are `.deleted`; how many. StorageError.

        Never the active one. `remove_deleted` removes them for good. The names of those that stay
        survive a loss of power before: one that takes the name of a new segment, and leaves the
        others deleted, would leave a log that ends earlier, whose offsets would be given again.

        Of several removals a loss of power may undo any. Behind the recovery point on disk a gap
        makes recovery drop what follows, so that each removal there is synced before the next.
        """
        kept = self._segments.since(self.log_start_offset)[0].base_offset
        if kept <= self._segments.first_offset or not await self._sync_names(disk, self.folder):
            return 0
        end = min(kept, self.log_start_offset)
        count = self._retire_before(min(end, self.least_noted_recovery_point - 1))
        while one := self._retire_before(end, most=1):
            count += one
            if self._segments.first_offset >= end or not await self._sync_names(disk, self.folder):
                break
        self._folder.drop_snapshots_before(self._segments.first_offset)
        self._folder.write_epochs()
        return count

    def expire_producers(self, now_ms: int) -> int:
        return self.producers.expire(now_ms, self._config.producer_id_expiration_ms)

    # Closing

    def prepare_close(self) -> Unsynced:
        """All of it is on disk, and no file is open; what is to be synced yet. StorageError.

        For when nobody uses the log any more: this may be called beside the loop. `closed_clean`
        follows when the sync has succeeded.
        """
        if self._failure is not None:
            raise StorageError(self._failure)
        with self._failing("close"):
            self._complete_active()
            if self._needs_snapshot():
                self._folder.write_snapshot(self.log_end_offset, self.producers)
            self._folder.write_epochs()
        unsynced = self._take_all_unsynced()
        self.close()
        return unsynced

    def _needs_snapshot(self) -> bool:
        """After a clean stop, no snapshot at all means that there are no producers."""
        offsets = self._folder.snapshot_offsets
        if not offsets and not self.producers.entries:
            return False
        return offsets[-1:] != [self.log_end_offset] and self.log_end_offset > 0
