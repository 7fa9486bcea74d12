"""Checkers of the voters of a quorum: the invariants of the metadata log (M1 to M5), and L4."""

from typing import Final

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import encode_record
from metaquorum.metadata.replay import Replay
from metaquorum.quorum.storage.journal_ops import NO_VOTE
from metaquorum.simulations.cluster.voter_disks import DurableLog
from metaquorum.simulations.cluster.voter_group import CLUSTER_ID, VoterGroup, VoterGroupChecker
from metaquorum.simulations.kernel.storage import Storage


class OneLeaderPerTerm(VoterGroupChecker):
    """A term has at most one leader, and the proposers of applied batches are leaders.

    A majority has voted for the leader, and the votes are durable.
    """

    invariant = "M1"

    def __init__(self, voter_group: VoterGroup) -> None:
        super().__init__(voter_group)
        self.leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}

    def forget_votes(self, voter_id: int) -> None:
        """Forget the votes of a voter that lost its disk: it may vote again in the same terms."""
        for each in [each for each in self._votes if each[0] == voter_id]:
            del self._votes[each]

    def _leads(self, voter_id: int, term: int) -> None:
        known = self.leaders.setdefault(term, voter_id)
        self.compare(known == voter_id, "{} and {} both lead in term {}", known, voter_id, term)

    def leads(self, voter_id: int, term: int) -> None:
        self._leads(voter_id, term)
        for_it = 0
        for each in self.voter_group.voters:
            hard_state = self.voter_group.durable(each).hard_state
            for_it += hard_state.term > term
            for_it += hard_state.term == term and hard_state.vote == voter_id
        self.compare(
            for_it + self.voter_group.ruined >= self.voter_group.majority,
            "{} leads in term {}, but only {} votes for it are durable",
            voter_id,
            term,
            for_it,
        )

    def applied(self, voter_id: int, term: int, batch: Batch, took_effect: bool) -> None:
        if took_effect:
            self._leads(batch.proposer, term)

    def looked(self) -> None:
        for voter_id, voter in self.voter_group.voters.items():
            hard_state = self.voter_group.durable(voter_id).hard_state
            if hard_state.vote == NO_VOTE or voter.supervisor.ruined:
                continue
            known = self._votes.setdefault((voter_id, hard_state.term), hard_state.vote)
            self.compare(
                known == hard_state.vote,
                "{} voted for {} and {} in term {}",
                voter_id,
                known,
                hard_state.vote,
                hard_state.term,
            )


class CommittedIsOneLog(VoterGroupChecker):
    """All voters apply the same batch at an offset, in every run of their processes."""

    invariant = "M2"

    def __init__(self, voter_group: VoterGroup) -> None:
        super().__init__(voter_group)
        self.log: dict[int, Batch] = {}  # by expected offset
        self.effective: set[Batch] = set()

    @property
    def end_offset(self) -> int:
        return max((batch.end_offset for batch in self.log.values()), default=0)

    def applied(self, voter_id: int, term: int, batch: Batch, took_effect: bool) -> None:
        if not took_effect:
            self.world.count("batches dropped")
            return
        known = self.log.setdefault(batch.expected_offset, batch)
        self.effective.add(batch)
        self.compare(
            known == batch,
            "{} applied another batch at {}: {} and {}",
            voter_id,
            batch.expected_offset,
            known,
            batch,
        )

    def fold(self, end_offset: int) -> MetadataImage:
        """Return the image of the log before `end_offset`, replayed from an empty image."""
        replay = Replay(MetadataImage.empty(CLUSTER_ID))
        offset = 0
        while offset < end_offset and (batch := self.log.get(offset)) is not None:
            replay.apply(batch.records())
            offset = batch.end_offset
        return replay.finish()[0]


class CommittedIsDurable(VoterGroupChecker):
    """A committed batch is durable on a majority when it is first applied, and afterwards."""

    invariant = "M3"
    # Number of latest batches checked; older ones are in all snapshots.
    LOOKED_AT: Final = 20

    def __init__(self, voter_group: VoterGroup) -> None:
        super().__init__(voter_group)
        self._committed: list[Batch] = []
        self._known: set[Batch] = set()

    def applied(self, voter_id: int, term: int, batch: Batch, took_effect: bool) -> None:
        if not took_effect:
            return
        own = self.voter_group.durable(voter_id)
        self.compare(
            own.holds(batch.encode(), batch.end_offset),
            "{} applied the batch that ends at {} before it was durable on its own disk",
            voter_id,
            batch.end_offset,
        )
        if batch not in self._known:
            self._known.add(batch)
            self._committed.append(batch)
            self._check(batch)

    def looked(self) -> None:
        for batch in self._committed[-self.LOOKED_AT :]:
            self._check(batch)

    def _check(self, batch: Batch) -> None:
        holders = self.voter_group.holders(batch)
        self.compare(
            len(holders) + self.voter_group.ruined >= self.voter_group.majority,
            "the batch that ends at {} (term {}) is committed, but durable only on {}",
            batch.end_offset,
            batch.term,
            holders,
        )


class StaleLeadersChangeNothing(VoterGroupChecker):
    """Batches take effect in the term in which they were proposed, and terms never decrease."""

    invariant = "M5"

    def __init__(self, voter_group: VoterGroup) -> None:
        super().__init__(voter_group)
        self._terms: dict[int, tuple[int, int]] = {}

    def applied(self, voter_id: int, term: int, batch: Batch, took_effect: bool) -> None:
        if not took_effect:
            return
        self.compare(
            batch.term == term, "proposed in term {}, applied in {}: {}", batch.term, term, batch
        )
        end_offset, last_term = self._terms.get(voter_id, (0, 0))
        if batch.expected_offset >= end_offset:
            self.compare(
                term >= last_term, "{} applied term {} after {}", voter_id, term, last_term
            )
            self._terms[voter_id] = batch.end_offset, term


