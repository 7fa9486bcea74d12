"""An authenticated stream of whole messages, delivered in order and without gaps.

    open --peer closed, error, silence, malformed data, full queue, close()--> ended

An ended stream neither delivers nor accepts messages. The writer sends all queued messages at once,
up to SEND_AT_BYTES. An empty message is a keepalive, which is not delivered. Each side measures the
silence of its peer in keepalive intervals of its own, so that a process that was paused does not
mistake its own pause for silence of the peer.
"""

import errno
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

import trio

from metaquorum.quorum.channel.frames import MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, Opener, Sealer
from metaquorum.quorum.channel.handshake import Established, Hello
from metaquorum.quorum.channel.timing import ChannelTimings
from metaquorum.runtime.interfaces import Clock, Connection, sleep
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.protocol.frames import FrameBuffer

MAX_QUEUED_MESSAGES: Final = 16_384
MAX_QUEUED_BYTES: Final = 32 << 20
# Messages are added to one send until it reaches this size.
SEND_AT_BYTES: Final = 256 * 1024
# Frames processed before other tasks of the event loop run.
FRAMES_PER_SLICE: Final = 128

# Called with each message; may raise WireError for a malformed message, which ends the stream.
Receive: TypeAlias = Callable[[bytes], None]


class Cause(Enum):
    """Causes of the end of a stream."""

    PEER_CLOSED = "the peer closed the connection"
    BROKEN = "the connection failed"
    SILENT = "the peer sent nothing for too long"
    NONSENSE = "the peer sent malformed data"
    OVERFLOW = "the send queue is full"
    CLOSED = "closed by this node"


@frozen
class End:
    """Reason for the end of a stream."""

    cause: Cause
    detail: str = ""

    @property
    def is_evidence(self) -> bool:
        """Whether the peer's process or kernel closed the connection.

        True means that the process closed the stream or has ended.
        """
        return self.cause is Cause.PEER_CLOSED

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.detail}" if self.detail else self.cause.value


class Stream:
    """One authenticated stream to a peer; `run` it in a task, or close it."""

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        established: Established,
        timings: ChannelTimings,
    ) -> None:
        self.peer: Final[Hello] = established.peer
        self.address: Final = connection.peer
        self.end: End | None = None
        self._connection = connection
        self._clock = clock
        self._timings = timings
        self._sealer = Sealer(established.send_key)
        self._opener = Opener(established.receive_key)
        self._frames = FrameBuffer(MAX_FRAME_BYTES)
        self._trailing = established.trailing
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0  # including bytes being sent
        self._queued_count = 0  # messages since the stream opened
        self._sent_count = 0  # messages passed to the network, at least in part
        self._sent_lately = False
        self._heard_lately = True
        self._has_work = trio.Event()
        self._scope = trio.CancelScope()
        self._receive: Receive | None = None

    def __str__(self) -> str:
        return f"node {self.peer.sender} at {self.address[0]}:{self.address[1]}"

    @property
    def queued_count(self) -> int:
        """Number of messages queued since the stream opened."""
        return self._queued_count

    @property
    def sent_count(self) -> int:
        """Number of queued messages that may have left this process."""
        return self._sent_count

    def send(self, message: bytes) -> bool:
        """Queue `message`. Return False if the stream has ended or its queue is full.

        A full queue ends the stream. This method never blocks and may be called from any task of
        the event loop, including from `receive`.
        """
        assert 0 < len(message) <= MAX_MESSAGE_BYTES
        if self.end is not None:
            return False
        if (
            len(self._queue) >= MAX_QUEUED_MESSAGES
            or self._queued_bytes + len(message) > MAX_QUEUED_BYTES
        ):
            self._finish(Cause.OVERFLOW, f"the peer has not read {self._queued_bytes} bytes")
            return False
        self._enqueue(message)
        return True

    def close(self, reason: str = "") -> None:
        """End the stream; queued messages may be lost. A stream that never runs must be closed."""
        self._finish(Cause.CLOSED, reason)
        if self._receive is None:
            self._connection.close()

    async def run(self, receive: Receive) -> End:
        """Deliver and send messages until the stream ends; then close the connection."""
        self._receive = receive
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                if self.end is not None:
                    self._scope.cancel()
                nursery.start_soon(self._read)
                nursery.start_soon(self._write)
                nursery.start_soon(self._watch)
        finally:
            self._finish(Cause.CLOSED, "")
            self._queue.clear()
            self._receive = None
            self._connection.close()
        assert self.end is not None
        return self.end

    def _finish(self, cause: Cause, detail: str) -> None:
        if self.end is None:
            self.end = End(cause, detail)
            self._scope.cancel()

    def _break(self, error: OSError | trio.ClosedResourceError) -> None:
        number = error.errno if isinstance(error, OSError) else None
        closed = number in (errno.ECONNRESET, errno.EPIPE)
        self._finish(Cause.PEER_CLOSED if closed else Cause.BROKEN, str(error))

    # Reading

    async def _read(self) -> None:
        trailing = memoryview(self._trailing)
        self._frames.writable()[: len(trailing)] = trailing
        self._frames.received(len(trailing))
        more = not self._deliver()
        while self.end is None:
            if more:
                await trio.lowlevel.checkpoint()
                more = not self._deliver()
                continue
            try:
                await self._connection.pump(self._step)
            except (OSError, trio.ClosedResourceError) as error:
                self._break(error)
            more = True

    def _step(self) -> bool:
        """Receive and deliver; return False if frames are left or the stream has ended."""
        try:
            count = self._connection.receive_nowait(self._frames.writable())
        except (OSError, trio.ClosedResourceError) as error:
            self._break(error)
            return False
        if count < 0:
            return True
        if count == 0:
            self._finish(Cause.PEER_CLOSED, "")
            return False
        self._heard_lately = True
        self._frames.received(count)
        return self._deliver()

    def _deliver(self) -> bool:
        """Deliver up to FRAMES_PER_SLICE messages; return True once the buffer holds no frame.

        Returns False if frames may be left or the stream has ended.
        """
        assert self._receive is not None
        try:
            for _ in range(FRAMES_PER_SLICE):
                if self.end is not None:
                    return False
                frame = self._frames.next_frame()
                if frame is None:
                    return True
                message = self._opener.open(frame)
                if message:
                    self._receive(bytes(message))
        except WireError as error:
            self._finish(Cause.NONSENSE, str(error))
        return False

    # Writing

    def _enqueue(self, message: bytes) -> None:
        self._queue.append(message)
        self._queued_bytes += len(message)
        self._queued_count += 1
        self._has_work.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._has_work.wait()
                self._has_work = trio.Event()
                while self._queue:
                    await self._send_some()
        except (OSError, trio.ClosedResourceError) as error:
            self._break(error)

    async def _send_some(self) -> None:
        parts: list[bytes] = []
        size = 0
        while self._queue and size < SEND_AT_BYTES:
            message = self._queue.popleft()
            parts += (self._sealer.seal(message), message)
            size += len(message)
            self._sent_count += 1
        await self._connection.send(b"".join(parts))
        self._queued_bytes -= size
        self._sent_lately = True

    async def _watch(self) -> None:
        """Send keepalives, and end the stream if the peer is silent for too long."""
        silent = 0
        while True:
            await sleep(self._clock, self._timings.keepalive_s)
            silent = 0 if self._heard_lately else silent + 1
            if silent >= self._timings.silent_keepalives:
                self._finish(Cause.SILENT, f"{silent * self._timings.keepalive_s:g} s")
            if not self._sent_lately and not self._queued_bytes:
                self._enqueue(b"")
            self._heard_lately = self._sent_lately = False
