"""How often addresses may connect (`connection_creation_rate`), and anybody at all (KIP-612).

One address that connects too often is refused, after a delay that keeps it from trying at once
again; its refused connections do not count. When all together come too often, nobody is refused:
the listener takes the next connection later. Both delays are capped at one sample.

Plain state.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from dataplane.quota_window import RateWindow
from metaquorum.config_layers import Configs
from metaquorum.quota_changes import CONNECTION_CREATION_RATE
from metaquorum.quota_rules import Part, QuotaEntity
from metaquorum.runtime import Clock

MAX_ADDRESSES: Final = 100_000  # remembered
LOOKED_AT: Final = 4  # of those that came first, whenever another one comes
UNLIMITED: Final = 2**31 - 1  # what max.connection.creation.rate says for it
_ANYBODY: Final = QuotaEntity(ip=Part.DEFAULT)


class ConnectionUse(NamedTuple):
    quota: float  # connections a second
    used: float  # within the window
    window_s: float


class ConnectionRates:
    """Of one worker. `throttled` counts what was refused or taken later."""

    def __init__(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float]], clock: Clock, configs: Configs
    ) -> None:
        self._clock = clock
        self._samples = configs.integer("quota.window.num")
        self._sample_s = float(configs.integer("quota.window.size.seconds"))
        self._quotas = quotas
        self._per_ip: dict[str, RateWindow] = {}
        self._all = RateWindow(self._samples, self._sample_s)
        self._most = UNLIMITED
        self.throttled = 0
        self.limit(configs)

    def __len__(self) -> int:
        """Addresses that are counted at present."""
        return len(self._per_ip)

    def change(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """From now on these are in force."""
        self._quotas = quotas

    def limit(self, configs: Configs) -> None:
        """max.connection.creation.rate has another value."""
        most = configs.integer("max.connection.creation.rate")
        if most != self._most:
            self._all.change(most, self._clock.monotonic())
            self._most = most

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
        window = window or RateWindow(self._samples, self._sample_s)
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
            window = self._per_ip[ip] = RateWindow(self._samples, self._sample_s)
        delay_s = window.use(1, quota, now)
        if delay_s <= 0:
            return 0.0
        window.use(-1, quota, now)
        self.throttled += 1
        return min(delay_s, self._sample_s)

    def pause_s(self) -> float:
        """One more is taken; the next one after so many seconds."""
        if self._most >= UNLIMITED:
            return 0.0
        delay_s = min(self._all.use(1, self._most, self._clock.monotonic()), self._sample_s)
        self.throttled += delay_s > 0
        return delay_s

    def _forget_some(self, now: float) -> None:
        """Those that came first go if they are not limited, unused, or too many."""
        for _ in range(min(LOOKED_AT, len(self._per_ip))):
            ip = next(iter(self._per_ip))
            window = self._per_ip.pop(ip)
            quota = self.quota(ip)
            is_unused = quota is None or window.is_unused(quota, now)
            if not is_unused and len(self._per_ip) + 1 < MAX_ADDRESSES:
                self._per_ip[ip] = window
