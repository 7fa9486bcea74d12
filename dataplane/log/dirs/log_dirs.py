"""The log directories of one worker, on as many disks (JBOD): each lives and fails by itself.

    online    its partitions are served; new ones go to the directory with the fewest
    failed    a write or sync did not succeed; offline until the node starts again
    absent    could not be used at the start, or is not named in the configuration any more

What takes a directory offline is a write or a sync that the device refuses, as nobody knows then
what it kept; so does one that says only when it is to sync that it is full. Else a full one does
not (nothing was appended, reads go on, and appends do again once there is room), nor does a lack of
descriptors or memory. A read that the device refuses takes its log offline, and has the directory
written to, which tells whether that fails, too.

A partition that was there before this start, and is in no directory that is online, may lie in one
that is not: it is offline rather than begun anew, even if it was never written to. Nothing that a
directory holds can tell that: what it says may be older than what another has taken since.
"""

import logging
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from random import Random
from typing import Final, Protocol

import trio

from dataplane.log.dirs.dir_discovery import AbsentDir, open_dirs
from dataplane.log.dirs.log_dir import ConfigOf, LogDir, NewPartition
from dataplane.log.dirs.offset_checkpoints import HighWatermarks
from dataplane.log.partition_log import PartitionLog
from dataplane.log.recovery.checkpoints import LogOffsets, Partition
from dataplane.log.segments.files import MAX_OPEN_FILES, DirectoryFailedError, UnreadableError
from dataplane.log.segments.names import parse_partition_folder
from metaquorum.runtime.interfaces import Disk, StorageError
from metaquorum.storage.data_dir import Storage
from wire.primitives.types import Uuid

logger = logging.getLogger(__name__)


class FailureListener(Protocol):
    def directory_failed(self, log_dir: LogDir) -> None:
        """None of its logs can be used any more."""

    def log_failed(self, partition: Partition, error: StorageError) -> None:
        """That log could not be read."""


