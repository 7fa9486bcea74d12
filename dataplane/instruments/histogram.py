"""Histograms of durations: quantiles of the values recorded in the last one to two minutes.

Bucket limits grow by an eighth. A quantile is the upper limit of its bucket: never too small, and
too large by an eighth at most. Two sets of buckets alternate every minute. Plain state.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

LEAST_S: Final = 1e-6
GROWTH: Final = 1.125
MOST_S: Final = 1000.0
TURN_S: Final = 60.0


def _limits() -> tuple[float, ...]:
    limits = [LEAST_S]
    while limits[-1] < MOST_S:
        limits.append(limits[-1] * GROWTH)
    return tuple(limits)


LIMITS_S: Final = _limits()


class Histogram:
    """Recent quantiles of a duration, with `count` and `total_s` since the start."""

    __slots__ = ("_before", "_now", "_turned_at", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self._now = _empty()
        self._before = _empty()
        self._turned_at = 0.0

    def record(self, seconds: float, now: float, weight: int = 1) -> None:
        """Record a duration that ended at `now` (monotonic seconds), `weight` times."""
        if now - self._turned_at >= TURN_S:
            self._turn(now)
        self.count += weight
        self.total_s += seconds * weight
        self._now[bisect_left(LIMITS_S, seconds)] += weight

    def record_none(self) -> None:
        """Record a duration of 0 that ends now. It needs no time: another call turns the sets."""
        self.count += 1
        self._now[0] += 1

    def quantiles(self, shares: Sequence[float], now: float) -> list[float]:
        """Return the quantile in seconds for each share (0 to 1); 0 without recent values."""
        if now - self._turned_at >= TURN_S:
            self._turn(now)
        both = [new + old for new, old in zip(self._now, self._before, strict=True)]
        total = sum(both)
        found: list[float] = []
        for share in shares:
            seen, index = 0, 0
            while index < len(both) - 1 and (seen := seen + both[index]) < share * total:
                index += 1
            found.append(LIMITS_S[min(index, len(LIMITS_S) - 1)] if total else 0.0)
        return found

    def _turn(self, now: float) -> None:
        is_old = now - self._turned_at >= 2 * TURN_S
        self._before = _empty() if is_old else self._now
        self._now = _empty()
        self._turned_at = now


def _empty() -> "array[int]":
    return array("L", bytes(array("L").itemsize * (len(LIMITS_S) + 1)))
