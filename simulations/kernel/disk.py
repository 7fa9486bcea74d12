"""`Disk` interface of one process, on a `Storage` that survives the process.

Every operation that changes the disk is counted. A machine can be stopped at the n-th change from
now: in the middle of a function passed to `run`, between two calls of one slice of the loop, or
half way through a write. `run` waits before and after its function, so that other tasks run.
"""

import errno
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from metaquorum.runtime.interfaces import Buffer, File, FileLock, Identity
from metaquorum.simulations.kernel.network import os_error
from metaquorum.simulations.kernel.process import MachineStopped, Process
from metaquorum.simulations.kernel.storage import Folder, Inode, Storage
from metaquorum.simulations.kernel.thread_steps import ThreadSteps, current
from metaquorum.simulations.kernel.trace import Trace

T = TypeVar("T")
NEEDING_ROOM: Final = ("write", "create", "mkdir")
FAILURES: Final = ("sync failed", "disk full", "changes refused", "reads failed")
# Interval at which a call that hangs looks whether its device responds again.
HANGING_LOOK_S: Final = 0.1
# Share of the pauses of a function in a worker thread that take as long as a slow disk.
SLOW_PAUSES: Final = 0.2
# Time for which writers are held up after a write that has waited.
HELD_UP_S: Final = 1.0
# Most bytes of records that are then written at once; many batches here have 100 to 500.
HELD_UP_BYTES: Final = (-1, 150, 300)
HOW_TO_STOP: Final = ("before", "torn", "after")


@dataclass(slots=True)
class DiskFaults:
    """Faults of a machine's disk; scenarios and faults set them while the machine runs."""

    # Longest delay of `run` before its function, and again after it.
    delay_s: float = 0.0005
    # Share of the functions of `run` that are slow, and their longest additional delay.
    slow: float = 0.02
    slow_s: float = 0.15
    # Share of the reads that would miss the page cache (`is_cached`).
    uncached: float = 0.1
    # Share of the functions in worker threads that pause for the loop to run; share of their
    # operations before which they pause.
    interleaved: float = 0.0
    pausing: float = 0.3
    # Share of the writes that wait for the device, after which writers are held up for a while.
    held_up: float = 0.0
    # Whether `sync_all` is supported.
    syncs_all: bool = False
    # The machine stops at the n-th change from now, counting paths that contain `stop_path`.
    stop_in: int | None = None
    stop_path: str = ""
    # Paths whose next syncs fail.
    failing_sync: Callable[[str], bool] | None = None
    # Paths whose next reads fail.
    failing_read: Callable[[str], bool] | None = None
    # Errno with which changes of a path fail (0: they succeed): one of several devices may fail.
    refusing: Callable[[str], int] | None = None
    # Paths at which calls in worker threads do not return, for as long as they are in it. On the
    # loop, calls are made for what is in memory: that of a device that hangs stays usable.
    hanging: Callable[[str], bool] | None = None
    happened: dict[str, int] = field(default_factory=dict)

    @property
    def failures(self) -> int:
        """Number of operations that have failed so far."""
        return sum(self.happened.get(name, 0) for name in FAILURES)

    def count(self, name: str) -> None:
        self.happened[name] = self.happened.get(name, 0) + 1


