"""What every replica of every partition holds, record by record, told by eyes on the shipped code.

The checkers of replication compare *true* logs, not what nodes believe of each other. So there is a
copy of each replica's log, kept from outside: of each offset, the leader epoch of the record there.
(epoch, offset) names one record for ever (R4, checked here first of all), and therefore two logs
agree where their epochs do.

    appended, cut, opened    a replica's own log has changed, or was read from its disk
    leads, advanced          somebody says that it leads, and that so much is committed
    metadata                 the quorum has committed records; `image` is their fold
    cleaned, retained        compaction took records of one replica, or retention its oldest ones

Replicas compact and retain on their own, so that what one of them rightly gave up the others need
not have (`PartitionHistory.cleaned`, `expired_to`). Where batches are changed by workers
(compaction, `compression.type`), a record is known by its contents and not by the checksum of its
batch.

A replica may *lose* records that it had: its machine lost power before they were synced, or its
disk. What it cuts because its leader has them not it has not lost, and neither what it does not
find any more after kill -9: that would be a mistake.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import crc32c

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataDelta, MetadataImage, PartitionImage
from metaquorum.metadata.records import MetadataRecord, RegisterWorkerRecord, UnregisterWorkerRecord
from metaquorum.metadata.replay import Replay, replay
from simulations.cluster.cluster_state import ClusterChecker, ClusterState
from simulations.cluster.voter_group import CLUSTER_ID
from simulations.kernel.machine import Machine
from simulations.kernel.storage import Storage
from wire.records.compression import Codec


class Place(NamedTuple):
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id.hex()[:6]}-{self.partition}"


class Name(NamedTuple):
    """Of one record, for ever."""

    leader_epoch: int
    offset: int


class Identity(NamedTuple):
    """Which record that is: the checksum of its batch, and its place in there."""

    crc: int
    number: int


class Content(NamedTuple):
    """What one record says, however the batch is compressed that it stands in."""

    key: bytes | None
    text: bytes  # unique in a world: the value, or what a tombstone carries in a header
    is_tombstone: bool

    @property
    def identity(self) -> Identity:
        return Identity(crc32c.crc32c((self.key or b"") + b"|" + self.text), 0)


class Entry(NamedTuple):
    name: Name
    identity: Identity


class Role(NamedTuple):
    """Of a replica, as its worker has heard from the metadata."""

    leader_epoch: int
    leads: bool


# Tombstones that are to stay for so long stay as long as any world: the clocks of two workers never
# differ by more, wherever troubles set them.
TOMBSTONES_STAY_MS: Final = 2 * 24 * 3600 * 1000
# What was on a disk when a process opened it.
FROM_DISK: Final = Role(-1, leads=False)


@dataclass(slots=True, eq=False)
class ReplicaLog:
    """What one worker's replica of a partition holds."""

    worker_id: int
    machine: Machine
    incarnation: bytes = b""  # the id of the process that has opened it
    start: int = 0
    end: int = 0
    epochs: dict[int, int] = field(default_factory=dict)  # by offset
    # Names of records that this replica had, until its machine lost power or its disk.
    lost: set[Name] = field(default_factory=set)
    rotted: set[Name] = field(default_factory=set)  # of these, what went by damage
    power_cuts: int = 0
    rotten: bool = False  # records were damaged, and nobody has opened the log since
    has_to_tell: bool = False  # this process has found less, which it says before it is live
    damaged: bool = False  # some of its bytes on the disk are not what they were
    was_damaged: bool = False  # that was so at any time
    storage: Storage | None = None  # as it was opened
    has_new_disk: bool = False  # all that it has it has got since
    images_put_back: int = 0  # of the disk that was opened
    cuts: int = 0  # of the end of the log
    # Of its machine, of which its worker had told before the topic was made.
    earlier_power_cuts: int = 0
    earlier_sync_failures: int = 0
    # Names of records that it had synced when they were acknowledged.
    promised: set[Name] = field(default_factory=set)

    @property
    def is_dark(self) -> bool:
        """Its machine has lost power, and nobody has looked at the log since."""
        return self.power_cuts != len(self.machine.power_cuts)

    @property
    def sync_failures(self) -> int:
        """Of its machine, so far."""
        return self.machine.faults.happened.get("sync failed", 0)

    @property
    def may_have_lost(self) -> bool:
        """Something has befallen its disk since the topic is there that may take what was written.

        What fails to be read, or finds no room, has taken nothing.
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
    run: int  # of its machine
    start_offset: int  # where its log ended when it began to lead
    high_watermark: int
    log_start_offset: int
    epochs: dict[int, int]  # of the records that it had then, by offset

    def has(self, epoch: int, name: Name) -> bool:
        """The leader of `epoch`, which this is, has or had that record, as far as can be known."""
        if name.leader_epoch == epoch or name.offset < self.log_start_offset:
            return True
        return self.epochs.get(name.offset) == name.leader_epoch


class LogStartMove(NamedTuple):
    """Of one replica: its log began at `old`, and begins at `new`."""

    old: int
    new: int
    high_watermark: int  # of that replica
    folder: str
    retention_now_ms: int | None  # the clock that retention went by; None: it was not retention


@dataclass(slots=True, eq=False)
class PartitionHistory:
    place: Place
    deletions: dict[tuple[str, int], int]  # somebody asked for that of all before the offset
    topic: str = ""
    replicas: dict[int, ReplicaLog] = field(default_factory=dict)
    identities: dict[Name, Identity] = field(default_factory=dict)
    before: dict[Name, int | None] = field(default_factory=dict)  # the epoch at the offset before
    terms: dict[int, Term] = field(default_factory=dict)
    # Below the high watermark of any leader: the epoch at each offset.
    committed: dict[int, int] = field(default_factory=dict)
    ever_committed: set[Name] = field(default_factory=set)
    # Committed, and lost with good reason; by which leader, on which disk.
    gone: dict[Name, tuple[int, Storage]] = field(default_factory=dict)
    # As `gone`, of records that were deleted, had expired or were compacted away before: nobody
    # needs them, but their producers' sequences went with them.
    gone_unneeded: set[Name] = field(default_factory=set)
    was_unclean: bool = False  # somebody led who was neither in sync, nor eligible, nor the last
    # Committed by a leader that had not heard yet of another, elected uncleanly.
    deposed: set[Name] = field(default_factory=set)
    # By worker, before the topic was made: losses of power, and syncs that failed.
    earlier_faults: dict[int, tuple[int, int]] = field(default_factory=dict)
    is_flushed: bool = False  # each record is synced before it counts, since the topic was made
    # Overrides of the topic's configs when it was made.
    configs: Mapping[str, str] = field(default_factory=dict)
    # Names of records that compaction took from some replica, with good reason.
    cleaned: set[Name] = field(default_factory=set)
    # Retention has moved the log start of some replica so far, with good reason.
    expired_to: int = 0

    def __str__(self) -> str:
        return f"{self.topic}/{self.place}"

    @property
    def deleted_to(self) -> int:
        """Nobody needs to have a record before it: deleted, or expired by retention.

        Deletions are by name, as the request goes: it may meet a topic that has been made again.
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

    @property
    def lost_records(self) -> set[tuple[int, Identity]]:
        """What was committed and may be nowhere in the end, by offset; nothing else may."""
        names = (*self.gone, *self.deposed)
        return {(name.offset, self.identities[name]) for name in names if name in self.identities}


