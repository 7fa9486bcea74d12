"""A log directory: the partitions' folders, and the checkpoints they share.

    .lock                             held while a node runs on it
    .kafka_cleanshutdown              there only between a clean stop and the next start
    .metaquorum_started               the last start: of the process, and of its machine
    .metaquorum_syncing               whether a sync is under way, or has failed (`sync_mark`)
    recovery-point-offset-checkpoint  up to where each log is synced
    replication-offset-checkpoint     high watermarks
    log-start-offset-checkpoint       where logs begin that begin within a segment
    cleaner-offset-checkpoint         up to where compacted logs are cleaned
    <topic>-<partition>/              one log
    <topic>-<p>.<unique>-delete/      a log being deleted: readers may still be in it
    <topic>-<p>.<unique>-stray/       a log the cluster does not know; kept for a week, not served

The clean-shutdown mark is removed, and its removal synced, before any log is looked at
(KAFKA-10471): a crash at any later point is then recovered from as a crash. A log that cannot be
opened does not stop the others; it is in `offline` with the reason.

Both marks name a process by its broker epoch. All that it wrote is here where it was stopped in
good order, or its machine has not been started since: whatever killed it, what it had given to the
kernel was written. (Linux tells machines' starts apart; elsewhere a killed process is taken for a
loss of power.)
"""

import logging
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import trio

from dataplane.log.checkpoints import (
    Partition,
    decode_clean_shutdown,
    decode_offsets,
    decode_start,
    encode_clean_shutdown,
    encode_offsets,
    encode_start,
)
from dataplane.log.config import LogConfig
from dataplane.log.files import MAX_OPEN_FILES, OpenFiles, storage_error, storage_errors
from dataplane.log.folder import Unsynced
from dataplane.log.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    DELETED_FOLDER,
    HIGH_WATERMARK_CHECKPOINT,
    LAST_START,
    LOCK,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    STRAY_FOLDER,
    parse_partition_folder,
    partition_folder,
    retired_folder,
    stray_since_ms,
    stray_unique,
)
from dataplane.log.partition_log import PartitionLog
from dataplane.log.recovery import LoadedLog, load_log
from dataplane.log.segment import SegmentState
from metaquorum.runtime.seams import Disk, FileLock, StorageError, write_atomically
from wire.types import ZERO_UUID, Uuid

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


