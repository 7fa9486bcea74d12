"""Sparse indexes of a segment: from an offset to a position, from a timestamp to an offset.

Both are files of fixed entries in ascending order, big-endian, as Kafka's. Offsets are relative to
the segment's base offset.

    .index      offset int32, position int32      the batch at that position ends with that offset
    .timeindex  timestamp int64, offset int32     no earlier batch has a later timestamp

An entry is made every `index.interval.bytes` of log, so a lookup finds a place at most that far
(and one batch) before what is sought. New entries wait in a small buffer, the rest is on disk and
searched there with short reads: memory is bounded however long the segment. Losing the buffer in a
crash costs nothing, as the index of an unclean segment is rebuilt.

An index that was found wrong has no file any more, until the next start makes it anew: one that is
there is believed to cover its whole segment. Entries that are made meanwhile stay in memory.
"""

import struct
from typing import ClassVar, Final

from dataplane.log.segments.files import LogFile
from metaquorum.runtime.interfaces import Disk

# Entries held back from the disk: 1 to 1.5 KiB.
MAX_BUFFERED_ENTRIES: Final = 128
# The last steps of a search are made in one block read.
_BLOCK_ENTRIES: Final = 128


class SparseIndex:
    """Ascending pairs (key, value) of integers; the key alone is searched."""

    __slots__ = ("_buffer", "_disk_entries", "_last", "file", "is_full", "is_kept", "max_entries")

    FORMAT: ClassVar[struct.Struct]

    def __init__(self, file: LogFile, max_bytes: int, size_bytes: int) -> None:
        """`size_bytes` is the size of the file; a partial entry at its end is not looked at."""
        self.file = file
        self.is_kept = True  # in its file
        self.max_entries = max_bytes // self.FORMAT.size
        self._disk_entries = size_bytes // self.FORMAT.size
        self._buffer = bytearray()
        self._last: tuple[int, int] | None = None
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
            raise EOFError(f"{self.file.path} is shorter than it was")
        return data

    def last(self) -> tuple[int, int] | None:
        if self._last is None and len(self):
            self._last = self.entry(len(self) - 1)
        return self._last

    def append(self, key: int, value: int) -> None:
        assert not self.is_full
        buffer, entry = self._buffer, self.FORMAT
        if len(buffer) >= MAX_BUFFERED_ENTRIES * entry.size:
            self.write_buffer()
        buffer += entry.pack(key, value)
        self._last = (key, value)
        self.is_full = self._disk_entries + len(buffer) // entry.size >= self.max_entries

    def write_buffer(self) -> None:
        """Every entry stands in the file, if it has one."""
        if self._buffer and self.is_kept:
            self.file.get().write(bytes(self._buffer), self._disk_entries * self.FORMAT.size)
            self._disk_entries = len(self)
            self._buffer.clear()

    def forget(self) -> None:
        """No entry is left, and no file: it is rebuilt when the log is next opened. OSError.

        Who syncs the file, or reads it, goes on doing so: nothing of that is seen by a start.
        """
        self.is_kept = False
        self._buffer.clear()
        self._disk_entries = 0
        self._last = None
        self.is_full = not self.max_entries
        self.file.remove()

    def count_upto(self, key: int) -> int:
        """How many entries have a key ≤ `key`."""
        count = len(self)
        low, high = 0, count
        if self._buffer:
            if self._unpack(self._buffer, 0)[0] <= key:
                return self._disk_entries + self._bisect(self._buffer, key)
            high = self._disk_entries
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if self.entry(middle)[0] <= key:
                low = middle + 1
            else:
                high = middle
        return low + self._bisect(self._read(low, high - low), key) if high > low else low

    def _bisect(self, data: bytes | bytearray, key: int) -> int:
        size = self.FORMAT.size
        low, high = 0, len(data) // size
        while low < high:
            middle = (low + high) // 2
            if self._unpack(data, middle * size)[0] <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry with a key ≤ `key`."""
        count = self.count_upto(key)
        return self.entry(count - 1) if count else None

    def truncate_entries(self, count: int) -> None:
        """Only the first `count` entries are left."""
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
        self.is_full = len(self) >= self.max_entries


class OffsetIndex(SparseIndex):
    """Key: relative last offset of a batch; value: where that batch starts."""

    __slots__ = ()
    FORMAT = struct.Struct(">ii")

    def truncate_to(self, relative_offset: int) -> None:
        """Nothing at or after that offset is indexed."""
        self.truncate_entries(self.count_upto(relative_offset - 1))


class TimeIndex(SparseIndex):
    """Key: the largest timestamp so far; value: relative last offset of the batch that has it."""

    __slots__ = ()
    FORMAT = struct.Struct(">qi")

    def append_later(self, timestamp: int, relative_offset: int) -> None:
        """As `append` if the timestamp is above all before it; a no-op otherwise."""
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
    """The file has just these entries, and survives a loss of power. OSError."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.write(entries, 0)
        file.sync()
    finally:
        file.close()
