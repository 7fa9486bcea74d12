"""One segment: a file of record batches, with an offset index and a time index.

The base offset names the files of a segment. Batches follow each other without gaps in the file,
with ascending offsets. Bytes from `size_bytes` on are not part of the segment.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from metaquorum.dataplane.log.segments.aborted import AbortedIndex, AbortedTransaction
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.files import LogFile, OpenFiles, storage_errors
from metaquorum.dataplane.log.segments.index import OffsetIndex, TimeIndex
from metaquorum.dataplane.log.segments.names import (
    ABORTED_INDEX,
    DELETED,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    file_name,
)
from metaquorum.runtime.interfaces import File, StorageError
from metaquorum.wire.primitives.errors import KafkaError
from metaquorum.wire.records.records import HEADER_BYTES, BatchHeader, parse_header

logger = logging.getLogger(__name__)

MAX_RELATIVE_OFFSET: Final = 2**31 - 1
NO_TIMESTAMP: Final = -1
UNKNOWN_TIMESTAMP: Final = -2
# Bytes of the file that one step of a walk over batch headers reads.
WALK_BYTES: Final = 8 << 10
# Entries of the offset index before an entry of the time index; their batches are compared with it:
# 256 KiB of log by default, at most some 3 ms.
_CHECKED_ENTRIES: Final = 64


class SegmentState(NamedTuple):
    """Sizes and timestamps of a segment when its log is opened."""

    base_offset: int
    size_bytes: int = 0
    index_bytes: int = 0
    time_index_bytes: int = 0
    first_timestamp: int = UNKNOWN_TIMESTAMP
    max_timestamp: int = UNKNOWN_TIMESTAMP
    max_timestamp_offset: int = -1
    aborted_bytes: int = 0  # size of the `.txnindex`; 0 without a file


class Segment:
    """One segment of a log; see the top of this file."""

    __slots__ = (
        "_aborted",
        "_aborted_bytes",
        "_config",
        "_ending",
        "_files",
        "_index",
        "_index_bytes",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_read_end",
        "_read_end_header",
        "_read_end_last",
        "_time_index_bytes",
        "_times",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "file",
        "first_timestamp",
        "indexes_full",
        "size_bytes",
    )

    def __init__(
        self,
        files: OpenFiles,
        folder: str,
        config: LogConfig,
        state: SegmentState,
        now_ms: int,
        *,
        create: bool = False,
        ending: str = "",
    ) -> None:
        """Create no file yet. `ending` is appended to the names of the files until `settle`."""
        self._files = files
        self._ending = ending
        self._config = config
        self.base_offset = state.base_offset
        self.size_bytes = state.size_bytes
        self.created_ms = now_ms
        self.bytes_since_index = 0
        self.indexes_full = False
        self._read_end = self._read_end_last = -1
        self._read_end_header: BatchHeader | None = None
        name = file_name(state.base_offset, LOG) + ending
        self.file = LogFile(files, folder, name, create=create)
        self._aborted: AbortedIndex | None = None
        self._aborted_bytes = state.aborted_bytes
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._index_bytes = state.index_bytes
        self._time_index_bytes = state.time_index_bytes
        # Largest timestamp of the first batch, for time-based rolling; -1 without batches, and
        # UNKNOWN_TIMESTAMP until `find_first_timestamp` has read it.
        self.first_timestamp = state.first_timestamp
        self._max_timestamp = state.max_timestamp
        self._max_timestamp_offset = state.max_timestamp_offset

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            file = self._index_file(OFFSET_INDEX)
            self._index = OffsetIndex(file, self._config.segment_index_bytes, self._index_bytes)
        return self._index

    @property
    def times(self) -> TimeIndex:
        if self._times is None:
            file = self._index_file(TIME_INDEX)
            self._times = TimeIndex(file, self._config.segment_index_bytes, self._time_index_bytes)
        return self._times

    @property
    def aborted(self) -> AbortedIndex | None:
        """Index of aborted transactions; None if the segment never had one."""
        if self._aborted is None and self._aborted_bytes:
            self._aborted = AbortedIndex(self._index_file(ABORTED_INDEX), self._aborted_bytes)
        return self._aborted

    def _index_file(self, suffix: str) -> LogFile:
        name = file_name(self.base_offset, suffix) + self._ending
        return LogFile(self._files, self.file.folder, name, create=True)

    def configure(self, config: LogConfig) -> None:
        self._config = config

    # Appending

    def note(self, batch_bytes: int, last_offset: int, max_timestamp: int) -> None:
        """Count a batch that was written at the end of the segment so far."""
        if max_timestamp > self._max_timestamp:
            if self._max_timestamp == UNKNOWN_TIMESTAMP:
                self._load_max_timestamp()
            if max_timestamp > self._max_timestamp:
                self._max_timestamp = max_timestamp
                self._max_timestamp_offset = last_offset
        position = self.size_bytes
        if not position:
            self.first_timestamp = max_timestamp
        self.size_bytes = position + batch_bytes
        if self.bytes_since_index > self._config.index_interval_bytes:
            self._add_entries(position, last_offset)
            self.bytes_since_index = batch_bytes
        else:
            self.bytes_since_index += batch_bytes

    def _add_entries(self, position: int, last_offset: int) -> None:
        """Add index entries. An error is only logged: the batch is written, lookups get slower."""
        try:
            index, times = self.index, self.times
            if not index.is_full:
                index.append(last_offset - self.base_offset, position)
            times.append_later(self._max_timestamp, self._max_timestamp_offset - self.base_offset)
            self.indexes_full = index.is_full or times.is_full
        except OSError as error:
            logger.warning(
                "cannot write the indexes of %s: %s; lookups in this segment may be slower",
                self.file.path,
                error,
            )

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """Add an aborted transaction whose marker was written to this segment.

        An error is only logged: the entry stays in memory, and `seal` writes it to the file.
        """
        index = self.aborted
        if index is None:
            index = self._aborted = AbortedIndex(self._index_file(ABORTED_INDEX), 0)
        index.add(aborted)
        try:
            index.write_buffer()
        except OSError as error:
            logger.warning(
                "cannot write %s: %s; the next aborted transaction or the end of the segment tries "
                "again",
                index.path,
                error,
            )

    def seal(self) -> None:
        """Write all indexes to their files, with an entry for the largest timestamp.

        Removes the file of an index that was found wrong, if that failed before. Raises OSError.
        """
        if self.size_bytes == 0:
            return
        self.times.append_later(self.max_timestamp, self._max_timestamp_offset - self.base_offset)
        for index in (self.index, self.times):
            if index.is_kept:
                index.write_buffer()
                index.file.get()  # creates the file of an index without entries
            else:
                index.remove_wrong_file()
        if self._aborted is not None:
            self._aborted.write_buffer()

    # Timestamps

    def find_first_timestamp(self) -> int:
        """Read `first_timestamp` from the first batch if it is unknown. Raises StorageError."""
        if self.first_timestamp == UNKNOWN_TIMESTAMP:
            first = next(self.walk(0), None)
            self.first_timestamp = first[1].max_timestamp if first else NO_TIMESTAMP
        return self.first_timestamp

    @property
    def max_timestamp(self) -> int:
        if self._max_timestamp == UNKNOWN_TIMESTAMP:
            self._load_max_timestamp()
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        """Last offset of the first batch with the segment's largest timestamp."""
        if self._max_timestamp == UNKNOWN_TIMESTAMP:
            self._load_max_timestamp()
        return self._max_timestamp_offset

    def _load_max_timestamp(self) -> None:
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, -1
        entry = self._time_entry(len)
        if entry is not None:
            self._max_timestamp, self._max_timestamp_offset, _ = entry
            return
        for _, header in self.walk(0):
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp = header.max_timestamp
                self._max_timestamp_offset = header.last_offset

    def _time_entry(self, count: Callable[[TimeIndex], int]) -> tuple[int, int, int] | None:
        """Return timestamp, offset and position of the last of the first `count` entries, or None.

        The entry is checked against the batches: a time index that the disk has changed would hide
        records from lookups by timestamp, and make retention delete them too early. If it is
        wrong, both indexes are removed.
        """
        try:
            number = count(self.times) if self.size_bytes else 0
            if not number:
                self._retry_removal()
                return None
            timestamp, offset = self._time_entry_at(number - 1)
            before = self._checked_from(number, offset)
            place = self.locate(offset)
            if (
                place is not None
                and place[1].max_timestamp == timestamp
                and self._is_first_with(timestamp, place[0], before)
            ):
                return timestamp, place[1].last_offset, place[0]
            error: Exception = StorageError(
                f"the entry for timestamp {timestamp} at offset {offset} is wrong"
            )
        except (OSError, EOFError) as failure:
            error = failure
        logger.warning(
            "the time index of %s cannot be used: %s; the next start rebuilds the indexes of this "
            "segment",
            self.file.path,
            error,
        )
        self._distrust_indexes()
        return None

    def _time_entry_at(self, number: int) -> tuple[int, int]:
        timestamp, relative_offset = self.times.entry(number)
        return timestamp, self.base_offset + relative_offset

    def _checked_from(self, number: int, offset: int) -> int | None:
        """Return the offset from which the batches before time entry `number` are checked.

        It is that of the time entry before, or a nearer one: timestamps may not increase for the
        rest of the segment, and the check runs at start-up and in the slice of an append. None: the
        check begins at the start of the segment.
        """
        earlier = [self._time_entry_at(number - 2)[1]] if number > 1 else []
        indexed = self.index.count_upto(offset - self.base_offset) - _CHECKED_ENTRIES
        if indexed > 0:
            earlier.append(self.base_offset + self.index.entry(indexed - 1)[0])
        return max(earlier, default=None)

    def _is_first_with(self, timestamp: int, position: int, before: int | None) -> bool:
        """Return whether no batch between that of offset `before` and `position` has it.

        A changed offset may point to a later batch with the same timestamp.
        """
        begin = 0
        if before is not None:
            place = self.locate(before)
            if place is None or place[0] >= position:
                return False
            begin = place[0]
        for at, header in self.walk(begin):
            if at >= position:
                break
            if header.max_timestamp >= timestamp:
                return False
        return True

    # Finding

    def walk(
        self, position: int, step_bytes: int = WALK_BYTES
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the position and header of each batch from `position` on.

        Raises StorageError at the first position without a valid header.
        """
        if position >= self.size_bytes:
            return  # a log without any append has no file yet
        with storage_errors("read", self.file.path):
            yield from walk_headers(self.file.get(), position, self.size_bytes, step_bytes)

    def locate(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return position and header of the first batch that ends at or after `offset`, or None."""
        if self._read_end >= 0 and (found := self._at_read_end(offset)) is not None:
            return found
        try:
            entry = self.index.floor(offset - self.base_offset) if self.size_bytes else None
            if entry is not None:
                return self._locate_from(entry[1], offset, self.base_offset + entry[0])
        except (OSError, EOFError, StorageError) as error:
            logger.warning(
                "the offset index of %s cannot be used: %s; the next start rebuilds the indexes of "
                "this segment",
                self.file.path,
                error,
            )
            self._distrust_indexes()
        else:
            self._retry_removal()
        return self._locate_from(0, offset, None)

    def note_read_end(self, position: int, last_offset: int) -> None:
        """Cache where a read ended before a batch: `locate` finds the first offset of it there.

        Both are of an index entry. A replica that catches up reads on from there, and needs no
        search in the index.
        """
        self._read_end, self._read_end_last = position, last_offset
        self._read_end_header = None

    def _at_read_end(self, offset: int) -> tuple[int, BatchHeader] | None:
        with suppress(StorageError):  # damage, which a search from an index entry reports
            found = next(self.walk(self._read_end, HEADER_BYTES), None)
            # The disk may have changed the entry: then these may be bytes of a record.
            if (
                found is not None
                and found[1].base_offset == offset
                and found[1].last_offset == self._read_end_last
            ):
                self._read_end_header = found[1]
                return found
        return None

    def header_at(self, position: int) -> BatchHeader:
        """Return the header of the batch at `position`, before the end. Raises StorageError."""
        if position == self._read_end and self._read_end_header is not None:
            return self._read_end_header
        _, header = next(self.walk(position, HEADER_BYTES))
        return header

    def _locate_from(
        self, position: int, offset: int, first_last_offset: int | None
    ) -> tuple[int, BatchHeader] | None:
        if first_last_offset is not None and position >= self.size_bytes:
            raise StorageError(f"an entry points to position {position}, beyond the segment's end")
        for at, header in self.walk(position):
            if at == position and first_last_offset not in (None, header.last_offset):
                raise StorageError(f"the entry for position {position} is wrong")
            if header.last_offset >= offset:
                return at, header
        return None

    def offset_behind(self, position: int) -> int | None:
        """Return an offset after all batches that begin before `position`, from the offset index.

        None if the index has no entry for `position` or later, or cannot be read.
        """
        try:
            entry = self.index.first_from(position) if position < self.size_bytes else None
        except (OSError, EOFError):  # a lookup by offset finds the damage and reports it
            return None
        return None if entry is None else self.base_offset + entry[0]

    def batch_before(self, position: int) -> tuple[int, int] | None:
        """Return position and last offset of the last batch that begins at or before `position`.

        Of the batches in the offset index. None if it has no such batch, or cannot be read.
        """
        try:
            entry = self.index.last_upto(position)
        except (OSError, EOFError):  # a lookup by offset finds the damage and reports it
            return None
        return None if entry is None else (entry[1], self.base_offset + entry[0])

    def _distrust_indexes(self) -> None:
        for index in (self.index, self.times):
            try:
                index.forget()
            except OSError as error:
                logger.warning(
                    "cannot remove %s: %s; the next lookup in this segment tries again",
                    index.path,
                    error,
                )

    def _retry_removal(self) -> None:
        """Remove the files of indexes that were found wrong, if that failed before.

        Otherwise the next start would use them again.
        """
        with suppress(OSError):  # logged at the first attempt, and at the close
            self.remove_wrong_indexes()

    def remove_wrong_indexes(self) -> None:
        """Remove the files of indexes that were found wrong. Raises OSError."""
        for index in (self._index, self._times):
            if index is not None:
                index.remove_wrong_file()

    def locate_timestamp(self, timestamp: int) -> int:
        """Return a position before which all batches have smaller timestamps than `timestamp`."""
        entry = self._time_entry(lambda times: times.count_upto(timestamp))
        return 0 if entry is None else entry[2]

    def end_offset(self) -> int:
        """Return the offset after the last batch, or the base offset without batches."""
        last = self.index.last() if self.size_bytes else None
        end = self.base_offset
        for _, header in self.walk(last[1] if last else 0):
            end = header.next_offset
        return end

    # Truncation and removal

    def end_at(self, offset: int) -> int:
        """Return the end offset after `truncate_to(offset)`. Raises StorageError."""
        found = self.locate(offset)
        if found is None:
            return self.end_offset()
        position, header = found
        end, begin = self.base_offset, 0
        entry = self.index.floor(header.base_offset - 1 - self.base_offset)
        if entry is not None:
            indexed = self.locate(self.base_offset + entry[0])
            if indexed is not None and indexed[0] < position:
                begin = indexed[0]
        for at, before in self.walk(begin):
            if at >= position:
                break
            end = before.next_offset
        return end

    def truncate_to(self, offset: int) -> int:
        """Remove all batches that end at or after `offset`. Return the new end offset.

        That is `offset`, or less if a batch or a gap contains `offset`: recovery after a restart
        has to find the same end in the batches. Raises OSError.
        """
        found = self.locate(offset)
        if found is None:
            return self.end_offset()
        position, header = found
        self.note_read_end(-1, -1)  # may be within a batch that is appended later
        self.file.get().truncate(position)
        self.size_bytes = position
        self.index.truncate_to(header.base_offset - self.base_offset)
        self.times.truncate_to(header.base_offset - self.base_offset)
        if (aborted := self.aborted) is not None:
            aborted.truncate_to(header.base_offset)
        self.indexes_full = False
        self.bytes_since_index = 0
        if position == 0:
            self.first_timestamp = UNKNOWN_TIMESTAMP
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, -1
        last = self.times.last()
        begin = 0
        if last is not None:
            self._max_timestamp = last[0]
            self._max_timestamp_offset = self.base_offset + last[1]
            at = self.locate(self._max_timestamp_offset)
            begin = at[0] if at else 0
        for _, rest in self.walk(begin):
            if rest.max_timestamp > self._max_timestamp:
                self._max_timestamp = rest.max_timestamp
                self._max_timestamp_offset = rest.last_offset
        return self.end_offset()

    def all_files(self) -> tuple[LogFile, ...]:
        aborted = self.aborted
        rest = () if aborted is None else (aborted.file,)
        return self.file, self.index.file, self.times.file, *rest

    def files_to_sync(self) -> tuple[LogFile, ...]:
        """Return the log file, and the files of the indexes that are kept on disk."""
        kept = [index.file for index in (self.index, self.times) if index.is_kept]
        if (aborted := self.aborted) is not None:
            kept.append(aborted.file)
        return self.file, *kept

    def settle(self) -> None:
        """Rename the files to their names without `ending`. Raises OSError."""
        for file in self.all_files()[1:]:
            try:
                file.rename(file.name.removesuffix(self._ending))
            except FileNotFoundError:  # an index that was found wrong and removed
                pass
        self.file.rename(self.file.name.removesuffix(self._ending))
        self._ending = ""

    def retire(self, unique: str = "") -> None:
        """Rename the files to `.deleted`. Reads in progress continue. Raises OSError.

        `unique` precedes the suffix, for names that an earlier retired segment may have.
        """
        for file in self.all_files():
            try:
                file.retire(file.name + unique + DELETED)
            except FileNotFoundError:
                pass

    def remove(self) -> None:
        for file in self.all_files():
            file.remove()

    def close(self) -> None:
        self.file.close()
        for index in (self._index, self._times, self._aborted):
            if index is not None:
                index.file.close()

    def moved(self, folder: str) -> None:
        self.file.moved(folder)
        for index in (self._index, self._times, self._aborted):
            if index is not None:
                index.file.moved(folder)


def walk_headers(
    file: File, position: int, end: int, step_bytes: int = WALK_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch from `position` to `end`, without its records.

    Raises StorageError at a position without a valid header, if a batch ends beyond `end`, or if
    offsets do not ascend. Checksums are not checked.
    """
    data = b""
    start = position  # file position of `data`
    next_offset = 0
    while position < end:
        at = position - start
        if at + HEADER_BYTES > len(data):
            start, at = position, 0
            data = file.read(min(step_bytes, end - position), position)
        try:
            header = parse_header(data, at)
        except KafkaError as error:
            raise StorageError(
                f"{file.path} is damaged at position {position}: {error.message}"
            ) from None
        if header.batch_bytes > end - position:
            raise StorageError(
                f"{file.path} is damaged at position {position}: "
                f"the header announces a batch of {header.batch_bytes} bytes, but the segment has "
                f"only {end - position} more"
            )
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise StorageError(
                f"{file.path} is damaged at position {position}: "
                f"base offset {header.base_offset}, expected {next_offset} or more"
            )
        yield position, header
        position += header.batch_bytes
        next_offset = header.next_offset
