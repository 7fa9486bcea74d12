"""Result of a read of the log: a byte range of one segment file, for sendfile or a read."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from metaquorum.dataplane.log.segments.files import LogFile, storage_error
from metaquorum.runtime.interfaces import File, StorageError


class LogSlice:
    """Byte range of one segment: batches, of which `max_bytes` may truncate the last.

    No file is held open until `acquire`. The bytes stay readable until the files of a deleted
    segment are removed; after that, reads raise EOFError, as at the end of a file.
    """

    __slots__ = ("_file", "first_offset", "position", "size_bytes")

    def __init__(self, file: LogFile, position: int, size_bytes: int, first_offset: int) -> None:
        self._file = file
        self.position = position
        self.size_bytes = size_bytes
        self.first_offset = first_offset

    def is_in(self, file: LogFile) -> bool:
        return self._file is file

    def after(self, count: int) -> "LogSlice":
        """Return the slice without its first `count` bytes, of which a connection sent a part."""
        return LogSlice(
            self._file, self.position + count, self.size_bytes - count, self.first_offset
        )

    def acquire(self) -> File:
        """Return the open, pinned file, for `Connection.send_file`; unpin it with `release`.

        Raises EOFError if the file was removed, StorageError if it cannot be opened.
        """
        try:
            return self._file.acquire()
        except FileNotFoundError:
            raise EOFError(f"{self._file.path} was removed") from None
        except OSError as error:
            raise storage_error(error, "open", self._file.path) from error

    def release(self) -> None:
        self._file.release()

    def reading(self) -> AbstractContextManager[None]:
        """Raise an OSError of the block as a StorageError, and report it: see `LogFile.reading`."""
        return self._file.reading()

    @contextmanager
    def pinned(self) -> Iterator[File]:
        file = self.acquire()
        try:
            yield file
        finally:
            self.release()

    def read(self) -> bytes:
        """Return the bytes. Blocking unless they are in the page cache: for small slices."""
        if not self.size_bytes:
            return b""
        with self.pinned() as file, self._file.reading():
            data = file.read(self.size_bytes, self.position)
        if len(data) != self.size_bytes:
            raise StorageError(
                f"{file.path} ends before position {self.position + self.size_bytes}"
            )
        return data

    def read_cached(self) -> bytes | None:
        """Return the bytes if they are in the page cache; None otherwise or on any error."""
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
