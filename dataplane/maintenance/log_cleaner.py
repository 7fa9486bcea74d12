"""The log cleaner: choice of the compacted log to clean next, its memory and its I/O rate.

Each of `log.cleaner.threads` tasks (of the one event loop; blocking work runs in worker threads)
takes the log with the largest dirty ratio of those that are due, cleans it, and looks for the next;
if none is due, it waits for `log.cleaner.backoff.ms`. The offset up to which each log is cleaned is
in Kafka's `cleaner-offset-checkpoint`. A log with a batch that cannot be decoded is uncleanable:
that is logged once, and the log is served but not cleaned until the node restarts. One cleaner
serves all log directories: threads, memory and rate are limits of the worker. The thread of a
cleaning whose disk hangs cleans logs of other directories meanwhile; the memory of that cleaning is
in addition to the limit, one for each such directory and thread.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Final

import trio

from metaquorum.dataplane.instruments.failing_items import FailingItems
from metaquorum.dataplane.log.compaction.cleaning import (
    Cleaning,
    CleaningAborted,
    CleaningOrder,
    CleaningResult,
    UncleanableError,
)
from metaquorum.dataplane.log.compaction.compaction import Cleanable, SegmentAges, cleanable
from metaquorum.dataplane.log.dirs.dir_steps import UnresponsiveError
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.files import DiskFullError
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.worker.context import Worker
from metaquorum.runtime import Runtime, StorageError, is_out_of_descriptors, sleep
from metaquorum.wire.primitives.frozen import frozen

log = logging.getLogger(__name__)

# Compacted logs that are checked without yielding to the event loop.
SLICE_LOGS: Final = 20
# Lower bound of the wait if no log is due: log.cleaner.backoff.ms may be 0.
LEAST_BACKOFF_MS: Final = 10
FIRST_RETRY_S: Final = 15.0
MIN_MAP_BYTES: Final = 1 << 20
MIN_IO_BUFFER_BYTES: Final = 4096


class IoThrottle:
    """Rate limit of the bytes that all cleaner tasks read and write. Plain state."""

    __slots__ = ("_free_at",)

    def __init__(self) -> None:
        self._free_at = 0.0

    def delay_s(self, now: float, size_bytes: int, rate_bytes_per_s: float) -> float:
        """Return the seconds to wait after reading and writing `size_bytes`."""
        self._free_at = max(self._free_at, now) + size_bytes / rate_bytes_per_s
        return self._free_at - now


@frozen
class _Candidate:
    partition: Partition
    plog: PartitionLog
    part: Cleanable


class _Moving:
    """When a cleaning made progress last, in trio's seconds; inf while it is throttled."""

    def __init__(self) -> None:
        self.moved_at = trio.current_time()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.moved_at = inf
        try:
            yield
        finally:
            self.moved_at = trio.current_time()


