"""The Raft log in memory, in the form that pysyncobj requires, over the journal on disk.

pysyncobj requires a non-empty list of (command, index, term), with the methods `add` and
`deleteEntriesFrom`. The first item, the anchor, represents all entries before the first one in
memory. An empty log of pysyncobj has one empty entry with index 1, so its index 1 is index 0 of the
journal (before the first entry). Only this module uses its indices; all others use the journal's.

    journal     (base)   entry 1    entry 2   ...      after a snapshot of entry 7:  (7)  entry 8
    rows[0..]   (1)      2          3         ...                                    (8)  9

All entries after the older of the two snapshots are in memory as well as on disk: a few snapshot
intervals. Entries staged in the journal are on disk only after its `sync`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from metaquorum.quorum.storage.journal import Journal
from metaquorum.quorum.storage.journal_ops import NO_VOTE, Entry, LogPosition

# A log of this size accepts no more entries: snapshots fail, or applying is too slow.
MAX_LOG_BYTES: Final = 256 << 20
# Entry that pysyncobj adds at the beginning of a term. The journal stores it with an empty payload;
# no encoded batch equals it.
NO_OP: Final = b"\x01"
_ROW_BYTES: Final = 100  # memory per row in addition to the payload

Row: TypeAlias = tuple[bytes, int, int]  # command, pysyncobj's index, term


def library_index(index: int) -> int:
    return index + 1


def journal_index(index: int) -> int:
    return index - 1


class RaftLog:
    """Log entries in memory, over the journal that stores them."""

    def __init__(self, journal: Journal, anchor: LogPosition) -> None:
        """Create a log without entries after `anchor`; `load` adds those of the journal."""
        self._journal = journal
        self._rows: list[Row] = [_anchor_row(anchor)]
        self.size_bytes = 0

    def load(self, entries: Iterable[Entry]) -> None:
        """Add the next entries of the journal, which are on disk already."""
        for entry in entries:
            assert entry.index == self.last.index + 1
            self._push(entry.payload, entry.index, entry.term)

    @property
    def anchor(self) -> LogPosition:
        """Position before the first entry in memory."""
        return _position(self._rows[0])

    @property
    def last(self) -> LogPosition:
        return _position(self._rows[-1])

    def term_at(self, index: int) -> int:
        """Return the term of the entry at `index`, or of the anchor."""
        return self._rows[index - self.anchor.index][2]

    def entry(self, index: int) -> Entry:
        return _entry(self._rows[index - self.anchor.index])

    def entries(self, first_index: int, limit: int, limit_bytes: int) -> list[Entry]:
        """Return entries from `first_index` on, within both limits but at least one."""
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
        """Stage a new last entry and return its index."""
        index = self.last.index + 1
        self._journal.append(Entry(index, term, payload))
        self._push(payload, index, term)
        return index

    def forget(self, position: LogPosition) -> None:
        """Drop entries up to `position` from memory; a snapshot includes them."""
        if self.anchor.index < position.index <= self.last.index:
            gone = position.index - self.anchor.index
            self.size_bytes -= sum(_row_bytes(row) for row in self._rows[1 : gone + 1])
            self._rows[: gone + 1] = [_anchor_row(position)]

    def reset(self, position: LogPosition) -> None:
        """Stage the deletion of all entries; the next one follows `position`, of a snapshot."""
        self._journal.reset(position)
        self._rows = [_anchor_row(position)]
        self.size_bytes = 0

    def cut(self, last_index: int) -> None:
        """Drop the entries after `last_index`, which the journal could not write."""
        self._drop(last_index + 1 - self.anchor.index)

    def _push(self, payload: bytes, index: int, term: int) -> None:
        row = (payload or NO_OP, library_index(index), term)
        self._rows.append(row)
        self.size_bytes += _row_bytes(row)

    def _drop(self, start: int) -> None:
        assert start > 0
        self.size_bytes -= sum(_row_bytes(row) for row in self._rows[start:])
        del self._rows[start:]

    # Calls of pysyncobj

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
        """Do nothing: after a start, the leader sends the commit index again."""

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
