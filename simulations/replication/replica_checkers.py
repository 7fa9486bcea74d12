"""Checkers of invariants among the replicas of a partition, at every moment (R1-R10, `replicas`).

Each checker compares the *true* logs and the committed metadata, as the cluster history has them.
The state of a node is compared only if it is the subject (whether it leads, its high watermark).
Sources: Kip320.tla (WeakIsr, StrongIsr), KIP-101, KIP-320, KIP-497, KIP-903, KIP-966.
"""

from collections.abc import Sequence, Set
from typing import Final

from metaquorum.config.definition import Scope
from metaquorum.config.resolution import WorkerLayers
from metaquorum.metadata.image import MetadataDelta, MetadataImage, PartitionImage
from metaquorum.simulations.cluster.cluster_checkers import (
    AnswersHold,
    AnswersInTheirOrder,
    ClusterImagesAreOne,
    ClusterIsOneLog,
    CreatedIsVisible,
)
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.replication.replicas import (
    FROM_DISK,
    ClusterHistory,
    Entry,
    Identity,
    Name,
    PartitionHistory,
    Place,
    ReplicaChecker,
    ReplicaLog,
    Role,
    Term,
    changed_partitions,
    ends_move,
    hands_over,
)
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState

MIN_ISR: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"


class WatchingChecker(ReplicaChecker):
    cluster_state: ReplicatedClusterState

    @property
    def cluster_history(self) -> ClusterHistory:
        return self.cluster_state.cluster_history


class LeadersIsrAgrees(WatchingChecker):
    """Below a leader's high watermark all replicas of its ISR have the same records (WeakIsr)."""

    invariant = "R1"

    def advanced(
        self,
        history: PartitionHistory,
        replica: ReplicaLog,
        old: int,
        new: int,
        view: PartitionImage,
    ) -> None:
        for worker_id in () if self.cluster_history.is_deposed(history, view) else view.isr:
            self._agrees(history, replica, worker_id, old, new)

    def _agrees(
        self, history: PartitionHistory, replica: ReplicaLog, worker_id: int, old: int, new: int
    ) -> None:
        other = history.replicas.get(worker_id)
        for offset in range(max(old, history.deleted_to), new):
            epoch = replica.epochs.get(offset)
            if epoch is None:
                continue  # below the log start; the deletion is reported later
            name = Name(epoch, offset)
            if name in history.cleaned:
                self.comparisons += 1
            elif other is None or other.epochs.get(offset) != epoch:
                cluster_history = self.cluster_history
                excused = cluster_history.has_left(history, worker_id) or (
                    other is not None and cluster_history.may_lack(history, other, name)
                )
                self.compare(
                    excused,
                    "{}: worker {} commits {}, but worker {}, in sync, has epoch {} there",
                    history,
                    replica.worker_id,
                    name,
                    worker_id,
                    None if other is None else other.epochs.get(offset),
                )
            else:
                self.comparisons += 1


class QuorumsIsrAgrees(LeadersIsrAgrees):
    """Below a leader's high watermark all replicas of the quorum's ISR have its records.

    This holds even if another replica leads by now (StrongIsr).
    """

    invariant = "R2"

    def advanced(
        self,
        history: PartitionHistory,
        replica: ReplicaLog,
        old: int,
        new: int,
        view: PartitionImage,
    ) -> None:
        if self.cluster_history.is_deposed(history, view):
            return
        for worker_id in self.cluster_history.isr(history):
            self._agrees(history, replica, worker_id, old, new)

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """Check that a replica that joins an ISR has all committed records."""
        for topic_id, index, was, now in changed_partitions(before, image):
            history = self.cluster_history.history(topic_id, index)
            known = () if was is None else was.isr
            for worker_id in now.isr:
                if worker_id not in known:
                    self._has_all(history, worker_id)

    def _has_all(self, history: PartitionHistory, worker_id: int) -> None:
        replica = history.replicas.get(worker_id)
        for name in history.committed_names:
            self.compare(
                replica is not None
                and (replica.holds(name) or self.cluster_history.may_lack(history, replica, name)),
                "{}: worker {} joins the ISR or ELR with a record of epoch {}; committed is {}",
                history,
                worker_id,
                None if replica is None else replica.epochs.get(name.offset),
                name,
            )


