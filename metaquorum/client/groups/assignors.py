"""Assignors: the leader of a group divides the partitions among the members with one of them.

    range               contiguous partitions of each topic, by the order of the members
    roundrobin          all partitions of all topics in turn
    cooperative-sticky  balanced, and each member keeps as many partitions as possible; a partition
                        that changes its owner is first revoked, then assigned in the next rebalance

Members are ordered as by Kafka: those with an instance id first, by it; the others by member id.
Assignors are plain functions of the subscriptions and the partition counts of the topics. Source:
RangeAssignor, RoundRobinAssignor, CooperativeStickyAssignor of Kafka 4.3.1; KIP-54, 341, 429, 792.
The sticky assignment is balanced as Kafka's is, but may choose other partitions to move.

Deliberately absent: racks (KIP-881).
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Final, TypeAlias

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.groups.consumer_protocol import NO_GENERATION, Subscription
from metaquorum.wire.primitives.frozen import frozen

RANGE: Final = "range"
ROUND_ROBIN: Final = "roundrobin"
COOPERATIVE_STICKY: Final = "cooperative-sticky"
_GENERATION: Final = struct.Struct(">i")  # user data of cooperative-sticky

Assignments: TypeAlias = dict[str, list[TopicPartition]]  # by member id
PartitionCounts: TypeAlias = Mapping[str, int]  # by topic; without topics that do not exist


@frozen
class AssignedMember:
    """A member as the assignor sees it."""

    member_id: str
    instance_id: str | None
    subscription: Subscription

    @property
    def order(self) -> tuple[bool, str]:
        """Sort key: static members first."""
        return self.instance_id is None, self.instance_id or self.member_id


def range_assignment(members: Iterable[AssignedMember], counts: PartitionCounts) -> Assignments:
    """Return contiguous partitions of each topic; the first members get one more of the rest."""
    assigned: Assignments = {member.member_id: [] for member in members}
    for topic, own in _by_topic(members, counts).items():
        least, rest = divmod(counts[topic], len(own))
        first = 0
        for number, member in enumerate(own):
            end = first + least + (number < rest)
            assigned[member.member_id] += [TopicPartition(topic, i) for i in range(first, end)]
            first = end
    return assigned


def round_robin_assignment(
    members: Iterable[AssignedMember], counts: PartitionCounts
) -> Assignments:
    """Return the partitions of all topics in turn, each to the next member that subscribes."""
    members = sorted(members, key=lambda member: member.order)
    assigned: Assignments = {member.member_id: [] for member in members}
    turns = cycle(members)
    for where in _all_partitions(_by_topic(members, counts), counts):
        while where.topic not in (member := next(turns)).subscription.topics:
            pass
        assigned[member.member_id].append(where)
    return assigned


def cooperative_sticky_assignment(
    members: Iterable[AssignedMember], counts: PartitionCounts
) -> Assignments:
    """Return the sticky assignment without the partitions that another member still owns.

    Their owners revoke them and join again, after which no member owns them (KIP-429).
    """
    members = list(members)
    target = sticky_assignment(members, counts)
    claimed = {member.member_id: set(member.subscription.owned or ()) for member in members}
    revoked = {
        where for member_id, own in claimed.items() for where in own.difference(target[member_id])
    }
    return {
        member_id: [w for w in own if w in claimed[member_id] or w not in revoked]
        for member_id, own in target.items()
    }


def sticky_assignment(members: Iterable[AssignedMember], counts: PartitionCounts) -> Assignments:
    """Return a balanced assignment in which members keep the partitions that they own.

    Balanced: no partition can move to a member with at least two partitions fewer.
    """
    members = sorted(members, key=lambda member: member.order)
    candidates = {
        topic: [member.member_id for member in own]
        for topic, own in _by_topic(members, counts).items()
    }
    assigned = _kept(members, counts)
    if len({frozenset(member.subscription.topics) for member in members}) == 1:
        _cut_to_quota(assigned, sum(counts.get(t, 0) for t in candidates))
    taken = {where for own in assigned.values() for where in own}
    free = [
        TopicPartition(topic, index)
        # Topics with the fewest candidates first: their partitions have the least choice.
        for topic in sorted(candidates, key=lambda topic: (len(candidates[topic]), topic))
        for index in range(counts[topic])
        if TopicPartition(topic, index) not in taken
    ]
    for where in free:
        least = min(candidates[where.topic], key=lambda member_id: len(assigned[member_id]))
        assigned[least].append(where)
    while _balance(assigned, candidates):
        pass
    return {member_id: sorted(own) for member_id, own in assigned.items()}


def _kept(members: Sequence[AssignedMember], counts: PartitionCounts) -> Assignments:
    """Return the partitions that members own, exist, and are subscribed to.

    Of several owners, the one of the newest generation keeps a partition; none of them if two
    claim it in that generation.
    """
    owners: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        generation = _generation(member.subscription)
        for where in dict.fromkeys(member.subscription.owned or ()):
            claim, _ = owners.get(where, (None, None))
            if claim is None or generation > claim:
                owners[where] = generation, member.member_id
            elif generation == claim:
                owners[where] = generation, None
    kept: Assignments = {}
    for member in members:
        subscribed = set(member.subscription.topics)
        kept[member.member_id] = [
            where
            for where in sorted(set(member.subscription.owned or ()))
            if owners[where][1] == member.member_id
            and where.topic in subscribed
            and where.partition < counts.get(where.topic, 0)
        ]
    return kept


def _generation(subscription: Subscription) -> int:
    """Return the generation of the claims; before version 2 it is in the user data (KIP-792)."""
    if subscription.generation is not None:
        return subscription.generation
    if len(subscription.user_data) < _GENERATION.size:
        return NO_GENERATION
    return int(_GENERATION.unpack_from(subscription.user_data)[0])


def _cut_to_quota(assigned: Assignments, total: int) -> None:
    """Release partitions of members above their share, where all subscribe to the same topics."""
    least, rest = divmod(total, len(assigned))
    for member_id in sorted(assigned, key=lambda member_id: -len(assigned[member_id])):
        quota = least
        if rest and len(assigned[member_id]) > least:
            quota += 1
            rest -= 1
        del assigned[member_id][quota:]


def _balance(assigned: Assignments, candidates: Mapping[str, Sequence[str]]) -> bool:
    """Move partitions to members with at least two fewer; return whether one has moved.

    Each move decreases the sum of the squared counts, so that this ends.
    """
    has_moved = False
    for source in sorted(assigned, key=lambda member_id: -len(assigned[member_id])):
        for where in list(assigned[source]):
            target = min(candidates[where.topic], key=lambda member_id: len(assigned[member_id]))
            if len(assigned[source]) > len(assigned[target]) + 1:
                assigned[source].remove(where)
                assigned[target].append(where)
                has_moved = True
    return has_moved


def _by_topic(
    members: Iterable[AssignedMember], counts: PartitionCounts
) -> dict[str, list[AssignedMember]]:
    """Return the subscribed members of each topic that exists, in order."""
    found: dict[str, list[AssignedMember]] = defaultdict(list)
    for member in sorted(members, key=lambda member: member.order):
        for topic in dict.fromkeys(member.subscription.topics):
            if counts.get(topic):
                found[topic].append(member)
    return dict(sorted(found.items()))


def _all_partitions(topics: Iterable[str], counts: PartitionCounts) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for topic in topics for index in range(counts[topic])]


@frozen
class Assignor:
    """An assignor. `is_cooperative`: members keep their partitions while the group rebalances."""

    name: str
    assign: Callable[[Iterable[AssignedMember], PartitionCounts], Assignments]
    is_cooperative: bool = False

    def user_data(self, generation: int) -> bytes:
        """Return the user data of a subscription of a member of that generation."""
        return _GENERATION.pack(generation) if self.name == COOPERATIVE_STICKY else b""


ASSIGNORS: Final = {
    assignor.name: assignor
    for assignor in (
        Assignor(RANGE, range_assignment),
        Assignor(ROUND_ROBIN, round_robin_assignment),
        Assignor(COOPERATIVE_STICKY, cooperative_sticky_assignment, is_cooperative=True),
    )
}
