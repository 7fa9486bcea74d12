"""The folder of one log: its small files, and the names and files that need a sync.

The first append to a new log creates the folder. Otherwise a topic with a thousand partitions would
create three thousand files at once, and a full disk would take its partitions offline.
"""

import logging
import os
from typing import Final

from metaquorum.dataplane.log.recovery.checkpoints import encode_partition_metadata
from metaquorum.dataplane.log.segments.epochs import LeaderEpochs
from metaquorum.dataplane.log.segments.files import DirectoryFailedError, OpenFiles, storage_errors
from metaquorum.dataplane.log.segments.names import (
    EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    SNAPSHOT,
    file_name,
)
from metaquorum.dataplane.log.segments.producers import ProducerStateTable
from metaquorum.dataplane.log.segments.snapshots import decode_snapshot, encode_snapshot
from metaquorum.runtime.interfaces import Disk

logger = logging.getLogger(__name__)

_NONE: Final[frozenset[str]] = frozenset()


class Unsynced:
    """Files and names of a folder that were not synced at one moment."""

    __slots__ = ("folder", "is_new", "names", "names_changed")

    def __init__(
        self, folder: str, names: frozenset[str], names_changed: bool, is_new: bool
    ) -> None:
        self.folder = folder
        self.names = names
        self.names_changed = names_changed
        self.is_new = is_new

    @property
    def is_empty(self) -> bool:
        return not self.names and not self.names_changed and not self.is_new

    def sync(self, disk: Disk) -> None:
        """Sync these files and names. Raises OSError. Blocking: call it in a worker thread."""
        for name in sorted(self.names):
            try:
                small = disk.open(os.path.join(self.folder, name))
            except FileNotFoundError:  # removed meanwhile
                continue
            try:
                small.sync()
            finally:
                small.close()
        if self.names_changed:
            disk.sync_dir(self.folder)
        if self.is_new:
            disk.sync_dir(os.path.dirname(self.folder))


