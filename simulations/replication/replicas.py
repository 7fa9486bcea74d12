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
not have (`PartitionStory.cleaned`, `expired_to`). Where batches are changed by workers (compaction,
`compression.type`), a record is known by its contents and not by the checksum of its batch.

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
from simulations.cluster.cluster_state import ClusterChecker, Nation
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
class Held:
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
class PartitionStory:
    place: Place
    deletions: dict[tuple[str, int], int]  # somebody asked for that of all before the offset
    topic: str = ""
    held: dict[int, Held] = field(default_factory=dict)
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
    earlier_troubles: dict[int, tuple[int, int]] = field(default_factory=dict)
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
        self, story: PartitionStory, held: Held, entries: Sequence[Entry], role: Role
    ) -> None:
        """The replica is about to have these records, as what it is."""

    def cut(self, story: PartitionStory, held: Held, names: Sequence[Name], role: Role) -> None:
        """The replica is about to give up these records."""

    def opened(self, story: PartitionStory, held: Held, missing: Sequence[Name]) -> None:
        """A process has read the log from its disk; `missing` were there before."""

    def refused(self, worker_id: int, folder: str, reason: str) -> None:
        """A process has not opened the log there, as it is damaged or incomplete."""

    def leads(self, story: PartitionStory, held: Held, epoch: int, term: Term) -> None:
        """That replica says that it leads."""

    def advanced(
        self, story: PartitionStory, held: Held, old: int, new: int, view: PartitionImage
    ) -> None:
        """A leader says that all before `new` is committed, as the partition stands in `view`."""

    def took(self, story: PartitionStory, held: Held, damaged: Sequence[int]) -> None:
        """A follower has taken batches of its leader; those at `damaged` are not as they were."""

    def cleaned(self, story: PartitionStory, held: Held, names: Sequence[Name]) -> None:
        """Compaction is about to take these records from the replica."""

    def retained(self, story: PartitionStory, held: Held, moved: "LogStartMove") -> None:
        """The replica's log start has moved."""

    def stored(self, story: PartitionStory, held: Held, codecs: Sequence[Codec]) -> None:
        """A leader has appended batches compressed so."""

    def unregistered(self, worker: RegisterWorkerRecord) -> None:
        """The quorum is about to forget a worker that is so until then."""

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """The quorum has committed a batch."""


