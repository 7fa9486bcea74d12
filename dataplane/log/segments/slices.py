"""What a read of the log gives: a piece of one file, for sendfile or to be read."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from dataplane.log.segments.files import LogFile, storage_error
from metaquorum.runtime.interfaces import File, StorageError


class LogSlice:
    """Bytes of one segment: whole batches, but that the last may be cut at `max_bytes`.

    Nothing is held open until `acquire`. The bytes stay readable while the segment is, and for as
    long as its files wait for their removal; after that, EOFError, as from a file that ended.
    """

    __slots__ = ("_file", "first_offset", "position", "size_bytes")

    def __init__(self, file: LogFile, position: int, size_bytes: int, first_offset: int) -> None:
        self._file = file
        self.position = position
        self.size_bytes = size_bytes
        self.first_offset = first_offset

    def acquire(self) -> File:
        """The open file, for `Connection.send_file`; give it back with `release`."""
        try:
            return self._file.acquire()
        except FileNotFoundError:
            raise EOFError(f"{self._file.path} was removed") from None
        except OSError as error:
            raise storage_error(error, "open", self._file.path) from error

    def release(self) -> None:
        self._file.release()

    def reading(self) -> AbstractContextManager[None]:
        """What the disk says in the block becomes a StorageError; the log's keeper is told."""
        return self._file.reading()

    @contextmanager
    def pinned(self) -> Iterator[File]:
        file = self.acquire()
        try:
            yield file
        finally:
            self.release()

    def read(self) -> bytes:
        """The bytes, read in place: for what is small and cached."""
        if not self.size_bytes:
            return b""
        with self.pinned() as file, self._file.reading():
            data = file.read(self.size_bytes, self.position)
        if len(data) != self.size_bytes:
            raise StorageError(f"{file.path} ends before {self.position + self.size_bytes}")
        return data

    def read_cached(self) -> bytes | None:
        """The bytes, when they can be had at once and without trouble."""
        try:
            file = self._file.get()
            if not file.is_cached(self.size_bytes, self.position):
                return None
            data = file.read(self.size_bytes, self.position)
        except (OSError, EOFError, StorageError):
            return None
        return data if len(data) == self.size_bytes else None

    def is_cached(self) -> bool:
        with self.pinned() as file, self._file.reading():
            return file.is_cached(self.size_bytes, self.position)
