"""What a node may ask of its machine, as three small protocols.

Everything a node does to the world goes through here, so that a simulator can stand in for the
world: time that jumps, networks that cut, disks that forget what was not synced. A node therefore
opens no socket or file, reads no clock and draws no global random number of its own.

The loop and the disk. Operations of `File` and `Disk` are plain functions. Short ones (an append of
some kilobytes to the page cache, a read of cached bytes, a directory listing) are called in place.
Whatever may take longer than a slice of the loop (`sync`, a cold read, a big write, a scan) is
handed to `Disk.run`, which calls it beside the loop and returns when it is done.

Durability. Bytes written are safe from a crash of the process; they are safe from a loss of power
once `File.sync` has returned; a created, renamed or removed name is, once `Disk.sync_dir` of its
folder has returned.
"""

import os
import random
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

from wire.primitives.frozen import frozen

T = TypeVar("T")
Buffer: TypeAlias = bytes | bytearray | memoryview


class StorageError(Exception):
    """A disk or directory does not do its job; the log directory concerned goes offline."""


class Clock(Protocol):
    """One machine's time, which may be skewed against the others'."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC; may jump."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never goes back."""

    def cpu_s(self) -> float:
        """Seconds of CPU that the calling thread has used."""

    async def sleep_until(self, deadline: float) -> None:
        """Return once `monotonic()` has reached `deadline`. A checkpoint in any case."""


class File(Protocol):
    """An open file, for reading and writing at positions. Every method may raise OSError."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def read(self, size: int, position: int) -> bytes:
        """The `size` bytes at `position`; fewer only where the file ends."""

    def write(self, data: Buffer, position: int) -> None:
        """All of `data` stands at `position`, as a crash of this process cannot undo.

        On OSError (a full disk) any prefix of it may have been written.
        """

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Bytes and size survive a loss of power (fdatasync). Slow: for `Disk.run`."""

    def is_cached(self, size: int, position: int) -> bool:
        """Whether a read there would be served from memory; True where nobody can tell."""

    def close(self) -> None: ...


class FileLock(Protocol):
    """An exclusive claim on a folder, given up by `release` or by the end of the process."""

    def release(self) -> None: ...


class Disk(Protocol):
    """One machine's file systems. Paths are absolute. Every method may raise OSError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """An existing file (else FileNotFoundError); with `create` it is made if missing."""

    def create_private(self, path: str) -> File:
        """A new, empty file that this process's user alone may read, whatever the umask.

        A file that stood there is replaced.
        """

    def make_private(self, path: str) -> bool:
        """This process's user alone may use the file or folder (mode 0600, 0700).

        Whether others could before. PermissionError where it is another user's.
        """

    def read_file(self, path: str) -> bytes: ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def list(self, path: str) -> list[str]:
        """The names in a folder, sorted."""

    def make_dirs(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; what stood at `target` (a file or an empty folder) is replaced."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """The names in this folder survive a loss of power. Slow: for `Disk.run`."""

    def sync_all(self, path: str) -> bool:
        """All that was written to the file system of `path` survives a loss of power.

        False where that cannot be asked for, or would not tell of what failed: then nothing was
        done. For thousands of files, which one by one take as many waits. Slow: for `Disk.run`.
        """

    def boot_id(self) -> str:
        """Another one once what was not synced may be gone: since each start of the machine.

        Empty where nobody can tell.
        """

    def lock(self, path: str) -> FileLock:
        """Claim the lock file at `path`; BlockingIOError while another process holds it."""

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """The size of the file system that `path` is in."""

    async def run(self, function: Callable[[], T]) -> T:
        """The result of `function`, called beside the loop; not cancelled once it has begun."""


class Connection(Protocol):
    """A byte stream to a peer. After `close`, all raise OSError or trio.ClosedResourceError."""

    @property
    def peer(self) -> tuple[str, int]:
        """Host and port of the other end."""

    async def receive_into(self, buffer: bytearray | memoryview) -> int:
        """At least one byte has been put at the start of `buffer`; 0 says that the peer has ended.

        A checkpoint in any case. OSError: the connection broke.
        """

    def receive_nowait(self, buffer: bytearray | memoryview) -> int:
        """As `receive_into`, without waiting: -1 when no byte is there."""

    async def pump(self, step: Callable[[], bool]) -> None:
        """`step()` was called each time bytes may have come, until it returned False or raised.

        What it raises is raised here. For steps that only receive, compute and `send_nowait`: they
        may be called outside of the waiting task, which saves waking it for each of them.
        """

    def call_soon(self, step: Callable[[], bool]) -> None:
        """`step()` is called once under `pump`, in the place of its own, though nothing has come.

        Nothing happens if nobody pumps, or if the pump ends before. The last of several counts.
        """

    def send_nowait(self, data: Buffer) -> int:
        """How many bytes of `data`, from its start, were taken without waiting; may be 0."""

    async def send(self, data: Buffer) -> None:
        """All of `data` has been handed to the network."""

    async def send_file(self, file: File, position: int, size: int) -> None:
        """As `send`, for bytes of a file; EOFError when the file ends before."""

    def close(self) -> None: ...


class Listener(Protocol):
    @property
    def address(self) -> tuple[str, int]:
        """Host and port as bound."""

    async def accept(self) -> Connection: ...

    def close(self) -> None: ...


class Network(Protocol):
    async def listen(self, host: str, port: int) -> Listener:
        """Listening there; port 0 chooses a free one. OSError (EADDRINUSE ...) says why not."""

    async def connect(self, host: str, port: int) -> Connection: ...


@frozen
class Runtime:
    """What one node is given of its machine."""

    clock: Clock
    network: Network
    disk: Disk
    random: random.Random


async def sleep(clock: Clock, seconds: float) -> None:
    await clock.sleep_until(clock.monotonic() + seconds)


def write_atomically(disk: Disk, path: str, data: Buffer, *, private: bool = False) -> None:
    """The file at `path` is `data`, whole and through a loss of power; or it is as before.

    `private`: the process's user alone may read it. Slow: for `Disk.run`.
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
