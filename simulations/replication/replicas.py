"""Cluster history: the records of every replica of every partition, as the probes report them.

The checkers of replication compare *true* logs, not the nodes' views of each other. The cluster
history therefore keeps a copy of each replica's log: for each offset, the leader epoch of the
record there. (epoch, offset) always names the same record (R4, itself checked), so two logs agree
where their epochs agree.

    appended, cut, opened    a replica's log has changed, or was read from its disk
    leads, advanced          a replica becomes leader, or advances its high watermark
    metadata                 the quorum has committed records; `image` is the metadata after them
    cleaned, retained        compaction removed records of one replica, or retention its oldest ones

Replicas apply compaction and retention independently: records that one of them removed for an
accepted reason may be missing from the others (`PartitionHistory.cleaned`, `expired_to`). If
workers change batches (compaction, `compression.type`), a record is identified by its contents
instead of the CRC of its batch.

A replica may *lose* records: its machine lost its disk, or lost power before the records were
synced. A truncation of records that the leader does not have is not a loss. Records that are
missing after kill -9 are not an accepted loss, but a violation.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import crc32c

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataDelta, MetadataImage, PartitionImage
from metaquorum.metadata.records import MetadataRecord, RegisterWorkerRecord, UnregisterWorkerRecord
from metaquorum.metadata.replay import Replay, replay
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.cluster.voter_group import CLUSTER_ID
from metaquorum.simulations.kernel.machine import Machine
from metaquorum.simulations.kernel.storage import Storage
from metaquorum.simulations.replication.partition_transactions import (
    Kind,
    LogTransactions,
    Stamp,
    transactions_of,
)
from metaquorum.wire.records.compression import Codec


class Place(NamedTuple):
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id.hex()[:6]}-{self.partition}"


class Name(NamedTuple):
    """Permanent name of one record of a partition."""

    leader_epoch: int
    offset: int


class Identity(NamedTuple):
    """Identity of a record's data: the CRC of its batch, and its number in the batch."""

    crc: int
    number: int


class Content(NamedTuple):
    """Contents of one record, independent of the compression of its batch."""

    key: bytes | None
    text: bytes  # unique in a world: the value, or the header of a tombstone
    is_tombstone: bool
    is_control: bool = False  # a marker: the same in all partitions of a transaction

    @property
    def identity(self) -> Identity:
        number = -1 if self.is_control else 0
        return Identity(crc32c.crc32c((self.key or b"") + b"|" + self.text), number)


class Entry(NamedTuple):
    name: Name
    identity: Identity


class ReadableEnds(NamedTuple):
    """Ends of what consumers may read of a replica, with read_committed and without."""

    last_stable_offset: int
    high_watermark: int


class Role(NamedTuple):
    """Role of a replica, by the metadata that its worker has applied."""

    leader_epoch: int
    leads: bool


# With at least this `delete.retention.ms`, tombstones outlive any world: faults never set the
# clocks of two workers further apart.
TOMBSTONES_STAY_MS: Final = 2 * 24 * 3600 * 1000
# Role of records that were on the disk when a process opened the log.
FROM_DISK: Final = Role(-1, leads=False)


