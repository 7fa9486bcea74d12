"""How often addresses may connect (`connection_creation_rate`), and all together (KIP-612).

One address that connects too often is refused, after a delay that keeps it from trying at once
again; its refused connections do not count. When all of a worker, or of one of its listeners, come
too often, nobody is refused: the listener takes the next connection later. Delays are capped at one
sample. The listener by which workers reach each other, where clients have another, is not held up
by what all others do, but only by a limit of its own.

Plain state.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from dataplane.quotas.rate_window import RateWindow
from metaquorum.config.resolution import Configs, ListenerConfigs
from metaquorum.controller.quota_changes import CONNECTION_CREATION_RATE
from metaquorum.metadata.quota_lookup import QuotaEntity, SpecialName
from metaquorum.runtime import Clock

MAX_ADDRESSES: Final = 100_000  # remembered
LOOKED_AT: Final = 4  # of those that came first, whenever another one comes
UNLIMITED: Final = 2**31 - 1  # what max.connection.creation.rate says for it
_RATE_CONFIG: Final = "max.connection.creation.rate"
_ANYBODY: Final = QuotaEntity(ip=SpecialName.DEFAULT)


class ConnectionUse(NamedTuple):
    quota: float  # connections a second
    used: float  # within the window
    window_s: float


class _SharedRates:
    """All who come to a worker, or by one listener of it."""

    __slots__ = ("most", "window")

    def __init__(self, window: RateWindow) -> None:
        self.window = window
        self.most = UNLIMITED

    def limit(self, most: int, now: float) -> None:
        if most != self.most:
            self.window.change(most, now)
            self.most = most

    def delay_s(self, now: float) -> float:
        """One more has come; the next one is to be taken after so many seconds."""
        return 0.0 if self.most >= UNLIMITED else self.window.use(1, self.most, now)


class ConnectionRates:
    """Of one worker. `throttled` counts what was refused or taken later.

    `own_listener`: the one between workers, where clients have another.
    """

    def __init__(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float]], clock: Clock, configs: Configs
    ) -> None:
        self._clock = clock
        self._samples = configs.integer("quota.window.num")
        self._sample_s = float(configs.integer("quota.window.size.seconds"))
        self._quotas = quotas
        self._per_ip: dict[str, RateWindow] = {}
        self._all = _SharedRates(self._window())
        self._by_listener: dict[str, _SharedRates] = {}
        self._configs = configs
        self.own_listener: str | None = None
        self.throttled = 0
        self.limit(configs)

    def __len__(self) -> int:
        """Addresses that are counted at present."""
        return len(self._per_ip)

    def change(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """From now on these are in force."""
        self._quotas = quotas

    def _window(self) -> RateWindow:
        return RateWindow(self._samples, self._sample_s)

    def limit(self, configs: Configs) -> None:
        """max.connection.creation.rate may have another value, of all or of a listener."""
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
        """Connections a second; None: any number."""
        for entity in (QuotaEntity(ip=ip), _ANYBODY):
            value = self._quotas.get(entity, {}).get(CONNECTION_CREATION_RATE)
            if value is not None:
                return value
        return None

    def use(self, ip: str) -> "ConnectionUse | None":
        """What the address has of its quota; None: it is not limited."""
        quota, window, now = self.quota(ip), self._per_ip.get(ip), self._clock.monotonic()
        if quota is None:
            return None
        window = window or self._window()
        return ConnectionUse(quota, window.total(now), window.window_s(now))

    def refusal_s(self, ip: str) -> float:
        """It has connected. 0: it may; else it is refused after so many seconds."""
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
        """One more is taken by that listener; its next one after so many seconds."""
        now = self._clock.monotonic()
        delay_s = self._of(listener).delay_s(now)
        if listener != self.own_listener:
            delay_s = max(delay_s, self._all.delay_s(now))
        self.throttled += delay_s > 0
        return min(delay_s, self._sample_s)

    def _forget_some(self, now: float) -> None:
        """Those that came first go if they are not limited, unused, or too many."""
        for _ in range(min(LOOKED_AT, len(self._per_ip))):
            ip = next(iter(self._per_ip))
            window = self._per_ip.pop(ip)
            quota = self.quota(ip)
            is_unused = quota is None or window.is_unused(quota, now)
            if not is_unused and len(self._per_ip) + 1 < MAX_ADDRESSES:
                self._per_ip[ip] = window
