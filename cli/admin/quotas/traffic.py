"""Simulation of a quota: the workers' rate window and delays in virtual time.

A profile adds bytes to the client's queue. Each connection of the client sends requests of one
size, one after the other, and pauses for the throttle time D of each response.

    producer   sends a request; the worker counts its bytes, answers, and mutes the connection for D
    consumer   sends a fetch; if D is not 0 the response is empty and the connection is muted for D,
               otherwise the response has the bytes, which are counted

A request takes `SERVICE_S`; all else takes no time. Plain state, no I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from metaquorum.dataplane.quotas.rate_window import RateWindow
from metaquorum.wire.primitives.frozen import frozen

TICK_S: Final = 0.01  # the profile adds bytes in steps of this time
SERVICE_S: Final = 0.001
MAX_SECONDS: Final = 3600
MAX_CONNECTIONS: Final = 100


@frozen
class Profile:
    """Bytes that are added to the client's queue in each interval, repeated cyclically."""

    interval_s: float
    sizes_bytes: Sequence[float]

    def rate(self, second: float) -> float:
        """Return the bytes per second at that time."""
        number = int(second / self.interval_s + 1e-9) % len(self.sizes_bytes)
        return self.sizes_bytes[number] / self.interval_s

    @classmethod
    def constant(cls, rate: float) -> "Profile":
        return cls(1.0, (rate,))

    @classmethod
    def burst(cls, size_bytes: float, every_s: float) -> "Profile":
        """Return a profile of bursts, each of `size_bytes` within BURST_S."""
        count = max(1, round(every_s / BURST_S))
        return cls(BURST_S, (size_bytes, *[0.0] * (count - 1)))


BURST_S: Final = 0.1


@frozen
class Client:
    is_consumer: bool
    connections: int
    request_bytes: float


@dataclass(slots=True)
class Step:
    """One interval of the timeline."""

    at_s: float
    offered_bytes: float = 0.0
    passed_bytes: float = 0.0
    delay_s: float = 0.0  # longest throttle time in this interval
    delayed: int = 0  # delayed requests
    queue_bytes: float = 0.0  # at the end of the interval


@dataclass(slots=True)
class Timeline:
    quota: float
    step_s: float
    steps: list[Step] = field(default_factory=list)
    total_delay_s: float = 0.0

    @property
    def seconds(self) -> float:
        return len(self.steps) * self.step_s

    @property
    def average_rate(self) -> float:
        return sum(step.passed_bytes for step in self.steps) / self.seconds

    @property
    def longest_delay_s(self) -> float:
        return max(step.delay_s for step in self.steps)

    @property
    def delayed(self) -> int:
        return sum(step.delayed for step in self.steps)

    @property
    def most_queued_bytes(self) -> float:
        return max(step.queue_bytes for step in self.steps)


def run(
    profile: Profile,
    quota: float,
    client: Client,
    seconds: float,
    *,
    step_s: float,
    samples: int,
    sample_s: float,
) -> Timeline:
    """Simulate the profile with this quota; return the timeline."""
    window = RateWindow(samples, sample_s)
    timeline = Timeline(quota, step_s)
    free_at = [0.0] * client.connections
    queue = 0.0
    ticks_a_step = max(1, round(step_s / TICK_S))
    most_bytes = client.request_bytes
    if client.is_consumer:
        most_bytes = min(most_bytes, quota * window.least_s)
    for tick in range(max(1, round(seconds / step_s)) * ticks_a_step):
        now = tick * TICK_S
        if tick % ticks_a_step == 0:
            timeline.steps.append(Step(now))
        step = timeline.steps[-1]
        came = profile.rate(now) * TICK_S
        step.offered_bytes += came
        queue += came
        least = min(most_bytes, queue) if client.is_consumer else most_bytes
        for number in range(client.connections):
            while queue > 0 and queue >= least and free_at[number] < now + TICK_S:
                at = max(now, free_at[number])
                passed, delay_s = _request(window, quota, client, min(most_bytes, queue), at)
                queue -= passed
                step.passed_bytes += passed
                if delay_s > 0:
                    step.delayed += 1
                    step.delay_s = max(step.delay_s, delay_s)
                    timeline.total_delay_s += delay_s
                free_at[number] = at + max(delay_s, SERVICE_S)
        step.queue_bytes = queue
    return timeline


def _request(
    window: RateWindow, quota: float, client: Client, size_bytes: float, now: float
) -> tuple[float, float]:
    """Return the bytes that one request transfers, and its throttle time in seconds."""
    if not client.is_consumer:
        return size_bytes, window.use(size_bytes, quota, now)
    delay_s = window.delay_s(quota, now)
    if delay_s > 0:
        return 0.0, delay_s
    window.use(size_bytes, quota, now)
    return size_bytes, 0.0
