"""Counts of leader elections from eligible leader replicas and of unclean ones.

A publisher of the metadata loader, registered only if metrics are enabled.
"""

from itertools import zip_longest
from typing import Final

import trio

from metaquorum.metadata.image import (
    NO_LEADER,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)

SLICE_PARTITIONS: Final = 5000  # examined before other tasks run
_NONE: Final[tuple[PartitionImage, ...]] = ()


class ElectionCounts:
    """Election counts since this process caught up with the metadata log.

    Every controller counts, not only the active one, so alerts survive a change of the active one.
    """

    def __init__(self) -> None:
        self.from_eligible = 0
        self.unclean = 0
        self._has_begun = False

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self._has_begun:  # the first image holds earlier elections
            looked_at = 0
            for topic_id in delta.topic_ids:
                after = image.topic_by_id(topic_id)
                if after is not None:
                    self._look(delta.before.topic_by_id(topic_id), after)
                    looked_at += len(after.partitions)
                    if looked_at > SLICE_PARTITIONS:
                        looked_at = 0
                        await trio.lowlevel.checkpoint()
        self._has_begun = True

    def _look(self, before: TopicImage | None, after: TopicImage) -> None:
        known = _NONE if before is None else before.partitions
        for was, now in zip_longest(known, after.partitions):
            if was is not now and was is not None and now is not None:
                self.compare(was, now)

    def compare(self, was: PartitionImage, now: PartitionImage) -> None:
        if now.leader in (NO_LEADER, was.leader) or now.leader_epoch == was.leader_epoch:
            return
        if now.unclean_epoch == now.leader_epoch:
            self.unclean += 1
        elif now.leader in was.elr and now.leader not in was.isr:
            self.from_eligible += 1
