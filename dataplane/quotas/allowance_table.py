"""The allowances of one kind of quota in memory, with a share for each client.

Clients choose their client ids, and most rules count each client id separately, so a client can
create any number of allowances. The clients of a principal at an address (`ClientShare`) therefore
have a share of the table:

    allowances in the table     a share may have
    up to half of the most      any number
    above                       a quarter of the places that are left free

A client whose share is used up displaces an allowance of its own share. So one address gets half
of the table, the next one a tenth, and so on (as in
`metaquorum.dataplane.coordinators.client_budget`), and a client with invented names never makes the
worker forget what others have used. Only a full table, which takes very many addresses, displaces
an allowance of others.

Of the allowances that were added or checked first, the one with the least to forget is displaced:
one that no quota limits rather than one with a quota, then the one with the least use.

Plain state: `now` is monotonic seconds.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from metaquorum.dataplane.quotas.client_state import ClientShare
from metaquorum.dataplane.quotas.muting import ClientName
from metaquorum.dataplane.quotas.rate_window import RateWindow
from metaquorum.metadata.quota_lookup import Sharers

SHARE: Final = 4  # the free places are divided by this
LOOKED_AT: Final = 4  # oldest allowances checked for each new one


class ThrottleStats:
    """Number and length of the delays of one allowance, in total and within the window."""

    __slots__ = (
        "count",
        "longest_s",
        "recent_count",
        "recent_s",
        "reported_count",
        "reported_s",
        "total_s",
    )

    def __init__(self, samples: int, sample_s: float) -> None:
        self.count = 0
        self.total_s = self.longest_s = 0.0
        self.reported_count = 0  # in the last report
        self.reported_s = 0.0
        self.recent_count = RateWindow(samples, sample_s)
        self.recent_s = RateWindow(samples, sample_s)

    def add(self, seconds: float, now: float) -> None:
        self.count += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)
        self.recent_count.record(1, now)
        self.recent_s.record(seconds, now)

    def recent_mean_s(self, now: float) -> float:
        """Return the mean of the delays within the window, in seconds; 0 if there are none."""
        count = self.recent_count.total(now)
        return self.recent_s.total(now) / count if count else 0.0


class Allowance:
    """The use of one quota by all clients that share it. `name` is the name of one of them."""

    __slots__ = (
        "is_forgotten",
        "is_limited",
        "name",
        "quota",
        "share",
        "sharers",
        "throttles",
        "used",
        "window",
    )

    def __init__(
        self, name: ClientName, sharers: Sharers, share: ClientShare, window: RateWindow
    ) -> None:
        self.name = name
        self.sharers = sharers
        self.share = share  # the share of the client that used it first
        self.window = window
        self.is_limited = False  # whether a quota applies; otherwise the use is only recorded
        self.quota = 0.0  # units per second; the last one, if none applies
        self.used = 0.0  # units since the allowance was created
        self.throttles: ThrottleStats | None = None  # None: never throttled
        self.is_forgotten = False

    def limit(self, quota: float, now: float) -> None:
        """Apply a quota; earlier use counts."""
        self.is_limited = True
        if quota != self.quota:
            self.window.change(quota, now)
            self.quota = quota

    def record(self, amount: float, now: float) -> None:
        """Count use to which no quota applies."""
        self.is_limited = False
        self.used += amount
        self.window.record(amount, now)

    def is_unused(self, now: float) -> bool:
        """Return whether no earlier use counts, so that the allowance can be forgotten."""
        return self.window.is_unused(self.quota, now)


class AllowanceTable:
    """Allowances, at most `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        # Added or checked first: first. (A dict would be slow: `_oldest` takes away its first ones,
        # and each look for the first one of the others passes the places of all of those.)
        self._allowances: OrderedDict[Sharers, Allowance] = OrderedDict()
        # The same, by the share that created them.
        self._by_share: dict[ClientShare, OrderedDict[Sharers, Allowance]] = {}

    def __len__(self) -> int:
        return len(self._allowances)

    def __iter__(self) -> Iterator[Allowance]:
        """Yield the allowances of now, which may be forgotten meanwhile."""
        return iter(list(self._allowances.values()))

    def get(self, sharers: Sharers) -> Allowance | None:
        return self._allowances.get(sharers)

    def add(self, allowance: Allowance, now: float) -> None:
        """Add an allowance; it may displace another one."""
        self._forget_unused_of(self._allowances, now)
        own = self._by_share.get(allowance.share) or OrderedDict()
        if not self._has_room(len(own)):
            # A share without allowances is refused only by a full table.
            self._displace_one_of(own or self._allowances, now)
        self._allowances[allowance.sharers] = allowance
        self._by_share.setdefault(allowance.share, OrderedDict())[allowance.sharers] = allowance

    def forget(self, allowance: Allowance) -> None:
        """Remove an allowance of the table."""
        allowance.is_forgotten = True
        del self._allowances[allowance.sharers]
        own = self._by_share[allowance.share]
        del own[allowance.sharers]
        if not own:
            del self._by_share[allowance.share]

    def _has_room(self, own_count: int) -> bool:
        count = len(self._allowances) + 1
        if 2 * count <= self._most:
            return True
        if own_count == 0:
            return count <= self._most
        return (own_count + 1) * SHARE <= self._most - count

    def _forget_unused_of(self, allowances: OrderedDict[Sharers, Allowance], now: float) -> None:
        for one in _oldest(allowances):
            if one.is_unused(now):
                self.forget(one)

    def _displace_one_of(self, allowances: OrderedDict[Sharers, Allowance], now: float) -> None:
        self.forget(
            min(_oldest(allowances), key=lambda one: (one.is_limited, one.window.total(now)))
        )


def _oldest(allowances: OrderedDict[Sharers, Allowance]) -> list[Allowance]:
    """Return the oldest allowances, which become the newest."""
    oldest = list(islice(allowances.values(), LOOKED_AT))
    for one in oldest:
        allowances.move_to_end(one.sharers)
    return oldest
