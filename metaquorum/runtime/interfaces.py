"""Protocols through which a node uses its machine: Clock, Network and Disk.

All effects of a node go through these protocols, so that a simulator can replace the machine by
clocks that jump, networks that fail and disks that lose unsynced bytes. A node therefore never
opens a socket or file, reads a clock or draws a global random number directly.

The event loop and the disk: operations of `File` and `Disk` are blocking functions. Short ones (an
append of some kilobytes to the page cache, a read of cached bytes, a directory listing) are called
in the event loop. Operations that may block the loop for longer (`sync`, an uncached read, a large
write, a scan) go through `Disk.run`, which calls them in a worker thread.

Durability: written bytes survive a crash of the process. They survive a power loss once `File.sync`
has returned. A created, renamed or removed name survives a power loss once `Disk.sync_dir` of its
folder has returned.
"""

import errno
import os
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from metaquorum.wire.primitives.frozen import frozen

T = TypeVar("T")
Buffer: TypeAlias = bytes | bytearray | memoryview


class StorageError(Exception):
    """Raised if a disk or directory fails; the log directory concerned goes offline.

    `path` is that of the file or directory that failed; empty if it is not known.
    """

    def __init__(self, reason: str = "", path: str = "") -> None:
        super().__init__(reason)
        self.path = path


# open(2) fails with these for a moment, before anything is read, written or synced.
_OUT_OF_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE))


def is_out_of_descriptors(error: BaseException) -> bool:
    """Return whether the error, or its cause, is that no further file can be opened now.

    A file or directory was not synced then, but no page was lost: a later sync succeeds.
    """
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _OUT_OF_DESCRIPTORS


class Clock(Protocol):
    """Clock of one machine, which may differ from the clocks of other machines."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 UTC; it may jump."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point; the value never decreases."""

    def cpu_s(self) -> float:
        """Return the seconds of CPU time that the calling thread has used."""

    async def sleep_until(self, deadline: float) -> None:
        """Return once `monotonic()` has reached `deadline`. A checkpoint in any case."""


