"""Aborted transactions of a segment, in Kafka's `.txnindex`, and the transactions still open.

    version int16 (0) · producer_id int64 · first_offset int64 · last_offset int64 ·
    last_stable_offset int64                                              34 bytes, big-endian

An entry is written with the marker that aborts the transaction, to the segment that has the marker.
`last_offset` is the marker's, and ascends. `last_stable_offset` is the first offset of the earliest
transaction that was open after this marker, or the offset after the marker: no transaction that
ends later has records before it, so that a search for a range of offsets stops at an entry whose
last stable offset is at or beyond the end of the range.

A segment without aborted transactions has no file. Recovery rebuilds the file of an unclean
segment from the batches. Source: Kafka's TransactionIndex and AbortedTxn.
"""

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from metaquorum.dataplane.log.segments.files import LogFile
from metaquorum.dataplane.log.segments.index import SparseIndex
from metaquorum.runtime.interfaces import Disk, File
from metaquorum.wire.records.records import ControlType, EndTransactionMarker

ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_BYTES: Final = ENTRY.size
VERSION: Final = 0
# Entries per read: 17 KiB.
_BLOCK_ENTRIES: Final = 512
_UNLIMITED_BYTES: Final = 1 << 62
_new_tuple: Final = tuple.__new__  # creates a NamedTuple without the call of its own __new__


class AbortedTransaction(NamedTuple):
    """Offsets of an aborted transaction: its first record, and the marker that ends it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        return ENTRY.pack(VERSION, *self)


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int  # offset of the marker
    last_stable_offset: int
    is_aborted: bool


class OpenTransactions:
    """Open transactions of a log by first offset, and those whose marker is not replicated yet.

    A transaction stays unstable until its marker is below the high watermark (KAFKA-5121): with the
    marker, a new leader could lose the outcome that consumers have seen.
    """

    __slots__ = ("_first", "_unreplicated", "open")

    def __init__(self, open_: Iterable[tuple[int, int]] = ()) -> None:
        """Begin with these open transactions: first offset and producer id of each."""
        self.open: dict[int, int] = dict(sorted(open_))  # ascending, as logs only grow
        self._first = next(iter(self.open), None)
        # Offsets of the marker and of the first record, both ascending. A transaction that a later
        # marker of one with a smaller first offset follows is not listed: it is stable before.
        self._unreplicated: deque[tuple[int, int]] = deque()

    def begin(self, first_offset: int, producer_id: int) -> None:
        """Add a transaction whose first offset is larger than that of all others."""
        self.open[first_offset] = producer_id
        if self._first is None:
            self._first = first_offset

    def end(
        self, first_offset: int, producer_id: int, last_offset: int, is_aborted: bool
    ) -> CompletedTransaction:
        """Remove the transaction, which the marker at `last_offset` ends."""
        self.open.pop(first_offset, None)
        if self._first == first_offset:
            self._first = next(iter(self.open), None)
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[-1][1] >= first_offset:
            unreplicated.pop()
        unreplicated.append((last_offset, first_offset))
        stable = last_offset + 1 if self._first is None else self._first
        completed = (producer_id, first_offset, last_offset, stable, is_aborted)
        return _new_tuple(CompletedTransaction, completed)

    @property
    def oldest_producer_id(self) -> int | None:
        """Producer of the open transaction with the lowest first offset; None if none is open."""
        return None if self._first is None else self.open[self._first]

    @property
    def unreplicated_count(self) -> int:
        """Number of ended transactions that still limit the first unstable offset."""
        return len(self._unreplicated)

    def are_held_at(self, offset: int) -> bool:
        """Return whether a transaction that is still open began at or before `offset`.

        No marker may be unreplicated: then an append leaves the first unstable offset as it was.
        """
        return self._first is not None and self._first <= offset and not self._unreplicated

    def forget_stable(self, high_watermark: int) -> None:
        """Forget the ended transactions whose markers are below the high watermark."""
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[0][0] < high_watermark:
            unreplicated.popleft()

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset that is not stable; None if there is none.

        The high watermark never decreases between two calls.
        """
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[0][0] < high_watermark:
            unreplicated.popleft()
        if not unreplicated:
            return self._first
        first = unreplicated[0][1]
        return first if self._first is None else min(first, self._first)

    def check_invariants(self, log_end_offset: int) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        firsts = list(self.open)
        assert firsts == sorted(firsts), firsts
        assert self._first == (firsts[0] if firsts else None), (self._first, firsts)
        assert len(set(self.open.values())) == len(firsts), self.open
        assert not firsts or 0 <= firsts[0] <= firsts[-1] < log_end_offset, firsts
        markers = [last for last, _ in self._unreplicated]
        assert markers == sorted(set(markers)), markers
        unstable = [first for _, first in self._unreplicated]
        assert unstable == sorted(set(unstable)), unstable
        assert all(first < last for last, first in self._unreplicated)
        assert not markers or markers[-1] < log_end_offset, markers


