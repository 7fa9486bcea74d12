"""The requests of one connection and their responses, in the order of the requests. No I/O.

    bytes -> FrameBuffer -> frame -> handler -> response -> ready bytes -> socket

The handler gives one of four responses. What each does to the frames behind it:

    response       may be sent                    frames behind it are handled
    bytes          once those before it are       at once
    DelayedReply   when something makes it ready  at once if it `allows_pipelining`, else after it
    PendingReply   when its coroutine has ended   after it: a slow request holds one frame
    parts          by sendfile, piece by piece    after them: a slow reader holds one response

`waits_for` says what ends the wait of the connection:

    REQUEST   the client sends bytes; the only wait, with MUTE and MEMORY, that a drain cuts short
    RESPONSE  the first response becomes ready, or the socket takes bytes
    MUTE      the client's throttle time is over (KIP-219)
    MEMORY    other requests give memory back, so that a large frame can be received

A mute begins after the response that says so, and before the next frame is handled. At most
MAX_DELAYED responses are queued behind one that is not ready. A frame that is wrong, or whose
handler closes the connection, is the last: the responses before it are sent first (`failure`).
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from dataplane.log.segments.slices import LogSlice
from dataplane.network.client import Client
from dataplane.network.replies import (
    CloseConnectionError,
    DelayedReply,
    Handle,
    Parts,
    PendingReply,
    Reply,
)
from wire.primitives.errors import WireError
from wire.protocol.frames import FrameBuffer

# Records up to here are copied into the response; above, sendfile is cheaper than the copy, with
# the turn of a task that it takes.
COPY_LIMIT_BYTES: Final = 128 * 1024
# Responses are sent when so much is ready, whatever else one read has brought.
SEND_AT_BYTES: Final = 256 * 1024
# Requests between two looks at the clock; a request that takes long ends the slice in any case.
FRAMES_PER_LOOK: Final = 16
# More than Java's producer has under way (max.in.flight.requests.per.connection, 5).
MAX_DELAYED: Final = 16


class Wait(Enum):
    REQUEST = "request"
    RESPONSE = "response"
    MUTE = "mute"
    MEMORY = "memory"


class RequestPipeline:
    """`on_ready` is called when the first response in the queue has become ready."""

    def __init__(
        self,
        frames: FrameBuffer,
        handle: Handle,
        client: Client,
        slice_is_over: Callable[[], bool],
        on_ready: Callable[[], object],
    ) -> None:
        self.waits_for = Wait.REQUEST
        self.handled_frames = 0
        self.failure: WireError | CloseConnectionError | None = None
        # Whether `handle_frames` has stopped for others' sake, or for a mute, before a whole frame.
        self.has_yielded = False
        self._frames = frames
        self._handle = handle
        self._client = client
        self._slice_is_over = slice_is_over
        self._on_ready: Callable[[], object] = on_ready
        self._ready: list[bytes] = []
        self._queue: deque[DelayedReply | PendingReply | Reply] = deque()  # behind `_ready`

    @property
    def has_responses(self) -> bool:
        return bool(self._ready or self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether the connection may go on to read: nothing is to be sent, awaited or handled.

        Delayed responses may be queued: `on_ready` is called for them.
        """
        return (
            not self._ready
            and not self.has_yielded
            and self.failure is None
            and (not self._queue or isinstance(self._queue[0], DelayedReply))
            and not self._needs_task
        )

    @property
    def _needs_task(self) -> bool:
        return bool(self._queue) and isinstance(self._queue[-1], PendingReply | list)

    @property
    def holds_frame(self) -> bool:
        """Whether a queued response has yet to read the bytes of its request."""
        return self._needs_task

    @property
    def may_handle(self) -> bool:
        """Whether the next frame may be handled before all responses have been sent."""
        queue = self._queue
        if not queue:
            return True
        last = queue[-1]
        if isinstance(last, DelayedReply):
            return last.allows_pipelining and len(queue) < MAX_DELAYED
        return not isinstance(last, PendingReply | list) and len(queue) < MAX_DELAYED

    def handle_frames(self) -> None:
        """Whole frames are handled, up to one that has to wait or to the end of the slice."""
        self.has_yielded = False
        next_frame, handle, client = self._frames.next_frame, self._handle, self._client
        ready, queue = self._ready, self._queue
        ready_bytes = handled = 0
        try:
            while not queue or self.may_handle:
                frame = next_frame()
                if frame is None:
                    if self._frames.has_much:
                        self._frames.rest()
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
        except (WireError, CloseConnectionError) as error:
            self.failure = error

    def _on_reply_ready(self) -> None:
        if self._queue and is_ready(self._queue[0]):
            self._on_ready()

    def take_ready(self) -> bytes:
        """The bytes of all responses that can be sent at once; they leave the queue."""
        queue, ready = self._queue, self._ready
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
        """The end of what `take_ready` gave; the socket has taken no more."""
        self._ready.insert(0, unsent)

    def take_first(self) -> DelayedReply | PendingReply | Parts | None:
        """The first response, after `take_ready`; the caller sends it, or puts it back."""
        reply = self._queue.popleft() if self._queue else None
        assert not isinstance(reply, bytes)
        return reply

    def put_first(self, reply: DelayedReply) -> None:
        self._queue.appendleft(reply)

    def close(self) -> None:
        """No response is sent any more: what they hold is given back."""
        for reply in self._queue:
            if isinstance(reply, DelayedReply):
                reply.cancel()
            elif isinstance(reply, PendingReply):
                reply.close()
        self._queue.clear()
        self._ready.clear()
        # The owner of the callback owns this: without it there is no reference cycle.
        self._on_ready = _nothing
        self.failure = None


def _nothing() -> None: ...


def is_ready(reply: DelayedReply | PendingReply | Reply) -> bool:
    if isinstance(reply, DelayedReply):
        return reply.is_ready
    return not isinstance(reply, PendingReply | list)


def read_at_once(parts: Parts) -> bytes | None:
    """The response as bytes, if its records are few and in memory, and reading them succeeds."""
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
