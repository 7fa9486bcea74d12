"""Replays the committed log into the image, and publishes every change to parts of this node.

    committed batches --apply--> image --(a separate task)--> publish(delta, image) ... visible

Applying never waits for publishing: changes that arrive while publishers are busy are combined into
one delta. A *publisher* (the partitions, the quotas, ...) receives first the whole image, then each
change, in offset order. An offset is *visible* once all publishers have processed it: an answer
that guarantees a client that its topic is usable waits for that.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, Protocol, TypeVar

import trio

from metaquorum.metadata.batch import SLICE_RECORDS, Batch
from metaquorum.metadata.image import MetadataDelta, MetadataImage, MovePlanImage
from metaquorum.metadata.persistent_map import PersistentMap
from metaquorum.metadata.records import MetadataRecord
from metaquorum.metadata.replay import Replay
from metaquorum.wire.primitives.frozen import frozen

K = TypeVar("K")
V = TypeVar("V")


class Publisher(Protocol):
    """Part of a node that follows the metadata."""

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Update this part to `image`; `delta.before` is the image of the previous call.

        In the first call `delta.before` is the empty image. Calls never overlap. An exception stops
        the node.
        """


@frozen
class _SpeculativeReplay:
    """Batch that the active controller replayed when it decided the batch."""

    term: int
    body: bytes
    image: MetadataImage
    delta: MetadataDelta


class MetadataLoader:
    """Image of one node, and its publishers. Implements the quorum's `StateMachine`."""

    def __init__(self, cluster_id: str) -> None:
        self._image = MetadataImage.empty(cluster_id)
        # Changes that are not published yet; None: to be computed by comparing images.
        self._unpublished: MetadataDelta | None = MetadataDelta.none(self._image)
        self.visible = self._image  # the image that every publisher has processed
        self._publishers: list[Publisher] = []
        self._publishing = False
        self._load: Replay | None = None
        self._speculative: dict[int, _SpeculativeReplay] = {}  # by first offset
        self._changed: Final = trio.lowlevel.ParkingLot()
        self._plans_changed: Final = trio.lowlevel.ParkingLot()
        self.dropped_batches = 0

    @property
    def image(self) -> MetadataImage:
        """Image after all records committed and replayed on this node."""
        return self._image

    def register(self, publisher: Publisher) -> None:
        """Add a publisher, called after those registered before. Must be called before `run`."""
        assert not self._publishing
        self._publishers.append(publisher)

    async def apply(self, term: int, batch: Batch) -> bool:
        """Replay the batch into the image; False if it is dropped, as on every replica."""
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
        """Store the image that results if this batch is committed at `delta.before`.

        The active controller has already replayed the batch, in order to decide on its result. If
        the same bytes are committed, they need not be decoded again.
        """
        self._speculative[delta.before.end_offset] = _SpeculativeReplay(term, body, image, delta)

    def discard_speculation(self) -> None:
        """Drop the stored images, because their batches will not be committed."""
        self._speculative.clear()

    def begin_load(self) -> None:
        """Begin to load a snapshot; `image` does not change until `end_load`."""
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
        """Replace the image. With `delta` None the differences are computed when published."""
        if delta is None or self._unpublished is None:
            self._unpublished = None
        else:
            self._unpublished = self._unpublished.then(delta)
        plans, self._image = self._image.plans, image
        self._changed.unpark_all()
        if image.plans is not plans:
            self._plans_changed.unpark_all()

    async def run(self) -> None:
        """Publish every change, until cancelled."""
        self._publishing = True
        first = True
        while True:
            while self.image is self.visible and not first:
                await self._changed.park()
            first = False
            delta, self._unpublished = self._unpublished, MetadataDelta.none(self.image)
            if delta is None:
                delta = await difference(self.visible, self.image)
            for publisher in self._publishers:
                await publisher.publish(delta, delta.image)
            self.visible = delta.image
            self._changed.unpark_all()
            await trio.lowlevel.checkpoint()

    async def wait_applied(self, end_offset: int) -> None:
        """Wait until the image includes all records before `end_offset`."""
        while self._image.end_offset < end_offset:
            await self._changed.park()

    async def wait_plans(self, known: Mapping[int, MovePlanImage]) -> None:
        """Wait until the plans of moves in the image are not `known`."""
        while self._image.plans is known:
            await self._plans_changed.park()

    async def wait_visible(self, end_offset: int) -> None:
        """Wait until every publisher has processed all records before `end_offset`."""
        while self.visible.end_offset < end_offset:
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
    """Return the delta of two images of one cluster without the records between them."""
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
        dict.fromkeys(
            plan_id
            for plan_id in (*before.plans, *image.plans)
            if before.plans.get(plan_id) is not image.plans.get(plan_id)
        ),
    )


async def _differing(one: PersistentMap[K, V], other: PersistentMap[K, V]) -> list[tuple[K, V]]:
    """Return the items of `one` that are not in `other`, with checkpoints of the event loop."""
    found: list[tuple[K, V]] = []
    for items in one.without(other):
        found += items
        await trio.lowlevel.checkpoint()
    return found