class LogDirs:
    """Made by `LogDirs.open`; `load` them before anything else."""

    def __init__(
        self, online: list[LogDir], absent: Sequence[AbsentDir], storages: Sequence[Storage]
    ) -> None:
        self.online: Final = online
        self.failed: Final[list[LogDir]] = []
        self.absent: Final = absent
        self.listener: FailureListener | None = None
        self._all: Final = tuple(online)
        self._storages = storages  # of those but the data directory, whose lock is not ours
        self._suspects: dict[LogDir, None] = {}
        self._unfound: dict[Partition, StorageError] = {}
        self._none_left = trio.Event()
        self._last_failure: StorageError | None = None

    @classmethod
    def open(
        cls,
        disk: Disk,
        storage: Storage,
        paths: Sequence[str],
        random: Random,
        *,
        owner: str = "a node",
        max_open_files: int = MAX_OPEN_FILES,
    ) -> "LogDirs":
        """The directories at `paths` are this node's and locked; new ones are formatted.

        One that the disk does not give is absent, and told. StorageIdentityError for what a person
        has to set right (a directory of another node, one named twice), StorageError when none is
        left. Slow: for `Disk.run`.
        """
        return cls(*open_dirs(disk, storage, paths, random, owner, max_open_files))

    # What is known

    @property
    def ids(self) -> tuple[Uuid, ...]:
        """Of all directories there are, those too that cannot be used now."""
        return tuple(one.directory_id for one in self._all) + self._absent_ids

    @property
    def offline_ids(self) -> tuple[Uuid, ...]:
        """Of those that cannot be used now."""
        return tuple(one.directory_id for one in self.failed) + self._absent_ids

    @property
    def previous_broker_epoch(self) -> int:
        """The process before this one, if all that it wrote is here but for what is absent; or -1.

        A directory that is new takes nothing away: what was in the one before it `is_lost`.
        """
        epochs = {one.previous_broker_epoch for one in self._all if not one.is_new}
        return epochs.pop() if len(epochs) == 1 else -1

    @property
    def _absent_ids(self) -> tuple[Uuid, ...]:
        return tuple(one.directory_id for one in self.absent if one.directory_id is not None)

    def __iter__(self) -> Iterator[LogDir]:
        """Those that were usable at the start."""
        return iter(self._all)

    def dir_of(self, partition: Partition) -> LogDir | None:
        """Where its log is, or the folder that could not be opened."""
        for log_dir in self._all:
            if partition in log_dir.partitions or partition in log_dir.offline:
                return log_dir
        return None

    def log(self, partition: Partition) -> PartitionLog | None:
        for log_dir in self._all:
            if (found := log_dir.partitions.get(partition)) is not None:
                return found
        return None

    def offline_reason(self, partition: Partition) -> StorageError | None:
        """Why a partition of this worker has no log; None if it has one, or was never made."""
        for log_dir in self._all:
            if (reason := log_dir.offline.get(partition)) is not None:
                return reason
        return self._unfound.get(partition)

    def is_lost(self, partition: Partition) -> bool:
        """A partition that is nowhere once was, and had records.

        One that never had any has no folder, so that checkpoints have to tell. Those that are new,
        as after the loss of a disk, tell nothing: then it is taken for lost, by every process until
        one has come to say so (`settle`).
        """
        noted = self.noted_end(partition)
        return any(one.is_new for one in self._all) if noted is None else noted > 0

    def noted_end(self, partition: Partition) -> int | None:
        """Up to where, at least, a log reached that is nowhere now; None: nothing was noted."""
        noted = [one.missing[partition] for one in self._all if partition in one.missing]
        return max(noted, default=None)

    def set_offline(self, partition: Partition, reason: StorageError) -> None:
        """It has no log, and gets none."""
        self._unfound[partition] = reason

    # Start

    async def load(self, config_of: ConfigOf, now_ms: int, *, concurrent: int) -> None:
        """Every log is open and recovered, or offline. StorageError when no directory is left.

        `concurrent`: logs recovered side by side in each directory.
        """

        async def load(log_dir: LogDir) -> None:
            try:
                await log_dir.load(config_of, now_ms, concurrent=concurrent)
            except StorageError as error:
                self.fail(log_dir, error)
            log_dir.files.on_unreadable = self._unreadable

        async with trio.open_nursery() as nursery:
            for log_dir in self._all:
                nursery.start_soon(load, log_dir)
        if not self.online:
            raise self._nothing_left()

    def note_start(self, broker_epoch: int) -> None:
        """This process is registered in that epoch, and may write."""
        for log_dir in list(self.online):
            try:
                log_dir.note_start(broker_epoch)
            except StorageError as error:
                if isinstance(error, DirectoryFailedError):
                    self.fail(log_dir, error)
                else:
                    logger.warning("the next start will take this one for a power cut: %s", error)

    def refuse_duplicates(self) -> None:
        """A partition found in two directories is offline: nobody knows which one is right."""
        for number, log_dir in enumerate(self._all):
            for other in self._all[number + 1 :]:
                for at in sorted(log_dir.partitions.keys() & other.partitions.keys()):
                    error = StorageError(
                        f"it is in {log_dir.path} and in {other.path}; stop the node and move the "
                        "folder away that is not to be served"
                    )
                    log_dir.take_offline(at, error)
                    other.take_offline(at, error)

    async def settle(self) -> None:
        """The quorum knows what is lost: directories that are new have what they have from now on,

        and no checkpoint tells of a lost log that has begun anew. A directory that cannot write
        that is taken for new once more by the next process, or what is lost for lost.
        """
        for log_dir in list(self.online):
            recreated = [at for at in log_dir.missing if self.dir_of(at) is not None]
            if not log_dir.is_new and not recreated:
                continue
            try:
                with self._watched(log_dir):
                    await log_dir.settle(recreated)
            except StorageError as error:
                logger.warning(
                    "the next start will take what was lost in %s for lost once more: %s",
                    log_dir.path,
                    error,
                )

    # Partitions come and go

    async def create(
        self, new: Iterable[NewPartition], now_ms: int, *, may_be_absent: bool = False
    ) -> None:
        """Those partitions have an empty log, each in the directory with the fewest.

        `may_be_absent`: they are no news to this worker, so that they may lie in a directory that
        is not online. These are offline then, and so is one whose folder is there already.
        """
        left = list(new)
        missing = [*(one.path for one in self.absent), *(one.path for one in self.failed)]
        if may_be_absent and missing:
            self._set_unfound(left, ", ".join(missing))
            return
        while left and self.online:
            placed = self._place(left)
            left = []
            for log_dir, some in placed:
                try:
                    await log_dir.create(some, now_ms)
                except DirectoryFailedError as error:
                    self.fail(log_dir, error)
                    left += some

    def _set_unfound(self, new: list[NewPartition], places: str) -> None:
        if not new:
            return
        logger.error(
            "%d partitions are in none of the log directories that can be used, and are offline: "
            "they may be in %s",
            len(new),
            places,
        )
        for one in new:
            self._unfound[one.topic, one.partition] = StorageError(f"it may be in {places}")

    def _place(self, new: list[NewPartition]) -> list[tuple[LogDir, list[NewPartition]]]:
        """Where each is to be: in the directory with the fewest, the first named of several."""
        if len(self.online) == 1:
            return [(self.online[0], new)]
        placed: list[tuple[LogDir, list[NewPartition]]] = [(one, []) for one in self.online]
        counts = [len(one.partitions) + len(one.offline) for one in self.online]
        for one in new:
            number = counts.index(min(counts))
            counts[number] += 1
            placed[number][1].append(one)
        return [(log_dir, some) for log_dir, some in placed if some]

    def delete(self, topic: str, partition: int, rng: Random) -> None:
        """The log is no more; its folder waits for `LogDir.remove`. StorageError."""
        self._unfound.pop((topic, partition), None)
        if (log_dir := self.dir_of((topic, partition))) is not None:
            with self._watched(log_dir):
                log_dir.delete(topic, partition, rng)

    async def write_deletions(self) -> None:
        """Checkpoints tell nothing of logs that were deleted: see `OffsetCheckpoints`."""
        for log_dir in list(self.online):
            with suppress(DirectoryFailedError), self._watched(log_dir):
                await log_dir.write_deletions()

    # Failures

    def fail(self, log_dir: LogDir, error: StorageError) -> None:
        """All of the directory is offline until the next start."""
        if log_dir.failure is not None:
            return
        log_dir.fail(error)
        self.online.remove(log_dir)
        self.failed.append(log_dir)
        self._last_failure = error
        logger.error(
            "log directory %s is offline, with %d partitions: %s",
            log_dir.path,
            len(log_dir.partitions) + len(log_dir.offline),
            error,
        )
        if self.listener is not None:
            self.listener.directory_failed(log_dir)
        if not self.online:
            self._none_left.set()

    def failed_at(self, partition: Partition, error: StorageError) -> None:
        """A log's operation failed in this way: its directory goes offline if that is why."""
        log_dir = self.dir_of(partition)
        if log_dir is not None and isinstance(error, DirectoryFailedError):
            self.fail(log_dir, error)
        elif log_dir is not None and isinstance(error, UnreadableError):
            self._suspects[log_dir] = None

    async def probe(self) -> None:
        """Directories that could not be read lately were written to. StorageError."""
        while self._suspects:
            log_dir, _ = self._suspects.popitem()
            if log_dir.failure is None:
                await self.checkpoint_one(log_dir)

    def _unreadable(self, folder: str, error: StorageError) -> None:
        partition = parse_partition_folder(os.path.basename(folder))
        if partition is not None and self.listener is not None:
            self.listener.log_failed(partition, error)

    async def wait_none_left(self) -> None:
        """Returns never; StorageError when the last directory has failed."""
        await self._none_left.wait()
        raise self._nothing_left()

    def _nothing_left(self) -> StorageError:
        return StorageError(f"no log directory is left: {self._last_failure}")

    @contextmanager
    def _watched(self, log_dir: LogDir) -> Iterator[None]:
        try:
            yield
        except DirectoryFailedError as error:
            self.fail(log_dir, error)
            raise

    # Checkpoints

    async def checkpoint(self, high_watermarks: HighWatermarks | None = None) -> None:
        """Recovery points and log starts, and high watermarks if given, survive a loss of power.

        The first StorageError, after all directories had their turn.
        """
        failures: list[StorageError] = []
        for log_dir in list(self.online):
            try:
                await self.checkpoint_one(log_dir, high_watermarks)
            except StorageError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def checkpoint_one(
        self, log_dir: LogDir, high_watermarks: HighWatermarks | None = None
    ) -> None:
        """As `checkpoint`, for that directory."""
        with self._watched(log_dir):
            await log_dir.checkpoint(
                None if high_watermarks is None else partial(_of_dir, log_dir, high_watermarks)
            )

    @asynccontextmanager
    async def cutting(
        self, kept: Mapping[Partition, LogOffsets]
    ) -> AsyncIterator[Mapping[Partition, StorageError]]:
        """Inside, logs may be cut of which that is left: checkpoints on disk say no more of them.

        Given are those logs that must not be cut, as their directory could not write that.
        """
        by_dir: dict[LogDir, dict[Partition, LogOffsets]] = {}
        for at, offsets in kept.items():
            if (log_dir := self.dir_of(at)) is not None:
                by_dir.setdefault(log_dir, {})[at] = offsets
        failures: dict[Partition, StorageError] = {}
        async with AsyncExitStack() as stack:
            for log_dir, some in by_dir.items():
                try:
                    with self._watched(log_dir):
                        await stack.enter_async_context(log_dir.cutting(some))
                except StorageError as error:
                    failures |= dict.fromkeys(some, error)
            yield failures

    async def write_high_watermarks(self, high_watermarks: HighWatermarks) -> None:
        """They survive a loss of power. The first StorageError, after all had their turn."""
        failures: list[StorageError] = []
        for log_dir in list(self.online):
            try:
                with self._watched(log_dir):
                    noted = partial(_of_dir, log_dir, high_watermarks)
                    await log_dir.checkpoints.write_high_watermarks(noted)
            except StorageError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def cleaner_offset(self, partition: Partition) -> int:
        """Up to where the log is cleaned."""
        log_dir = self.dir_of(partition)
        return 0 if log_dir is None else log_dir.checkpoints.cleaner_offsets.get(partition, 0)

    async def set_cleaner_offset(self, partition: Partition, offset: int) -> None:
        """The log is cleaned up to there, which survives a loss of power. StorageError."""
        if (log_dir := self.dir_of(partition)) is not None:
            log_dir.checkpoints.cleaner_offsets[partition] = offset
            with self._watched(log_dir):
                await log_dir.checkpoints.write_cleaner_offsets()

    async def remove(self, log_dir: LogDir, folders: Sequence[str]) -> None:
        """Folders of deleted logs are gone, and stay so after a loss of power. StorageError."""
        if log_dir.failure is None:
            with self._watched(log_dir):
                await log_dir.remove(folders)

    # Stop

    async def close(
        self, high_watermarks: Mapping[Partition, int], *, broker_epoch: int = -1
    ) -> None:
        """Every log is synced and closed, and each directory marked clean if all went well there.

        The first StorageError, after all directories had their turn.
        """
        failures: list[StorageError] = []

        async def close(log_dir: LogDir) -> None:
            try:
                of_dir = _of_dir(log_dir, lambda: high_watermarks)
                await log_dir.close(of_dir, broker_epoch=broker_epoch)
            except StorageError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for log_dir in self.online:
                nursery.start_soon(close, log_dir)
        self.abandon()
        if failures:
            raise failures[0]

    def abandon(self) -> None:
        """No file is open and the locks are free; nothing was written for it."""
        for log_dir in self._all:
            log_dir.abandon()
        for storage in self._storages:
            storage.close()


def _of_dir(log_dir: LogDir, high_watermarks: HighWatermarks) -> Mapping[Partition, int]:
    offsets = high_watermarks()
    return {at: offsets[at] for at in log_dir.partitions if at in offsets}