@dataclass(slots=True, eq=False)
class ReplicaLog:
    """Log of one worker's replica of a partition."""

    worker_id: int
    machine: Machine
    incarnation: bytes = b""  # incarnation id of the process that has opened the log
    start: int = 0
    end: int = 0
    epochs: dict[int, int] = field(default_factory=dict)  # by offset
    # Records that this replica lost with its machine's power or disk, or by damage.
    lost: set[Name] = field(default_factory=set)
    rotted: set[Name] = field(default_factory=set)  # those of `lost` that damage destroyed
    power_cuts: int = 0
    rotten: bool = False  # records were damaged, and no process has opened the log since
    has_to_tell: bool = False  # this process found records missing; it registers that as a loss
    damaged: bool = False  # some bytes of the log were changed on the disk
    was_damaged: bool = False  # whether `damaged` was ever true
    storage: Storage | None = None  # the storage where the log was opened
    has_new_disk: bool = False  # the log was empty on a new disk, and filled since
    images_put_back: int = 0  # older images put back on the opened storage
    cuts: int = 0  # truncations
    # Faults of its machine that the worker had registered before the topic was created.
    earlier_power_cuts: int = 0
    earlier_sync_failures: int = 0
    # Records that were synced here when they were acknowledged.
    promised: set[Name] = field(default_factory=set)
    transactions: LogTransactions = field(default_factory=LogTransactions)

    @property
    def is_dark(self) -> bool:
        """Whether the machine has lost power, and no process has opened the log since."""
        return self.power_cuts != len(self.machine.power_cuts)

    @property
    def sync_failures(self) -> int:
        """Number of sync failures of the replica's machine."""
        return self.machine.faults.happened.get("sync failed", 0)

    @property
    def may_have_lost(self) -> bool:
        """Whether the replica may have lost records since the topic was created.

        Power cuts, failed syncs and damage may lose records; failed reads and full disks do not.
        """
        return (
            len(self.machine.power_cuts) > self.earlier_power_cuts
            or self.sync_failures > self.earlier_sync_failures
            or self.was_damaged
        )

    def holds(self, name: Name) -> bool:
        return self.epochs.get(name.offset) == name.leader_epoch


@dataclass(slots=True, eq=False)
class Term:
    """One leader epoch of a partition."""

    worker_id: int
    run: int  # run of the leader's machine
    start_offset: int  # log end offset when it became the leader
    high_watermark: int
    log_start_offset: int
    epochs: dict[int, int]  # leader epochs of the records that it had then, by offset

    def has(self, epoch: int, name: Name) -> bool:
        """Return whether this term's leader, that of `epoch`, has or may have had the record."""
        if name.leader_epoch == epoch or name.offset < self.log_start_offset:
            return True
        return self.epochs.get(name.offset) == name.leader_epoch


class LogStartMove(NamedTuple):
    """Move of one replica's log start offset from `old` to `new`."""

    old: int
    new: int
    high_watermark: int  # known to that replica
    folder: str
    retention_now_ms: int | None  # wall clock of the retention; None: DeleteRecords or the leader


