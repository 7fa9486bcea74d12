"""Identity of a data directory: cluster, node and format, written before any other file in it.

    <data>/.lock             locked while a process uses the directory; names the process
    <data>/meta.properties   as in Kafka, with an additional line for the format of the directory
    <data>/metadata/         journal and snapshots of the metadata log
    <data>/<topic>-<n>/      partition logs

A node refuses a directory of another cluster or node, or of a newer format, since starting on it
would mix the data of different nodes or clusters.
"""

import base64
import errno
import os
from collections.abc import Mapping
from random import Random
from typing import Final

from metaquorum.metadata.ids import new_topic_id
from metaquorum.runtime.interfaces import (
    Disk,
    FileLock,
    Identity,
    StorageError,
    is_out_of_descriptors,
    write_atomically,
)
from metaquorum.wire.primitives.frozen import frozen

FORMAT: Final = 1
META_PROPERTIES: Final = "meta.properties"
LOCK_FILE: Final = ".lock"
METADATA_DIR: Final = "metadata"
MAX_PROPERTIES_BYTES: Final = 64 << 10
_FORMAT_KEY: Final = "metaquorum.format"
_NO_DATA: Final = frozenset({LOCK_FILE, META_PROPERTIES + ".tmp", "lost+found"})
# Errors of folders that belong to other users, or to file systems without fsync.
_NOT_SYNCED: Final = frozenset(
    (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP)
)

_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))


class StorageIdentityError(StorageError):
    """Raised if this node may not use the data directory; the message says what to do."""


@frozen
class MetaProperties:
    """Content of `meta.properties`. Ids are 22 characters of URL-safe base64, as in Kafka."""

    cluster_id: str
    node_id: int
    directory_id: str

    def text(self) -> str:
        return (
            f"#\n{_FORMAT_KEY}={FORMAT}\nnode.id={self.node_id}\n"
            f"directory.id={self.directory_id}\nversion=1\ncluster.id={self.cluster_id}\n"
        )


def new_id(random: Random) -> str:
    """Return a new id of a cluster or directory, which never begins with "-" like an option."""
    while True:
        text = base64.urlsafe_b64encode(new_topic_id(random)).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class Storage:
    """A locked data directory of this node."""

    def __init__(
        self,
        data_dir: str,
        properties: MetaProperties,
        lock: FileLock,
        identity: Identity,
        *,
        is_new: bool,
    ) -> None:
        self.data_dir: Final = data_dir
        self.metadata_dir: Final = os.path.join(data_dir, METADATA_DIR)
        self.properties: Final = properties
        self.identity: Final = identity  # input of `DirWatch`
        self.is_new: Final = is_new  # whether it was formatted at this start
        self._lock = lock

    def close(self) -> None:
        """Unlock the directory for other processes."""
        self._lock.release()


def open_storage(
    disk: Disk,
    data_dir: str,
    node_id: int,
    random: Random,
    *,
    owner: str,
    cluster_id: str | None = None,
    may_found: bool = True,
) -> Storage:
    """Lock a data directory and check its identity; format an empty one.

    `owner` names the locking process ("process 4711"). `cluster_id` None: accept the cluster id in
    the directory, or create one if this node `may_found` a cluster. Blocking: call in `Disk.run`.
    Raises StorageIdentityError if this node may not use the directory, and StorageError if the
    disk fails.
    """
    try:
        disk.make_dirs(data_dir)
        identity = disk.identity(data_dir)  # first: a later one could be a successor's
        lock = _locked(disk, data_dir, owner)
    except (FileExistsError, NotADirectoryError) as error:
        raise StorageError(
            f"{data_dir} is a file, or is inside of one; choose another data directory"
        ) from error
    except OSError as error:
        text = f"cannot use {data_dir}: {error.strerror or error}"
        if not is_out_of_descriptors(error):
            text += "; choose another data directory or change its permissions"
        raise StorageError(text) from error
    try:
        properties = _read(disk, data_dir)
        is_new = properties is None
        if properties is None:
            if cluster_id is None and not may_found:
                raise StorageIdentityError(
                    f"{data_dir} is empty, and the cluster has other nodes: pass the same"
                    " --cluster-id to each node"
                )
            properties = MetaProperties(cluster_id or new_id(random), node_id, new_id(random))
            _format(disk, data_dir, properties)
        else:
            _sync_names(disk, data_dir)
        _check_identity(data_dir, properties, node_id, cluster_id)
    except OSError as error:
        lock.release()
        raise StorageError(f"cannot use {data_dir}: {error.strerror or error}") from error
    except BaseException:
        lock.release()
        raise
    return Storage(data_dir, properties, lock, identity, is_new=is_new)


def is_formatted(disk: Disk, data_dir: str) -> bool:
    """Return whether the directory exists and is formatted. Raises OSError if the disk fails."""
    return disk.is_dir(data_dir) and META_PROPERTIES in disk.list(data_dir)


