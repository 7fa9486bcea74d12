"""A marker of failed syncs: whether the page cache may differ from the device's content.

After a failed fsync, Linux keeps the pages readable and marks them clean: the next sync of that
file succeeds, although the device never received them, until the kernel restarts. A restarted
process would recover its logs from such pages, sync them "successfully", and lose them with the
next loss of power. Rewriting the pages makes them dirty again, so that a sync is reliable.

Each log directory therefore marks its syncs in one byte of a file:

    1    logs are being synced or recovered, or a sync or recovery has failed
    0    no sync is in progress, and none has failed

On a full disk the file may be missing or empty instead of holding a 1.

The byte is never synced: it lives in the page cache like the pages it describes, and is lost with
them. A recovery that does not find a 0 rewrites the files it relies on. That includes a process
that was killed during a sync, because the result of that sync is unknown.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Final

from metaquorum.dataplane.log.segments.names import SYNCING
from metaquorum.runtime.interfaces import Disk, is_out_of_descriptors

_IN_DOUBT: Final = b"1"
_SURE: Final = b"0"


class SyncFailureMarker:
    """Marker of one log directory. Several worker threads may sync at the same time."""

    __slots__ = ("_disk", "_lock", "_path", "_under_way", "has_failed")

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = os.path.join(folder, SYNCING)
        self._lock = Lock()
        self._under_way = 0
        self.has_failed = False

    def is_in_doubt(self) -> bool:
        """Return whether the previous process left no 0 in the marker. Raises OSError."""
        return not self._disk.exists(self._path) or self._disk.read_file(self._path) != _SURE

    @contextmanager
    def syncing(self) -> Iterator[None]:
        """Mark the block as a sync; if it fails, the mark stays until the directory is recovered.

        Without a descriptor for the file, no page is lost, and the mark does not stay.
        Raises OSError if the marker cannot be written or removed.
        """
        self.begin()
        try:
            yield
        except BaseException as error:
            if not is_out_of_descriptors(error):
                self.has_failed = True
                raise
            self.end()
            raise
        self.end()

    def begin(self) -> None:
        """Mark the beginning of a sync. Raises OSError; then the caller must not sync."""
        with self._lock:
            if not self._under_way:
                try:
                    self._write(_IN_DOUBT)
                except OSError:  # disk full: a missing marker means the same as a 1
                    with suppress(FileNotFoundError):
                        self._disk.remove(self._path)
            self._under_way += 1

    def end(self) -> None:
        """Mark the success of a sync; after a failure the caller sets `has_failed` instead."""
        with self._lock:
            self._under_way -= 1
            if not self._under_way and not self.has_failed:
                with suppress(OSError):  # a stale 1 only costs a rewrite at the next recovery
                    self._write(_SURE)

    def _write(self, byte: bytes) -> None:
        file = self._disk.open(self._path, create=True)
        try:
            file.write(byte, 0)
        finally:
            file.close()
