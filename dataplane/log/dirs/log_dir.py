"""A log directory: the folders of its partitions, and the files that they share.

    .lock                         locked while a node uses the directory
    .kafka_cleanshutdown          last clean shutdown (`boot_markers`)
    .metaquorum_started           last start (`boot_markers`)
    .metaquorum_syncing           1 while a sync is in progress or after one failed
                                  (`sync_failure_marker`)
    *-offset-checkpoint           offsets of all logs (`offset_checkpoints`)
    <topic>-<partition>/          one log
    <topic>-<p>.<unique>-future/  a copy of a log in another directory, to which it moves
                                  (`moved_logs`)
    <topic>-<p>.<unique>-delete/  a log being deleted; reads in progress may still use it
    <topic>-<p>.<unique>-stray/   a log that the cluster does not know: not served, kept for a week

The clean-shutdown marker is removed, and its removal synced, before any log is opened
(KAFKA-10471): a crash at any later point is recovered as a crash. A log that cannot be opened does
not stop the others; it is in `offline` with the error.
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

from metaquorum.dataplane.log.dirs.moved_logs import future_folder, new_unique
from metaquorum.dataplane.log.dirs.offset_checkpoints import HighWatermarks, OffsetCheckpoints
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.recovery.boot_markers import BootMarkers
from metaquorum.dataplane.log.recovery.checkpoints import LogOffsets, Partition
from metaquorum.dataplane.log.recovery.folder import Unsynced
from metaquorum.dataplane.log.recovery.recovery import LoadedLog, RecoveryStoppedError, load_log
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.files import (
    MAX_OPEN_FILES,
    DirectoryFailedError,
    OpenFiles,
    storage_error,
    storage_errors,
)
from metaquorum.dataplane.log.segments.names import (
    DELETED_FOLDER,
    LOCK,
    RECOVERY_POINT_CHECKPOINT,
    STRAY_FOLDER,
    is_retired_folder,
    parse_partition_folder,
    partition_folder,
    retired_folder,
    stray_since_ms,
    stray_unique,
)
from metaquorum.dataplane.log.segments.segment import SegmentState
from metaquorum.runtime.interfaces import (
    Disk,
    FileLock,
    Identity,
    StorageError,
    is_out_of_descriptors,
)
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.primitives.types import ZERO_UUID, Uuid

logger = logging.getLogger(__name__)

# Logs opened in one call of a worker thread, and the number of such calls at a time.
LOADS_PER_CALL: Final = 32
CONCURRENT_CALLS: Final = 4
# A log that the cluster does not know was most likely deleted while this node was down. It is kept
# for a week all the same: after a mistake (the metadata of another cluster) it can be restored.
STRAY_KEPT_MS: Final = 7 * 24 * 3600 * 1000
# From this number of changed logs on, one sync of the whole file system is faster.
MANY_LOGS: Final = 100

ConfigOf = Callable[[str], LogConfig]


@frozen
class NewPartition:
    """A partition of which this worker has to create the log."""

    topic: str
    partition: int
    topic_id: bytes
    config: LogConfig


class LogDir:
    """One log directory with its logs. Created by `LogDir.open`; call `load` first."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        lock: FileLock | None,
        max_open_files: int,
        identity: Identity,
    ) -> None:
        self.path = path
        self.directory_id: Uuid = ZERO_UUID
        self.failure: StorageError | None = None  # why the whole directory is offline
        self.is_full = False  # a write had no space: see `LogDirs.full`
        self.partitions: dict[Partition, PartitionLog] = {}
        # Offsets in the checkpoints for logs without a folder.
        self.missing: dict[Partition, int] = {}
        self.offline: dict[Partition, StorageError] = {}
        self.futures: dict[Partition, PartitionLog] = {}  # copies of logs in other directories
        # Those of which the checkpoints have the offsets: they may replace their logs.
        self._noted_futures: dict[Partition, PartitionLog] = {}
        self.checkpoints: Final = OffsetCheckpoints(disk, path)
        self.was_clean = False
        self.last_broker_epoch = -1  # broker epoch of the last clean shutdown, if there was one
        # The directory is empty, and the controller may not know yet which logs are lost.
        self.is_new = False
        # Broker epoch of the last process whose writes are all here; -1 for none.
        self.previous_broker_epoch = -1
        self.files = OpenFiles(disk, path, max_open_files, identity)
        self._disk = disk
        self._lock = lock
        self._boot_markers = BootMarkers(disk, path)
        self._deleted: list[str] = []
        self._strays: list[str] = []
        # Deleted logs whose folders have their names still; None for those that were offline.
        self._withdrawn: dict[Partition, PartitionLog | None] = {}
        self._has_stale_checkpoints = False  # checkpoints have deleted logs; this was logged

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        *,
        locked: Identity | None = None,
        max_open_files: int = MAX_OPEN_FILES,
    ) -> "LogDir":
        """Create the directory if it is missing, and lock it. Raises StorageError on failure.

        `locked`: the caller holds the lock, and keeps it, in the directory with this identity.
        """
        with storage_errors("use", path):
            disk.make_dirs(path)
        if locked is not None:
            log_dir = cls(disk, path, None, max_open_files, locked)
            with storage_errors("read", path):
                log_dir.previous_broker_epoch = log_dir._boot_markers.intact_broker_epoch()
                log_dir.is_new = log_dir._has_nothing()
            return log_dir
        lock_path = os.path.join(path, LOCK)
        with storage_errors("use", path):
            identity = disk.identity(path)
        try:
            lock = disk.lock(lock_path)
        except BlockingIOError:
            raise StorageError(
                f"{path} is in use by another process; stop that process or choose another "
                f"directory"
            ) from None
        except OSError as error:
            raise storage_error(error, "lock", lock_path) from error
        return cls(disk, path, lock, max_open_files, identity)

    def _path(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    # Start

    def _has_nothing(self) -> bool:
        """Return whether the directory has no log and no checkpoint; `settle` writes the first one.

        Raises OSError.
        """
        return not self._disk.exists(self._path(RECOVERY_POINT_CHECKPOINT)) and not any(
            parse_partition_folder(name) for name in self._disk.list(self.path)
        )

    async def settle(self, recreated: Iterable[Partition] = ()) -> None:
        """Write checkpoints, once the controller knows which logs were lost with this directory.

        `recreated`: logs in the checkpoints here that were created again, empty, here or in another
        directory. With the old recovery points the new logs could not be opened after a kill. The
        checkpoints are synced before any append to a log here. Raises StorageError.
        """
        for partition in recreated:
            self.checkpoints.forget(partition)
        known = self.checkpoints.high_watermarks
        await self.checkpoints.write(self.noted_logs, lambda: known)
        self.is_new = False

    def note_start(self, broker_epoch: int) -> None:
        """Write the start marker: see `BootMarkers.note_start`. Raises StorageError."""
        self._boot_markers.note_start(broker_epoch)

    async def load(
        self, config_of: ConfigOf, now_ms: int, *, concurrent: int = CONCURRENT_CALLS
    ) -> None:
        """Open and recover all logs of this directory; those that fail are in `offline`.

        `concurrent`: number of logs recovered at the same time. Raises StorageError if the
        directory fails, or if no descriptor is free.
        """
        mark = self.files.sync_failure_marker
        with storage_errors("read", self.path):
            offsets = await self._disk.run(self._begin)
            folders = await self._disk.run(self._partition_folders)
            in_doubt = not self.was_clean and mark.is_in_doubt()
            mark.begin()  # recovery syncs files, too
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
        # After a clean stop this is pure Python work: several threads would only wait for the GIL.
        await self._in_calls(opens, 1 if self.was_clean else concurrent)
        mark.has_failed = bool(self.offline)  # files of these logs were not rewritten
        mark.end()

    def _begin(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
        broker_epoch = self._boot_markers.take_clean()
        if broker_epoch is not None:
            self.last_broker_epoch = broker_epoch
            self.was_clean = True
        retired = [
            name
            for name in self._disk.list(self.path)
            if is_retired_folder(name) and self._disk.is_dir(self._path(name))
        ]
        self._deleted = [name for name in retired if name.endswith(DELETED_FOLDER)]
        self._strays = [name for name in retired if name.endswith(STRAY_FOLDER)]
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
        """Open a log, in a worker thread. Return the call that adds the log on the event loop."""
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
            if is_out_of_descriptors(error):  # the log may be intact
                raise
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
        """Call each step in a worker thread, and its result on the event loop.

        The first StorageError or OSError is raised after all calls in progress have ended.
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

    def has(self, partition: Partition) -> bool:
        """Return whether the partition's log is here, open or offline."""
        return partition in self.partitions or partition in self.offline

    # Creation and deletion of partitions

    async def create(
        self, new: Iterable[NewPartition], now_ms: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Create an empty log for each of these partitions; its first append creates the folder.

        A partition whose folder exists and is not empty is put in `offline`. Nothing is changed
        once `is_wanted` returns False. Raises StorageError if the directory fails.
        """
        made = [partial(self._create_log, one, now_ms, is_wanted) for one in new]
        if made:
            await self.write_deletions()
            with storage_errors("create a log in", self.path):
                await self._in_calls(made, 1)

    async def write_deletions(self) -> None:
        """Remove deleted logs from the checkpoints. Raises DirectoryFailedError.

        Other errors, such as a full disk, are logged and do not prevent the creation of a log with
        a deleted log's name. Only the first one is logged until a write succeeds: clients that
        create topics cause these writes.
        """
        try:
            await self.checkpoints.write_deletions(self.noted_logs)
            self._has_stale_checkpoints = False
        except DirectoryFailedError:
            raise
        except StorageError as error:
            if not self._has_stale_checkpoints:
                logger.warning(
                    "cannot remove deleted logs from the checkpoints in %s: %s; the next "
                    "checkpoint tries again",
                    self.path,
                    error,
                )
            self._has_stale_checkpoints = True

    def _create_log(
        self, new: NewPartition, now_ms: int, is_wanted: Callable[[], bool]
    ) -> Callable[[], object]:
        partition = (new.topic, new.partition)
        assert partition not in self.partitions or not is_wanted()
        folder = self._path(partition_folder(*partition))
        try:
            with storage_errors("create", folder):
                if self._disk.exists(folder) and self._disk.list(folder):
                    raise StorageError(f"{folder} already exists and is not served; move it away")
        except StorageError as error:
            done: Callable[[], object] = partial(self._set_offline, partition, error, LogOffsets())
        else:
            loaded = LoadedLog(
                folder,
                new.topic_id,
                segments=[SegmentState(0)],
                is_made=False,
            )
            done = partial(self._add, partition, new.config, loaded, now_ms)
        return lambda: done() if is_wanted() else None

    async def forget(self, partitions: Iterable[Partition]) -> None:
        """Remove logs from the checkpoints, before their folders are renamed. Nothing else changes.

        A kill between the two would otherwise leave offsets without a folder: those of a lost log,
        if a topic of that name exists again. Raises DirectoryFailedError.
        """
        for partition in partitions:
            self.checkpoints.leave(partition)
        await self.write_deletions()

    def delete(self, topic: str, partition: int, rng: random.Random) -> None:
        """Delete the log: rename its folder, for `remove`. Reads in progress continue."""
        unique = f"{rng.getrandbits(128):032x}"
        name = self._retire(topic, partition, unique, DELETED_FOLDER)
        if name is not None:
            self._deleted.append(name)

    def withdraw(self, partitions: Iterable[Partition]) -> None:
        """Take logs out of service before their folders are renamed: `delete` follows."""
        for partition in partitions:
            self._withdrawn[partition] = self.partitions.pop(partition, None)
            self.offline.pop(partition, None)

    def set_aside(self, topic: str, partition: int, rng: random.Random, now_ms: int) -> None:
        """Take the log out of service as a stray, which is kept for STRAY_KEPT_MS."""
        unique = stray_unique(now_ms, rng.getrandbits(128))
        name = self._retire(topic, partition, unique, STRAY_FOLDER)
        if name is not None:
            self._strays.append(name)

    def expire_strays(self, now_ms: int) -> None:
        """Mark strays older than STRAY_KEPT_MS as deleted: `take_deleted` returns them."""
        old = [
            name
            for name in self._strays
            if (since_ms := stray_since_ms(name)) is not None and now_ms - since_ms > STRAY_KEPT_MS
        ]
        if old:
            logger.info(
                "%s: removing %d stray partition folders that were kept for a week",
                self.path,
                len(old),
            )
            self._strays = [name for name in self._strays if name not in old]
            self._deleted += old

    def _retire(self, topic: str, partition: int, unique: str, ending: str) -> str | None:
        """Rename the log's folder and drop the log. Return the new name; None without a folder."""
        self.checkpoints.left((topic, partition))
        if self.failure is not None:  # leave the folder for the next start
            self.partitions.pop((topic, partition), None)
            self.offline.pop((topic, partition), None)
            self._withdrawn.pop((topic, partition), None)
            return None
        name = retired_folder(topic, partition, unique, ending)
        folder = self._path(partition_folder(topic, partition))
        if (topic, partition) in self._withdrawn:
            log = self._withdrawn.pop((topic, partition))
        else:
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

    # Moves between directories

    @property
    def noted_logs(self) -> Mapping[Partition, PartitionLog]:
        """Logs whose offsets are in the checkpoints."""
        if not self._noted_futures:
            return self.partitions
        return self.partitions | self._noted_futures

    def create_future(
        self, log: PartitionLog, start_offset: int, rng: random.Random, now_ms: int
    ) -> PartitionLog | None:
        """Create the future replica of `log`, empty, with its folder. Raises StorageError.

        Return None if the topic's name is too long for the folder's name.
        """
        at = (log.topic, log.partition)
        name = future_folder(*at, new_unique(rng))
        if name is None:
            return None
        loaded = LoadedLog(
            self._path(name),
            log.topic_id,
            segments=[SegmentState(start_offset)],
            is_made=False,
            log_start_offset=start_offset,
            log_end_offset=start_offset,
            recovery_point=start_offset,
        )
        future = PartitionLog(self.files, log.config, *at, loaded, now_ms)
        future.make_folder()
        self.futures[at] = future
        return future

    def recover_future(
        self, name: str, config: LogConfig, now_ms: int, is_stopped: Callable[[], bool]
    ) -> LoadedLog:
        """Recover the future replica in the folder `name`, by a scan of all of it. Blocking.

        Raises StorageError, or RecoveryStoppedError before the next segment if `is_stopped`.
        """
        marker = self.files.sync_failure_marker
        with storage_errors("recover", self._path(name)):
            marker.begin()
        try:
            loaded = load_log(
                self._disk,
                self._path(name),
                config,
                clean=False,
                recovery_point=0,
                log_start_offset=0,
                now_ms=now_ms,
                is_stopped=is_stopped,
            )
        except RecoveryStoppedError:
            marker.end()
            raise
        except BaseException:
            marker.has_failed = True
            raise
        marker.end()
        # Nothing is lost with the end of a copy.
        loaded.truncated_bytes, loaded.lost_end_offset, loaded.is_damaged = 0, -1, False
        return loaded

    def open_future(self, log: PartitionLog, loaded: LoadedLog, now_ms: int) -> PartitionLog:
        """Return the recovered future replica of `log`; `adopt_future` puts it into service."""
        return PartitionLog(self.files, log.config, log.topic, log.partition, loaded, now_ms)

    def adopt_future(self, future: PartitionLog) -> None:
        self.futures[future.topic, future.partition] = future

    def note_future(self, future: PartitionLog) -> None:
        """Add the future replica to the next checkpoints."""
        self._noted_futures[future.topic, future.partition] = future

    def drop_future(self, future: PartitionLog, rng: random.Random) -> None:
        """Give up a future replica and delete its folder. Raises StorageError."""
        at = (future.topic, future.partition)
        if self.futures.get(at) is future:
            del self.futures[at]
        if self._noted_futures.get(at) is future:
            del self._noted_futures[at]
            self.checkpoints.forget(at)
        name = self.drop_folder(at, future.folder, rng)
        if name is not None:
            future.moved(self._path(name))

    def drop_folder(self, at: Partition, folder: str, rng: random.Random) -> str | None:
        """Delete the folder of a future replica; return its new name. Raises StorageError."""
        if self.failure is not None:  # leave the folder for the next start
            return None
        name = retired_folder(*at, new_unique(rng), DELETED_FOLDER)
        with storage_errors("rename", folder):
            self._disk.rename(folder, self._path(name))
        self._deleted.append(name)
        return name

    def promote_future(self, future: PartitionLog) -> None:
        """Make the future replica the log of its partition. Raises StorageError."""
        at = (future.topic, future.partition)
        folder = self._path(partition_folder(*at))
        with storage_errors("rename", future.folder):
            self._disk.rename(future.folder, folder)
        future.moved(folder)
        del self.futures[at]
        self._noted_futures.pop(at, None)
        self.partitions[at] = future

    def replaced(self, log: PartitionLog, rng: random.Random, now_ms: int) -> str | None:
        """Take a log out of service that another directory has now, as a stray.

        Return the new name of its folder, for `delete_replaced`; None without a folder. Raises
        StorageError after the log was taken out of service, if its folder keeps its name.
        """
        at = (log.topic, log.partition)
        del self.partitions[at]
        self.checkpoints.forget(at)
        if not log.has_folder or self.failure is not None:
            return None
        name = retired_folder(*at, stray_unique(now_ms, rng.getrandbits(128)), STRAY_FOLDER)
        with storage_errors("rename", log.folder):
            self._disk.rename(log.folder, self._path(name))
        log.moved(self._path(name))
        self._strays.append(name)
        return name

    def delete_replaced(self, log: PartitionLog, name: str) -> None:
        """Delete the folder `name` of a replaced log. Raises StorageError."""
        if self.failure is not None or name not in self._strays:
            return
        deleted = name.removesuffix(STRAY_FOLDER) + DELETED_FOLDER
        with storage_errors("rename", self._path(name)):
            self._disk.rename(self._path(name), self._path(deleted))
        log.moved(self._path(deleted))
        self._strays.remove(name)
        self._deleted.append(deleted)

    async def sync_names(self) -> None:
        """Sync the names of the folders in this directory. Raises StorageError."""
        with storage_errors("sync", self.path):
            await self._disk.run(lambda: self._disk.sync_dir(self.path))

    def take_offline(self, partition: Partition, error: StorageError) -> None:
        """Close the log and move it to `offline`; its files are not changed."""
        log = self.partitions.pop(partition)
        log.close()
        self._set_offline(partition, error, LogOffsets(log.synced_offset, log.log_start_offset))

    def fail(self, error: StorageError) -> None:
        """Take the directory offline: open and write no file again. Reads in progress continue."""
        self.failure = error
        self._boot_markers.forget_start()
        self.files.shut()

    def take_deleted(self) -> list[str]:
        """Return folders of logs deleted since the last call, for `remove`."""
        names, self._deleted = self._deleted, []
        return names

    async def remove(self, folders: Sequence[str]) -> dict[str, StorageError]:
        """Remove these folders and sync the removal; return the error of each that is still there.

        Names that are not of a folder, but of a file or a dangling symbolic link, are skipped.
        Raises StorageError if none could be removed, DirectoryFailedError if the directory fails.
        """
        failures: dict[str, StorageError] = {}

        def remove() -> None:
            # Sync their new names first: a loss of power may restore a folder that is partly
            # removed, and under its old name recovery would open it as the log of a topic.
            self._disk.sync_dir(self.path)
            for folder in folders:
                try:
                    with storage_errors("remove", self._path(folder)):
                        if self._disk.is_dir(self._path(folder)):
                            self._disk.remove_tree(self._path(folder))
                except DirectoryFailedError:
                    raise
                except StorageError as error:
                    failures[folder] = error
            self._disk.sync_dir(self.path)

        with storage_errors("remove deleted logs in", self.path):
            await self._disk.run(remove)
        return failures

    async def checkpoint(self, high_watermarks: HighWatermarks | None = None) -> None:
        """Write and sync checkpoints of recovery points, log starts and given high watermarks.

        Raises StorageError.
        """
        await self.checkpoints.write(self.noted_logs, high_watermarks)

    @asynccontextmanager
    async def cutting(self, kept: Mapping[Partition, LogOffsets]) -> AsyncIterator[None]:
        """Hold the checkpoints on disk at or below `kept` while the block truncates these logs.

        Raises StorageError if the checkpoints cannot be written.
        """
        with self.checkpoints.holding(kept):
            await self.lower(kept)
            yield

    async def lower(self, kept: Mapping[Partition, LogOffsets]) -> None:
        """Write checkpoints if they exceed `kept`, which is held. Raises StorageError."""
        if self.checkpoints.exceed(self.noted_logs, kept):
            await self.checkpoint()

    # Stop

    async def close(
        self, high_watermarks: Mapping[Partition, int], *, broker_epoch: int = -1
    ) -> None:
        """Sync and close every log; write the clean-shutdown marker if all of that succeeded.

        Raises StorageError if the directory fails.
        """
        clean = not self.offline
        closing: list[tuple[PartitionLog, Unsynced]] = []
        logs = iter(list(self.partitions.values()))
        while chunk := list(islice(logs, LOADS_PER_CALL)):
            # In one thread: these are short system calls, between which threads wait for the GIL.
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
        """Sync these logs. Return False if some of them failed. Raises StorageError."""
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
                    logger.error(
                        "cannot sync %s-%d at shutdown: %s; the next start recovers all logs of %s",
                        log.topic,
                        log.partition,
                        error,
                        self.path,
                    )
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
        """Close all files and release the lock, without writing anything."""
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
    """Return the logs that could be closed, each with its names that are yet to be synced."""
    done = []
    for log in logs:
        try:
            done.append((log, log.prepare_close()))
        except StorageError as error:
            logger.error(
                "cannot close %s-%d cleanly: %s; the next start recovers all logs of its directory",
                log.topic,
                log.partition,
                error,
            )
    return done
