"""A log directory: the partitions' folders, and what they share.

    .lock                             held while a node runs on it
    .kafka_cleanshutdown              how the last process began and ended (`start_marks`)
    .metaquorum_started
    .metaquorum_syncing               whether a sync is under way, or has failed
    (`sync_failure_marker`) *-offset-checkpoint               offsets of all logs
    (`offset_checkpoints`) <topic>-<partition>/              one log <topic>-<p>.<unique>-delete/
    a log being deleted: readers may still be in it <topic>-<p>.<unique>-stray/       a log the
    cluster does not know; kept for a week, not served

The clean-shutdown mark is removed, and its removal synced, before any log is looked at
(KAFKA-10471): a crash at any later point is then recovered from as a crash. A log that cannot be
opened does not stop the others; it is in `offline` with the reason.
"""

import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Final

import trio

from dataplane.log.dirs.offset_checkpoints import HighWatermarks, OffsetCheckpoints
from dataplane.log.partition_log import PartitionLog
from dataplane.log.recovery.boot_markers import BootMarkers
from dataplane.log.recovery.checkpoints import LogOffsets, Partition
from dataplane.log.recovery.folder import Unsynced
from dataplane.log.recovery.recovery import LoadedLog, load_log
from dataplane.log.segments.config import LogConfig
from dataplane.log.segments.files import (
    MAX_OPEN_FILES,
    DirectoryFailedError,
    OpenFiles,
    storage_error,
    storage_errors,
)
from dataplane.log.segments.names import (
    DELETED_FOLDER,
    LOCK,
    RECOVERY_POINT_CHECKPOINT,
    STRAY_FOLDER,
    parse_partition_folder,
    partition_folder,
    retired_folder,
    stray_since_ms,
    stray_unique,
)
from dataplane.log.segments.segment import SegmentState
from metaquorum.runtime.interfaces import Disk, FileLock, StorageError
from wire.primitives.frozen import frozen
from wire.primitives.types import ZERO_UUID, Uuid

logger = logging.getLogger(__name__)

# Logs opened one behind the other in one call beside the loop, and such calls at a time.
LOADS_PER_CALL: Final = 32
CONCURRENT_CALLS: Final = 4
# What the cluster does not know was deleted while this node was down, most likely. But it is not
# removed at once, or a mistake (the metadata of another cluster) would cost everything.
STRAY_KEPT_MS: Final = 7 * 24 * 3600 * 1000
# So many changed logs are synced faster with all that the file system has.
MANY_LOGS: Final = 100

ConfigOf = Callable[[str], LogConfig]


@frozen
class NewPartition:
    topic: str
    partition: int
    topic_id: bytes
    config: LogConfig


