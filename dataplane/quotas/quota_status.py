"""The status of client quotas: use of each allowance, muted connections, and rules.

Reading the status changes nothing and delays no client. There may be a hundred thousand allowances:
`uses` is an iterator, so that a caller that reads all of them can let other tasks run.
"""

from collections.abc import Iterator

from metaquorum.dataplane.quotas.allowance_table import Allowance
from metaquorum.dataplane.quotas.client_quota_manager import ClientQuotas, RateQuotas
from metaquorum.dataplane.quotas.muting import ClientName, Mute
from metaquorum.metadata.quota_lookup import Rule
from metaquorum.wire.primitives.frozen import frozen


@frozen
class QuotaUsage:
    """The use of one allowance by all clients of `rule.sharers`.

    Units are bytes, or percent times seconds of event loop time (`request_percentage`).
    """

    key: str  # producer_byte_rate ...
    rule: Rule  # with the quota's value
    used: float  # units within the window
    used_total: float  # units since the allowance was created
    window_s: float
    delay_s: float  # throttle time of the next use
    throttle_count: int  # since the allowance was created
    throttle_total_s: float
    throttle_longest_s: float
    throttle_recent_s: float  # mean of the delays within the window

    @property
    def quota(self) -> float:
        """The quota, in units per second."""
        assert self.rule.value is not None
        return self.rule.value

    @property
    def rate(self) -> float:
        """The rate within the window, in units per second."""
        return self.used / self.window_s

    @property
    def left(self) -> float:
        """Units that may be used without a delay; negative: units used above the quota."""
        return self.quota * self.window_s - self.used

    def delay_after_s(self, amount: float) -> float:
        """Return the throttle time in seconds after `amount` more units."""
        return max(0.0, (self.used + amount) / self.quota - self.window_s)


@frozen
class MutedConnection:
    """One muted connection."""

    address: tuple[str, int]
    principal: str
    client_id: str | None
    key: str  # the violated quota
    throttle_s: float  # throttle time in its response
    left_s: float


class QuotaStatus:
    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas

    def uses(self, key: str | None = None) -> Iterator[QuotaUsage]:
        """Yield the allowances with use within the window, of quota `key` or of all quotas."""
        for kind in self._quotas.kinds:
            if key is None or kind.key == key:
                for allowance in kind.in_use():
                    yield self._use(kind, allowance, allowance.name)

    def use(self, key: str, principal: str, client_id: str | None) -> QuotaUsage | None:
        """Return the use of the client's allowance; None if the client is not limited."""
        name = ClientName(principal, client_id)
        for kind in self._quotas.kinds:
            if kind.key == key and (allowance := kind.seen(name)) is not None:
                return self._use(kind, allowance, name)
        return None

    def delay_after_s(
        self, key: str, principal: str, client_id: str | None, amount: float
    ) -> float:
        """Return the client's throttle time in seconds after `amount` more units."""
        name = ClientName(principal, client_id)
        return sum(k.delay_after_s(name, amount) for k in self._quotas.kinds if k.key == key)

    def rules(self, key: str, principal: str, client_id: str | None) -> list[Rule]:
        """Return the eight rules and any worker default; the first one with a value applies."""
        return self._quotas.rules(key, ClientName(principal, client_id))

    def muted(self) -> list[MutedConnection]:
        """Return the muted connections, longest remaining mute first."""
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
