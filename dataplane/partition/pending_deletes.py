"""Deleted segments whose files wait for file.delete.delay.ms, so that readers can finish."""

import heapq
import itertools
from collections.abc import Iterator
from typing import TypeAlias

from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.files import OpenFiles
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.runtime import Clock

_Row: TypeAlias = tuple[float, int, Partition, PartitionLog, int]


class PendingDeletes:
    """Queues of deleted segments by due time, earliest first; one for each log directory.

    The delay is one of the monotonic clock: a wall clock that is put forward would remove files
    that are being read, and one that is set back would keep them on a full disk.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[OpenFiles, list[_Row]] = {}
        self._number = itertools.count()

    def add(self, partition: Partition, plog: PartitionLog, segments: int) -> None:
        """Schedule the removal of the files of `segments` deleted segments of the log.

        The partition may have another log by now.
        """
        due = self._clock.monotonic() + partition.config.file_delete_delay_ms / 1000
        row = (due, next(self._number), partition, plog, segments)
        heapq.heappush(self._queues.setdefault(plog.files, []), row)

    def expedite(self, files: OpenFiles) -> None:
        """Make all segments in the directory with these files due: space is needed."""
        now = self._clock.monotonic()
        queue = self._queues.get(files, [])
        queue[:] = [(min(row[0], now), *row[1:]) for row in queue]
        heapq.heapify(queue)

    def take_due(self, files: OpenFiles) -> Iterator[tuple[Partition, int]]:
        """Yield the due partitions of the directory with their number of segments, each once.

        Segments of a log that was moved to another directory are removed with its folder.
        """
        now = self._clock.monotonic()
        queue = self._queues.get(files, [])
        while queue and queue[0][0] <= now:
            _, _, partition, plog, segments = heapq.heappop(queue)
            if partition.log is plog:
                yield partition, segments