class LogCleaner:
    """The cleaner of one worker; `run` cleans until it is cancelled."""

    def __init__(
        self,
        worker: Worker,
        runtime: Runtime,
        log_dirs: LogDirs,
        retired: Callable[[Partition, PartitionLog, int], None],
    ) -> None:
        """Call `retired` with a partition, its log and the number of segments to be removed."""
        self._worker = worker
        self._clock = runtime.clock
        self._disk = runtime.disk
        self._log_dirs = log_dirs
        self._retired = retired
        self._throttle = IoThrottle()
        self._workers = 0
        self._cleaning: set[Partition] = set()
        self._uncleanable: set[Partition] = set()
        # Logs for which the disk was full, or no descriptor free. They must not hold up those of
        # other directories.
        self._delayed: FailingItems[Partition] = FailingItems(first_retry_s=FIRST_RETRY_S)
        self._clean_times: dict[int, float] = {}
        self._statistics = worker.cleaner

    async def run(self) -> None:
        """Clean logs until cancelled; return at once if log.cleaner.enable is false."""
        if not self._worker.configs.boolean("log.cleaner.enable"):
            return
        async with trio.open_nursery() as nursery:
            self._workers = 1
            nursery.start_soon(self._work, nursery, 0)

    async def _work(self, nursery: trio.Nursery, number: int) -> None:
        while True:
            configs = self._worker.configs
            wanted = configs.integer("log.cleaner.threads")
            while number == 0 and self._workers < wanted:
                nursery.start_soon(self._work, nursery, self._workers)
                self._workers += 1
            if number >= wanted or not await self._clean_next(number):
                backoff_ms = max(configs.integer("log.cleaner.backoff.ms"), LEAST_BACKOFF_MS)
                await sleep(self._clock, backoff_ms / 1000)

    # Choice of a log

    async def _clean_next(self, number: int) -> bool:
        """Clean the filthiest log, if one is due. Return whether to look for the next at once."""
        found = await self._filthiest()
        if found is None:
            return False
        log_dir = self._log_dirs.dir_of((found.partition.topic, found.partition.index))
        if log_dir is None:  # deleted meanwhile
            return False
        moving = _Moving()
        clean = partial(self._clean_timed, found, number, moving)
        try:
            return await self._log_dirs.do(log_dir, clean, lambda: moving.moved_at)
        except UnresponsiveError:
            return True

    async def _clean_timed(self, found: _Candidate, number: int, moving: _Moving) -> bool:
        began = self._clock.monotonic()
        self._cleaning.add(found.partition)
        try:
            return await self._clean(found, moving)
        finally:
            self._cleaning.discard(found.partition)
            self._clean_times[number] = self._clock.monotonic() - began
            self._statistics.max_clean_time_secs = max(self._clean_times.values())

    async def _filthiest(self) -> _Candidate | None:
        """Return the due log with the largest dirty ratio, or None; update the metrics."""
        now_ms = self._clock.now_ms()
        best: _Candidate | None = None
        here: set[Partition] = set()
        max_delay_ms = looked = 0
        for partition in self._worker.replica_manager:
            here.add(partition)
            if not self._may_clean(partition):
                continue
            looked += 1
            if looked % SLICE_LOGS == 0:
                await trio.lowlevel.checkpoint()
            try:
                part = self._cleanable(partition, now_ms)
            except StorageError as error:
                if _is_transient(error):
                    self._try_later(partition, error)
                else:
                    self._set_uncleanable(partition, str(error))
                continue
            max_delay_ms = max(max_delay_ms, part.delay_ms)
            if part.is_due(partition.config.compaction) and (
                best is None or part.dirty_ratio > best.part.dirty_ratio
            ):
                best = _Candidate(partition, partition.log, part)
        self._uncleanable &= here
        self._delayed.keep(here)
        self._statistics.uncleanable_partitions_count = len(self._uncleanable)
        self._statistics.max_compaction_delay_secs = max_delay_ms / 1000
        if best is not None and not self._may_clean(best.partition):  # changed meanwhile
            return None
        return best

    def _may_clean(self, partition: Partition) -> bool:
        return (
            partition.config.compacts
            and partition.offline is None
            and partition.log.segment_count > 1
            and not self._is_moving(partition)
            and partition not in self._cleaning
            and partition not in self._uncleanable
            and self._delayed.is_due(partition, self._clock.monotonic())
            and not self._hangs(partition)
        )

    def _hangs(self, partition: Partition) -> bool:
        log_dir = self._log_dirs.dir_of((partition.topic, partition.index))
        return log_dir is not None and self._log_dirs.is_unresponsive(log_dir)

    def _is_moving(self, partition: Partition) -> bool:
        """Return whether the log moves to another directory: it is not cleaned then."""
        return self._log_dirs.is_moving((partition.topic, partition.index))

    def _cleanable(self, partition: Partition, now_ms: int) -> Cleanable:
        plog = partition.log
        segments = [
            SegmentAges(
                segment.base_offset,
                end,
                segment.size_bytes,
                segment.first_timestamp,
                segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms,
            )
            for segment, end in plog.sealed_segments()
        ]
        return cleanable(
            segments,
            self._log_dirs.cleaner_offset((partition.topic, partition.index)),
            min(partition.last_stable_offset, plog.recovery_point),
            now_ms,
            partition.config.compaction,
        )

    # Cleaning

    async def _clean(self, found: _Candidate, moving: _Moving) -> bool:
        partition, plog = found.partition, found.plog
        began = self._clock.monotonic()
        cleaning = Cleaning(
            plog,
            self._disk,
            self._clock,
            self._order(found),
            partial(self._pause, moving),
            lambda: (
                partition.config.compacts
                and partition.offline is None
                and not self._is_moving(partition)
            ),
        )
        try:
            result = await cleaning.run()
            at = (partition.topic, partition.index)
            await self._log_dirs.set_cleaner_offset(at, result.cleaned_to)
        except CleaningAborted:
            log.info("%s: cleaning aborted: the log or its configs changed meanwhile", partition)
            return False
        except UncleanableError as error:
            self._set_uncleanable(partition, str(error))
            return True
        except StorageError as error:
            if plog.failure is not None or not _is_transient(error):
                self._worker.partition_failed(partition, error)
                self._set_uncleanable(partition, str(error))
            else:
                self._try_later(partition, error)
            return True
        finally:
            if cleaning.result.replaced_segments:
                self._retired(partition, plog, cleaning.result.replaced_segments)
        self._delayed.succeeded(partition)
        _log_cleaned(partition, found.part, result, self._clock.monotonic() - began)
        return True

    def _order(self, found: _Candidate) -> CleaningOrder:
        configs, threads = self._worker.configs, max(self._workers, 1)
        map_bytes = configs.integer("log.cleaner.dedupe.buffer.size") // threads
        io_bytes = configs.integer("log.cleaner.io.buffer.size") // threads
        return CleaningOrder(
            found.part.first_dirty,
            found.part.end,
            self._clock.now_ms(),
            found.partition.config.delete_retention_ms,
            max(map_bytes, MIN_MAP_BYTES),
            min(max(configs.double("log.cleaner.io.buffer.load.factor"), 0.01), 0.99),
            max(io_bytes, MIN_IO_BUFFER_BYTES),
        )

    async def _pause(self, moving: _Moving, size_bytes: int) -> None:
        rate = self._worker.configs.double("log.cleaner.io.max.bytes.per.second")
        now = self._clock.monotonic()
        with moving.paused():
            await sleep(self._clock, self._throttle.delay_s(now, size_bytes, max(rate, 1.0)))

    def _try_later(self, partition: Partition, error: StorageError) -> None:
        if self._delayed.failed(partition, str(error), self._clock.monotonic()):
            log.warning(
                "%s: cannot clean the log: %s; the cleaner tries again from time to time",
                partition,
                error,
            )

    def _set_uncleanable(self, partition: Partition, reason: str) -> None:
        log.error(
            "%s: the log is uncleanable until the node restarts, but still served: %s",
            partition,
            reason,
        )
        self._uncleanable.add(partition)
        self._statistics.uncleanable_partitions_count = len(self._uncleanable)


def _is_transient(error: StorageError) -> bool:
    """Return whether nothing was damaged, so that a later cleaning may succeed."""
    return isinstance(error, DiskFullError) or is_out_of_descriptors(error)


def _log_cleaned(
    partition: Partition, part: Cleanable, result: CleaningResult, seconds: float
) -> None:
    counts = result.counts
    log.info(
        "%s: cleaned up to offset %d in %.1f s: kept %d of %d records, %d of %d bytes; %d keys%s",
        partition, result.cleaned_to, seconds, counts.kept_records, counts.read_records,
        result.bytes_after, result.bytes_before, result.map_entries,
        "" if result.cleaned_to == part.end else f"; the next cleaning continues to {part.end}",
    )  # fmt: skip
    if counts.keyless_records:
        log.warning(
            "%s: removed %d records without a key: a compacted topic keeps only keyed records",
            partition, counts.keyless_records,
        )  # fmt: skip