class ReplicaChecker(ClusterChecker):
    """Told of all that happens to replicas, in the order of the world."""

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        """The replica is about to have these records, as what it is."""

    def cut(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name], role: Role
    ) -> None:
        """The replica is about to give up these records."""

    def opened(
        self, history: PartitionHistory, replica: ReplicaLog, missing: Sequence[Name]
    ) -> None:
        """A process has read the log from its disk; `missing` were there before."""

    def refused(self, worker_id: int, folder: str, reason: str) -> None:
        """A process has not opened the log there, as it is damaged or incomplete."""

    def leads(self, history: PartitionHistory, replica: ReplicaLog, epoch: int, term: Term) -> None:
        """That replica says that it leads."""

    def advanced(
        self,
        history: PartitionHistory,
        replica: ReplicaLog,
        old: int,
        new: int,
        view: PartitionImage,
    ) -> None:
        """A leader says that all before `new` is committed, as the partition stands in `view`."""

    def took(self, history: PartitionHistory, replica: ReplicaLog, damaged: Sequence[int]) -> None:
        """A follower has taken batches of its leader; those at `damaged` are not as they were."""

    def cleaned(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name]
    ) -> None:
        """Compaction is about to take these records from the replica."""

    def retained(
        self, history: PartitionHistory, replica: ReplicaLog, moved: "LogStartMove"
    ) -> None:
        """The replica's log start has moved."""

    def stored(
        self, history: PartitionHistory, replica: ReplicaLog, codecs: Sequence[Codec]
    ) -> None:
        """A leader has appended batches compressed so."""

    def unregistered(self, worker: RegisterWorkerRecord) -> None:
        """The quorum is about to forget a worker that is so until then."""

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """The quorum has committed a batch."""


