"""The segments of one log in order, and the lookup of an offset's position.

Most reads are at the tail of the log, or begin where an earlier read ended. Both positions are
cached, for the active segment only, so that only consumers further back search an index.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from metaquorum.dataplane.log.segments.segment import Segment

# Number of latest batches whose positions are cached: 2 to 4 KiB for a log with appends.
RECENT_BATCHES: Final = 128


class Segments:
    """Segments of one log, ascending, at least one; the last is the active segment."""

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
        """Return each segment with its end offset; the active one ends at `end_offset`."""
        return zip(self._all, [*self._bases[1:], end_offset], strict=True)

    def base_of(self, offset: int) -> int:
        """Return the base offset of the segment with `offset`, or of the first one."""
        return self._bases[self._number_of(offset)]

    def since(self, offset: int) -> list[Segment]:
        """Return the segment with `offset` and all later ones."""
        return self._all[self._number_of(offset) :]

    def add(self, segment: Segment) -> None:
        """Add an empty segment at the end of the log as the active one."""
        self._all.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment
        self.forget_places(segment.base_offset)

    def pop_behind(self, offset: int) -> Segment | None:
        """Remove and return the last of several segments if it begins at or after `offset`."""
        if len(self._all) == 1 or self._bases[-1] < offset:
            return None
        del self._bases[-1]
        popped = self._all.pop()
        self.active = self._all[-1]
        return popped

    def last_before(self, offset: int) -> Segment:
        """Return the segment that is active once `pop_behind(offset)` has returned None."""
        return self._all[max(bisect_left(self._bases, offset) - 1, 0)]

    def pop_first(self) -> Segment:
        """Remove and return the first of several segments."""
        del self._bases[0]
        return self._all.pop(0)

    def has_sealed(self, run: Sequence[Segment]) -> bool:
        """Return whether `run` is a part of this list, in order, without the active segment."""
        first = self._find_first(run[0])
        return first >= 0 and self._all[first : min(first + len(run), len(self) - 1)] == [*run]

    def replace(self, run: Sequence[Segment], segment: Segment) -> None:
        """Replace the consecutive segments `run` by `segment`."""
        first = self._find_first(run[0])
        self._all[first : first + len(run)] = [segment]
        self._bases[first : first + len(run)] = [segment.base_offset]

    def end_of(self, segment: Segment) -> int:
        """Return the end offset of a segment that is not the active one."""
        return self._bases[self._find_first(segment) + 1]

    def _find_first(self, segment: Segment) -> int:
        number = bisect_left(self._bases, segment.base_offset)
        return number if number < len(self) and self._all[number] is segment else -1

    # Positions

    def note(self, last_offset: int, position: int) -> None:
        """Cache `position`, in the active segment, of the batch that ends with `last_offset`."""
        lasts = self._recent_lasts
        lasts.append(last_offset)
        self._recent_positions.append(position)
        if len(lasts) > 2 * RECENT_BATCHES:
            del lasts[:-RECENT_BATCHES], self._recent_positions[:-RECENT_BATCHES]

    def forget_places(self, end_offset: int) -> None:
        """Clear the cached positions; the next batch begins at `end_offset` or later."""
        self._recent_lasts = array("q", (end_offset - 1,))
        self._recent_positions = array("q", (-1,))
        self._next_read_offset = self._next_read_position = -1

    def read_upto(self, segment: Segment, end_offset: int, position: int) -> None:
        """Cache the end of a read in the active segment, where the next read is likely to begin."""
        if segment is self.active:
            self._next_read_offset, self._next_read_position = end_offset, position

    def _number_of(self, offset: int) -> int:
        return max(bisect_right(self._bases, offset) - 1, 0)

    def find(self, offset: int) -> tuple[Segment, int]:
        """Return segment and position of the first batch that ends at or after `offset`.

        Without such a batch, return the end of the active segment.
        """
        if offset >= self._bases[-1]:
            return self.active, self._find_active(offset)
        for segment in self._all[self._number_of(offset) : -1]:
            if (found := segment.locate(offset)) is not None:
                return segment, found[0]
            # Compaction removed the last batches of that segment.
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
        """Return the position in `segment` at which the batches before `end_offset` end."""
        last, position = self.find(end_offset)
        return position if last is segment else segment.size_bytes
