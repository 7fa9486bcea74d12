"""Splits a byte stream into frames: four bytes of size, then so many bytes."""

import struct
from typing import Final

from wire.primitives.errors import WireError

SIZE_BYTES: Final = 4
INITIAL_BYTES: Final = 8 * 1024  # ten thousand idle connections must be cheap
POOLED_BYTES: Final = 1280 * 1024  # a batch of max.message.bytes, and what stands around it
POOL_MAX_FREE: Final = 16
# While so many hold one, who could do without does: 80 MiB, however many connections there are.
POOL_MAX_LENT: Final = 64

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
        self._free: list[memoryview] = []
        self._max_free = max_free
        self.lent = 0

    def take(self) -> memoryview:
        """One of POOLED_BYTES. It may hold another stream's bytes."""
        self.lent += 1
        return self._free.pop() if self._free else memoryview(bytearray(POOLED_BYTES))

    def give(self, buffer: memoryview) -> None:
        """Nobody looks at this buffer any more, which may be none of the pool."""
        if len(buffer) == POOLED_BYTES:
            self.lent -= 1
            if len(self._free) < self._max_free:
                self._free.append(buffer)

    def lost(self) -> None:
        """A buffer is not given back: somebody may still look at it."""
        self.lent -= 1


_NO_BUFFER: Final = memoryview(bytearray())


class FrameBuffer:
    """The bytes of one stream that are not handled yet.

    Receive into `writable()`, say how much with `received`, then take frames until there is none. A
    frame is a view of the buffer and void when `writable` is called again: nobody may still be
    looking at it then (KAFKA-19012). A frame that does not fit the small buffer goes to one of the
    pool; beyond that the buffer at most doubles as bytes arrive, whatever size the frame claims.
    When a large frame has been handled, the small buffer is back.

    Who handles what it receives at once can, while `has_much`, `borrow` a large buffer for each
    receive and `rest` when it has handled it: all that has come is received at once then, however
    large a frame is, and no buffer is held meanwhile.
    """

    __slots__ = (
        "_end",
        "_initial_bytes",
        "_is_lent",
        "_pool",
        "_small",
        "_start",
        "_view",
        "claimed_bytes",
        "has_much",
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
        self._initial_bytes = initial_bytes
        self._small: memoryview | None = None
        self._view = _NO_BUFFER
        self._is_lent = False
        self._start = self._end = 0
        # More came at a time, not long ago, than the small buffer takes.
        self.has_much = False

    @property
    def buffer_bytes(self) -> int:
        return len(self._view)

    @property
    def pending_bytes(self) -> int:
        """Received and not handed out: part of a frame, once `next_frame` has said None."""
        return self._end - self._start

    @property
    def is_full(self) -> bool:
        """What has come fills the buffer as it is."""
        return 0 < self._end - self._start == len(self._view)

    def borrow(self) -> memoryview:
        """As `writable`, in a buffer of the pool until `rest`, unless too many are lent."""
        pool = self._pool
        if len(self._view) < POOLED_BYTES:
            if pool.lent >= POOL_MAX_LENT:
                return self.writable()
            if self._end == self._start:
                # As nearly always; what follows would do the same.
                self._is_lent = True
                self._start = self._end = 0
                view = self._view = pool.take()
                return view
            self._move_to(pool.take())
        self._is_lent = True
        return self.writable()

    def rest(self) -> None:
        """Frames before are void, and a buffer of the pool goes back, unless it holds much."""
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
        """A buffer of the pool goes back however much it holds: it may take long to get more."""
        if len(self._view) == POOLED_BYTES:
            self._move_to(memoryview(bytearray(self._end - self._start)))

    def close(self) -> None:
        """The stream has ended."""
        if len(self._view) == POOLED_BYTES:
            self._pool.lost()
        self._view = _NO_BUFFER
        self._start = self._end = 0

    def writable(self) -> memoryview:
        """Where the next bytes go; never empty. Frames handed out before are void."""
        if self._start or self._end == len(self._view):
            self._make_room()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes have been put at the start of `writable()`."""
        self._end += count
        assert self._end <= len(self._view)

    def next_frame(self) -> memoryview | None:
        """The content of the next whole frame; WireError when its size makes no sense."""
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
        self.claimed_bytes = 0
        return self._view[start + SIZE_BYTES : end]

    def _move_to(self, new: memoryview) -> None:
        """What is pending stands at the start of `new`, which may be the buffer in use."""
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
            keeps = self._is_lent or pending >= self._initial_bytes
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
