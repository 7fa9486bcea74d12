"""Workers that were fenced a moment ago: responses about named topics still list them.

librdkafka (2.10 and later) removes a worker that a Metadata response does not list from its
clients. If the same response names another leader for a partition that the client still assigns to
the removed worker, two of its threads compete, and the partition is often left without a worker
until a timer that runs each second asks for metadata again. So the first responses after a worker
died name the new leaders and still list the dead worker, and only later ones omit it.

Kafka lists a dead broker, too, until its session times out, so clients expect addresses that refuse
connections. A worker that shut down cleanly is not listed: the clients already know the new
leaders, which its own responses named (KIP-951). Responses about all topics or none, which
operators ask for, list live workers only.
"""

from typing import Final

from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.runtime import Clock

# Seconds. A client that lost its connection asks for metadata within a second.
LISTED_S: Final = 5.0


class RecentlyFenced:
    """The ids of these workers. A publisher, so that it precedes each visible image."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listed_until: dict[int, float] = {}

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for worker_id in delta.worker_ids:
            self._listed_until.pop(worker_id, None)
            before, after = delta.before.workers.get(worker_id), image.workers.get(worker_id)
            if before is None or after is None or before.fenced or not after.fenced:
                continue
            if not before.in_controlled_shutdown:
                self._listed_until[worker_id] = self._clock.monotonic() + LISTED_S

    def ids(self) -> frozenset[int]:
        if not self._listed_until:
            return frozenset()
        now = self._clock.monotonic()
        return frozenset(id for id, until in self._listed_until.items() if now < until)
