"""Deleted segments whose files wait for file.delete.delay.ms, so that readers can finish."""

import heapq
import itertools
from collections.abc import Callable, Iterator

from dataplane.log.partition_log import PartitionLog
from dataplane.partition.partition import Partition
from metaquorum.runtime import Clock


class PendingDeletes:
    """Queue of deleted segments by due time, earliest first.

    The delay is one of the monotonic clock: a wall clock that is put forward would remove files
    that are being read, and one that is set back would keep them on a full disk.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: list[tuple[float, int, Partition, PartitionLog, int]] = []
        self._number = itertools.count()

    def add(self, partition: Partition, plog: PartitionLog, segments: int) -> None:
        """Schedule the removal of the files of `segments` deleted segments of the log.

        The partition may have another log by now.
        """
        due = self._clock.monotonic() + partition.config.file_delete_delay_ms / 1000
        row = (due, next(self._number), partition, plog, segments)
        heapq.heappush(self._queue, row)

    def expedite(self, concerns: Callable[[PartitionLog], bool]) -> None:
        """Make the segments of all logs for which `concerns` returns True due: space is needed."""
        now = self._clock.monotonic()
        self._queue = [
            (min(row[0], now) if concerns(row[3]) else row[0], *row[1:]) for row in self._queue
        ]
        heapq.heapify(self._queue)

    def take_due(self) -> Iterator[tuple[Partition, int]]:
        """Yield the due partitions with their number of segments, each once.

        Segments of a log that was moved to another directory are removed with its folder.
        """
        now = self._clock.monotonic()
        while self._queue and self._queue[0][0] <= now:
            _, _, partition, plog, segments = heapq.heappop(self._queue)
            if partition.log is plog:
                yield partition, segments
