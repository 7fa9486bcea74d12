"""Sparse indexes of a segment: offset to position, and timestamp to offset.

Both files have entries of fixed size in ascending order, big-endian, in Kafka's format. Offsets are
relative to the segment's base offset.

    .index      offset int32, position int32      last offset of the batch at that position
    .timeindex  timestamp int64, offset int32     no earlier batch has a later timestamp

An entry is added every `index.interval.bytes` of log, so a lookup finds a position at most that far
(and one batch) before its target. New entries wait in a small buffer; the others are on disk, and
lookups search them with short reads: memory does not grow with the segment. A crash may lose the
buffer, because recovery rebuilds the indexes of unclean segments.

The file of an index that was found wrong is removed, and the next start rebuilds the index: an
index file is expected to cover its whole segment. Until then new entries stay in memory.
"""

import struct
from typing import ClassVar, Final

from metaquorum.dataplane.log.segments.files import LogFile
from metaquorum.runtime.interfaces import Disk

# Entries in memory before they are written to the file: 1 to 1.5 KiB.
MAX_BUFFERED_ENTRIES: Final = 128
# A binary search ends with one read of at most this many entries.
_BLOCK_ENTRIES: Final = 128
# Entries after the last one found that are searched first: of 2 MiB of log by default.
_NEAR_ENTRIES: Final = 512