class DirWatch:
    """Whether a directory in use is still the one at its path.

    Reads and writes of its open files succeed without it, and what is written is lost at the next
    start. A directory at the same path is another one if another image is mounted there, if it is
    the mount point itself, or if it was created after the removal.
    """

    def __init__(self, disk: Disk, path: str, identity: Identity) -> None:
        """Watch the directory at `path` that has `identity`.

        The caller holds a lock in it: otherwise another directory could get the same identity.
        """
        self._disk = disk
        self._path: Final = path
        self._identity: Final = identity
        self._was_unnamed = False  # whether the last look found no meta.properties

    def removal(self) -> StorageError | None:
        """Return an error if the directory is not at its path; None if it is.

        None, too, if the disk fails: reads and writes report that.
        """
        try:
            is_same = self._disk.identity(self._path) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return self._error(f"{self._path} was removed or unmounted")
        except OSError:
            return None
        if is_same:
            return None
        return self._error(f"{self._path} was unmounted or replaced by another directory")

    def look(self) -> StorageError | None:
        """Return an error as `removal` does, and if the directory seems to have been emptied.

        It does if it has no meta.properties in two looks: an editor may replace that file, and
        without it the next start would refuse the directory. Blocking: call it in `Disk.run`.
        """
        if (error := self.removal()) is not None:
            return error
        was_unnamed, self._was_unnamed = self._was_unnamed, False
        try:
            self._disk.size(os.path.join(self._path, META_PROPERTIES))
        except FileNotFoundError:
            self._was_unnamed = True
            if was_unnamed:
                return self._error(f"{META_PROPERTIES} was removed from {self._path}")
        except OSError:
            return None
        return None

    def _error(self, what: str) -> StorageError:
        advice = "restore it, and restart the node"
        return StorageError(f"{what} while the node was running: {advice}", self._path)


def _locked(disk: Disk, data_dir: str, owner: str) -> FileLock:
    path = os.path.join(data_dir, LOCK_FILE)
    try:
        lock = disk.lock(path)
    except BlockingIOError:
        holder = disk.read_file(path)[:100].decode("utf-8", "replace").strip()
        raise StorageIdentityError(
            f"{data_dir} is in use by {holder or 'another process'}; stop that process, or"
            " configure another data directory for this node"
        ) from None
    try:
        file = disk.open(path, create=True)
        try:
            file.truncate(0)
            file.write(f"{owner}\n".encode(), 0)
        finally:
            file.close()
    except OSError as error:
        if error.errno not in _FULL:  # the owner is information only; a full disk can be read
            lock.release()
            raise
    return lock


def _format(disk: Disk, data_dir: str, properties: MetaProperties) -> None:
    strangers = [name for name in disk.list(data_dir) if name not in _NO_DATA]
    if strangers:
        raise StorageIdentityError(
            f"{data_dir} contains {strangers[0]} but no {META_PROPERTIES}, so its node is"
            " unknown; choose an empty directory"
        )
    _sync_parents(disk, data_dir)
    write_atomically(disk, os.path.join(data_dir, META_PROPERTIES), properties.text().encode())


def _sync_names(disk: Disk, data_dir: str) -> None:
    """Sync names that a killed process has created, removed or renamed in `data_dir`.

    This process relies on these names without creating them again: a log syncs only the content of
    its folder, and a removed marker of a clean shutdown must not reappear after a power loss.
    Raises OSError if the disk fails.
    """
    disk.sync_dir(data_dir)


def _sync_parents(disk: Disk, data_dir: str) -> None:
    """Sync the parent directories of `data_dir`, so that the directory survives a power loss.

    Done before formatting, since a formatted directory is assumed to be durable. All parents are
    synced, since an earlier process that was killed may have created any of them; those that this
    process may not sync are skipped. Raises OSError if the disk fails.
    """
    path = data_dir
    while (parent := os.path.dirname(path)) != path:
        path = parent
        try:
            disk.sync_dir(path)
        except OSError as error:
            if error.errno not in _NOT_SYNCED:
                raise


def _read(disk: Disk, data_dir: str) -> MetaProperties | None:
    path = os.path.join(data_dir, META_PROPERTIES)
    if not disk.exists(path):
        return None
    if disk.size(path) > MAX_PROPERTIES_BYTES:
        raise StorageIdentityError(f"{path} is too large to be a properties file")
    return parse_properties(path, disk.read_file(path))


def parse_properties(path: str, data: bytes) -> MetaProperties:
    """Return the content of the file.

    Raises StorageIdentityError if the file is damaged, of a newer format, or from Apache Kafka.
    """
    values: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", "!")):
            values[key.strip()] = value.strip()
    if _FORMAT_KEY not in values and "cluster.id" in values:
        raise StorageIdentityError(
            f"{path} was written by Apache Kafka, whose data this server cannot use; choose another"
            " data directory"
        )
    form = _number(path, values, _FORMAT_KEY)
    if form > FORMAT:
        raise StorageIdentityError(
            f"{path} has format {form} of a newer version of this server; this version reads"
            f" formats up to {FORMAT}; start the newer version"
        )
    _number(path, values, "version")
    return MetaProperties(
        _text(path, values, "cluster.id"),
        _number(path, values, "node.id"),
        _text(path, values, "directory.id"),
    )


def _damaged(path: str, what: str) -> StorageIdentityError:
    return StorageIdentityError(
        f"{path} is damaged: it contains no {what}; restore the file, or choose another data"
        " directory"
    )


def _text(path: str, values: Mapping[str, str], key: str) -> str:
    if not values.get(key) or len(values[key]) > 64:
        raise _damaged(path, key)
    return values[key]


def _number(path: str, values: Mapping[str, str], key: str) -> int:
    text = values.get(key, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise _damaged(path, f"number for {key}")
    return int(text)


def _check_identity(
    data_dir: str, properties: MetaProperties, node_id: int, cluster_id: str | None
) -> None:
    if cluster_id is not None and properties.cluster_id != cluster_id:
        raise StorageIdentityError(
            f"{data_dir} belongs to cluster {properties.cluster_id}, not to {cluster_id}; choose"
            " another data directory"
        )
    if properties.node_id != node_id:
        raise StorageIdentityError(
            f"{data_dir} belongs to node {properties.node_id}, not to node {node_id}; start it with"
            f" node.id={properties.node_id} or choose another data directory"
        )