class SimulatedFile:
    """`File` interface of one process."""

    __slots__ = ("_disk", "_inode", "_open", "path")

    def __init__(self, disk: "ProcessDisk", path: str, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._open = True
        self.path = path

    def size(self) -> int:
        return len(self._inode_now().data)

    def read(self, size: int, position: int) -> bytes:
        inode = self._inode_now()
        self._disk.reading(self.path)
        return bytes(inode.data[position : position + size])

    def write(self, data: Buffer, position: int) -> None:
        inode, copy = self._inode_now(), bytes(data)
        disk = self._disk
        disk.note_write()
        disk.trace.mix(copy, position & 0xFFFFFFFF)
        try:
            disk.change(
                "write",
                f"{self.path} {position}+{len(copy)}",
                lambda: disk.storage.write(inode, position, copy),
                lambda share: disk.storage.write(inode, position, copy[: int(len(copy) * share)]),
            )
        except OSError as error:
            if error.errno == errno.ENOSPC:
                disk.faults.count("disk full")
            raise

    def truncate(self, size: int) -> None:
        inode = self._inode_now()
        if size != len(inode.data):
            self._disk.change(
                "truncate",
                f"{self.path} {size}",
                lambda: inode.truncate(size),
            )

    def sync(self) -> None:
        inode, faults = self._inode_now(), self._disk.faults
        if faults.failing_sync is not None and faults.failing_sync(self.path):
            inode.fail_to_sync()
            faults.count("sync failed")
            self._disk.say(f"sync {self.path} fails")
            raise os_error(errno.EIO, self.path)
        self._disk.change("sync", self.path, inode.sync)

    def is_cached(self, size: int, position: int) -> bool:
        self._inode_now()
        return self._disk.random.random() >= self._disk.faults.uncached

    def close(self) -> None:
        self._disk.process.check()
        self._open = False

    def _inode_now(self) -> Inode:
        self._disk.process.check()
        if not self._open:
            raise os_error(errno.EBADF, self.path)
        return self._inode


class SimulatedLock:
    def __init__(self, disk: "ProcessDisk", path: str) -> None:
        self._disk = disk
        self._path = path
        disk.locks[path] = self
        disk.process.holdings[self] = None

    def release(self) -> None:
        self._disk.process.check()
        self._disk.process.holdings.pop(self, None)
        self._disk.locks.pop(self._path, None)

    def process_died(self, *, silent: bool) -> None:
        self._disk.locks.pop(self._path, None)


class ProcessDisk:
    """`Disk` interface of one process; `stop` kills the machine or cuts its power."""

    def __init__(
        self,
        storage: Storage,
        faults: DiskFaults,
        locks: dict[str, SimulatedLock],
        process: Process,
        draw: random.Random,
        trace: Trace,
        stop: Callable[[], None],
    ) -> None:
        self.storage = storage
        self.faults = faults
        self.locks = locks
        self.process = process
        self.random = draw
        self.trace = trace
        self._stop = stop
        self.inline_write_bytes = sys.maxsize
        self._held_up_until = 0.0

    def note_write(self) -> None:
        """Let the write wait for the device, perhaps, so that the next writes may have to wait."""
        now = self.process.timeline.now
        if self.faults.held_up and self.random.random() < self.faults.held_up:
            self.faults.count("writers held up")
            self._held_up_until = now + HELD_UP_S
            self.inline_write_bytes = self.random.choice(HELD_UP_BYTES)
        elif now > self._held_up_until:
            self.inline_write_bytes = sys.maxsize

    def say(self, text: str) -> None:
        self.trace.add(self.process.timeline.now, self.process.name, f"disk: {text}")

    def change(
        self,
        verb: str,
        what: str,
        effect: Callable[[], object],
        torn_effect: Callable[[float], None] | None = None,
    ) -> None:
        """Call `effect`; if the machine is to stop here, stop before, after or in the middle."""
        self._let_loop_run()
        self._hang(what.split(" ")[0])
        self.process.check()
        faults = self.faults
        if faults.stop_in is not None and faults.stop_path in what:
            faults.stop_in -= 1
            if faults.stop_in <= 0:
                faults.stop_in = None
                self._stop_at(verb, what, effect, torn_effect)
        number = faults.refusing(what.split(" ")[0]) if faults.refusing is not None else 0
        if number and (number != errno.ENOSPC or verb in NEEDING_ROOM):
            faults.count("changes refused")
            self.say(f"{verb} {what} fails: {errno.errorcode[number]}")
            raise os_error(number, what)
        self.say(f"{verb} {what}")
        effect()

    def _stop_at(
        self,
        verb: str,
        what: str,
        effect: Callable[[], object],
        torn_effect: Callable[[float], None] | None,
    ) -> None:
        how = self.random.choice(HOW_TO_STOP)
        self.say(f"stops at: {verb} {what} ({how})")
        try:
            if how == "after":
                effect()
            elif how == "torn" and torn_effect is not None:
                torn_effect(self.random.random())
        except OSError:
            pass
        steps = current()
        if steps is None:
            self._stop()
        else:
            steps.on_loop(self._stop)
        raise MachineStopped(self.process.name)

    def _let_loop_run(self) -> None:
        """Let the loop run, perhaps, between two operations of a function in a worker thread."""
        if not self.faults.interleaved:
            return
        steps = current()
        if steps is not None and self.random.random() < self.faults.pausing:
            steps.pause()
            self.process.check()

    def _hang(self, path: str) -> None:
        """Let a function in a worker thread wait until the device of `path` responds."""
        steps, faults = current(), self.faults
        if steps is None or steps.locks or faults.hanging is None:
            return
        if faults.hanging(path):
            faults.count("calls that hang")
            self.say(f"a call for {path} hangs")
        while faults.hanging is not None and faults.hanging(path):
            steps.is_hanging = True
            steps.pause()
            self.process.check()
        steps.is_hanging = False

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        self.process.check()
        self._hang(path)
        try:
            inode = self.storage.file(path)
        except FileNotFoundError:
            if not create:
                raise
            self.change("create", path, lambda: self.storage.create(path))
            inode = self.storage.file(path)
        return SimulatedFile(self, path, inode)

    def create_private(self, path: str) -> SimulatedFile:
        """Create a file as `open` does: a simulated machine has one user."""
        file = self.open(path, create=True)
        file.truncate(0)
        return file

    def make_private(self, path: str) -> bool:
        self.process.check()
        self.storage.find(path)
        return False

    def read_file(self, path: str) -> bytes:
        self.process.check()
        inode = self.storage.file(path)
        self.reading(path)
        return bytes(inode.data)

    def reading(self, path: str) -> None:
        """Raise OSError if reads of `path` are to fail."""
        self._let_loop_run()
        self._hang(path)
        faults = self.faults
        if faults.failing_read is not None and faults.failing_read(path):
            faults.count("reads failed")
            self.say(f"read {path} fails")
            raise os_error(errno.EIO, path)

    def exists(self, path: str) -> bool:
        self.process.check()
        self._hang(path)
        try:
            self.storage.find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_dir(self, path: str) -> bool:
        return self.exists(path) and isinstance(self.storage.find(path), Folder)

    def identity(self, path: str) -> Identity:
        self.process.check()
        self._hang(path)
        return self.storage.identity(path)

    def size(self, path: str) -> int:
        self.process.check()
        node = self.storage.find(path)
        return len(node.data) if isinstance(node, Inode) else 0

    def list(self, path: str) -> list[str]:
        self.process.check()
        return sorted(self.storage.folder(path).entries)

    def make_dirs(self, path: str) -> None:
        if not self.is_dir(path):
            self.change("mkdir", path, lambda: self.storage.make_dirs(path))

    def rename(self, source: str, target: str) -> None:
        self.process.check()
        self.storage.find(source)
        self.change("rename", f"{source} {target}", lambda: self.storage.rename(source, target))

    def remove(self, path: str) -> None:
        self.process.check()
        self.storage.file(path)
        self.change("remove", path, lambda: self.storage.remove(path))

    def remove_tree(self, path: str) -> None:
        self.process.check()
        for name, node in sorted(self.storage.folder(path).entries.items()):
            if isinstance(node, Folder):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self.change("rmdir", path, lambda: self.storage.remove_dir(path))

    def sync_all(self, path: str) -> bool:
        self.process.check()
        if not self.faults.syncs_all:
            return False
        failing = self.faults.failing_sync
        failed = False
        for name, inode in self.storage.files().items():
            if inode.pending and failing is not None and failing(name):
                inode.fail_to_sync()
                self.faults.count("sync failed")
                failed = True
        self.change("sync_all", path, self.storage.sync_all)
        self.faults.count("everything synced at once")
        if failed:
            self.say(f"sync_all {path} fails")
            raise os_error(errno.EIO, path)
        return True

    def sync_dir(self, path: str) -> None:
        self.process.check()
        self.storage.folder(path)
        self.change("sync_dir", path, lambda: self.storage.sync_dir(path))

    def boot_id(self) -> str:
        return str(self.storage.power_cuts)

    def lock(self, path: str) -> FileLock:
        if path in self.locks:
            raise os_error(errno.EWOULDBLOCK, path)
        self.open(path, create=True)
        return SimulatedLock(self, path)

    def free_bytes(self, path: str) -> int:
        self.process.check()
        self._hang(path)
        return self.storage.free_bytes()

    def total_bytes(self, path: str) -> int:
        self.process.check()
        return self.storage.total_bytes()

    async def write(self, file: File, data: Buffer, position: int) -> None:
        await self.run(partial(file.write, data, position))

    async def run(self, function: Callable[[], T]) -> T:
        faults, now = self.faults, self.process.timeline.now
        before = self.random.random() * faults.delay_s
        after = self.random.random() * faults.delay_s
        if self.random.random() < faults.slow:
            faults.count("slow disk")
            after += self.random.random() * faults.slow_s
        await self.process.wait_until(now + before)
        try:
            is_beside = faults.interleaved and self.random.random() < faults.interleaved
            if is_beside or faults.hanging is not None:
                return await self._run_in_thread(function)
            self.process.is_in_thread = True
            return function()
        finally:
            self.process.is_in_thread = False
            if self.process.alive:
                await self.process.wait_until(self.process.timeline.now + after, shielded=True)

    async def _run_in_thread(self, function: Callable[[], T]) -> T:
        """Run `function` in a thread; the loop continues between two operations of the disk."""
        steps = ThreadSteps(function)
        steps.step()
        try:
            while not steps.is_done:
                if steps.is_hanging:
                    when = self.process.timeline.now + HANGING_LOOK_S
                    await self.process.wait_until(when, shielded=True)
                    steps.step()
                    continue
                self.faults.count("loop ran during a function in a worker thread")
                is_slow = self.random.random() < SLOW_PAUSES
                longest_s = self.faults.slow_s if is_slow else self.faults.delay_s
                delay_s = self.random.random() * longest_s
                when = self.process.timeline.now + delay_s
                await self.process.wait_until(when, shielded=True)
                steps.step()
        finally:
            while not steps.is_done:  # the machine has stopped; the next operation raises
                steps.step()
        if steps.error is not None:
            raise steps.error
        result: T = steps.result
        return result
