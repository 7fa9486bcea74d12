"""What a controller hands to nodes that follow it: committed batches, or the image whole.

    a follower's offset is one at which a recent batch begins, or the end    batches from there on
    it is any other                                                          a snapshot, in parts

Recent batches are kept in memory up to a bound. A snapshot is made from the immutable image while
it is handed out, some hundred records at a time; nothing of it is on disk.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import trio

from metaquorum.metadata.batch import SLICE_RECORDS, Batch
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import MetadataRecord, RecordEncoder

RECENT_BYTES: Final = 8 << 20
RECENT_BATCHES: Final = 20_000
PART_BYTES: Final = 256 << 10  # of a snapshot, and some hundred records more


class RecentBatches:
    """The last batches that took effect, without a gap. Plain state."""

    def __init__(self, max_bytes: int = RECENT_BYTES, max_batches: int = RECENT_BATCHES) -> None:
        self._max_bytes = max_bytes
        self._max_batches = max_batches
        self._batches: OrderedDict[int, tuple[Batch, int | None]] = OrderedDict()  # by their start
        self._bytes = 0
        self._end_offset = 0
        self._last_term: int | None = None  # of the batch that ends at `_end_offset`

    def append(self, batch: Batch) -> None:
        """The newest; old ones go where there are too many."""
        assert batch.expected_offset == self._end_offset
        if not batch.count:
            return
        self._batches[batch.expected_offset] = batch, self._last_term
        self._bytes += len(batch.body)
        self._end_offset, self._last_term = batch.end_offset, batch.term
        while self._bytes > self._max_bytes or len(self._batches) > self._max_batches:
            _, (old, _) = self._batches.popitem(last=False)
            self._bytes -= len(old.body)

    def restart(self, end_offset: int) -> None:
        """A snapshot has taken the place of everything: nothing is kept before `end_offset`."""
        self._batches.clear()
        self._bytes = 0
        self._end_offset, self._last_term = end_offset, None

    def since(self, offset: int, max_bytes: int) -> list[Batch] | None:
        """The batches from `offset` on, one at least if there is one; None: a snapshot is needed.

        No more than `max_bytes` in all, unless the first alone is larger.
        """
        if offset != self._end_offset and offset not in self._batches:
            return None
        found: list[Batch] = []
        size_bytes = 0
        while (entry := self._batches.get(offset)) is not None:
            batch = entry[0]
            size_bytes += len(batch.body)
            if found and size_bytes > max_bytes:
                break
            found.append(batch)
            offset = batch.end_offset
        return found

    def term_before(self, offset: int) -> int | None:
        """The term of the batch that ends at `offset`; None where that is not known."""
        if offset == self._end_offset:
            return self._last_term
        entry = self._batches.get(offset)
        return None if entry is None else entry[1]


class MetadataFeed:
    """A voter's `StateMachine`: the loader, and what followers are to be handed, side by side."""

    def __init__(self, loader: MetadataLoader, recent: RecentBatches | None = None) -> None:
        self._loader = loader
        self.recent = recent or RecentBatches()
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def image(self) -> MetadataImage:
        return self._loader.image

    async def apply(self, term: int, batch: Batch) -> bool:
        took_effect = await self._loader.apply(term, batch)
        if took_effect:
            self.recent.append(batch)
            self._changed.unpark_all()
        return took_effect

    def begin_load(self) -> None:
        self._loader.begin_load()

    async def load(self, records: Iterable[MetadataRecord]) -> None:
        await self._loader.load(records)

    def end_load(self, end_offset: int) -> None:
        self._loader.end_load(end_offset)
        self.recent.restart(end_offset)
        self._changed.unpark_all()

    async def wait_beyond(self, offset: int) -> None:
        """The image ends behind `offset`."""
        while self.image.end_offset <= offset:
            await self._changed.park()


class SnapshotParts:
    """One image in parts, each the records of some hundred kilobytes, packed one after the other.

    The last part that was made can be had again, in case its answer was lost.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.end_offset: Final = image.end_offset
        self._records: Iterator[MetadataRecord] = image.records()
        self._encode = RecordEncoder(image.features).encode
        self._number = -1
        self._part = b""
        self._is_last = False

    async def part(self, number: int) -> tuple[bytes, bool] | None:
        """That part, and whether it is the last; None where it is not to be had (any more)."""
        if number == self._number + 1 and not self._is_last:
            self._part, self._is_last = await self._next_part()
            self._number = number
        return (self._part, self._is_last) if number == self._number else None

    async def _next_part(self) -> tuple[bytes, bool]:
        part = bytearray()
        while len(part) < PART_BYTES:
            records = list(islice(self._records, SLICE_RECORDS))
            part += b"".join([self._encode(record) for record in records])
            if len(records) < SLICE_RECORDS:
                return bytes(part), True
            await trio.lowlevel.checkpoint()
        return bytes(part), False
