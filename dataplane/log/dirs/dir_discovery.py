"""Check of the configured log directories at the start of a node.

Rules, with "known" meaning in the registry of log directories (`dir_registry`):

    of another node or cluster, or locked        the node does not start
    named twice, or by two paths                 the node does not start
    cannot be read                               absent; the node starts with the others
    known, and now missing or empty              absent: most likely its disk is not mounted
    known, and no longer in `log.dirs`           absent, unless it exists without partitions
    unknown, and missing or empty                formatted
"""

import logging
import os
from collections.abc import Mapping, Sequence
from random import Random

from metaquorum.dataplane.log.dirs.dir_registry import (
    dir_registry_path,
    read_dir_registry,
    write_dir_registry,
)
from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.dataplane.log.segments.files import storage_error, storage_errors
from metaquorum.dataplane.log.segments.names import parse_partition_folder
from metaquorum.metadata.records import MAX_LOG_DIRS
from metaquorum.quorum.storage.data_dir import (
    Storage,
    StorageIdentityError,
    is_formatted,
    open_storage,
)
from metaquorum.runtime.interfaces import Disk, StorageError, is_out_of_descriptors
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.primitives.types import Uuid, uuid_from_text, uuid_to_text

logger = logging.getLogger(__name__)


@frozen
class AbsentDir:
    """A log directory that is configured or known, and that cannot be used now."""

    path: str
    directory_id: Uuid | None  # None if unknown
    is_configured: bool


