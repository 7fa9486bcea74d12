"""The log of one partition: record batches, producer state, leader epochs, log start offset.

    log_start_offset ≤ log_end_offset, recovery_point ≤ log_end_offset

`PartitionLog` is a `LocalLog` with producer state (KIP-98), leader epochs (KIP-101) and the log
start offset.

An append reads the batch header, patches offset and leader epoch in place, and writes once;
the batch is otherwise unchanged. State changes only after that write has succeeded: a full disk
does not change the log. Bytes beyond `log_end_offset` are not part of the log, so an append may be
written in a worker thread while reads continue.

The owner of a log calls its appends, truncations, rolls and removals one at a time; reads may
happen between them. There is no clock here: callers pass `now_ms`. Disk errors are raised as
StorageError.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from metaquorum.dataplane.log.local_log import NO_TIMESTAMP, LocalLog
from metaquorum.dataplane.log.recovery.checkpoints import LogOffsets
from metaquorum.dataplane.log.recovery.folder import Unsynced
from metaquorum.dataplane.log.recovery.recovery import LoadedLog
from metaquorum.dataplane.log.segments.aborted import AbortedTransaction
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.epochs import LeaderEpochs
from metaquorum.dataplane.log.segments.files import (
    DiskFullError,
    OpenFiles,
    storage_error,
    storage_errors,
)
from metaquorum.dataplane.log.segments.markers import encoded, marker_at, read_marker
from metaquorum.dataplane.log.segments.names import DAMAGED
from metaquorum.dataplane.log.segments.producers import ProducerStateTable, TransactionMarker
from metaquorum.dataplane.log.segments.segment import Segment, walk_headers
from metaquorum.dataplane.log.segments.slices import LogSlice
from metaquorum.dataplane.log.segments.timestamps import (
    Candidate,
    max_timestamp_candidates,
    next_candidate,
)
from metaquorum.runtime.interfaces import Disk, StorageError
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import CONTROL, HEADER_BYTES, PREFIX_BYTES, assign
from metaquorum.wire.records.records import (
    BatchHeader,
    EndTransactionMarker,
    set_log_append_time,
)

logger = logging.getLogger(__name__)

_new_tuple: Final = tuple.__new__  # creates a NamedTuple without the call of its own __new__


class AppendResult(NamedTuple):
    """Offsets of an appended batch, or of its first copy if it is a duplicate."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 if records keep the timestamps of their producer
    is_duplicate: bool = False