class Chronicle:
    """All partitions of one world, and the metadata that is committed."""

    def __init__(self, nation: Nation) -> None:
        self.nation = nation
        self.world = nation.world
        self.image = MetadataImage.empty(CLUSTER_ID)
        self.stories: dict[Place, PartitionStory] = {}
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
        return [each for each in self.nation.checkers if isinstance(each, ReplicaChecker)]

    def story(self, topic_id: bytes, partition: int) -> PartitionStory:
        place = Place(topic_id, partition)
        story = self.stories.get(place)
        if story is None:
            story = self.stories[place] = PartitionStory(place, self.deletions)
            story.earlier_troubles = self._told_troubles()
        story.topic = story.topic or self.image.topic_names.get(topic_id, "")
        if self.contents is not None and not story.configs and topic_id in self.image.topic_names:
            story.configs = dict(self.image.topic_configs(story.topic))
        return story

    def _told_troubles(self) -> dict[int, tuple[int, int]]:
        """By worker: how often it lost power, and failed to sync, and has registered since."""
        return {
            member.config.node_id: (
                len(machine.power_cuts),
                machine.faults.happened.get("sync failed", 0),
            )
            for member in self.nation.workers
            if (machine := member.kept.machine).running
            and self._registered_at.get(member.config.node_id, -1.0)
            > max(machine.power_cuts, default=-2.0)
        }

    def state(self, story: PartitionStory) -> PartitionImage | None:
        """As the quorum has it; None when the topic is not there (any more)."""
        topic = self.image.topic_by_id(story.place.topic_id)
        if topic is None or story.place.partition >= len(topic.partitions):
            return None
        return topic.partitions[story.place.partition]

    def isr(self, story: PartitionStory) -> tuple[int, ...]:
        state = self.state(story)
        return () if state is None else state.isr

    def elr(self, story: PartitionStory) -> tuple[int, ...]:
        state = self.state(story)
        return () if state is None else state.elr

    def held(self, story: PartitionStory, worker_id: int) -> Held:
        held = story.held.get(worker_id)
        if held is None:
            machine = self.nation.members[worker_id].kept.machine
            held = story.held[worker_id] = Held(worker_id, machine)
            held.power_cuts = len(machine.power_cuts)
            earlier = story.earlier_troubles.get(worker_id, (0, 0))
            held.earlier_power_cuts, held.earlier_sync_failures = earlier
        return held

    def may_lack(self, story: PartitionStory, held: Held, name: Name) -> bool:
        """It lost that; the quorum takes it for the process that had it, or has no other."""
        if not held.is_dark and not held.rotten and name not in held.lost:
            return False
        if held.has_to_tell and not self.image.is_live(held.worker_id):
            return True
        if held.is_dark and self._incarnation(held.worker_id) == held.incarnation:
            return True
        state = self.state(story)
        return (
            state is not None
            and state.isr == (held.worker_id,)
            and state.unclean_epoch >= state.leader_epoch
        )

    def _incarnation(self, worker_id: int) -> bytes:
        """Of the process that the quorum takes the worker for, be it unregistered by now."""
        last = self.image.last_registration(worker_id)
        return b"" if last is None else last.incarnation_id

    def is_deposed(self, story: PartitionStory, view: PartitionImage) -> bool:
        """Another leads by an unclean election, of which who says `view` has not heard.

        What it commits is lost with the rest, as whoever allows such elections has chosen.
        """
        state = self.state(story)
        return state is not None and state.unclean_epoch > view.leader_epoch

    # What happens

    def appended(
        self,
        story: PartitionStory,
        held: Held,
        entries: Sequence[Entry],
        role: Role,
    ) -> None:
        for checker in self.checkers:
            checker.appended(story, held, entries, role)
        for name, _ in entries:
            held.epochs[name.offset] = name.leader_epoch
            held.lost.discard(name)
            held.rotted.discard(name)
            held.end = name.offset + 1

    def took(self, story: PartitionStory, held: Held, damaged: Sequence[int]) -> None:
        for checker in self.checkers:
            checker.took(story, held, damaged)

    def cut(self, story: PartitionStory, held: Held, end: int, start: int, role: Role) -> None:
        names = [Name(e, o) for o, e in held.epochs.items() if o >= end]
        for checker in self.checkers:
            checker.cut(story, held, names, role)
        for name in names:
            del held.epochs[name.offset]
            held.promised.discard(name)
        held.end = end
        held.cuts += 1
        self.started(held, start)
        if names:
            self.world.count("truncations")
            self.world.count("records cut by followers", len(names))

    def cleaned(self, story: PartitionStory, held: Held, names: Sequence[Name]) -> None:
        """Compaction takes these records: what remains is all that the replica has."""
        for checker in self.checkers:
            checker.cleaned(story, held, names)
        self._forget_cleaned(story, held, names)

    def _forget_cleaned(self, story: PartitionStory, held: Held, names: Sequence[Name]) -> None:
        for name in names:
            held.epochs.pop(name.offset, None)
            held.promised.discard(name)
        story.cleaned.update(names)
        if names:
            self.world.count("records compacted away", len(names))

    def is_superseded(
        self, story: PartitionStory, held: Held, names: Collection[Name]
    ) -> list[tuple[Name, bool]]:
        """Of each of these records of a compacted topic: whether compaction may take it.

        A committed record with its key comes later on the same replica, or a tombstone does whose
        time is up, be it gone by now. How long that is a worker's clock says, which may be set
        anywhere (`TOMBSTONES_STAY_MS`).
        """
        assert self.contents is not None
        taken = set(names)
        last: dict[bytes | None, int] = {}
        for offset, epoch in held.epochs.items():
            name = Name(epoch, offset)
            if name not in taken and name in story.ever_committed:
                key = self.contents[story.identities[name]].key
                last[key] = max(last.get(key, -1), offset)
        if int(story.configs.get("delete.retention.ms", 0)) < TOMBSTONES_STAY_MS:
            for name in (*story.cleaned, *taken):
                content = self.contents[story.identities[name]]
                if content.is_tombstone:  # which may take itself along
                    last[content.key] = max(last.get(content.key, -1), name.offset + 1)
        return [
            (name, last.get(self.contents[story.identities[name]].key, -1) > name.offset)
            for name in names
        ]

    def moved(self, story: PartitionStory, held: Held, move: LogStartMove) -> None:
        """The replica's log begins later; what is before that is gone."""
        if move.new > move.old:
            for checker in self.checkers:
                checker.retained(story, held, move)
            if move.retention_now_ms is not None:
                story.expired_to = max(story.expired_to, move.new)
                self.world.count("log starts moved by retention")
        self.started(held, move.new)

    def stored(self, story: PartitionStory, held: Held, codecs: Sequence[Codec]) -> None:
        for checker in self.checkers:
            checker.stored(story, held, codecs)

    def started(self, held: Held, start: int) -> None:
        """Nothing before `start` is there any more."""
        if start > held.start:
            for offset in [offset for offset in held.epochs if offset < start]:
                del held.epochs[offset]
        held.start = start

    def opened(
        self, story: PartitionStory, held: Held, start: int, end: int, entries: Sequence[Entry]
    ) -> None:
        now = {name.offset: name.leader_epoch for name, _ in entries}
        missing = [Name(e, o) for o, e in held.epochs.items() if o >= start and now.get(o) != e]
        if missing and self.contents is not None and story.compacts:
            # A cleaning that a stop has interrupted is completed by the next start.
            cleaned = [
                name
                for name, is_superseded in self.is_superseded(story, held, missing)
                if is_superseded and name.offset < end and name in story.ever_committed
            ]
            self._forget_cleaned(story, held, cleaned)
            missing = [name for name in missing if name not in story.cleaned]
        if held.is_dark or held.rotten:
            held.lost.update(missing)
            if held.rotten:
                held.rotted.update(missing)
            self.world.count("records lost by replicas", len(missing))
        held.power_cuts = len(held.machine.power_cuts)
        has_other_disk = held.storage not in (None, held.machine.storage)
        # Of an older image nobody can tell, as of an empty disk, that it is not the one before.
        is_older = has_other_disk and held.images_put_back != held.machine.storage.images_put_back
        held.has_new_disk = has_other_disk and not is_older
        held.storage = held.machine.storage
        held.images_put_back = held.storage.images_put_back
        if has_other_disk or held.rotten:
            held.promised.clear()
        held.damaged = held.damaged and not held.has_new_disk
        held.incarnation = self._incarnation(held.worker_id)
        for checker in self.checkers:
            checker.opened(story, held, missing)
            checker.appended(story, held, entries, FROM_DISK)
        held.has_to_tell, held.rotten = held.rotten, False
        held.lost.difference_update(name for name, _ in entries)
        held.epochs, held.start, held.end = now, start, end

    def refused(self, worker_id: int, folder: str, reason: str) -> None:
        for checker in self.checkers:
            checker.refused(worker_id, folder, reason)

    def leads(self, story: PartitionStory, held: Held, epoch: int, high_watermark: int) -> None:
        run = held.machine.runs
        term = Term(held.worker_id, run, held.end, high_watermark, held.start, dict(held.epochs))
        for checker in self.checkers:
            checker.leads(story, held, epoch, term)
        story.terms.setdefault(epoch, term)

    def advanced(
        self, story: PartitionStory, held: Held, old: int, new: int, view: PartitionImage
    ) -> None:
        for checker in self.checkers:
            checker.advanced(story, held, old, new, view)
        for offset in range(old, new):
            epoch = held.epochs.get(offset)
            if epoch is not None:
                if self.is_deposed(story, view):
                    story.deposed.add(Name(epoch, offset))
                else:
                    story.committed[offset] = epoch
                story.ever_committed.add(Name(epoch, offset))

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
            story = self.story(topic, index)
            self.world.say("metadata", f"{self.image.topic_names.get(topic)}/{story.place}: {now}")
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
                is_unclean = story.was_unclean = True
                self.world.count("unclean elections")
            held = self.held(story, now.leader)
            # Nobody else could lead, who might have what is damaged here.
            is_alone = {*was.isr, *was.elr} <= {now.leader}
            is_doubtful = now.unclean_epoch == now.leader_epoch
            if not (is_doubtful or is_alone) or (held.is_dark and not is_unclean):
                continue
            for name in list(story.committed_names):
                is_elsewhere = any(other.holds(name) for other in story.held.values())
                if not held.holds(name) and (
                    (is_alone and name in held.rotted)
                    or (is_doubtful and is_unclean)
                    # With a new disk it must not lead, where another has what it has not.
                    or (
                        is_doubtful
                        and name in held.lost
                        and not (held.has_new_disk and is_elsewhere)
                    )
                ):
                    del story.committed[name.offset]
                    story.gone[name] = held.worker_id, held.machine.storage
                    self.world.count("committed records lost by the last replica in sync")
            for offset, epoch in list(story.committed.items()):
                name = Name(epoch, offset)
                if offset < held.end or name in story.gone:
                    continue
                if name in story.cleaned:
                    del story.committed[offset]  # compacted away before, and behind what is left
                    story.gone_unneeded.add(name)
                elif offset < story.deleted_to:
                    story.gone_unneeded.add(name)


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
