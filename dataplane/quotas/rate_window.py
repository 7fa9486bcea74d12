"""The rate of recent use, and the throttle time of use above a quota.

Use is counted in samples of S seconds, of which the newest N are kept. The observed time T reaches
from the start of the oldest sample to now, but is never less than N-1 samples: a client without
earlier use may use at once what the quota Q allows in that time.

    rate U = sum of the samples / T        throttle time D = T (U - Q) / Q

After D without use, U equals Q again, because T has grown by D. If T does not grow, because its
minimum applies, a client is throttled twice.

When a new sample starts and the oldest is dropped, T shrinks from N S to (N-1) S at once. A client
just within its quota then exceeds it by one part in N-1, and is throttled for S: the *snapback*
that makes a throttled producer send a series of small batches until its first burst leaves the
window. Source: KIP-13; Kafka's Rate and SampledStat.

Each connection above its quota therefore gets one request through per D. The more connections share
an allowance, and the larger their requests, the further the average drifts above the quota (ten
connections with requests of a tenth of a second's quota each: by a tenth; in Kafka, permanently).
A second measure limits the average here: a leaky bucket with rate Q and a capacity of N samples;
content above the capacity is waited for, too. It never delays a single connection. In any time t,
at most Q (t + N S) plus one request of each connection is let through.

Plain state: `now` is monotonic seconds.
"""

from itertools import pairwise
from math import inf, isclose
from typing import Final

DEFAULT_SAMPLES: Final = 11  # quota.window.num
DEFAULT_SAMPLE_S: Final = 1.0  # quota.window.size.seconds


class RateWindow:
    """The use of one allowance."""

    __slots__ = (
        "_leaked_at",
        "_level",
        "_sample_s",
        "_samples",
        "_samples_s",
        "_starts",
        "_sums",
        "_total",
        "least_s",
        "within",
    )

    def __init__(self, samples: int = DEFAULT_SAMPLES, sample_s: float = DEFAULT_SAMPLE_S) -> None:
        self._samples = samples
        self._sample_s = sample_s
        self._samples_s = samples * sample_s
        # About ten items each: lists, because an empty deque takes half a kilobyte.
        self._starts: list[float] = []
        self._sums: list[float] = []
        self._total = 0.0
        self._level = 0.0
        self._leaked_at = 0.0
        self.least_s = (samples - 1) * sample_s or sample_s  # minimum of T
        # With at least this quota, D stays 0 until the next use: the rate only falls over time.
        self.within = inf

    def use(self, amount: float, quota: float, now: float) -> float:
        """Record `amount` units and return D in seconds.

        Equals `record` followed by `delay_s`, but is cheaper if D is 0.
        """
        starts = self._starts
        if starts and now - starts[-1] < self._sample_s:
            if now - starts[0] >= self._samples * self._sample_s:
                self._forget(now)
            self._sums[-1] += amount
            self._total += amount
        else:
            self.record(amount, now)
        level = self._level - quota * (now - self._leaked_at)
        self._level = level = (level if level > 0.0 else 0.0) + amount
        self._leaked_at = now
        if self._total <= quota * self.least_s and level <= quota * self._samples_s:
            self.within = quota
            return 0.0
        self.within = inf
        return self.delay_s(quota, now)

    def change(self, quota: float, now: float) -> None:
        """Change the quota; the bucket's content above its new capacity is dropped."""
        self._leak(quota, now)
        self._level = min(self._level, quota * self._samples_s)
        self.within = inf

    def record(self, amount: float, now: float) -> None:
        """Add `amount` units to the current sample."""
        self.within = inf
        self._forget(now)
        if not self._starts or now - self._starts[-1] >= self._sample_s:
            self._starts.append(now)
            self._sums.append(0.0)
            if len(self._starts) > self._samples:
                self._starts.pop(0)
                self._total -= self._sums.pop(0)
        self._sums[-1] += amount
        self._total += amount

    def total(self, now: float) -> float:
        """Return the units used within the window."""
        self._forget(now)
        return self._total

    def rate(self, now: float) -> float:
        """Return the units used per second over `window_s`."""
        window_s = self.window_s(now)
        return self._total / window_s

    def elapsed_s(self, now: float) -> float:
        """Return the seconds since the start of the oldest sample; 0 without one."""
        self._forget(now)
        return now - self._starts[0] if self._starts else 0.0

    def window_s(self, now: float) -> float:
        """Return T, in seconds."""
        self._forget(now)
        least = self.least_s
        if not self._starts:
            return least
        elapsed = now - self._starts[0]
        whole = int(elapsed / self._sample_s)
        if whole < self._samples - 1:
            elapsed += (self._samples - 1 - whole) * self._sample_s
        return max(elapsed, least)

    def delay_s(self, quota: float, now: float) -> float:
        """Return D: the seconds without use until the rate is at most `quota`; 0 if it is now."""
        if quota >= self.within:
            return 0.0
        return self.delay_after_s(0.0, quota, now)

    def delay_after_s(self, amount: float, quota: float, now: float) -> float:
        """Return D in seconds as if `amount` more units were used now."""
        window_s = self.window_s(now)
        over = (self._total + amount) / window_s - quota
        delay_s = window_s * over / quota if over > 0 else 0.0
        self._leak(quota, now)
        return max(delay_s, (self._level + amount) / quota - self._samples_s)

    def _leak(self, quota: float, now: float) -> None:
        self._level = max(0.0, self._level - quota * (now - self._leaked_at))
        self._leaked_at = now

    def is_unused(self, quota: float | None, now: float) -> bool:
        """Return whether no earlier use counts, so that the window can be forgotten.

        Without a quota the samples decide: the bucket does not leak, but has had their time for it.
        """
        self._forget(now)
        if quota is None:
            return not self._starts
        self._leak(quota, now)
        return not self._starts and not self._level

    def _forget(self, now: float) -> None:
        """Drop samples that started before the window."""
        starts = self._starts
        while starts and now - starts[0] >= self._samples * self._sample_s:
            starts.pop(0)
            self._total -= self._sums.pop(0)
        if not starts:
            self._total = 0.0  # drop the rounding error of the sum

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        starts, sums = self._starts, self._sums
        assert len(starts) == len(sums) <= self._samples
        gaps = [later - earlier for earlier, later in pairwise(starts)]
        assert all(gap >= self._sample_s for gap in gaps), starts
        assert all(amount >= 0 for amount in sums), sums
        assert isclose(self._total, sum(sums), rel_tol=1e-6, abs_tol=1e-3), (self._total, sums)
        assert self._level >= 0
