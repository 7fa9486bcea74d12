"""The log directories of one worker (JBOD): each disk fails independently of the others.

    online    its partitions are served; new partitions go to the directory with the fewest
    failed    a write or sync failed; offline until the node restarts
    absent    unusable at the start, or no longer named in `log.dirs`
    full      online, but a write had no space since the last call of `has_room`
    unresponsive   online, but its disk has not answered for a while (`dir_steps`)

A failed write or sync takes the directory offline, because the content of the device is unknown
then; so does a full disk that is only reported by a sync. Otherwise a full disk does not (nothing
was appended, reads continue, and appends succeed again once there is space), nor do missing file
descriptors or memory. A failed read takes its log offline, and the directory is probed with a
write, which shows whether writes fail, too.

A partition that existed before this start and is in no online directory may be in one that is not
online: it is offline and not created again, even if it never had records. The checkpoints of the
online directories cannot rule that out: they may be older than records in the other directory.
"""

import logging
import os
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from random import Random
from typing import Final, Protocol, TypeVar

import trio

from metaquorum.dataplane.log.dirs.dir_discovery import AbsentDir, open_dirs
from metaquorum.dataplane.log.dirs.dir_steps import DirSteps, UnresponsiveError
from metaquorum.dataplane.log.dirs.log_dir import ConfigOf, LogDir, NewPartition
from metaquorum.dataplane.log.dirs.moved_logs import SettledMoves, UnfinishedMove, settle_moves
from metaquorum.dataplane.log.dirs.offset_checkpoints import HighWatermarks
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.recovery.checkpoints import LogOffsets, Partition
from metaquorum.dataplane.log.segments.files import (
    MAX_OPEN_FILES,
    DirectoryFailedError,
    DiskFullError,
    UnreadableError,
)
from metaquorum.dataplane.log.segments.names import parse_partition_folder
from metaquorum.quorum.storage.data_dir import Storage
from metaquorum.runtime.interfaces import Disk, StorageError, is_out_of_descriptors
from metaquorum.wire.primitives.types import Uuid

logger = logging.getLogger(__name__)

T = TypeVar("T")

End = Callable[[], Awaitable[None]]

# Logs that are deleted without yielding to the event loop.
SLICE_PARTITIONS: Final = 500


class FailureListener(Protocol):
    """Receiver of failures of directories and logs."""

    def directory_failed(self, log_dir: LogDir) -> None:
        """Handle a directory that went offline, with all its logs."""

    def log_failed(self, partition: Partition, error: StorageError) -> None:
        """Handle a log that could not be read."""


