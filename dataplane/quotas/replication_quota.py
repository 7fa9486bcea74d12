"""The quota of throttled replication, of one worker as leader or as follower (KIP-73).

Bytes are counted after they were sent or received, so the rate is optimistic: while the use is
within the quota a response of any size is admitted, and later ones wait until its bytes are worked
off. A leaky bucket of rate Q (the quota) decides:

    bucket > B Q    exceeded: throttled partitions are left out       B  BURST_S
    bucket <= B Q   the next throttled partition is admitted, up to `room_bytes`

From a start on, at most Q (t + B) bytes and the batch that crosses the limit are admitted in the
time t: the first second is not free. Responses come at intervals, and late on a busy machine: while
there was use within ACTIVE_S, the use that was missed is made up, at most C Q (C: CREDIT_S). So the
rate is exactly Q in the long run. Apache Kafka compares a rate of samples with the quota
(SimpleRate, whose window is at least one sample), which forgets the excess of a large response
after N samples; the bucket does not.

Bytes of in-sync replicas count, but are never held back. If they alone exceed the quota, the bucket
grows no larger than N S Q: when they subside, the others continue within N samples of size S.

Plain state: `now` is monotonic seconds.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from metaquorum.config.definition import LONG_MAX
from metaquorum.config.resolution import Configs
from metaquorum.dataplane.quotas.rate_window import DEFAULT_SAMPLE_S, DEFAULT_SAMPLES, RateWindow

UNLIMITED: Final = LONG_MAX
BURST_S: Final = 0.02  # seconds of the rate that may be used at once
CREDIT_S: Final = 0.5  # seconds of the rate that are made up after a late response
ACTIVE_S: Final = 1.0  # without use for this time, nothing is made up


class ReplicationQuota:
    """Bytes of throttled replicas, and the bytes per second that they may use."""

    __slots__ = (
        "_burst_s",
        "_leaked_at",
        "_level",
        "_sample_s",
        "_used_at",
        "_window",
        "_window_s",
        "bytes",
        "last_reader",
        "rate_limit",
    )

    def __init__(
        self,
        samples: int = DEFAULT_SAMPLES,
        sample_s: float = DEFAULT_SAMPLE_S,
        burst_s: float = BURST_S,
    ) -> None:
        """Create the quota. `burst_s`: seconds of the rate that may be used at once."""
        self.rate_limit = UNLIMITED  # bytes per second
        self.bytes = 0  # since the start of the process
        self.last_reader = -1  # follower out of sync to which a leader sent the last bytes
        self._sample_s = sample_s
        self._burst_s = min(burst_s, sample_s)
        self._used_at = -ACTIVE_S
        self._window_s = samples * sample_s
        self._window = RateWindow(samples, sample_s)
        self._level = 0.0
        self._leaked_at = 0.0

    def limit(self, rate_limit: int, now: float) -> None:
        """Change the quota; it is in force within one window, after any earlier use."""
        self._leak(now)
        self.rate_limit = rate_limit
        self._level = max(0.0, min(self._level, rate_limit * self._window_s))

    def record(self, size_bytes: int, now: float, *, in_sync_bytes: int = 0) -> None:
        """Count the bytes of throttled replicas, `in_sync_bytes` of them of in-sync ones."""
        self._leak(now)
        self._used_at = now
        self.bytes += size_bytes
        self._window.record(size_bytes, now)
        self._level += size_bytes - in_sync_bytes
        if in_sync_bytes:
            room = self.rate_limit * self._window_s - self._level
            self._level += max(0.0, min(in_sync_bytes, room))

    def is_exceeded(self, now: float, pending_bytes: int = 0) -> bool:
        """Return whether throttled replicas that are not in sync must wait.

        `pending_bytes` are admitted already and not recorded yet.
        """
        if self.rate_limit == UNLIMITED:
            return False
        if not self.rate_limit:  # as in Kafka, one response passes per window
            return self._window.total(now) + pending_bytes > 0
        self._leak(now)
        return self._level + pending_bytes > self.rate_limit * self._burst_s

    def room_bytes(self, now: float, pending_bytes: int = 0) -> int:
        """Return the bytes that an admitted partition may have now; a batch is never divided."""
        if self.rate_limit == UNLIMITED:
            return UNLIMITED
        self._leak(now)
        room = self.rate_limit * self._burst_s - self._level - pending_bytes
        return max(1, int(room))

    def delay_s(self, now: float, pending_bytes: int = 0) -> float:
        """Return the seconds until the quota is not exceeded, if nothing else is recorded."""
        if not self.is_exceeded(now, pending_bytes):
            return 0.0
        if not self.rate_limit:
            return self._window_s
        return (self._level + pending_bytes) / self.rate_limit - self._burst_s

    def rate(self, now: float) -> float:
        """Return the bytes per second over the window, or over one sample if that is longer."""
        return self._window.total(now) / max(self._window.elapsed_s(now), self._sample_s)

    def _leak(self, now: float) -> None:
        least = -CREDIT_S * self.rate_limit if now - self._used_at < ACTIVE_S else 0.0
        self._level = max(least, self._level - self.rate_limit * (now - self._leaked_at))
        self._leaked_at = now


class PlanLimits(NamedTuple):
    """Rates in bytes per second at which a plan of moves limits a worker; None: not on that side.

    `owner`: who started the plan.
    """

    plan_id: int
    owner: str
    leader_rate: int | None
    follower_rate: int | None


class ReplicationQuotas:
    """The replication quotas of one worker."""

    def __init__(self, configs: Configs, monotonic: Callable[[], float]) -> None:
        samples = configs.integer("replication.quota.window.num")
        sample_s = float(configs.integer("replication.quota.window.size.seconds"))
        moves_samples = configs.integer("alter.log.dirs.replication.quota.window.num")
        moves_sample_s = configs.integer("alter.log.dirs.replication.quota.window.size.seconds")
        self.monotonic: Final = monotonic
        self.leader: Final = ReplicationQuota(samples, sample_s)
        self.follower: Final = ReplicationQuota(samples, sample_s)
        # Copies between the log directories of the worker.
        # Copies are made in large pieces: they may use one sample at once.
        self.alter_log_dirs: Final = ReplicationQuota(
            moves_samples, float(moves_sample_s), float(moves_sample_s)
        )
        self.plan_limits: tuple[PlanLimits, ...] = ()  # to show them; `limit_plans` applies them
        self._plan_rates = UNLIMITED, UNLIMITED  # as leader, as follower
        self._operator_rates = UNLIMITED, UNLIMITED
        self.limit(configs)

    def limit(self, configs: Configs) -> None:
        """Apply the rates in `configs`, those of an operator."""
        rate = configs.integer("replica.alter.log.dirs.io.max.bytes.per.second")
        if rate != self.alter_log_dirs.rate_limit:
            self.alter_log_dirs.limit(rate, self.monotonic())
        self._operator_rates = (
            configs.integer("leader.replication.throttled.rate"),
            configs.integer("follower.replication.throttled.rate"),
        )
        self._limit()

    def limit_plans(self, leader_rate: int, follower_rate: int) -> None:
        """Apply the lowest rates of the plans of moves on each side, or UNLIMITED."""
        self._plan_rates = leader_rate, follower_rate
        self._limit()

    def _limit(self) -> None:
        quotas = self.leader, self.follower
        for quota, *rates in zip(quotas, self._operator_rates, self._plan_rates, strict=True):
            rate = min(rates)
            if rate != quota.rate_limit:
                quota.limit(rate, self.monotonic())