class EligibleHaveAll(QuorumsIsrAgrees):
    """Eligible leader replicas have all committed records while they are in the ELR (KIP-966)."""

    invariant = "R2"

    def advanced(
        self,
        history: PartitionHistory,
        replica: ReplicaLog,
        old: int,
        new: int,
        view: PartitionImage,
    ) -> None:
        if self.cluster_history.is_deposed(history, view):
            return
        for worker_id in self.cluster_history.elr(history):
            self._agrees(history, replica, worker_id, old, new)

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        for topic_id, index, was, now in changed_partitions(before, image):
            for worker_id in now.elr:
                if was is None or worker_id not in was.elr:
                    self._has_all(self.cluster_history.history(topic_id, index), worker_id)


class CommittedIsOneSequence(WatchingChecker):
    """A record that was below a high watermark is never replaced by another."""

    invariant = "R2"

    def advanced(
        self,
        history: PartitionHistory,
        replica: ReplicaLog,
        old: int,
        new: int,
        view: PartitionImage,
    ) -> None:
        if self.cluster_history.is_deposed(history, view):
            return
        for offset in range(max(old, history.deleted_to), new):
            known = history.committed.get(offset)
            epoch = replica.epochs.get(offset)
            if known is not None and epoch is not None:
                self.compare(
                    known == epoch,
                    "{}: at {} the record of epoch {} was committed; worker {} commits that of {}",
                    history,
                    offset,
                    known,
                    replica.worker_id,
                    epoch,
                )

    def leads(self, history: PartitionHistory, replica: ReplicaLog, epoch: int, term: Term) -> None:
        """Check that the records below a new leader's high watermark are committed."""
        cleaned = {name.offset for name in history.cleaned}
        for offset in range(
            max(replica.start, history.deleted_to), min(term.high_watermark, replica.end)
        ):
            name = Name(replica.epochs.get(offset, -1), offset)
            if name.leader_epoch < 0 and offset in cleaned:
                continue
            self.compare(
                name in history.ever_committed,
                "{}: worker {} becomes leader with high watermark {}, but {} was never committed",
                history,
                replica.worker_id,
                term.high_watermark,
                name,
            )


class LeadersAreInSync(WatchingChecker):
    """The leader of a partition is in its ISR."""

    invariant = "R3"

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        for topic_id, index, _, now in changed_partitions(before, image):
            self.compare(
                now.leader < 0 or now.leader in now.isr,
                "{}: worker {} leads, but the ISR is {}",
                self.cluster_history.history(topic_id, index),
                now.leader,
                now.isr,
            )


class NamesAreForEver(WatchingChecker):
    """A leader epoch and an offset identify one record on all replicas; an epoch has one leader.

    The leader is one run of one worker: a restarted worker needs a new leader epoch.
    """

    invariant = "R4"

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        for name, identity in entries:
            known = history.identities.setdefault(name, identity)
            if known != identity and not replica.rotten:
                self.compare(
                    False,
                    "{}: worker {} has {} with identity {}, but its identity was {}",
                    history,
                    replica.worker_id,
                    name,
                    identity,
                    known,
                )
            self.comparisons += 1

    def leads(self, history: PartitionHistory, replica: ReplicaLog, epoch: int, term: Term) -> None:
        known = history.terms.get(epoch, term)
        self.compare(
            (known.worker_id, known.run) == (term.worker_id, term.run),
            "{}: epoch {} was led by worker {} in its run {}, and now by worker {} in its run {}",
            history,
            epoch,
            known.worker_id,
            known.run,
            term.worker_id,
            term.run,
        )


