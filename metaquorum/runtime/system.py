"""Real implementations of Clock, Network and Disk: sockets, files, clocks and threads."""

import contextlib
import ctypes
import errno
import fcntl
import functools
import math
import mmap
import os
import platform
import random
import re
import select
import shutil
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

import outcome
import trio
from trio._core._io_epoll import EpollIOManager

from metaquorum.runtime.interfaces import (
    SMALL_WRITE_BYTES,
    Buffer,
    Connection,
    File,
    FileLock,
    Identity,
    Listener,
    Runtime,
)
from metaquorum.runtime.write_waits import throttles_writers, waits_of_thread

T = TypeVar("T")

LISTEN_BACKLOG: Final = 1024
# Time to connect to one address of a host name before the next address is tried.
NEXT_ADDRESS_S: Final = 2.0
# Steps called before other tasks run; a step processes the bytes of one read.
MAX_STEPS_PER_TURN: Final = 64
# Time limit of each phase: steps requested by `call_soon`, and steps of readable connections. The
# remaining steps come first after the next check for work of trio.
MAX_STEPS_S: Final = 0.005
# Bytes sent by a step are held until the steps of other readable connections have been called, but
# at most MAX_HELD_BYTES of each of MAX_HOLDING connections. A send that wakes an idle
# peer on another CPU costs several times one that does not: responses that follow each other at
# once find the peer at work on the first.
MAX_HELD_BYTES: Final = 4096
MAX_HOLDING: Final = 16
# A larger sendfile would block the event loop for long if the receiver is fast.
SEND_FILE_SLICE_BYTES: Final = 1 << 20
PAGE_BYTES: Final = mmap.PAGESIZE
# Default read-ahead of Linux.
READ_AHEAD_BYTES: Final = 128 * 1024
_ONE_BYTE: Final = [bytearray(1)]
# Arguments of the system call cachestat: offset and size of a range; counts, of cached pages first.
_CACHESTAT: Final = 451
_RANGE: Final = (ctypes.c_uint64 * 2)()
_COUNTS: Final = (ctypes.c_uint64 * 5)()
_RANGE_AT: Final = ctypes.addressof(_RANGE)
_COUNTS_AT: Final = ctypes.addressof(_COUNTS)
# Event of a connection that the peer has closed; only Linux has the first one.
_ENDED: Final[int] = getattr(select, "POLLRDHUP", select.POLLHUP)
_FILE_MODE: Final = 0o644
_PRIVATE_FILE_MODE: Final = 0o600
_PRIVATE_DIR_MODE: Final = 0o700
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
# A write that takes longer has waited: for the device, a CPU, or the interpreter's lock.
SLOW_WRITE_S: Final = 0.015
# Time after such a write in which another one shows whether the thread gave up its CPU itself.
WATCHED_S: Final = 10.0
# Time after the last write that waited for the device until writes are expected not to wait again.
HELD_UP_S: Final = 1.0
_UNLIMITED: Final = sys.maxsize
# Writes of records in worker threads at a time: the other threads of trio's 40 are left to the
# metadata log, to syncs and to reads.
WRITER_THREADS: Final = 32


class RealClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Called several times per request: without a Python frame in between.
    monotonic = staticmethod(trio.current_time)
    cpu_s = staticmethod(time.thread_time)

    async def sleep_until(self, deadline: float) -> None:
        await trio.sleep_until(deadline)


