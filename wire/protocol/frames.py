"""Buffers that split a byte stream into frames: a size (int32), then that number of bytes."""

import struct
from typing import Final

from metaquorum.wire.primitives.errors import WireError

SIZE_BYTES: Final = 4
INITIAL_BYTES: Final = 8 * 1024  # ten thousand idle connections must be cheap
POOLED_BYTES: Final = 1280 * 1024  # a batch of max.message.bytes and its request around it
POOL_MAX_FREE: Final = 16
# Limit on pooled buffers in use by `borrow`: 80 MiB for any number of connections. At the limit, a
# stream receives into its small buffer.
POOL_MAX_LENT: Final = 64

_read_size = struct.Struct(">i").unpack_from
# Other protocols that clients send by mistake, by the first bytes of the stream.
_STRANGERS: Final = (
    (b"\x16\x03", "TLS where plaintext was expected"),
    (b"\x15\x03", "TLS (it sent an alert about our plaintext)"),
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
    """Pool of large buffers (POOLED_BYTES) that streams share.

    Allocating a buffer of a megabyte takes as long as receiving a megabyte: the kernel must find
    and clear its pages.
    """

    def __init__(self, max_free: int = POOL_MAX_FREE) -> None:
        self._free: list[memoryview] = []
        self._max_free = max_free
        self.lent = 0

    def take(self) -> memoryview:
        """Return a buffer of POOLED_BYTES, which may contain bytes of another stream."""
        self.lent += 1
        return self._free.pop() if self._free else memoryview(bytearray(POOLED_BYTES))

    def give(self, buffer: memoryview) -> None:
        """Return `buffer` to the pool; no view of it may be in use. Other buffers are ignored."""
        if len(buffer) == POOLED_BYTES:
            self.lent -= 1
            if len(self._free) < self._max_free:
                self._free.append(buffer)

    def lost(self) -> None:
        """Count a lent buffer as lost: views of it may be in use, so the pool cannot reuse it."""
        self.lent -= 1


_NO_BUFFER: Final = memoryview(bytearray())


class FrameBuffer:
    """Buffer of the received bytes of one stream, and parser of its frames.

    Usage: receive into `writable()`, report the number of bytes with `received`, then call
    `next_frame` until it returns None. A frame is a view of the buffer. The next call of `writable`
    overwrites it: no view may be in use then (KAFKA-19012).

    A frame that exceeds the small buffer is received into a pooled buffer. Beyond that, the buffer
    at most doubles as bytes arrive, regardless of the size in the frame, so a false size allocates
    no memory. After a large frame the stream returns to the small buffer, unless the large one has
    at most `kept_bytes`: for each large frame, a new buffer costs a copy of the first bytes, and
    the kernel must find and clear its pages.

    A caller that handles received frames immediately can, while `has_much` is set, `borrow` a large
    buffer for each receive and call `rest` afterwards: then one receive takes all available bytes
    of a large frame, and an idle stream holds no large buffer.
    """

    __slots__ = (
        "_end",
        "_initial_bytes",
        "_is_lent",
        "_kept_bytes",
        "_pool",
        "_small",
        "_start",
        "_view",
        "claimed_bytes",
        "has_much",
        "is_empty",
        "max_frame_bytes",
    )

    def __init__(
        self,
        max_frame_bytes: int,
        initial_bytes: int = INITIAL_BYTES,
        pool: BufferPool | None = None,
        kept_bytes: int = 0,
    ) -> None:
        assert SIZE_BYTES <= initial_bytes < POOLED_BYTES
        self._kept_bytes = kept_bytes
        self.max_frame_bytes = max_frame_bytes
        self.claimed_bytes = 0  # size of the incomplete frame with its size field; 0: none
        self._pool = BufferPool(max_free=1) if pool is None else pool
        self._initial_bytes = initial_bytes
        self._small: memoryview | None = None
        self._view = _NO_BUFFER
        self._is_lent = False
        self._start = self._end = 0
        # Whether a recent receive exceeded the small buffer.
        self.has_much = False
        self.is_empty = True  # whether there are no pending bytes, for a caller that cannot wait

    @property
    def buffer_bytes(self) -> int:
        return len(self._view)

    @property
    def pending_bytes(self) -> int:
        """Bytes received but not returned: part of a frame, after `next_frame` returned None."""
        return self._end - self._start

    @property
    def is_full(self) -> bool:
        """Whether the pending bytes fill the buffer."""
        return 0 < self._end - self._start == len(self._view)

    def borrow(self) -> memoryview:
        """Return `writable()` in a pooled buffer, which the stream holds until `rest`.

        If POOL_MAX_LENT buffers are in use, the stream keeps its current buffer.
        """
        pool = self._pool
        if len(self._view) < POOLED_BYTES:
            if pool.lent >= POOL_MAX_LENT:
                return self.writable()
            if self._end == self._start:
                # The common case, without the general code below, which has the same result.
                self._is_lent = True
                self._start = self._end = 0
                view = self._view = pool.take()
                return view
            self._move_to(pool.take())
        self._is_lent = True
        return self.writable()

    def rest(self) -> None:
        """Invalidate earlier frames; return a pooled buffer if its pending bytes are few."""
        if self._is_lent and self._end <= self._initial_bytes:
            self.has_much = False
        self._is_lent = False
        pending = self._end - self._start
        view = self._view
        if pending < self._initial_bytes and len(view) >= POOLED_BYTES:
            if not pending:
                self._view = _NO_BUFFER
                self._start = self._end = 0
                self._pool.give(view)
                return
            self._move_to(self._small_buffer())

    def shrink(self) -> None:
        """Return the pooled buffer to the pool, after a copy of its pending bytes.

        For a stream that may wait long for its next bytes.
        """
        if len(self._view) == POOLED_BYTES:
            self._move_to(memoryview(bytearray(self._end - self._start)))

    def close(self) -> None:
        """Release the buffers: the stream has ended."""
        if len(self._view) == POOLED_BYTES:
            self._pool.lost()
        self._view = _NO_BUFFER
        self._start = self._end = 0
        self.is_empty = True

    def writable(self) -> memoryview:
        """Return a view for the next bytes, never empty. Invalidates earlier frames."""
        if self._start == self._end and self._view is self._small:  # nearly always
            self._start = self._end = 0
            return self._view
        if self._start or self._end == len(self._view):
            self._make_room()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Take over `count` bytes that were written at the start of `writable()`."""
        self._end += count
        self.is_empty = False
        assert self._end <= len(self._view)

    def next_frame(self) -> memoryview | None:
        """Return the content of the next frame, or None if it is incomplete.

        Raises WireError if its size is negative or exceeds `max_frame_bytes`.
        """
        start = self._start
        if self._end - start < SIZE_BYTES:
            self.claimed_bytes = 0
            return None
        (size,) = _read_size(self._view, start)
        if not 0 <= size <= self.max_frame_bytes:
            raise self._nonsense(size)
        end = start + SIZE_BYTES + size
        if end > self._end:
            self.claimed_bytes = SIZE_BYTES + size
            return None
        self._start = end
        self.is_empty = end == self._end
        self.claimed_bytes = 0
        return self._view[start + SIZE_BYTES : end]

    def _move_to(self, new: memoryview) -> None:
        """Move the pending bytes to the start of `new`, which may be the buffer in use."""
        old = self._view
        pending = self._end - self._start
        if pending and (new is not old or self._start):
            new[:pending] = old[self._start : self._end]
        self._start, self._end = 0, pending
        if new is not old:
            self._view = new
            self._pool.give(old)

    def _make_room(self) -> None:
        pending = self._end - self._start
        size = len(self._view)
        if pending < size:
            keeps = self._is_lent or pending >= self._initial_bytes or size <= self._kept_bytes
            self._move_to(self._view if keeps else self._small_buffer())
        elif size < self._initial_bytes:
            self._move_to(self._small_buffer())
        elif size < POOLED_BYTES:
            self.has_much = True
            self._move_to(self._pool.take())
        else:
            grown = max(min(2 * size, self.claimed_bytes), size + 1)
            self._move_to(memoryview(bytearray(grown)))

    def _small_buffer(self) -> memoryview:
        if self._small is None:
            self._small = memoryview(bytearray(self._initial_bytes))
        return self._small

    def _nonsense(self, size: int) -> WireError:
        first = bytes(self._view[self._start : self._start + SIZE_BYTES])
        for start, protocol in _STRANGERS:
            if first.startswith(start):
                return WireError(f"the peer speaks {protocol}, not the Kafka protocol")
        if size < 0:
            return WireError(f"frame size: {size} is negative")
        return WireError(f"frame size: {size} bytes exceed the limit of {self.max_frame_bytes}")
