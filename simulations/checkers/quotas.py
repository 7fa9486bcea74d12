"""What clients with quotas may rely on, and what others may rely on because of them.

Whoever checks has its own idea of which rule applies (`resolved`): the eight of them, tried one by
one against plain tuples. The rates are held against plain sums of what clients have seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from simulations.kernel.comparing import Comparing
from simulations.kernel.world import World

ANY: Final = "<any>"
# (user, client-id) to key to value; None: that entity does not speak of it.
Rules = Mapping[tuple[str | None, str | None], Mapping[str, float]]
SLACK_S: Final = 0.5  # between a node's doing and a client's seeing it


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
    """In any time t, at most Q (t + window) and one request of each connection."""

    invariant = "Q1"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._accounts: dict[tuple[str, str | None, str | None], Account] = {}

    def begin_anew(self) -> None:
        """What was counted is forgotten: the node has."""
        self._accounts.clear()

    def used(self, of: Resolved, window_s: float, clients: int, amount: float) -> None:
        """So much was given to one of so many connections, of all that share."""
        now = self.world.now
        account = self._accounts.get(of.sharers)
        if account is None or account.quota != of.quota:
            account = self._accounts[of.sharers] = Account(of.quota, window_s, now)
        account.level = max(0.0, account.level - of.quota * (now - account.since)) + amount
        account.since = now
        account.largest = max(account.largest, amount)
        account.clients = max(account.clients, clients)
        # And one that was under way when the quota came.
        most = of.quota * (window_s + SLACK_S) + 2 * account.clients * account.largest
        self.compare(
            account.level <= most,
            "{} got {:g} more than {:g} a second gives, allowed are {:g} of {} clients",
            of.sharers,
            account.level,
            of.quota,
            most,
            account.clients,
        )


class MutesEnd(Comparing):
    """Whoever was told to wait is heard again when its time is over, and not before."""

    invariant = "Q2"

    def answered(self, who: str, early_s: float, late_s: float) -> None:
        self.compare(early_s <= 0.05, "{} was heard {:.3f} s too early", who, early_s)
        self.compare(late_s <= SLACK_S, "{} was heard {:.3f} s too late", who, late_s)

    def throttled(self, who: str, throttle_s: float, all_bytes: float, quota: float) -> None:
        self.compare(
            throttle_s <= all_bytes / quota + 1,
            "{} is to wait for {:.1f} s, for {:.0f} bytes in all at {:g} a second",
            who,
            throttle_s,
            all_bytes,
            quota,
        )


class NobodyStarves(Comparing):
    """With a quota above zero there is always more, also of batches larger than a window of it."""

    invariant = "Q3"

    def progressed(self, who: str, waited_s: float, at_most_s: float) -> None:
        self.compare(
            waited_s <= at_most_s,
            "{} has got nothing for {:.1f} s, where {:.1f} s would do",
            who,
            waited_s,
            at_most_s,
        )


class RuleApplies(Comparing):
    """The first of eight rules that has a value, and nobody is throttled without one."""

    invariant = "Q4"

    def looked_up(self, who: str, key: str, found: float | None, wanted: float | None) -> None:
        self.compare(found == wanted, "{} has {} {}, not {}", who, key, found, wanted)

    def unlimited(self, who: str, throttle_ms: int) -> None:
        self.compare(not throttle_ms, "{} has no quota and was told {} ms", who, throttle_ms)


class MutationsWait(Comparing):
    """A refused change says how long to wait, and then is taken; looking costs nothing."""

    invariant = "Q7"

    def refused(self, throttle_s: float, at_most_s: float) -> None:
        self.compare(
            0 < throttle_s <= at_most_s,
            "a change is to wait for {:.2f} s, of at most {:.2f}",
            throttle_s,
            at_most_s,
        )

    def tried_again(self, error_code: int) -> None:
        self.compare(not error_code, "after the wait it was refused again: {}", error_code)

    def looked(self, error_code: int) -> None:
        self.compare(not error_code, "a change to be validated only got error {}", error_code)

    def made(self, count: int, at_most: float) -> None:
        self.compare(count <= at_most, "{} partitions were made, of at most {:.1f}", count, at_most)


class ChangesHold(Comparing):
    """Who was muted under a quota that is gone is heard at once."""

    invariant = "Q8"

    def freed(self, who: str, late_s: float) -> None:
        self.compare(
            late_s <= SLACK_S, "{} was heard {:.2f} s after its quota had gone", who, late_s
        )


class ConnectionsEnd(Comparing):
    """A connection that has ended counts no more."""

    invariant = "Q9"

    def taken(self, count: int, most: int) -> None:
        self.compare(count == most, "only {} of {} connections were taken", count, most)


QUOTA_CHECKERS: Final[tuple[type[Comparing], ...]] = (
    RateHolds,
    MutesEnd,
    NobodyStarves,
    RuleApplies,
    MutationsWait,
    ChangesHold,
    ConnectionsEnd,
)