def open_dirs(
    disk: Disk,
    storage: Storage,
    paths: Sequence[str],
    random: Random,
    owner: str,
    max_open_files: int,
) -> tuple[list[LogDir], list[AbsentDir], list[Storage]]:
    """Open the directories at `paths`. Return usable ones, absent ones, and storages to close.

    `max_open_files`: of all directories, each of which has the same share, but at least one file.
    Raises StorageIdentityError or StorageError if the node must not start. Blocking.
    """
    check_paths(paths, storage.metadata_dir)
    with storage_errors("read", dir_registry_path(storage.data_dir)):
        written = read_dir_registry(disk, storage.data_dir)
    max_open_files_each = max(1, max_open_files // len(paths))
    opening = _DirDiscovery(disk, storage, written, max_open_files_each)
    try:
        opening.open_all(paths, random, owner)
    except OSError as error:
        opening.close()
        raise storage_error(error, "use", storage.data_dir) from error
    except BaseException:
        opening.close()
        raise
    return opening.online, opening.absent, opening.storages


def check_paths(paths: Sequence[str], metadata_dir: str) -> None:
    """Raise StorageIdentityError if `paths` cannot be the log directories of one node."""
    if not paths:
        raise StorageIdentityError("log.dirs names no directory; name one, or omit log.dirs")
    if len(paths) > MAX_LOG_DIRS:
        raise StorageIdentityError(
            f"log.dirs names {len(paths)} directories; the limit is {MAX_LOG_DIRS}"
        )
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise StorageIdentityError(f"log.dirs names {path} twice; name each directory once")
        if path == metadata_dir:
            raise StorageIdentityError(
                f"{path} is the metadata directory; choose another log directory"
            )
        if os.path.dirname(path) in paths and parse_partition_folder(os.path.basename(path)):
            raise StorageIdentityError(
                f"{path} is named like a partition of {os.path.dirname(path)}; choose another name"
            )


class _DirDiscovery:
    def __init__(
        self,
        disk: Disk,
        storage: Storage,
        written: Mapping[str, str] | None,
        max_open_files: int,
    ) -> None:
        """Use `written`, the result of `read_dir_registry`, as the known directories."""
        self.online: list[LogDir] = []
        self.absent: list[AbsentDir] = []
        self.storages: list[Storage] = []
        self._disk = disk
        self._data = storage
        self._max_open_files = max_open_files
        self._registry_path = dir_registry_path(storage.data_dir)
        self._alone = {storage.properties.directory_id: storage.data_dir}
        self._written = written
        known = {} if storage.is_new else self._alone
        self._known = dict(known if self._written is None else self._written)

    def close(self) -> None:
        for storage in self.storages:
            storage.close()

    def open_all(self, paths: Sequence[str], random: Random, owner: str) -> None:
        failures: list[StorageError] = []
        for path in paths:
            try:
                self._open(path, random, owner)
            except StorageIdentityError:
                raise
            except StorageError as error:
                if is_out_of_descriptors(error):  # the directory may be intact
                    raise
                logger.error("log directory %s is offline: %s", path, error)
                failures.append(error)
                self.absent.append(AbsentDir(path, self._known_id(path), True))
        if not self.online:
            raise StorageError(f"no log directory is usable; the first error: {failures[0]}")
        self._look_for_others(paths)
        self._write_registry()

    def _known_id(self, path: str) -> Uuid | None:
        for directory_id, known in self._known.items():
            if known == path:
                return _uuid(self._registry_path, directory_id)
        return None

    def _open(self, path: str, random: Random, owner: str) -> None:
        disk, data = self._disk, self._data
        storage = data
        if path != data.data_dir:
            self._check_mounted(path)
            storage = open_storage(
                disk,
                path,
                data.properties.node_id,
                random,
                owner=owner,
                cluster_id=data.properties.cluster_id,
            )
            self.storages.append(storage)
        directory_id = _uuid(path, storage.properties.directory_id)
        for other in self.online:
            if other.directory_id == directory_id:
                raise StorageIdentityError(
                    f"{other.path} and {path} are the same log directory, or one is a copy of the "
                    f"other (directory id {uuid_to_text(directory_id)}); name only one of them"
                )
        log_dir = LogDir.open(
            disk, path, locked=storage.identity, max_open_files=self._max_open_files
        )
        log_dir.directory_id = directory_id
        self.online.append(log_dir)

    def _check_mounted(self, path: str) -> None:
        known = self._known_id(path)
        try:
            if known is None or is_formatted(self._disk, path):
                return
        except OSError as error:
            raise storage_error(error, "read", path) from error
        raise StorageError(
            f"the directory is missing or empty, but had logs: mount its disk; or, if that disk is "
            f"lost, remove the line of {uuid_to_text(known)} from {self._registry_path} to format "
            f"a new directory there"
        )

    def _look_for_others(self, paths: Sequence[str]) -> None:
        """Add known directories that are not among the usable ones to the absent ones."""
        here = {uuid_to_text(log_dir.directory_id) for log_dir in self.online}
        for directory_id, path in list(self._known.items()):
            if directory_id in here:
                continue
            if path not in paths and self._holds_nothing(path):
                del self._known[directory_id]
                continue
            if any(one.path == path for one in self.absent):
                continue
            logger.error(
                "log directory %s (id %s) is offline: %s; partitions that may be there are offline "
                "until the directory is usable again, or until its line in %s is removed",
                path,
                directory_id,
                "another directory is at that path"
                if path in paths
                else "log.dirs does not name it",
                self._registry_path,
            )
            uuid = _uuid(self._registry_path, directory_id)
            self.absent.append(AbsentDir(path, uuid, path in paths))

    def _holds_nothing(self, path: str) -> bool:
        try:
            return is_formatted(self._disk, path) and not any(
                parse_partition_folder(name) for name in self._disk.list(path)
            )
        except OSError:
            return False

    def _write_registry(self) -> None:
        for log_dir in self.online:
            self._known[uuid_to_text(log_dir.directory_id)] = log_dir.path
        if self._known != (self._alone if self._written is None else self._written):
            write_dir_registry(self._disk, self._data.data_dir, self._known)


def _uuid(path: str, text: str) -> Uuid:
    try:
        return uuid_from_text(text)
    except ValueError as error:
        raise StorageIdentityError(f"{path} is damaged: {error}") from None
