"""The log as pysyncobj indexes it, on our journal.

pysyncobj wants a list that is never empty, of (command, index, term), and to call `add` and
`deleteEntriesFrom`. Its first item stands for everything before the first entry held; a new log of
its own begins with an empty entry of index 1, so that our index 0, before the first entry, is its
index 1. Here alone is counted its way: everywhere else, indices are the journal's.

    journal     (base)   entry 1    entry 2   ...      after a snapshot of entry 7:  (7)  entry 8
    rows[0..]   (1)      2          3         ...                                    (8)  9

All entries behind the older of the two snapshots are in memory, as they are on disk: a few
intervals between snapshots. What is staged in the journal is not on disk before its `sync`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from metaquorum.storage.journal import Journal
from metaquorum.storage.journal_ops import NO_VOTE, Entry, LogPosition

# A log that grew to this (a snapshot cannot be written, or applying cannot keep up) takes no more.
MAX_LOG_BYTES: Final = 256 << 20
# An entry that pysyncobj adds when a term begins. The journal has it with an empty payload, and no
# batch looks like it.
NO_OP: Final = b"\x01"
_ROW_BYTES: Final = 100  # of memory beside the payload

Row: TypeAlias = tuple[bytes, int, int]  # command, pysyncobj's index, term


def library_index(index: int) -> int:
    return index + 1


def journal_index(index: int) -> int:
    return index - 1


class RaftLog:
    """Entries in memory over the journal that keeps them."""

    def __init__(self, journal: Journal, anchor: LogPosition) -> None:
        """Empty behind `anchor`, until `load` has brought the journal's entries."""
        self._journal = journal
        self._rows: list[Row] = [_anchor_row(anchor)]
        self.size_bytes = 0

    def load(self, entries: Iterable[Entry]) -> None:
        """The journal's own next entries are in memory, too."""
        for entry in entries:
            assert entry.index == self.last.index + 1
            self._push(entry.payload, entry.index, entry.term)

    @property
    def anchor(self) -> LogPosition:
        """The position before the first entry in memory."""
        return _position(self._rows[0])

    @property
    def last(self) -> LogPosition:
        return _position(self._rows[-1])

    def term_at(self, index: int) -> int:
        """The term of the entry at `index`, or of the anchor."""
        return self._rows[index - self.anchor.index][2]

    def entry(self, index: int) -> Entry:
        return _entry(self._rows[index - self.anchor.index])

    def entries(self, first_index: int, limit: int, limit_bytes: int) -> list[Entry]:
        """One at least, and no more than either limit allows."""
        start = first_index - self.anchor.index
        found = [_entry(self._rows[start])]
        room_bytes = limit_bytes - len(found[0].payload)
        for row in self._rows[start + 1 : start + limit]:
            room_bytes -= len(row[0])
            if room_bytes < 0:
                break
            found.append(_entry(row))
        return found

    def append(self, payload: bytes, term: int) -> int:
        """Staged behind the last entry; its index."""
        index = self.last.index + 1
        self._journal.append(Entry(index, term, payload))
        self._push(payload, index, term)
        return index

    def forget(self, position: LogPosition) -> None:
        """Entries up to there are no longer in memory; a snapshot holds them."""
        if self.anchor.index < position.index <= self.last.index:
            gone = position.index - self.anchor.index
            self.size_bytes -= sum(_row_bytes(row) for row in self._rows[1 : gone + 1])
            self._rows[: gone + 1] = [_anchor_row(position)]

    def reset(self, position: LogPosition) -> None:
        """Staged: all entries are gone, and the next one comes behind a snapshot's position."""
        self._journal.reset(position)
        self._rows = [_anchor_row(position)]
        self.size_bytes = 0

    def cut(self, last_index: int) -> None:
        """The journal has given up the entries behind `last_index`, which it could not write."""
        self._drop(last_index + 1 - self.anchor.index)

    def _push(self, payload: bytes, index: int, term: int) -> None:
        row = (payload or NO_OP, library_index(index), term)
        self._rows.append(row)
        self.size_bytes += _row_bytes(row)

    def _drop(self, start: int) -> None:
        assert start > 0
        self.size_bytes -= sum(_row_bytes(row) for row in self._rows[start:])
        del self._rows[start:]

    # What pysyncobj calls

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        return self._rows[key]

    def add(self, command: bytes, idx: int, term: int) -> None:
        assert journal_index(idx) == self.last.index + 1
        self.append(b"" if command == NO_OP else command, term)

    def deleteEntriesFrom(self, start: int) -> None:  # noqa: N802
        self._journal.truncate(journal_index(self._rows[start][1]))
        self._drop(start)

    def setCurrentTerm(self, term: int, voted_for: int | None) -> None:  # noqa: N802
        self._journal.set_hard_state(term, NO_VOTE if voted_for is None else voted_for)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._journal.hard_state.term

    def getVotedForNodeId(self) -> int | None:  # noqa: N802
        vote = self._journal.hard_state.vote
        return None if vote == NO_VOTE else vote

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return library_index(self.anchor.index)

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Not kept: after a start, the leader tells it again."""

    def onOneSecondTimer(self) -> None:  # noqa: N802
        pass


def _anchor_row(position: LogPosition) -> Row:
    return NO_OP, library_index(position.index), position.term


def _position(row: Row | Sequence[Any]) -> LogPosition:
    return LogPosition(journal_index(row[1]), row[2])


def _entry(row: Row) -> Entry:
    return Entry(journal_index(row[1]), row[2], b"" if row[0] == NO_OP else row[0])


def _row_bytes(row: Row) -> int:
    return len(row[0]) + _ROW_BYTES
