"""Logs that move between the log directories of a worker: their files, and what a start finds.

A future replica, `<topic>-<partition>.<unique>-future`, is copied from the current log and then
replaces it. Two renames in two directories cannot be atomic, so a file in the log's folder,
`.metaquorum_moved`, says which of two logs is the later one:

    <id of this log>
    <id of a log that this one replaces>    any number of lines, newest first

    1  the current log gets a file with its id, the future one a file that names it; both are synced
    2  future → <topic>-<partition>         and then
    3  the former log → stray               in one step of the event loop
    4  sync of both directories, former log → deleted

A process that was killed has done 2 and 3, only 2, or neither. A loss of power may also keep 3
without 2, until 4. At the start:

    two logs, one names the other's id              the one that is named is deleted
    no log, its stray, and a future replica that    3 without 2: the future replica is the log
      names its id
    no log, and another future replica with the     the log was lost with its directory, which is
      file                                          absent or new: records may be missing from
                                                    the future replica, which is not changed, or
                                                    is removed if it has no records
    a future replica of a log, with the file, or    replaced by an empty one: it is copied again
      in a directory of which a sync may have
      failed
    any other future replica of a log               unfinished: the copy continues (`LogDirMover`)
    any other future replica                        removed

All functions are blocking: call them in a worker thread.
"""

import logging
import os
import random
from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from metaquorum.dataplane.log.recovery.checkpoints import Partition, decode_partition_metadata
from metaquorum.dataplane.log.segments.names import (
    DELETED_FOLDER,
    FUTURE_FOLDER,
    LOG,
    MAX_FOLDER_NAME,
    MOVED,
    PARTITION_METADATA,
    STRAY_FOLDER,
    parse_future_folder,
    parse_partition_folder,
    partition_folder,
    retired_folder,
)
from metaquorum.runtime.interfaces import Disk, write_atomically
from metaquorum.wire.primitives.frozen import frozen

logger = logging.getLogger(__name__)

# Replaced logs that a file names. A log that was replaced before that many moves, and is found
# again, is not recognized: both logs are offline then.
MAX_REPLACED: Final = 64


@frozen
class UnfinishedMove:
    """A future replica of a log in another directory: `name` is that of its folder in `path`."""

    partition: Partition
    path: str
    name: str


@frozen
class LogId:
    """Content of `.metaquorum_moved`: the id of a log, and the ids of the logs that it replaces."""

    own: str
    replaced: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return "".join(f"{each}\n" for each in (self.own, *self.replaced)).encode()

    def successor(self, own: str) -> "LogId":
        """Return the id of a log that replaces this one."""
        return LogId(own, (self.own, *self.replaced)[:MAX_REPLACED])


def new_unique(rng: random.Random) -> str:
    return f"{rng.getrandbits(128):032x}"


def future_folder(topic: str, partition: int, unique: str) -> str | None:
    """Return the name of a future replica's folder; None if it would be too long (as in Kafka)."""
    name = f"{topic}-{partition}.{unique}{FUTURE_FOLDER}"
    return name if len(name) <= MAX_FOLDER_NAME else None


def read_log_id(disk: Disk, folder: str) -> LogId | None:
    """Return the id of the log in `folder`; None if it never moved. Raises OSError."""
    path = os.path.join(folder, MOVED)
    if not disk.exists(path):
        return None
    own, *replaced = disk.read_file(path).decode("ascii", "replace").split("\n")
    return LogId(own, tuple(each for each in replaced if each)) if own else None


@dataclass(slots=True)
class SettledMoves:
    """Outcome of `settle_moves`.

    `unfinished`: moves that are to continue. `failed`: partitions without a log for which
    this start cannot find out whether a future replica is their log, with the reason; they must
    not be created again.
    """

    unfinished: list[UnfinishedMove] = field(default_factory=list)
    failed: dict[Partition, str] = field(default_factory=dict)


