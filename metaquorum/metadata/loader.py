"""Folds the committed log into the image and tells this node's parts of every change.

    committed batches --apply--> image --(a task of its own)--> publish(delta, image) ... visible

Applying is never held up by publishing: changes that come while publishers are busy are gathered
into one delta. A *publisher* (the partitions, the quotas ...) is told in offset order, first of
everything there is, then of each change. What all of them have taken in is *visible*: an answer
that promises a client that its topic is usable waits for that.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final, Protocol, TypeVar

import trio

from metaquorum.metadata.batch import SLICE_RECORDS, Batch
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.persistent_map import PersistentMap
from metaquorum.metadata.records import MetadataRecord
from metaquorum.metadata.replay import Replay
from wire.primitives.frozen import frozen

K = TypeVar("K")
V = TypeVar("V")


class Publisher(Protocol):
    """A part of a node that follows the metadata."""

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """This part is now as `image` says; `delta.before` is the image of the last call.

        The first call's `before` is empty. Calls never overlap. What it raises ends the node.
        """


@frozen
class _SpeculativeReplay:
    """A batch that was replayed when it was decided, on the image that it was decided on."""

    term: int
    body: bytes
    image: MetadataImage
    delta: MetadataDelta


class MetadataLoader:
    """The image of one node, and its publishers. It is the quorum's `StateMachine`."""

    def __init__(self, cluster_id: str) -> None:
        self._image = MetadataImage.empty(cluster_id)
        # What publishers have not been told; None: to be found by comparing images.
        self._unpublished: MetadataDelta | None = MetadataDelta.none(self._image)
        self._published = self._image
        self._publishers: list[Publisher] = []
        self._publishing = False
        self._load: Replay | None = None
        self._speculative: dict[int, _SpeculativeReplay] = {}  # by the offset that it begins at
        self._changed: Final = trio.lowlevel.ParkingLot()
        self.dropped_batches = 0

    @property
    def image(self) -> MetadataImage:
        """After everything committed and replayed here."""
        return self._image

    @property
    def visible(self) -> MetadataImage:
        """The image that every publisher has taken in."""
        return self._published

    def register(self, publisher: Publisher) -> None:
        """`publisher` will be told of everything, after those registered before. Before `run`."""
        assert not self._publishing
        self._publishers.append(publisher)

    async def apply(self, term: int, batch: Batch) -> bool:
        """The batch is in the image, all of it; False: dropped, as on every replica."""
        if batch.term != term or batch.expected_offset != self.image.end_offset:
            self.dropped_batches += 1
            return False
        foreseen = self._speculative.pop(batch.expected_offset, None)
        if (
            foreseen is not None
            and foreseen.delta.before is self._image
            and (foreseen.term, foreseen.body) == (batch.term, batch.body)
        ):
            self._take(foreseen.image, foreseen.delta)
        else:
            self._speculative.clear()
            steps = Replay(self.image)
            await _in_slices(steps, batch.records())
            self._take(*steps.finish())
        assert self.image.end_offset == batch.end_offset
        return True

    def speculate(self, term: int, body: bytes, image: MetadataImage, delta: MetadataDelta) -> None:
        """When this batch is committed at `delta.before`, it leads to `image`.

        The active controller has replayed it already, to decide further; bytes that are the same
        need not be read again.
        """
        self._speculative[delta.before.end_offset] = _SpeculativeReplay(term, body, image, delta)

    def discard_speculation(self) -> None:
        """What was foreseen is not going to happen."""
        self._speculative.clear()

    def begin_load(self) -> None:
        """A snapshot follows; until `end_load`, `image` stays what it was."""
        self._load = Replay(MetadataImage.empty(self.image.cluster_id))

    async def load(self, records: Iterable[MetadataRecord]) -> None:
        assert self._load is not None
        await _in_slices(self._load, records)

    def end_load(self, end_offset: int) -> None:
        assert self._load is not None
        image, delta = self._load.finish(end_offset)
        self._load = None
        self._take(image, delta if self.image.end_offset == 0 else None)

    def _take(self, image: MetadataImage, delta: MetadataDelta | None) -> None:
        """`delta` None: what differs from the image before is not known yet."""
        if delta is None or self._unpublished is None:
            self._unpublished = None
        else:
            self._unpublished = self._unpublished.then(delta)
        self._image = image
        self._changed.unpark_all()

    async def run(self) -> None:
        """Publishers are told of every change, for ever."""
        self._publishing = True
        first = True
        while True:
            while self.image is self._published and not first:
                await self._changed.park()
            first = False
            delta, self._unpublished = self._unpublished, MetadataDelta.none(self.image)
            if delta is None:
                delta = await difference(self._published, self.image)
            for publisher in self._publishers:
                await publisher.publish(delta, delta.image)
            self._published = delta.image
            self._changed.unpark_all()
            await trio.lowlevel.checkpoint()

    async def wait_applied(self, end_offset: int) -> None:
        """The image holds everything before `end_offset`."""
        while self._image.end_offset < end_offset:
            await self._changed.park()

    async def wait_visible(self, end_offset: int) -> None:
        """Every publisher has taken in everything before `end_offset`."""
        while self._published.end_offset < end_offset:
            await self._changed.park()


async def _in_slices(steps: Replay, records: Iterable[MetadataRecord]) -> None:
    rest = iter(records)
    while True:
        part = list(islice(rest, SLICE_RECORDS))
        steps.apply(part)
        if len(part) < SLICE_RECORDS:
            return
        await trio.lowlevel.checkpoint()


async def difference(before: MetadataImage, image: MetadataImage) -> MetadataDelta:
    """What changed between two images of one cluster, where the records between are not known."""
    topics, resources, quotas = [], [], []
    for one, other in (before, image), (image, before):
        topics += await _differing(one.topics, other.topics)
        resources += await _differing(one.configs, other.configs)
        quotas += await _differing(one.client_quotas, other.client_quotas)
    ids = dict.fromkeys([topic.topic_id for _, topic in topics])
    workers = dict.fromkeys(
        worker_id
        for worker_id in (*before.workers, *image.workers)
        if before.workers.get(worker_id) != image.workers.get(worker_id)
    )
    features = dict.fromkeys(
        name
        for name in (*before.features, *image.features)
        if before.features.get(name) != image.features.get(name)
    )
    return MetadataDelta(
        before,
        image,
        ids,
        dict.fromkeys([each for each, _ in resources]),
        workers,
        features,
        dict.fromkeys([each for each, _ in quotas]),
    )


async def _differing(one: PersistentMap[K, V], other: PersistentMap[K, V]) -> list[tuple[K, V]]:
    """The items of `one` that are not in `other`; the loop has its turn between."""
    found: list[tuple[K, V]] = []
    for items in one.without(other):
        found += items
        await trio.lowlevel.checkpoint()
    return found
