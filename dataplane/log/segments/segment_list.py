"""The segments of one log in order, and where in them an offset is.

Most reads ask for the tail, or for the place where the read before them ended. Both are at hand,
so that only consumers further back search an index. Only places in the active segment are kept.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from dataplane.log.segments.segment import Segment

# Places of the latest batches kept at hand: 2 to 4 KiB for a log that is written to.
RECENT_BATCHES: Final = 128


class Segments:
    """Never empty: the last one is the active one."""

    __slots__ = (
        "_all",
        "_bases",
        "_next_read_offset",
        "_next_read_position",
        "_recent_lasts",
        "_recent_positions",
        "active",
    )

    def __init__(self, segments: list[Segment], end_offset: int) -> None:
        self._all = segments
        self._bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.forget_places(end_offset)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._all

    @property
    def first_offset(self) -> int:
        return self._bases[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._all)

    def with_end_offsets(self, end_offset: int) -> Iterator[tuple[Segment, int]]:
        """Each segment and where it ends, the active one at `end_offset`."""
        return zip(self._all, [*self._bases[1:], end_offset], strict=True)

    def since(self, offset: int) -> list[Segment]:
        """The segment that has `offset` and all later ones."""
        return self._all[self._number_of(offset) :]

    def add(self, segment: Segment) -> None:
        """It is the active one; the log ends where it begins."""
        self._all.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment
        self.forget_places(segment.base_offset)

    def pop_behind(self, offset: int) -> Segment | None:
        """The last segment if it begins at or after `offset` and is not the only one."""
        if len(self._all) == 1 or self._bases[-1] < offset:
            return None
        del self._bases[-1]
        popped = self._all.pop()
        self.active = self._all[-1]
        return popped

    def last_before(self, offset: int) -> Segment:
        """The active segment once `pop_behind(offset)` has no more to give."""
        return self._all[max(bisect_left(self._bases, offset) - 1, 0)]

    def pop_before(self, offset: int) -> Segment | None:
        """The first segment if it ends at or before `offset` and is not the active one."""
        if len(self._all) == 1 or self._bases[1] > offset:
            return None
        del self._bases[0]
        return self._all.pop(0)

    def has_sealed(self, run: Sequence[Segment]) -> bool:
        """Whether these are neighbours here, and none is the active one."""
        first = self._find_first(run[0])
        return first >= 0 and self._all[first : min(first + len(run), len(self) - 1)] == [*run]

    def replace(self, run: Sequence[Segment], segment: Segment) -> None:
        """`segment` is in the place of these neighbours."""
        first = self._find_first(run[0])
        self._all[first : first + len(run)] = [segment]
        self._bases[first : first + len(run)] = [segment.base_offset]

    def end_of(self, segment: Segment) -> int:
        """Where a segment that is not the active one ends."""
        return self._bases[self._find_first(segment) + 1]

    def _find_first(self, segment: Segment) -> int:
        number = bisect_left(self._bases, segment.base_offset)
        return number if number < len(self) and self._all[number] is segment else -1

    # Places

    def note(self, last_offset: int, position: int) -> None:
        """The batch that ends with `last_offset` was put at `position` of the active segment."""
        lasts = self._recent_lasts
        lasts.append(last_offset)
        self._recent_positions.append(position)
        if len(lasts) > 2 * RECENT_BATCHES:
            del lasts[:-RECENT_BATCHES], self._recent_positions[:-RECENT_BATCHES]

    def forget_places(self, end_offset: int) -> None:
        """No place is at hand; the next batch begins at `end_offset` or later."""
        self._recent_lasts = array("q", (end_offset - 1,))
        self._recent_positions = array("q", (-1,))
        self._next_read_offset = self._next_read_position = -1

    def read_upto(self, segment: Segment, end_offset: int, position: int) -> None:
        """A read ended there: the next one may well begin there."""
        if segment is self.active:
            self._next_read_offset, self._next_read_position = end_offset, position

    def _number_of(self, offset: int) -> int:
        return max(bisect_right(self._bases, offset) - 1, 0)

    def find(self, offset: int) -> tuple[Segment, int]:
        """The segment and position of the first batch that ends at or after `offset`.

        The end of the active segment when there is none.
        """
        if offset >= self._bases[-1]:
            return self.active, self._find_active(offset)
        for segment in self._all[self._number_of(offset) : -1]:
            if (found := segment.locate(offset)) is not None:
                return segment, found[0]
            # Compaction took the end of that segment away.
        return self.active, self._find_active(offset)

    def _find_active(self, offset: int) -> int:
        active = self.active
        if offset == self._next_read_offset and self._next_read_position < active.size_bytes:
            return self._next_read_position
        place = bisect_left(self._recent_lasts, offset)
        if 0 < place < len(self._recent_lasts):
            return self._recent_positions[place]
        found = active.locate(offset)
        return active.size_bytes if found is None else found[0]

    def end_in(self, segment: Segment, end_offset: int) -> int:
        """Where the batches before `end_offset` end in this segment."""
        last, position = self.find(end_offset)
        return position if last is segment else segment.size_bytes
