"""Throttle times in the responses of brokers (KIP-13, KIP-219).

After a response with a throttle time the broker reads nothing from the connection for that time. A
client waits that time longer for the next response: a quota is not a failure.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class ThrottleTimes:
    """Throttle times of the responses of one API so far, in milliseconds.

    After such a response the broker mutes the connection for the throttle time.
    """

    answers: int = 0
    delayed: int = 0  # answers with a throttle time above 0
    max_ms: int = 0
    total_ms: int = 0

    @property
    def average_ms(self) -> float:
        """Mean over all responses, including those that were not delayed, as in Kafka's clients."""
        return self.total_ms / self.answers if self.answers else 0.0

    def add(self, throttle_time_ms: int) -> None:
        self.answers += 1
        if throttle_time_ms > 0:
            self.delayed += 1
            self.max_ms = max(self.max_ms, throttle_time_ms)
            self.total_ms += throttle_time_ms


class Deadline(float):
    """Deadline of a call, by the transport's clock; throttle times that it waits out extend it.

    `waited_s`: seconds that the cluster's calls had waited out when this call began.
    """

    waited_s: float

    @classmethod
    def of(cls, at: float, waited_s: float) -> "Deadline":
        deadline = cls(at)
        deadline.waited_s = waited_s
        return deadline


@dataclass(slots=True)
class ThrottleWaits:
    """Time that the calls of one cluster have waited out.

    `begins` is called when a request waits, with the name of its API and the seconds.
    """

    waited_s: float = 0.0
    begins: Callable[[str, float], None] = lambda _api, _seconds: None

    def extended(self, deadline: float) -> float:
        """Return the deadline, later by what was waited out since it was set."""
        if isinstance(deadline, Deadline):
            return deadline + (self.waited_s - deadline.waited_s)
        return deadline
