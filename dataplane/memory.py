"""How much memory requests may take that have not been handled yet."""

from collections import deque

import trio


class RequestMemory:
    """A budget in bytes that large requests draw on while they arrive, first come, first served.

    A request is reserved whole before more of it is read, so that two half-read ones never wait
    for each other. One larger than the budget passes when it has the budget to itself.
    Source: queued.max.request.bytes (KIP-72).
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    def _fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self.limit_bytes

    async def reserve(self, size_bytes: int) -> None:
        """`size_bytes` are the caller's until it releases them."""
        if not self._waiting and self._fits(size_bytes):
            self.used_bytes += size_bytes
            return
        entry = (size_bytes, trio.Event())
        self._waiting.append(entry)
        try:
            await entry[1].wait()
        except trio.Cancelled:
            if entry[1].is_set():
                self.release(size_bytes)
            else:
                self._waiting.remove(entry)
                self._grant()
            raise

    def release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, granted = self._waiting.popleft()
            self.used_bytes += size_bytes
            granted.set()