class File(Protocol):
    """An open file, read and written at positions in bytes. Every method may raise OSError."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def read(self, size: int, position: int) -> bytes:
        """Return `size` bytes from `position`; fewer only at the end of the file."""

    def write(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`; the bytes then survive a crash of this process.

        After OSError (such as a full disk) any prefix of `data` may have been written.
        """

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make bytes and size survive a power loss (fdatasync). Blocking: call in `Disk.run`."""

    def is_cached(self, size: int, position: int) -> bool:
        """Return whether a read there would be served from memory; True if that is unknown."""

    def close(self) -> None: ...


class FileLock(Protocol):
    """An exclusive lock file, held until `release` or the end of the process."""

    def release(self) -> None: ...


# Device and number of a folder, which differ from those of its successors: see `Disk.identity`.
Identity: TypeAlias = tuple[int, int]


# Bytes of records that are written outside of worker threads, unless such writes wait, too.
SMALL_WRITE_BYTES: Final = 64 << 10


class Disk(Protocol):
    """File systems of one machine. Paths are absolute. Every method may raise OSError."""

    @property
    def inline_write_bytes(self) -> int:
        """Most bytes of records to write at once outside of `run`; negative: none.

        Linux lets a thread that writes faster than the device wait in `File.write`. Once large
        writes have waited, this is SMALL_WRITE_BYTES for a while, and -1 once small ones have.
        """

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file. Raises FileNotFoundError if it is missing, unless `create` creates it."""

    def create_private(self, path: str) -> File:
        """Create an empty file that only the user of this process may access, with any umask.

        An existing file is replaced.
        """

    def make_private(self, path: str) -> bool:
        """Restrict a file or folder to the user of this process (mode 0600 or 0700).

        Returns whether other users had access before. Raises PermissionError if another user owns
        the file.
        """

    def read_file(self, path: str) -> bytes: ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def identity(self, path: str) -> Identity:
        """Return two numbers that no other folder of this machine has, at any path.

        All processes see the same, as long as the folder exists. Another folder may get them once
        the folder is removed and no process has a lock in it (`lock`).
        """

    def size(self, path: str) -> int: ...

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""

    def make_dirs(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Rename atomically; a file or an empty folder at `target` is replaced."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder with all that it contains.

        If `path` is a symbolic link to a folder, the files directly in that folder are removed,
        then the link. The folder itself goes with them if that leaves it empty.
        """

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder survive a power loss. Blocking: call in `Disk.run`."""

    def sync_all(self, path: str) -> bool:
        """Make all bytes written to the file system of `path` survive a power loss.

        Returns False, without an effect, if the system does not support this or does not report
        failed writes. Faster than `sync` of thousands of files. Blocking: call in `Disk.run`.
        """

    def boot_id(self) -> str:
        """Return an id that changes at each boot, after which unsynced bytes may be lost.

        Returns an empty string if the id is unknown.
        """

    def lock(self, path: str) -> FileLock:
        """Lock the file at `path`. Raises BlockingIOError if another process holds the lock.

        Until its release, no other folder gets the identity of the file's folder.
        """

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """Return the size in bytes of the file system that contains `path`."""

    async def run(self, function: Callable[[], T]) -> T:
        """Call `function` in a worker thread and return its result.

        A call that has begun is not cancelled.
        """

    async def write(self, file: File, data: Buffer, position: int) -> None:
        """Write to the file as `File.write` does, in a worker thread: records.

        Writers that wait for a device leave threads to other calls of `run`.
        """


class Connection(Protocol):
    """A byte stream to a peer.

    After `close`, its methods raise OSError or trio.ClosedResourceError.
    """

    @property
    def peer(self) -> tuple[str, int]:
        """Host and port of the peer."""

    async def receive_into(self, buffer: bytearray | memoryview) -> int:
        """Receive at least one byte into `buffer`; return the count, 0 at the end of the stream.

        Always a checkpoint. Raises OSError if the connection fails.
        """

    def receive_nowait(self, buffer: bytearray | memoryview) -> int:
        """Receive like `receive_into`, without waiting; return -1 if no byte is available."""

    def is_ended(self) -> bool:
        """Return whether no more bytes will arrive: the peer closed the connection or it failed.

        Does not receive; bytes that arrived before may be unread.
        """

    async def pump(self, step: Callable[[], bool]) -> None:
        """Call `step()` whenever bytes may be available, until it returns False or raises.

        Its error is raised here. A step may only receive, compute and send without waiting
        (`send_nowait`, `send_file_nowait`): it may be called outside of the waiting task, which
        saves waking the task for each step.
        """

    def call_soon(self, step: Callable[[], bool]) -> None:
        """Make `pump` call `step()` once in place of its own step, without waiting for bytes.

        Has no effect if no task pumps or if the pump ends first. Of several calls, the last one
        replaces the others.
        """

    def call_when_writable(self, step: Callable[[], bool]) -> bool:
        """Make `pump` call `step()` once in place of its own step, when the peer takes bytes again.

        Until then `pump` does not call its own step. Returns False, without an effect, if no task
        pumps, or if only a task can wait for that.
        """

    def send_nowait(self, data: Buffer) -> int:
        """Send a prefix of `data` without waiting; return its size in bytes, which may be 0."""

    def send_soon(self, data: bytes, unsent: Callable[[bytes], object]) -> bool:
        """Send `data` after the steps of other connections that can receive now.

        Calls `unsent` then with the bytes that the peer does not take, before any task runs. If
        sending fails then, the next receive returns 0. Returns False, without an effect, if
        `data` must be sent at once: outside of a step and in the last one, if `data` is too long,
        or if other bytes wait already.
        """

    async def send(self, data: Buffer) -> None:
        """Send all of `data`; return when the operating system has accepted it."""

    async def send_file(self, file: File, position: int, size: int) -> None:
        """Send `size` bytes of a file. Raises EOFError if the file ends earlier."""

    def send_file_nowait(self, file: File, position: int, size: int) -> int:
        """Send a prefix of `size` bytes of a file without waiting for the peer; return its size.

        Returns 0 if only `send_file` can send from this file, or if the peer takes no bytes now.
        Raises EOFError if the file ends at `position`. Blocking unless the bytes are in the page
        cache (`File.is_cached`).
        """

    def close(self) -> None: ...


class Listener(Protocol):
    @property
    def address(self) -> tuple[str, int]:
        """Host and port to which the listener is bound."""

    async def accept(self) -> Connection: ...

    def close(self) -> None: ...


class Network(Protocol):
    async def listen(self, host: str, port: int) -> Listener:
        """Listen on an address; port 0 chooses a free port. Raises OSError (EADDRINUSE etc.)."""

    async def connect(self, host: str, port: int) -> Connection: ...

    async def addresses(self, host: str) -> Sequence[str]:
        """Return the addresses of a host, in the form of `Connection.peer`. Raises OSError."""


@frozen
class Runtime:
    """Interfaces of one node to its machine."""

    clock: Clock
    network: Network
    disk: Disk
    random: random.Random


async def sleep(clock: Clock, seconds: float) -> None:
    await clock.sleep_until(clock.monotonic() + seconds)


def write_atomically(disk: Disk, path: str, data: Buffer, *, private: bool = False) -> None:
    """Replace the file at `path` by `data`, atomically and durably.

    After OSError or a power loss the file has either its old or its new content. `private`: only
    the user of this process may read the file. Blocking: call in `Disk.run`.
    """
    temporary = path + ".tmp"
    file = disk.create_private(temporary) if private else disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write(data, 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_dir(os.path.dirname(path))