class LogsMatch(WatchingChecker):
    """Two logs with the same record at an offset have the same record before it (log matching)."""

    invariant = "R7"

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        epochs = {} if role == FROM_DISK else replica.epochs
        last: Name | None = None
        for name, _ in entries:
            if last is not None and last.offset == name.offset - 1:
                previous: int | None = last.leader_epoch
            else:
                previous = epochs.get(name.offset - 1)
            last = name
            if previous is None:
                continue
            known = history.before.setdefault(name, previous)
            self.compare(
                known == previous,
                "{}: worker {} has {} after a record of epoch {}, another log one of epoch {}",
                history,
                replica.worker_id,
                name,
                previous,
                known,
            )


class CutByEpoch(WatchingChecker):
    """A follower truncates only records that its leader does not have, and no committed ones."""

    invariant = "R7"

    def cut(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name], role: Role
    ) -> None:
        term = history.terms.get(role.leader_epoch)
        for name in names:
            self.compare(
                term is None
                or name.offset < max(term.log_start_offset, history.expired_to)
                or not term.has(role.leader_epoch, name),
                "{}: worker {} truncates {}, which the leader of epoch {} has",
                history,
                replica.worker_id,
                name,
                role.leader_epoch,
            )
            if replica.worker_id in (
                *self.cluster_history.isr(history),
                *self.cluster_history.elr(history),
            ):
                self.compare(
                    history.committed.get(name.offset) != name.leader_epoch
                    or name.offset < history.deleted_to,
                    "{}: worker {}, in sync or eligible, truncates {}, which is committed",
                    history,
                    replica.worker_id,
                    name,
                )


class FencedByEpoch(WatchingChecker):
    """A leader appends in its own epoch; followers append only records of their epoch's leader."""

    invariant = "R7"

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        if role == FROM_DISK:
            return
        epoch = role.leader_epoch
        term = history.terms.get(epoch)
        for name, _ in entries:
            if role.leads:
                holds = name.leader_epoch == epoch
            else:
                holds = term is not None and term.has(epoch, name)
            self.compare(
                holds,
                "{}: worker {} appends {} in epoch {}, whose leader does not have it",
                history,
                replica.worker_id,
                name,
                epoch,
            )


class HighWatermarkNeedsIsr(WatchingChecker):
    """The high watermark does not advance while fewer than min.insync.replicas are in sync.

    The ISR is compared with the config at the same offset of the metadata log.
    """

    invariant = "R5"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._least: dict[tuple[Place, int], int] = {}  # by partition epoch

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        topics = [after for _, after in delta.topics() if after is not None]
        if (Scope.WORKER, "") in delta.resources:
            topics = list(image.topics.values())
        topics += [topic for _, name in delta.resources if (topic := image.topic(name))]
        for topic in topics:
            least = _min_isr(image, topic.name)
            for index, state in enumerate(topic.partitions):
                at = Place(topic.topic_id, index), state.partition_epoch
                self._least[at] = min(least, self._least.get(at, least))

    def advanced(
        self,
        history: PartitionHistory,
        replica: ReplicaLog,
        old: int,
        new: int,
        view: PartitionImage,
    ) -> None:
        least = self._least.get((history.place, view.partition_epoch))
        if least is None or len(view.target) < 2 or old >= new:
            return
        self.compare(
            len(view.isr) >= min(least, len(view.target)),
            "{}: worker {} commits {} to {} with ISR {}, but {} is {}",
            history,
            replica.worker_id,
            old,
            new,
            view.isr,
            MIN_ISR,
            least,
        )


def _min_isr(image: MetadataImage, topic: str) -> int:
    configs = WorkerLayers(dynamic_default=image.worker_configs(None))
    return configs.topic_configs(image.topic_configs(topic)).integer(MIN_ISR)


