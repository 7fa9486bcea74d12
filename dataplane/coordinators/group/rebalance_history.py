"""The last rebalances of a group: why they began, and how long they took. Plain state."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from dataplane.coordinators.group.members import GroupMember
from dataplane.instruments.histogram import Histogram

KEPT: Final = 16
REASON_LENGTH: Final = 255  # characters of a client's own words, as Kafka keeps


@dataclass(slots=True)
class Rebalance:
    """One rebalance; `ended` is None while it lasts. Times are monotonic seconds."""

    cause: str
    member_id: str
    client_id: str
    client_host: str
    reason: str  # the client's own words (KIP-800)
    began: float
    ended: float | None = None
    generation: int = -1


class RebalanceHistory:
    """The last rebalances of one group; all completed ones are recorded in `times`."""

    def __init__(self, times: Histogram) -> None:
        self._times = times
        self.rebalances: deque[Rebalance] = deque(maxlen=KEPT)

    def begin(self, now: float, cause: str, member: GroupMember | None, reason: str) -> None:
        """Note a rebalance. One that begins before the last has ended is the same one."""
        if self.rebalances and self.rebalances[-1].ended is None:
            return
        names = ("", "", "")
        if member is not None:
            names = member.member_id, member.client_id, member.client_host
        self.rebalances.append(Rebalance(cause, *names, reason[:REASON_LENGTH], now))

    def end(self, now: float, generation: int) -> None:
        if self.rebalances and self.rebalances[-1].ended is None:
            last = self.rebalances[-1]
            last.ended, last.generation = now, generation
            self._times.record(now - last.began, now)
