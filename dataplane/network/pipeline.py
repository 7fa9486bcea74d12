"""The requests of one connection and their responses, in the order of the requests. No I/O.

    bytes -> FrameBuffer -> frame -> handler -> response -> ready bytes -> socket

The handler returns one of four kinds of response, with these effects on later frames:

    response       may be sent                    later frames are handled
    bytes          once those before it are       at once
    DelayedReply   when something makes it ready  at once if it `allows_pipelining`, else after it
    PendingReply   when its coroutine has ended   after it: a slow request holds one frame
    parts          by sendfile, piece by piece    once they are sent: a slow reader holds one
                                                  response

`ClientConnection.waits_for` names the event that a connection waits for:

    REQUEST   the client sends bytes; a drain cuts short only this wait, MUTE and MEMORY
    RESPONSE  the first response becomes ready, or the socket takes bytes
    MUTE      the client's throttle time ends (KIP-219)
    MEMORY    other requests release memory, so that a large frame can be received

A mute begins after the response with the throttle time, and before the next frame is handled. At
most MAX_DELAYED responses are queued behind one that is not ready. An invalid frame, or a frame
whose handler closes the connection, is the last one handled: the responses before it are sent first
(`failure`).
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from metaquorum.dataplane.log.segments.slices import LogSlice
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.replies import (
    CloseConnectionError,
    DelayedReply,
    Handle,
    Parts,
    PendingReply,
    Reply,
)
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol.frames import FrameBuffer

# Records up to this size are copied into the response; above it, sendfile is cheaper than the copy.
COPY_LIMIT_BYTES: Final = 128 * 1024
# Parts of a response that are copied at once. A slice of a few bytes takes 2 us, or 7 us if its
# file has to be opened again. More parts are sent as such, with checks of the time slice.
MAX_PARTS_AT_ONCE: Final = 512
# Ready bytes at which responses are sent, even if further frames of the same read are unhandled.
SEND_AT_BYTES: Final = 256 * 1024
# Requests between two checks of the time slice, of which the first only begins it. Most requests
# take some microseconds; short compressed batches or a thousand records, some 0.3 milliseconds.
FRAMES_PER_LOOK: Final = 4
# More than the Java producer keeps in flight (max.in.flight.requests.per.connection, 5).
MAX_DELAYED: Final = 16


class Wait(Enum):
    REQUEST = "request"
    RESPONSE = "response"
    MUTE = "mute"
    MEMORY = "memory"


class RequestPipeline:
    """Requests of one connection and their queued responses.

    `on_ready` is called when the first response in the queue becomes ready.
    """

    def __init__(
        self,
        frames: FrameBuffer,
        handle: Handle,
        client: Client,
        slice_is_over: Callable[[], bool],
        on_ready: Callable[[], object],
    ) -> None:
        self.handled_frames = 0
        self.failure: WireError | CloseConnectionError | None = None
        # Whether `handle_frames` stopped before a whole frame: slice over, mute, or SEND_AT_BYTES.
        self.has_yielded = False
        self._frames = frames
        self._handle = handle
        self._client = client
        self._slice_is_over = slice_is_over
        self._on_ready: Callable[[], object] = on_ready
        self._ready: list[bytes] = []
        self.queue: deque[DelayedReply | PendingReply | Reply] = deque()  # sent after `_ready`

    @property
    def has_responses(self) -> bool:
        return bool(self._ready or self.queue)

    @property
    def is_idle(self) -> bool:
        """Whether the connection may continue reading: nothing to send, to await or to handle.

        Delayed responses may be queued: `on_ready` reports them.
        """
        if self._ready or self.has_yielded or self.failure is not None:
            return False
        return not self.queue or (isinstance(self.queue[0], DelayedReply) and not self._needs_task)

    @property
    def _needs_task(self) -> bool:
        return bool(self.queue) and isinstance(self.queue[-1], PendingReply | list)

    @property
    def holds_frame(self) -> bool:
        """Whether a queued response still needs the bytes of its request."""
        return self._needs_task

    @property
    def outlasts_idle(self) -> bool:
        """Whether the first response may take longer than connections.max.idle.ms."""
        first = self.queue[0] if self.queue else None
        return isinstance(first, DelayedReply) and first.may_outlast_idle

    @property
    def may_handle(self) -> bool:
        """Whether the next frame may be handled before all responses have been sent."""
        queue = self.queue
        if not queue:
            return True
        last = queue[-1]
        if isinstance(last, DelayedReply):
            return last.allows_pipelining and len(queue) < MAX_DELAYED
        return not isinstance(last, PendingReply | list) and len(queue) < MAX_DELAYED

    def handle_frames(self) -> None:
        """Handle whole frames until one has to wait, the client is muted, or the slice is over.

        Set `has_yielded` if unhandled whole frames may remain, and `failure` if a frame is invalid
        or its handler closes the connection.
        """
        self.has_yielded = False
        frames, handle, client = self._frames, self._handle, self._client
        ready, queue = self._ready, self.queue
        ready_bytes = handled = 0
        try:
            while not queue or self.may_handle:
                # Nearly always the last frame ends the buffer: no call to learn that.
                frame = None if frames.is_empty else frames.next_frame()
                if frame is None:
                    if frames.has_much:
                        frames.rest()
                    return
                self.handled_frames += 1
                handled += 1
                reply = handle(frame, client)
                if type(reply) is list:
                    reply = read_at_once(reply) or reply
                if type(reply) is bytes and not queue:
                    ready.append(reply)
                    ready_bytes += len(reply)
                elif reply is not None:
                    queue.append(reply)
                    if isinstance(reply, DelayedReply):
                        reply.on_ready(self._on_reply_ready)
                if (
                    ready_bytes > SEND_AT_BYTES
                    or client.quota.mute is not None
                    or (handled % FRAMES_PER_LOOK == 0 and self._slice_is_over())
                ):
                    self.has_yielded = True
                    return
            if frames.has_much and frames.is_empty and not self.holds_frame:
                # A JoinGroup waits for minutes; its megabyte of buffer is for other connections.
                frames.rest()
        except (WireError, CloseConnectionError) as error:
            self.failure = error

    def _on_reply_ready(self) -> None:
        if self.queue and is_ready(self.queue[0]):
            self._on_ready()

    def take_ready(self) -> bytes:
        """Remove and return the bytes of all responses that can be sent now."""
        queue, ready = self.queue, self._ready
        if not queue and len(ready) == 1:  # nearly always
            return ready.pop()
        while queue and is_ready(queue[0]):
            reply = queue.popleft()
            if isinstance(reply, DelayedReply):
                reply = reply.complete()
                if type(reply) is list:
                    reply = read_at_once(reply) or reply
            if isinstance(reply, PendingReply | list):
                queue.appendleft(reply)
                break
            if reply:
                ready.append(reply)
        if not ready:
            return b""
        data = ready[0] if len(ready) == 1 else b"".join(ready)
        ready.clear()
        return data

    def put_back(self, unsent: bytes) -> None:
        """Put back the end of the bytes of `take_ready` that the socket did not take."""
        self._ready.insert(0, unsent)

    @property
    def first_parts(self) -> Parts | None:
        """The first response, if it has parts; None if ready bytes come before it."""
        first = self.queue[0] if self.queue and not self._ready else None
        return first if isinstance(first, list) else None

    def take_first(self) -> DelayedReply | PendingReply | Parts | None:
        """Remove and return the first response left by `take_ready`; None if the queue is empty."""
        reply = self.queue.popleft() if self.queue else None
        assert not isinstance(reply, bytes)
        return reply

    def put_first(self, reply: DelayedReply) -> None:
        self.queue.appendleft(reply)

    def close(self) -> None:
        """Drop all responses and release the resources that they hold."""
        for reply in self.queue:
            if isinstance(reply, DelayedReply):
                reply.cancel()
            elif isinstance(reply, PendingReply):
                reply.close()
        self.queue.clear()
        self._ready.clear()
        # The owner of the callback owns this object: dropping it breaks the reference cycle.
        self._on_ready = _nothing
        self.failure = None


def _nothing() -> None: ...


def is_ready(reply: DelayedReply | PendingReply | Reply) -> bool:
    if isinstance(reply, DelayedReply):
        return reply.is_ready
    return not isinstance(reply, PendingReply | list)


def read_at_once(parts: Parts) -> bytes | None:
    """Return the response as bytes if its records are few, small and cached, otherwise None."""
    if len(parts) > MAX_PARTS_AT_ONCE:
        return None
    pieces: list[bytes] = []
    left_bytes = COPY_LIMIT_BYTES
    for part in parts:
        if isinstance(part, bytes):
            pieces.append(part)
            continue
        assert isinstance(part, LogSlice)
        left_bytes -= part.size_bytes
        data = part.read_cached() if left_bytes >= 0 else None
        if data is None:
            return None
        pieces.append(data)
    return b"".join(pieces)
