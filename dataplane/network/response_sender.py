"""Sending of responses: bytes from memory, and records from segment files by sendfile."""

from functools import partial
from typing import Final

from dataplane.log.segments.slices import LogSlice
from dataplane.network.pipeline import COPY_LIMIT_BYTES, SEND_AT_BYTES
from dataplane.network.replies import Parts
from dataplane.network.unread_responses import UNCOUNTED_BYTES, Reader, UnreadResponses
from metaquorum.runtime import Buffer, Connection, Disk, StorageError

# Bytes per read, in a worker thread, of pages that are not in the page cache.
COLD_READ_BYTES: Final = 1 << 20


class ResponseSender:
    """Sender of the responses of one connection.

    `sent_pieces` grows while a large response is sent, so that the connection does not count as
    idle. Unread bytes of large responses are counted in `unread` as held for `reader`.
    """

    def __init__(
        self, connection: Connection, disk: Disk, unread: UnreadResponses, reader: Reader
    ) -> None:
        self.connection = connection  # replaced once TLS has begun
        self.sent_pieces = 0
        self._disk = disk
        self._unread = unread
        self._reader: Reader | None = reader

    def close(self) -> None:
        """Release `reader`, which owns this object, to break the reference cycle."""
        self._reader = None

    async def send(self, data: Buffer, behind_bytes: int = 0) -> None:
        """Send all of `data`; `behind_bytes` of the same response in memory follow later."""
        sent = self.connection.send_nowait(data)
        if sent == len(data):
            return
        rest = memoryview(data)[sent:]
        held_bytes = len(data) + behind_bytes  # until all of `data` is sent
        if held_bytes <= UNCOUNTED_BYTES:
            await self.connection.send(rest)
            return
        assert self._reader is not None
        try:
            while rest:
                self._unread.note(self._reader, held_bytes)
                await self.connection.send(rest[:SEND_AT_BYTES])
                rest = rest[SEND_AT_BYTES:]
        finally:
            self._unread.remove(self._reader)

    async def send_parts(self, parts: Parts) -> None:
        """Send a response with records of segment files.

        The bytes in `parts` are removed while they are sent, so that memory holds them once.
        Raises StorageError if a file ends before its slice.
        """
        gathered: list[bytes] = []
        gathered_bytes = 0
        behind_bytes = sum([len(part) for part in parts if isinstance(part, bytes)])
        for index, part in enumerate(parts):
            if isinstance(part, bytes):
                behind_bytes -= len(part)
                parts[index] = b""
            else:
                assert isinstance(part, LogSlice)
                if part.size_bytes > COPY_LIMIT_BYTES:
                    if gathered:
                        await self.send(b"".join(gathered), behind_bytes)
                        gathered, gathered_bytes = [], 0
                    await self._send_slice(part)
                    continue
                part = part.read() if part.is_cached() else await self._read_cold(part)
            gathered.append(part)
            gathered_bytes += len(part)
            if gathered_bytes > SEND_AT_BYTES:
                await self.send(b"".join(gathered), behind_bytes)
                gathered, gathered_bytes = [], 0
        if gathered:
            await self.send(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    async def _read_cold(self, part: LogSlice) -> bytes:
        with part.pinned() as file, part.reading():
            data = await self._disk.run(partial(file.read, part.size_bytes, part.position))
        if len(data) != part.size_bytes:
            raise StorageError(f"{file.path} ends before byte {part.position + part.size_bytes}")
        return data

    async def _send_slice(self, part: LogSlice) -> None:
        """Send the slice by sendfile; first read pages that are not cached, in a worker thread."""
        position, end = part.position, part.position + part.size_bytes
        file = part.acquire()
        try:
            while position < end:
                size = min(COLD_READ_BYTES, end - position)
                if not file.is_cached(size, position):
                    with part.reading():
                        await self._disk.run(partial(file.read, size, position))
                await self.connection.send_file(file, position, size)
                self.sent_pieces += 1
                position += size
        finally:
            part.release()
