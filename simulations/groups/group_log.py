"""True records of `__consumer_offsets`, and the commits that clients have sent.

The checkers of groups compare answers with the log of a partition, as the cluster history knows it,
and not with the state of a coordinator. Every commit has unique metadata, by which its record is
found in the log. A record that a leader appends is *written*; it is committed once a high watermark
has passed it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from metaquorum.dataplane.coordinators.group.record_formats import (
    GroupKey,
    GroupMetadataValue,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from metaquorum.dataplane.coordinators.partitioning import partition_of
from metaquorum.dataplane.worker.feature_levels import has_level
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.quorum.controller.internal_topics import GROUPS_LEVEL
from metaquorum.simulations.cluster.cluster_state import ClusterState
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replicas import (
    Entry,
    Name,
    PartitionHistory,
    Place,
    ReplicaLog,
    Role,
    Term,
)
from metaquorum.wire.primitives.errors import ErrorCode

OFFSETS_PARTITIONS: Final = 4
V = TypeVar("V")


@dataclass(slots=True, eq=False)
class Written(Generic[V]):
    """A record of `__consumer_offsets` that a leader has appended; `value`: None is a tombstone."""

    history: PartitionHistory
    name: Name
    value: V | None
    # Group tombstones before it in the leader's log; generations begin again after each.
    deletions: int = 0

    @property
    def is_committed(self) -> bool:
        return self.name in self.history.ever_committed

    @property
    def is_lost(self) -> bool:
        """Whether the record may be missing for a reason that the checkers of losses accept.

        A record that compaction removed is missing if the later one of its key was lost.
        """
        history = self.history
        lost = history.gone, history.deposed, history.gone_unneeded
        return any(self.name in some for some in lost)

    @property
    def offset(self) -> int:
        return self.name.offset


@dataclass(slots=True, eq=False)
class Attempt:
    """One offset that a client tried to commit; `metadata` is unique in a world."""

    metadata: str
    group: str
    topic: str
    place: Place  # that the client means
    offset: int
    member_id: str
    instance_id: str | None
    generation: int
    written: Written[OffsetValue] | None = None
    acked_at: float | None = None


class CoordinatorRole(NamedTuple):
    """Role of a worker for a group when a request is sent to it."""

    worker_id: int
    is_known: bool  # the worker's metadata say that it coordinates the group
    is_current: bool  # so do the newest metadata, in the same leader epoch
    leader_epoch: int
    image: MetadataImage | None  # applied by the worker

    @property
    def has_groups(self) -> bool:
        """Whether the worker knows that the cluster's level permits groups."""
        return self.image is not None and has_level(self.image, GROUPS_LEVEL)


class GroupChecker(WatchingChecker):
    """Checker of the offsets that coordinators write."""

    def offset_written(
        self,
        attempt: Attempt | None,
        written: Written[OffsetValue],
        group: Written[GroupMetadataValue] | None,
    ) -> None:
        """Check a committed offset; `group`: the last record of its group before it."""

    def offset_removed(
        self,
        key: OffsetKey,
        before: Written[OffsetValue] | None,
        group: Written[GroupMetadataValue] | None,
    ) -> None:
        """Check a tombstone; `before`: the last record of the same key before it."""


@dataclass(slots=True)
class Records:
    """Written records of one partition of `__consumer_offsets`, in the order of the appends."""

    groups: dict[str, list[Written[GroupMetadataValue]]] = field(default_factory=dict)
    offsets: dict[OffsetKey, list[Written[OffsetValue]]] = field(default_factory=dict)


