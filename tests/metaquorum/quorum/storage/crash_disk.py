"""A disk in memory that loses unsynced bytes.

Operations are numbered; at `fail_at` the machine loses power or the process is killed, and from
then on the disk raises `Crash`. `survivor` returns the disk after the restart: after a kill, all
written bytes; after a power loss, the synced bytes and any part of the rest (some sectors of the
writes to a file, the last one perhaps partial; some of the changes to a folder).
"""

import errno
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import trio

from metaquorum.runtime.interfaces import Buffer, File, FileLock, Identity

T = TypeVar("T")
SECTOR_BYTES = 512


class Crash(BaseException):
    """Raised after the simulated crash."""


@dataclass
class Inode:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    # Changes since the last sync: (position, bytes) written, or (size, None) for a truncation.
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def after_power_loss(self, random: Random) -> "Inode":
        data = bytearray(self.synced)
        for position, written in self.pending:
            if random.random() < 0.4:
                continue
            if written is None:
                _resize(data, position)
                continue
            end = position + len(written)
            sectors = range(position - position % SECTOR_BYTES, end, SECTOR_BYTES)
            kept = [sector for sector in sectors if random.random() < 0.7]
            for sector in kept:
                start, stop = max(sector, position), min(sector + SECTOR_BYTES, end)
                if sector == kept[-1] and random.random() < 0.2:
                    stop = random.randint(start, stop)
                _put(data, start, written[start - position : stop - position])
        return Inode(data, bytes(data))


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


def _put(data: bytearray, position: int, written: bytes) -> None:
    if written:
        if len(data) < position:
            _resize(data, position)
        data[position : position + len(written)] = written


