"""Rate limit of log lines that clients can cause: a burst, then a steady rate (token buckets).

Failures of clients are logged, but a client that fails in a loop must not fill the disk. Each
address has its own limit, so that one noisy address does not hide the failures of others; all
addresses together have a limit, too. Plain state: `now` is monotonic seconds.
"""

from typing import Final

ADDRESS_LINES: Final = 20  # burst
ADDRESS_LINES_PER_S: Final = 1.0
ALL_LINES: Final = 100
ALL_LINES_PER_S: Final = 10.0
MAX_ADDRESSES: Final = 1000  # addresses in memory; the least recently used one is dropped


class _Bucket:
    __slots__ = ("_at", "_level", "_most", "_per_s")

    def __init__(self, most: float, per_s: float, now: float) -> None:
        self._most = most
        self._per_s = per_s
        self._level = most
        self._at = now

    def has_room(self, now: float) -> bool:
        self._level = min(self._most, self._level + (now - self._at) * self._per_s)
        self._at = now
        return self._level >= 1

    def take(self) -> None:
        self._level -= 1


class LogRateLimiter:
    """Limits of the log lines of one worker."""

    def __init__(self, now: float) -> None:
        self._all = _Bucket(ALL_LINES, ALL_LINES_PER_S, now)
        self._addresses: dict[str, _Bucket] = {}
        self._left_out = 0

    def take(self, address: str, now: float) -> str | None:
        """Count a line. Return the text to append to it, or None to omit the line."""
        own = self._addresses.pop(address, None) or _Bucket(ADDRESS_LINES, ADDRESS_LINES_PER_S, now)
        if len(self._addresses) >= MAX_ADDRESSES:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[address] = own
        if not (own.has_room(now) and self._all.has_room(now)):
            self._left_out += 1
            return None
        own.take()
        self._all.take()
        left_out, self._left_out = self._left_out, 0
        return f" ({left_out} log lines were omitted before)" if left_out else ""