class PartitionLog(LocalLog):
    """The log of one partition; see the top of this file."""

    __slots__ = (
        "_deletion",
        "_uncounted",
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
        # Recovery removed this number of bytes, with offsets at least up to `lost_end_offset`
        # (-1: unknown).
        self.lost_bytes: Final = loaded.truncated_bytes
        self.lost_end_offset: Final = loaded.lost_end_offset
        self.was_damaged = loaded.is_damaged  # until the controller knows: see `forget_damage`
        self.epochs: LeaderEpochs = loaded.epochs
        self.producers: ProducerStateTable = loaded.producers
        self._deletion: trio.Event | None = None  # set when the deletion in progress ends
        self._uncounted = 0  # renamed segments that no `delete_old_segments` has returned

    def __repr__(self) -> str:
        return (
            f"<log {self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset})>"
        )

    # Appending

    def append(
        self,
        records: bytearray | memoryview,
        header: BatchHeader,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendResult:
        """Append the batch, with its offset and `leader_epoch` patched into `records`.

        `records` are the bytes of the batch, checked by
        `metaquorum.wire.records.batches.check_batch`. For a duplicate of a batch in the log, the
        result has the offsets of that one. Nothing is appended if this raises KafkaError
        (INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE,
        RECORD_LIST_TOO_LARGE) or StorageError (DiskFullError if the disk is only full).
        """
        if header.producer_id >= 0:
            duplicate = self._copy_of(records, header)
            if duplicate is not None:
                return duplicate
        segment, append_time = self._prepare(records, header, leader_epoch, now_ms)
        try:
            segment.file.get().write(records, segment.size_bytes)
        except OSError as error:
            raise self._undo(segment, error) from error
        return self._commit(segment, header, self.log_end_offset, append_time, now_ms)

    def append_marker(
        self, marker: TransactionMarker, leader_epoch: int, now_ms: int
    ) -> AppendResult:
        """Append the control batch of MARKER_BYTES that ends the producer's transaction.

        A marker without an open transaction is written, too. Nothing is appended if this raises
        KafkaError (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED) or StorageError.
        """
        self.producers.check_marker(marker)
        data, header, ends = encoded(marker, now_ms)
        batch = bytearray(data)
        segment, append_time = self._prepare(batch, header, leader_epoch, now_ms)
        try:
            segment.file.get().write(batch, segment.size_bytes)
        except OSError as error:
            raise self._undo(segment, error) from error
        return self._commit(segment, header, self.log_end_offset, append_time, now_ms, ends)

    async def append_beside(
        self,
        disk: Disk,
        records: bytearray | memoryview,
        header: BatchHeader,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendResult:
        """Append as `append` does, but write in a worker thread: for large batches.

        Reads may continue meanwhile; other appends, rolls and truncations must wait.
        """
        if header.producer_id >= 0:
            duplicate = self._copy_of(records, header)
            if duplicate is not None:
                return duplicate
        segment, append_time = self._prepare(records, header, leader_epoch, now_ms)
        await self._write_beside(disk, segment, records)
        return self._commit(segment, header, self.log_end_offset, append_time, now_ms)

    def append_as_follower(
        self, records: bytearray | memoryview | bytes, headers: Sequence[BatchHeader], now_ms: int
    ) -> AppendResult:
        """Append the batches with the offsets and leader epochs in their headers.

        `records` are the bytes of the batches of `headers` without gaps. Raises CORRUPT_MESSAGE
        unless both ascend, the offsets from `log_end_offset` on; gaps are allowed.
        """
        segment = self._prepare_as_follower(len(records), headers, now_ms)
        try:
            segment.file.get().write(records, segment.size_bytes)
        except OSError as error:
            raise self._undo(segment, error) from error
        return self._commit_as_follower(segment, records, headers, now_ms)

    async def append_as_follower_beside(
        self,
        disk: Disk,
        records: bytearray | memoryview | bytes,
        headers: Sequence[BatchHeader],
        now_ms: int,
    ) -> AppendResult:
        """Append as `append_as_follower` does, but write in a worker thread: for many bytes.

        Reads may continue meanwhile; other appends, rolls and truncations must wait.
        """
        segment = self._prepare_as_follower(len(records), headers, now_ms)
        await self._write_beside(disk, segment, records)
        return self._commit_as_follower(segment, records, headers, now_ms)

    async def _write_beside(
        self, disk: Disk, segment: Segment, records: bytearray | memoryview | bytes
    ) -> None:
        """Write behind the end of `segment` in a worker thread. Raises StorageError."""
        position = segment.size_bytes
        try:
            self._writing = True
            with segment.file.pinned() as file:
                await disk.write(file, records, position)
        except OSError as error:
            raise self._undo(segment, error) from error
        except BaseException:  # cancelled before the write began
            self._tail_dirty = True
            self._forget_epochs_of_unwritten()
            raise
        finally:
            self._writing = False

    def _prepare_as_follower(
        self, size_bytes: int, headers: Sequence[BatchHeader], now_ms: int
    ) -> Segment:
        """Check the batches and note their epochs; return the segment that takes them."""
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
        # The leader has them already: segment.bytes may have been lowered since.
        segment = self._segment_for(
            size_bytes, next_offset - 1, max_timestamp, now_ms, checks_size=False
        )
        for header in headers:
            if header.leader_epoch != self.epochs.latest:
                self.assign_epoch(header.leader_epoch, header.base_offset)
        try:
            self.write_epochs()
        except StorageError:
            self._forget_epochs_of_unwritten()
            raise
        return segment

    def _commit_as_follower(
        self,
        segment: Segment,
        records: bytearray | memoryview | bytes,
        headers: Sequence[BatchHeader],
        now_ms: int,
    ) -> AppendResult:
        position = segment.size_bytes
        for header in headers:
            ends = None
            if header.attributes & CONTROL:
                ends = marker_at(records, segment.size_bytes - position, header)
            self._commit(segment, header, header.base_offset, NO_TIMESTAMP, now_ms, ends)
        return AppendResult(headers[0].base_offset, headers[-1].next_offset - 1, NO_TIMESTAMP)

    def _copy_of(self, records: bytearray | memoryview, header: BatchHeader) -> AppendResult | None:
        """Return the result of the earlier append if the batch is a duplicate; None if it is next.

        Raises KafkaError as `append` does.
        """
        try:
            mark = self.producers.check(header)
        except KafkaError:
            self._check_size(len(records))
            raise
        if mark is None:
            return None
        time = mark.timestamp if self._config.log_append_time else NO_TIMESTAMP
        return AppendResult(mark.first_offset, mark.last_offset, time, True)

    def _prepare(
        self,
        records: bytearray | memoryview,
        header: BatchHeader,
        leader_epoch: int,
        now_ms: int,
    ) -> tuple[Segment, int]:
        """Patch the batch; return the segment that takes it, and its log append time or -1."""
        offset, batch_bytes = self.log_end_offset, header.batch_bytes
        assert batch_bytes == len(records)
        assign(records, 0, offset, batch_bytes - PREFIX_BYTES, leader_epoch)
        append_time, max_timestamp = NO_TIMESTAMP, header.max_timestamp
        if self._config.log_append_time:
            append_time = max_timestamp = now_ms
            set_log_append_time(records, 0, header, now_ms)
        last_offset = offset + header.last_offset_delta
        segment = self._segment_for(batch_bytes, last_offset, max_timestamp, now_ms)
        if leader_epoch != self.epochs.latest:
            self.assign_epoch(leader_epoch, offset)
            self.write_epochs()
        return segment, append_time

    def _undo(self, segment: Segment, error: OSError) -> StorageError:
        self._tail_dirty = True
        self._forget_epochs_of_unwritten()
        try:
            self._clean_tail()
        except StorageError as second:
            logger.warning("%s; the next append truncates what the failed one left", second)
        return storage_error(error, "append to", segment.file.path)

    def _forget_epochs_of_unwritten(self) -> None:
        """Remove leader epochs that begin within batches whose append has failed."""
        if self.epochs.truncate_from_end(self.log_end_offset + 1):
            self._folder.epochs_changed()

    def _commit(
        self,
        segment: Segment,
        header: BatchHeader,
        first_offset: int,
        append_time: int,
        now_ms: int,
        marker: EndTransactionMarker | None = None,
    ) -> AppendResult:
        """Take the batch that was written at the end of `segment` into the state of the log."""
        last_offset = first_offset + header.last_offset_delta
        max_timestamp = append_time if append_time >= 0 else header.max_timestamp
        position = segment.size_bytes
        segment.note(header.batch_bytes, last_offset, max_timestamp)
        if header.producer_id >= 0:
            if header.attributes & CONTROL:
                self._end_transaction(segment, header, marker, last_offset, now_ms)
            else:
                self.producers.update(header, last_offset, max_timestamp, now_ms)
        self._segments.note(last_offset, position)
        self.log_end_offset = last_offset + 1
        return _new_tuple(AppendResult, (first_offset, last_offset, append_time, False))

    def _end_transaction(
        self,
        segment: Segment,
        header: BatchHeader,
        marker: EndTransactionMarker | None,
        last_offset: int,
        now_ms: int,
    ) -> None:
        completed = self.producers.end_transaction(header, marker, last_offset, now_ms)
        if completed is not None and completed.is_aborted:
            segment.note_aborted(AbortedTransaction(*completed[:4]))

    def roll(self, now_ms: int) -> bool:
        if not super().roll(now_ms):
            return False
        self._folder.write_snapshot(self.log_end_offset, self.producers)
        return True

    def forget_damage(self) -> None:
        """Remove the marker of damage. Call it once the controller has recorded the loss.

        Raises StorageError if the directory fails.
        """
        self._folder.remove(DAMAGED)
        self.was_damaged = False

    def assign_epoch(self, leader_epoch: int, start_offset: int | None = None) -> None:
        """Record that `leader_epoch` begins at `start_offset`, by default the log end offset.

        In memory: `write_epochs` writes it, and every append and flush before it does its work.
        """
        start = self.log_end_offset if start_offset is None else start_offset
        if self.epochs.assign(leader_epoch, start):
            self._folder.epochs_changed()

    def drop_unused_epochs(self) -> None:
        """Remove leader epochs without records, in which this leader appended nothing.

        In memory, as `assign_epoch` does.
        """
        if self.epochs.truncate_from_end(self.log_end_offset):
            self._folder.epochs_changed()

    def write_epochs(self) -> None:
        """Write the checkpoint of leader epochs, if it is out of date, without a sync.

        A log without a folder keeps the epochs in memory until the folder is created. Recovery
        finds the epochs of records after the recovery point without the file. Raises StorageError;
        the next append or flush tries again.
        """
        self._folder.write_epochs()

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        *,
        min_one: bool = False,
        is_whole: bool = False,
    ) -> LogSlice:
        """Return batches of one segment from the batch with `offset` on, up to `max_bytes`.

        No batch with records at or after `end_offset` (a high watermark) is included. `max_bytes`
        may truncate the last batch, as in Kafka; clients expect that. With `is_whole` the result
        ends with the last batch in the offset index that fits, as a follower would fetch a
        truncated one again. The first batch is never truncated: if it is larger than `max_bytes`,
        it is returned whole with `min_one`, otherwise the result is empty. The result is empty,
        too, if `offset` is at or beyond `end_offset`.
        Raises KafkaError (OFFSET_OUT_OF_RANGE) if `offset` is outside of the log.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic}-{self.partition} is out of range: the log has "
                f"offsets {self.log_start_offset} to {self.log_end_offset}",
            )
        # Earlier partitions of a request may have used up its bytes: then nothing is looked up.
        fits_none = max_bytes < HEADER_BYTES and not min_one
        if fits_none or offset >= end_offset or offset == self.log_end_offset:
            return LogSlice(self._segments.active.file, 0, 0, offset)
        segment, start = self._segments.find(offset)
        if end_offset >= self.log_end_offset:
            end = segment.size_bytes
        else:
            end = self._segments.end_in(segment, end_offset)
        size = end - start
        if size > max_bytes:
            first = segment.header_at(start)
            if first.batch_bytes <= max_bytes:
                size = max_bytes
                before = segment.batch_before(start + max_bytes) if is_whole else None
                if before is not None and before[0] > start:
                    size = before[0] - start
                    segment.note_read_end(*before)
            else:
                size = min(size, first.batch_bytes) if min_one else 0
        elif end_offset <= self.log_end_offset:
            self._segments.read_upto(segment, end_offset, end)
        return LogSlice(segment.file, start, max(size, 0), offset)

    def read_hot(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        *,
        min_one: bool = False,
        is_whole: bool = False,
    ) -> LogSlice:
        """Read as `read` does. Raises ColdError if an index lookup would wait for the disk."""
        files = self._files
        files.refuses_cold = True
        try:
            return self.read(offset, max_bytes, end_offset, min_one=min_one, is_whole=is_whole)
        finally:
            files.refuses_cold = False

    def aborted_in_hot(
        self, piece: LogSlice, end_offset: int, most: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Do what `aborted_in` does. Raises ColdError if it would wait for the disk."""
        files = self._files
        files.refuses_cold = True
        try:
            return self.aborted_in(piece, end_offset, most)
        finally:
            files.refuses_cold = False

    def rest_hot(self, offset: int) -> tuple[int, BatchHeader | None]:
        """Return the size of the batches from the one with `offset` to the log end, and its header.

        The header is None beyond the last batch. Reads no records. Raises ColdError if a lookup
        would wait for the disk, StorageError if the directory fails.
        """
        files = self._files
        files.refuses_cold = True
        try:
            segment, position = self._segments.find(max(offset, self.log_start_offset))
            header = next(segment.walk(position), None)
        finally:
            files.refuses_cold = False
        later = self._segments.since(segment.base_offset)
        return sum(each.size_bytes for each in later) - position, None if not header else header[1]

    def candidate_since(
        self, timestamp: int, start_offset: int, end_offset: int
    ) -> Candidate | None:
        """Return the first batch in [start_offset, end_offset) that may have a record with
        `timestamp` or a later one.
        """
        return next_candidate(
            list(self._segments), timestamp, max(start_offset, self.log_start_offset), end_offset
        )

    def max_timestamp_candidates(self) -> list[Candidate]:
        """Return at most two batches, one of which has the record with the largest timestamp."""
        return max_timestamp_candidates(list(self._segments), self.log_start_offset)

    # Transactions

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset that read_committed may not read; None if there is none.

        That is the first offset of the earliest transaction that is open, or whose marker is at or
        above `high_watermark` (KAFKA-5121), but at least the log start offset.
        """
        transactions = self.producers.transactions
        if transactions is None:
            return None
        first = transactions.first_unstable_offset(high_watermark)
        return None if first is None else max(first, self.log_start_offset)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap [start, end), by their markers' offsets.

        Raises StorageError if the directory fails, ColdError as `read` does within `read_hot`.
        """
        found: list[AbortedTransaction] = []
        for segment in self._segments.since(start):
            aborted = segment.aborted
            if aborted is None:
                continue
            try:
                with storage_errors("read", aborted.path):
                    if aborted.collect(start, end, found):
                        break
            except EOFError as error:
                raise StorageError(str(error)) from None
        return found

    def has_aborted_since(self, offset: int) -> bool:
        """Return whether `aborted_in` may find a transaction for a read at `offset`: fast."""
        segments = self._segments
        if offset >= segments.active.base_offset:
            return segments.active.aborted is not None
        return any(segment.aborted is not None for segment in segments.since(offset))

    def aborted_in(
        self, piece: LogSlice, end_offset: int, most: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Return the aborted transactions that may have records in `piece`, and its end offset.

        Each transaction is its first offset and its producer id.
        `piece` was read up to `end_offset`. If there are more than about `most`, the result is
        complete only up to the returned end offset, which is then smaller than `end_offset`: an
        end of a batch in `piece`. As in Kafka, the offset index gives the end of a truncated read.
        Raises StorageError and ColdError as `aborted_transactions` does.
        """
        start, end = piece.first_offset, end_offset
        segments = self._segments.since(start)
        for number, segment in enumerate(segments):
            if piece.is_in(segment.file):
                behind = segment.offset_behind(piece.position + piece.size_bytes)
                if behind is None and number + 1 < len(segments):
                    behind = segments[number + 1].base_offset
                if behind is not None:
                    end = min(end, behind)
                break
        found: list[tuple[int, int]] = []  # first offset, producer id
        for segment in segments:
            aborted = segment.aborted
            if aborted is None:
                continue
            try:
                with storage_errors("read", aborted.path):
                    for _, producer_id, first, _, stable in aborted.search(start, end):
                        if first < end:
                            found.append((first, producer_id))
                        if stable >= end:
                            return _shortened(found, start, end_offset, most)
                        # No later entry has records before `stable`.
                        if len(found) >= most and stable > start:
                            found = [each for each in found if each[0] < stable]
                            return _shortened(found, start, stable, most)
            except EOFError as error:
                raise StorageError(str(error)) from None
        return _shortened(found, start, end_offset, most)

    def aborted_transactions_hot(self, start: int, end: int) -> list[AbortedTransaction]:
        """Do what `aborted_transactions` does. Raises ColdError if it would wait for the disk."""
        files = self._files
        files.refuses_cold = True
        try:
            return self.aborted_transactions(start, end)
        finally:
            files.refuses_cold = False

    # Truncation

    def truncate_to(self, offset: int) -> bool:
        """Truncate the log at `offset`. Return whether it had records at or after `offset`.

        `log_end_offset` becomes `offset`, or less if a batch or a gap contains `offset`. The
        offsets in the checkpoint files must be below that before the call, and stay there until
        the call returns (`LogDirs.cutting`). `flush` before the next append: otherwise a loss of
        power may leave old records followed by new ones in a log that looks valid. Slow if
        producer state has to be rebuilt from many batches. Raises StorageError if the directory
        fails.
        """
        assert not self._writing
        if offset >= self.log_end_offset:
            return False
        kept = self.offsets_after_truncation(offset)
        if kept.recovery_point < self.log_start_offset:
            # No record at or after the log start offset is left; earlier ones were deleted before.
            self.truncate_fully_and_start_at(kept.log_start_offset)
            return True
        self._distrust_from(kept.recovery_point)
        self._truncations += 1
        with self._failing("truncate"):
            self._end_at(self._cut(offset))
            self._reload_producers()
        return True

    def first_cut_at(self, offset: int) -> int:
        """Return the first offset that `truncate_to(offset)` removes.

        That is `offset`, or less: a batch that contains `offset` is removed whole.
        Raises StorageError if the directory fails.
        """
        if offset >= self.log_end_offset:
            return offset
        if offset < self._segments.first_offset:
            return min(offset, self.log_start_offset)
        return self._first_cut_at(offset)

    def offsets_after_truncation(self, offset: int) -> LogOffsets:
        """Return the largest offsets that checkpoints may have for a truncation at `offset`.

        Raises StorageError if the directory fails.
        """
        if offset >= self.log_end_offset:
            return LogOffsets(self.recovery_point, self.log_start_offset)
        if offset >= self._segments.first_offset:
            end = self._end_of_cut(offset)
            if end >= self.log_start_offset:
                return LogOffsets(end, self.log_start_offset)
        return self.offsets_after_full_truncation(min(offset, self.log_start_offset))

    def offsets_after_full_truncation(self, offset: int) -> LogOffsets:
        """Return the largest offsets that checkpoints may have for an empty log at `offset`.

        The recovery point is 0: a loss of power may restore any removed segment, and remove all
        new ones.
        """
        return LogOffsets(0, min(offset, self.log_start_offset))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records; the log starts and ends at `offset`. Raises StorageError."""
        assert not self._writing
        assert self.noted_log_start_offset <= offset
        self._distrust_from(0)
        self._truncations += 1
        with self._failing("truncate"):
            self._cut_all(offset)
            self.least_cut = 0
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
        with suppress(DiskFullError):  # no append until they are written
            self._folder.write_epochs()
        self._folder.drop_snapshots_behind(offset)

    def _reload_producers(self) -> None:
        """Rebuild the producer state from the newest snapshot and the batches after it."""
        now_ms = max((e.last_seen_ms for e in self.producers.entries.values()), default=0)
        if not self.producers.entries:
            return
        newest = self._folder.newest_snapshot()
        table, start = newest or (ProducerStateTable(), self.log_start_offset)
        for segment in self._segments.since(start):
            file = segment.file.get()
            for position, header in walk_headers(file, 0, segment.size_bytes):
                if header.producer_id < 0 or header.base_offset < start:
                    continue
                if header.is_control:
                    marker = read_marker(file, position, header)
                    table.end_transaction(header, marker, header.last_offset, now_ms)
                else:
                    table.update(header, header.last_offset, header.max_timestamp, now_ms)
        self.producers = table

    # Deletion of old segments

    def advance_log_start(self, offset: int) -> bool:
        """Advance the log start offset to `offset`. Return False if it was not below `offset`.

        The new value survives a restart from the next `LogDir.checkpoint` on. The caller keeps
        `offset` at or below the high watermark. Raises KafkaError (OFFSET_OUT_OF_RANGE) if `offset`
        is negative or beyond the log end offset.
        """
        if offset > self.log_end_offset or offset < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} cannot be the log start offset of {self.topic}-{self.partition}: "
                f"the log end offset is {self.log_end_offset}",
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        if self.epochs.truncate_from_start(offset):
            self._folder.epochs_changed()
        return True

    async def delete_old_segments(self, disk: Disk) -> int:
        """Rename segments that end before `log_start_offset` to `.deleted`. Return their number.

        The number includes those of earlier calls that failed or were cancelled. `remove_deleted`
        removes the renamed files. The active segment is never deleted. The names of the remaining
        segments are synced first: a loss of power that removed the entry of a new segment but kept
        the deletions would leave a log that ends earlier, and its offsets would be assigned twice.

        A loss of power may undo any of several renames. A gap between the segments would look like
        one of compaction, or after the recovery point like lost records. So each rename is synced
        before the next, also those of concurrent calls. Raises StorageError if the directory fails.
        """
        while self._deletion is not None:
            await self._deletion.wait()
        deletion = self._deletion = trio.Event()
        try:
            while self._has_old_segment() and await self._sync_names(disk, self.folder):
                # Meanwhile the log may have been truncated.
                if self._has_old_segment():
                    self._uncounted += 1
                    self._retire_first()
                    self._folder.drop_snapshots_before(self._segments.first_offset)
        finally:
            self._deletion = None
            deletion.set()
        if self._uncounted:
            with suppress(DiskFullError):  # recovery ignores epochs before the log start offset
                self._folder.write_epochs()
        count, self._uncounted = self._uncounted, 0
        return count

    def _has_old_segment(self) -> bool:
        return self._segments.base_of(self.log_start_offset) > self._segments.first_offset

    def expire_producers(self, now_ms: int) -> int:
        """Remove producers that were idle for producer.id.expiration.ms. Return their number."""
        return self.producers.expire(now_ms, self._config.producer_id_expiration_ms)

    # Moves between log directories

    def make_folder(self) -> None:
        """Create the folder of a new log before its first append. Raises StorageError."""
        self._folder.make(self.topic_id)

    def keep_producers(self, producers: ProducerStateTable) -> None:
        """Take producer state from before the first record, also for later recoveries.

        Raises StorageError.
        """
        self.producers = producers
        if producers.entries:
            self._folder.write_snapshot(self.log_end_offset, producers)

    def write_small_file(self, name: str, data: bytes) -> None:
        """Write a small file in the folder; the next flush syncs it. Raises StorageError."""
        self._folder.write(name, data)

    def take_over(self, log: "PartitionLog") -> None:
        """Take the epochs and the producer state of `log`, of which this log is a full copy.

        The copied records do not show epochs without records, nor producers whose records were
        deleted. Raises StorageError.
        """
        if self.epochs.entries != log.epochs.entries:
            self.epochs.truncate_from_end(0)
            for epoch, start in log.epochs.entries:
                self.epochs.assign(epoch, start)
            self._folder.epochs_changed()
            self._folder.write_epochs()
        self.producers = log.producers
        self.configure(log.config)

    # Closing

    def prepare_close(self) -> Unsynced:
        """Write all state to files and close them. Return the names that are yet to be synced.

        The log must not be in use; then this may run in a worker thread. Call `closed_clean` once
        the sync has succeeded. Raises StorageError if the directory fails.
        """
        if self._failure is not None:
            raise StorageError(self._failure)
        with self._failing("close"):
            self._complete_active()
            self._remove_wrong_indexes()
            if self._needs_snapshot():
                self._folder.write_snapshot(self.log_end_offset, self.producers)
            self._folder.write_epochs()
        unsynced = self._take_all_unsynced()
        self.close()
        return unsynced

    def _needs_snapshot(self) -> bool:
        """Return whether to write a snapshot: after a clean stop, none means no producer state."""
        offsets = self._folder.snapshot_offsets
        if not offsets and not self.producers.entries:
            return False
        return offsets[-1:] != [self.log_end_offset] and self.log_end_offset > 0

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        super().check_invariants()
        assert 0 <= self.log_start_offset <= self.log_end_offset
        assert self.first_segment_offset <= self.log_start_offset
        self.epochs.check_invariants()
        entries = self.epochs.entries
        # Epochs are assigned before the write of the batches that begin them.
        assert not entries or entries[-1][1] <= self.log_end_offset or self.is_writing, entries
        self.producers.check_invariants(self.log_end_offset)


def _shortened(
    found: list[tuple[int, int]], start: int, end: int, most: int
) -> tuple[list[tuple[int, int]], int]:
    """Return at most `most` transactions and the end up to which they are complete.

    All of them if more than `most` begin at or before `start`.
    """
    if len(found) <= most:
        return found, end
    found.sort()
    behind = found[most][0]
    return (found[:most], behind) if behind > start else (found, end)