@dataclass(slots=True, eq=False)
class PartitionHistory:
    place: Place
    deletions: dict[tuple[str, int], int]  # highest offset that a DeleteRecords request named
    topic: str = ""
    replicas: dict[int, ReplicaLog] = field(default_factory=dict)
    # Replicas whose logs were deleted since a move has removed them, the last one of each worker.
    removed: dict[int, ReplicaLog] = field(default_factory=dict)
    identities: dict[Name, Identity] = field(default_factory=dict)
    before: dict[Name, int | None] = field(default_factory=dict)  # epoch at the previous offset
    terms: dict[int, Term] = field(default_factory=dict)  # by leader epoch
    # Leader epoch at each offset below the high watermark of any leader.
    committed: dict[int, int] = field(default_factory=dict)
    ever_committed: set[Name] = field(default_factory=set)
    # Committed records lost for an accepted reason, with the leader that lost them, and its disk.
    gone: dict[Name, tuple[int, Storage]] = field(default_factory=dict)
    # As `gone`, for records that were deleted, expired or compacted away before: no client needs
    # them, but the producers' sequences are lost with them.
    gone_unneeded: set[Name] = field(default_factory=set)
    was_unclean: bool = False  # a leader was neither in the ISR or ELR, nor the last leader
    # Records committed by a leader that did not know a newer, uncleanly elected leader.
    deposed: set[Name] = field(default_factory=set)
    # Power cuts and sync failures before the topic was created, by worker id.
    earlier_faults: dict[int, tuple[int, int]] = field(default_factory=dict)
    is_flushed: bool = False  # each record is synced before it is acknowledged
    # Overrides of the topic's configs at its creation.
    configs: Mapping[str, str] = field(default_factory=dict)
    # Records that compaction removed from some replica for an accepted reason.
    cleaned: set[Name] = field(default_factory=set)
    # Highest log start offset to which retention has moved a replica for an accepted reason.
    expired_to: int = 0
    # Transactional records and markers that any replica has had; the markers also by producer id.
    stamps: dict[Name, Stamp] = field(default_factory=dict)
    markers: dict[int, list[Name]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.topic}/{self.place}"

    @property
    def deleted_to(self) -> int:
        """Offset below which replicas need no records: deleted, or expired by retention.

        Deletions are recorded by topic name: the request may reach a later topic of that name.
        """
        return max(self.deletions.get((self.topic, self.place.partition), 0), self.expired_to)

    @property
    def compacts(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")

    @property
    def committed_names(self) -> Iterator[Name]:
        deleted_to = self.deleted_to
        for offset, epoch in self.committed.items():
            if offset >= deleted_to and (name := Name(epoch, offset)) not in self.cleaned:
                yield name

    def stamped(self, name: Name, stamp: Stamp) -> None:
        """Note that the record is transactional, or a marker."""
        if name not in self.stamps:
            self.stamps[name] = stamp
            if stamp.is_marker:
                self.markers.setdefault(stamp.producer_id, []).append(name)

    def marker_after(self, name: Name) -> Name | None:
        """Return the marker that ends the transaction of a record; None without one.

        A committed one, or else one that may not be replicated yet.
        """
        later = [
            marker
            for marker in self.markers.get(self.stamps[name].producer_id, ())
            if marker.offset > name.offset
            and marker.leader_epoch >= name.leader_epoch
            and marker not in self.gone
        ]
        committed = [marker for marker in later if marker in self.ever_committed]
        return min(committed or later, key=lambda marker: marker.offset, default=None)

    def ending(self, name: Name) -> Kind:
        """Return how the transaction of a record has ended; DATA: not yet. Else its committed."""
        if name not in self.stamps:
            return Kind.COMMIT
        marker = self.marker_after(name)
        return Kind.DATA if marker is None else self.stamps[marker].kind

    @property
    def lost_records(self) -> set[tuple[int, Identity]]:
        """Committed records that may be missing at the end of the run; no others may."""
        names = (*self.gone, *self.deposed)
        return {(name.offset, self.identities[name]) for name in names if name in self.identities}


class ReplicaChecker(ClusterChecker):
    """Checker that is notified of all changes of replicas, in the order in which they happen."""

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        """Check records that the replica is about to append in `role`."""

    def cut(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name], role: Role
    ) -> None:
        """Check records that the replica is about to truncate."""

    def opened(
        self, history: PartitionHistory, replica: ReplicaLog, missing: Sequence[Name]
    ) -> None:
        """Check a log that a process has opened; `missing` are records that it had before."""

    def changed_dir(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name], start: int
    ) -> None:
        """Check the log that replaces another in another log directory: its records, its start."""

    def retired(self, history: PartitionHistory, replica: ReplicaLog) -> None:
        """Check a replica whose worker is about to delete its log, while the topic exists."""

    def refused(self, worker_id: int, folder: str, reason: str) -> None:
        """Check the refusal of a process to open a log that it considers damaged or incomplete."""

    def leads(self, history: PartitionHistory, replica: ReplicaLog, epoch: int, term: Term) -> None:
        """Check a replica that becomes the leader."""

    def advanced(
        self,
        history: PartitionHistory,
        replica: ReplicaLog,
        old: int,
        new: int,
        view: PartitionImage,
    ) -> None:
        """Check a leader that moves its high watermark to `new`; `view` is its partition state."""

    def took(self, history: PartitionHistory, replica: ReplicaLog, damaged: Sequence[int]) -> None:
        """Check batches that a follower appended; `damaged`: base offsets with a wrong CRC."""

    def cleaned(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name]
    ) -> None:
        """Check records that compaction is about to remove from the replica."""

    def retained(
        self, history: PartitionHistory, replica: ReplicaLog, moved: "LogStartMove"
    ) -> None:
        """Check a move of the replica's log start offset."""

    def stable(
        self, history: PartitionHistory, replica: ReplicaLog, ends: ReadableEnds, role: Role
    ) -> None:
        """Check the last stable offset of a replica after its log or high watermark changed."""

    def stored(
        self, history: PartitionHistory, replica: ReplicaLog, codecs: Sequence[Codec]
    ) -> None:
        """Check the codecs of batches that a leader has appended."""

    def follower_fetched(self, history: PartitionHistory, worker_id: int) -> None:
        """Record that the leader handles a fetch of the partition by the follower `worker_id`."""

    def unregistered(self, worker: RegisterWorkerRecord) -> None:
        """Check a worker that the quorum is about to unregister; `worker`: its last state."""

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """Check the metadata after the quorum has committed a batch."""


