"""Files of segments that are no part of their logs any more, until readers have let go of them."""

import heapq
import itertools
from collections.abc import Iterator

from dataplane.partition.partition import Partition
from metaquorum.runtime import Clock


class PendingDeletes:
    """How many deleted segments of which partition may be removed when, the earliest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: list[tuple[int, int, Partition, int]] = []
        self._number = itertools.count()

    def add(self, partition: Partition, segments: int) -> None:
        """That many segments of the partition were deleted; their files go after the delay."""
        due_ms = self._clock.now_ms() + partition.config.file_delete_delay_ms
        heapq.heappush(self._queue, (due_ms, next(self._number), partition, segments))

    def take_due(self) -> Iterator[tuple[Partition, int]]:
        """Partitions and segments whose time has come; each is given once."""
        now_ms = self._clock.now_ms()
        while self._queue and self._queue[0][0] <= now_ms:
            _, _, partition, segments = heapq.heappop(self._queue)
            yield partition, segments
