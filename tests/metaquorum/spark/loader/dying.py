"""A storage on which a process dies, or pauses, at its k-th operation."""

import threading
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TypeVar

from metaquorum.spark.loader.storage.interface import OutputFile, Storage
from metaquorum.wire.primitives.types import Buffer
from tests.nodes import PATIENCE_S

T = TypeVar("T")


class Death(BaseException):
    """No `except Exception` may catch it; nor does anything that the process continues."""


class When(Enum):
    BEFORE = "before"
    AFTER = "after"


class Watched:
    """Calls `on_operation` with the number of each operation, before it and after it."""

    is_local = True

    def __init__(self, storage: Storage, on_operation: Callable[[int, When], None]) -> None:
        self._storage = storage
        self._on_operation = on_operation
        self.operations = 0
        self.is_dead = False
        self.url = storage.url

    def _do(self, operation: Callable[[], T]) -> T:
        number = self.operations
        self.operations += 1
        try:
            self._on_operation(number, When.BEFORE)
            result = operation()
            self._on_operation(number, When.AFTER)
        except Death:
            self.is_dead = True
            raise
        return result

    def create(self, path: str, data: bytes) -> None:
        self._do(lambda: self._storage.create(path, data))

    def read(self, path: str, max_bytes: int) -> bytes:
        return self._do(lambda: self._storage.read(path, max_bytes))

    def list_files(self, folder: str) -> Mapping[str, int]:
        return self._do(lambda: self._storage.list_files(folder))

    def names(self) -> list[str]:
        return self._do(self._storage.names)

    def open_output(self, path: str) -> OutputFile:
        opened: list[OutputFile] = []
        try:
            self._do(lambda: opened.append(self._storage.open_output(path)))
        except Death:
            for file in opened:
                file.close()
            raise
        return WatchedFile(opened[0], self)

    def make_durable(self, folder: str) -> None:
        self._do(lambda: self._storage.make_durable(folder))

    def publish(self, staged: str, path: str) -> None:
        self._do(lambda: self._storage.publish(staged, path))

    def delete(self, path: str) -> None:
        self._do(lambda: self._storage.delete(path))

    def delete_folder(self, folder: str) -> None:
        self._do(lambda: self._storage.delete_folder(folder))

    def overwrite(self, path: str, data: bytes) -> None:
        self._do(lambda: self._storage.overwrite(path, data))


class WatchedFile:
    def __init__(self, file: OutputFile, storage: Watched) -> None:
        self._file = file
        self._storage = storage
        self._is_closed = False

    def write(self, data: Buffer, /) -> int:
        return self._storage._do(lambda: self._file.write(data))

    def close(self) -> None:
        self._storage._do(self._close)

    def _close(self) -> None:
        self._file.close()
        self._is_closed = True

    def discard(self) -> None:
        """Only close the file: a dead process discards nothing."""
        if not self._storage.is_dead:
            self._file.discard()
        elif not self._is_closed:
            self._file.close()


def dies_at(number: int, when: When) -> Callable[[int, When], None]:
    def check(operation: int, at: When) -> None:
        if operation > number or (operation, at) == (number, when):
            raise Death

    return check


class Pause:
    """A driver pauses at its k-th operation until it is resumed."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, operation: int, at: When) -> None:
        if operation == self._number and at is When.BEFORE:
            self.reached.set()
            assert self.go_on.wait(PATIENCE_S)
