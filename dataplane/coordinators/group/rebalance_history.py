"""The last rebalances of a group: why they began, and how long they took. Plain state."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaquorum.dataplane.coordinators.client_budget import text_bytes
from metaquorum.dataplane.coordinators.group.members import GroupMember
from metaquorum.dataplane.coordinators.group.requests import NAME_LENGTH
from metaquorum.dataplane.instruments.histogram import Histogram

KEPT: Final = 16
REASON_LENGTH: Final = 255  # characters of a client's own words, as Kafka keeps
# Memory of a rebalance without the names of its member and the reason.
REBALANCE_BYTES: Final = 300


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

    @property
    def size_bytes(self) -> int:
        texts = self.member_id, self.client_id, self.client_host, self.reason
        return REBALANCE_BYTES + sum(map(text_bytes, texts))


class RebalanceHistory:
    """The last rebalances of one group; all completed ones are recorded in `times`.

    `use` is called with the memory that it uses in addition; negative if it uses less. Without room
    for another rebalance, by `has_room`, the oldest ones are forgotten.
    """

    def __init__(
        self,
        times: Histogram,
        use: Callable[[int], object],
        has_room: Callable[[int], bool],
    ) -> None:
        self._times = times
        self._use = use
        self._has_room = has_room
        self.size_bytes = 0
        self.rebalances: deque[Rebalance] = deque()  # at most KEPT

    def begin(self, now: float, cause: str, member: GroupMember | None, reason: str) -> None:
        """Note a rebalance. One that begins before the last has ended is the same one."""
        if self.rebalances and self.rebalances[-1].ended is None:
            return
        names = ("", "", "")
        if member is not None:
            names = member.member_id, member.client_id[:NAME_LENGTH], member.client_host
        added = Rebalance(cause, *names, reason[:REASON_LENGTH], now)
        while self.rebalances and (
            len(self.rebalances) == KEPT or not self._has_room(added.size_bytes)
        ):
            self._count(-self.rebalances.popleft().size_bytes)
        self.rebalances.append(added)
        self._count(added.size_bytes)

    def end(self, now: float, generation: int) -> None:
        if self.rebalances and self.rebalances[-1].ended is None:
            last = self.rebalances[-1]
            last.ended, last.generation = now, generation
            self._times.record(now - last.began, now)

    def clear(self) -> None:
        """Forget all rebalances."""
        while self.rebalances:
            self._count(-self.rebalances.popleft().size_bytes)

    def _count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._use(size_bytes)
