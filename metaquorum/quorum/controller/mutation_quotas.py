"""Controller mutation quotas: partitions per second that a client may create and delete (KIP-599).

Each quota has a token bucket, because mutations are rare and are checked before they are executed.
Tokens refill at the rate of the quota, up to the tokens of all samples. A request may take tokens
while the balance is not negative, even below zero; the next request waits until the debt is paid.
Only the active controller counts, so a client has one quota over all workers; a new active
controller starts with full buckets.

*Strict* requests (of versions that have the error THROTTLING_QUOTA_EXCEEDED) are rejected from the
first topic on that finds a debt. Other requests are executed completely, and the client is
throttled until the debt is paid.

No I/O and no clock: `now` is monotonic seconds.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Final

from metaquorum.metadata.quota_lookup import QuotaEntity, Sharers, applying
from metaquorum.quorum.controller.quota_changes import CONTROLLER_MUTATION_RATE
from metaquorum.wire.primitives.frozen import frozen

MAX_BUCKETS: Final = 10_000  # beyond it, the oldest bucket is dropped
MAX_DESCRIBED: Final = 1000
ROUNDING_S: Final = 1e-6
LOOKED_AT: Final = 4  # oldest buckets to check for removal whenever a bucket is added


@frozen
class MutationsTaken:
    """Result of a charge. The first `count` mutations of the request may be executed."""

    count: int
    throttle_s: float


@frozen
class MutationUse:
    """Use of the quota that clients with this user and client id share (None: any).

    `quota` is in tokens per second.
    """

    user: str | None
    client_id: str | None
    precedence: int
    quota: float
    tokens: float  # negative: a debt
    window_s: float  # time to fill an empty bucket


class TokenBucket:
    """Token bucket of one quota."""

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
        """Take `amount` tokens, even if the balance becomes negative."""
        self._fill(quota, now)
        self._tokens -= amount

    def delay_s(self, quota: float, now: float) -> float:
        """Return the seconds until the debt is paid; 0 if there is none."""
        self._fill(quota, now)
        delay_s = -self._tokens / quota
        return (
            delay_s if delay_s > ROUNDING_S else 0.0
        )  # a client that waited exactly that long must not find a rounding error

    def is_full(self, now: float) -> bool:
        """Return whether the bucket is full by its last known quota, and can be dropped."""
        return self.missing_s(now) <= 0

    def missing_s(self, now: float) -> float:
        """Return the seconds until the bucket is full by its last known quota."""
        self._fill(self._quota, now)
        return (self._quota * self._burst_s - self._tokens) / self._quota  # 0 exactly if it is full

    def _fill(self, quota: float, now: float) -> None:
        self._tokens = min(
            quota * self._burst_s, self._tokens + quota * max(0.0, now - self._filled_at)
        )
        self._quota = quota
        self._filled_at = now


class MutationQuotas:
    """Use of `controller_mutation_rate` by all clients."""

    def __init__(self, samples: int, sample_s: float) -> None:
        self._samples = samples
        self._sample_s = sample_s
        self._buckets: OrderedDict[Sharers, TokenBucket] = OrderedDict()  # with a fast first one

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
        """Charge a request; `counts` are the partitions that each of its topics changes."""
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
        """Yield the tokens of each bucket whose quota still applies."""
        for sharers, bucket in self._buckets.items():
            rule = applying(quotas, CONTROLLER_MUTATION_RATE, sharers.user or "", sharers.client_id)
            if rule is not None and rule.value is not None and rule.sharers == sharers:
                yield sharers, bucket.tokens(rule.value, now)

    def most_used(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float]], count: int, now: float
    ) -> "list[MutationUse]":
        """Return the `count` buckets, among those not full, with the smallest share of tokens."""
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
        """Return the client's use of its quota; None if it has no quota."""
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
        self._forget_some(now)
        bucket = self._buckets[sharers] = TokenBucket(quota, now, self._samples, self._sample_s)
        return bucket

    def _forget_some(self, now: float) -> None:
        """Check the oldest buckets; drop full ones, and of MAX_BUCKETS the fullest one.

        So a client with invented client ids does not rid others, or itself, of their debts.
        """
        used: list[tuple[float, Sharers]] = []
        for oldest, bucket in list(islice(self._buckets.items(), LOOKED_AT)):
            if bucket.is_full(now):
                del self._buckets[oldest]
            else:
                self._buckets.move_to_end(oldest)
                used.append((bucket.missing_s(now), oldest))
        if len(self._buckets) >= MAX_BUCKETS:
            del self._buckets[min(used, key=lambda one: one[0])[1]]