class ClusterHistory:
    """All partitions of one world, and the committed metadata."""

    def __init__(self, cluster_state: ClusterState) -> None:
        self.cluster_state = cluster_state
        self.world = cluster_state.world
        self.image = MetadataImage.empty(CLUSTER_ID)
        self.histories: dict[Place, PartitionHistory] = {}
        # Contents of all records seen, if records are identified by contents; else None.
        self.contents: dict[Identity, Content] | None = None
        # Damaged logs that an operator has moved away, by worker and (topic, partition).
        # Checkpoints do not contain the topic id.
        self.moved_away: set[tuple[int, tuple[str, int]]] = set()
        self.unclean_asked: set[tuple[str, int]] = set()
        self.deletions: dict[tuple[str, int], int] = {}
        self._waiting: dict[int, Batch] = {}
        # Time of the last registration, and the sync failures before it, by worker id.
        self._registered: dict[int, tuple[float, int]] = {}

    @property
    def checkers(self) -> list[ReplicaChecker]:
        return [each for each in self.cluster_state.checkers if isinstance(each, ReplicaChecker)]

    def history(self, topic_id: bytes, partition: int) -> PartitionHistory:
        place = Place(topic_id, partition)
        history = self.histories.get(place)
        if history is None:
            history = self.histories[place] = PartitionHistory(place, self.deletions)
            history.earlier_faults = self._reported_faults()
        history.topic = history.topic or self.image.topic_names.get(topic_id, "")
        if self.contents is not None and not history.configs and topic_id in self.image.topic_names:
            history.configs = dict(self.image.topic_configs(history.topic))
        return history

    def _reported_faults(self) -> dict[int, tuple[int, int]]:
        """Return the power cuts and sync failures of workers that have registered since.

        A sync failure counts once the process has registered that started after it: a topic may be
        created while the worker's earlier registration is still in force, or while the process ends
        because of the failure.
        """
        reported: dict[int, tuple[int, int]] = {}
        for member in self.cluster_state.workers:
            worker_id, machine = member.config.node_id, member.supervisor.machine
            registered_at, sync_failures = self._registered.get(worker_id, (-1.0, 0))
            if machine.running and registered_at > max(machine.power_cuts, default=-2.0):
                is_known = registered_at >= machine.started_at
                reported[worker_id] = len(machine.power_cuts), sync_failures if is_known else 0
        return reported

    def state(self, history: PartitionHistory) -> PartitionImage | None:
        """Return the partition in the committed metadata; None if the topic does not exist."""
        topic = self.image.topic_by_id(history.place.topic_id)
        if topic is None or history.place.partition >= len(topic.partitions):
            return None
        return topic.partitions[history.place.partition]

    def isr(self, history: PartitionHistory) -> tuple[int, ...]:
        state = self.state(history)
        return () if state is None else state.isr

    def elr(self, history: PartitionHistory) -> tuple[int, ...]:
        state = self.state(history)
        return () if state is None else state.elr

    def replica(self, history: PartitionHistory, worker_id: int) -> ReplicaLog:
        replica = history.replicas.get(worker_id)
        if replica is None:
            machine = self.cluster_state.members[worker_id].supervisor.machine
            replica = history.replicas[worker_id] = ReplicaLog(worker_id, machine)
            replica.power_cuts = len(machine.power_cuts)
            earlier = history.earlier_faults.get(worker_id, (0, 0))
            replica.earlier_power_cuts, replica.earlier_sync_failures = earlier
        return replica

    def may_lack(self, history: PartitionHistory, replica: ReplicaLog, name: Name) -> bool:
        """Return whether the record may be missing from a replica in the ISR or ELR.

        It may if the replica has lost the record, and either the quorum does not know that yet, or
        the replica was elected uncleanly and is alone in the ISR.
        """
        if not replica.is_dark and not replica.rotten and name not in replica.lost:
            return False
        if replica.has_to_tell and not self.image.is_live(replica.worker_id):
            return True
        if replica.is_dark and self._incarnation(replica.worker_id) == replica.incarnation:
            return True
        state = self.state(history)
        if state is not None and replica.worker_id not in (*state.isr, *state.elr):
            return True  # the quorum has removed it, which a leader that was paused does not know
        return (
            state is not None
            and state.isr == (replica.worker_id,)
            and state.unclean_epoch >= state.leader_epoch
        )

    def _incarnation(self, worker_id: int) -> bytes:
        """Return the incarnation id of the worker's last registration, also if unregistered."""
        last = self.image.last_registration(worker_id)
        return b"" if last is None else last.incarnation_id

    def has_left(self, history: PartitionHistory, worker_id: int) -> bool:
        """Return whether a move has removed the replica, which its leader may not know yet.

        It may have been added again since, with an empty log.
        """
        state = self.state(history)
        return worker_id in history.removed and (
            state is None or worker_id not in (*state.isr, *state.elr)
        )

    def is_deposed(self, history: PartitionHistory, view: PartitionImage) -> bool:
        """Return whether a newer leader was elected uncleanly, unknown to the replica with `view`.

        Records that this replica commits are lost, as unclean elections permit.
        """
        state = self.state(history)
        return state is not None and state.unclean_epoch > view.leader_epoch

    # Events that the probes report

    def appended(
        self,
        history: PartitionHistory,
        replica: ReplicaLog,
        entries: Sequence[Entry],
        role: Role,
    ) -> None:
        for checker in self.checkers:
            checker.appended(history, replica, entries, role)
        for name, _ in entries:
            self.skipped(history, replica, name.offset)
            replica.epochs[name.offset] = name.leader_epoch
            replica.lost.discard(name)
            replica.rotted.discard(name)
            replica.end = name.offset + 1
            if (stamp := history.stamps.get(name)) is not None:
                replica.transactions.add(name.offset, stamp)

    @staticmethod
    def skipped(history: PartitionHistory, replica: ReplicaLog, end: int) -> None:
        """Move the log end to `end`, over records that were cleaned away elsewhere before."""
        if end <= replica.end:
            return
        stamps = history.stamps
        for name in sorted(history.cleaned, key=lambda name: name.offset):
            if replica.end <= name.offset < end and name in stamps:
                replica.transactions.add_cleaned(name.offset, stamps[name])
        replica.end = end

    def took(self, history: PartitionHistory, replica: ReplicaLog, damaged: Sequence[int]) -> None:
        for checker in self.checkers:
            checker.took(history, replica, damaged)

    def cut(
        self, history: PartitionHistory, replica: ReplicaLog, end: int, start: int, role: Role
    ) -> None:
        names = [Name(e, o) for o, e in replica.epochs.items() if o >= end]
        for checker in self.checkers:
            checker.cut(history, replica, names, role)
        for name in names:
            del replica.epochs[name.offset]
            replica.promised.discard(name)
        replica.end = end
        replica.cuts += 1
        self.started(replica, start)
        self._read_transactions(history, replica)
        if names:
            self.world.count("truncations")
            self.world.count("records cut by followers", len(names))

    def cleaned(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name]
    ) -> None:
        """Remove compacted records from the copy of the replica's log."""
        for checker in self.checkers:
            checker.cleaned(history, replica, names)
        self._forget_cleaned(history, replica, names)

    def _forget_cleaned(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name]
    ) -> None:
        for name in names:
            replica.epochs.pop(name.offset, None)
            replica.promised.discard(name)
        history.cleaned.update(names)
        if names:
            self.world.count("records compacted away", len(names))

    def is_superseded(
        self, history: PartitionHistory, replica: ReplicaLog, names: Collection[Name]
    ) -> list[tuple[Name, bool]]:
        """Return for each record of a compacted topic whether compaction may remove it.

        It may if the same replica has a later committed record with the same key, or had a later
        tombstone that has expired. Faults may set a worker's clock to any time, so a tombstone
        counts as expired unless its retention reaches `TOMBSTONES_STAY_MS`.
        """
        assert self.contents is not None
        taken = set(names)
        last: dict[bytes | None, int] = {}
        for offset, epoch in replica.epochs.items():
            name = Name(epoch, offset)
            if history.stamps and history.ending(name) is not Kind.COMMIT:
                continue  # not a value of its key
            if name not in taken and name in history.ever_committed:
                key = self.contents[history.identities[name]].key
                last[key] = max(last.get(key, -1), offset)
        if int(history.configs.get("delete.retention.ms", 0)) < TOMBSTONES_STAY_MS:
            for name in (*history.cleaned, *taken):
                content = self.contents[history.identities[name]]
                if content.is_tombstone:  # an expired tombstone itself may be removed, too
                    last[content.key] = max(last.get(content.key, -1), name.offset + 1)
        return [
            (
                name,
                self._is_over(history, replica, name, taken)
                or last.get(self.contents[history.identities[name]].key, -1) > name.offset,
            )
            for name in names
        ]

    def _is_over(
        self, history: PartitionHistory, replica: ReplicaLog, name: Name, taken: Set[Name]
    ) -> bool:
        """Return whether the record is of an aborted transaction, or a marker without records.

        A marker may be removed once `delete.retention.ms` is over, if the replica has no record of
        its transaction left.
        """
        stamp = history.stamps.get(name)
        if stamp is None:
            return False
        if not stamp.is_marker:
            return history.ending(name) is Kind.ABORT
        if int(history.configs.get("delete.retention.ms", 0)) >= TOMBSTONES_STAY_MS:
            return False
        return not any(
            other.producer_id == stamp.producer_id
            and each not in taken
            and replica.holds(each)
            and history.marker_after(each) == name
            for each, other in history.stamps.items()
            if not other.is_marker
        )

    def moved(self, history: PartitionHistory, replica: ReplicaLog, move: LogStartMove) -> None:
        """Move the log start offset of the replica, and remove the records below it."""
        if move.new > move.old:
            for checker in self.checkers:
                checker.retained(history, replica, move)
            if move.retention_now_ms is not None:
                history.expired_to = max(history.expired_to, move.new)
                self.world.count("log starts moved by retention")
        self.started(replica, move.new)

    def stable(
        self, history: PartitionHistory, replica: ReplicaLog, ends: ReadableEnds, role: Role
    ) -> None:
        for checker in self.checkers:
            checker.stable(history, replica, ends, role)

    def stored(
        self, history: PartitionHistory, replica: ReplicaLog, codecs: Sequence[Codec]
    ) -> None:
        for checker in self.checkers:
            checker.stored(history, replica, codecs)

    def follower_fetched(self, history: PartitionHistory, worker_id: int) -> None:
        for checker in self.checkers:
            checker.follower_fetched(history, worker_id)

    def started(self, replica: ReplicaLog, start: int) -> None:
        """Remove the records below `start` from the copy of the log."""
        if start > replica.start:
            for offset in [offset for offset in replica.epochs if offset < start]:
                del replica.epochs[offset]
        replica.start = start

    def opened(
        self,
        history: PartitionHistory,
        replica: ReplicaLog,
        start: int,
        end: int,
        entries: Sequence[Entry],
    ) -> None:
        now = {name.offset: name.leader_epoch for name, _ in entries}
        missing = [Name(e, o) for o, e in replica.epochs.items() if o >= start and now.get(o) != e]
        if missing and self.contents is not None and history.compacts:
            # The next start completes a cleaning that a stop has interrupted.
            cleaned = [
                name
                for name, is_superseded in self.is_superseded(history, replica, missing)
                if is_superseded and name.offset < end and name in history.ever_committed
            ]
            self._forget_cleaned(history, replica, cleaned)
            missing = [name for name in missing if name not in history.cleaned]
        if replica.is_dark or replica.rotten:
            replica.lost.update(missing)
            if replica.rotten:
                replica.rotted.update(missing)
            self.world.count("records lost by replicas", len(missing))
        replica.power_cuts = len(replica.machine.power_cuts)
        has_other_disk = replica.storage not in (None, replica.machine.storage)
        # A worker recognizes an empty disk as new, but not an older image of its own disk.
        is_older = (
            has_other_disk and replica.images_put_back != replica.machine.storage.images_put_back
        )
        replica.has_new_disk = has_other_disk and not is_older
        replica.storage = replica.machine.storage
        replica.images_put_back = replica.storage.images_put_back
        if has_other_disk or replica.rotten:
            replica.promised.clear()
        replica.damaged = replica.damaged and not replica.has_new_disk
        replica.incarnation = self._incarnation(replica.worker_id)
        for checker in self.checkers:
            checker.opened(history, replica, missing)
            checker.appended(history, replica, entries, FROM_DISK)
        replica.has_to_tell, replica.rotten = replica.rotten, False
        replica.lost.difference_update(name for name, _ in entries)
        replica.epochs, replica.start, replica.end = now, start, end
        self._read_transactions(history, replica)

    def changed_dir(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name], start: int
    ) -> None:
        for checker in self.checkers:
            checker.changed_dir(history, replica, names, start)
        self.world.count("logs moved between directories")

    @staticmethod
    def _read_transactions(history: PartitionHistory, replica: ReplicaLog) -> None:
        """Read the transactions off the replica's log again; also those below its start."""
        names = {Name(epoch, offset) for offset, epoch in replica.epochs.items()}
        names |= {name for name in history.ever_committed if name.offset < replica.start}
        cleaned = {name for name in history.cleaned if name.offset < replica.end} - names
        stamps = history.stamps
        replica.transactions = transactions_of(
            (
                (name.offset, stamps[name])
                for name in sorted(names | cleaned, key=lambda name: name.offset)
                if name in stamps
            ),
            {name.offset for name in cleaned},
        )

    def retired(self, history: PartitionHistory, replica: ReplicaLog) -> None:
        """Drop the replica, whose worker is about to delete its log while the topic exists."""
        for checker in self.checkers:
            checker.retired(history, replica)
        history.removed[replica.worker_id] = replica
        del history.replicas[replica.worker_id]
        self.world.count("logs deleted by moves")

    def refused(self, worker_id: int, folder: str, reason: str) -> None:
        for checker in self.checkers:
            checker.refused(worker_id, folder, reason)

    def leads(
        self, history: PartitionHistory, replica: ReplicaLog, epoch: int, high_watermark: int
    ) -> None:
        run = replica.machine.runs
        term = Term(
            replica.worker_id, run, replica.end, high_watermark, replica.start, dict(replica.epochs)
        )
        for checker in self.checkers:
            checker.leads(history, replica, epoch, term)
        history.terms.setdefault(epoch, term)

    def advanced(
        self,
        history: PartitionHistory,
        replica: ReplicaLog,
        old: int,
        new: int,
        view: PartitionImage,
    ) -> None:
        for checker in self.checkers:
            checker.advanced(history, replica, old, new, view)
        for offset in range(old, new):
            epoch = replica.epochs.get(offset)
            if epoch is not None:
                if self.is_deposed(history, view):
                    history.deposed.add(Name(epoch, offset))
                else:
                    history.committed[offset] = epoch
                history.ever_committed.add(Name(epoch, offset))

    def applied(self, batch: Batch) -> None:
        """Apply a metadata batch that some node has applied, and that is therefore committed."""
        if batch.expected_offset < self.image.end_offset:
            return
        self._waiting[batch.expected_offset] = batch
        while (due := self._waiting.pop(self.image.end_offset, None)) is not None:
            before, steps = self.image, Replay(self.image)
            records = list(due.records())
            self._unregistered(records)
            for record in records:
                if isinstance(record, RegisterWorkerRecord):
                    machine = self.cluster_state.members[record.worker_id].supervisor.machine
                    failures = machine.faults.happened.get("sync failed", 0)
                    self._registered[record.worker_id] = self.world.now, failures
            steps.apply(records)
            self.image, delta = steps.finish()
            self._elected(before)
            for checker in self.checkers:
                checker.metadata(before, self.image, delta)

    def _unregistered(self, records: Sequence[MetadataRecord]) -> None:
        for number, record in enumerate(records):
            if isinstance(record, UnregisterWorkerRecord):
                image, _ = replay(self.image, records[:number])
                for checker in self.checkers:
                    checker.unregistered(image.workers[record.worker_id])

    def _elected(self, before: MetadataImage) -> None:
        """Record which records the election of new leaders loses for an accepted reason."""
        for topic, index, was, now in changed_partitions(before, self.image):
            history = self.history(topic, index)
            self.world.say(
                "metadata", f"{self.image.topic_names.get(topic)}/{history.place}: {now}"
            )
            if was is None or now.leader == was.leader or now.leader < 0:
                continue
            is_unclean = False
            if now.leader in was.isr or ends_move(was, now) or hands_over(before, was, now):
                pass
            elif now.leader in was.elr:
                self.world.count("eligible replicas elected")
            elif now.leader == was.last_leader:
                self.world.count("last leaders elected")
            else:
                is_unclean = history.was_unclean = True
                self.world.count("unclean elections")
            replica = self.replica(history, now.leader)
            # No other eligible replica might have the records that are damaged here.
            is_alone = {*was.isr, *was.elr} <= {now.leader}
            is_doubtful = now.unclean_epoch == now.leader_epoch
            if not (is_doubtful or is_alone) or (replica.is_dark and not is_unclean):
                continue
            for name in list(history.committed_names):
                is_elsewhere = any(other.holds(name) for other in history.replicas.values())
                if not replica.holds(name) and (
                    (is_alone and name in replica.rotted)
                    or (is_doubtful and is_unclean)
                    # A replica with a new disk must not lead if another has records that it lost.
                    or (
                        is_doubtful
                        and name in replica.lost
                        and not (replica.has_new_disk and is_elsewhere)
                    )
                ):
                    del history.committed[name.offset]
                    history.gone[name] = replica.worker_id, replica.machine.storage
                    self.world.count("committed records lost by the last replica in sync")
            for offset, epoch in list(history.committed.items()):
                name = Name(epoch, offset)
                has_another = replica.epochs.get(offset, epoch) != epoch
                if (offset < replica.end and not has_another) or name in history.gone:
                    continue
                if name in history.cleaned:
                    # Compacted away before, and either beyond the new leader's log end, or replaced
                    # by a record that the new leader had never committed.
                    del history.committed[offset]
                    history.gone_unneeded.add(name)
                elif offset < history.deleted_to:
                    history.gone_unneeded.add(name)