class TransactionTracker:
    """Open transactions at one point of a log, to find those that later markers abort."""

    __slots__ = ("_firsts", "_transactions")

    def __init__(self, open_: Iterable[tuple[int, int]]) -> None:
        """Begin with these open transactions: first offset and producer id of each."""
        self._transactions = OpenTransactions(open_)
        self._firsts = {id_: first for first, id_ in self._transactions.open.items()}

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note a transactional batch: the first one of its producer begins a transaction."""
        if producer_id not in self._firsts:
            self._firsts[producer_id] = first_offset
            self._transactions.begin(first_offset, producer_id)

    def end(
        self, producer_id: int, last_offset: int, marker: EndTransactionMarker | None
    ) -> CompletedTransaction | None:
        """Note a control batch, and return the transaction that it ends."""
        first_offset = self._firsts.pop(producer_id, None)
        if first_offset is None:
            return None
        aborts = marker is not None and marker.control_type is ControlType.ABORT
        completed = self._transactions.end(first_offset, producer_id, last_offset, aborts)
        self._transactions.first_unstable_offset(last_offset + 1)
        return completed


def read_entries(file: File, size_bytes: int) -> Iterator[AbortedTransaction]:
    """Yield the entries of a `.txnindex` of this size. Raises OSError."""
    for position in range(0, size_bytes, _BLOCK_ENTRIES * ENTRY_BYTES):
        size = min(_BLOCK_ENTRIES * ENTRY_BYTES, size_bytes - position)
        for fields in ENTRY.iter_unpack(file.read(size, position)):
            yield AbortedTransaction(*fields[1:])


class AbortedWriter:
    """Writer of a new `.txnindex`, in bounded memory. Blocking."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = None
        self._buffer = bytearray()
        self.size_bytes = 0

    def add(self, aborted: AbortedTransaction) -> None:
        self._buffer += aborted.encode()
        self.size_bytes += ENTRY_BYTES
        if len(self._buffer) >= _BLOCK_ENTRIES * ENTRY_BYTES:
            self._write()

    def _write(self) -> None:
        if self._file is None:
            self._file = self._disk.open(self._path, create=True)
            self._file.truncate(0)
        self._file.write(bytes(self._buffer), self.size_bytes - len(self._buffer))
        self._buffer.clear()

    def finish(self) -> None:
        """Write and sync all entries; without any, remove the file."""
        if self.size_bytes:
            self._write()
            assert self._file is not None
            self._file.sync()
        elif self._disk.exists(self._path):
            self._disk.remove(self._path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class AbortedIndex(SparseIndex):
    """The `.txnindex` of one segment: aborted transactions with ascending last offsets."""

    __slots__ = ("_summaries",)
    FORMAT = ENTRY

    def __init__(self, file: LogFile, size_bytes: int) -> None:
        super().__init__(file, _UNLIMITED_BYTES, size_bytes)
        # Smallest first offset, and last stable offset of the last entry, by the number of a block
        # that was read whole. A search skips the blocks of short transactions within a long one.
        self._summaries: dict[int, tuple[int, int]] = {}

    def _unpack(self, data: bytes | bytearray, at: int) -> tuple[int, int]:
        _, _, first_offset, last_offset, _ = ENTRY.unpack_from(data, at)
        return last_offset, first_offset

    def add(self, aborted: AbortedTransaction) -> None:
        """Add an entry to the buffer; the caller calls `write_buffer`."""
        self._buffer += aborted.encode()
        self._last = (aborted.last_offset, aborted.first_offset)

    def entries(self, number: int = 0) -> Iterator[AbortedTransaction]:
        """Yield the entries from `number` on. Raises OSError, EOFError."""
        while number < self._disk_entries:
            data = self._read(number, min(_BLOCK_ENTRIES, self._disk_entries - number))
            for fields in ENTRY.iter_unpack(data):
                yield AbortedTransaction(*fields[1:])
            number += len(data) // ENTRY_BYTES
        skipped = (number - self._disk_entries) * ENTRY_BYTES
        for fields in ENTRY.iter_unpack(bytes(self._buffer[skipped:])):
            yield AbortedTransaction(*fields[1:])

    def search(self, start: int, end: int) -> Iterator[tuple[int, ...]]:
        """Yield entries from the first marker at or after `start` on, as unpacked tuples.

        Blocks may be omitted in which no entry overlaps [start, end), or ends a search for it.
        Raises OSError, EOFError.
        """
        number = self.count_upto(start - 1)
        while number < self._disk_entries:
            block = number // _BLOCK_ENTRIES
            first, stop = block * _BLOCK_ENTRIES, (block + 1) * _BLOCK_ENTRIES
            summary = self._summaries.get(block)
            if summary is not None and summary[0] >= end and summary[1] < end:
                number = stop
                continue
            stop = min(stop, self._disk_entries)
            found = list(ENTRY.iter_unpack(self._read(number, stop - number)))
            if number == first and len(found) == _BLOCK_ENTRIES:
                self._summaries[block] = min([each[2] for each in found]), found[-1][4]
            yield from found
            number = stop
        skipped = (number - self._disk_entries) * ENTRY_BYTES
        yield from ENTRY.iter_unpack(bytes(self._buffer[skipped:]))

    def truncate_entries(self, count: int) -> None:
        self._summaries.clear()
        super().truncate_entries(count)

    def collect(self, start: int, end: int, found: list[AbortedTransaction]) -> bool:
        """Add the transactions that overlap [start, end) to `found`.

        Return True if no later segment can have another one. Raises OSError, EOFError.
        """
        for aborted in self.entries(self.count_upto(start - 1)):
            if aborted.first_offset < end:
                found.append(aborted)
            if aborted.last_stable_offset >= end:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Remove the entries whose marker is at or after `offset`."""
        self.truncate_entries(self.count_upto(offset - 1))