def settle_moves(
    disk: Disk,
    paths: Sequence[str],
    *,
    are_all: bool,
    rng: random.Random,
    in_doubt: Collection[str] = (),
) -> SettledMoves:
    """Finish or undo the moves that were in progress, as the table above says.

    `are_all`: the directories at `paths` are all that this worker has. `in_doubt`: directories of
    which a sync may have failed. A directory that cannot be read counts as absent. A folder that
    fails is logged, stays as it is, and does not affect the moves of other partitions.
    """
    return _Settling(disk, are_all=are_all, rng=rng, in_doubt=in_doubt).settle(paths)


class _Settling:
    def __init__(
        self, disk: Disk, *, are_all: bool, rng: random.Random, in_doubt: Collection[str]
    ) -> None:
        self._disk = disk
        self._are_all = are_all
        self._rng = rng
        self._in_doubt = in_doubt
        self._logs: dict[Partition, list[str]] = {}  # paths of directories
        self._futures: list[tuple[Partition, str, str]] = []  # with path and folder name
        self._strays: dict[tuple[str, str], LogId] = {}  # with a log's id, by path and folder name
        self._settled = SettledMoves()

    def settle(self, paths: Sequence[str]) -> SettledMoves:
        for path in paths:
            with self._logged_errors(path) as failures:
                self._list(path)
            self._are_all = self._are_all and not failures
        for partition, holders in self._logs.items():
            if len(holders) > 1:
                with self._logged_errors(f"{partition[0]}-{partition[1]}"):
                    _delete_replaced(self._disk, partition, holders, self._rng)
        former = {log_id.own for log_id in self._strays.values()}
        for partition, path, name in self._futures:
            with self._logged_errors(os.path.join(path, name)) as failures:
                self._settle_future(partition, path, name, former)
            if failures and not self._logs.get(partition):
                self._settled.failed[partition] = failures[0]
        self._delete_replaced_strays()
        return self._settled

    @contextmanager
    def _logged_errors(self, what: str) -> Iterator[list[str]]:
        """Log an OSError of the block, and add its text to the list, which is empty at first."""
        failures: list[str] = []
        try:
            yield failures
        except OSError as error:
            failures.append(f"cannot settle its move between log directories: {error}")
            logger.error(
                "cannot settle the moves between log directories of %s: %s; the next start tries"
                " again",
                what,
                error,
            )

    def _list(self, path: str) -> None:
        disk = self._disk
        for name in disk.list(path):
            is_log = (log := parse_partition_folder(name)) is not None
            is_future = (future := parse_future_folder(name)) is not None
            if not (is_log or is_future or name.endswith(STRAY_FOLDER)):
                continue
            if not disk.is_dir(os.path.join(path, name)):
                continue  # a file, or a symbolic link without a target
            if log is not None:
                self._logs.setdefault(log, []).append(path)
            elif future is not None:
                self._futures.append((future, path, name))
            else:
                with self._logged_errors(os.path.join(path, name)) as failures:
                    log_id = read_log_id(disk, os.path.join(path, name))
                    if log_id is not None:
                        self._strays[path, name] = log_id
                self._are_all = self._are_all and not failures

    def _settle_future(self, partition: Partition, path: str, name: str, former: Set[str]) -> None:
        """Settle the move to one future replica. Raises OSError."""
        disk, rng = self._disk, self._rng
        holders = self._logs.get(partition, [])
        folder = os.path.join(path, name)
        if not holders and (log_id := read_log_id(disk, folder)) is not None:
            if not self._are_all:
                self._settled.failed[partition] = f"its log may be {folder}, or in a directory that"
                self._settled.failed[partition] += " is not online"
            elif not former.isdisjoint(log_id.replaced):
                logger.warning(
                    "%s-%d: the move to %s is complete, but a loss of power undid the last rename;"
                    " renaming it again",
                    *partition,
                    path,
                )
                disk.rename(folder, os.path.join(path, partition_folder(*partition)))
                self._logs[partition] = [path]
                disk.sync_dir(path)
            elif not _has_records(disk, folder):
                # As that of a log without records, which had no folder yet.
                _delete(disk, path, name, partition, rng)
            else:
                logger.warning(
                    "%s-%d: its log is lost, and records may be missing from %s, to which it was"
                    " being copied: the copy is not used, and the next start removes it",
                    *partition,
                    folder,
                )
            return
        if (
            holders
            and path not in holders
            and _have_same_topic(disk, partition, holders[0], folder)
        ):
            is_usable = path not in self._in_doubt and not disk.exists(os.path.join(folder, MOVED))
            if is_usable or _empty(disk, path, name, partition, rng):
                self._settled.unfinished.append(UnfinishedMove(partition, path, name))
            return
        _delete(disk, path, name, partition, rng)

    def _delete_replaced_strays(self) -> None:
        """Delete the folders of former logs whose moves were completed."""
        if not self._strays:
            return
        replaced: set[str] = set()
        for partition, holders in self._logs.items():
            for path in holders:
                folder = os.path.join(path, partition_folder(*partition))
                with self._logged_errors(folder):
                    log_id = read_log_id(self._disk, folder)
                    replaced.update(() if log_id is None else log_id.replaced)
        for (path, name), log_id in self._strays.items():
            if log_id.own in replaced:
                deleted = name.removesuffix(STRAY_FOLDER) + DELETED_FOLDER
                with self._logged_errors(os.path.join(path, name)):
                    self._disk.rename(os.path.join(path, name), os.path.join(path, deleted))


