"""How much was used lately, and how long to wait for what was too much.

Use is counted in samples of S seconds, of which the newest N are kept. The observed time T reaches
from the beginning of the oldest sample to now, but is never taken to be less than N-1 samples: who
has just begun may use at once what is allowed in that time. So

    U = sum of the samples / T        D = T (U - Q) / Q

D is the time after which U is Q again while T grows with it; where T does not grow, because it was
taken to be more than it was, a client is told to wait twice.

When a new sample begins and the oldest goes, T shrinks from N S to (N-1) S at one stroke. A client
that had just been within its quota is then over it by one part in N-1, and waits for S: the
*snapback* that gives a throttled producer its comb of small batches until its first burst leaves
the window. Source: KIP-13; Kafka's Rate and SampledStat.

So every connection over its quota is let through once in D, though nothing was paid: the more of
them share an allowance, and the larger their requests, the further the average drifts above the
quota (ten connections, each request a tenth of a second's worth: by a tenth; in Kafka, for good).
Here a second measure holds the average, a bucket that leaks at the quota and holds N samples of it:
what is in it beyond that is waited for, too. One connection alone never notices. In any time t, no
more is let through than Q (t + N S) and one request of each connection.

Plain state: `now` is monotonic seconds.
"""

from math import inf
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
        # Some ten items each: lists, as an empty deque takes half a kilobyte.
        self._starts: list[float] = []
        self._sums: list[float] = []
        self._total = 0.0
        self._level = 0.0
        self._leaked_at = 0.0
        self.least_s = (samples - 1) * sample_s or sample_s  # T is never taken to be less
        # Under this quota D is 0 until more is used: there is less as time goes by.
        self.within = inf

    def use(self, amount: float, quota: float, now: float) -> float:
        """So much was used now; D. As `record` and `delay_s`, at less cost where D is 0."""
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
        """That is the quota from now on. What was too much longer ago is forgiven."""
        self._leak(quota, now)
        self._level = min(self._level, quota * self._samples_s)
        self.within = inf

    def record(self, amount: float, now: float) -> None:
        """So much was used now."""
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
        """What was used within the window."""
        self._forget(now)
        return self._total

    def rate(self, now: float) -> float:
        """What was used a second, over `window_s`."""
        window_s = self.window_s(now)
        return self._total / window_s

    def window_s(self, now: float) -> float:
        """T, in seconds."""
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
        """D: after so many seconds without use, the rate is at most `quota` again; 0 when it is."""
        if quota >= self.within:
            return 0.0
        return self.delay_after_s(0.0, quota, now)

    def delay_after_s(self, amount: float, quota: float, now: float) -> float:
        """What D would be if so much more were used now."""
        window_s = self.window_s(now)
        over = (self._total + amount) / window_s - quota
        delay_s = window_s * over / quota if over > 0 else 0.0
        self._leak(quota, now)
        return max(delay_s, (self._level + amount) / quota - self._samples_s)

    def _leak(self, quota: float, now: float) -> None:
        self._level = max(0.0, self._level - quota * (now - self._leaked_at))
        self._leaked_at = now

    def is_unused(self, quota: float, now: float) -> bool:
        """Nothing that was ever used counts any more: it may as well be forgotten."""
        self._forget(now)
        self._leak(quota, now)
        return not self._starts and not self._level

    def _forget(self, now: float) -> None:
        """Samples that began before the window are gone."""
        starts = self._starts
        while starts and now - starts[0] >= self._samples * self._sample_s:
            starts.pop(0)
            self._total -= self._sums.pop(0)
        if not starts:
            self._total = 0.0  # what floating point has left
