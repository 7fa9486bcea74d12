"""Plans of moves as a cluster describes them."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.values import PartitionView, WorkerDescription
from metaquorum.wire.primitives.frozen import frozen

ENDED: Final = ("complete", "cancelled")


@frozen
class MovingPartition:
    """A partition that moves as part of a plan. `target`: the replicas that it shall have."""

    topic: str
    partition: int
    target: Sequence[int]
    adding: Sequence[int]
    removing: Sequence[int]
    isr: Sequence[int]
    leader: int | None
    size_bytes: int  # bytes of all copies

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def copy_bytes(self) -> int:
        """Bytes of one copy, when the plan was made."""
        return self.size_bytes // max(1, len(self.adding))

    def has_on(self, worker_id: int, side: str) -> bool:
        """Return whether that worker sends as "leader", or receives as "follower"."""
        is_added = worker_id in self.adding
        if side == "follower":
            return is_added
        is_kept = worker_id in (*self.target, *self.removing) and not is_added
        return is_kept or worker_id == self.leader


@frozen
class StoppedMove:
    """A move that was cancelled or given up. `topic` None: it was deleted before its turn."""

    topic: str | None
    partition: int
    reason: str


@frozen
class MovePlan:
    """State of one plan at `now_ms`; see DescribeMovePlans. None: not known, or none."""

    plan_id: int
    owner: str
    client_id: str
    state: str
    rate_bytes_per_s: int | None
    batch_size: int
    moves: int
    size_bytes: int
    estimate_s: int | None
    created_ms: int
    ended_ms: int | None
    begun: int
    done: int
    stopped: int
    moving_count: int
    begun_bytes: int | None
    moving_bytes: int | None
    moving: Sequence[MovingPartition]
    now_ms: int
    stops: Sequence[StoppedMove] = ()  # the last of those that were stopped

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def elapsed_s(self) -> float:
        """Seconds since the plan was started, until it ended."""
        end_ms = self.now_ms if self.ended_ms is None else self.ended_ms
        return max(0, end_ms - self.created_ms) / 1000


@frozen
class OperatorThrottle:
    """An operator's throttle of one side ("leader" or "follower") of a worker."""

    worker_id: int
    side: str
    rate_bytes_per_s: int


@frozen
class Progress:
    """Bytes that a plan has copied, counted in the log directories of the receiving workers.

    `copied_bytes` None: the plan has ended before all its moves, and no longer knows.
    """

    plan: MovePlan
    copied_bytes: int | None
    operator: "OperatorThrottle | None" = None  # the lowest that limits a move of the plan

    @property
    def rate_bytes_per_s(self) -> float | None:
        """Mean rate since the start of the plan."""
        elapsed_s = self.plan.elapsed_s
        return self.copied_bytes / elapsed_s if self.copied_bytes and elapsed_s else None

    def left_s(self, rate_bytes_per_s: float | None) -> float | None:
        """Return the seconds until the end at that rate. None: not known."""
        if self.plan.has_ended or not rate_bytes_per_s or self.copied_bytes is None:
            return None
        return max(0, self.plan.size_bytes - self.copied_bytes) / rate_bytes_per_s


@frozen
class CopyOnDisk:
    """A replica that is being added: its log directory, its size, and the space that is free there.

    `usable_bytes` -1: not reported.
    """

    path: str
    size_bytes: int
    usable_bytes: int


@frozen
class PlanFacts:
    """Facts about the moves of a plan. Sides are "leader" and "follower".

    `throttles`: an operator's rates, by worker and side. `lists`: an operator's lists of throttled
    replicas, by topic and side. `others`: the other plans that have not ended. `copies`: by worker.
    """

    plan: MovePlan
    workers: Mapping[int, WorkerDescription]
    views: Mapping[TopicPartition, PartitionView]
    throttles: Mapping[tuple[int, str], int]
    lists: Mapping[tuple[str, str], str]
    others: Sequence[MovePlan] = ()
    copies: Mapping[tuple[TopicPartition, int], CopyOnDisk] = field(default_factory=dict)
