"""State of one simulated cluster: its nodes, the responses to clients, and the checkers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from metaquorum.dataplane.node import Node
from metaquorum.dataplane.node_config import NodeConfig
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.simulations.cluster.fault_plan import PlannedFault
from metaquorum.simulations.cluster.supervisor import Supervisor
from metaquorum.simulations.kernel.comparing import Comparing
from metaquorum.simulations.kernel.machine import Fate
from metaquorum.simulations.kernel.world import World


@dataclass(slots=True)
class ClusterSettings:
    controllers: int
    # Whether workers run in the controllers' processes.
    is_combined: bool
    producers: int
    records: int  # per producer
    administrators: int
    changes: int  # per administrator
    think_s: float  # longest pause of an administrator between two changes
    fault_s: float  # time within which faults begin
    peace_s: float  # time before the faults
    delay_s: float  # delay of every link
    disk_delay_s: float
    session_timeout_ms: int
    faults: tuple[PlannedFault, ...] = ()


@dataclass(slots=True)
class Member:
    """One node of the cluster, over all runs of its process."""

    config: NodeConfig
    supervisor: Supervisor
    node: Node | None = None
    loader: MetadataLoader | None = None
    serves: bool = False  # the current process accepts connections

    @property
    def name(self) -> str:
        return self.supervisor.name

    @property
    def log_dirs(self) -> list[str]:
        """Paths of the log directories."""
        return [*self.config.log_dirs] or [self.config.data_dir]

    @property
    def running(self) -> Node | None:
        return self.node if self.supervisor.machine.running else None

    @property
    def image(self) -> MetadataImage:
        assert self.loader is not None
        return self.loader.image


class ClusterChecker(Comparing):
    def __init__(self, cluster_state: "ClusterState") -> None:
        super().__init__(cluster_state.world)
        self.cluster_state = cluster_state


C = TypeVar("C", bound=ClusterChecker)


@dataclass(slots=True)
class TopicOutcomes:
    """Requests of administrators and their responses, by unique topic names."""

    asked: set[str] = field(default_factory=set)
    unclear: set[str] = field(default_factory=set)  # creations that may have been committed
    created: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # id, partitions
    refused: set[str] = field(default_factory=set)
    deletion_asked: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)

    @property
    def lasting(self) -> dict[str, tuple[bytes, int]]:
        """Topics that were created, and whose deletion was not requested."""
        return {n: outcome for n, outcome in self.created.items() if n not in self.deletion_asked}


class ClusterState:
    def __init__(
        self, world: World, settings: ClusterSettings, checkers: Sequence[type[ClusterChecker]]
    ) -> None:
        self.world = world
        self.settings = settings
        self.members: dict[int, Member] = {}
        self.fates: list[Fate] = []
        self.topic_outcomes = TopicOutcomes()
        self.images: dict[str, MetadataImage] = {}
        self.calm = False  # faults are over
        self.closing = False  # clients must end
        self.checkers = [checker(self) for checker in checkers]

    def checker(self, kind: type[C]) -> C:
        for checker in self.checkers:
            if isinstance(checker, kind):
                return checker
        raise KeyError(kind)

    @property
    def workers(self) -> list[Member]:
        return [member for member in self.members.values() if member.config.is_worker]

    def active(self) -> Member | None:
        """Return a node whose controller considers itself active; None if there is none."""
        for member in self.members.values():
            role = None if member.running is None else member.running.controller_role
            if role is not None and role.quorum.leadership.is_active:
                return member
        return None

    def is_whole(self) -> bool:
        """Return whether all nodes run, have the same metadata, and all workers are unfenced."""
        images = []
        for member in self.members.values():
            if member.running is None or member.loader is None:
                return False
            images.append(member.image)
        live = [worker for worker in images[0].workers.values() if not worker.fenced]
        ends = {image.end_offset for image in images}
        return self.active() is not None and len(ends) == 1 and len(live) == len(self.workers)

    def stands(self) -> str:
        found = []
        for member in self.members.values():
            if member.running is None or member.loader is None:
                found.append(f"{member.name} is down")
                continue
            image = member.image
            fenced = [worker_id for worker_id, w in image.workers.items() if w.fenced]
            found.append(f"{member.name} at {image.end_offset}, fenced {fenced}")
        active = self.active()
        return f"active {active.name if active else None}, " + ", ".join(found)
