"""A cluster with replicated topics: its settings, and what is known of its replicas."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulations.cluster.cluster_state import ClusterChecker, ClusterSettings, Nation
from simulations.kernel.world import World
from simulations.replication.replicas import Chronicle, PartitionStory


@dataclass(slots=True, kw_only=True)
class ReplicationSettings(ClusterSettings):
    workers: int
    consumers: int
    # Of topics: those where every record is synced before it counts.
    flushed: float
    # Of elections: those that may choose who is not in sync.
    unclean: float
    configs: dict[str, str] = field(default_factory=dict)
    attackers: int = 0  # clients that say they are replicas
    # Somebody restarts workers whose disks have failed, once all is calm.
    has_operator: bool = False
    # Topics are compacted, retained and recompressed; records are known by their contents.
    cleans: bool = False
    throttles: bool = False  # clients have quotas
    racks: int = 0  # that workers stand in; 0: nobody says
    near_consumers: int = 0  # that read from the replica in their rack


class WatchedNation(Nation):
    settings: ReplicationSettings

    def __init__(
        self,
        world: World,
        settings: ReplicationSettings,
        checkers: Sequence[type[ClusterChecker]],
    ) -> None:
        super().__init__(world, settings, checkers)
        self.chronicle = Chronicle(self)
        if settings.cleans:
            self.chronicle.contents = {}
        # Every value of min.insync.replicas that may have been in force, by topic id.
        self.min_isrs: dict[bytes, set[int]] = {}

    def is_gone(self, worker_id: int) -> bool:
        """It will never be back."""
        return self.members[worker_id].kept.is_out

    def is_out_of_use(self, story: PartitionStory, worker_id: int) -> bool:
        """That replica cannot come back to the ISR, and its disk is why.

        It is offline for as long as the process runs that met the disk's failure, or as its files
        are damaged. A worker that says that it is offline without either is not excused.
        """
        state = self.chronicle.state(story)
        if self.is_gone(worker_id) or state is None:
            return True
        held = story.held.get(worker_id)
        has_cause = self.members[worker_id].kept.impaired or (held is not None and held.damaged)
        return worker_id in state.offline and has_cause

    def is_lost(self, story: PartitionStory) -> bool:
        """Nobody is left who would lead: nobody does until somebody asks for it."""
        state = self.chronicle.state(story)
        if state is None:
            return True
        last = () if state.last_leader < 0 else (state.last_leader,)
        awaited = state.isr or state.elr or last
        return state.leader < 0 and all(self.is_out_of_use(story, r) for r in awaited)

    def is_stuck(self, story: PartitionStory) -> bool:
        """Nobody leads, or too few will ever be in sync."""
        state = self.chronicle.state(story)
        if state is None or self.is_lost(story):
            return True
        left = [r for r in state.replicas if not self.is_out_of_use(story, r)]
        return len(left) < max(self.min_isrs.get(story.place.topic_id, {1}))

    def is_in_sync(self) -> bool:
        """Every partition is led, and all replicas that can be are in its ISR."""
        if not self.is_whole():
            return False
        for name, topic in self.chronicle.image.topics.items():
            if name in self.told.deletion_asked:
                continue
            for index, state in enumerate(topic.partitions):
                story = self.chronicle.story(topic.topic_id, index)
                if self.is_lost(story):
                    continue
                missing = set(state.replicas) - set(state.isr)
                if state.leader < 0 or any(not self.is_out_of_use(story, r) for r in missing):
                    return False
        return True

    def stands(self) -> str:
        behind = [
            f"{name}-{index} {state}"
            for name, topic in self.chronicle.image.topics.items()
            for index, state in enumerate(topic.partitions)
            if state.leader < 0 or len(state.isr) < len(state.replicas)
        ]
        return f"{super().stands()}; not in sync: {behind[:4]}"
