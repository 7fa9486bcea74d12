"""How long brokers have made us wait, by the throttle times in their answers (KIP-13, KIP-219)."""

from dataclasses import dataclass


@dataclass(slots=True)
class ThrottleTimes:
    """Of the answers of one API, so far. A broker does not read on until the time is over."""

    answers: int = 0
    delayed: int = 0  # of these
    max_ms: int = 0
    total_ms: int = 0

    @property
    def average_ms(self) -> float:
        """Over all answers, those that were not delayed too, as Kafka's clients tell it."""
        return self.total_ms / self.answers if self.answers else 0.0

    def add(self, throttle_time_ms: int) -> None:
        self.answers += 1
        if throttle_time_ms > 0:
            self.delayed += 1
            self.max_ms = max(self.max_ms, throttle_time_ms)
            self.total_ms += throttle_time_ms
