"""One client's connection: frames in, answers out, in the order of the requests.

All frames that one read has brought are handled before anything is sent, and their answers leave in
one send: that halves the cost of pipelined requests. A handler that has to wait (a long poll, a big
append) returns a coroutine; what was answered before it is sent first, and nothing behind it is
looked at until it is done, so that order needs no queue and a slow reader holds no memory but its
own frame and its own answer.
"""

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from dataplane.log.partition_log import LogSlice
from dataplane.memory import RequestMemory
from metaquorum.runtime import Buffer, Connection, Disk, StorageError
from wire.errors import WireError
from wire.frames import FrameBuffer
from wire.types import RecordsHole

log = logging.getLogger(__name__)

# Records up to here are copied into the answer; above, sendfile is cheaper than the copy.
COPY_LIMIT_BYTES: Final = 64 * 1024
# Pages that are not in memory are read beside the loop, so many at a time.
COLD_READ_BYTES: Final = 1 << 20
# Answers are sent when so much is gathered, whatever else one read has brought.
SEND_AT_BYTES: Final = 256 * 1024
# A frame that claims more than this is read only when the budget for requests has room for it.
RESERVE_ABOVE_BYTES: Final = 64 * 1024

Reply: TypeAlias = bytes | list[bytes | RecordsHole] | None


class Client:
    """What handlers know of who is asking."""

    __slots__ = ("address", "software")

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.software = ("", "")

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


Handle: TypeAlias = Callable[[memoryview, Client], "Reply | Coroutine[Any, Any, Reply]"]


class CloseConnectionError(Exception):
    """A handler's word that this connection ends without an answer; the message says why."""


class ClientConnection:
    """Serves one connection until it ends, is drained, or brings nonsense."""

    def __init__(
        self,
        connection: Connection,
        handle: Handle,
        disk: Disk,
        memory: RequestMemory,
        max_frame_bytes: int,
    ) -> None:
        self.client = Client(connection.peer)
        self.reads = 0  # the server's sweep for idle connections watches it move
        self._connection = connection
        self._handle = handle
        self._disk = disk
        self._memory = memory
        self._frames = FrameBuffer(max_frame_bytes)
        self._reserved_bytes = 0
        self._scope = trio.CancelScope()
        self._waiting_for_request = False
        self._draining = False
        self._ended = False
        # What a step could not finish: bytes to send, then an answer that has to be waited for.
        self._unsent: list[bytes] = []
        self._pending: Coroutine[Any, Any, Reply] | list[bytes | RecordsHole] | None = None

    def drain(self) -> None:
        """No further request is read; the answers to those that were read still leave."""
        self._draining = True
        if self._waiting_for_request:
            self._scope.cancel()

    def abort(self) -> None:
        self._scope.cancel()

    async def serve(self) -> None:
        try:
            with self._scope:
                await self._serve()
        except (WireError, CloseConnectionError) as error:
            log.warning("closed the connection from %s: %s", self.client, error)
        except (OSError, EOFError, trio.ClosedResourceError, trio.BrokenResourceError) as error:
            log.debug("the connection from %s broke: %s", self.client, error)
        except StorageError as error:
            log.error("closed the connection from %s in mid-answer: %s", self.client, error)
        finally:
            if self._pending is not None and not isinstance(self._pending, list):
                self._pending.close()
            self._release_memory()
            self._connection.close()

    async def _serve(self) -> None:
        while not self._draining and not self._ended:
            self._waiting_for_request = True
            await self._connection.pump(self._step)
            self._waiting_for_request = False
            await self._finish_step()
            await self._make_room()

    def _step(self) -> bool:
        """Bytes may have come: all requests that they complete are answered, and more may come.

        False: `_finish_step` or `_make_room` has to wait for something.
        """
        frames = self._frames
        count = self._connection.receive_nowait(frames.writable())
        if count <= 0:
            self._ended = count == 0
            return count < 0
        self.reads += 1
        frames.received(count)
        return self._answer_now() and frames.claimed_bytes <= RESERVE_ABOVE_BYTES

    def _answer_now(self) -> bool:
        """Every whole frame in the buffer is answered; False when one has to be waited for."""
        next_frame, handle, client = self._frames.next_frame, self._handle, self.client
        gathered: list[bytes] = []
        gathered_bytes = 0
        while (frame := next_frame()) is not None:
            reply = handle(frame, client)
            if isinstance(reply, bytes):
                gathered.append(reply)
                gathered_bytes += len(reply)
                if gathered_bytes <= SEND_AT_BYTES:
                    continue
                break
            if reply is not None:
                self._pending = reply
                break
        else:
            if not gathered:
                return True
            data = gathered[0] if len(gathered) == 1 else b"".join(gathered)
            sent = self._connection.send_nowait(data)
            if sent == len(data):
                return True
            gathered = [data[sent:]]
        self._unsent = gathered
        return False

    async def _finish_step(self) -> None:
        """What the last step left is sent, and the frames behind it are answered, too."""
        while self._unsent or self._pending is not None:
            unsent, self._unsent = self._unsent, []
            if unsent:
                await self._send(b"".join(unsent))
            pending, self._pending = self._pending, None
            if isinstance(pending, list):
                await self._send_parts(pending)
            elif pending is not None:
                await self._send_reply(await pending)
            self._answer_now()

    async def _make_room(self) -> None:
        """Before more of a large frame is read, the budget has taken it in."""
        claimed = self._frames.claimed_bytes
        if claimed <= RESERVE_ABOVE_BYTES:
            self._release_memory()
        elif not self._reserved_bytes:
            await self._memory.reserve(claimed)
            self._reserved_bytes = claimed

    def _release_memory(self) -> None:
        if self._reserved_bytes:
            self._memory.release(self._reserved_bytes)
            self._reserved_bytes = 0

    async def _send(self, data: Buffer) -> None:
        sent = self._connection.send_nowait(data)
        if sent < len(data):
            await self._connection.send(memoryview(data)[sent:])

    async def _send_reply(self, reply: Reply) -> None:
        if isinstance(reply, list):
            await self._send_parts(reply)
        elif reply:
            await self._send(reply)

    async def _send_parts(self, parts: list[bytes | RecordsHole]) -> None:
        gathered: list[Buffer] = []
        for part in parts:
            if isinstance(part, bytes):
                gathered.append(part)
                continue
            assert isinstance(part, LogSlice)
            if part.size_bytes <= COPY_LIMIT_BYTES:
                gathered.append(
                    part.read() if part.is_cached() else await self._disk.run(part.read)
                )
            else:
                if gathered:
                    await self._send(b"".join(gathered))
                    gathered = []
                await self._send_slice(part)
        if gathered:
            await self._send(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    async def _send_slice(self, part: LogSlice) -> None:
        """The slice has left by sendfile; pages not in memory were first read beside the loop."""
        position, end = part.position, part.position + part.size_bytes
        file = part.acquire()
        try:
            while position < end:
                size = min(COLD_READ_BYTES, end - position)
                if not file.is_cached(size, position):
                    await self._disk.run(partial(file.read, size, position))
                await self._connection.send_file(file, position, size)
                position += size
        finally:
            part.release()
