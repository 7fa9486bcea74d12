"""How much memory requests may take that have not been handled yet.

A request is reserved whole before more of it is read, so that two half-read ones never wait for
each other, and the smallest that waits goes first: nobody can queue up before honest requests with
sizes that are only claimed. What is reserved is not held for ever by someone who does not send:
while others wait, a request has to come in at a rate (`StalledRequests`) or its connection is
closed.
"""

import heapq
import itertools
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

import trio

# While others wait for memory: after this, a request must have come at the rate below.
GRACE_S: Final = 3.0
LEAST_BYTES_PER_S: Final = 128 * 1024
# And at such a rate as would bring the whole of it within this.
WHOLE_WITHIN_S: Final = 60.0


class _Waiter(NamedTuple):
    """Compared by its size first, and then by its age."""

    size_bytes: int
    serial: int
    granted: trio.Event


class RequestMemory:
    """A budget in bytes that large requests draw on while they arrive, the smallest first.

    One larger than the budget passes when it has the budget to itself; one that asks for nothing
    passes at once. With `ages`, the request that has waited longest goes first once others have
    overtaken it with as many bytes as it asks for, so that smaller ones cannot keep it waiting for
    ever; then the smallest go first again, so that they do not wait for all large ones either. That
    is for requests that have arrived: sizes that are only claimed must not go before honest ones.
    Source: queued.max.request.bytes (KIP-72).
    """

    def __init__(self, limit_bytes: int, *, ages: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._ages = ages
        self._overtaking_bytes = (
            0  # granted to others since the oldest that waited was last granted
        )
        self._serial = itertools.count()
        self._waiting: list[_Waiter] = []  # a heap
        self._short = trio.Event()

    @property
    def is_short(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    async def wait_short(self) -> None:
        while not self._waiting:
            self._short = trio.Event()
            await self._short.wait()

    def _fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self.limit_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether `reserve` would not wait."""
        return not size_bytes or (not self._waiting and self._fits(size_bytes))

    async def reserve(self, size_bytes: int) -> None:
        """`size_bytes` are the caller's until it releases them."""
        if self.has_room(size_bytes):
            self.used_bytes += size_bytes
            return
        waiter = _Waiter(size_bytes, next(self._serial), trio.Event())
        heapq.heappush(self._waiting, waiter)
        self._grant()
        self._short.set()
        try:
            await waiter.granted.wait()
        except trio.Cancelled:
            if waiter.granted.is_set():
                self.release(size_bytes)
            else:
                self._remove(waiter)
                self._grant()
            raise

    def release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            waiter = self._waiting[0]
            oldest = min(self._waiting, key=_serial_of) if self._ages else waiter
            if self._overtaking_bytes >= oldest.size_bytes:
                waiter = oldest
            if not self._fits(waiter.size_bytes):
                return
            overtaking_bytes = self._overtaking_bytes + waiter.size_bytes
            self._overtaking_bytes = 0 if waiter is oldest else overtaking_bytes
            self._remove(waiter)
            self.used_bytes += waiter.size_bytes
            waiter.granted.set()

    def _remove(self, waiter: _Waiter) -> None:
        if waiter is self._waiting[0]:
            heapq.heappop(self._waiting)
        else:
            self._waiting.remove(waiter)
            heapq.heapify(self._waiting)


def _serial_of(waiter: _Waiter) -> int:
    return waiter.serial


class Holder(Protocol):
    """A connection, as far as it holds memory for a request that has not come whole."""

    @property
    def reservation(self) -> int:
        """Another number for each request."""

    @property
    def reserved_bytes(self) -> int: ...

    @property
    def client(self) -> object:
        """Who it is, for people."""

    @property
    def missing_bytes(self) -> int:
        """Of the request; 0 when it is all there."""

    def abort(self) -> None: ...


class StalledRequests:
    """Tells who holds memory and brings too little, looked at from time to time in a shortage."""

    def __init__(self) -> None:
        # When a request was looked at first, and what was missing of it then.
        self._seen: dict[tuple[Holder, int], tuple[float, int]] = {}

    def among(self, holders: Iterable[Holder], now_s: float) -> list[Holder]:
        """Those that have brought less than they must since they were looked at first."""
        seen, stalled = {}, []
        for holder in holders:
            missing = holder.missing_bytes
            if not holder.reserved_bytes or not missing:
                continue
            key = holder, holder.reservation
            since_s, then = seen[key] = self._seen.get(key, (now_s, missing))
            rate = max(LEAST_BYTES_PER_S, holder.reserved_bytes / WHOLE_WITHIN_S)
            if then - missing < (now_s - since_s - GRACE_S) * rate:
                stalled.append(holder)
        self._seen = seen
        return stalled