class RealFile:
    __slots__ = ("_fd", "_owner", "_path")

    def __init__(self, path: str, fd: int, owner: "RealDisk") -> None:
        self._path = path
        self._fd = fd
        self._owner = owner

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) in (0, size):
            return data
        parts = [data]
        got = len(data)
        while data and got < size:  # a signal or a limit of the kernel can cut a read short
            data = os.pread(self._fd, size - got, position + got)
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def write(self, data: Buffer, position: int) -> None:
        disk, began = self._owner, time.perf_counter()
        waits = waits_of_thread() if began < disk.watched_until else -1
        written = os.pwrite(self._fd, data, position)
        ended = time.perf_counter()
        if ended - began > SLOW_WRITE_S:
            disk.write_was_slow(len(data), waits, ended)
        elif disk.inline_write_bytes != _UNLIMITED and ended > disk.held_up_until:
            disk.limit_writes(ended)
        if written == len(data):
            return
        rest = memoryview(data).cast("B")[written:]
        while rest:
            position += written
            written = os.pwrite(self._fd, rest, position)
            rest = rest[written:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def is_cached(self, size: int, position: int) -> bool:
        # Probe one byte of the first and last page, and some between: read-ahead fills the rest. If
        # the kernel counts all pages, only the last may still be read: read-ahead ends there. A
        # failed probe starts a read-ahead, therefore the first page comes first.
        last = position + max(size, 1) - 1
        fd = self._fd
        try:
            if size <= READ_AHEAD_BYTES or not _counts_all_pages(fd, size, position):
                for at in range(position, last // PAGE_BYTES * PAGE_BYTES, READ_AHEAD_BYTES):
                    os.preadv(fd, _ONE_BYTE, at, os.RWF_NOWAIT)
            os.preadv(fd, _ONE_BYTE, last, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # a file system without RWF_NOWAIT
            return True
        return True

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@functools.cache
def _cachestat() -> Callable[..., int] | None:
    """Return `syscall` of the C library if the kernel has cachestat (Linux 6.5); None otherwise.

    It keeps the GIL, because cachestat does not wait, so that threads can share its buffers.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return None
    function = ctypes.PyDLL(None, use_errno=True).syscall
    number, at = ctypes.c_long, ctypes.c_void_p
    function.argtypes, function.restype = (number, ctypes.c_int, at, at, ctypes.c_uint), number
    ctypes.set_errno(0)
    function(_CACHESTAT, -1, _RANGE_AT, _COUNTS_AT, 0)
    # Any other error than EBADF: the kernel is older, or a container forbids the call.
    return function if ctypes.get_errno() == errno.EBADF else None


def _counts_all_pages(fd: int, size: int, position: int) -> bool:
    """Return whether all pages of the range are known to be in the page cache."""
    cachestat = _cachestat()
    if cachestat is None:
        return False
    _RANGE[0], _RANGE[1] = position, size
    if cachestat(_CACHESTAT, fd, _RANGE_AT, _COUNTS_AT, 0):
        return False
    return _COUNTS[0] == (position + size - 1) // PAGE_BYTES - position // PAGE_BYTES + 1


class RealFileLock:
    def __init__(self, fd: int, folder_fd: int) -> None:
        self._fds = [fd, folder_fd]

    def release(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


@functools.cache
def _syncfs() -> Callable[[int], int] | None:
    """Return syncfs of Linux; None before Linux 5.8, which did not report failed writes."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    if sys.platform != "linux" or version is None:
        return None
    if (int(version[1]), int(version[2])) < (5, 8):
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return None if function is None else cast(Callable[[int], int], function)


def _remove_linked_folder(link: str) -> None:
    """Remove the files of the folder behind a symbolic link, then the link.

    Sub-folders stay, as the one of a file system's root does: whether they belong to the folder's
    owner is unknown. The removal of the files is synced before the link that leads to them goes.
    """
    folder = os.path.realpath(link)
    with os.scandir(folder) as entries:
        files = [entry.path for entry in entries if not entry.is_dir(follow_symlinks=False)]
    for path in files:
        os.unlink(path)
    _sync_dir(folder)
    with contextlib.suppress(OSError):  # not empty, a mount point, or in a read-only folder
        os.rmdir(folder)
    os.unlink(link)


def _sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class RealDisk:
    inline_write_bytes = _UNLIMITED  # see `Disk`
    # In seconds of time.perf_counter.
    held_up_until = float("-inf")
    small_held_up_until = float("-inf")
    watched_until = float("-inf")
    _running = 0  # functions of `run`
    _loop_thread: int | None = None

    def write_was_slow(self, size_bytes: int, waits: int, now: float) -> None:
        """Note a write of more than SLOW_WRITE_S; `waits` of its thread before it, -1 if unknown.

        May be called in a worker thread.
        """
        self.watched_until = now + WATCHED_S
        if not 0 <= waits < waits_of_thread():
            return
        # Another thread may have had the interpreter's lock.
        if self._running and not throttles_writers():
            return
        self.held_up_until = now + HELD_UP_S
        is_in_loop = self._loop_thread in (None, threading.get_ident())
        if size_bytes <= SMALL_WRITE_BYTES and is_in_loop:
            self.small_held_up_until = self.held_up_until
        self.limit_writes(now)

    def limit_writes(self, now: float) -> None:
        """Set `inline_write_bytes` to what is in force at this time."""
        if now < self.small_held_up_until:
            self.inline_write_bytes = -1
        elif now < self.held_up_until:
            self.inline_write_bytes = SMALL_WRITE_BYTES
        else:
            self.inline_write_bytes = _UNLIMITED

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, _FILE_MODE), self)

    def create_private(self, path: str) -> File:
        # O_EXCL: no process can have opened the file with another mode, and it is not a link.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL
        fd = os.open(path, flags, _PRIVATE_FILE_MODE)
        try:
            os.fchmod(fd, _PRIVATE_FILE_MODE)  # the umask may have removed rights of the owner
        finally:
            os.close(fd)
        return self.open(path, create=True)

    def make_private(self, path: str) -> bool:
        found = os.stat(path).st_mode
        mode = _PRIVATE_DIR_MODE if stat.S_ISDIR(found) else _PRIVATE_FILE_MODE
        if stat.S_IMODE(found) == mode:
            return False
        os.chmod(path, mode)
        return bool(found & (stat.S_IRWXG | stat.S_IRWXO))

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def identity(self, path: str) -> Identity:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        if os.path.islink(path):
            _remove_linked_folder(path)
        else:
            shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        _sync_dir(path)

    def sync_all(self, path: str) -> bool:
        syncfs = _syncfs()
        if syncfs is None:
            return False
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if syncfs(fd):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)
        return True

    def boot_id(self) -> str:
        try:
            return self.read_file(_BOOT_ID).decode("ascii").strip()
        except OSError:
            return ""

    def lock(self, path: str) -> FileLock:
        # File systems give the inode number of a removed folder to the next one; not if it is open.
        folder_fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        except BaseException:
            os.close(folder_fd)
            raise
        lock = RealFileLock(fd, folder_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            lock.release()
            raise
        return lock

    def free_bytes(self, path: str) -> int:
        return shutil.disk_usage(path).free

    def total_bytes(self, path: str) -> int:
        return shutil.disk_usage(path).total

    @functools.cached_property
    def _writers(self) -> trio.CapacityLimiter:
        return trio.CapacityLimiter(WRITER_THREADS)

    async def run(self, function: Callable[[], T]) -> T:
        self._loop_thread = threading.get_ident()
        self._running += 1
        try:
            return await trio.to_thread.run_sync(function)
        finally:
            self._running -= 1

    async def write(self, file: File, data: Buffer, position: int) -> None:
        async with self._writers:
            await self.run(functools.partial(file.write, data, position))


class Poller(trio.abc.Instrument):
    """Instrument of trio that calls the steps of readable connections without waking their tasks.

    An iteration of trio's loop, which wakes one task for each readable socket, costs as much as
    the request itself. Therefore, when trio is about to wait (`before_io_wait`: all tasks have
    run), the poller waits instead, in its own epoll, which contains trio's epoll, and calls the
    steps of connections as they become readable. It returns when trio has work: trio's epoll is
    ready, its timeout has passed, or a step returned False because its task must continue.

    The poller uses two private parts of trio, whose versions are therefore bounded above
    (pyproject.toml): the descriptor of its epoll, and whether a test waits until all tasks are
    blocked, which the poller must not disturb.
    """

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._trio_fd = -1
        self._runner: Any = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._steps: dict[int, tuple[Callable[[], bool], trio.lowlevel.Task]] = {}
        self._registered: set[int] = set()
        self._soon: dict[int, Callable[[], bool]] = {}  # steps to call without waiting for bytes
        # Steps of connections that are polled until they are writable, not readable.
        self._blocked: dict[int, Callable[[], bool]] = {}
        self._readable: deque[int] = deque()  # descriptors whose steps are still to be called
        self._stepping = -1  # descriptor whose step is being called
        self._holding: list[RealConnection] = []  # connections that hold bytes until the turn ends
        self._raise_cancel: trio.lowlevel.RaiseCancelT | None = (
            None  # set if that step has cancelled its own task
        )

    def _start(self) -> select.epoll:
        self._runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner
        manager = self._runner.io_manager
        assert isinstance(manager, EpollIOManager)
        self._trio_fd = manager._epoll.fileno()
        self._token = trio.lowlevel.current_trio_token()
        self._epoll = select.epoll()
        self._epoll.register(self._trio_fd, select.EPOLLIN)
        trio.lowlevel.add_instrument(self)
        return self._epoll

    async def call_when_readable(self, fd: int, step: Callable[[], bool]) -> None:
        epoll = self._epoll or self._start()
        if fd in self._registered:
            epoll.modify(fd, select.EPOLLIN)
        else:
            epoll.register(fd, select.EPOLLIN)
            self._registered.add(fd)
        self._steps[fd] = step, trio.lowlevel.current_task()

        def abort(raise_cancel: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            if fd == self._stepping:
                self._raise_cancel = raise_cancel
                return trio.lowlevel.Abort.FAILED
            self._rest(fd)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def call_soon(self, fd: int, step: Callable[[], bool]) -> None:
        if fd in self._steps:
            self._soon[fd] = step

    def call_when_writable(self, fd: int, step: Callable[[], bool]) -> bool:
        if fd not in self._steps:
            return False
        assert self._epoll is not None
        self._epoll.modify(fd, select.EPOLLOUT)
        self._blocked[fd] = step
        return True

    def holds(self, connection: "RealConnection") -> bool:
        """Return whether the connection may hold bytes: other steps follow in this turn.

        Then `RealConnection.send_held` is called in the same turn, before any task runs.
        """
        if self._stepping < 0 or not self._readable:
            return False
        self._holding.append(connection)
        return True

    def _send_held(self) -> None:
        holding, self._holding = self._holding, []
        for connection in holding:
            connection.send_held()

    def forget(self, fd: int) -> None:
        """Unregister a descriptor before its task closes it; no task may be waiting for it."""
        assert fd not in self._steps
        if fd in self._registered:
            self._registered.remove(fd)
            assert self._epoll is not None
            self._epoll.unregister(fd)

    def _rest(self, fd: int) -> trio.lowlevel.Task:
        """Stop polling a descriptor and return the task that waited for it."""
        assert self._epoll is not None
        self._epoll.modify(fd, 0)
        self._soon.pop(fd, None)
        self._blocked.pop(fd, None)
        _, task = self._steps.pop(fd)
        return task

    def before_io_wait(self, timeout: float) -> None:
        """Wait in place of trio. Must not raise: trio would remove the instrument."""
        epoll, token = self._epoll, self._token
        assert epoll is not None
        assert token is not None
        runner = self._runner
        trio_sleeps = timeout > 0
        if runner.waiting_for_idle or runner.clock_autojump_threshold != math.inf:
            timeout = 0
        now = time.monotonic()
        until = now + timeout
        while True:
            if self._soon:
                self._call_waiting()
            trio_is_ready = False
            if not self._readable:
                idle_s = 0.0 if runner.runq or self._soon else max(until - now, 0.0)
                trio_is_ready = self._look(epoll, idle_s)
            self._call_readable()
            if trio_is_ready:
                return
            now = time.monotonic()
            # A step may have woken any task, and many readable connections may be left.
            if runner.runq or now >= until or self._readable:
                break
        # Keeps trio from waiting for `timeout` a second time. Not done if trio would not wait: it
        # costs 10 microseconds, and trio refuses it in its last iterations.
        if trio_sleeps and (timeout > 0 or runner.runq or self._readable):
            token.run_sync_soon(_nothing)

    def _call_waiting(self) -> None:
        """Call the steps requested by `call_soon`; steps that these request are called later."""
        soon, until = self._soon, time.monotonic() + MAX_STEPS_S
        for _ in range(len(soon)):
            fd = next(iter(soon), -1)
            if fd < 0:  # a step may have removed others
                break
            step = soon.pop(fd)
            if fd in self._steps:
                self._call(fd, step)
                if time.monotonic() >= until:
                    break

    def _look(self, epoll: select.epoll, idle_s: float) -> bool:
        """Poll, queue the readable descriptors, and return whether trio's epoll is ready."""
        trio_is_ready = False
        for fd, _ in epoll.poll(idle_s, MAX_STEPS_PER_TURN):
            if fd == self._trio_fd:
                trio_is_ready = True
            elif fd in self._steps:
                self._readable.append(fd)
            else:
                # The peer hung up while the task is busy: epoll reports that without being asked,
                # and would report it forever.
                epoll.unregister(fd)
                self._registered.remove(fd)
        return trio_is_ready

    def _call_readable(self) -> None:
        readable, steps, until = self._readable, self._steps, 0.0
        while readable:
            fd = readable.popleft()
            waiting = steps.get(fd)
            if waiting is None:  # its pump has ended since the poll
                continue
            self._call(fd, self._unblocked(fd) if fd in self._blocked else waiting[0])
            if len(self._holding) >= MAX_HOLDING:
                self._send_held()
            if readable:
                now = time.monotonic()
                until = until or now + MAX_STEPS_S
                if now >= until:
                    break
        if self._holding:
            self._send_held()

    def _unblocked(self, fd: int) -> Callable[[], bool]:
        """Return the step of a descriptor that has become writable, and poll it for reading."""
        assert self._epoll is not None
        self._epoll.modify(fd, select.EPOLLIN)
        return self._blocked.pop(fd)

    def _call(self, fd: int, step: Callable[[], bool]) -> None:
        self._stepping = fd
        try:
            more = step()
        except BaseException as error:  # noqa: BLE001 - it is raised in the waiting task
            trio.lowlevel.reschedule(self._rest(fd), outcome.Error(error))
            return
        finally:
            self._stepping = -1
            raise_cancel, self._raise_cancel = self._raise_cancel, None
        if raise_cancel is not None:
            trio.lowlevel.reschedule(self._rest(fd), outcome.capture(raise_cancel))
        elif not more:
            trio.lowlevel.reschedule(self._rest(fd))


def _nothing() -> None:
    """Do nothing; scheduling this call wakes trio's loop."""


def _drop(_: bytes) -> None: ...


class RealConnection:
    """A connected, non-blocking TCP socket; trio's SocketStream would cost 10 µs a request."""

    __slots__ = ("_held", "_poller", "_socket", "_unsent", "peer")

    def __init__(self, sock: socket.socket, poller: Poller) -> None:
        self._poller = poller
        self._held = b""  # from `send_soon` to the end of the turn
        self._unsent: Callable[[bytes], object] = _drop
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        host, port = sock.getpeername()[:2]
        # A dual-stack socket reports IPv4 addresses as ::ffff:a.b.c.d.
        self.peer: tuple[str, int] = (str(host).removeprefix("::ffff:"), int(port))

    async def receive_into(self, buffer: bytearray | memoryview) -> int:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv_into(buffer)
            except BlockingIOError:
                continue

    def receive_nowait(self, buffer: bytearray | memoryview) -> int:
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return -1

    def is_ended(self) -> bool:
        poller = select.poll()
        poller.register(self._socket.fileno(), _ENDED)
        return bool(poller.poll(0))

    async def pump(self, step: Callable[[], bool]) -> None:
        await self._poller.call_when_readable(self._socket.fileno(), step)

    def call_soon(self, step: Callable[[], bool]) -> None:
        self._poller.call_soon(self._socket.fileno(), step)

    def call_when_writable(self, step: Callable[[], bool]) -> bool:
        return self._poller.call_when_writable(self._socket.fileno(), step)

    def send_nowait(self, data: Buffer) -> int:
        if self._held and not self._sends_held():
            return 0
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def send_soon(self, data: bytes, unsent: Callable[[bytes], object]) -> bool:
        if self._held or len(data) > MAX_HELD_BYTES or not self._poller.holds(self):
            return False
        self._held, self._unsent = data, unsent
        return True

    def _sends_held(self) -> bool:
        """Send held bytes; return whether none are left. Raises OSError."""
        try:
            self._held = self._held[self._socket.send(self._held) :]
        except BlockingIOError:
            return False
        return not self._held

    def send_held(self) -> None:
        """Send held bytes, and give back those that the peer does not take."""
        try:
            if self._held and not self._sends_held():
                self._unsent(self._held)
        except OSError:
            with contextlib.suppress(OSError):  # the next receive then returns 0
                self._socket.shutdown(socket.SHUT_RDWR)
        self._held, self._unsent = b"", _drop  # `unsent` may own this object

    async def send(self, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        while True:
            rest = rest[self.send_nowait(rest) :]
            if not rest:
                return
            await trio.lowlevel.wait_writable(self._socket)

    async def send_file(self, file: File, position: int, size: int) -> None:
        end = position + size
        while position < end:
            count = min(end - position, SEND_FILE_SLICE_BYTES)
            sent = self.send_file_nowait(file, position, count)
            if sent == 0:
                await trio.lowlevel.wait_writable(self._socket)
                continue
            position += sent
            if position < end:
                await trio.lowlevel.checkpoint()

    def send_file_nowait(self, file: File, position: int, size: int) -> int:
        assert isinstance(file, RealFile)
        if self._held and not self._sends_held():
            return 0
        try:
            sent = os.sendfile(self._socket.fileno(), file.fileno(), position, size)
        except BlockingIOError:
            return 0
        if sent == 0:
            raise EOFError(f"{file.path} ends at byte {position}, before byte {position + size}")
        return sent

    def close(self) -> None:
        fd = self._socket.fileno()
        if fd >= 0:
            self._poller.forget(fd)
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class RealListener:
    def __init__(self, sock: socket.socket, poller: Poller) -> None:
        self._poller = poller
        sock.setblocking(False)
        self._socket = sock
        host, port = sock.getsockname()[:2]
        self.address: tuple[str, int] = (str(host), int(port))

    async def accept(self) -> Connection:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                continue
            try:
                return RealConnection(sock, self._poller)
            except OSError:  # the client closed the connection before it was accepted
                sock.close()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class RealNetwork:
    def __init__(self) -> None:
        self._poller = Poller()

    async def listen(self, host: str, port: int) -> Listener:
        family, kind, protocol, _, address = (
            await trio.socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if (
                family == socket.AF_INET6
            ):  # [::] accepts both families, independent of the default of the system
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(address)
            sock.listen(LISTEN_BACKLOG)
        except BaseException:
            sock.close()
            raise
        return RealListener(sock, self._poller)

    async def connect(self, host: str, port: int) -> Connection:
        addresses = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failure: OSError | None = None
        for number, (family, kind, protocol, _, address) in enumerate(addresses, 1):
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                status = sock.connect_ex(address)
                if status == errno.EINPROGRESS:
                    patience_s = math.inf if number == len(addresses) else NEXT_ADDRESS_S
                    with trio.move_on_after(patience_s) as waiting:
                        await trio.lowlevel.wait_writable(sock)
                    status = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if waiting.cancelled_caught:
                        status = status or errno.ETIMEDOUT
                if status:
                    raise OSError(status, os.strerror(status))
                return RealConnection(sock, self._poller)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")

    async def addresses(self, host: str) -> Sequence[str]:
        try:
            found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except UnicodeError as error:  # IDNA cannot encode it
            raise OSError(errno.EINVAL, f"{host!r} is not a host name") from error
        return [str(address[0]) for *_, address in found]


def real_runtime() -> Runtime:
    return Runtime(RealClock(), RealNetwork(), RealDisk(), random.SystemRandom())
