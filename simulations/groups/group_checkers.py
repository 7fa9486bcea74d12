"""Checkers of consumer groups: owners, commits, and committed offsets.

A coordinator that is cut off from the controllers does not know that another worker has taken its
place. It cannot commit records, but it may answer reads with older offsets, as in Kafka: those
answers are only checked for being committed at all.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metaquorum.dataplane.coordinators.group.consumer_subscription import subscribed_topics
from metaquorum.dataplane.coordinators.group.record_formats import (
    GroupMetadataValue,
    OffsetKey,
    OffsetValue,
)
from metaquorum.dataplane.log.segments.names import LOG
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.simulations.checkers.log_files import naive_batches
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.groups.group_log import (
    Attempt,
    CoordinatorRole,
    GenerationsGrow,
    GroupChecker,
    Written,
)
from metaquorum.simulations.harness.node import log_folder
from metaquorum.simulations.kernel.storage import Inode
from metaquorum.simulations.replication.replica_checkers import AcknowledgedStays
from metaquorum.simulations.replication.replicas import Place
from metaquorum.wire.primitives.types import ZERO_UUID


class Owner(NamedTuple):
    member: str  # the instance id of a static member, otherwise the member id
    assignment: bytes
    written: Written[GroupMetadataValue]


class AssignmentsAreCommitted(GroupChecker):
    """An assignment that a member receives is in a committed record of its generation."""

    invariant = "G1"

    def shown(
        self, group: str, generation: int, member_id: str, assignment: bytes
    ) -> Written[GroupMetadataValue] | None:
        """Check the answer to a SyncGroup; return the record with the assignment."""
        log = self.cluster_state.checker(GenerationsGrow)
        found = None
        for each in log.records(group).groups.get(group, []):
            if each.value is not None and each.value.generation == generation and each.is_committed:
                assigned = {member.member_id: member.assignment for member in each.value.members}
                if assigned.get(member_id) == assignment:
                    found = each
        self.compare(
            found is not None,
            "{}: {} got an assignment in generation {} that is not committed",
            group,
            member_id,
            generation,
        )
        return found


class OneOwner(GroupChecker):
    """A partition has one owner in a generation of a group, by the answers to its members."""

    invariant = "G1"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        # By group, deletions of the group before, and generation: owners of partitions.
        self._owners: dict[tuple[str, int, int], dict[tuple[str, int], Owner]] = {}

    def shown(
        self,
        group: str,
        owner: Owner,
        places: Collection[tuple[str, int]],
    ) -> None:
        value = owner.written.value
        assert value is not None
        generation = group, owner.written.deletions, value.generation
        owners = self._owners.setdefault(generation, {})
        for place in places:
            other = owners.get(place)
            if other is None or other.written.is_lost:
                owners[place] = other = owner
            self.compare(
                (other.member, other.assignment) == (owner.member, owner.assignment),
                "{}: in generation {}, {} belongs to {} and to {}",
                group,
                value.generation,
                place,
                other.member,
                owner.member,
            )


class CommitsAreCurrent(GroupChecker):
    """A commit that a coordinator writes is of a member of the group's current generation.

    Without a generation, the group must have no members: if one of them commits in the same
    generation before and after, at the same coordinator, it had. None is written of a group whose
    deletion has begun.
    """

    invariant = "G2"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        # Last commit without a generation, by group.
        self._simple: dict[str, tuple[Attempt, Written[OffsetValue], object]] = {}

    def offset_written(
        self,
        attempt: Attempt | None,
        written: Written[OffsetValue],
        group: Written[GroupMetadataValue] | None,
    ) -> None:
        if attempt is None:
            return
        if group is not None and group.value is not None and group.value.is_being_deleted:
            self.compare(
                False,
                "{}: a commit is written at {}, after the deletion has begun at {}",
                attempt.group,
                written.name,
                group.name,
            )
            return
        if attempt.generation < 0:
            self._simple[attempt.group] = attempt, written, group
            return
        value = None if group is None else group.value
        ids = {} if value is None else {m.member_id: m.group_instance_id for m in value.members}
        self.compare(
            value is not None
            and value.generation == attempt.generation
            and attempt.member_id in ids
            and attempt.instance_id in (None, ids[attempt.member_id]),
            "{}: a commit of {} (instance {}) in generation {} is written at {};"
            " the last record has generation {} with {}",
            attempt.group,
            attempt.member_id,
            attempt.instance_id,
            attempt.generation,
            written.name,
            value and value.generation,
            ids,
        )
        simple = self._simple.get(attempt.group)
        if simple is not None and simple[2] is group:
            _, other, _ = simple
            self.compare(
                other.name.leader_epoch != written.name.leader_epoch,
                "{}: a commit without a generation is written at {}; the group had {} then",
                attempt.group,
                other.name,
                attempt.member_id,
            )


@dataclass(slots=True)
class OffsetRead:
    """One offset that a coordinator has returned; `metadata` is None without an offset."""

    group: str
    topic: str
    place: Place
    offset: int
    metadata: str | None
    asked_at: float
    by_id: bool  # the request has the topic's id


class CommitsAreReadBack(GroupChecker):
    """An acknowledged commit is committed; a later read returns it, or a later change.

    Lost records for which there is an accepted reason, such as an unclean restart of all replicas,
    do not count.
    """

    invariant = "G3"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        # Changes of each offset that clients know, by time: acknowledged, or seen in a read.
        self._known: dict[OffsetKey, list[tuple[float, Written[OffsetValue]]]] = {}

    def acknowledged(self, attempt: Attempt) -> None:
        written = attempt.written
        self.compare(
            written is not None and written.is_committed,
            "{}: the commit {} was acknowledged, but is not committed: {}",
            attempt.group,
            attempt.metadata,
            written and written.name,
        )
        self._learn(OffsetKey(attempt.group, attempt.topic, attempt.place.partition), written)

    def removed(
        self, group: str, places: Collection[tuple[str, int]] | None, asked_at: float
    ) -> None:
        """Check an acknowledged deletion of offsets; `places` is None for all of the group.

        Every offset that a client knew when it asked is deleted.
        """
        records = self.cluster_state.checker(GenerationsGrow).records(group)
        for key, written in records.offsets.items():
            if key.group == group and (places is None or (key.topic, key.partition) in places):
                tombstones = [each for each in written if each.value is None and each.is_committed]
                last = max(tombstones, key=lambda each: each.offset, default=None)
                floor = self._floor(key, asked_at)
                if floor is not None and floor.value is not None:
                    self.compare(
                        last is not None and last.offset > floor.offset,
                        "{}: the deletion of {} (at {}) was acknowledged, but it is not deleted",
                        key,
                        floor.value.metadata,
                        floor.name,
                    )
                self._learn(key, last)

    def _learn(self, key: OffsetKey, written: Written[OffsetValue] | None) -> None:
        if written is not None:
            self._known.setdefault(key, []).append((self.world.now, written))

    def read(
        self,
        read: OffsetRead,
        before: CoordinatorRole,
        after: CoordinatorRole,
    ) -> Attempt | None:
        """Check an answer; the roles are those of the coordinator when it was asked, and now."""
        log = self.cluster_state.checker(GenerationsGrow)
        key = OffsetKey(read.group, read.topic, read.place.partition)
        found = None if read.metadata is None else log.attempts.get(read.metadata)
        written = None if found is None else found.written
        if read.metadata is not None and not self.compare(
            found is not None
            and (found.group, found.topic, found.place.partition) == key
            and found.offset == read.offset
            and written is not None
            and written.is_committed,
            "{}: {} returned as {} is not a committed offset of it",
            key,
            read.metadata,
            read.offset,
        ):
            return None
        if not before.is_current:
            self.world.count("offsets from an earlier coordinator")
            return found
        floor = self._floor(key, read.asked_at)
        if written is None:
            self._absent(read, key, floor, _topic_ids(read, before, after))
        elif floor is None or self.compare(
            written.offset >= floor.offset,
            "{}: {} (at {}) was known before {} (at {}) is read from worker {}",
            key,
            floor.value or "a deletion",
            floor.name,
            read.metadata,
            written.name,
            before.worker_id,
        ):
            self._learn(key, written)
        return found

    def _absent(
        self,
        read: OffsetRead,
        key: OffsetKey,
        floor: Written[OffsetValue] | None,
        ids: set[bytes | None],
    ) -> None:
        """Check that the offset was deleted, or is that of another topic."""
        if floor is None:
            return
        later = [
            each
            for each in self.cluster_state.checker(GenerationsGrow)
            .records(read.group)
            .offsets.get(key, [])
            if each.offset >= floor.offset and each.is_committed
        ]
        others = [each for each in later if each.value and {each.value.topic_id} != ids]
        tombstones = [each for each in later if each.value is None]
        self.compare(
            bool(others or tombstones),
            "{}: {} (at {}) was known, but no offset is returned",
            key,
            floor.value,
            floor.name,
        )
        if not others:
            self._learn(key, min(tombstones, key=lambda each: each.offset, default=None))

    def _floor(self, key: OffsetKey, asked_at: float) -> Written[OffsetValue] | None:
        """Return the last change that a client knew at that time, and that is not lost."""
        known = [
            written
            for known_at, written in self._known.get(key, [])
            if known_at <= asked_at and not written.is_lost
        ]
        return max(known, key=lambda each: each.offset, default=None)


def _topic_ids(
    read: OffsetRead, before: CoordinatorRole, after: CoordinatorRole
) -> set[bytes | None]:
    """Return the ids of the topic for which the coordinator may have answered."""
    if read.by_id:
        return {read.place.topic_id}
    images = [role.image for role in (before, after)]
    topics = [None if image is None else image.topic(read.topic) for image in images]
    return {None if topic is None else topic.topic_id for topic in topics}


class CommitsAreDurable(GroupChecker):
    """With flush.messages=1, an acknowledged commit is synced on the coordinator's disk.

    The checker reads the simulated medium. A record that compaction has removed does not count.
    """

    invariant = "R6"

    def acknowledged(self, attempt: Attempt, before: CoordinatorRole, now: CoordinatorRole) -> None:
        written = attempt.written
        if written is None or not written.history.is_flushed:
            return
        is_same = before.leader_epoch == now.leader_epoch == written.name.leader_epoch
        if not is_same or not now.is_current:
            return
        storage = self.cluster_state.members[now.worker_id].supervisor.machine.storage
        folder = log_folder(storage, CONSUMER_OFFSETS, written.history.place.partition)
        nodes = storage.folder(folder).entries
        files = {name: node for name, node in nodes.items() if isinstance(node, Inode)}
        if _has_offset({name: node.data for name, node in files.items()}, written.offset):
            synced = {n: node.durable for n, node in storage.durable_files(folder).items()}
            self.compare(
                _has_offset(synced, written.offset),
                "{}: the commit {} at {} is acknowledged but not synced",
                attempt.group,
                attempt.metadata,
                written.name,
            )


def _has_offset(files: Mapping[str, bytes | bytearray], offset: int) -> bool:
    """Return whether the segment files of a log contain the offset."""
    return any(
        batch.base_offset <= offset <= batch.last_offset
        for name, data in files.items()
        if LOG in name  # also one that a cleaned segment replaces
        for batch in naive_batches(bytes(data))
    )


class DeletionsAreWhole(GroupChecker):
    """No offset of a group is returned between the begin and the end of its deletion in parts.

    The offsets of which no tombstone is written yet would be a part of what the group had.
    """

    invariant = "G3"

    def read(
        self, group: str, begun: Written[GroupMetadataValue] | None, before: CoordinatorRole
    ) -> None:
        """Check an answer without error; `begun`: the deletion when the coordinator was asked."""
        if before.is_current:
            now = self.cluster_state.checker(GenerationsGrow).deletion_of(group)
            self.compare(
                begun is None or begun is not now,
                "{}: offsets are returned, although its deletion has begun at {}",
                group,
                begun and begun.name,
            )


class OffsetsBelongToTopics(GroupChecker):
    """An offset of a deleted topic is not returned for a later topic of the same name."""

    invariant = "R10"

    def read(
        self, read: OffsetRead, found: Attempt, before: CoordinatorRole, after: CoordinatorRole
    ) -> None:
        if found.written is None or found.written.value is None:
            return
        topic_id = found.written.value.topic_id
        asked = _topic_ids(read, before, after)
        if None in asked:  # the coordinator knows no topic of that name: it returns any offset
            return
        order = self.cluster_state.checker(GenerationsGrow).topic_ids.get(read.topic, [])
        if topic_id == ZERO_UUID:
            # The record has an expiry, which an old client has asked for, and no room for an id. It
            # belongs to any topic of its name, also to one that is created before the coordinator
            # has deleted the offsets of the one before.
            self.world.count("offsets without a topic id")
            return
        known = [order.index(each) for each in asked if each in order]
        self.compare(
            topic_id in order and bool(known) and order.index(topic_id) >= min(known),
            "{}: an offset of topic {} is returned for {} of topic {}",
            read.group,
            topic_id.hex()[:6],
            read.topic,
            [each.hex()[:6] for each in asked if each],
        )


class LiveGroupsKeepOffsets(GroupChecker):
    """An offset of an existing topic is not removed while members subscribe to the topic.

    Nor is it removed by expiry while a newer commit of it is not committed yet.
    """

    invariant = "G3"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        # Requests of clients to delete the group or offsets of it, which may still arrive.
        self.deletions: Counter[str] = Counter()

    def offset_removed(
        self,
        key: OffsetKey,
        before: Written[OffsetValue] | None,
        group: Written[GroupMetadataValue] | None,
    ) -> None:
        log = self.cluster_state.checker(GenerationsGrow)
        self.world.count("offsets removed")
        if before is None or before.value is None or not log.is_strict:
            return
        if before.value.topic_id not in self.cluster_history.image.topic_names:
            self.world.count("offsets of deleted topics removed")
            return
        if not self.deletions[key.group]:
            self.compare(
                before.is_committed,
                "{}: it expires while a commit of it (at {}) is not committed yet",
                key,
                before.name,
            )
        members = [] if group is None or group.value is None else group.value.members
        if not members:
            self.world.count("offsets of groups without members removed")
        subscribed = {topic for m in members for topic in subscribed_topics([m.subscription]) or ()}
        self.compare(
            key.topic not in subscribed,
            "{}: {} is removed, while {} subscribe to the topic",
            key,
            before.name,
            [member.member_id for member in members],
        )


class CoordinatorsKnowTheirRole(GroupChecker):
    """A worker that knows that another one coordinates the group answers with an error.

    At a level without groups any worker answers reads of offsets: nothing is committed.
    """

    invariant = "G3"

    def accepted(self, group: str, before: CoordinatorRole, after: CoordinatorRole) -> None:
        changed = before.leader_epoch != after.leader_epoch
        self.compare(
            before.is_known or changed or not before.has_groups,
            "{}: worker {} answers, although it knows that it is not the coordinator (epoch {})",
            group,
            before.worker_id,
            before.leader_epoch,
        )


@dataclass(slots=True)
class Progress:
    """Records of one partition that a group has processed, and its committed position."""

    values: set[bytes] = field(default_factory=set)
    committed: int = 0  # highest position of an acknowledged commit


class NothingIsSkipped(GroupChecker):
    """Acknowledged records before a group's committed position were processed by its members.

    Excluded are both topics of a commit by name for one that was deleted meanwhile: it moves the
    position in the next topic of that name, from which the member has also read.
    """

    invariant = "G4"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self.progress: dict[tuple[str, Place], Progress] = {}
        self._mistaken: set[tuple[str, Place]] = set()

    def of(self, group: str, place: Place) -> Progress:
        return self.progress.setdefault((group, place), Progress())

    def offset_written(
        self,
        attempt: Attempt | None,
        written: Written[OffsetValue],
        group: Written[GroupMetadataValue] | None,
    ) -> None:
        if attempt is None or written.value is None:
            return
        if written.value.topic_id != attempt.place.topic_id:
            place = Place(bytes(written.value.topic_id), attempt.place.partition)
            self._mistaken |= {(attempt.group, place), (attempt.group, attempt.place)}
            self.world.count("commits by name for another topic")

    def finals(self, of_group: str) -> None:
        """Check a group whose members have ended, after the last record was produced."""
        stays = self.cluster_state.checker(AcknowledgedStays)
        for (group, place), progress in self.progress.items():
            history = self.cluster_history.history(*place)
            if (
                group != of_group
                or history.lost_records
                or history.was_unclean
                or (group, place) in self._mistaken
            ):
                continue
            acked: Mapping[bytes, tuple[int, object]] = stays.acked.get(place, {})
            for value, (offset, _) in acked.items():
                if history.deleted_to <= offset < progress.committed:
                    self.compare(
                        value in progress.values,
                        "{}: the position {} of {} is committed, but {} at {} was not processed",
                        group,
                        progress.committed,
                        history,
                        value[:60],
                        offset,
                    )


GROUP_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    GenerationsGrow,
    AssignmentsAreCommitted,
    OneOwner,
    CommitsAreCurrent,
    CommitsAreReadBack,
    CommitsAreDurable,
    DeletionsAreWhole,
    OffsetsBelongToTopics,
    LiveGroupsKeepOffsets,
    CoordinatorsKnowTheirRole,
    NothingIsSkipped,
)
