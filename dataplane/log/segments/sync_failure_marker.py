"""Whether this directory's files may be readable and yet not be what the device has.

A sync that fails leaves its pages readable, and counted as clean: the next sync of that file
succeeds, though the device never got them, for as long as the kernel runs. A process that starts
again would recover its logs from such pages, sync them "successfully", and lose them with the next
loss of power. Who rewrites them makes them dirty again, so that a sync tells the truth.

So a directory says when it is syncing, in one byte of a file:

    1    logs are being synced or recovered, or that has failed
    0    no sync is under way, and none has failed

On a full disk the file may be missing or empty instead of holding a 1.

The byte is never synced: it lives where the pages do that it tells of, and dies with them. A
recovery that does not find a 0 rewrites what it is going to rely on. (A process that was killed in
the midst of a sync makes the next one rewrite, too: nobody knows what that sync would have said.)
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Final

from dataplane.log.segments.names import SYNCING
from metaquorum.runtime.interfaces import Disk

_IN_DOUBT: Final = b"1"
_SURE: Final = b"0"


class SyncFailureMarker:
    """Of one log directory. Syncs may be side by side, each beside the loop."""

    __slots__ = ("_disk", "_lock", "_path", "_under_way", "has_failed")

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = os.path.join(folder, SYNCING)
        self._lock = Lock()
        self._under_way = 0
        self.has_failed = False

    def is_in_doubt(self) -> bool:
        """The process before this one did not leave the word that all is well. OSError."""
        return not self._disk.exists(self._path) or self._disk.read_file(self._path) != _SURE

    @contextmanager
    def syncing(self) -> Iterator[None]:
        """If the block raises, the directory is in doubt until it has been recovered. OSError."""
        self.begin()
        try:
            yield
        except BaseException:
            self.has_failed = True
            raise
        self.end()

    def begin(self) -> None:
        """From here to `end` the directory is in doubt. OSError: nothing may be synced."""
        with self._lock:
            if not self._under_way:
                try:
                    self._write(_IN_DOUBT)
                except OSError:  # no room for it: none says the same
                    with suppress(FileNotFoundError):
                        self._disk.remove(self._path)
            self._under_way += 1

    def end(self) -> None:
        """What began has succeeded; otherwise `has_failed` is to be set instead."""
        with self._lock:
            self._under_way -= 1
            if not self._under_way and not self.has_failed:
                with suppress(OSError):  # costs no more than another rewrite
                    self._write(_SURE)

    def _write(self, byte: bytes) -> None:
        file = self._disk.open(self._path, create=True)
        try:
            file.write(byte, 0)
        finally:
            file.close()
