"""Sending of responses: bytes from memory, and records from segment files by sendfile.

    parts -> send_parts_nowait, in a step -> parts that are left -> send_parts, in the task

A step sends what the socket takes of records in the page cache. The rest stays in the list of
parts: for another step if the socket is full, and otherwise for the task, because a page is not
cached or the step has sent enough. If a step sent a part of a slice, its file stays pinned until
the rest is sent or the connection closes.
"""

from functools import partial
from itertools import islice
from typing import Final

from metaquorum.dataplane.log.segments.slices import LogSlice
from metaquorum.dataplane.network.pipeline import COPY_LIMIT_BYTES, SEND_AT_BYTES
from metaquorum.dataplane.network.replies import Parts
from metaquorum.dataplane.network.unread_responses import UNCOUNTED_BYTES, Reader, UnreadResponses
from metaquorum.dataplane.scheduling.time_slices import TimeSlicer
from metaquorum.runtime import Buffer, Connection, Disk, StorageError
from metaquorum.wire.primitives.types import RecordsHole

# Bytes per read, in a worker thread, of pages that are not in the page cache.
COLD_READ_BYTES: Final = 1 << 20
# Bytes after which a step sends no further piece, of COLD_READ_BYTES at most. It is more than the
# response to a consumer of four partitions, by default 1 MiB of each, and than Linux buffers
# (tcp_wmem). A megabyte to a client on the same machine takes 0.3 ms. The slice ends a step, too.
STEP_BYTES: Final = (4 << 20) + (512 << 10)
# Small parts that a step sends with one call, and those after which step and task check the slice.
PARTS_PER_SEND: Final = 256
PARTS_PER_LOOK: Final = 16


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
        # Whether `send_parts_nowait` ended within a large slice because the socket is full.
        self.is_blocked = False
        self._disk = disk
        self._unread = unread
        self._reader: Reader | None = reader
        self._pinned: LogSlice | None = None  # a slice that `send_parts_nowait` sent a part of

    def close(self) -> None:
        """Release `reader`, which owns this object, to break the reference cycle; unpin files."""
        self._reader = None
        self._unpin()

    def _unpin(self) -> None:
        part, self._pinned = self._pinned, None
        if part is not None:
            part.release()

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

    async def send_parts(self, parts: Parts, slicer: TimeSlicer) -> None:
        """Send a response with records of segment files.

        The bytes in `parts` are removed while they are sent, so that memory holds them once. A
        socket that is never full does not make the task wait: other tasks run after each time
        slice. Raises StorageError if a file ends before its slice.
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
                    await self._send_slice(part, slicer)
                    continue
                part = part.read() if part.is_cached() else await self._read_cold(part)
                self._unpin()
            gathered.append(part)
            gathered_bytes += len(part)
            if index % PARTS_PER_LOOK == PARTS_PER_LOOK - 1:
                await slicer.pause()
            if gathered_bytes > SEND_AT_BYTES:
                await self.send(b"".join(gathered), behind_bytes)
                gathered, gathered_bytes = [], 0
                await slicer.pause()
        if gathered:
            await self.send(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def send_parts_nowait(self, parts: Parts, limit_bytes: int, slicer: TimeSlicer) -> int:
        """Send a prefix of a response without waiting, and remove it from `parts`.

        Return its size. It ends where the socket is full, before records that are not in the page
        cache or cannot be read, after `limit_bytes`, or with the time slice. Raises EOFError if the
        file of a large slice was removed or ends before it, StorageError if it cannot be opened.
        """
        sent_bytes, may_continue = 0, True
        self.is_blocked = False
        while parts and may_continue and sent_bytes < limit_bytes:
            first = parts[0]
            if isinstance(first, LogSlice) and first.size_bytes > COPY_LIMIT_BYTES:
                if slicer.is_over:
                    break
                count, may_continue = self._send_piece_nowait(first)
                parts[:1] = [] if count == first.size_bytes else [first.after(count)]
            else:
                count, may_continue = self._send_copied_nowait(parts, slicer)
            sent_bytes += count
        return sent_bytes

    def _send_copied_nowait(self, parts: Parts, slicer: TimeSlicer) -> tuple[int, bool]:
        """Send bytes and small slices from the head of `parts`, with one call.

        Return the number of bytes sent, and whether the next part may be sent now.
        """
        pieces: list[bytes] = []
        left_bytes = SEND_AT_BYTES
        for part in islice(parts, PARTS_PER_SEND):
            piece = part if isinstance(part, bytes) else _copied(part)
            if piece is None:
                break
            pieces.append(piece)
            left_bytes -= len(piece)
            if left_bytes < 0:
                break
        if not pieces:
            return 0, False
        self._unpin()
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        sent = self.connection.send_nowait(data) if data else 0
        parts[: len(pieces)] = [data[sent:]] if sent < len(data) else []
        if sent < len(data):
            return sent, False
        return sent, len(pieces) <= PARTS_PER_LOOK or not slicer.is_over

    def _send_piece_nowait(self, part: LogSlice) -> tuple[int, bool]:
        """Send a prefix of the slice by sendfile; pin the file unless that is the whole slice.

        Return the number of bytes sent, and whether more may be sent now.
        """
        file = part.acquire()
        self._unpin()
        self._pinned = part
        size = min(COLD_READ_BYTES, part.size_bytes)
        if not file.is_cached(size, part.position):
            return 0, False
        count = self.connection.send_file_nowait(file, part.position, size)
        self.is_blocked = count < size
        if count:
            self.sent_pieces += 1
        if count == part.size_bytes:
            self._unpin()
        return count, count == size

    async def _read_cold(self, part: LogSlice) -> bytes:
        with part.pinned() as file, part.reading():
            data = await self._disk.run(partial(file.read, part.size_bytes, part.position))
        if len(data) != part.size_bytes:
            raise StorageError(f"{file.path} ends before byte {part.position + part.size_bytes}")
        return data

    async def _send_slice(self, part: LogSlice, slicer: TimeSlicer) -> None:
        """Send the slice by sendfile; first read pages that are not cached, in a worker thread."""
        position, end = part.position, part.position + part.size_bytes
        file = part.acquire()
        self._unpin()
        try:
            while position < end:
                size = min(COLD_READ_BYTES, end - position)
                if not file.is_cached(size, position):
                    with part.reading():
                        await self._disk.run(partial(file.read, size, position))
                await self.connection.send_file(file, position, size)
                self.sent_pieces += 1
                position += size
                await slicer.pause()
        finally:
            part.release()


def _copied(part: RecordsHole) -> bytes | None:
    """Return the bytes of a small slice; None if it is large, not cached or not readable."""
    assert isinstance(part, LogSlice)
    return part.read_cached() if part.size_bytes <= COPY_LIMIT_BYTES else None
