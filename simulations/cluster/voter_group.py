"""Voters of one world, the events that they report, and the checkers of these events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.replicated_log import Leadership, NotCommittedError, OutcomeUnknownError
from metaquorum.quorum.raft.proposals import RaftProposal
from metaquorum.quorum.raft.timings import RaftTimings
from metaquorum.quorum.raft.voter import RaftVoter
from metaquorum.simulations.cluster.fault_plan import PlannedFault
from metaquorum.simulations.cluster.supervisor import Supervisor
from metaquorum.simulations.cluster.voter_disks import DurableLog, DurableLogs
from metaquorum.simulations.kernel.comparing import Comparing
from metaquorum.simulations.kernel.world import World

CLUSTER_ID: Final = "Y2x1c3RlcnNpbXVsYXRlZA"
STRANGE_CLUSTER_ID: Final = "c3RyYW5nZWNsdXN0ZXJpZA"
PEER_PORT: Final = 9093


@dataclass(slots=True)
class QuorumSettings:
    voters: int
    drivers: int
    think_s: float  # longest pause of a driver between two changes
    acts: int  # changes after which drivers pause much longer
    fault_s: float  # time within which faults begin
    peace_s: float  # time before the faults
    segment_bytes: int
    snapshot_interval_bytes: int
    delay_s: float
    jitter_s: float
    disk_delay_s: float
    slow: float
    timings: RaftTimings
    # Voters whose disks may be lost or damaged: a minority, so that others have their entries.
    weak: tuple[int, ...]
    has_stranger: bool
    faults: tuple[PlannedFault, ...] = ()
    readers: int = 1  # per voter
    read_think_s: float = 0.3  # longest pause of a reader between two reads


class VoterGroupChecker(Comparing):
    def __init__(self, voter_group: "VoterGroup") -> None:
        super().__init__(voter_group.world)
        self.voter_group = voter_group

    def applied(self, voter_id: int, term: int, batch: Batch, took_effect: bool) -> None:
        """Check a batch that a voter applied as committed in `term`."""

    def loaded(self, voter_id: int, end_offset: int) -> None:
        """Check a snapshot that a voter loaded."""

    def leads(self, voter_id: int, term: int) -> None:
        """Check a voter that becomes the leader of a term."""

    def proposed(self, batch: Batch, outcome: str) -> None:
        """Check the outcome of a proposal: committed, not committed, or unknown."""

    def started(self, voter_id: int) -> None:
        """Check a voter whose process has recovered its log and takes part in the quorum."""

    def looked(self) -> None:
        """Check the disks; called periodically."""


C = TypeVar("C", bound=VoterGroupChecker)


@dataclass(slots=True)
class Voter:
    """One voter of the world, over all runs of its process."""

    voter_id: int
    supervisor: Supervisor
    loader: MetadataLoader | None = None
    quorum: RaftVoter | None = None
    runs: int = 0

    @property
    def name(self) -> str:
        return self.supervisor.name

    @property
    def leadership(self) -> Leadership:
        if self.quorum is None or not self.supervisor.machine.running:
            return Leadership(None, 0, is_active=False)
        return self.quorum.leadership


@dataclass(slots=True)
class Topics:
    """Requests and their outcomes, by unique topic names."""

    asked: set[str] = field(default_factory=set)
    created: dict[str, int] = field(default_factory=dict)  # offset from which it is visible
    refused: set[str] = field(default_factory=set)
    deletion_asked: set[str] = field(default_factory=set)
    deleted: dict[str, int] = field(default_factory=dict)


class VoterGroup:
    def __init__(
        self, world: World, settings: QuorumSettings, checkers: Sequence[type[VoterGroupChecker]]
    ) -> None:
        self.world = world
        self.settings = settings
        self.voters: dict[int, Voter] = {}
        self.disks = DurableLogs()
        self.topics = Topics()
        # Highest end offset that was acknowledged as committed.
        self.acknowledged_offset = 0
        self.acts = 0
        # The scenario waits for a topic to be created: drivers only create topics.
        self.is_recovering = False
        self.closing = False
        self.checkers = [checker(self) for checker in checkers]

    @property
    def think_s(self) -> float:
        return self.settings.think_s if self.acts < self.settings.acts else 2.0

    @property
    def majority(self) -> int:
        return self.settings.voters // 2 + 1

    @property
    def ruined(self) -> int:
        """Number of voters that may have lost durable data."""
        return sum(voter.supervisor.ruined for voter in self.voters.values())

    def checker(self, kind: type[C]) -> C:
        for checker in self.checkers:
            if isinstance(checker, kind):
                return checker
        raise KeyError(kind)

    def durable(self, voter_id: int) -> DurableLog:
        voter = self.voters[voter_id]
        return self.disks.of(voter.name, voter.supervisor.machine.storage)

    def holders(self, batch: Batch) -> list[int]:
        """Return the voters on whose disks the batch is durable."""
        payload = batch.encode()
        return [v for v in self.voters if self.durable(v).holds(payload, batch.end_offset)]

    def leader(self) -> Voter | None:
        """Return the voter with the latest term among those that consider themselves leader."""
        leading = [v for v in self.voters.values() if v.leadership.leader_id == v.voter_id]
        return max(leading, key=lambda v: v.leadership.term, default=None)

    def active(self) -> Voter | None:
        leader = self.leader()
        return leader if leader is not None and leader.leadership.is_active else None

    # Events that are reported to the checkers

    def applied(self, voter_id: int, term: int, batch: Batch, took_effect: bool) -> None:
        for checker in self.checkers:
            checker.applied(voter_id, term, batch, took_effect)

    def loaded(self, voter_id: int, end_offset: int) -> None:
        self.world.count("snapshots taken in")
        for checker in self.checkers:
            checker.loaded(voter_id, end_offset)

    def leads(self, voter_id: int, term: int) -> None:
        self.world.count("leaders")
        self.world.say(f"voter-{voter_id}", f"leads in term {term}")
        for checker in self.checkers:
            checker.leads(voter_id, term)

    def proposed(self, batch: Batch, outcome: str) -> None:
        self.world.count(f"proposals {outcome}")
        for checker in self.checkers:
            checker.proposed(batch, outcome)

    def acknowledged(self, end_offset: int) -> None:
        self.acknowledged_offset = max(self.acknowledged_offset, end_offset)

    def started(self, voter_id: int) -> None:
        for checker in self.checkers:
            checker.started(voter_id)

    def looked(self) -> None:
        for checker in self.checkers:
            checker.looked()


class WatchedLoader(MetadataLoader):
    """The shipped loader, which also reports its batches and snapshots to the voter group."""

    def __init__(self, cluster_id: str, voter_group: VoterGroup, voter_id: int) -> None:
        super().__init__(cluster_id)
        self._voter_group = voter_group
        self._voter_id = voter_id

    async def apply(self, term: int, batch: Batch) -> bool:
        took_effect = await super().apply(term, batch)
        self._voter_group.applied(self._voter_id, term, batch, took_effect)
        return took_effect

    def end_load(self, end_offset: int) -> None:
        super().end_load(end_offset)
        self._voter_group.loaded(self._voter_id, end_offset)


class WatchedVoter(RaftVoter):
    """The shipped voter, which also calls `watch` with each proposal."""

    watch: Callable[[RaftProposal], None]

    def propose(self, term: int, expected_offset: int, records: Sequence[bytes]) -> RaftProposal:
        proposal = super().propose(term, expected_offset, records)
        self.watch(proposal)
        return proposal


async def outcome_of(proposal: RaftProposal) -> str:
    try:
        await proposal.wait()
    except NotCommittedError:
        return "not committed"
    except OutcomeUnknownError:
        return "unknown"
    return "committed"


def image_of(voter: Voter) -> MetadataImage:
    assert voter.loader is not None
    return voter.loader.image