class StrangersStayOut(VoterGroupChecker):
    """A voter of another cluster with the same addresses never joins this cluster."""

    invariant = "M5"

    def stranger(self, reached: int, seen: list[int]) -> None:
        """Check a voter of another cluster.

        `reached`: its connection attempts that reached a listener. `seen`: over time, the maximum
        of its term, its image's end offset and its number of linked peers; all must be 0.
        """
        if reached:
            self.world.count("strangers knocked", reached)
            self.compare(not any(seen), "a voter of another cluster was accepted: {}", seen)


class OutcomesAreTrue(VoterGroupChecker):
    """A proposal reported as committed is in the log; one reported as not committed never is."""

    invariant = "M3"

    def __init__(self, voter_group: VoterGroup) -> None:
        super().__init__(voter_group)
        self._never: set[Batch] = set()

    def proposed(self, batch: Batch, outcome: str) -> None:
        is_there = batch in self.voter_group.checker(CommittedIsOneLog).effective
        if outcome == "committed":
            self.compare(is_there, "{} is reported as committed, but took no effect", batch)
        elif outcome == "not committed":
            self._never.add(batch)
            self.compare(not is_there, "{} is reported as not committed, but took effect", batch)

    def applied(self, voter_id: int, term: int, batch: Batch, took_effect: bool) -> None:
        if took_effect:
            self.compare(
                batch not in self._never, "{} took effect, but was reported as not committed", batch
            )


class ReadsAreCurrent(VoterGroupChecker):
    """A read after a barrier sees all changes acknowledged before the barrier was requested."""

    invariant = "M5"

    def read(self, acknowledged_offset: int, end_offset: int, image_offset: int) -> None:
        self.compare(
            end_offset >= acknowledged_offset and image_offset >= end_offset,
            "a read saw the log to {} and the image to {}, but {} was acknowledged",
            end_offset,
            image_offset,
            acknowledged_offset,
        )


class AnswersAreKept(VoterGroupChecker):
    """A created topic is in every image from its offset on, until its deletion is requested.

    A topic that was deleted, refused or never requested is in no image.
    """

    invariant = "M3"

    def images(self, images: dict[str, MetadataImage]) -> None:
        topics = self.voter_group.topics
        for who, image in images.items():
            names = set(image.topics)
            for name, offset in topics.created.items():
                if name not in topics.deletion_asked and image.end_offset >= offset:
                    self.compare(name in names, "{} does not have {}, which was created", who, name)
            for name, offset in topics.deleted.items():
                if image.end_offset >= offset:
                    self.compare(name not in names, "{} has {}, which was deleted", who, name)
            for name in topics.refused:
                self.compare(name not in names, "{} has {}, which was refused", who, name)
            self.compare(
                names <= topics.asked, "{} has {}, never requested", who, names - topics.asked
            )


class ImagesAreOne(VoterGroupChecker):
    """The image of every voter and of every disk equals the log replayed to its end offset."""

    invariant = "M4"

    def images(self, images: dict[str, MetadataImage]) -> None:
        log = self.voter_group.checker(CommittedIsOneLog)
        folds: dict[int, tuple[int, list[bytes]]] = {}
        for who, image in images.items():
            offset, found = image.end_offset, content(image)
            if offset not in folds:
                folds[offset] = content(log.fold(offset))
            wanted = folds[offset]
            differing = set(found[1]) ^ set(wanted[1])
            self.compare(
                found == wanted,
                "the image of {} at {} differs from the log at {}: {}",
                who,
                offset,
                wanted[0],
                sorted(differing)[:3],
            )


def content(image: MetadataImage) -> tuple[int, list[bytes]]:
    return image.end_offset, sorted(map(encode_record, image.records()))


class RotIsNoticed(VoterGroupChecker):
    """A voter whose disk has flipped bits starts with all durable data, or does not start."""

    invariant = "L4"

    def __init__(self, voter_group: VoterGroup) -> None:
        super().__init__(voter_group)
        self._before: dict[int, tuple[DurableLog, Storage]] = {}

    def rots(self, voter_id: int) -> None:
        storage = self.voter_group.voters[voter_id].supervisor.machine.storage
        self._before[voter_id] = self.voter_group.durable(voter_id), storage

    def started(self, voter_id: int) -> None:
        before, disk = self._before.pop(voter_id, (None, None))
        if (
            before is None
            or disk is not self.voter_group.voters[voter_id].supervisor.machine.storage
        ):
            return
        now = self.voter_group.durable(voter_id)
        lost = [
            index
            for index, entry in before.entries.items()
            if entry.payload not in now.payloads
            and all(position.index < index for _, position in now.snapshots)
        ]
        self.compare(not lost, "{} started on a damaged disk without entries {}", voter_id, lost)
        self.compare(
            (now.hard_state.term, now.hard_state.vote)
            >= (before.hard_state.term, before.hard_state.vote),
            "{} started on a damaged disk and forgot its vote: {} and {}",
            voter_id,
            before.hard_state,
            now.hard_state,
        )


QUORUM_CHECKERS: Final[tuple[type[VoterGroupChecker], ...]] = (
    OneLeaderPerTerm,
    CommittedIsOneLog,
    CommittedIsDurable,
    StaleLeadersChangeNothing,
    StrangersStayOut,
    OutcomesAreTrue,
    ReadsAreCurrent,
    AnswersAreKept,
    ImagesAreOne,
    RotIsNoticed,
)