class HighWatermarkStays(WatchingChecker):
    """The high watermark of a leader never decreases within a leader epoch."""

    invariant = "R5"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._last: dict[tuple[Place, int], int] = {}

    def advanced(
        self,
        history: PartitionHistory,
        replica: ReplicaLog,
        old: int,
        new: int,
        view: PartitionImage,
    ) -> None:
        of_term = history.place, view.leader_epoch
        last = self._last.get(of_term, 0)
        self.compare(
            new >= last,
            "{}: worker {}: high watermark {} was {}",
            history,
            replica.worker_id,
            new,
            last,
        )
        self._last[of_term] = new

    def leads(self, history: PartitionHistory, replica: ReplicaLog, epoch: int, term: Term) -> None:
        """Check that a new leader's high watermark is not above its log end offset.

        Otherwise the next record would be committed as soon as it is appended.
        """
        self.compare(
            term.high_watermark <= replica.end,
            "{}: worker {} leads in epoch {} with high watermark {} and log end offset {}",
            history,
            replica.worker_id,
            epoch,
            term.high_watermark,
            replica.end,
        )


class ReadsAreCommitted(WatchingChecker):
    """Consumers read only committed records, and the same as the replicas have."""

    invariant = "R5"

    def read(
        self, history: PartitionHistory, high_watermark: int, entries: Sequence[Entry], who: str
    ) -> None:
        for name, identity in entries:
            self.compare(
                name.offset < high_watermark and name in history.ever_committed,
                "{}: {} reads {} below high watermark {}, but no leader has committed it",
                history,
                who,
                name,
                high_watermark,
            )
            self.compare(
                history.identities.get(name) == identity,
                "{}: {} reads {} with identity {}, but its identity is {}",
                history,
                who,
                name,
                identity,
                history.identities.get(name),
            )

    def end_offset_read(self, history: PartitionHistory, offset: int, who: str) -> None:
        """Check that a leader's end offset covers all committed records (KIP-207)."""
        if not history.was_unclean and not history.gone:
            end = max(history.committed, default=-1) + 1
            self.compare(
                offset >= end,
                "{}: {} receives the end offset {}, but records up to {} are committed",
                history,
                who,
                offset,
                end,
            )


class ClaimsAreRefused(WatchingChecker):
    """A client that claims to be a replica receives an error, and no records."""

    invariant = "R5"

    def claimed(
        self, history: PartitionHistory, claim: str, codes: Sequence[str], has_records: bool
    ) -> None:
        self.compare(
            bool(codes) and "NONE" not in codes and not has_records,
            "{}: {} is answered with {}",
            history,
            claim,
            codes,
        )


class LiesStayOut(WatchingChecker):
    """A batch whose records do not match its header is refused, and no log contains it."""

    invariant = "L4"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self.crcs: set[int] = set()  # CRCs of such batches

    def answered(self, history: PartitionHistory, crc: int, code: str) -> None:
        self.compare(
            code != "NONE", "{}: the lying batch {} is answered with {}", history, crc, code
        )

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        for name, (crc, _) in entries if self.crcs else ():
            self.compare(
                crc not in self.crcs,
                "{}: worker {} has {} of the lying batch {}",
                history,
                replica.worker_id,
                name,
                crc,
            )


class AcknowledgedIsCommitted(WatchingChecker):
    """A record acknowledged with acks=all is committed."""

    invariant = "R6"

    def acknowledged(self, history: PartitionHistory, offset: int, identity: Identity) -> None:
        self.compare(
            any(
                name.offset == offset and history.identities.get(name) == identity
                for name in self._names(history, offset)
            ),
            "{}: {} was acknowledged at {}, where only {} was ever committed",
            history,
            identity,
            offset,
            list(self._names(history, offset)),
        )

    @staticmethod
    def _names(history: PartitionHistory, offset: int) -> list[Name]:
        epochs = sorted(history.terms)
        return [Name(e, offset) for e in epochs if Name(e, offset) in history.ever_committed]


