"""Cluster with replicated topics: its settings, and the state that clients and checkers share."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from metaquorum.simulations.cluster.cluster_state import (
    ClusterChecker,
    ClusterSettings,
    ClusterState,
)
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.replication.replicas import ClusterHistory, PartitionHistory


@dataclass(slots=True, kw_only=True)
class ReplicationSettings(ClusterSettings):
    workers: int
    consumers: int
    # Share of topics with flush.messages=1.
    flushed: float
    # Share of elections that may be unclean.
    unclean: float
    configs: dict[str, str] = field(default_factory=dict)
    attackers: int = 0  # clients that claim to be replicas
    # An operator restarts workers whose disks have failed, after the faults.
    has_operator: bool = False
    log_dirs: tuple[str, ...] = ()  # those of workers; by default the data directory
    # Topics have compaction, retention and `compression.type`; contents identify records.
    cleans: bool = False
    throttles: bool = False  # clients have quotas
    racks: int = 0  # racks of the workers; 0: workers have no rack
    near_consumers: int = 0  # consumers that read from the replica in their rack
    # Clients that load planned offset ranges; not printed, as each prints its plans.
    loaders: int = field(default=0, repr=False)
    # All replicas are throttled (KIP-73); not printed, as the administrator prints the rate.
    throttles_replication: bool = field(default=False, repr=False)


class ReplicatedClusterState(ClusterState):
    settings: ReplicationSettings

    def __init__(
        self,
        world: World,
        settings: ReplicationSettings,
        checkers: Sequence[type[ClusterChecker]],
    ) -> None:
        super().__init__(world, settings, checkers)
        self.cluster_history = ClusterHistory(self)
        if settings.cleans:
            self.cluster_history.contents = {}
        # All values of min.insync.replicas that may have been in force, by topic id.
        self.min_isrs: dict[bytes, set[int]] = {}

    def is_gone(self, worker_id: int) -> bool:
        """Return whether the worker will never restart."""
        return self.members[worker_id].supervisor.is_out

    def is_out_of_use(self, history: PartitionHistory, worker_id: int) -> bool:
        """Return whether the replica cannot rejoin the ISR because of its disk.

        Accepted causes: the disk has failed a request of the current process, or files of the
        replica are damaged. A replica that is offline without such a cause is not excused.
        """
        state = self.cluster_history.state(history)
        if self.is_gone(worker_id) or state is None:
            return True
        replica = history.replicas.get(worker_id)
        has_cause = self.members[worker_id].supervisor.impaired or (
            replica is not None and replica.damaged
        )
        return worker_id in state.offline and has_cause

    def is_lost(self, history: PartitionHistory) -> bool:
        """Return whether the partition has no leader, and needs an unclean election to get one."""
        state = self.cluster_history.state(history)
        if state is None:
            return True
        last = () if state.last_leader < 0 else (state.last_leader,)
        awaited = state.isr or state.elr or last
        return state.leader < 0 and all(self.is_out_of_use(history, r) for r in awaited)

    def is_stuck(self, history: PartitionHistory) -> bool:
        """Return whether the partition has no leader, or too few replicas can rejoin the ISR."""
        state = self.cluster_history.state(history)
        if state is None or self.is_lost(history):
            return True
        left = [r for r in state.replicas if not self.is_out_of_use(history, r)]
        least = max(self.min_isrs.get(history.place.topic_id, {1}))
        return len(left) < min(least, len(state.target))

    def is_in_sync(self) -> bool:
        """Return whether every partition has a leader, and all usable replicas in its ISR."""
        if not self.is_whole():
            return False
        for name, topic in self.cluster_history.image.topics.items():
            if name in self.topic_outcomes.deletion_asked:
                continue
            for index, state in enumerate(topic.partitions):
                history = self.cluster_history.history(topic.topic_id, index)
                if self.is_lost(history):
                    continue
                missing = set(state.replicas) - set(state.isr)
                if state.leader < 0 or any(not self.is_out_of_use(history, r) for r in missing):
                    return False
        return True

    def stands(self) -> str:
        behind = [
            f"{name}-{index} {state}"
            for name, topic in self.cluster_history.image.topics.items()
            for index, state in enumerate(topic.partitions)
            if state.leader < 0 or len(state.isr) < len(state.replicas)
        ]
        return f"{super().stands()}; not in sync: {behind[:4]}"
