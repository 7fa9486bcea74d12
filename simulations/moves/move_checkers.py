"""Checkers of moves (R11): copies, the end in one step, targets, removed logs, and metrics.

They compare the committed metadata record by record, and the disks and metrics of the workers once
the faults are over.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from metaquorum.dataplane.log.segments.names import parse_partition_folder
from metaquorum.dataplane.prometheus.collector import _Sums
from metaquorum.dataplane.replication.truncation_ledger import Reason
from metaquorum.metadata.image import NO_LEADER, MetadataDelta, MetadataImage, PartitionImage
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState, Member
from metaquorum.simulations.replication.loss_checkers import LedgerChecker
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replica_files import log_folders
from metaquorum.simulations.replication.replicas import (
    Name,
    PartitionHistory,
    Place,
    ReplicaLog,
    changed_partitions,
    ends_move,
)
from metaquorum.wire.primitives.errors import ErrorCode

Replicas: TypeAlias = tuple[int, ...]


class MovesKeepCopies(WatchingChecker):
    """A move never leaves fewer copies than its target has, and removes replicas as its last step.

    Copies are the replicas in the ISR or ELR. A step that changes the replicas keeps as many copies
    as there were, or as the target has. Only a cancelled move may return to the copies that the
    original replicas have.
    """

    invariant = "R11"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._targets: dict[Place, set[Replicas]] = {}
        self._cancels: set[Place] = set()
        # By name and index: a request applies to the topic that has the name when it arrives.
        self._targets_by_name: dict[tuple[str, int], set[Replicas]] = {}
        self._cancels_by_name: set[tuple[str, int]] = set()

    def asked(
        self, topic_id: bytes, partition: int, target: Replicas | None, name: str = ""
    ) -> None:
        """Record a request before it is sent; without a target it cancels the move.

        `name`: that of the topic, for a request that gives no topic id.
        """
        place = Place(topic_id, partition)
        if target is None:
            self._cancels.add(place)
        else:
            self._targets.setdefault(place, set()).add(target)
        if name and target is None:
            self._cancels_by_name.add((name, partition))
        elif name and target is not None:
            self._targets_by_name.setdefault((name, partition), set()).add(target)

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        for topic_id, index, was, now in changed_partitions(before, image):
            history = self.cluster_history.history(topic_id, index)
            place = history.place
            topic = image.topic_by_id(topic_id)
            named = ("" if topic is None else topic.name, index)
            may_go_back = place in self._cancels or named in self._cancels_by_name
            if was is None:
                self._targets.setdefault(place, set()).add(now.replicas)
                continue
            self._count(was, now)
            self._is_whole(history, was, now)
            if now.target != was.target:
                is_cancelled = may_go_back and _is_back(was, now)
                self.compare(
                    now.target in self._targets.get(place, ())
                    or now.target in self._targets_by_name.get(named, ())
                    or is_cancelled,
                    "{}: no client has asked to move {} to {}",
                    history,
                    was,
                    now,
                )
                self._targets.setdefault(place, set()).add(now.target)
            if {*now.replicas} == {*was.replicas} and now.is_moving == was.is_moving:
                continue
            gone = {*was.replicas} - {*now.replicas}
            is_cancelled = may_go_back and _is_back(was, now)
            self.compare(
                not gone & {*was.isr, *was.elr} or {*now.isr} == {*now.replicas} or is_cancelled,
                "{}: {} are removed before all of the target are in sync: {}, then {}",
                history,
                gone,
                was,
                now,
            )
            self.compare(
                is_cancelled or _copies(now) >= min(_copies(was), len(now.target)),
                "{}: fewer copies than the target has: {}, then {}",
                history,
                was,
                now,
            )

    def _is_whole(
        self, history: PartitionHistory, was: PartitionImage, now: PartitionImage
    ) -> None:
        """Check that the fields agree, and that a move whose target is in sync has ended."""
        parts = (*now.isr, *now.elr, *now.adding, *now.removing, *now.offline, *now.blank)
        self.compare(
            len({*now.replicas}) == len(now.replicas)
            and {*parts} <= {*now.replicas}
            and now.replicas == (*now.target, *now.removing),
            "{}: the replicas of {} are not those of its other fields",
            history,
            now,
        )
        self.compare(
            {*now.replicas} == {*was.replicas}
            or {*was.isr, *was.elr, was.last_leader} == {NO_LEADER}
            or {*now.isr, *now.elr, now.last_leader} != {NO_LEADER},
            "{}: no replica with all records is left: {}, then {}",
            history,
            was,
            now,
        )
        image = self.cluster_history.image
        may_lead = [r for r in now.target if image.is_live(r) and r not in now.offline]
        self.compare(
            not now.is_moving
            or now.leader == NO_LEADER
            or not {*now.target} <= {*now.isr}
            or not (may_lead or now.leader in now.target),
            "{}: all of the target are in sync, but the move has not ended: {}",
            history,
            now,
        )

    def _count(self, was: PartitionImage, now: PartitionImage) -> None:
        world = self.cluster_state.world
        if now.is_moving and not was.is_moving:
            world.count("moves begun")
        if ends_move(was, now):
            world.count("moves ended")
            world.count("moves ended with another leader", now.leader != was.leader)
        if was.is_moving and now.is_moving and now.target != was.target:
            world.count("moves replaced")
        world.count("factors raised", len(now.target) > len(was.target))
        world.count("factors lowered", len(now.target) < len(was.target))


def _copies(state: PartitionImage) -> int:
    return len(state.isr) + len(state.elr)


def _is_back(was: PartitionImage, now: PartitionImage) -> bool:
    """Return whether the partition has its original replicas again, and does not move."""
    return not now.is_moving and {*now.replicas} == {*was.replicas} - {*was.adding}


class AddingAreNotBlank(WatchingChecker):
    """A replica that a move has just added is not reported as blank: it has lost nothing.

    It may be blank later, if a later process of its worker finds the log lost.
    """

    invariant = "R11"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        # The run of the worker's machine that opened the log first since a move has added it.
        self._first_runs: dict[tuple[Place, int], int] = {}

    def opened(
        self, history: PartitionHistory, replica: ReplicaLog, missing: Sequence[Name]
    ) -> None:
        self._first_runs.setdefault((history.place, replica.worker_id), replica.machine.runs)

    def retired(self, history: PartitionHistory, replica: ReplicaLog) -> None:
        self._first_runs.pop((history.place, replica.worker_id), None)

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        for topic_id, index, was, now in changed_partitions(before, image):
            for worker_id in now.adding:
                if was is None or (worker_id not in now.blank) or worker_id in was.blank:
                    self.comparisons += 1
                    continue
                history = self.cluster_history.history(topic_id, index)
                run = self.cluster_state.members[worker_id].supervisor.machine.runs
                self.compare(
                    self._first_runs.get((history.place, worker_id), run) < run,
                    "{}: worker {}, which the move adds, is blank: {}",
                    history,
                    worker_id,
                    now,
                )


class RemovedAreNoLosses(LedgerChecker):
    """The ledger of a worker has no lost log that a move has removed, or has just added."""

    invariant = "R11"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        # Lost logs before the log was removed: a new directory reports logs that it never had.
        self._earlier: dict[tuple[Place, int], int] = {}

    def retired(self, history: PartitionHistory, replica: ReplicaLog) -> None:
        lost = self._lost(history, replica.worker_id)
        self._earlier.setdefault((history.place, replica.worker_id), len(lost))

    def _lost(self, history: PartitionHistory, worker_id: int) -> list[str]:
        """Return the lost logs of the partition in the ledger of the worker."""
        storage = self.cluster_state.members[worker_id].supervisor.machine.storage
        return [
            line.range_text
            for line in self._lines(storage)
            if (line.topic_id, line.partition) == history.place and line.reason is Reason.LOST_LOG
        ]

    def finals(self) -> None:
        for history in self.cluster_history.histories.values():
            at = history.topic, history.place.partition
            for worker_id, replica in history.removed.items():
                if replica.may_have_lost or (worker_id, at) in self.cluster_history.moved_away:
                    continue
                lost = self._lost(history, worker_id)[self._earlier[history.place, worker_id] :]
                self.compare(
                    not lost,
                    "{}: worker {} has lost no log, but its ledger has {}",
                    history,
                    worker_id,
                    lost,
                )


class RemovedLogsAreGone(WatchingChecker):
    """Workers have no logs, on disk or in memory, of partitions that they are not a replica of."""

    invariant = "R11"

    def strays(self) -> list[str]:
        """Return the partitions that workers have, but should not have."""
        image = self.cluster_history.image
        found = []
        for member in self.cluster_state.workers:
            worker_id, node = member.config.node_id, member.running
            if node is None or node.worker is None or member.supervisor.impaired:
                continue
            places = [
                (partition.topic, partition.index) for partition in node.worker.replica_manager
            ]
            names = [path.rsplit("/", 1)[1] for path in log_folders(member)]
            places += [at for name in names if (at := parse_partition_folder(name)) is not None]
            for name, index in dict.fromkeys(places):
                topic = image.topic(name)
                if topic is not None and worker_id not in topic.partitions[index].replicas:
                    found.append(f"worker {worker_id} has {name}-{index}")
        return found

    def finals(self) -> None:
        strays = self.strays()
        self.compare(not strays, "logs of removed replicas: {}", strays)


class MovesEnd(WatchingChecker):
    """Each move ends within a bound after the faults, unless a disk of its target has failed."""

    invariant = "R11"

    def open_moves(self) -> list[str]:
        """Return the partitions that still move, and could be complete."""
        cluster_state = self.cluster_state
        found = []
        for name, topic in self.cluster_history.image.topics.items():
            if name in cluster_state.topic_outcomes.deletion_asked:
                continue
            for index, state in enumerate(topic.partitions):
                history = self.cluster_history.history(topic.topic_id, index)
                if not state.is_moving or cluster_state.is_lost(history):
                    continue
                if not any(cluster_state.is_out_of_use(history, each) for each in state.target):
                    found.append(f"{name}-{index} {state}")
        return found

    def finals(self) -> None:
        found = self.open_moves()
        self.compare(not found, "still moving: {}", found)


class WrongMovesAreRefused(ClusterChecker):
    """A move to no worker, to one twice, or to one that does not exist, is refused."""

    invariant = "R11"

    def answered(self, what: str, code: ErrorCode) -> None:
        self.compare(code is not ErrorCode.NONE, "{} is answered with {}", what, code.name)


class ListedMovesExist(WatchingChecker):
    """ListPartitionReassignments shows only moves that were in the metadata."""

    invariant = "R11"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._known: dict[tuple[str, int], set[tuple[Replicas, Replicas, Replicas]]] = {}

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        for topic_id, index, _, now in changed_partitions(before, image):
            if now.is_moving:
                self._known.setdefault((image.topic_names[topic_id], index), set()).add(
                    (now.replicas, now.adding, now.removing)
                )

    def listed(self, topic: str, partition: int, row: tuple[Replicas, Replicas, Replicas]) -> None:
        self.compare(
            row in self._known.get((topic, partition), ()),
            "{}-{} is listed as {}, which it never was",
            topic,
            partition,
            row,
        )


class AddingAreNotBehind(WatchingChecker):
    """The metric of under-replicated partitions leaves out replicas that a move adds (KIP-352).

    That of moving partitions counts those of leaders.
    """

    invariant = "R11"

    def look(self) -> None:
        """Look at all workers that run."""
        for member in self.cluster_state.workers:
            self._look_at(member)

    def _look_at(self, member: Member) -> None:
        node = member.running
        if node is None or node.worker is None:
            return
        sums, expected = _Sums(0), 0
        moving = 0
        for partition in node.worker.replica_manager:
            sums.count(partition)
            if partition.is_leader:
                state = partition.state
                moving += state.is_moving
                expected += len(state.isr) < len(state.replicas) - len(state.adding)
        if moving:
            self.compare(
                (sums.under_replicated, sums.reassigning) == (expected, moving),
                "worker {} reports {} under-replicated and {} moving partitions, but has {} and {}",
                member.config.node_id,
                sums.under_replicated,
                sums.reassigning,
                expected,
                moving,
            )


MOVE_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    MovesKeepCopies,
    AddingAreNotBlank,
    RemovedAreNoLosses,
    RemovedLogsAreGone,
    MovesEnd,
    WrongMovesAreRefused,
    ListedMovesExist,
    AddingAreNotBehind,
)
