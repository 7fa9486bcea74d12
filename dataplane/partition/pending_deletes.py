"""Deleted segments whose files wait for file.delete.delay.ms, so that readers can finish."""

import heapq
import itertools
from collections.abc import Iterator

from dataplane.log.partition_log import PartitionLog
from dataplane.partition.partition import Partition
from metaquorum.runtime import Clock


class PendingDeletes:
    """Queue of deleted segments by due time, earliest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: list[tuple[int, int, Partition, PartitionLog, int]] = []
        self._number = itertools.count()

    def add(self, partition: Partition, plog: PartitionLog, segments: int) -> None:
        """Schedule the removal of the files of `segments` deleted segments of the log.

        The partition may have another log by now.
        """
        due_ms = self._clock.now_ms() + partition.config.file_delete_delay_ms
        row = (due_ms, next(self._number), partition, plog, segments)
        heapq.heappush(self._queue, row)

    def take_due(self) -> Iterator[tuple[Partition, int]]:
        """Yield the due partitions with their number of segments, each once.

        Segments of a log that was moved to another directory are removed with its folder.
        """
        now_ms = self._clock.now_ms()
        while self._queue and self._queue[0][0] <= now_ms:
            _, _, partition, plog, segments = heapq.heappop(self._queue)
            if partition.log is plog:
                yield partition, segments
