"""Connection rate limits: of IP addresses (`connection_creation_rate`) and in total (KIP-612).

A connection of an address above its quota is refused: closed after a delay, so that the client does
not retry at once; refused connections do not count. If the rate of the worker or of a listener
(`max.connection.creation.rate`) is exceeded, no connection is refused: the listener accepts the
next one later. Delays are capped at one sample. An inter-worker listener that clients do not use is
delayed only by its own limit, not by that of the worker.

Plain state.
"""

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from metaquorum.config.resolution import Configs, ListenerConfigs
from metaquorum.dataplane.quotas.rate_window import RateWindow
from metaquorum.metadata.quota_lookup import QuotaEntity, SpecialName
from metaquorum.quorum.controller.quota_changes import CONNECTION_CREATION_RATE
from metaquorum.runtime import Clock

MAX_ADDRESSES: Final = 100_000  # addresses in memory
LOOKED_AT: Final = 4  # oldest addresses checked for each new one
UNLIMITED: Final = 2**31 - 1  # value of max.connection.creation.rate for "no limit"
_RATE_CONFIG: Final = "max.connection.creation.rate"
_ANYBODY: Final = QuotaEntity(ip=SpecialName.DEFAULT)


class ConnectionUse(NamedTuple):
    """The use of one address's connection_creation_rate quota."""

    quota: float  # connections per second
    used: float  # connections within the window
    window_s: float


class _SharedRates:
    """The connection rate of a whole worker, or of one of its listeners."""

    __slots__ = ("most", "window")

    def __init__(self, window: RateWindow) -> None:
        self.window = window
        self.most = UNLIMITED

    def limit(self, most: int, now: float) -> None:
        if most != self.most:
            self.window.change(most, now)
            self.most = most

    def delay_s(self, now: float) -> float:
        """Count a connection. Return the seconds until the next one may be accepted."""
        return self.window.use(1, self.most, now)  # without a limit, too: one may be set


class ConnectionRates:
    """Connection rates of one worker. `throttled` counts connections refused or accepted late.

    `own_listener` is the inter-worker listener, if clients do not use it.
    """

    def __init__(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float]], clock: Clock, configs: Configs
    ) -> None:
        self._clock = clock
        self._samples = configs.integer("quota.window.num")
        self._sample_s = float(configs.integer("quota.window.size.seconds"))
        self._quotas = quotas
        self._per_ip: OrderedDict[str, RateWindow] = OrderedDict()  # with a fast first one
        self._all = _SharedRates(self._window())
        self._by_listener: dict[str, _SharedRates] = {}
        self._configs = configs
        self.own_listener: str | None = None
        self.ignores_quotas = False  # whether connection_creation_rate is ignored
        self.throttled = 0
        self.limit(configs)

    def __len__(self) -> int:
        """Return the number of addresses in memory."""
        return len(self._per_ip)

    def change(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Replace the quotas; the counted connections stay."""
        self._quotas = quotas

    def _window(self) -> RateWindow:
        return RateWindow(self._samples, self._sample_s)

    def limit(self, configs: Configs) -> None:
        """Apply max.connection.creation.rate of the worker and of its listeners from `configs`."""
        self._configs = configs
        self._all.limit(configs.integer(_RATE_CONFIG), self._clock.monotonic())
        for listener, together in self._by_listener.items():
            self._limit_one(listener, together)

    def _limit_one(self, listener: str, together: _SharedRates) -> None:
        most = ListenerConfigs(self._configs, listener).find(_RATE_CONFIG, inherits=False)
        assert isinstance(most, int)
        together.limit(most, self._clock.monotonic())

    def _of(self, listener: str) -> _SharedRates:
        together = self._by_listener.get(listener)
        if together is None:
            together = self._by_listener[listener] = _SharedRates(self._window())
            self._limit_one(listener, together)
        return together

    def quota(self, ip: str) -> float | None:
        """Return the quota of the address in connections per second; None: not limited."""
        if self.ignores_quotas:
            return None
        for entity in (QuotaEntity(ip=ip), _ANYBODY):
            value = self._quotas.get(entity, {}).get(CONNECTION_CREATION_RATE)
            if value is not None:
                return value
        return None

    def use(self, ip: str) -> "ConnectionUse | None":
        """Return the use of the address's quota; None if the address is not limited."""
        quota, window, now = self.quota(ip), self._per_ip.get(ip), self._clock.monotonic()
        if quota is None:
            return None
        window = window or self._window()
        return ConnectionUse(quota, window.total(now), window.window_s(now))

    def refusal_s(self, ip: str) -> float:
        """Count a connection of the address.

        Return 0 if the connection is accepted, otherwise the seconds after which to close it; a
        refused connection is not counted.
        """
        quota = self.quota(ip)
        if quota is None:
            return 0.0
        now = self._clock.monotonic()
        window = self._per_ip.get(ip)
        if window is None:
            self._forget_some(now)
            window = self._per_ip[ip] = self._window()
        delay_s = window.use(1, quota, now)
        if delay_s <= 0:
            return 0.0
        window.use(-1, quota, now)
        self.throttled += 1
        return min(delay_s, self._sample_s)

    def pause_s(self, listener: str) -> float:
        """Count an accepted connection. Return the seconds until the listener's next accept."""
        now = self._clock.monotonic()
        delay_s = self._of(listener).delay_s(now)
        if listener != self.own_listener:
            delay_s = max(delay_s, self._all.delay_s(now))
        self.throttled += delay_s > 0
        return min(delay_s, self._sample_s)

    def _forget_some(self, now: float) -> None:
        """Check the oldest addresses; forget unused ones, of MAX_ADDRESSES the least used.

        An address without a quota is not forgotten early: its quota may be set again.
        """
        in_use: list[tuple[float, str]] = []
        for ip, window in list(islice(self._per_ip.items(), LOOKED_AT)):
            if window.is_unused(self.quota(ip), now):
                del self._per_ip[ip]
            else:
                self._per_ip.move_to_end(ip)
                in_use.append((window.total(now), ip))
        if len(self._per_ip) >= MAX_ADDRESSES:
            del self._per_ip[min(in_use)[1]]