@dataclass(frozen=True, slots=True)
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
        self.high_watermarks: dict[Partition, int] = {}  # as they were at the last checkpoint
        self.cleaner_offsets: dict[Partition, int] = {}  # up to where each log is cleaned
        self.was_clean = False
        self.last_broker_epoch = -1  # in which it was stopped, when it was clean
        # Nobody has been told yet of what the directory before it had.
        self.is_new = False
        # The last process of which everything is here; -1 for none.
        self.previous_broker_epoch = -1
        self.files = OpenFiles(disk, path, max_open_files)
        self._disk = disk
        self._lock = lock
        self._offline_points: dict[Partition, int] = {}
        self._offline_starts: dict[Partition, int] = {}
        self._deleted: list[str] = []
        self._strays: list[str] = []
        self._checkpointing = trio.Lock()

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
                log_dir.previous_broker_epoch = log_dir._previous_broker_epoch()
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

    def _previous_broker_epoch(self) -> int:
        """OSError."""
        stopped = killed = -1
        mark, start = self._path(CLEAN_SHUTDOWN), self._path(LAST_START)
        if self._disk.exists(mark):
            stopped = decode_clean_shutdown(self._disk.read_file(mark))
        if self._disk.exists(start):
            epoch, boot_id = decode_start(self._disk.read_file(start))
            if boot_id and boot_id == self._disk.boot_id():
                killed = epoch
        return max(stopped, killed)

    def _has_nothing(self) -> bool:
        """No log, and no word of any: not so from the first checkpoint on (`settle`). OSError."""
        return not self._disk.exists(self._path(RECOVERY_POINT_CHECKPOINT)) and not any(
            parse_partition_folder(name) for name in self._disk.list(self.path)
        )

    async def settle(self) -> None:
        """What was lost with an earlier directory is known: this one's word counts from now on.

        It is synced before anything is written to a log here. StorageError.
        """
        await self.checkpoint()
        self.is_new = False

    def note_start(self, broker_epoch: int) -> None:
        """The next process can tell whether all is here that this one writes. StorageError.

        Not synced: after a loss of power it says nothing in any case.
        """
        data = encode_start(broker_epoch, self._disk.boot_id())
        with storage_errors("write", self._path(LAST_START)):
            file = self._disk.open(self._path(LAST_START), create=True)
            try:
                file.truncate(0)
                file.write(data, 0)
            finally:
                file.close()

    async def load(
        self, config_of: ConfigOf, now_ms: int, *, concurrent: int = CONCURRENT_CALLS
    ) -> None:
        """Every log here is open and recovered, or in `offline`. StorageError for the directory.

        `concurrent`: logs recovered side by side.
        """
        mark = self.files.sync_mark
        with storage_errors("read", self.path):
            offsets = await self._disk.run(self._begin)
            folders = await self._disk.run(self._partition_folders)
            in_doubt = not self.was_clean and mark.is_in_doubt()
            mark.begin()  # a recovery syncs, too
        recovery_points, starts = offsets
        found = {partition for partition, _ in folders}
        for noted in (self.high_watermarks, recovery_points):
            for partition in noted.keys() - found:
                self.missing[partition] = max(self.missing.get(partition, 0), noted[partition])
        configs = {topic: config_of(topic) for topic in dict.fromkeys(at[0] for at, _ in folders)}
        opens = [
            partial(
                self._open_log,
                partition,
                name,
                configs[partition[0]],
                recovery_points.get(partition, 0),
                starts.get(partition, 0),
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
        mark = self._path(CLEAN_SHUTDOWN)
        if self._disk.exists(mark):
            self.last_broker_epoch = decode_clean_shutdown(self._disk.read_file(mark))
            self.was_clean = True
            self._disk.remove(mark)
            self._disk.sync_dir(self.path)
        names = self._disk.list(self.path)
        self._deleted = [name for name in names if name.endswith(DELETED_FOLDER)]
        self._strays = [name for name in names if name.endswith(STRAY_FOLDER)]
        self.high_watermarks = self._read_offsets(HIGH_WATERMARK_CHECKPOINT)
        self._read_cleaner_offsets()
        recovery_points = self._read_offsets(RECOVERY_POINT_CHECKPOINT)
        return recovery_points, self._read_offsets(LOG_START_CHECKPOINT)

    def _read_cleaner_offsets(self) -> None:
        try:
            self.cleaner_offsets = self._read_offsets(CLEANER_CHECKPOINT)
        except StorageError as error:  # costs no more than another cleaning
            logger.warning("compaction begins at the start of each log: %s", error)

    def _partition_folders(self) -> list[tuple[Partition, str]]:
        return [
            (found, name)
            for name in self._disk.list(self.path)
            if (found := parse_partition_folder(name)) and self._disk.is_dir(self._path(name))
        ]

    def _read_offsets(self, name: str) -> dict[Partition, int]:
        path = self._path(name)
        if not self._disk.exists(path):
            return {}
        try:
            return decode_offsets(self._disk.read_file(path))
        except ValueError as error:
            raise StorageError(
                f"{path} cannot be read ({error}); restore it, or remove it: every log is then "
                f"scanned, and cut where it is damaged"
            ) from None

    def _open_log(
        self,
        partition: Partition,
        name: str,
        config: LogConfig,
        recovery_point: int,
        log_start_offset: int,
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
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                now_ms=now_ms,
                in_doubt=in_doubt,
            )
        except StorageError as error:
            return partial(self._set_offline, partition, error, recovery_point, log_start_offset)
        return partial(self._add, partition, config, loaded, now_ms)

    def _set_offline(
        self,
        partition: Partition,
        error: StorageError,
        recovery_point: int,
        log_start_offset: int,
    ) -> None:
        logger.error("%s-%d is offline: %s", *partition, error)
        self.offline[partition] = error
        # Kept in the checkpoints, or the next start would take synced bytes for a torn tail.
        self._offline_points[partition] = recovery_point
        self._offline_starts[partition] = log_start_offset

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
            with storage_errors("create a log in", self.path):
                await self._in_calls(made, 1)

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
            return partial(self._set_offline, partition, error, 0, 0)
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
        is_made = log is None or log.is_made
        if is_made:
            with storage_errors("rename", folder):
                self._disk.rename(folder, self._path(name))
        self.partitions.pop((topic, partition), None)
        self.cleaner_offsets.pop((topic, partition), None)
        if log is not None:
            log.moved(self._path(name))
        self.offline.pop((topic, partition), None)
        self._offline_points.pop((topic, partition), None)
        self._offline_starts.pop((topic, partition), None)
        return name if is_made else None

    def take_offline(self, partition: Partition, error: StorageError) -> None:
        """The log is in `offline`; its files stay as they are."""
        log = self.partitions.pop(partition)
        log.close()
        self._set_offline(partition, error, log.synced_offset, log.log_start_offset)

    def fail(self, error: StorageError) -> None:
        """Nothing here is written or opened any more; what is being read is read to its end."""
        self.failure = error
        self._forget_start()
        self.files.shut()

    def _forget_start(self) -> None:
        """The next process does not take for granted that all is here that this one wrote."""
        with suppress(OSError):
            self._disk.remove(self._path(LAST_START))

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
            for folder in folders:
                if self._disk.exists(self._path(folder)):
                    self._disk.remove_tree(self._path(folder))
            self._disk.sync_dir(self.path)

        with storage_errors("remove a deleted log in", self.path):
            await self._disk.run(remove)

    # Checkpoints

    async def checkpoint(self, high_watermarks: Mapping[Partition, int] | None = None) -> None:
        """Recovery points and log starts, and high watermarks if given, survive a loss of power."""
        async with self._checkpointing:
            logs = self.partitions.items()
            points = self._offline_points | {
                partition: log.synced_offset for partition, log in logs
            }
            starts = self._offline_starts | {
                partition: log.log_start_offset
                for partition, log in logs
                if log.log_start_offset  # of a first segment too: that may be back after a crash
            }
            contents = {RECOVERY_POINT_CHECKPOINT: points, LOG_START_CHECKPOINT: starts}
            if high_watermarks is not None:
                contents[HIGH_WATERMARK_CHECKPOINT] = self._with_offline(high_watermarks)

            def write() -> None:
                for name, offsets in contents.items():
                    write_atomically(self._disk, self._path(name), encode_offsets(offsets))

            with storage_errors("write a checkpoint in", self.path):
                await self._disk.run(write)

    async def write_high_watermarks(self, high_watermarks: Mapping[Partition, int]) -> None:
        """They survive a loss of power; those of partitions that cannot be opened are kept."""
        async with self._checkpointing:
            offsets = self._with_offline(high_watermarks)
            if offsets == self.high_watermarks:
                return
            data = encode_offsets(offsets)
            with storage_errors("write a checkpoint in", self.path):
                await self._disk.run(
                    lambda: write_atomically(
                        self._disk, self._path(HIGH_WATERMARK_CHECKPOINT), data
                    )
                )
            self.high_watermarks = offsets

    def _with_offline(self, high_watermarks: Mapping[Partition, int]) -> dict[Partition, int]:
        kept = {at: offset for at, offset in self.high_watermarks.items() if at in self.offline}
        return kept | dict(high_watermarks)

    async def write_cleaner_offsets(self) -> None:
        """How far logs are cleaned survives a loss of power."""
        async with self._checkpointing:
            data = encode_offsets(self.cleaner_offsets)
            with storage_errors("write a checkpoint in", self.path):
                await self._disk.run(
                    lambda: write_atomically(self._disk, self._path(CLEANER_CHECKPOINT), data)
                )

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
            self._forget_start()
        await self.checkpoint(high_watermarks)
        if clean:
            mark = encode_clean_shutdown(broker_epoch)
            with storage_errors("mark", self.path):
                await self._disk.run(
                    lambda: write_atomically(self._disk, self._path(CLEAN_SHUTDOWN), mark)
                )
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
        with self.files.sync_mark.syncing():
            return self._disk.sync_all(self.path)

    def _sync(self, unsynced: Unsynced) -> None:
        with self.files.sync_mark.syncing():
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