def ends_move(was: PartitionImage, now: PartitionImage) -> bool:
    """Return whether the change ends a move: it brings the last replica of the target into sync.

    The first replica of the target may lead from then on; it was perhaps not in the ISR before. An
    unclean election of the only replica of the target ends the move as well, but brings no replica
    into sync.
    """
    is_unclean = now.unclean_epoch == now.leader_epoch > was.leader_epoch
    has_all = {*now.isr} == {*now.replicas} == {*was.target}
    return was.is_moving and not now.is_moving and has_all and not is_unclean


def hands_over(before: MetadataImage, was: PartitionImage, now: PartitionImage) -> bool:
    """Return whether a leader on a draining worker is replaced by a replica that joins the ISR.

    `before`: the metadata in which the worker drains.
    """
    worker = before.workers.get(was.leader)
    is_draining = worker is not None and worker.draining
    return is_draining and {*was.isr, was.leader, now.leader} <= {*now.isr}


def changed_partitions(
    before: MetadataImage, image: MetadataImage
) -> Iterator[tuple[bytes, int, PartitionImage | None, PartitionImage]]:
    """Yield topic id, partition index, and the partition's state before (or None) and now."""
    for some in image.topics.without(before.topics):
        for name, topic in some:
            known = before.topic(name)
            old = known.partitions if known and known.topic_id == topic.topic_id else ()
            for index, now in enumerate(topic.partitions):
                was = old[index] if index < len(old) else None
                if was is not now and was != now:
                    yield topic.topic_id, index, was, now