class CrashDisk:
    def __init__(self, *, fail_at: int | None = None) -> None:
        self.operations = 0
        self.fail_at = fail_at
        self.crashed = False
        self.full_at_bytes: int | None = None
        self.failing_syncs = 0
        self.files: dict[str, Inode] = {}
        self.synced_files: dict[str, Inode] = {}
        # Changes since the folder's last sync: (path, inode or None).
        self.pending_names: list[tuple[tuple[str, Inode | None], ...]] = []
        self.folders: set[str] = {"/"}

    def step(self) -> None:
        if self.crashed:
            raise Crash
        if self.operations == self.fail_at:
            self.crashed = True
            raise Crash
        self.operations += 1

    def survivor(self, random: Random | None) -> "CrashDisk":
        """Return the disk after a kill (None) or a power loss."""
        disk = CrashDisk()
        disk.folders = set(self.folders)
        if random is None:
            kept = dict(self.files)
        else:
            kept = dict(self.synced_files)
            for change in self.pending_names:
                if random.random() < 0.5:
                    kept.update({path: inode for path, inode in change if inode is not None})
                    for path, inode in change:
                        if inode is None:
                            kept.pop(path, None)
        for path, inode in kept.items():
            disk.files[path] = inode if random is None else inode.after_power_loss(random)
        disk.synced_files = dict(self.synced_files if random is None else disk.files)
        disk.pending_names = list(self.pending_names if random is None else [])
        return disk

    def survivors(self, seed: int, losses: int) -> Iterator["CrashDisk"]:
        """Yield the disks after that many power losses and, last, after a kill, each content once.

        The disk after the kill has the files of this one, so this one must not be used after it.
        """
        seen: set[frozenset[tuple[str, bytes]]] = set()
        for random in (*map(Random, range(seed, seed + losses)), None):
            disk = self.survivor(random)
            if (contents := disk.contents()) not in seen:
                seen.add(contents)
                yield disk

    def contents(self) -> frozenset[tuple[str, bytes]]:
        """Return all files with their bytes."""
        return frozenset((path, bytes(inode.data)) for path, inode in self.files.items())

    def used_bytes(self) -> int:
        return sum(len(inode.data) for inode in self.files.values())

    def open(self, path: str, *, create: bool = False) -> File:
        if path not in self.files:
            if not create:
                self._must_not_be_crashed()
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.step()
            self._name((path, Inode()))
        self._must_not_be_crashed()
        return CrashFile(self, path, self.files[path])

    def _must_not_be_crashed(self) -> None:
        if self.crashed:
            raise Crash

    def _name(self, *change: tuple[str, Inode | None]) -> None:
        for path, inode in change:
            if inode is None:
                del self.files[path]
            else:
                self.files[path] = inode
        self.pending_names.append(change)

    def create_private(self, path: str) -> File:
        file = self.open(path, create=True)
        file.truncate(0)
        return file

    def make_private(self, path: str) -> bool:
        return False

    def read_file(self, path: str) -> bytes:
        self._must_not_be_crashed()
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return bytes(self.files[path].data)

    def exists(self, path: str) -> bool:
        self._must_not_be_crashed()
        return path in self.files or path in self.folders

    def is_dir(self, path: str) -> bool:
        return path in self.folders

    def identity(self, path: str) -> Identity:
        if path not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return 0, zlib.crc32(path.encode())  # no folder is removed here

    def size(self, path: str) -> int:
        return len(self.files[path].data)

    def list(self, path: str) -> list[str]:
        self._must_not_be_crashed()
        inside = [*self.files, *self.folders]
        return sorted(os.path.basename(each) for each in inside if os.path.dirname(each) == path)

    def make_dirs(self, path: str) -> None:
        self._must_not_be_crashed()
        while path not in self.folders:
            self.folders.add(path)
            path = os.path.dirname(path)

    def rename(self, source: str, target: str) -> None:
        self.step()
        self._name((target, self.files[source]), (source, None))

    def remove(self, path: str) -> None:
        if path not in self.files:
            self._must_not_be_crashed()
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.step()
        self._name((path, None))

    def remove_tree(self, path: str) -> None:
        raise NotImplementedError

    def sync_all(self, path: str) -> bool:
        return False

    def sync_dir(self, path: str) -> None:
        self.step()
        rest = []
        for change in self.pending_names:
            if os.path.dirname(change[0][0]) != path:
                rest.append(change)
                continue
            for name, inode in change:
                if inode is None:
                    self.synced_files.pop(name, None)
                else:
                    self.synced_files[name] = inode
        self.pending_names = rest

    def boot_id(self) -> str:
        return ""

    def lock(self, path: str) -> FileLock:
        self.open(path, create=True).close()
        return NoLock()

    def free_bytes(self, path: str) -> int:
        return 1 << 30

    def total_bytes(self, path: str) -> int:
        return 1 << 31

    async def run(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return function()


class NoLock:
    def release(self) -> None:
        pass


class CrashFile:
    def __init__(self, disk: CrashDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self.path = path
        self._inode = inode

    def size(self) -> int:
        return len(self._inode.data)

    def read(self, size: int, position: int) -> bytes:
        self._disk._must_not_be_crashed()
        return bytes(self._inode.data[position : position + size])

    def write(self, data: Buffer, position: int) -> None:
        written = bytes(data)
        self._disk._must_not_be_crashed()
        limit = self._disk.full_at_bytes
        if limit is not None and self._disk.used_bytes() + len(written) > limit:
            room = max(limit - self._disk.used_bytes(), 0)
            self._put(written[:room], position)
            raise OSError(errno.ENOSPC, "No space left on device")
        if self._disk.operations == self._disk.fail_at:
            self._put(written[: len(written) // 2], position)  # the crash interrupts the write
        self._disk.step()
        self._put(written, position)

    def _put(self, written: bytes, position: int) -> None:
        _put(self._inode.data, position, written)
        self._inode.pending.append((position, written))

    def truncate(self, size: int) -> None:
        self._disk.step()
        _resize(self._inode.data, size)
        self._inode.pending.append((size, None))

    def sync(self) -> None:
        self._disk.step()
        if self._disk.failing_syncs:
            self._disk.failing_syncs -= 1
            raise OSError(errno.EIO, "Input/output error")
        self._inode.synced = bytes(self._inode.data)
        self._inode.pending.clear()

    def is_cached(self, size: int, position: int) -> bool:
        return True

    def close(self) -> None:
        pass
