"""Whose a data directory is: cluster, node and format, written down before anything else in it.

    <data>/.lock             held while a process uses the directory; says which one
    <data>/meta.properties   as Kafka's, with one line more: the format of what lies beside it
    <data>/metadata/         the metadata log's journal and snapshots
    <data>/<topic>-<n>/      partition logs

A directory of another cluster or node, or of a newer format, is refused: starting on it would mix
what must never mix.
"""

import base64
import errno
import os
from collections.abc import Mapping
from random import Random
from typing import Final

from metaquorum.metadata.ids import new_topic_id
from metaquorum.runtime.interfaces import Disk, FileLock, StorageError, write_atomically
from wire.primitives.frozen import frozen

FORMAT: Final = 1
META_PROPERTIES: Final = "meta.properties"
LOCK_FILE: Final = ".lock"
METADATA_DIR: Final = "metadata"
MAX_PROPERTIES_BYTES: Final = 64 << 10
_FORMAT_KEY: Final = "metaquorum.format"
_NO_DATA: Final = frozenset({LOCK_FILE, META_PROPERTIES + ".tmp", "lost+found"})
# What a file system, or a folder, of others says.
_NOT_SYNCED: Final = frozenset(
    (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP)
)

_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))


class StorageIdentityError(StorageError):
    """The data directory is not this node's to use; the message is one sentence for a person."""


@frozen
class MetaProperties:
    """What `meta.properties` says. Ids are 22 characters of URL-safe base 64, as Kafka's."""

    cluster_id: str
    node_id: int
    directory_id: str

    def text(self) -> str:
        return (
            f"#\n{_FORMAT_KEY}={FORMAT}\nnode.id={self.node_id}\n"
            f"directory.id={self.directory_id}\nversion=1\ncluster.id={self.cluster_id}\n"
        )


def new_id(random: Random) -> str:
    """An id for a cluster or directory; never one that a command line takes for an option."""
    while True:
        text = base64.urlsafe_b64encode(new_topic_id(random)).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class Storage:
    """A data directory that is this node's, and locked."""

    def __init__(
        self, data_dir: str, properties: MetaProperties, lock: FileLock, *, is_new: bool
    ) -> None:
        self.data_dir: Final = data_dir
        self.metadata_dir: Final = os.path.join(data_dir, METADATA_DIR)
        self.properties: Final = properties
        self.is_new: Final = is_new  # formatted just now
        self._lock = lock

    def close(self) -> None:
        """Others may use the directory."""
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
    """The directory is this node's, and locked; it is formatted where there was nothing.

    `owner` says who locks it ("process 4711"). `cluster_id` None: any that stands there, or a new
    one where this node `may_found` a cluster. Slow: for `Disk.run`. StorageIdentityError, or
    StorageError where the disk fails.
    """
    try:
        lock = _locked(disk, data_dir, owner)
    except (FileExistsError, NotADirectoryError) as error:
        raise StorageError(
            f"{data_dir} is a file, or lies in one; choose another data directory"
        ) from error
    except OSError as error:
        raise StorageError(
            f"{data_dir} cannot be used: {error.strerror or error}; choose another data directory"
            " or change its permissions"
        ) from error
    try:
        properties = _read(disk, data_dir)
        is_new = properties is None
        if properties is None:
            if cluster_id is None and not may_found:
                raise StorageIdentityError(
                    f"{data_dir} is empty, and the cluster has other nodes, so that its id must be"
                    " given (--cluster-id): the same to each of them"
                )
            properties = MetaProperties(cluster_id or new_id(random), node_id, new_id(random))
            _format(disk, data_dir, properties)
        else:
            _sync_names(disk, data_dir)
        _check_identity(data_dir, properties, node_id, cluster_id)
    except OSError as error:
        lock.release()
        raise StorageError(f"{data_dir} cannot be used: {error.strerror or error}") from error
    except BaseException:
        lock.release()
        raise
    return Storage(data_dir, properties, lock, is_new=is_new)


def is_formatted(disk: Disk, data_dir: str) -> bool:
    """Whether the directory is there and says whose it is. OSError where nobody can tell."""
    return disk.is_dir(data_dir) and META_PROPERTIES in disk.list(data_dir)


def _locked(disk: Disk, data_dir: str, owner: str) -> FileLock:
    disk.make_dirs(data_dir)
    path = os.path.join(data_dir, LOCK_FILE)
    try:
        lock = disk.lock(path)
    except BlockingIOError:
        holder = disk.read_file(path)[:100].decode("utf-8", "replace").strip()
        raise StorageIdentityError(
            f"{data_dir} is in use by {holder or 'another process'}; stop that one, or give this"
            " node a data directory of its own"
        ) from None
    try:
        file = disk.open(path, create=True)
        try:
            file.truncate(0)
            file.write(f"{owner}\n".encode(), 0)
        finally:
            file.close()
    except OSError as error:
        if error.errno not in _FULL:  # the name is for people; what is stored here can be read
            lock.release()
            raise
    return lock


def _format(disk: Disk, data_dir: str, properties: MetaProperties) -> None:
    strangers = [name for name in disk.list(data_dir) if name not in _NO_DATA]
    if strangers:
        raise StorageIdentityError(
            f"{data_dir} holds {strangers[0]} but no {META_PROPERTIES}, so nobody knows whose it"
            " is; choose an empty directory"
        )
    _sync_parents(disk, data_dir)
    write_atomically(disk, os.path.join(data_dir, META_PROPERTIES), properties.text().encode())


def _sync_names(disk: Disk, data_dir: str) -> None:
    """Names that a killed process made, removed or changed here survive a loss of power. OSError.

    This process relies on them, and makes none of them again: a log that is open in a folder syncs
    what is in the folder, and a mark of a clean stop that was removed may not come back.
    """
    disk.sync_dir(data_dir)


def _sync_parents(disk: Disk, data_dir: str) -> None:
    """The directory, and those around it that were made for it, survive a loss of power. OSError.

    Before it is formatted, as who finds it formatted relies on that. An earlier process may have
    made them, and been killed: nobody knows which are new. One that cannot be synced is not.
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
        raise StorageIdentityError(f"{path} is too large to be what its name says")
    return parse_properties(path, disk.read_file(path))


def parse_properties(path: str, data: bytes) -> MetaProperties:
    """What the file says; StorageIdentityError."""
    values: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", "!")):
            values[key.strip()] = value.strip()
    if _FORMAT_KEY not in values and "cluster.id" in values:
        raise StorageIdentityError(
            f"{path} was written by Apache Kafka, whose data this server does not take over;"
            " choose another data directory"
        )
    form = _number(path, values, _FORMAT_KEY)
    if form > FORMAT:
        raise StorageIdentityError(
            f"{path} has format {form}, written by a newer version of this server, which reads up"
            f" to {FORMAT}; start the newer version"
        )
    _number(path, values, "version")
    return MetaProperties(
        _text(path, values, "cluster.id"),
        _number(path, values, "node.id"),
        _text(path, values, "directory.id"),
    )


def _damaged(path: str, what: str) -> StorageIdentityError:
    return StorageIdentityError(
        f"{path} is damaged: it gives no {what}; put it back as it was, or choose another data"
        " directory"
    )


def _text(path: str, values: Mapping[str, str], key: str) -> str:
    if not values.get(key) or len(values[key]) > 64:
        raise _damaged(path, key)
    return values[key]


def _number(path: str, values: Mapping[str, str], key: str) -> int:
    text = values.get(key, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise _damaged(path, f"number as {key}")
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
