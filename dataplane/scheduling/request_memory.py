"""The memory budget of requests that have not been handled yet.

Memory for a whole request is reserved before more of it is read, so that two partly read requests
never wait for each other. The smallest waiting request is granted memory first, so that a client
that announces a large size without sending it cannot delay smaller requests. A client cannot hold
reserved memory without sending: while other requests wait, a request must arrive at a minimum rate
(`StalledRequests`), or its connection is closed.
"""

import heapq
import itertools
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

import trio

# While other requests wait for memory, a request must arrive at the rates below after this time.
GRACE_S: Final = 3.0
LEAST_BYTES_PER_S: Final = 128 * 1024
# The whole request must arrive within this time, in seconds, which gives its minimum rate.
WHOLE_WITHIN_S: Final = 60.0


class _Waiter(NamedTuple):
    """A waiting request, ordered by size, then by age."""

    size_bytes: int
    serial: int
    granted: trio.Event


class RequestMemory:
    """A budget in bytes, granted to waiting requests smallest first.

    A request larger than the budget is granted when nothing else is reserved; a request for 0 bytes
    is granted at once. With `ages`, the request that has waited longest is granted next once
    requests with as many bytes as its own have overtaken it, so that smaller ones cannot delay it
    forever. Use `ages` only for requests that have arrived: a size that is only announced must not
    delay other requests. Source: queued.max.request.bytes (KIP-72).
    """

    def __init__(self, limit_bytes: int, *, ages: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._ages = ages
        self._overtaking_bytes = 0  # granted since an oldest waiting request was last granted
        self._serial = itertools.count()
        self._waiting: list[_Waiter] = []  # a heap
        self._short = trio.Event()

    @property
    def is_short(self) -> bool:
        """Whether any request waits."""
        return bool(self._waiting)

    async def wait_short(self) -> None:
        while not self._waiting:
            self._short = trio.Event()
            await self._short.wait()

    def _fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self.limit_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Return whether `reserve` would return at once."""
        return not size_bytes or (not self._waiting and self._fits(size_bytes))

    def reserve_nowait(self, size_bytes: int) -> bool:
        """Reserve `size_bytes` if no request waits and they are free; return whether they were."""
        if not self.has_room(size_bytes):
            return False
        self.used_bytes += size_bytes
        return True

    async def reserve(self, size_bytes: int) -> None:
        """Wait until `size_bytes` are reserved; the caller must `release` them."""
        if self.reserve_nowait(size_bytes):
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
    """A connection that may hold memory for a partly received request."""

    @property
    def reservation(self) -> int:
        """A number that differs for each request."""

    @property
    def reserved_bytes(self) -> int: ...

    @property
    def client(self) -> object:
        """The client, printable in log lines."""

    @property
    def missing_bytes(self) -> int:
        """Bytes of the request not received yet; 0 when it is complete."""

    def abort(self) -> None: ...


class StalledRequests:
    """Detector of connections that hold memory and receive too slowly; polled in a shortage."""

    def __init__(self) -> None:
        # Time of the first poll that saw each request, and its missing bytes then.
        self._seen: dict[tuple[Holder, int], tuple[float, int]] = {}

    def among(self, holders: Iterable[Holder], now_s: float) -> list[Holder]:
        """Return the holders that received less than the minimum rate since their first poll."""
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