class SparseIndex:
    """Pairs (key, value) of integers with ascending keys; lookups are by key."""

    __slots__ = (
        "_buffer",
        "_disk_entries",
        "_last",
        "_last_found",
        "file",
        "has_wrong_file",
        "is_full",
        "is_kept",
        "max_entries",
    )

    FORMAT: ClassVar[struct.Struct]

    def __init__(self, file: LogFile, max_bytes: int, size_bytes: int) -> None:
        """Use the entries in `size_bytes`, the file's size; ignore a partial entry at the end."""
        self.file = file
        self.is_kept = True  # entries are kept in the file
        self.has_wrong_file = False  # found wrong, and not removed yet
        self.max_entries = max_bytes // self.FORMAT.size
        self._disk_entries = size_bytes // self.FORMAT.size
        self._buffer = bytearray()
        self._last: tuple[int, int] | None = None
        self._last_found = 0  # number of entries up to the last value that was looked up
        self.is_full = self._disk_entries >= self.max_entries

    def __len__(self) -> int:
        return self._disk_entries + len(self._buffer) // self.FORMAT.size

    @property
    def path(self) -> str:
        return self.file.path

    def entry(self, number: int) -> tuple[int, int]:
        size = self.FORMAT.size
        if number >= self._disk_entries:
            at = (number - self._disk_entries) * size
            return self._unpack(self._buffer, at)
        return self._unpack(self._read(number, 1), 0)

    def _unpack(self, data: bytes | bytearray, at: int) -> tuple[int, int]:
        key, value = self.FORMAT.unpack_from(data, at)
        return key, value

    def _read(self, number: int, count: int) -> bytes:
        size = self.FORMAT.size
        data = self.file.get().read(count * size, number * size)
        if len(data) != count * size:
            raise EOFError(f"{self.file.path} is shorter than when it was opened")
        return data

    def last(self) -> tuple[int, int] | None:
        if self._last is None and len(self):
            self._last = self.entry(len(self) - 1)
        return self._last

    def append(self, key: int, value: int) -> None:
        """Add an entry with a larger key than all others; write a full buffer. Raises OSError."""
        assert not self.is_full
        buffer, entry = self._buffer, self.FORMAT
        if len(buffer) >= MAX_BUFFERED_ENTRIES * entry.size:
            self.write_buffer()
        buffer += entry.pack(key, value)
        self._last = (key, value)
        self.is_full = self._disk_entries + len(buffer) // entry.size >= self.max_entries

    def write_buffer(self) -> None:
        """Write all buffered entries to the file, unless the index was found wrong."""
        if self._buffer and self.is_kept:
            self.file.get().write(bytes(self._buffer), self._disk_entries * self.FORMAT.size)
            self._disk_entries = len(self)
            self._buffer.clear()

    def forget(self) -> None:
        """Drop all entries and remove the file: opening the log again rebuilds the index.

        A sync or read of the file in progress continues on the removed file. Raises OSError.
        """
        self.is_kept = False
        self._buffer.clear()
        self._disk_entries = self._last_found = 0
        self._last = None
        self.is_full = not self.max_entries
        self.has_wrong_file = True
        self.remove_wrong_file()

    def remove_wrong_file(self) -> None:
        """Remove the file if the index was found wrong. Raises OSError."""
        if self.has_wrong_file:
            self.file.remove()
            self.has_wrong_file = False

    def count_upto(self, key: int, field: int = 0) -> int:
        """Return the number of entries with a key ≤ `key`; with field 1, with such a value.

        Values must ascend for that.
        """
        count = len(self)
        low, high = 0, count
        if self._buffer:
            if self._unpack(self._buffer, 0)[field] <= key:
                return self._disk_entries + self._bisect(self._buffer, key, field)
            high = self._disk_entries
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if self.entry(middle)[field] <= key:
                low = middle + 1
            else:
                high = middle
        return low + self._bisect(self._read(low, high - low), key, field) if high > low else low

    def _bisect(self, data: bytes | bytearray, key: int, field: int) -> int:
        size = self.FORMAT.size
        low, high = 0, len(data) // size
        while low < high:
            middle = (low + high) // 2
            if self._unpack(data, middle * size)[field] <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def floor(self, key: int) -> tuple[int, int] | None:
        """Return the last entry with a key ≤ `key`, or None."""
        count = self.count_upto(key)
        return self.entry(count - 1) if count else None

    def last_upto(self, value: int) -> tuple[int, int] | None:
        """Return the last entry with a value ≤ `value`, or None; the values must ascend.

        A larger value than that of the lookup before is found by one read, if few entries are
        between them: replicas that catch up look up ascending positions.
        """
        if (found := self._next_upto(value)) is not None:
            return found
        count = self._last_found = self.count_upto(value, 1)
        return self.entry(count - 1) if count else None

    def _next_upto(self, value: int) -> tuple[int, int] | None:
        """Return the last entry with a value ≤ `value` if it is near the last one found."""
        first = self._last_found - 1
        entries = min(_NEAR_ENTRIES, self._disk_entries - first)
        if first < 0 or entries < 2:
            return None
        data = self._read(first, entries)
        count = self._bisect(data, value, 1)
        if not 0 < count < entries:
            return None
        self._last_found = first + count
        return self._unpack(data, (count - 1) * self.FORMAT.size)

    def first_from(self, value: int) -> tuple[int, int] | None:
        """Return the first entry with a value ≥ `value`, or None; the values must ascend."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] < value:
                low = middle + 1
            else:
                high = middle
        return self.entry(low) if low < len(self) else None

    def truncate_entries(self, count: int) -> None:
        """Keep only the first `count` entries."""
        if count >= len(self):
            return
        size = self.FORMAT.size
        if count >= self._disk_entries:
            del self._buffer[(count - self._disk_entries) * size :]
        else:
            self._buffer.clear()
            self.file.get().truncate(count * size)
            self._disk_entries = count
        self._last = None
        self._last_found = min(self._last_found, count)
        self.is_full = len(self) >= self.max_entries


class OffsetIndex(SparseIndex):
    """Key: relative last offset of a batch; value: position of that batch in the segment."""

    __slots__ = ()
    FORMAT = struct.Struct(">ii")

    def truncate_to(self, relative_offset: int) -> None:
        """Remove entries of batches that end at or after `relative_offset`."""
        self.truncate_entries(self.count_upto(relative_offset - 1))


class TimeIndex(SparseIndex):
    """Key: the largest timestamp so far; value: relative last offset of the batch that has it."""

    __slots__ = ()
    FORMAT = struct.Struct(">qi")

    def append_later(self, timestamp: int, relative_offset: int) -> None:
        """Append an entry if `timestamp` is larger than all others and the index is not full."""
        last = self.last()
        if timestamp >= 0 and (last is None or timestamp > last[0]) and not self.is_full:
            self.append(timestamp, relative_offset)

    def truncate_to(self, relative_offset: int) -> None:
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] < relative_offset:
                low = middle + 1
            else:
                high = middle
        self.truncate_entries(low)


def write_index(disk: Disk, path: str, entries: bytes) -> None:
    """Replace the content of the index file by `entries` and sync it. Raises OSError. Blocking."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.write(entries, 0)
        file.sync()
    finally:
        file.close()
