"""Splits a byte stream into frames: four bytes of size, then so many bytes."""

import struct
from typing import Final

from wire.errors import WireError

SIZE_BYTES: Final = 4
INITIAL_BYTES: Final = 8 * 1024  # ten thousand idle connections must be cheap
POOLED_BYTES: Final = 1280 * 1024  # a batch of max.message.bytes, and what stands around it
POOL_MAX_FREE: Final = 16

_read_size = struct.Struct(">i").unpack_from
# Who else is known to knock, by the first bytes it sends.
_STRANGERS: Final = (
    (b"\x16\x03", "TLS, where this listener speaks plain text"),
    (b"\x15\x03", "TLS, and was spoken to in plain text"),
    (b"HTTP", "HTTP"),
    (b"GET ", "HTTP"),
    (b"HEAD", "HTTP"),
    (b"POST", "HTTP"),
    (b"PUT ", "HTTP"),
    (b"OPTI", "HTTP"),
    (b"CONN", "HTTP"),
    (b"PRI ", "HTTP/2"),
    (b"SSH-", "SSH"),
)


class BufferPool:
    """Large buffers that have been used, for whichever stream needs one next.

    A buffer of a megabyte that is made anew costs as much as receiving a megabyte: its pages have
    to be found and cleared.
    """

    def __init__(self, max_free: int = POOL_MAX_FREE) -> None:
        self._free: list[bytearray] = []
        self._max_free = max_free

    def take(self) -> bytearray:
        """One of POOLED_BYTES. It may hold another stream's bytes."""
        return self._free.pop() if self._free else bytearray(POOLED_BYTES)

    def give(self, buffer: bytearray) -> None:
        """Nobody looks at this buffer any more."""
        if len(buffer) == POOLED_BYTES and len(self._free) < self._max_free:
            self._free.append(buffer)


class FrameBuffer:
    """The bytes of one stream that are not handled yet.

    Receive into `writable()`, say how much with `received`, then take frames until there is none. A
    frame is a view of the buffer and void when `writable` is called again: nobody may still be
    looking at it then (KAFKA-19012). A frame that does not fit the small buffer goes to one of the
    pool; beyond that the buffer at most doubles as bytes arrive, whatever size the frame claims.
    When a large frame has been handled, the small buffer is back.
    """

    __slots__ = (
        "_buffer",
        "_end",
        "_pool",
        "_small",
        "_start",
        "_view",
        "claimed_bytes",
        "max_frame_bytes",
    )

    def __init__(
        self,
        max_frame_bytes: int,
        initial_bytes: int = INITIAL_BYTES,
        pool: BufferPool | None = None,
    ) -> None:
        assert SIZE_BYTES <= initial_bytes < POOLED_BYTES
        self.max_frame_bytes = max_frame_bytes
        self.claimed_bytes = 0  # of the frame that is under way, its size included; 0 for none
        self._pool = BufferPool(max_free=1) if pool is None else pool
        self._small = bytearray(initial_bytes)
        self._use(self._small)
        self._start = self._end = 0

    @property
    def pending_bytes(self) -> int:
        """Received and not handed out: part of a frame, once `next_frame` has said None."""
        return self._end - self._start

    @property
    def is_full(self) -> bool:
        """What has come fills the buffer as it is."""
        return self._end - self._start == len(self._buffer)

    def writable(self) -> memoryview:
        """Where the next bytes go; never empty. Frames handed out before are void."""
        if self._start or self._end == len(self._buffer):
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

    def _use(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)

    def _make_room(self) -> None:
        pending = self._end - self._start
        old = self._buffer
        new = self._next_buffer(pending)
        if new is not old:
            new[:pending] = self._view[self._start : self._end]
            self._use(new)
            self._pool.give(old)
        elif pending and self._start:
            old[:pending] = old[self._start : self._end]
        self._start, self._end = 0, pending

    def _next_buffer(self, pending: int) -> bytearray:
        """Where the `pending` bytes and those to come have room."""
        buffer, small = self._buffer, self._small
        size = len(buffer)
        if pending == size:
            if size < POOLED_BYTES:
                return self._pool.take()
            return bytearray(max(min(2 * size, self.claimed_bytes), size + 1))
        return small if pending < len(small) else buffer

    def _nonsense(self, size: int) -> WireError:
        first = bytes(self._buffer[self._start : self._start + SIZE_BYTES])
        for start, protocol in _STRANGERS:
            if first.startswith(start):
                return WireError(f"the peer speaks {protocol}, not the Kafka protocol")
        if size < 0:
            return WireError(f"frame size: {size} is negative")
        return WireError(f"frame size: {size} bytes exceed the limit of {self.max_frame_bytes}")
