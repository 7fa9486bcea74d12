"""A disk that holds up writers, and notes which threads write records of the topic t."""

import os
import threading

from metaquorum.runtime.interfaces import Buffer, File
from metaquorum.runtime.system import RealDisk, RealFile


class HeldUpDisk(RealDisk):
    """This machine's disk, as if each write had waited for the device."""

    inline_write_bytes = -1

    def write_was_slow(self, size_bytes: int, waits: int, now: float) -> None: ...

    def limit_writes(self, now: float) -> None: ...

    def __init__(self) -> None:
        self.in_loop: list[str] = []  # files of the topic t that the event loop has written
        self.beside: list[str] = []

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _HeldUpFile(path, os.open(path, flags, 0o644), self)


class _HeldUpFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, path: str, fd: int, disk: HeldUpDisk) -> None:
        super().__init__(path, fd, disk)
        self._disk = disk

    def write(self, data: Buffer, position: int) -> None:
        if self.path.endswith(".log") and "/t-" in self.path:
            is_main = threading.current_thread() is threading.main_thread()
            (self._disk.in_loop if is_main else self._disk.beside).append(self.path)
        super().write(data, position)