class LogDirs:
    """All log directories of one worker. Created by `LogDirs.open`; call `load` first."""

    def __init__(
        self,
        online: list[LogDir],
        absent: Sequence[AbsentDir],
        storages: Sequence[Storage],
        disk: Disk,
        random: Random,
    ) -> None:
        self.online: Final = online
        self.failed: Final[list[LogDir]] = []
        self.absent: Final = absent
        self.listener: FailureListener | None = None
        # Directory for a replica that this worker does not have yet.
        self.preferred: Final[dict[Partition, str]] = {}
        self.unfinished_moves: list[UnfinishedMove] = []  # begun by the last process
        # Those that have not begun again yet: their copies are being recovered, or wait for that.
        self.continuing: Final[dict[Partition, UnfinishedMove]] = {}
        self._all: Final = tuple(online)
        self._random = random
        self._disk = disk
        self._cutting: Counter[Partition] = Counter()
        self._storages = storages  # with locks; the data directory's lock belongs to the node
        self._suspects: dict[LogDir, None] = {}
        self._unfound: dict[Partition, StorageError] = {}
        self.full: Final[dict[LogDir, None]] = {}
        self._is_one_full = trio.Event()
        self._none_left = trio.Event()
        self._steps: Final = DirSteps()
        self._last_failure: StorageError | None = None
        marks = {one: one.previous_broker_epoch for one in online if not one.is_new}
        # Broker epoch of the last process all of whose writes are in some of the directories, or
        # -1. The others are doubtful: they have an older image of their disk, lost power, or were
        # not among log.dirs when that process ran.
        self.newest_broker_epoch: Final = max(marks.values(), default=-1)
        self._doubtful: dict[LogDir, None] = {
            one: None for one, epoch in marks.items() if epoch < self.newest_broker_epoch
        }
        self._broker_epoch = -1  # the broker epoch of this process

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
        """Open and lock the directories at `paths`; format new ones.

        A directory that cannot be read is absent, and logged. Raises StorageIdentityError if an
        operator has to correct `log.dirs` (a directory of another node, or one named twice),
        StorageError if no directory is usable. Blocking: call it in a worker thread.
        """
        opened = open_dirs(disk, storage, paths, random, owner, max_open_files)
        return cls(*opened, disk, random)

    # State

    @property
    def ids(self) -> tuple[Uuid, ...]:
        """Directory ids of all directories: online, failed and absent."""
        return tuple(one.directory_id for one in self._all) + self._absent_ids

    @property
    def offline_ids(self) -> tuple[Uuid, ...]:
        """Directory ids of failed and absent directories."""
        return tuple(one.directory_id for one in self.failed) + self._absent_ids

    @property
    def lost_paths(self) -> list[str]:
        """Paths of the failed directories, and of those in `log.dirs` that are absent."""
        configured = [one.path for one in self.absent if one.is_configured]
        return [one.path for one in self.failed] + configured

    @property
    def previous_broker_epoch(self) -> int:
        """Broker epoch of the previous process if all its writes are in these directories, else -1.

        Absent directories do not count, and new ones do not either: partitions that a new one
        replaces are covered by `is_lost`.
        """
        return -1 if self._doubtful else self.newest_broker_epoch

    @property
    def doubtful_paths(self) -> tuple[str, ...]:
        """Paths of the directories with an older mark than another, until `settle_doubts`."""
        return tuple(one.path for one in self._doubtful)

    def is_doubtful(self, partition: Partition) -> bool:
        """Return whether records of the partition may be missing because a directory is doubtful.

        So it is if its log is in such a directory, or if it is in no directory: its log may be
        newer than the older image of a disk. Checkpoints of another directory show that it has no
        records; those of a doubtful one do not.
        """
        if not self._doubtful:
            return False
        holders = [one for one in self._all if one.has(partition)]
        if holders:
            return any(one in self._doubtful for one in holders)
        return not any(partition in one.missing for one in self._all if one not in self._doubtful)

    def settle_doubts(self) -> None:
        """Mark doubtful directories as started, once the controller knows what may be missing."""
        doubtful, self._doubtful = self._doubtful, {}
        self._note_start([one for one in doubtful if one.failure is None])

    @property
    def _absent_ids(self) -> tuple[Uuid, ...]:
        return tuple(one.directory_id for one in self.absent if one.directory_id is not None)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[LogDir]:
        """Iterate over the directories that were usable at the start."""
        return iter(self._all)

    def dir_of(self, partition: Partition) -> LogDir | None:
        """Return the directory with the partition's log, open or offline; None without one."""
        for log_dir in self._all:
            if log_dir.has(partition):
                return log_dir
        return None

    def log(self, partition: Partition) -> PartitionLog | None:
        for log_dir in self._all:
            if (found := log_dir.partitions.get(partition)) is not None:
                return found
        return None

    def offline_reason(self, partition: Partition) -> StorageError | None:
        """Return why the partition has no usable log; None if it has one or was never created."""
        for log_dir in self._all:
            if (reason := log_dir.offline.get(partition)) is not None:
                return reason
        return self._unfound.get(partition)

    def is_lost(self, partition: Partition) -> bool:
        """Return whether a partition that is in no directory had records that are lost.

        A log without records has no folder, so only checkpoints show whether a log had records. A
        new directory, as after the loss of a disk, has no checkpoints: while a directory is new,
        every unknown partition counts as lost, also for later processes, until `settle`.
        """
        noted = self.noted_end(partition)
        return any(one.is_new for one in self._all) if noted is None else noted > 0

    def noted_end(self, partition: Partition) -> int | None:
        """Return the largest offset that checkpoints have for a log without a folder, or None."""
        noted = [one.missing[partition] for one in self._all if partition in one.missing]
        return max(noted, default=None)

    def set_offline(self, partition: Partition, reason: StorageError) -> None:
        """Mark a partition without a log as offline, for `reason`."""
        self._unfound[partition] = reason

    def keep_unfound(self, partitions: Set[Partition]) -> None:
        """Forget the reasons of partitions without a log that are not among `partitions`."""
        for partition in self._unfound.keys() - partitions:
            del self._unfound[partition]

    async def run(self) -> None:
        """Wait for no disk that hangs, from now on until cancelled: see `DirSteps`."""
        await self._steps.run()

    # Start

    async def load(self, config_of: ConfigOf, now_ms: int, *, concurrent: int) -> None:
        """Open and recover the logs of all directories; those that fail are offline.

        `concurrent`: number of logs recovered at the same time in each directory. Raises
        StorageError if all directories fail, or if no descriptor is free.
        """

        async def load(log_dir: LogDir) -> None:
            try:
                await log_dir.load(config_of, now_ms, concurrent=concurrent)
            except StorageError as error:
                if is_out_of_descriptors(error):  # the directory may be intact
                    raise
                self.fail(log_dir, error)
            log_dir.files.on_unreadable = self._unreadable

        await self._settle_moves()
        async with trio.open_nursery() as nursery:
            for log_dir in self._all:
                nursery.start_soon(load, log_dir)
        if not self.online:
            raise self._nothing_left()

    async def _settle_moves(self) -> None:
        """Finish or undo moves between the directories that the last process had begun."""
        if len(self._all) < 2 and not self.absent:
            return
        paths = [log_dir.path for log_dir in self._all]

        def settle() -> SettledMoves:
            in_doubt = [log_dir.path for log_dir in self._all if self._is_in_doubt(log_dir)]
            return settle_moves(
                self._disk, paths, are_all=not self.absent, rng=self._random, in_doubt=in_doubt
            )

        settled = await self._disk.run(settle)
        self.unfinished_moves = settled.unfinished
        self.continuing.update({each.partition: each for each in settled.unfinished})
        for partition, reason in settled.failed.items():
            self._unfound[partition] = StorageError(reason)

    @staticmethod
    def _is_in_doubt(log_dir: LogDir) -> bool:
        try:
            return log_dir.files.sync_failure_marker.is_in_doubt()
        except OSError:  # `load` reports the directory that fails
            return True

    def note_start(self, broker_epoch: int) -> None:
        """Write start markers, before the first writes in `broker_epoch`.

        Doubtful directories keep their markers until `settle_doubts`: if this process ends before
        the controller has recorded the doubt, the next process has the same doubt.
        """
        self._broker_epoch = broker_epoch
        self._note_start([one for one in self.online if one not in self._doubtful])

    def _note_start(self, log_dirs: Iterable[LogDir]) -> None:
        broker_epoch = self._broker_epoch
        for log_dir in log_dirs:
            try:
                log_dir.note_start(broker_epoch)
            except StorageError as error:
                if isinstance(error, DirectoryFailedError):
                    self.fail(log_dir, error)
                else:
                    logger.warning(
                        "cannot write the start marker in %s: %s; if this process is killed, the "
                        "next start treats that as a loss of power",
                        log_dir.path,
                        error,
                    )

    def refuse_duplicates(self) -> None:
        """Take partitions with a log in two directories offline: either log may be outdated."""
        for number, log_dir in enumerate(self._all):
            for other in self._all[number + 1 :]:
                for at in sorted(log_dir.partitions.keys() & other.partitions.keys()):
                    error = StorageError(
                        f"the partition is in {log_dir.path} and in {other.path}; stop the node "
                        "and move away the folder that is not to be served"
                    )
                    log_dir.take_offline(at, error)
                    other.take_offline(at, error)

    async def settle(self) -> None:
        """Write first checkpoints of new directories, once the controller knows the lost logs.

        Also removes the entries of lost logs that were created again. If a directory cannot be
        written, the next process reports the same logs as lost again.
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
                    "cannot write the checkpoints in %s: %s; the next start reports the logs that "
                    "were lost there as lost again",
                    log_dir.path,
                    error,
                )

    # Creation and deletion of partitions

    async def create(
        self, new: Iterable[NewPartition], now_ms: int, *, may_be_absent: bool = False
    ) -> None:
        """Create an empty log for each partition, in the directory with the fewest partitions.

        `may_be_absent`: this worker had these partitions before, and they may be in a directory
        that is not online: if any directory is failed or absent, they are marked offline instead.
        A partition whose folder already exists is offline, too.
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
                    await self._create_in(log_dir, some, now_ms)
                except DirectoryFailedError as error:
                    self.fail(log_dir, error)
                    left += some
                except UnresponsiveError:  # some of them may have been created before
                    left += [one for one in some if not log_dir.has((one.topic, one.partition))]

    async def _create_in(self, log_dir: LogDir, new: list[NewPartition], now_ms: int) -> None:
        if self._steps.is_unresponsive(log_dir):  # so are all others
            await log_dir.create(new, now_ms)
            return
        is_wanted = True
        create = partial(log_dir.create, new, now_ms, lambda: is_wanted)
        try:
            await self._steps.do(log_dir, create)
        finally:
            is_wanted = False

    def _set_unfound(self, new: list[NewPartition], places: str) -> None:
        if not new:
            return
        logger.error(
            "%d partitions are in no online log directory; they are offline, because they may be "
            "in %s",
            len(new),
            places,
        )
        for one in new:
            self._unfound[one.topic, one.partition] = StorageError(
                f"the partition is in no online log directory, but may be in {places}"
            )

    def _place(self, new: list[NewPartition]) -> list[tuple[LogDir, list[NewPartition]]]:
        """Assign each new partition to the preferred directory, or that with the fewest."""
        usable = [one for one in self.online if not self._steps.is_unresponsive(one)]
        usable = usable or self.online
        if len(usable) == 1:
            return [(usable[0], new)]
        placed: list[tuple[LogDir, list[NewPartition]]] = [(one, []) for one in usable]
        counts = [len(one.partitions) + len(one.offline) for one in usable]
        paths = [log_dir.path for log_dir in usable]
        for one in new:
            preferred = self.preferred.pop((one.topic, one.partition), None)
            if preferred is not None and preferred in paths:
                number = paths.index(preferred)
            else:
                number = counts.index(min(counts))
            counts[number] += 1
            placed[number][1].append(one)
        return [(log_dir, some) for log_dir, some in placed if some]

    async def forget(self, partitions: Iterable[Partition]) -> None:
        """Remove logs from the checkpoints, before they are deleted: see `LogDir.forget`."""
        for log_dir, some in self._by_dir(partitions).items():
            await self._forget_in(log_dir, some)

    def _by_dir(self, partitions: Iterable[Partition]) -> dict[LogDir, list[Partition]]:
        of_dirs: dict[LogDir, list[Partition]] = {}
        for partition in partitions:
            if (log_dir := self.dir_of(partition)) is not None:
                of_dirs.setdefault(log_dir, []).append(partition)
        return of_dirs

    async def _forget_in(self, log_dir: LogDir, partitions: Iterable[Partition]) -> None:
        if log_dir.failure is None:
            with suppress(DirectoryFailedError), self._watched(log_dir):
                await log_dir.forget(partitions)

    async def delete_all(self, ends: Mapping[Partition, End | None], rng: Random) -> None:
        """Forget and delete the logs of these partitions. Those in a directory that hangs: later.

        They are out of service when this returns, and their names free in other directories. The
        value of a partition waits until nothing writes its log; None if it has no open log.
        """
        for partition in ends:
            self._unfound.pop(partition, None)
        placed = self._by_dir(ends)
        for log_dir, some in placed.items():
            step = partial(self._delete_in, log_dir, {each: ends[each] for each in some}, rng)
            try:
                await self._steps.do(log_dir, step, in_any_case=True)
            except UnresponsiveError:
                log_dir.withdraw(some)
        for partition in ends.keys() - {each for some in placed.values() for each in some}:
            if (end := ends[partition]) is not None:
                await end()

    async def _delete_in(
        self, log_dir: LogDir, ends: Mapping[Partition, End | None], rng: Random
    ) -> None:
        partitions = list(ends)
        for end in ends.values():
            if end is not None:
                await end()
        await self._forget_in(log_dir, partitions)
        for number, (topic, partition) in enumerate(partitions):
            try:
                with self._watched(log_dir):
                    log_dir.delete(topic, partition, rng)
            except StorageError as error:
                logger.error("cannot delete partition %s-%d: %s", topic, partition, error)
            if number % SLICE_PARTITIONS == 0:
                await trio.lowlevel.checkpoint()

    def delete(self, topic: str, partition: int, rng: Random) -> None:
        """Delete the log: rename its folder, for `LogDir.remove`. Raises StorageError.

        Call `forget` before.
        """
        self._unfound.pop((topic, partition), None)
        if (log_dir := self.dir_of((topic, partition))) is not None:
            with self._watched(log_dir):
                log_dir.delete(topic, partition, rng)

    async def write_deletions(self) -> None:
        """Remove deleted logs from the checkpoints: see `OffsetCheckpoints.write_deletions`."""
        for log_dir in list(self.online):
            if log_dir.checkpoints.has_deletions:
                with suppress(DirectoryFailedError, UnresponsiveError):
                    await self._write(log_dir, log_dir.write_deletions)

    # Failures

    def fail(self, log_dir: LogDir, error: StorageError) -> None:
        """Take the whole directory offline until the node restarts."""
        if log_dir.failure is not None:
            return
        log_dir.fail(error)
        self.has_room(log_dir)
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

    def failed_at(self, partition: Partition, error: StorageError) -> bool:
        """Handle a failed operation of a log: take its directory offline, or probe it later.

        Return whether the error is one of the directory that has the log now. The operation may
        have begun before the log was replaced by its copy in another directory.
        """
        current = self.dir_of(partition)
        log_dir = self._dir_with(error.path) or current
        if log_dir is not None:
            self.failed_in(log_dir, error)
        return log_dir is current

    def failed_in(self, log_dir: LogDir, error: StorageError) -> None:
        """Handle a failed operation in `log_dir`: take it offline, or probe it later."""
        if isinstance(error, DirectoryFailedError):
            self.fail(log_dir, error)
        elif isinstance(error, UnreadableError) and log_dir.failure is None:
            self._suspects[log_dir] = None
        elif isinstance(error, DiskFullError):
            self._filled(log_dir)

    def _filled(self, log_dir: LogDir) -> None:
        if log_dir.failure is None:
            self.full[log_dir] = None
            log_dir.is_full = True
            self._is_one_full.set()

    def has_room(self, log_dir: LogDir) -> None:
        """Note that there is room in the directory again, or that it is no longer used."""
        self.full.pop(log_dir, None)
        log_dir.is_full = False
        if not self.full and self._is_one_full.is_set():
            self._is_one_full = trio.Event()

    async def wait_full(self) -> None:
        """Wait until a directory is full."""
        while not self.full:
            await self._is_one_full.wait()

    def _dir_with(self, path: str) -> LogDir | None:
        """Return the directory that has the file or folder `path`, or is it; the inmost one."""
        whole = os.path.join(path, "")
        holding = [one for one in self._all if whole.startswith(os.path.join(one.path, ""))]
        return max(holding, key=lambda one: len(one.path), default=None)

    async def look_for(self, log_dir: LogDir) -> None:
        """Take the directory offline if it was removed, unmounted or replaced."""
        if log_dir.failure is None:
            await self._steps.do(log_dir, partial(self._look_in, log_dir))

    async def _look_in(self, log_dir: LogDir) -> None:
        removal = await self._disk.run(log_dir.files.dir_watch.look)
        if removal is not None:
            self.fail(log_dir, removal)

    async def probe(self, log_dir: LogDir) -> None:
        """Write checkpoints to the directory if it had read errors since the last call.

        It goes offline if the write fails. Raises StorageError; a directory that is only full is
        probed again by the next call.
        """
        if log_dir not in self._suspects:
            return
        del self._suspects[log_dir]
        try:
            if log_dir.failure is None:
                await self.checkpoint(log_dir)
        except StorageError:
            if log_dir.failure is None:
                self._suspects[log_dir] = None
            raise

    def _unreadable(self, folder: str, error: StorageError) -> None:
        partition = parse_partition_folder(os.path.basename(folder))
        if partition is not None and self.listener is not None:
            self.listener.log_failed(partition, error)

    async def wait_none_left(self) -> None:
        """Wait until the last directory has failed, then raise StorageError."""
        await self._none_left.wait()
        raise self._nothing_left()

    def _nothing_left(self) -> StorageError:
        return StorageError(f"all log directories have failed: {self._last_failure}")

    @contextmanager
    def _watched(self, log_dir: LogDir) -> Iterator[None]:
        try:
            yield
        except DirectoryFailedError as error:
            self.fail(log_dir, error)
            raise
        except DiskFullError:
            self._filled(log_dir)
            raise

    # Checkpoints

    async def checkpoint(
        self, log_dir: LogDir, high_watermarks: HighWatermarks | None = None
    ) -> None:
        """Write and sync recovery points, log starts and given high watermarks of one directory.

        Raises StorageError.
        """
        given = None if high_watermarks is None else partial(_of_dir, log_dir, high_watermarks)
        await self._write(log_dir, partial(log_dir.checkpoint, given))

    @asynccontextmanager
    async def cutting(
        self, kept: Mapping[Partition, LogOffsets]
    ) -> AsyncIterator[Mapping[Partition, StorageError]]:
        """Hold the checkpoints on disk at or below `kept` while the block truncates these logs.

        Yield the logs that must not be truncated, because their directory cannot be written, or
        does not respond.
        """
        by_dir: dict[LogDir, dict[Partition, LogOffsets]] = {}
        for at, offsets in kept.items():
            if (log_dir := self.dir_of(at)) is not None:
                by_dir.setdefault(log_dir, {})[at] = offsets
        failures: dict[Partition, StorageError] = {}
        self._cutting.update(kept.keys())
        try:
            with ExitStack() as stack:
                for log_dir, some in by_dir.items():
                    try:
                        stack.enter_context(log_dir.checkpoints.holding(some))
                        await self._lower(log_dir, some)
                    except StorageError as error:
                        failures |= dict.fromkeys(some, error)
                yield failures
        finally:
            self._cutting.subtract(kept.keys())
            for partition in kept:
                if not self._cutting[partition]:
                    del self._cutting[partition]

    async def _lower(self, log_dir: LogDir, kept: Mapping[Partition, LogOffsets]) -> None:
        if log_dir.checkpoints.exceed(log_dir.noted_logs, kept):
            await self._write(log_dir, partial(log_dir.lower, kept))

    @asynccontextmanager
    async def cutting_future(
        self, log_dir: LogDir, kept: LogOffsets, at: Partition
    ) -> AsyncIterator[None]:
        """Hold the checkpoints at or below `kept` while the block truncates a future replica."""
        with self._watched(log_dir):
            async with log_dir.cutting({at: kept}):
                yield

    # Moves between directories

    def is_moving(self, partition: Partition) -> bool:
        """Return whether the log has a copy in another directory: it is not compacted then."""
        return partition in self.continuing or self.future(partition) is not None

    def future(self, partition: Partition) -> tuple[LogDir, PartitionLog] | None:
        """Return the future replica of the partition with its directory, if it moves."""
        for log_dir in self._all:
            if (future := log_dir.futures.get(partition)) is not None:
                return log_dir, future
        return None

    def swap(
        self,
        log: PartitionLog,
        target: LogDir,
        future: PartitionLog,
        now_ms: int,
        cleaned_to: int | None,
    ) -> str | None:
        """Replace the log by its future replica, in one step; return the former folder's new name.

        `cleaned_to`: offset up to which the copied segments are compacted.
        The caller has synced the future replica and its `.metaquorum_moved`, and calls
        `finish_swap` next. Raises StorageError if nothing was changed.
        """
        at = (log.topic, log.partition)
        source = self.dir_of(at)
        assert source is not None
        assert source is not target
        assert not self.is_cutting(at)
        with self._watched(target):
            target.promote_future(future)
        if cleaned_to is not None:
            target.checkpoints.cleaner_offsets[at] = cleaned_to
        try:
            with self._watched(source):
                return source.replaced(log, self._random, now_ms)
        except StorageError as error:
            logger.error(
                "cannot rename the former log of %s-%d in %s: %s; the next start deletes it",
                *at,
                source.path,
                error,
            )
            return None

    async def finish_swap(
        self, source: LogDir, log: PartitionLog, target: LogDir, name: str | None
    ) -> None:
        """Sync the renames of `swap`, then delete the former log. Raises StorageError."""
        with self._watched(target):
            await target.sync_names()
        if source.failure is None:
            with self._watched(source):
                if name is not None:
                    source.delete_replaced(log, name)
                await source.write_deletions()

    def is_cutting(self, partition: Partition) -> bool:
        """Return whether the partition's log is about to be truncated."""
        return partition in self._cutting

    def is_unresponsive(self, log_dir: LogDir) -> bool:
        """Return whether the directory has not answered for a while."""
        return self._steps.is_unresponsive(log_dir)

    async def do(
        self,
        log_dir: LogDir,
        step: Callable[[], Awaitable[T]],
        moved_at: Callable[[], float] | None = None,
        *,
        in_any_case: bool = False,
    ) -> T:
        """Return the result of a step in the directory: see `DirSteps.do`."""
        return await self._steps.do(log_dir, step, moved_at, in_any_case=in_any_case)

    async def _write(self, log_dir: LogDir, write: Callable[[], Awaitable[None]]) -> None:
        """Write to the directory as a step of it: see `DirSteps`; handle its failure."""

        async def step() -> None:
            with self._watched(log_dir):
                await write()

        await self._steps.do(log_dir, step)

    async def write_high_watermarks(self, log_dir: LogDir, high_watermarks: HighWatermarks) -> None:
        """Write and sync the high watermarks of one directory if they changed.

        Raises StorageError.
        """
        given = partial(_of_dir, log_dir, high_watermarks)
        await self._write(log_dir, partial(log_dir.checkpoints.write_high_watermarks, given))

    def cleaner_offset(self, partition: Partition) -> int:
        """Return the offset up to which the log is cleaned."""
        log_dir = self.dir_of(partition)
        return 0 if log_dir is None else log_dir.checkpoints.cleaner_offsets.get(partition, 0)

    async def set_cleaner_offset(self, partition: Partition, offset: int) -> None:
        """Set and sync the offset up to which the log is cleaned. Raises StorageError."""
        if (log_dir := self.dir_of(partition)) is not None:
            log_dir.checkpoints.cleaner_offsets[partition] = offset
            with self._watched(log_dir):
                await log_dir.checkpoints.write_cleaner_offsets()

    async def remove(self, log_dir: LogDir, folders: Sequence[str]) -> dict[str, StorageError]:
        """Remove folders of deleted logs: see `LogDir.remove`. Raises StorageError."""
        if log_dir.failure is not None:
            return {}
        with self._watched(log_dir):
            return await log_dir.remove(folders)

    # Stop

    async def close(
        self, high_watermarks: Mapping[Partition, int], *, broker_epoch: int = -1
    ) -> None:
        """Sync and close all logs; mark each directory clean in which all of that succeeded.

        Raises the first StorageError, after all directories were tried.
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
        """Close all files and release the locks, without writing anything."""
        for log_dir in self._all:
            log_dir.abandon()
        for storage in self._storages:
            storage.close()


def _of_dir(log_dir: LogDir, high_watermarks: HighWatermarks) -> Mapping[Partition, int]:
    offsets = high_watermarks()
    return {at: offsets[at] for at in log_dir.noted_logs if at in offsets}