class SyncedIsKept(WatchingChecker):
    """With flush.messages=1, a loss of power loses no records acknowledged with acks=all."""

    invariant = "R6"

    def acknowledged(self, history: PartitionHistory, offset: int, identity: Identity) -> None:
        if not history.is_flushed:
            return
        for worker_id in self.cluster_history.isr(history):
            replica = history.replicas.get(worker_id)
            name = Name(replica.epochs.get(offset, -1) if replica else -1, offset)
            if replica and not replica.is_dark and history.identities.get(name) == identity:
                replica.promised.add(name)

    def opened(
        self, history: PartitionHistory, replica: ReplicaLog, missing: Sequence[Name]
    ) -> None:
        lacks = [name for name in missing if name in replica.promised]
        self.compare(
            not lacks or replica.has_new_disk,
            "{}: worker {} had synced {}, and does not have it after a restart",
            history,
            replica.worker_id,
            lacks[:3],
        )


class AcknowledgedStays(WatchingChecker):
    """A record acknowledged with acks=all is at its acknowledged offset after the faults."""

    invariant = "R6"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self.acked: dict[Place, dict[bytes, tuple[int, Identity]]] = {}  # by value
        self.idempotent: dict[Place, set[bytes]] = {}

    def finals(self, history: PartitionHistory, found: Sequence[tuple[int, bytes]]) -> None:
        places: dict[bytes, list[int]] = {}
        for offset, value in found:
            places.setdefault(value, []).append(offset)
        lost = history.lost_records
        lost |= {(name.offset, history.identities[name]) for name in history.cleaned}
        for value, (offset, identity) in self.acked.get(history.place, {}).items():
            if offset >= history.deleted_to and (offset, identity) not in lost:
                self.compare(
                    offset in places.get(value, []),
                    "{}: {} was acknowledged at offset {}, but is at {}",
                    history,
                    value,
                    offset,
                    places.get(value),
                )


class DeliveredOnce(WatchingChecker):
    """A record of an idempotent producer is in the log at most once, however often it is resent."""

    invariant = "T1"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._sent: dict[tuple[Place, int], set[int]] = {}  # checksums, by producer id

    def sent(self, place: Place, producer_id: int, crcs: Set[int]) -> None:
        """Record what a producer has sent to a partition, by `Identity.crc`."""
        self._sent.setdefault((place, producer_id), set()).update(crcs)

    def finals(self, history: PartitionHistory, found: Sequence[tuple[int, bytes]]) -> None:
        stays = self.cluster_state.checker(AcknowledgedStays)
        idempotent = stays.idempotent.get(history.place, set())
        places: dict[bytes, list[int]] = {}
        for offset, value in found:
            places.setdefault(value, []).append(offset)
        for value, offsets in places.items():
            if value in idempotent:
                self.compare(
                    len(offsets) == 1, "{}: {} is at several offsets: {}", history, value, offsets
                )

    def lost_track(self, history: PartitionHistory, producer_id: int, text: str) -> None:
        """Check that an out-of-order sequence error of a producer has a reason.

        Reasons: the leader was elected without a record of that producer, or the producer's
        records have expired and a replica lost its snapshots of producer state.
        """
        identities = (history.identities.get(name) for name in history.gone_unneeded)
        lost = {identity.crc for _, identity in history.lost_records}
        lost |= {identity.crc for identity in identities if identity is not None}
        own = self._sent.get((history.place, producer_id), set())
        is_excused = not lost.isdisjoint(own) or self._has_expired(history, own)
        self.compare(is_excused, "{}: {}", history, text)

    @staticmethod
    def _has_expired(history: PartitionHistory, own: Set[int]) -> bool:
        """Return whether all records of the producer have expired and snapshots may be lost."""
        offsets = [
            name.offset
            for name in history.ever_committed
            if (identity := history.identities.get(name)) and identity.crc in own
        ]
        may_have_lost = any(replica.may_have_lost for replica in history.replicas.values())
        return may_have_lost and bool(offsets) and max(offsets) < history.deleted_to


