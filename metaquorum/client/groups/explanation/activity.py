"""Activity of groups: the members that their coordinators wait for. Not served by Apache Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import BrokerError, broker_error
from metaquorum.client.groups.consumer_protocol import (
    CONSUMER_PROTOCOL,
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
)
from metaquorum.client.groups.coordinators import Outcomes, answered, ask_coordinators, subject
from metaquorum.wire.primitives.frozen import frozen

if TYPE_CHECKING:
    from metaquorum.wire.messages.describe_group_activity import (
        ActiveGroup,
        ActiveMember,
        DescribeGroupActivityResponse,
        PastRebalance,
    )


@frozen
class MemberActivity:
    """A member of a group. None: not of the consumer protocol, or (`user`) not known.

    `waiting_in`: its request that waits for other members, or empty; `is_late`: the group waits for
    a request of this member. `assignment`: in the last generation that had one.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    user: str | None
    waiting_in: str
    is_late: bool
    heard_s: float  # since its last request, or since the coordinator loaded the group
    muted_s: float  # for which a quota mutes its connection to the coordinator
    session_timeout_s: float
    rebalance_timeout_s: float
    subscription: Subscription | None
    assignment: Assignment | None

    @property
    def host(self) -> str:
        return self.client_host.removeprefix("/")

    @property
    def name(self) -> str:
        """Client id and host, and the instance id of a static member."""
        static = "" if self.instance_id is None else f", instance {self.instance_id}"
        return f"{self.client_id or self.member_id} ({self.host}{static})"


@frozen
class PendingId:
    """Id that was given to a new member, which has not joined with it."""

    member_id: str
    client_host: str
    left_s: float


@frozen
class Rebalance:
    """A rebalance of a group. `lasted_s` None: it still lasts.

    `cause`: why it began; `reason`: the words of the client that caused it.
    """

    cause: str
    member_id: str
    client_id: str
    client_host: str
    reason: str
    began_s_ago: float
    lasted_s: float | None
    generation: int | None


@frozen
class GroupActivity:
    """State of a group, and the requests that it waits for. None: not known, or no limit.

    `waits_for`: empty, `more members`, `JoinGroup`, `assignment`, `commit` or `SyncGroup`; after
    `left_s` seconds the group continues without the late members.
    """

    group: str
    coordinator: int
    state: str
    protocol_type: str
    protocol: str
    generation: int | None
    leader: str
    waits_for: str
    state_s: float | None
    left_s: float | None
    members: Sequence[MemberActivity]
    pending: Sequence[PendingId]
    rebalances: Sequence[Rebalance]  # oldest first
    # Open transactions that hold offsets of the group: producer id, and number of offsets.
    transactions: Sequence[tuple[int, int]] = ()

    @property
    def late(self) -> list[MemberActivity]:
        return [member for member in self.members if member.is_late]

    @property
    def waiting(self) -> list[MemberActivity]:
        return [member for member in self.members if member.waiting_in]

    def owners(self) -> dict[TopicPartition, MemberActivity]:
        """Return the member that each partition is assigned to."""
        return {
            where: member
            for member in self.members
            if member.assignment is not None
            for where in member.assignment.partitions
        }

    def topics(self) -> set[str]:
        """Return the topics that a member subscribes to."""
        return {
            topic
            for member in self.members
            if member.subscription is not None
            for topic in member.subscription.topics
        }


async def describe_activity(cluster: Cluster, groups: Sequence[str]) -> Outcomes[GroupActivity]:
    """Return the activity of each group; the outcome is GROUP_ID_NOT_FOUND for an unknown group.

    Raises NotServedError if the cluster is Apache Kafka.
    """
    from metaquorum.wire.messages.describe_group_activity import DescribeGroupActivityRequest

    deadline = cluster.deadline()

    async def ask(node_id: int, own: list[str]) -> Outcomes[GroupActivity]:
        response: DescribeGroupActivityResponse = await cluster.call(
            DescribeGroupActivityRequest(groups=own), to=node_id, deadline=deadline
        )
        found = {each.group_id: _activity(each, node_id) for each in response.groups}
        return answered(found, own)

    return await ask_coordinators(cluster, groups, ask, deadline)


def _activity(group: ActiveGroup, node_id: int) -> GroupActivity | BrokerError:
    if group.error_code:
        return broker_error(group.error_code, group.error_message, subject(group.group_id))
    has_format = group.protocol_type == CONSUMER_PROTOCOL
    members = [_member(member, has_format) for member in group.members]
    return GroupActivity(
        group.group_id,
        node_id,
        group.state,
        group.protocol_type,
        group.protocol,
        _known(group.generation),
        group.leader,
        group.waits_for,
        _seconds(group.state_ms),
        _seconds(group.left_ms),
        sorted(members, key=lambda member: (member.client_id, member.member_id)),
        [
            PendingId(each.member_id, each.client_host, each.left_ms / 1000)
            for each in group.pending
        ],
        [_rebalance(each) for each in group.rebalances],
        sorted((each.producer_id, each.offsets) for each in group.transactions),
    )


def _member(member: ActiveMember, has_format: bool) -> MemberActivity:
    return MemberActivity(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.user,
        member.waiting_in,
        member.is_late,
        member.heard_ms_ago / 1000,
        member.muted_ms / 1000,
        member.session_timeout_ms / 1000,
        member.rebalance_timeout_ms / 1000,
        decode_subscription(bytes(member.metadata)) if has_format else None,
        decode_assignment(bytes(member.assignment)) if has_format else None,
    )


def _rebalance(rebalance: PastRebalance) -> Rebalance:
    return Rebalance(
        rebalance.cause,
        rebalance.member_id,
        rebalance.client_id,
        rebalance.client_host,
        rebalance.reason,
        rebalance.began_ms_ago / 1000,
        _seconds(rebalance.lasted_ms),
        _known(rebalance.generation),
    )


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _seconds(value_ms: int) -> float | None:
    return None if value_ms < 0 else value_ms / 1000