class LogDir:
    """Made by `LogDir.open`; `load` it before anything else."""

    def __init__(self, disk: Disk, path: str, lock: FileLock | None, max_open_files: int) -> None:
        self.path = path
        self.directory_id: Uuid = ZERO_UUID
        self.failure: StorageError | None = None  # why all of it is offline
        self.partitions: dict[Partition, PartitionLog] = {}
        # The offsets that checkpoints have of logs of which no folder was found.
        self.missing: dict[Partition, int] = {}
        self.offline: dict[Partition, StorageError] = {}
        self.checkpoints: Final = OffsetCheckpoints(disk, path)
        self.was_clean = False
        self.last_broker_epoch = -1  # in which it was stopped, when it was clean
        # Nobody has been told yet of what the directory before it had.
        self.is_new = False
        # The last process of which everything is here; -1 for none.
        self.previous_broker_epoch = -1
        self.files = OpenFiles(disk, path, max_open_files)
        self._disk = disk
        self._lock = lock
        self._boot_markers = BootMarkers(disk, path)
        self._deleted: list[str] = []
        self._strays: list[str] = []
        self._has_stale_checkpoints = False  # checkpoints on disk do, and it has been logged

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        *,
        is_locked: bool = False,
        max_open_files: int = MAX_OPEN_FILES,
    ) -> "LogDir":
        """The directory is there and is this process's. StorageError if it cannot be.

        `is_locked`: the caller holds its lock, and keeps it.
        """
        with storage_errors("use", path):
            disk.make_dirs(path)
        if is_locked:
            log_dir = cls(disk, path, None, max_open_files)
            with storage_errors("read", path):
                log_dir.previous_broker_epoch = log_dir._boot_markers.intact_broker_epoch()
                log_dir.is_new = log_dir._has_nothing()
            return log_dir
        lock_path = os.path.join(path, LOCK)
        try:
            lock = disk.lock(lock_path)
        except BlockingIOError:
            raise StorageError(
                f"{path} is in use by another process; stop that one or choose another directory"
            ) from None
        except OSError as error:
            raise storage_error(error, "lock", lock_path) from error
        return cls(disk, path, lock, max_open_files)

    def _path(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    # Start

    def _has_nothing(self) -> bool:
        """No log, and no word of any: not so from the first checkpoint on (`settle`). OSError."""
        return not self._disk.exists(self._path(RECOVERY_POINT_CHECKPOINT)) and not any(
            parse_partition_folder(name) for name in self._disk.list(self.path)
        )

    async def settle(self, recreated: Iterable[Partition] = ()) -> None:
        """What was lost is known: this directory's word counts from now on.

        `recreated`: logs that were noted here, and have begun anew, here or in another directory.
        Their old recovery points would keep the new logs from opening after a kill.
        It is synced before anything is written to a log here. StorageError.
        """
        for partition in recreated:
            self.checkpoints.forget(partition)
        known = self.checkpoints.high_watermarks
        await self.checkpoints.write(self.partitions, lambda: known)
        self.is_new = False

    def note_start(self, broker_epoch: int) -> None:
        """The next process can tell whether all is here that this one writes. StorageError."""
        self._boot_markers.note_start(broker_epoch)

    async def load(
        self, config_of: ConfigOf, now_ms: int, *, concurrent: int = CONCURRENT_CALLS
    ) -> None:
        """Every log here is open and recovered, or in `offline`. StorageError for the directory.

        `concurrent`: logs recovered side by side.
        """
        mark = self.files.sync_failure_marker
        with storage_errors("read", self.path):
            offsets = await self._disk.run(self._begin)
            folders = await self._disk.run(self._partition_folders)
            in_doubt = not self.was_clean and mark.is_in_doubt()
            mark.begin()  # a recovery syncs, too
        recovery_points, starts = offsets
        found = {partition for partition, _ in folders}
        for noted in (self.checkpoints.high_watermarks, recovery_points):
            for partition in noted.keys() - found:
                self.missing[partition] = max(self.missing.get(partition, 0), noted[partition])
        configs = {topic: config_of(topic) for topic in dict.fromkeys(at[0] for at, _ in folders)}
        opens = [
            partial(
                self._open_log,
                partition,
                name,
                configs[partition[0]],
                LogOffsets(recovery_points.get(partition, 0), starts.get(partition, 0)),
                now_ms,
                in_doubt,
            )
            for partition, name in folders
        ]
        # After a clean stop this is Python from end to end: threads would only take turns at it.
        await self._in_calls(opens, 1 if self.was_clean else concurrent)
        mark.has_failed = bool(self.offline)  # what was not recovered is as it was
        mark.end()

    def _begin(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
        broker_epoch = self._boot_markers.take_clean()
        if broker_epoch is not None:
            self.last_broker_epoch = broker_epoch
            self.was_clean = True
        names = self._disk.list(self.path)
        self._deleted = [name for name in names if name.endswith(DELETED_FOLDER)]
        self._strays = [name for name in names if name.endswith(STRAY_FOLDER)]
        return self.checkpoints.read()

    def _partition_folders(self) -> list[tuple[Partition, str]]:
        return [
            (found, name)
            for name in self._disk.list(self.path)
            if (found := parse_partition_folder(name)) and self._disk.is_dir(self._path(name))
        ]

    def _open_log(
        self,
        partition: Partition,
        name: str,
        config: LogConfig,
        offsets: LogOffsets,
        now_ms: int,
        in_doubt: bool,
    ) -> Callable[[], object]:
        """What is to be done on the loop with a log that was opened beside it."""
        try:
            loaded = load_log(
                self._disk,
                self._path(name),
                config,
                clean=self.was_clean,
                recovery_point=offsets.recovery_point,
                log_start_offset=offsets.log_start_offset,
                now_ms=now_ms,
                in_doubt=in_doubt,
                notes_damage=self.previous_broker_epoch >= 0,
            )
        except StorageError as error:
            return partial(self._set_offline, partition, error, offsets)
        return partial(self._add, partition, config, loaded, now_ms)

    def _set_offline(self, partition: Partition, error: StorageError, offsets: LogOffsets) -> None:
        logger.error("%s-%d is offline: %s", *partition, error)
        self.offline[partition] = error
        self.checkpoints.keep(partition, offsets)

    def _add(
        self, partition: Partition, config: LogConfig, loaded: LoadedLog, now_ms: int
    ) -> PartitionLog:
        log = PartitionLog(self.files, config, *partition, loaded, now_ms)
        self.partitions[partition] = log
        return log

    async def _in_calls(
        self, steps: Iterable[Callable[[], Callable[[], object]]], concurrent: int
    ) -> None:
        """Each step was called beside the loop, and what it returned on it.

        The first StorageError or OSError ends it, after what had begun.
        """
        rest = iter(list(steps))
        failures: list[StorageError | OSError] = []

        async def take() -> None:
            while not failures and (chunk := list(islice(rest, LOADS_PER_CALL))):
                finished, failure = await self._disk.run(partial(_call_all, chunk))
                for done in finished:
                    done()
                if failure is not None:
                    failures.append(failure)

        async with trio.open_nursery() as nursery:
            for _ in range(concurrent):
                nursery.start_soon(take)
        if failures:
            raise failures[0]

    # Partitions come and go

    async def create(self, new: Iterable[NewPartition], now_ms: int) -> None:
        """Those partitions have an empty log in `partitions`, whose first append makes its folder.

        One whose folder is there already, and holds something, is in `offline`.
        """
        made = [partial(self._create_log, one, now_ms) for one in new]
        if made:
            await self.write_deletions()
            with storage_errors("create a log in", self.path):
                await self._in_calls(made, 1)

    async def write_deletions(self) -> None:
        """Checkpoints tell nothing of logs that were deleted, or that they do is logged once.

        DirectoryFailedError. A full disk keeps nobody from making another log of such a name. The
        next line is logged after a write that succeeds: clients that make topics cause each write.
        """
        try:
            await self.checkpoints.write_deletions(self.partitions)
            self._has_stale_checkpoints = False
        except DirectoryFailedError:
            raise
        except StorageError as error:
            if not self._has_stale_checkpoints:
                logger.warning("checkpoints in %s tell of deleted logs: %s", self.path, error)
            self._has_stale_checkpoints = True

    def _create_log(self, new: NewPartition, now_ms: int) -> Callable[[], object]:
        partition = (new.topic, new.partition)
        assert partition not in self.partitions
        folder = self._path(partition_folder(*partition))
        try:
            with storage_errors("create", folder):
                if self._disk.exists(folder) and self._disk.list(folder):
                    raise StorageError(
                        f"{folder} is there already, and is not served; move it away"
                    )
        except StorageError as error:
            return partial(self._set_offline, partition, error, LogOffsets())
        loaded = LoadedLog(
            folder,
            new.topic_id,
            segments=[SegmentState(0)],
            is_made=False,
        )
        return partial(self._add, partition, new.config, loaded, now_ms)

    def delete(self, topic: str, partition: int, rng: random.Random) -> None:
        """The log is no more; its folder waits for `remove`, its readers go on."""
        unique = f"{rng.getrandbits(128):032x}"
        name = self._retire(topic, partition, unique, DELETED_FOLDER)
        if name is not None:
            self._deleted.append(name)

    def set_aside(self, topic: str, partition: int, rng: random.Random, now_ms: int) -> None:
        """The log is not served any more but kept for a while, as a stray."""
        unique = stray_unique(now_ms, rng.getrandbits(128))
        name = self._retire(topic, partition, unique, STRAY_FOLDER)
        if name is not None:
            self._strays.append(name)

    def expire_strays(self, now_ms: int) -> None:
        """Those that have been strays for long enough are deleted: `take_deleted` tells them."""
        old = [
            name
            for name in self._strays
            if (since_ms := stray_since_ms(name)) is not None and now_ms - since_ms > STRAY_KEPT_MS
        ]
        if old:
            logger.info("%s: %d strays are old enough to be removed", self.path, len(old))
            self._strays = [name for name in self._strays if name not in old]
            self._deleted += old

    def _retire(self, topic: str, partition: int, unique: str, ending: str) -> str | None:
        """The folder's new name; None where no folder was made yet."""
        if self.failure is not None:  # what lies there is for the next start to find
            self.partitions.pop((topic, partition), None)
            self.offline.pop((topic, partition), None)
            return None
        name = retired_folder(topic, partition, unique, ending)
        folder = self._path(partition_folder(topic, partition))
        log = self.partitions.get((topic, partition))
        has_folder = log is None or log.has_folder
        if has_folder:
            with storage_errors("rename", folder):
                self._disk.rename(folder, self._path(name))
        self.partitions.pop((topic, partition), None)
        if log is not None:
            log.moved(self._path(name))
        self.offline.pop((topic, partition), None)
        self.checkpoints.forget((topic, partition))
        return name if has_folder else None

    def take_offline(self, partition: Partition, error: StorageError) -> None:
        """The log is in `offline`; its files stay as they are."""
        log = self.partitions.pop(partition)
        log.close()
        self._set_offline(partition, error, LogOffsets(log.synced_offset, log.log_start_offset))

    def fail(self, error: StorageError) -> None:
        """Nothing here is written or opened any more; what is being read is read to its end."""
        self.failure = error
        self._boot_markers.forget_start()
        self.files.shut()

    def take_deleted(self) -> list[str]:
        """Folders of logs deleted since the last call; the caller gives them to `remove`."""
        names, self._deleted = self._deleted, []
        return names

    def give_back(self, folders: Sequence[str]) -> None:
        """They could not be removed: they are told again."""
        self._deleted += folders

    async def remove(self, folders: Sequence[str]) -> None:
        """They are gone, and stay so after a loss of power. StorageError."""

        def remove() -> None:
            # Their new names first: a loss of power may bring back a folder of which a part is gone
            # already, and under its old name it would be taken for the log of a topic.
            self._disk.sync_dir(self.path)
            for folder in folders:
                if self._disk.exists(self._path(folder)):
                    self._disk.remove_tree(self._path(folder))
            self._disk.sync_dir(self.path)

        with storage_errors("remove a deleted log in", self.path):
            await self._disk.run(remove)

    async def checkpoint(self, high_watermarks: HighWatermarks | None = None) -> None:
        """Recovery points and log starts, and high watermarks if given, survive a loss of power.

        StorageError.
        """
        await self.checkpoints.write(self.partitions, high_watermarks)

    @asynccontextmanager
    async def cutting(self, kept: Mapping[Partition, LogOffsets]) -> AsyncIterator[None]:
        """Inside, logs may be cut of which that is left: checkpoints on disk say no more of them.

        StorageError: that could not be written.
        """
        async with self.checkpoints.cutting(self.partitions, kept):
            yield

    # Stop

    async def close(
        self, high_watermarks: Mapping[Partition, int], *, broker_epoch: int = -1
    ) -> None:
        """Every log is synced and closed, and the directory marked clean if all went well."""
        clean = not self.offline
        closing: list[tuple[PartitionLog, Unsynced]] = []
        logs = iter(list(self.partitions.values()))
        while chunk := list(islice(logs, LOADS_PER_CALL)):
            # Behind one another: these are short calls to the system, between which threads would
            # only take turns.
            some = await self._disk.run(partial(_prepare_close, chunk))
            clean &= len(some) == len(chunk)
            closing += ((log, unsynced) for log, unsynced in some if not unsynced.is_empty)
        if not await self._sync_closing(closing):
            clean = False
            self._boot_markers.forget_start()
        await self.checkpoint(lambda: high_watermarks)
        if clean:
            with storage_errors("mark", self.path):
                await self._disk.run(partial(self._boot_markers.mark_clean, broker_epoch))
        self.abandon()

    async def _sync_closing(self, closing: list[tuple[PartitionLog, Unsynced]]) -> bool:
        """All of these logs are synced and closed; False where some are not. StorageError."""
        with storage_errors("sync", self.path):
            if len(closing) >= MANY_LOGS and await self._disk.run(self._sync_all):
                for log, _ in closing:
                    log.closed_clean()
                return True
        rest = iter(closing)
        clean = True

        async def sync() -> None:
            nonlocal clean
            for log, unsynced in rest:
                try:
                    with storage_errors("sync", log.folder):
                        await self._disk.run(partial(self._sync, unsynced))
                    log.closed_clean()
                except StorageError as error:
                    logger.error("%s-%d: %s", log.topic, log.partition, error)
                    clean = False

        async with trio.open_nursery() as nursery:
            for _ in range(CONCURRENT_CALLS):
                nursery.start_soon(sync)
        return clean

    def _sync_all(self) -> bool:
        with self.files.sync_failure_marker.syncing():
            return self._disk.sync_all(self.path)

    def _sync(self, unsynced: Unsynced) -> None:
        with self.files.sync_failure_marker.syncing():
            unsynced.sync(self._disk)

    def abandon(self) -> None:
        """No file is open and our lock is free; nothing was written for it."""
        self.files.close()
        if self._lock is not None:
            self._lock.release()


def _call_all(
    steps: list[Callable[[], Callable[[], object]]],
) -> tuple[list[Callable[[], object]], StorageError | OSError | None]:
    finished = []
    for step in steps:
        try:
            finished.append(step())
        except (StorageError, OSError) as error:
            return finished, error
    return finished, None


def _prepare_close(logs: list[PartitionLog]) -> list[tuple[PartitionLog, Unsynced]]:
    """Those logs that could be prepared, and what of them is to be synced."""
    done = []
    for log in logs:
        try:
            done.append((log, log.prepare_close()))
        except StorageError as error:
            logger.error("%s-%d: %s", log.topic, log.partition, error)
    return done
