"""Checkers of quotas: for clients that have one, and for the others.

They determine the quota of a client without the shipped code (`resolved`): the eight levels of
precedence, tried one by one against plain tuples. They compare rates with plain sums of the bytes
that clients sent or received.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from metaquorum.simulations.kernel.comparing import Comparing
from metaquorum.simulations.kernel.world import World

ANY: Final = "<any>"
# Values by (user, client-id), then by quota key; None: the entity has no user or no client id.
Rules = Mapping[tuple[str | None, str | None], Mapping[str, float]]
SLACK_S: Final = 0.5  # between an action of the node and its observation by a client


class Resolved(NamedTuple):
    quota: float
    sharers: tuple[str, str | None, str | None]  # with the key


def resolved(rules: Rules, key: str, user: str, client_id: str) -> Resolved | None:
    for of_user in (user, ANY, None):
        for of_client in (client_id, ANY, None):
            value = rules.get((of_user, of_client), {}).get(key)
            if value is not None:
                shared_user = None if of_user is None else user
                return Resolved(value, (key, shared_user, of_client and client_id))
    return None


@dataclass(slots=True)
class Account:
    quota: float
    window_s: float
    since: float
    level: float = 0.0
    largest: float = 0
    clients: int = 0


class RateHolds(Comparing):
    """In any time t, clients get at most Q (t + window) plus one request of each connection."""

    invariant = "Q1"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._accounts: dict[tuple[str, str | None, str | None], Account] = {}

    def begin_anew(self) -> None:
        """Reset the accounts, as a restarted node does."""
        self._accounts.clear()

    def used(self, of: Resolved, window_s: float, clients: int, amount: float) -> None:
        """Record that one of `clients` connections that share the quota got `amount`."""
        now = self.world.now
        account = self._accounts.get(of.sharers)
        if account is None or account.quota != of.quota:
            account = self._accounts[of.sharers] = Account(of.quota, window_s, now)
        account.level = max(0.0, account.level - of.quota * (now - account.since)) + amount
        account.since = now
        account.largest = max(account.largest, amount)
        account.clients = max(account.clients, clients)
        # Twice: a request may have been in progress when the quota was set.
        most = of.quota * (window_s + SLACK_S) + 2 * account.clients * account.largest
        self.compare(
            account.level <= most,
            "{} got {:g} more than {:g} per second allow, above the limit of {:g} for {} clients",
            of.sharers,
            account.level,
            of.quota,
            most,
            account.clients,
        )


class MutesEnd(Comparing):
    """A throttled client is unmuted when its throttle time is over, and not before."""

    invariant = "Q2"

    def answered(self, who: str, early_s: float, late_s: float) -> None:
        self.compare(early_s <= 0.05, "{} was unmuted {:.3f} s too early", who, early_s)
        self.compare(late_s <= SLACK_S, "{} was unmuted {:.3f} s too late", who, late_s)

    def throttled(self, who: str, throttle_s: float, all_bytes: float, quota: float) -> None:
        self.compare(
            throttle_s <= all_bytes / quota + 1,
            "{} is throttled for {:.1f} s, for {:.0f} bytes in total at {:g} per second",
            who,
            throttle_s,
            all_bytes,
            quota,
        )


class NobodyStarves(Comparing):
    """A client with a quota above zero always progresses, even if a batch exceeds the window."""

    invariant = "Q3"

    def progressed(self, who: str, waited_s: float, at_most_s: float) -> None:
        self.compare(
            waited_s <= at_most_s,
            "{} got nothing for {:.1f} s; at most {:.1f} s is explained",
            who,
            waited_s,
            at_most_s,
        )


class RuleApplies(Comparing):
    """The first of eight rules with a value applies; without one no client is throttled."""

    invariant = "Q4"

    def looked_up(self, who: str, key: str, found: float | None, wanted: float | None) -> None:
        self.compare(found == wanted, "{} has {} {}, not {}", who, key, found, wanted)

    def unlimited(self, who: str, throttle_ms: int) -> None:
        self.compare(
            not throttle_ms, "{} has no quota, but got a throttle time of {} ms", who, throttle_ms
        )


class MutationsWait(Comparing):
    """A refused change has a throttle time and is then accepted; validation costs nothing."""

    invariant = "Q7"

    def refused(self, throttle_s: float, at_most_s: float) -> None:
        self.compare(
            0 < throttle_s <= at_most_s,
            "a change is throttled for {:.2f} s, at most {:.2f} is allowed",
            throttle_s,
            at_most_s,
        )

    def tried_again(self, error_code: int) -> None:
        self.compare(
            not error_code, "after the throttle time the change was refused again: {}", error_code
        )

    def looked(self, error_code: int) -> None:
        self.compare(not error_code, "a validate-only change got error {}", error_code)

    def made(self, count: int, at_most: float) -> None:
        self.compare(
            count <= at_most,
            "{} partitions were created, at most {:.1f} are allowed",
            count,
            at_most,
        )


class ChangesHold(Comparing):
    """A client that was muted under a removed quota is unmuted at once."""

    invariant = "Q8"

    def freed(self, who: str, late_s: float) -> None:
        self.compare(
            late_s <= SLACK_S, "{} was unmuted {:.2f} s after its quota was removed", who, late_s
        )


class ConnectionsEnd(Comparing):
    """A connection that has ended no longer counts."""

    invariant = "Q9"

    def taken(self, count: int, most: int) -> None:
        self.compare(count == most, "only {} of {} connections were accepted", count, most)


QUOTA_CHECKERS: Final[tuple[type[Comparing], ...]] = (
    RateHolds,
    MutesEnd,
    NobodyStarves,
    RuleApplies,
    MutationsWait,
    ChangesHold,
    ConnectionsEnd,
)