class ClusterHistory:
    """All partitions of one world, and the metadata that is committed."""

    def __init__(self, cluster_state: ClusterState) -> None:
        self.cluster_state = cluster_state
        self.world = cluster_state.world
        self.image = MetadataImage.empty(CLUSTER_ID)
        self.histories: dict[Place, PartitionHistory] = {}
        # Of all records that were seen, where records are known by their contents; else None.
        self.contents: dict[Identity, Content] | None = None
        # By worker and (topic, partition): damaged logs that somebody has moved away, as workers'
        # logs say; whose topic that was, checkpoints do not tell.
        self.moved_away: set[tuple[int, tuple[str, int]]] = set()
        self.unclean_asked: set[tuple[str, int]] = set()
        self.deletions: dict[tuple[str, int], int] = {}
        self._waiting: dict[int, Batch] = {}
        self._registered_at: dict[int, float] = {}  # workers, in the metadata

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
        """By worker: how often it lost power, and failed to sync, and has registered since."""
        return {
            member.config.node_id: (
                len(machine.power_cuts),
                machine.faults.happened.get("sync failed", 0),
            )
            for member in self.cluster_state.workers
            if (machine := member.supervisor.machine).running
            and self._registered_at.get(member.config.node_id, -1.0)
            > max(machine.power_cuts, default=-2.0)
        }

    def state(self, history: PartitionHistory) -> PartitionImage | None:
        """As the quorum has it; None when the topic is not there (any more)."""
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
        """It lost that; the quorum takes it for the process that had it, or has no other."""
        if not replica.is_dark and not replica.rotten and name not in replica.lost:
            return False
        if replica.has_to_tell and not self.image.is_live(replica.worker_id):
            return True
        if replica.is_dark and self._incarnation(replica.worker_id) == replica.incarnation:
            return True
        state = self.state(history)
        return (
            state is not None
            and state.isr == (replica.worker_id,)
            and state.unclean_epoch >= state.leader_epoch
        )

    def _incarnation(self, worker_id: int) -> bytes:
        """Of the process that the quorum takes the worker for, be it unregistered by now."""
        last = self.image.last_registration(worker_id)
        return b"" if last is None else last.incarnation_id

    def is_deposed(self, history: PartitionHistory, view: PartitionImage) -> bool:
        """Another leads by an unclean election, of which who says `view` has not heard.

        What it commits is lost with the rest, as whoever allows such elections has chosen.
        """
        state = self.state(history)
        return state is not None and state.unclean_epoch > view.leader_epoch

    # What happens

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
            replica.epochs[name.offset] = name.leader_epoch
            replica.lost.discard(name)
            replica.rotted.discard(name)
            replica.end = name.offset + 1

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
        if names:
            self.world.count("truncations")
            self.world.count("records cut by followers", len(names))

    def cleaned(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name]
    ) -> None:
        """Compaction takes these records: what remains is all that the replica has."""
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
        """Of each of these records of a compacted topic: whether compaction may take it.

        A committed record with its key comes later on the same replica, or a tombstone does whose
        time is up, be it gone by now. How long that is a worker's clock says, which may be set
        anywhere (`TOMBSTONES_STAY_MS`).
        """
        assert self.contents is not None
        taken = set(names)
        last: dict[bytes | None, int] = {}
        for offset, epoch in replica.epochs.items():
            name = Name(epoch, offset)
            if name not in taken and name in history.ever_committed:
                key = self.contents[history.identities[name]].key
                last[key] = max(last.get(key, -1), offset)
        if int(history.configs.get("delete.retention.ms", 0)) < TOMBSTONES_STAY_MS:
            for name in (*history.cleaned, *taken):
                content = self.contents[history.identities[name]]
                if content.is_tombstone:  # which may take itself along
                    last[content.key] = max(last.get(content.key, -1), name.offset + 1)
        return [
            (name, last.get(self.contents[history.identities[name]].key, -1) > name.offset)
            for name in names
        ]

    def moved(self, history: PartitionHistory, replica: ReplicaLog, move: LogStartMove) -> None:
        """The replica's log begins later; what is before that is gone."""
        if move.new > move.old:
            for checker in self.checkers:
                checker.retained(history, replica, move)
            if move.retention_now_ms is not None:
                history.expired_to = max(history.expired_to, move.new)
                self.world.count("log starts moved by retention")
        self.started(replica, move.new)

    def stored(
        self, history: PartitionHistory, replica: ReplicaLog, codecs: Sequence[Codec]
    ) -> None:
        for checker in self.checkers:
            checker.stored(history, replica, codecs)

    def started(self, replica: ReplicaLog, start: int) -> None:
        """Nothing before `start` is there any more."""
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
            # A cleaning that a stop has interrupted is completed by the next start.
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
        # Of an older image nobody can tell, as of an empty disk, that it is not the one before.
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
        """Some node has taken this batch in: it is committed."""
        if batch.expected_offset < self.image.end_offset:
            return
        self._waiting[batch.expected_offset] = batch
        while (due := self._waiting.pop(self.image.end_offset, None)) is not None:
            before, steps = self.image, Replay(self.image)
            records = list(due.records())
            self._unregistered(records)
            for record in records:
                if isinstance(record, RegisterWorkerRecord):
                    self._registered_at[record.worker_id] = self.world.now
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
        """A leader that has lost something, with good reason, takes it along from everybody."""
        for topic, index, was, now in changed_partitions(before, self.image):
            history = self.history(topic, index)
            self.world.say(
                "metadata", f"{self.image.topic_names.get(topic)}/{history.place}: {now}"
            )
            if was is None or now.leader == was.leader or now.leader < 0:
                continue
            is_unclean = False
            if now.leader in was.isr:
                pass
            elif now.leader in was.elr:
                self.world.count("eligible replicas elected")
            elif now.leader == was.last_leader:
                self.world.count("last leaders elected")
            else:
                is_unclean = history.was_unclean = True
                self.world.count("unclean elections")
            replica = self.replica(history, now.leader)
            # Nobody else could lead, who might have what is damaged here.
            is_alone = {*was.isr, *was.elr} <= {now.leader}
            is_doubtful = now.unclean_epoch == now.leader_epoch
            if not (is_doubtful or is_alone) or (replica.is_dark and not is_unclean):
                continue
            for name in list(history.committed_names):
                is_elsewhere = any(other.holds(name) for other in history.replicas.values())
                if not replica.holds(name) and (
                    (is_alone and name in replica.rotted)
                    or (is_doubtful and is_unclean)
                    # With a new disk it must not lead, where another has what it has not.
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
                    # Compacted away before, and behind what is left, or in the place of a record
                    # that the new leader had never committed.
                    del history.committed[offset]
                    history.gone_unneeded.add(name)
                elif offset < history.deleted_to:
                    history.gone_unneeded.add(name)


def changed_partitions(
    before: MetadataImage, image: MetadataImage
) -> Iterator[tuple[bytes, int, PartitionImage | None, PartitionImage]]:
    """Topic id, number, and the partition before and now."""
    for some in image.topics.without(before.topics):
        for name, topic in some:
            known = before.topic(name)
            old = known.partitions if known and known.topic_id == topic.topic_id else ()
            for index, now in enumerate(topic.partitions):
                was = old[index] if index < len(old) else None
                if was is not now and was != now:
                    yield topic.topic_id, index, was, now
