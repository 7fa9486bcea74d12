"""Open files of the log: many segments, few descriptors.

A `LogFile` stands for a file of a segment and is opened when first used. `OpenFiles` closes those
that were not used lately once more than `max_open` are open (second chance: a file used since the
hand last passed is spared once). A pinned file (`acquire` ... `release`) is never closed under its
user; pins are short (one sendfile, one sync), so that the bound is exceeded by no more than the
pins there are.

None of this is for more than one thread: whoever goes beside the loop takes an acquired `File`.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, cast

from dataplane.log.segments.sync_failure_marker import SyncFailureMarker
from metaquorum.runtime.interfaces import Disk, File, StorageError

MAX_OPEN_FILES: Final = 512
# The search in an index of 2 MB takes nine steps, each in another page, and three in such blocks.
WARMED_BYTES: Final = 256 * 1024

_ADVICE: Final = {
    errno.ENOSPC: "free some space there or add some",
    errno.EDQUOT: "raise the disk quota of this user",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.EACCES: "let this user read and write there",
    errno.EPERM: "let this user read and write there",
    errno.EROFS: "mount it writable",
    errno.ENOENT: "something removed it while the node was running",
    errno.EIO: "the device fails: look into the kernel's log, replace it, and restart",
}


# What passes by itself, or with somebody's help: the disk is as good as before.
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_PASSING: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
# Somebody has moved, removed or locked away a file: that is about this file.
_OF_ONE_FILE: Final = frozenset(
    (
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.ELOOP,
        errno.ENAMETOOLONG,
    )
)
# A device that does not give bytes may still keep others.
_READING: Final = frozenset(("read", "recover", "open"))


class DiskFullError(StorageError):
    """No space was left; what stood there before stands as it did, and may still be read."""


class UnreadableError(StorageError):
    """The device did not give what it holds; nothing that others rely on is lost by that."""


class DirectoryFailedError(StorageError):
    """The device did not take or keep what it was given: nothing on it can be relied on."""


def storage_error(error: OSError, action: str, path: str) -> StorageError:
    """What an OSError means for the person who runs this node, and for the log directory."""
    number = error.errno or 0
    advice = _ADVICE.get(number, "look at the disk and restart the node")
    reason = error.strerror or str(error) or type(error).__name__
    text = f"cannot {action} {path}: {reason}; {advice}"
    if number in _FULL:  # too late for a sync: pages that were not kept count as clean from now on
        return DirectoryFailedError(text) if action == "sync" else DiskFullError(text)
    if not number or number in _PASSING or number in _OF_ONE_FILE:
        return StorageError(text)
    return UnreadableError(text) if action in _READING else DirectoryFailedError(text)


@contextmanager
def storage_errors(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(error, action, path) from error


class ColdError(Exception):
    """What was to be read is not in memory; `warm` reads it, beside the loop."""

    def __init__(self, file: "LogFile", size: int, position: int) -> None:
        super().__init__(f"{size} bytes at {position} of {file.path}")
        self._file = file
        self._size = size
        self._position = position

    async def warm(self, disk: Disk) -> None:
        """It is in memory, for a while, and what is around it. StorageError, OSError."""
        first = self._position - self._position % WARMED_BYTES
        size = self._position - first + self._size
        size += -size % WARMED_BYTES
        with self._file.pinned() as file, self._file.reading():
            await disk.run(partial(file.read, size, first))


class _HotFile:
    """A file of which only that can be read which is in memory."""

    __slots__ = ("_file", "_log_file")

    def __init__(self, log_file: "LogFile", file: File) -> None:
        self._log_file = log_file
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int, position: int) -> bytes:
        if not self._file.is_cached(size, position):
            raise ColdError(self._log_file, size, position)
        return self._file.read(size, position)


class LogFile:
    """A file that is open while it is used. Its methods may raise OSError."""

    __slots__ = (
        "_create",
        "_file",
        "_files",
        "_name",
        "_pins",
        "_retired",
        "folder",
        "recent",
        "removed",
    )

    def __init__(self, files: "OpenFiles", folder: str, name: str, *, create: bool = False) -> None:
        """With `create`, a missing file is made when it is first used."""
        self._files = files
        self._create = create
        self.folder = folder
        self._name = name
        self._file: File | None = None
        self._pins = 0
        self._retired = False
        self.recent = False
        self.removed = False

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self._name)

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def is_pinned(self) -> bool:
        return self._pins > 0

    def get(self) -> File:
        """The open file, for use before the next await."""
        self.recent = True
        file = self._file
        if file is None:
            file = self._open()
        return cast(File, _HotFile(self, file)) if self._files.refuses_cold else file

    def _open(self) -> File:
        if self.removed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        self._files.make_room()
        file = self._file = self._files.disk.open(self.path, create=self._create)
        self._files.opened(self)
        return file

    def acquire(self) -> File:
        """The open file, not to be closed before `release`."""
        file = self.get()
        self._pins += 1
        return file

    def release(self) -> None:
        assert self._pins > 0
        self._pins -= 1
        if self._retired and self._pins == 0:
            self.close()

    @contextmanager
    def pinned(self) -> Iterator[File]:
        file = self.acquire()
        try:
            yield file
        finally:
            self.release()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._files.closed(self)
            file.close()

    def retire(self, name: str) -> None:
        """It has that name until `remove`, and is open only while somebody has acquired it."""
        self._retired = True
        if not self._pins:
            self.close()
        self._files.disk.rename(self.path, os.path.join(self.folder, name))
        self._name = name

    def rename(self, name: str) -> None:
        """It has that name from now on, and stays open if it was."""
        self._files.disk.rename(self.path, os.path.join(self.folder, name))
        self._name = name

    def moved(self, folder: str) -> None:
        """Its log is not served any more: it is open only while somebody has acquired it."""
        self.folder = folder
        self.let_go()

    def let_go(self) -> None:
        """It is open only while somebody has acquired it."""
        self._retired = True
        if not self._pins:
            self.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """An OSError becomes a StorageError, of which whoever keeps the log is told, too."""
        try:
            yield
        except OSError as error:
            failure = storage_error(error, "read", self.path)
            if self._files.on_unreadable is not None:
                self._files.on_unreadable(self.folder, failure)
            raise failure from error

    def remove(self) -> None:
        """The name is gone; who has acquired it keeps the bytes until the release.

        Of a retired file this may be done beside the loop.
        """
        self.removed = True
        if not self._retired:
            self._retired = True
            if not self._pins:
                self.close()
        try:
            self._files.disk.remove(self.path)
        except FileNotFoundError:
            pass


class OpenFiles:
    """The descriptors that all logs of a log directory share, and what tells of their syncs."""

    __slots__ = (
        "_open",
        "_shut",
        "disk",
        "max_open",
        "on_unreadable",
        "refuses_cold",
        "sync_failure_marker",
    )

    def __init__(self, disk: Disk, folder: str, max_open: int = MAX_OPEN_FILES) -> None:
        assert max_open > 0
        self.disk = disk
        self.sync_failure_marker = SyncFailureMarker(disk, folder)
        self.max_open = max_open
        # Told of a log's folder that a reader, who knows no more of it, could not read.
        self.on_unreadable: Callable[[str, StorageError], None] | None = None
        # A read of what is not in memory is a `ColdError`; set for one slice of the loop.
        self.refuses_cold = False
        self._open: dict[LogFile, None] = {}
        self._shut = False

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, file: LogFile) -> None:
        self._open[file] = None

    def closed(self, file: LogFile) -> None:
        del self._open[file]

    def make_room(self) -> None:
        """Fewer than `max_open` files are open, or all of them are pinned. OSError once shut."""
        if self._shut:
            raise OSError(errno.EIO, "the log directory is offline")
        if len(self._open) < self.max_open:
            return
        # Twice around at most: the first round takes every second chance.
        for _ in range(2 * len(self._open)):
            file = next(iter(self._open))
            if not file.is_pinned and not file.recent:
                file.close()
                if len(self._open) < self.max_open:
                    return
                continue
            file.recent = False
            del self._open[file]
            self._open[file] = None

    def close(self) -> None:
        for file in list(self._open):
            file.close()

    def shut(self) -> None:
        """None is opened any more; those that are pinned close with their release."""
        self._shut = True
        for file in list(self._open):
            with suppress(OSError):  # the disk has failed already
                file.let_go()
