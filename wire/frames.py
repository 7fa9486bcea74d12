"""Splits a byte stream into frames: four bytes of size, then so many bytes."""

import struct
from typing import Final

from wire.errors import WireError

SIZE_BYTES: Final = 4
INITIAL_BYTES: Final = 8 * 1024  # ten thousand idle connections must be cheap
KEEP_MAX_BYTES: Final = 32 * 1024  # an empty buffer above this is given back

_read_size = struct.Struct(">i").unpack_from
# Who else is known to knock, by the first bytes it sends.
_STRANGERS: Final = (
    (b"\x16\x03", "TLS, where this listener speaks plain text"),
    (b"GET ", "HTTP"),
    (b"HEAD", "HTTP"),
    (b"POST", "HTTP"),
    (b"PUT ", "HTTP"),
    (b"OPTI", "HTTP"),
    (b"CONN", "HTTP"),
    (b"PRI ", "HTTP/2"),
    (b"SSH-", "SSH"),
)


class FrameBuffer:
    """The bytes of one stream that are not handled yet.

    Receive into `writable()`, say how much with `received`, then take frames until there is none.
    A frame is a view of the buffer and stays valid until `writable` is called again, or for as
    long as it is held if `detach` was called. The buffer at most doubles as bytes arrive, whatever
    size a frame claims, and shrinks when a large one has been handled.
    """

    __slots__ = (
        "_buffer",
        "_detached",
        "_end",
        "_initial_bytes",
        "_start",
        "_view",
        "claimed_bytes",
        "max_frame_bytes",
    )

    def __init__(self, max_frame_bytes: int, initial_bytes: int = INITIAL_BYTES) -> None:
        assert initial_bytes >= SIZE_BYTES
        self.max_frame_bytes = max_frame_bytes
        self.claimed_bytes = 0  # of the frame that is under way, its size included; 0 for none
        self._initial_bytes = initial_bytes
        self._detached = False
        self._take_buffer(initial_bytes)
        self._start = self._end = 0

    @property
    def buffer_bytes(self) -> int:
        return len(self._buffer)

    @property
    def pending_bytes(self) -> int:
        """Received and not handed out: part of a frame, once `next_frame` has said None."""
        return self._end - self._start

    def writable(self) -> memoryview:
        """Where the next bytes go; never empty. Frames handed out before are void."""
        if self._start or self._detached or self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes have been put at the start of `writable()`."""
        self._end += count
        assert self._end <= len(self._buffer)

    def next_frame(self) -> memoryview | None:
        """The content of the next whole frame; WireError when its size makes no sense."""
        start = self._start
        if self._end - start < SIZE_BYTES:
            self.claimed_bytes = 0
            return None
        (size,) = _read_size(self._buffer, start)
        if not 0 <= size <= self.max_frame_bytes:
            raise self._nonsense(size)
        end = start + SIZE_BYTES + size
        if end > self._end:
            self.claimed_bytes = SIZE_BYTES + size
            return None
        self._start = end
        self.claimed_bytes = 0
        return self._view[start + SIZE_BYTES : end]

    def detach(self) -> None:
        """Frames handed out stay valid while they are held: their buffer is not used again.

        Source: KAFKA-19012, where a buffer still in flight was reused.
        """
        self._detached = True

    def _take_buffer(self, size: int) -> None:
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)

    def _make_room(self) -> None:
        pending = self._end - self._start
        size = self._next_buffer_bytes(pending)
        if size != len(self._buffer) or self._detached:
            old = self._view
            self._take_buffer(size)
            self._buffer[:pending] = old[self._start : self._end]
            self._detached = False
        elif pending and self._start:
            self._buffer[:pending] = self._buffer[self._start : self._end]
        self._start, self._end = 0, pending

    def _next_buffer_bytes(self, pending: int) -> int:
        size = len(self._buffer)
        if pending == size:
            limit = max(self.claimed_bytes or self.max_frame_bytes, SIZE_BYTES)
            return max(min(2 * size, limit), size + 1)
        if not pending and size > KEEP_MAX_BYTES:
            return self._initial_bytes
        return size

    def _nonsense(self, size: int) -> WireError:
        first = bytes(self._buffer[self._start : self._start + SIZE_BYTES])
        for start, protocol in _STRANGERS:
            if first.startswith(start):
                return WireError(f"the peer speaks {protocol}, not the Kafka protocol")
        if size < 0:
            return WireError(f"frame size: {size} is negative")
        return WireError(f"frame size: {size} bytes exceed the limit of {self.max_frame_bytes}")
