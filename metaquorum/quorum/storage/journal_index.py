"""Index of a journal: log positions, terms, and frame locations, with a cache of new entries."""

from bisect import bisect_right
from collections import deque
from typing import Final

from metaquorum.quorum.storage.journal_ops import (
    NO_VOTE,
    Entry,
    HardState,
    LogPosition,
    Op,
    Reset,
    Truncate,
)

CACHE_BYTES: Final = 8 << 20  # payload bytes of the newest entries that are kept in memory


class JournalIndex:
    """State of the log with staged operations (`stage`), and frame locations of written ones.

    `last` is the end of the log with staged operations, `written` its end on disk; `durable` is the
    last position up to which both agree. All three are equal if no operations are staged.
    """

    def __init__(self) -> None:
        self.base = LogPosition(0, 0)  # position before the first entry
        self.last = LogPosition(0, 0)
        self.hard_state = HardState(0, NO_VOTE)
        self.written = LogPosition(0, 0)
        self.durable = LogPosition(0, 0)
        self.written_hard_state = HardState(0, NO_VOTE)
        self._terms: list[tuple[int, int]] = []  # (first index, term) of each run of one term
        # (first index, segment, position) of each frame with entries, in order.
        self._frames: list[tuple[int, int, int]] = []
        # Last valid index of each segment except the newest.
        self._left_at: dict[int, int] = {}
        self._cache: deque[Entry] = deque()  # newest entries, without gaps
        self._cache_bytes = 0

    def term_at(self, index: int) -> int:
        """Return the term of the entry at `index`, or of the base."""
        assert self.base.index <= index <= self.last.index
        number = bisect_right(self._terms, index, key=lambda run: run[0])
        return self._terms[number - 1][1] if number else self.base.term

    def cached(self, first_index: int, last_index: int) -> list[Entry] | None:
        """Return the entries if all of them are in the cache, else None."""
        if not self._cache or first_index < self._cache[0].index:
            return None
        skip = first_index - self._cache[0].index
        return [self._cache[skip + k] for k in range(last_index - first_index + 1)]

    def frames(self, first_index: int, last_index: int) -> list[tuple[int, int, int, int]]:
        """Return (first index, last index, segment, position) of the frames with the entries."""
        number = bisect_right(self._frames, first_index, key=lambda frame: frame[0]) - 1
        found = []
        while number < len(self._frames) and self._frames[number][0] <= last_index:
            start, segment, position = self._frames[number]
            number += 1
            last = self._frames[number][0] - 1 if number < len(self._frames) else last_index
            found.append((max(start, first_index), min(last, last_index), segment, position))
        return found

    # Staging

    def stage(self, op: Op) -> None:
        match op:
            case Entry():
                if self.last.term != op.term or not self._terms:
                    self._terms.append((op.index, op.term))
                self.last = LogPosition(op.index, op.term)
                self._remember(op)
            case HardState():
                self.hard_state = op
            case Truncate():
                self.cut(op.end_index, op.last_term)
            case Reset():
                self.cut(0, 0)
                self.base = self.last = LogPosition(op.index, op.term)

    def cut(self, end_index: int, last_term: int) -> None:
        """Drop the entries from `end_index` on; the entry before them has the term `last_term`."""
        self.last = LogPosition(max(end_index - 1, 0), last_term)
        if self.durable.index >= end_index:
            self.durable = self.last
        if self.last.index < self.base.index:
            # The truncated entries began in a segment that is removed already.
            self.base = self.last
        while self._terms and self._terms[-1][0] >= end_index:
            self._terms.pop()
        while self._frames and self._frames[-1][0] >= end_index:
            self._frames.pop()
        while self._cache and self._cache[-1].index >= end_index:
            self._cache_bytes -= len(self._cache.pop().payload)

    def _remember(self, entry: Entry) -> None:
        self._cache.append(entry)
        self._cache_bytes += len(entry.payload)
        while self._cache_bytes > CACHE_BYTES and self._cache[0].index <= self.written.index:
            self._cache_bytes -= len(self._cache.popleft().payload)

    # Writing

    def wrote(self, ops: list[Op], segment: int, position: int) -> None:
        """Note that staged operations were written in one frame at this position."""
        first: int | None = None
        for op in ops:
            match op:
                case Entry():
                    first = op.index if first is None else first
                    self.written = LogPosition(op.index, op.term)
                case HardState():
                    self.written_hard_state = op
                case Truncate():
                    self.written = LogPosition(op.end_index - 1, op.last_term)
                    for number, index in self._left_at.items():
                        self._left_at[number] = min(index, op.end_index - 1)
                case Reset():
                    self.written = LogPosition(op.index, op.term)
                    self._left_at = dict.fromkeys(self._left_at, 0)
        if first is not None and first <= self.last.index:
            self._frames.append((first, segment, position))

    def settle(self) -> None:
        """Note that no operations are staged."""
        self.durable = self.written

    def left(self, segment: int) -> None:
        """Note that this segment is complete."""
        self._left_at[segment] = self.written.index

    def needed(self, segment: int, index: int) -> bool:
        """Return whether the segment contains entries after `index`."""
        return segment not in self._left_at or self._left_at[segment] > index

    def removed(self, segment: int) -> None:
        """Note that the oldest segment was removed."""
        index = self._left_at.pop(segment)
        if index > self.base.index:
            self.base = LogPosition(index, self.term_at(index))
        gone = sum(1 for frame in self._frames if frame[1] == segment)
        del self._frames[:gone]
        runs = bisect_right(self._terms, self.base.index + 1, key=lambda run: run[0]) - 1
        del self._terms[: max(runs, 0)]
        while self._cache and self._cache[0].index <= self.base.index:
            self._cache_bytes -= len(self._cache.popleft().payload)