class LogFolder:
    """Folder of one log, with its leader epochs and producer snapshots on disk."""

    __slots__ = (
        "_epochs",
        "_is_new",
        "_names_changed",
        "_segments_changed",
        "_unsynced",
        "exists",
        "files",
        "has_new_epochs",
        "is_made",
        "path",
        "snapshot_offsets",
    )

    def __init__(
        self,
        files: OpenFiles,
        path: str,
        epochs: LeaderEpochs,
        snapshot_offsets: list[int],
        unsynced: frozenset[str] = _NONE,
        is_made: bool = True,
    ) -> None:
        self.files = files
        self.path = path
        self.snapshot_offsets = snapshot_offsets  # ascending
        self._epochs = epochs
        self.has_new_epochs = False
        self._unsynced = unsynced
        self._names_changed = bool(unsynced)
        self._segments_changed = bool(unsynced) or not is_made
        self.is_made = is_made
        # Whether the directory exists; a full disk may have left it without its files.
        self.exists = is_made
        self._is_new = False  # the folder's own entry is not synced yet

    @property
    def is_synced(self) -> bool:
        has_unwritten_epochs = self.has_new_epochs and self.is_made
        return not (self._unsynced or self._names_changed or has_unwritten_epochs)

    def take_unsynced(self) -> Unsynced:
        """Return the files and names that need a sync; the caller syncs or returns them."""
        unsynced = Unsynced(self.path, self._unsynced, self._names_changed, self._is_new)
        self._unsynced, self._names_changed, self._is_new = _NONE, False, False
        self._segments_changed = False
        return unsynced

    def give_back(self, unsynced: Unsynced) -> None:
        self._unsynced |= unsynced.names
        self._names_changed |= unsynced.names_changed
        self._segments_changed |= unsynced.names_changed
        self._is_new |= unsynced.is_new

    def make(self, topic_id: bytes) -> None:
        """Create the folder with its partition.metadata, without a sync. Raises StorageError.

        A log directory that was removed is not created again: it would look empty. One that was
        unmounted gets no folder: its mount point is on another disk.
        """
        if (removal := self.files.dir_watch.removal()) is not None:
            raise DirectoryFailedError(str(removal), self.path)
        with storage_errors("create", self.path):
            self.files.disk.make_dirs(self.path)
        self._is_new = self.exists = True
        self.write(PARTITION_METADATA, encode_partition_metadata(topic_id))
        self.is_made = True

    def names_changed(self) -> None:
        """Note that a segment file was created, renamed or removed."""
        self._names_changed = self._segments_changed = True

    def settle_names(self, *, are_being_synced: bool) -> None:
        """Sync the names of the existing segments before another segment is created.

        Of several new names a loss of power may keep any: with the second but without the first,
        the log would look as if retention had deleted its old segments. `are_being_synced`: a sync
        in progress has taken the names, but is not complete. Raises StorageError.
        """
        if self._segments_changed or are_being_synced:
            with storage_errors("sync", self.path):
                self.files.disk.sync_dir(self.path)
            self._segments_changed = False

    def write(self, name: str, data: bytes) -> None:
        """Replace the content of a file atomically, without a sync. Raises StorageError."""
        disk = self.files.disk
        path = os.path.join(self.path, name)
        with storage_errors("write", path):
            file = disk.open(path + ".tmp", create=True)
            try:
                file.truncate(0)
                file.write(data, 0)
            finally:
                file.close()
            disk.rename(path + ".tmp", path)
        self._unsynced |= {name}
        self._names_changed = True

    def remove(self, name: str) -> None:
        """Remove a file if it exists. Raises StorageError."""
        path = os.path.join(self.path, name)
        with storage_errors("remove", path):
            try:
                self.files.disk.remove(path)
            except FileNotFoundError:
                return
        self._unsynced -= {name}
        self._names_changed = True

    # Leader epochs

    def epochs_changed(self) -> None:
        """Note that the leader epochs differ from their file; the caller calls `write_epochs`."""
        self.has_new_epochs = True

    def write_epochs(self) -> None:
        """Write the leader epochs if they have changed and the folder exists."""
        if self.has_new_epochs and self.is_made:
            self.write(EPOCH_CHECKPOINT, self._epochs.encode())
            self.has_new_epochs = False

    # Producer snapshots

    def write_snapshot(self, offset: int, producers: ProducerStateTable) -> None:
        self.write(file_name(offset, SNAPSHOT), encode_snapshot(producers.entries.values()))
        if self.snapshot_offsets[-1:] != [offset]:
            self.snapshot_offsets.append(offset)

    def newest_snapshot(self) -> tuple[ProducerStateTable, int] | None:
        """Return the newest valid snapshot and its offset, or None. Raises StorageError."""
        for offset in reversed(self.snapshot_offsets):
            path = os.path.join(self.path, file_name(offset, SNAPSHOT))
            try:
                with storage_errors("read", path):
                    return decode_snapshot(self.files.disk.read_file(path)), offset
            except ValueError as error:
                logger.warning(
                    "ignoring the malformed producer snapshot %s: %s; producers are read from an "
                    "older snapshot and the log",
                    path,
                    error,
                )
        return None

    def drop_snapshots_behind(self, offset: int) -> None:
        while self.snapshot_offsets and self.snapshot_offsets[-1] > offset:
            self.remove(file_name(self.snapshot_offsets.pop(), SNAPSHOT))

    def drop_snapshots_between(self, offset: int, end_offset: int) -> None:
        """Remove snapshots after `offset` and before `end_offset`."""
        kept = []
        for each in self.snapshot_offsets:
            if offset < each < end_offset:
                self.remove(file_name(each, SNAPSHOT))
            else:
                kept.append(each)
        self.snapshot_offsets = kept

    def drop_snapshots_before(self, offset: int) -> None:
        """Remove snapshots before `offset`, except the newest: a rebuild would start from that."""
        while len(self.snapshot_offsets) > 1 and self.snapshot_offsets[1] <= offset:
            self.remove(file_name(self.snapshot_offsets.pop(0), SNAPSHOT))
