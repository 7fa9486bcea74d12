"""State of a cluster for a planner: workers, and replicas, sizes and load of partitions."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from metaquorum.metadata.moves.plan import Plan, PlanError
from metaquorum.wire.primitives.frozen import frozen


@frozen
class WorkerState:
    """A registered worker. Workers with the same host fail together; None: not known."""

    worker_id: int
    rack: str | None = None
    host: str | None = None
    may_receive: bool = True  # whether it is live, and not draining
    answers: bool = True  # False: the sizes of its replicas are those of the others
    free_bytes: int | None = None  # in all its log directories; None: not known


@frozen
class PartitionState:
    """A partition. `replicas`: worker ids, the preferred leader first."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    leader: int | None  # None: no leader
    size_bytes: int = 0  # one replica
    bytes_in_per_s: float = 0.0  # produced to it, as compressed in its log
    is_moving: bool = False  # by another plan or tool

    @property
    def may_move(self) -> bool:
        """Whether a plan may move it: it does not move yet, and has a leader to copy from."""
        return self.leader is not None and not self.is_moving

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def sender(self) -> int:
        """Worker that sends the log to new replicas."""
        return self.replicas[0] if self.leader is None else self.leader


@frozen
class ClusterState:
    """The workers and the partitions of a cluster, each with at least one replica."""

    workers: tuple[WorkerState, ...]
    partitions: tuple[PartitionState, ...]

    @property
    def log_bytes(self) -> int:
        """Bytes of all replicas."""
        return sum(each.size_bytes * len(each.replicas) for each in self.partitions)

    def moved(self, plan: Plan) -> "ClusterState":
        """Return the cluster after the plan, led by the preferred leaders.

        Raises PlanError if a partition or a worker of the plan does not exist.
        """
        targets = {(move.topic, move.partition): move.target for move in plan.moves}
        known = {worker.worker_id for worker in self.workers}
        after = []
        for each in self.partitions:
            target = targets.pop((each.topic, each.partition), None)
            replicas = each.replicas if target is None else target
            if target is not None and not known.issuperset(target):
                unknown = next(worker for worker in target if worker not in known)
                raise PlanError(f"{each.name}: there is no worker {unknown}")
            after.append(
                PartitionState(
                    each.topic,
                    each.partition,
                    replicas,
                    replicas[0],
                    each.size_bytes,
                    each.bytes_in_per_s,
                )
            )
        if targets:
            topic, partition = next(iter(targets))
            raise PlanError(f"{topic}-{partition} does not exist")
        return ClusterState(self.workers, tuple(after))


def measured_rates(
    samples: Sequence[tuple[float, Mapping[tuple[str, int], int]]],
) -> dict[tuple[str, int], float]:
    """Return the bytes per second by which each log grew, from its sizes at several times.

    `samples`: seconds, and sizes by topic and partition. Retention and compaction make a log
    smaller: the intervals in which they did are left out. Logs without others have no rate.
    """
    grown: dict[tuple[str, int], float] = {}
    seconds: dict[tuple[str, int], float] = {}
    for (start, before), (end, after) in pairwise(samples):
        for where, size in after.items():
            growth = size - before.get(where, size + 1)
            if growth >= 0 and end > start:
                grown[where] = grown.get(where, 0.0) + growth
                seconds[where] = seconds.get(where, 0.0) + end - start
    return {where: grown[where] / seconds[where] for where in grown}