class JoinsAreEarned(WatchingChecker):
    """A replica that joins the ISR has reached the start of the leader's epoch.

    A replica that has lost committed records must leave the ISR.
    """

    invariant = "R8"

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        for topic_id, index, was, now in changed_partitions(before, image):
            history = self.cluster_history.history(topic_id, index)
            has_ended = was is not None and (ends_move(was, now) or hands_over(before, was, now))
            joined = was.leader_epoch if was is not None and has_ended else now.leader_epoch
            term = history.terms.get(joined)
            for worker_id in now.isr:
                if was is None or worker_id in was.isr or term is None:
                    continue
                if worker_id == now.leader and not has_ended:
                    continue
                if now.leader < 0:
                    continue  # no replica joins: the ELR was disabled; its members are in the ISR
                replica = history.replicas.get(worker_id)
                self.compare(
                    replica is not None and (replica.end >= term.start_offset or replica.is_dark),
                    "{}: worker {} joins the ISR at log end {}, but epoch {} began at {}",
                    history,
                    worker_id,
                    None if replica is None else replica.end,
                    joined,
                    term.start_offset,
                )
                self.compare(
                    image.is_live(worker_id),
                    "{}: worker {} joins the ISR while fenced",
                    history,
                    worker_id,
                )

    def opened(
        self, history: PartitionHistory, replica: ReplicaLog, missing: Sequence[Name]
    ) -> None:
        """Check that a restarted replica in the ISR or ELR has lost no committed records.

        The only member of an ISR is excused; the only member of an ELR is not.
        """
        isr, elr = self.cluster_history.isr(history), self.cluster_history.elr(history)
        if replica.rotten:
            return  # the worker must register the loss first
        if (replica.worker_id in isr and len(isr) > 1) or replica.worker_id in elr:
            lacks = [name for name in missing if name in history.ever_committed]
            self.compare(
                not lacks,
                "{}: worker {} restarted, is in ISR {} or ELR {}, and has lost {}",
                history,
                replica.worker_id,
                isr,
                elr,
                lacks[:3],
            )


class JoinsFollowFetches(WatchingChecker):
    """A follower that has left the ISR joins it again only after another fetch, as in Kafka.

    What it had fetched before does not count: otherwise a follower that does not run, or that is
    cut off from its leader, would be added again while the high watermark does not move.
    """

    invariant = "R8"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._silent: set[tuple[Place, int]] = set()  # left, and no leader handled a fetch since

    def follower_fetched(self, history: PartitionHistory, worker_id: int) -> None:
        self._silent.discard((history.place, worker_id))

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        for topic_id, index, was, now in changed_partitions(before, image):
            if was is None:
                continue
            history = self.cluster_history.history(topic_id, index)
            joining = {*now.isr}.difference(was.isr)
            if now.leader < 0 or now.leader != was.leader:
                joining = set()  # an election brings the leader, and members of the ELR
            for worker_id in joining:
                self.compare(
                    (history.place, worker_id) not in self._silent,
                    "{}: worker {} joins the ISR {} but has not fetched since it left",
                    history,
                    worker_id,
                    was.isr,
                )
            self._silent.update((history.place, gone) for gone in {*was.isr}.difference(now.isr))
            self._silent.difference_update((history.place, here) for here in now.isr)


