"""Throttle times in the responses of brokers (KIP-13, KIP-219)."""

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
