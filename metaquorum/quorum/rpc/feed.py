"""Metadata that a controller sends to followers: committed batches, or a snapshot of the image.

    the follower's offset is the start of a recent batch, or the end    batches from that offset
    any other offset                                                    a snapshot, in parts

Recent batches are kept in memory, up to a bound. A snapshot is generated from the immutable image
while it is sent, some hundred records at a time; it is not written to disk.
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
PART_BYTES: Final = 256 << 10  # a part of a snapshot may exceed this by some hundred records


class RecentBatches:
    """The most recent batches that took effect, without gaps. No I/O."""

    def __init__(self, max_bytes: int = RECENT_BYTES, max_batches: int = RECENT_BATCHES) -> None:
        self._max_bytes = max_bytes
        self._max_batches = max_batches
        self._batches: OrderedDict[int, tuple[Batch, int | None]] = OrderedDict()  # by base offset
        self._bytes = 0
        self._end_offset = 0
        self._last_term: int | None = None  # term of the batch that ends at `_end_offset`

    def append(self, batch: Batch) -> None:
        """Append the newest batch; drop the oldest batches above the limits."""
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
        """Drop all batches after a snapshot that ends at `end_offset` was loaded."""
        self._batches.clear()
        self._bytes = 0
        self._end_offset, self._last_term = end_offset, None

    def since(self, offset: int, max_bytes: int) -> list[Batch] | None:
        """Return batches from `offset` on; None if the follower needs a snapshot.

        The batches have at most `max_bytes` in total, except that the first one may be larger.
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
        """Return the term of the batch that ends at `offset`; None if it is not known."""
        if offset == self._end_offset:
            return self._last_term
        entry = self._batches.get(offset)
        return None if entry is None else entry[1]


class MetadataFeed:
    """State machine of a voter: the metadata loader, and the batches kept for followers."""

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
        """Wait until the image ends after `offset`."""
        while self.image.end_offset <= offset:
            await self._changed.park()


class SnapshotParts:
    """Snapshot of one image in parts of about PART_BYTES each, packed one after the other.

    The most recent part can be requested again, in case its answer was lost.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.end_offset: Final = image.end_offset
        self._records: Iterator[MetadataRecord] = image.records()
        self._encode = RecordEncoder(image.features).encode
        self._number = -1
        self._part = b""
        self._is_last = False

    async def part(self, number: int) -> tuple[bytes, bool] | None:
        """Return part `number` and whether it is the last.

        Returns None if `number` is neither the next part nor the most recent one.
        """
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