class ElectionsAreClean(WatchingChecker):
    """Leaders are elected from the ISR or the ELR; each has a new leader epoch.

    One begins also if a move removes replicas while there is a leader.
    Exceptions: unclean elections that were allowed or requested, and the last leader if the ISR is
    empty and the ELR has no live member.
    """

    invariant = "R9"

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        for topic_id, index, was, now in changed_partitions(before, image):
            history = self.cluster_history.history(topic_id, index)
            if was is None:
                continue
            self.compare(
                now.partition_epoch == was.partition_epoch + 1
                and now.leader_epoch == was.leader_epoch + _begins_epoch(was, now),
                "{}: the epochs of {} and of the next state {} do not match",
                history,
                was,
                now,
            )
            if now.leader in (was.leader, -1, *was.isr, *was.elr) or ends_move(was, now):
                continue
            if hands_over(before, was, now):
                continue
            nobody_left = not was.isr and not any(map(image.is_live, was.elr))
            is_last = nobody_left and now.leader == was.last_leader
            topic = image.topic_names.get(topic_id, "")
            self.compare(
                (topic, index) in self.cluster_history.unclean_asked
                # All replicas are empty: any of them may lead.
                or set(now.replicas) <= {*now.blank, now.leader}
                or (is_last and now.unclean_epoch == now.leader_epoch),
                "{}: worker {} is elected; the ISR was {}, the ELR {}",
                history,
                now.leader,
                was.isr,
                was.elr,
            )


def _begins_epoch(was: PartitionImage, now: PartitionImage) -> bool:
    leaves = was.leader >= 0 and not {*was.replicas} <= {*now.replicas}
    return leaves or now.leader != was.leader


class TopicsAreTheirOwn(WatchingChecker):
    """A topic has no records of an earlier topic of its name, and workers host no deleted topic."""

    invariant = "R10"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._of_batch: dict[int, Place] = {}
        # Batches sent by name may be appended to any topic of that name, and to a later one again.
        self.by_name: set[int] = set()

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        for _, (crc, number) in entries:
            if number == 0 and crc not in self.by_name:
                known = self._of_batch.setdefault(crc, history.place)
                self.compare(
                    known == history.place,
                    "worker {} has a batch of partition {} in {}",
                    replica.worker_id,
                    known,
                    history,
                )

    def finals(self, history: PartitionHistory, found: Sequence[tuple[int, bytes]]) -> None:
        own = history.place.topic_id.hex().encode()
        for offset, value in found:
            self.compare(
                value.startswith((own, b"by name ")), "{} has {} at {}", history, value, offset
            )

    def hosted(self, worker_id: int, of_no_topic: Sequence[str]) -> None:
        """Check what a worker has of topics that do not exist, long after the faults: nothing."""
        self.compare(not of_no_topic, "worker {} has {}", worker_id, ", ".join(of_no_topic))


class TimesAreFound(WatchingChecker):
    """ListOffsets by timestamp returns the first offset that a scan of the log finds."""

    invariant = "L5"

    def looked_up(
        self,
        history: PartitionHistory,
        timestamp_ms: int,
        found: int,
        times: Sequence[tuple[int, int]],
    ) -> None:
        """Compare the offset `found` with `times`: timestamp (ms) and offset of each record."""
        first = next((offset for known_ms, offset in times if known_ms >= timestamp_ms), -1)
        self.compare(
            found == first,
            "{}: the first record of timestamp {} or later is at {}, but the leader returned {}",
            history,
            timestamp_ms,
            first,
            found,
        )


REPLICATION_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    AnswersInTheirOrder,
    ClusterIsOneLog,
    ClusterImagesAreOne,
    AnswersHold,
    CreatedIsVisible,
    LeadersIsrAgrees,
    QuorumsIsrAgrees,
    EligibleHaveAll,
    CommittedIsOneSequence,
    LeadersAreInSync,
    NamesAreForEver,
    LogsMatch,
    CutByEpoch,
    FencedByEpoch,
    HighWatermarkNeedsIsr,
    HighWatermarkStays,
    ReadsAreCommitted,
    ClaimsAreRefused,
    LiesStayOut,
    AcknowledgedIsCommitted,
    SyncedIsKept,
    AcknowledgedStays,
    DeliveredOnce,
    JoinsAreEarned,
    JoinsFollowFetches,
    ElectionsAreClean,
    TopicsAreTheirOwn,
    TimesAreFound,
)