def _delete_replaced(
    disk: Disk, partition: Partition, holders: list[str], rng: random.Random
) -> None:
    name = partition_folder(*partition)
    ids = {path: read_log_id(disk, os.path.join(path, name)) for path in holders}
    for path, log_id in ids.items():
        if log_id is None:
            continue
        if any(each is not None and log_id.own in each.replaced for each in ids.values()):
            logger.warning(
                "%s-%d: deleting the log in %s: it was moved to another directory",
                *partition,
                path,
            )
            _delete(disk, path, name, partition, rng)
            holders.remove(path)


def _has_records(disk: Disk, folder: str) -> bool:
    names = [name for name in disk.list(folder) if name.endswith(LOG)]
    return any(disk.size(os.path.join(folder, name)) for name in names)


def _delete(disk: Disk, path: str, name: str, partition: Partition, rng: random.Random) -> None:
    """Rename the folder; `LogDir.load` finds it and has it removed."""
    deleted = retired_folder(*partition, new_unique(rng), DELETED_FOLDER)
    disk.rename(os.path.join(path, name), os.path.join(path, deleted))


def _empty(disk: Disk, path: str, name: str, partition: Partition, rng: random.Random) -> bool:
    """Replace a future replica by an empty one; return False if it could only be removed.

    A loss of power must not restore it: it could then replace a log that has become a stray, or
    the next start would not know that it is in doubt.
    """
    folder = os.path.join(path, name)
    metadata = disk.read_file(os.path.join(folder, PARTITION_METADATA))
    _delete(disk, path, name, partition, rng)
    disk.sync_dir(path)
    try:
        disk.make_dirs(folder)
        write_atomically(disk, os.path.join(folder, PARTITION_METADATA), metadata)
    except OSError as error:  # such as a full disk: other moves have to be settled
        logger.warning(
            "%s-%d: its move to %s has ended, because the copy cannot begin again: %s",
            *partition,
            path,
            error,
        )
        return False
    return True


def _have_same_topic(disk: Disk, partition: Partition, path: str, folder: str) -> bool:
    """Return whether the log in `path` belongs to the topic of the future replica in `folder`."""
    current = os.path.join(path, partition_folder(*partition))
    ids = []
    for each in (current, folder):
        metadata = os.path.join(each, PARTITION_METADATA)
        try:
            ids.append(decode_partition_metadata(disk.read_file(metadata)))
        except (FileNotFoundError, ValueError):
            return False
    return ids[0] == ids[1]
