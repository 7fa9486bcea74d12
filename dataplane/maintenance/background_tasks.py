"""Background tasks of a worker: flushes, retention, checkpoints, compaction, removal of files.

Each task is a loop that sleeps until the task is due. A log that fails is reported, and does not
affect the others. Tasks that wait for a disk are tasks of one log directory: a disk that hangs,
whose calls do not return, holds up no duty of another directory.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Final

import trio

from metaquorum.dataplane.instruments.failing_items import FailingItems
from metaquorum.dataplane.log.dirs.dir_steps import UnresponsiveError
from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.retention import retention_start
from metaquorum.dataplane.maintenance.deleted_folders import DeletedFolders
from metaquorum.dataplane.maintenance.full_dirs import FullDirs
from metaquorum.dataplane.maintenance.log_cleaner import LogCleaner
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.quotas.quota_log import QuotaLog
from metaquorum.dataplane.worker.context import Worker
from metaquorum.runtime import Runtime, StorageError, sleep

log = logging.getLogger(__name__)

# Interval of the checks for sealed segments and flush.ms. log.flush.scheduler.interval.ms can only
# shorten it: with that config's default, "never", flush.ms would have no effect (as in Kafka).
FLUSH_LOOK_MS: Final = 1000
REMOVAL_LOOK_MS: Final = 1000
# Interval at which directories with read errors are probed with a write.
PROBE_LOOK_MS: Final = 1000
UNUSED_QUOTAS_LOOK_MS: Final = 60_000
# How long retention waits for an append to one partition. A device that holds the append up for
# longer delays the others no further; its partition is tried again at the next interval.
MOST_APPEND_WAIT_S: Final = 1.0
LEAST_PERIOD_MS: Final = 10  # lower bound of all intervals from configs
# Partitions that are checked without yielding to the event loop.
SLICE_PARTITIONS: Final = 500


Duty = Callable[[], Awaitable[None]]
DirDuty = Callable[[LogDir], Awaitable[None]]


class BackgroundTasks:
    """All background tasks of one worker; `run` runs them."""

    def __init__(self, worker: Worker, runtime: Runtime, log_dirs: LogDirs) -> None:
        self._worker = worker
        self._clock = runtime.clock
        self._disk = runtime.disk
        self._log_dirs = log_dirs
        self._quota_log = QuotaLog(worker.quotas)
        self.cleaner = LogCleaner(worker, runtime, log_dirs, worker.pending_deletes.add)
        self._folders = DeletedFolders(
            runtime.clock,
            log_dirs,
            lambda: worker.configs.integer("log.segment.delete.delay.ms"),
        )
        self._full_dirs = FullDirs(
            runtime,
            log_dirs,
            lambda: worker.configs.integer("message.max.bytes"),
            self._retain,
            self._remove_in,
        )
        # Two removals at a time would take the segments of one log from under each other. A disk
        # that hangs holds up no other one.
        self._removing: Final = {log_dir: trio.Lock() for log_dir in log_dirs}
        self._failing: FailingItems[str] = FailingItems()  # tasks, by name
        self._unremoved: FailingItems[Partition] = FailingItems()  # with files of deleted segments

    async def run(self) -> None:
        """Run all tasks, each at its interval, until cancelled."""
        configs = self._worker.configs
        async with trio.open_nursery() as nursery:
            for tasks, period_ms in (
                (
                    self._of_each_dir(self._flush),
                    min(FLUSH_LOOK_MS, configs.integer("log.flush.scheduler.interval.ms")),
                ),
                (
                    self._of_each_dir(self._retain),
                    configs.integer("log.retention.check.interval.ms"),
                ),
                (_of_worker(self._maintain_quotas), UNUSED_QUOTAS_LOOK_MS),
                (
                    _of_worker(self._expire_producers),
                    configs.integer("producer.id.expiration.check.interval.ms"),
                ),
                (
                    self._of_each_dir(self._checkpoint),
                    configs.integer("log.flush.offset.checkpoint.interval.ms"),
                ),
                (
                    self._of_each_dir(self._keep_high_watermarks),
                    configs.integer("replica.high.watermark.checkpoint.interval.ms"),
                ),
                (self._of_each_dir(self._log_dirs.look_for), PROBE_LOOK_MS),
                (self._of_each_dir(self._log_dirs.probe), PROBE_LOOK_MS),
                (self._of_each_dir(self._remove_segments), REMOVAL_LOOK_MS),
                (self._of_each_dir(self._folders.remove_due), REMOVAL_LOOK_MS),
            ):
                for name, duty in tasks:
                    nursery.start_soon(self._every, max(period_ms, LEAST_PERIOD_MS), duty, name)
            nursery.start_soon(self.cleaner.run)
            nursery.start_soon(self._full_dirs.run)

    def _of_each_dir(self, duty: DirDuty) -> list[tuple[str, Duty]]:
        """Return a task for each log directory, with its name."""
        name = _name(duty)
        return [(f"{name} {each.path}", partial(duty, each)) for each in self._log_dirs]

    async def _every(self, period_ms: int, duty: Duty, task: str) -> None:
        while True:
            await sleep(self._clock, period_ms / 1000)
            try:
                await duty()
            except UnresponsiveError:  # logged once for all tasks
                continue
            except StorageError as error:
                if self._failing.failed(task, str(error), self._clock.monotonic()):
                    log.error(
                        "background task %s failed: %s; it runs every %d ms", task, error, period_ms
                    )
            else:
                self._failing.succeeded(task)

    async def _partitions(self, log_dir: LogDir | None = None) -> AsyncGenerator[Partition, None]:
        """Yield the partitions that are not offline; let other tasks run from time to time.

        With `log_dir`, only those whose log is in that directory.
        """
        files = None if log_dir is None else log_dir.files
        for number, partition in enumerate(self._worker.replica_manager):
            if number % SLICE_PARTITIONS == SLICE_PARTITIONS - 1:
                await trio.lowlevel.checkpoint()
            if partition.offline is None and files in (None, partition.log.files):
                yield partition

    @contextmanager
    def _reported(self, partition: Partition) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            self._worker.partition_failed(partition, error)

    async def _maintain_quotas(self) -> None:
        """Log which clients exceed a quota or a limit, and forget quotas without recent use."""
        if line := self._quota_log.line():
            log.info("%s", line)
        if clients := self._worker.quotas.producers.newly_refused():
            log.warning(
                "refused batches of new producers: %s; these clients bring more of them than"
                " max.producer.ids.per.client permits within producer.id.expiration.ms: a client"
                " that creates a producer for each message should keep it",
                clients,
            )
        await self._worker.quotas.forget_unused()

    async def _flush(self, log_dir: LogDir) -> None:
        """Sync logs with sealed segments, and logs for which flush.messages or flush.ms is due."""
        async with aclosing(self._partitions(log_dir)) as partitions:
            async for partition in partitions:
                now_ms = self._clock.now_ms()
                if partition.log.needs_flush(now_ms):
                    with self._reported(partition):
                        await partition.flush(self._disk, now_ms)

    async def _retain(self, log_dir: LogDir) -> None:
        """Advance log start offsets by retention.ms and retention.bytes, and delete segments."""
        async with aclosing(self._partitions(log_dir)) as partitions:
            async for partition in partitions:
                with self._reported(partition):
                    await self._retain_one(partition)

    async def _remove_in(self, log_dir: LogDir) -> None:
        """Remove what was deleted in one directory, without waiting for its delay."""
        self._worker.pending_deletes.expedite(log_dir.files)
        await self._remove_segments(log_dir)
        await self._folders.remove_due(log_dir)

    async def _retain_one(self, partition: Partition) -> None:
        if partition.appending.locked():
            with trio.move_on_after(MOST_APPEND_WAIT_S) as waiting:
                async with partition.appending:
                    if not partition.is_hosted:
                        return
                    plog = self._advance_start(partition)
            if waiting.cancelled_caught:
                return
        else:
            plog = self._advance_start(partition)
        # Each deleted segment takes a sync: appends continue meanwhile.
        if count := await plog.delete_old_segments(self._disk):
            self._worker.pending_deletes.add(partition, plog, count)

    def _advance_start(self, partition: Partition) -> PartitionLog:
        """Advance the log start offset as far as retention permits, and return the log.

        The clock is read for each log: the syncs of the logs before it may take seconds, in which
        the clock may be set back.
        """
        plog, config = partition.log, partition.config
        now_ms = self._clock.now_ms()
        start = retention_start(
            plog.segment_spans(),
            plog.log_start_offset,
            partition.high_watermark,
            now_ms,
            config.retention_ms,
            config.retention_bytes,
        )
        if start == plog.log_end_offset and start > plog.log_start_offset:
            plog.roll(now_ms)  # the active segment has expired, too: only a sealed one is deleted
        if plog.advance_log_start(start):
            partition.log_start_moved()
            log.info("%s: retention advanced the log start offset to %d", partition, start)
        return plog

    async def _remove_segments(self, log_dir: LogDir) -> None:
        """Remove files of deleted segments; those that fail are tried again after their delay."""
        async with self._removing[log_dir]:
            await self._remove_due_segments(log_dir)

    async def _remove_due_segments(self, log_dir: LogDir) -> None:
        pending = self._worker.pending_deletes
        for partition, segments in pending.take_due(log_dir.files):
            plog = partition.log
            failed, error = await self._disk.run(partial(plog.remove_deleted, segments))
            if error is None:
                self._unremoved.succeeded(partition)
                continue
            pending.add(partition, plog, failed)
            if self._unremoved.failed(partition, str(error), self._clock.monotonic()):
                self._worker.partition_failed(partition, error)
        self._unremoved.keep(set(self._worker.replica_manager))

    async def _expire_producers(self) -> None:
        async with aclosing(self._partitions()) as partitions:
            async for partition in partitions:
                partition.log.expire_producers(self._clock.now_ms())

    async def _checkpoint(self, log_dir: LogDir) -> None:
        if log_dir.failure is None:
            await self._log_dirs.checkpoint(log_dir, self.high_watermarks)

    async def _keep_high_watermarks(self, log_dir: LogDir) -> None:
        if log_dir.failure is None:
            await self._log_dirs.write_high_watermarks(log_dir, self.high_watermarks)

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """Return the high watermark of each partition of this worker, by topic and index."""
        return {(p.topic, p.index): p.high_watermark for p in self._worker.replica_manager}


def _of_worker(duty: Duty) -> list[tuple[str, Duty]]:
    return [(_name(duty), duty)]


def _name(duty: Duty | DirDuty) -> str:
    return getattr(duty, "__name__", "").strip("_")