class GenerationsGrow(WatchingChecker):
    """Generations in a group's records grow; one generation has one assignment.

    Also: a group is deleted without members only, and nothing is recorded of a group whose deletion
    has begun. Keeps the records for the other checkers.
    """

    invariant = "G1"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        # Live workers before a client asks for a coordinator: it has `__consumer_offsets` created,
        # with a replica on each of them.
        self.least_workers = 1
        self.attempts: dict[str, Attempt] = {}
        self.topic_ids: dict[str, list[bytes]] = {}  # ids of a topic name, in their order
        self._records: dict[Place, Records] = {}

    # Records in the log

    def records(self, group: str) -> Records:
        """Return the records of the group's partition; empty before the topic exists."""
        topic = self.cluster_history.image.topic(CONSUMER_OFFSETS)
        if topic is None:
            return Records()
        place = Place(topic.topic_id, partition_of(group, len(topic.partitions)))
        return self._records.setdefault(place, Records())

    def deletion_of(self, group: str) -> Written[GroupMetadataValue] | None:
        """Return the record of the deletion in parts of a group that has begun, and has not ended.

        None unless it is committed, not lost, and the last record of the group.
        """
        last = next(reversed(self.records(group).groups.get(group, [])), None)
        if last is None or last.value is None or not last.value.is_being_deleted:
            return None
        return last if last.is_committed and not last.is_lost else None

    def role(self, group: str, worker_id: int) -> CoordinatorRole:
        """Return the role of the worker for the group at this moment."""
        image = self.image_of(worker_id)
        known, newest = self._leader(image, group), self._leader(self.cluster_history.image, group)
        is_known = known[0] == worker_id
        return CoordinatorRole(worker_id, is_known, is_known and known == newest, known[1], image)

    def image_of(self, worker_id: int) -> MetadataImage | None:
        """Return the metadata that all parts of the worker have applied; None if it is down."""
        member = self.cluster_state.members[worker_id]
        return None if member.running is None or member.loader is None else member.loader.visible

    @staticmethod
    def _leader(image: MetadataImage | None, group: str) -> tuple[int, int]:
        topic = None if image is None else image.topic(CONSUMER_OFFSETS)
        if topic is None:
            return -1, -1
        state = topic.partitions[partition_of(group, len(topic.partitions))]
        return state.leader, state.leader_epoch

    @property
    def is_early(self) -> bool:
        """Whether `__consumer_offsets` would be created with too few replicas."""
        image = self.cluster_history.image
        live = sum(map(image.is_live, image.workers))
        return image.topic(CONSUMER_OFFSETS) is None and live < self.least_workers

    def is_over(self, group: str) -> bool:
        """Return whether the group cannot get a coordinator any longer that can write."""
        topic = self.cluster_history.image.topic(CONSUMER_OFFSETS)
        if topic is None:
            return False
        index = partition_of(group, len(topic.partitions))
        return self.cluster_state.is_stuck(self.cluster_history.history(topic.topic_id, index))

    @property
    def is_strict(self) -> bool:
        """Whether a coordinator can write whenever it leads.

        Otherwise a group may become empty without a record of it: timers do not retry.
        """
        return max(self._least_isrs(), default=1) == 1

    def _least_isrs(self) -> Iterator[int]:
        topic = self.cluster_history.image.topic(CONSUMER_OFFSETS)
        if topic is not None:
            yield from self.cluster_state.min_isrs.get(topic.topic_id, {1})

    # Notifications

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        for _, topic in delta.topics():
            if topic is None:
                continue
            known = self.topic_ids.setdefault(topic.name, [])
            if topic.topic_id in known:
                continue
            known.append(topic.topic_id)
            if topic.name == CONSUMER_OFFSETS:
                self._created(image, topic.topic_id, len(topic.partitions))

    def _created(self, image: MetadataImage, topic_id: bytes, partitions: int) -> None:
        configs = image.topic_configs(CONSUMER_OFFSETS)
        least = int(configs.get("min.insync.replicas", 1))
        self.cluster_state.min_isrs[topic_id] = {least}
        for index in range(partitions):
            history = self.cluster_history.history(topic_id, index)
            history.is_flushed = "flush.messages" in configs

    def leads(self, history: PartitionHistory, replica: ReplicaLog, epoch: int, term: Term) -> None:
        if history.topic == CONSUMER_OFFSETS and epoch > 0:
            self.world.count("coordinators changed")

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        contents = self.cluster_history.contents
        if history.topic != CONSUMER_OFFSETS or not role.leads or contents is None:
            return
        records = self._records.setdefault(history.place, Records())
        first = entries[0].name
        for name, identity in entries:
            content = contents[identity]
            key = decode_key(bytes(content.key or b""))
            if isinstance(key, GroupKey):
                value = None if content.is_tombstone else decode_group_value(content.text)
                self._group_written(records, key.group, Written(history, name, value), replica)
            elif isinstance(key, OffsetKey):
                of_key = records.offsets.setdefault(key, [])
                before = _last(of_key, replica, first)
                decoded = None if content.is_tombstone else decode_offset_value(content.text)
                written = Written(history, name, decoded)
                of_key.append(written)
                group = _last(records.groups.get(key.group, []), replica, first)
                self._offset_written(key, written, before, group)

    def _group_written(
        self,
        records: Records,
        group: str,
        written: Written[GroupMetadataValue],
        replica: ReplicaLog,
    ) -> None:
        of_group = records.groups.setdefault(group, [])
        before = _last(of_group, replica, written.name)
        value, old = written.value, None if before is None else before.value
        written.deletions = 0 if before is None else before.deletions
        of_group.append(written)
        self.world.count("group records written")
        is_over = value is None or value.is_being_deleted
        if old is not None and old.is_being_deleted:
            self.compare(
                is_over,
                "{} is recorded at {}, although its deletion has begun at {}",
                group,
                written.name,
                before and before.name,
            )
        if is_over:
            written.deletions += value is None
            name = "groups deleted or expired" if value is None else "deletions in parts"
            self.world.count(name)
            if old is not None and self.is_strict:
                self.compare(
                    not old.members,
                    "{} is deleted at {} with the members {}",
                    group,
                    written.name,
                    [member.member_id for member in old.members],
                )
        if value is None or value.is_being_deleted:
            return
        self.compare(
            old is None
            or value.generation > old.generation
            or (value.generation == old.generation and _assignments(value) == _assignments(old)),
            "{}: generation {} is recorded at {} after generation {}, with another assignment",
            group,
            value.generation,
            written.name,
            old and old.generation,
        )

    def _offset_written(
        self,
        key: OffsetKey,
        written: Written[OffsetValue],
        before: Written[OffsetValue] | None,
        group: Written[GroupMetadataValue] | None,
    ) -> None:
        value = written.value
        attempt = None if value is None else self.attempts.get(value.metadata)
        if attempt is not None:
            attempt.written = written
        for checker in self.cluster_state.checkers:
            if not isinstance(checker, GroupChecker):
                continue
            if value is None:
                checker.offset_removed(key, before, group)
            else:
                checker.offset_written(attempt, written, group)

    # Clients

    def asked(self, attempt: Attempt) -> None:
        self.attempts[attempt.metadata] = attempt

    def answered(self, attempt: Attempt, code: ErrorCode) -> None:
        self.world.count(f"commit: {code.name}")
        if code is ErrorCode.NONE:
            attempt.acked_at = self.world.now


def _assignments(value: GroupMetadataValue) -> list[bytes]:
    return sorted(member.assignment for member in value.members)


def _last(written: Sequence[Written[V]], replica: ReplicaLog, first: Name) -> Written[V] | None:
    """Return the last record that the replica has, or that it is about to append from `first` on.

    A record that compaction removed counts, unless a later one is left.
    """
    for each in reversed(written):
        is_new = each.name.leader_epoch == first.leader_epoch and each.name.offset >= first.offset
        is_cleaned = each.name in each.history.cleaned and each.name.offset < first.offset
        if is_new or is_cleaned or replica.holds(each.name):
            return each
    return None
