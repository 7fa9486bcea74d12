"""Open files of the log: many segments, few descriptors.

A `LogFile` represents a file of a segment and is opened at its first use. Once `max_open` files are
open, `OpenFiles` closes files that were not used recently (second chance algorithm: a file used
since the last pass is spared once). A pinned file (`acquire` ... `release`) is never closed while
it is in use. Pins are short (one sendfile, one sync), and the limit is exceeded by no more than
their number.

Nothing here is thread-safe: a worker thread uses an acquired `File` only.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, cast

from metaquorum.dataplane.log.segments.sync_failure_marker import SyncFailureMarker
from metaquorum.quorum.storage.data_dir import DirWatch
from metaquorum.runtime.interfaces import Disk, File, Identity, StorageError

MAX_OPEN_FILES: Final = 512
# Open files of each log directory of many, unless the limit of the process permits fewer.
LEAST_OPEN_FILES: Final = 64
# A search in an index of 2 MB touches nine pages, but only three blocks of this size.
WARMED_BYTES: Final = 256 * 1024

_ADVICE: Final = {
    errno.ENOSPC: "free some space on this disk or enlarge it",
    errno.EDQUOT: "raise the disk quota of this user",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.EACCES: "give the user of this process read and write permission",
    errno.EPERM: "give the user of this process read and write permission",
    errno.EROFS: "mount the file system writable",
    errno.ENOENT: "the file or directory was removed while the node was running",
    errno.EBUSY: "unmount what is mounted there, or stop the program that uses it",
    errno.EIO: "the device fails: check the kernel log, replace the device, and restart the node",
}


# Temporary errors, which an operator can fix: the disk itself is intact.
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_PASSING: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
# Errors of one file that was moved, removed or made inaccessible; the directory is intact.
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
        errno.EBUSY,  # a mount point
        errno.ENAMETOOLONG,
    )
)
# After a read error, writes and syncs of the device may still succeed.
_READING: Final = frozenset(("read", "recover", "open"))


class DiskFullError(StorageError):
    """Raised if the disk is full; the existing files are unchanged and readable."""


class UnreadableError(StorageError):
    """Raised if a read fails; the directory is probed with a write, which may still succeed."""


class DirectoryFailedError(StorageError):
    """Raised if a write or sync fails: the content of the device can no longer be trusted."""


def storage_error(error: OSError, action: str, path: str) -> StorageError:
    """Return the StorageError for an OSError, with advice for operators in the text.

    Its class decides what is taken offline (see the subclasses above).
    """
    number = error.errno or 0
    advice = _ADVICE.get(number, "check the disk and restart the node")
    reason = error.strerror or str(error) or type(error).__name__
    text = f"cannot {action} {path}: {reason}; {advice}"
    if number in _FULL:  # a failed sync is worse: the kernel now treats the lost pages as clean
        return DirectoryFailedError(text, path) if action == "sync" else DiskFullError(text, path)
    if not number or number in _PASSING or number in _OF_ONE_FILE:
        return StorageError(text, path)
    return UnreadableError(text, path) if action in _READING else DirectoryFailedError(text, path)


@contextmanager
def storage_errors(action: str, path: str) -> Iterator[None]:
    """Raise an OSError of the block as the StorageError that `storage_error` returns."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, action, path) from error


class ColdError(Exception):
    """Raised if a read would wait for the disk; `warm` reads the bytes in a worker thread."""

    def __init__(self, file: "LogFile", size: int, position: int) -> None:
        super().__init__(f"{size} bytes at position {position} of {file.path} are not in memory")
        self._file = file
        self._size = size
        self._position = position

    async def warm(self, disk: Disk) -> None:
        """Read the block with these bytes into the page cache, in a worker thread.

        Raises StorageError or OSError.
        """
        first = self._position - self._position % WARMED_BYTES
        size = self._position - first + self._size
        size += -size % WARMED_BYTES
        with self._file.pinned() as file, self._file.reading():
            await disk.run(partial(file.read, size, first))


class _HotFile:
    """A file whose reads raise ColdError unless the bytes are in the page cache."""

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
    """A log file that is opened at its first use and closed by `OpenFiles`.

    Its methods may raise OSError.
    """

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
        """Create no file yet: with `create`, a missing file is created at its first use."""
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
        """Return the open file, for use before the next await."""
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
        """Return the open file, pinned until `release`."""
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
        """Rename the file to `name`; from now on it is open only while it is pinned."""
        self._retired = True
        if not self._pins:
            self.close()
        self._files.disk.rename(self.path, os.path.join(self.folder, name))
        self._name = name

    def rename(self, name: str) -> None:
        """Rename the file to `name`; an open file stays open."""
        self._files.disk.rename(self.path, os.path.join(self.folder, name))
        self._name = name

    def moved(self, folder: str) -> None:
        """Use `folder` after the log was moved out of service; close the file unless pinned."""
        self.folder = folder
        self.let_go()

    def let_go(self) -> None:
        """Keep the file open only while it is pinned."""
        self._retired = True
        if not self._pins:
            self.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise an OSError of the block as a StorageError, after `OpenFiles.on_unreadable`."""
        try:
            yield
        except OSError as error:
            failure = storage_error(error, "read", self.path)
            if self._files.on_unreadable is not None:
                self._files.on_unreadable(self.folder, failure)
            raise failure from error

    def remove(self) -> None:
        """Remove the file; a pinned file stays readable until its release.

        For a retired file, this may run in a worker thread.
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
    """Descriptors that all logs of a log directory share, and the marker of failed syncs."""

    __slots__ = (
        "_open",
        "_shut",
        "dir_watch",
        "disk",
        "max_open",
        "on_unreadable",
        "refuses_cold",
        "sync_failure_marker",
    )

    def __init__(
        self,
        disk: Disk,
        folder: str,
        max_open: int = MAX_OPEN_FILES,
        identity: Identity | None = None,
    ) -> None:
        """Share `max_open` descriptors among the logs of the log directory `folder`.

        `identity`: that of the directory when it was locked; None: it is read now. Raises OSError.
        """
        assert max_open > 0
        self.disk = disk
        found = disk.identity(folder) if identity is None else identity
        self.dir_watch = DirWatch(disk, folder, found)
        self.sync_failure_marker = SyncFailureMarker(disk, folder)
        self.max_open = max_open
        # Called with a log's folder if a `LogFile.reading` block fails to read one of its files.
        self.on_unreadable: Callable[[str, StorageError], None] | None = None
        # Reads of bytes outside of the page cache raise ColdError; never set across an await.
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
        """Close files until fewer than `max_open` are open, or all are pinned.

        Raises OSError after `shut`.
        """
        if self._shut:
            raise OSError(errno.EIO, "the log directory is offline")
        if len(self._open) < self.max_open:
            return
        # Two rounds at most: the first one may only clear the `recent` flags.
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
        """Refuse to open files from now on; close all files, pinned ones at their release."""
        self._shut = True
        for file in list(self._open):
            with suppress(OSError):  # the disk has failed already
                file.let_go()
