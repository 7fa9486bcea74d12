"""Deleted segments whose files wait for file.delete.delay.ms, so that readers can finish."""

import heapq
import itertools
from collections.abc import Iterator

from dataplane.partition.partition import Partition
from metaquorum.runtime import Clock


class PendingDeletes:
    """Queue of deleted segments by due time, earliest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: list[tuple[int, int, Partition, int]] = []
        self._number = itertools.count()

    def add(self, partition: Partition, segments: int) -> None:
        """Schedule the removal of the files of `segments` deleted segments."""
        due_ms = self._clock.now_ms() + partition.config.file_delete_delay_ms
        heapq.heappush(self._queue, (due_ms, next(self._number), partition, segments))

    def take_due(self) -> Iterator[tuple[Partition, int]]:
        """Yield the due partitions with their number of segments, each once."""
        now_ms = self._clock.now_ms()
        while self._queue and self._queue[0][0] <= now_ms:
            _, _, partition, segments = heapq.heappop(self._queue)
            yield partition, segments
