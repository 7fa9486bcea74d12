"""How many partitions a second may be created and deleted by one client (KIP-599).

What comes seldom and is decided before it is done has a token bucket: tokens come at the rate of
the quota up to what all samples of it bring; a request takes them as long as there is no debt, even
beyond zero, and the next waits until they are back. Only the active controller counts, so that a
client has one quota, whichever workers it asks; another active controller begins with full buckets.

*Strict* requests (of versions that know the error) are refused from the first wish on that finds a
debt. Others are executed whole, and whoever sent them is left alone until the debt is paid.

Plain state: `now` is monotonic seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Final

from metaquorum.controller.quota_changes import CONTROLLER_MUTATION_RATE
from metaquorum.metadata.quota_lookup import QuotaEntity, Sharers, applying
from wire.primitives.frozen import frozen

MAX_BUCKETS: Final = 10_000  # beyond, who came first is forgotten
MAX_DESCRIBED: Final = 1000
ROUNDING_S: Final = 1e-6
LOOKED_AT: Final = 4  # of those, whenever another one comes


@frozen
class MutationsTaken:
    """`count`: so many of the wishes may be executed, from the first on."""

    count: int
    throttle_s: float


@frozen
class MutationUse:
    """Of all clients with that user and client id (None: any); `quota` tokens come a second."""

    user: str | None
    client_id: str | None
    precedence: int
    quota: float
    tokens: float  # below 0: a debt
    window_s: float  # in which an empty bucket is full


class TokenBucket:
    """The allowance of one who changes the metadata."""

    __slots__ = ("_burst_s", "_filled_at", "_quota", "_tokens")

    def __init__(self, quota: float, now: float, samples: int, sample_s: float) -> None:
        self._burst_s = samples * sample_s
        self._tokens = quota * self._burst_s
        self._quota = quota
        self._filled_at = now

    def tokens(self, quota: float, now: float) -> float:
        self._fill(quota, now)
        return self._tokens

    def take(self, amount: float, quota: float, now: float) -> None:
        """`amount` is used, whether or not it was there."""
        self._fill(quota, now)
        self._tokens -= amount

    def delay_s(self, quota: float, now: float) -> float:
        """After so many seconds there is no debt; 0 when there is none."""
        self._fill(quota, now)
        delay_s = -self._tokens / quota
        return (
            delay_s if delay_s > ROUNDING_S else 0.0
        )  # who has waited just so long is let through

    def is_full(self, now: float) -> bool:
        """By the quota as it was when it was looked at last: whoever has it may be forgotten."""
        self._fill(self._quota, now)
        return self._tokens >= self._quota * self._burst_s

    def _fill(self, quota: float, now: float) -> None:
        self._tokens = min(
            quota * self._burst_s, self._tokens + quota * max(0.0, now - self._filled_at)
        )
        self._quota = quota
        self._filled_at = now


class MutationQuotas:
    """All clients' use of `controller_mutation_rate`."""

    def __init__(self, samples: int, sample_s: float) -> None:
        self._samples = samples
        self._sample_s = sample_s
        self._buckets: dict[Sharers, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(
        self,
        quotas: Mapping[QuotaEntity, Mapping[str, float]],
        user: str,
        client_id: str | None,
        counts: Sequence[int],
        now: float,
        *,
        is_strict: bool,
    ) -> MutationsTaken:
        """`counts`: the partitions that each wish creates or deletes."""
        rule = applying(quotas, CONTROLLER_MUTATION_RATE, user, client_id)
        if rule is None:
            return MutationsTaken(len(counts), 0.0)
        assert rule.value is not None
        quota, bucket = rule.value, self._bucket(rule.sharers, rule.value, now)
        taken = 0
        for count in counts:
            if is_strict and count and (delay_s := bucket.delay_s(quota, now)) > 0:
                return MutationsTaken(taken, delay_s)
            bucket.take(count, quota, now)
            taken += 1
        return MutationsTaken(taken, 0.0 if is_strict else bucket.delay_s(quota, now))

    def tokens(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float]], now: float
    ) -> Iterator[tuple[Sharers, float]]:
        """What each who was heard of lately, and still has a quota, may do at once."""
        for sharers, bucket in self._buckets.items():
            rule = applying(quotas, CONTROLLER_MUTATION_RATE, sharers.user or "", sharers.client_id)
            if rule is not None and rule.value is not None and rule.sharers == sharers:
                yield sharers, bucket.tokens(rule.value, now)

    def most_used(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float]], count: int, now: float
    ) -> "list[MutationUse]":
        """Of those who have used some of their quota lately: who has the least of it left."""
        window_s = self._samples * self._sample_s
        used: list[MutationUse] = []
        for sharers, bucket in self._buckets.items():
            rule = applying(quotas, CONTROLLER_MUTATION_RATE, sharers.user or "", sharers.client_id)
            if rule is not None and rule.value is not None and rule.sharers == sharers:
                quota, tokens = rule.value, bucket.tokens(rule.value, now)
                if tokens < quota * window_s:
                    used.append(MutationUse(*sharers, rule.precedence, quota, tokens, window_s))
        return nsmallest(min(count, MAX_DESCRIBED), used, key=lambda use: use.tokens / use.quota)

    def use(
        self,
        quotas: Mapping[QuotaEntity, Mapping[str, float]],
        user: str,
        client_id: str | None,
        now: float,
    ) -> "MutationUse | None":
        """What the client has of its quota; None: it is not limited."""
        rule = applying(quotas, CONTROLLER_MUTATION_RATE, user, client_id)
        if rule is None:
            return None
        assert rule.value is not None
        window_s = self._samples * self._sample_s
        bucket = self._buckets.get(rule.sharers)
        tokens = rule.value * window_s if bucket is None else bucket.tokens(rule.value, now)
        return MutationUse(
            rule.sharers.user, rule.sharers.client_id, rule.precedence, rule.value, tokens, window_s
        )

    def _bucket(self, sharers: Sharers, quota: float, now: float) -> TokenBucket:
        bucket = self._buckets.get(sharers)
        if bucket is not None:
            return bucket
        for _ in range(min(LOOKED_AT, len(self._buckets))):
            oldest = next(iter(self._buckets))
            other = self._buckets.pop(oldest)
            if not other.is_full(now) and len(self._buckets) + 1 < MAX_BUCKETS:
                self._buckets[oldest] = other
        bucket = self._buckets[sharers] = TokenBucket(quota, now, self._samples, self._sample_s)
        return bucket
