"""What is to be seen of client quotas: who uses how much of what, who is muted, and which rules.

Reading changes nothing and delays nobody. There may be a hundred thousand allowances: `uses` is an
iterator, so that whoever goes through all of them can let others have their turn.
"""

from collections.abc import Iterator

from dataplane.quotas.client_quota_manager import Allowance, ClientQuotas, RateQuotas
from dataplane.quotas.muting import ClientName, Mute
from metaquorum.metadata.quota_lookup import Rule
from wire.primitives.frozen import frozen


@frozen
class QuotaUsage:
    """One allowance, of all clients with `rule.sharers`.

    Units are bytes, or seconds of a percent of the loop (`request_percentage`).
    """

    key: str  # producer_byte_rate ...
    rule: Rule  # with the quota's value
    used: float  # units within the window
    used_total: float  # since the allowance is counted
    window_s: float
    delay_s: float  # of whoever uses a little more now
    throttle_count: int  # since the allowance is counted
    throttle_total_s: float
    throttle_longest_s: float
    throttle_recent_s: float  # mean of the delays within the window

    @property
    def quota(self) -> float:
        """Units a second."""
        assert self.rule.value is not None
        return self.rule.value

    @property
    def rate(self) -> float:
        """Units a second."""
        return self.used / self.window_s

    @property
    def left(self) -> float:
        """Units that delay nobody; negative: there are so many too much."""
        return self.quota * self.window_s - self.used

    def delay_after_s(self, amount: float) -> float:
        """The delay of who uses so much more now."""
        return max(0.0, (self.used + amount) / self.quota - self.window_s)


@frozen
class MutedConnection:
    """One connection that is left alone at present."""

    address: tuple[str, int]
    principal: str
    client_id: str | None
    key: str  # the quota that it is muted for
    throttle_s: float  # as it was told
    left_s: float


class QuotaStatus:
    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas

    def uses(self, key: str | None = None) -> Iterator[QuotaUsage]:
        """Of every allowance of which something was used lately, of that quota or of all."""
        for kind in self._quotas.kinds:
            if key is None or kind.key == key:
                for allowance in kind.in_use():
                    yield self._use(kind, allowance, allowance.name)

    def use(self, key: str, principal: str, client_id: str | None) -> QuotaUsage | None:
        """Of the allowance that such a client has a share of; None: it is not limited."""
        name = ClientName(principal, client_id)
        for kind in self._quotas.kinds:
            if kind.key == key and (allowance := kind.allowance(name)) is not None:
                return self._use(kind, allowance, name)
        return None

    def delay_after_s(
        self, key: str, principal: str, client_id: str | None, amount: float
    ) -> float:
        """How long such a client would have to wait after using so much more now."""
        name = ClientName(principal, client_id)
        return sum(k.delay_after_s(name, amount) for k in self._quotas.kinds if k.key == key)

    def rules(self, key: str, principal: str, client_id: str | None) -> list[Rule]:
        """The eight, and perhaps the worker's own default; the first with a value applies."""
        return self._quotas.rules(key, ClientName(principal, client_id))

    def muted(self) -> list[MutedConnection]:
        """Who has to wait longest comes first."""
        return sorted(map(_muted, self._quotas.mutes), key=lambda one: -one.left_s)

    def _use(self, kind: RateQuotas, allowance: Allowance, name: ClientName) -> QuotaUsage:
        rule = kind.rule(name)
        assert rule is not None
        now = kind.now()
        throttles = allowance.throttles
        return QuotaUsage(
            key=kind.key,
            rule=rule,
            used=allowance.window.total(now),
            used_total=allowance.used,
            window_s=allowance.window.window_s(now),
            delay_s=kind.delay_s(name),
            throttle_count=throttles.count if throttles else 0,
            throttle_total_s=throttles.total_s if throttles else 0.0,
            throttle_longest_s=throttles.longest_s if throttles else 0.0,
            throttle_recent_s=throttles.recent_mean_s(now) if throttles else 0.0,
        )


def _muted(mute: Mute) -> MutedConnection:
    principal, client_id = mute.name
    return MutedConnection(mute.address, principal, client_id, mute.key, mute.seconds, mute.left_s)
