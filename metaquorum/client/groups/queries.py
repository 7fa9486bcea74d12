"""Lists and descriptions of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from metaquorum.client.cluster import Cluster
from metaquorum.client.errors import AdminError, BrokerError, UnreachableError, broker_error
from metaquorum.client.groups.consumer_protocol import (
    CONSUMER_PROTOCOL,
    decode_assignment,
    decode_subscription,
)
from metaquorum.client.groups.coordinators import (
    Outcomes,
    answered,
    ask_coordinators,
    is_retried,
    subject,
)
from metaquorum.client.groups.values import (
    GroupDescription,
    GroupList,
    GroupListing,
    MemberDescription,
)
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.wire.primitives.errors import ErrorCode

if TYPE_CHECKING:
    from metaquorum.wire.messages.describe_groups import (
        DescribedGroup,
        DescribedGroupMember,
        DescribeGroupsResponse,
    )

_STATES_SINCE: Final = 4  # ListGroups: KIP-518
_TYPES_SINCE: Final = 5  # ListGroups: KIP-848
_DEAD: Final = "Dead"


async def list_groups(
    cluster: Cluster, states: Sequence[str] = (), types: Sequence[str] = ()
) -> GroupList:
    """Return the groups of all nodes with one of these states and types (empty: any).

    A node that cannot list its groups is among the `failures`; groups in partitions of
    __consumer_offsets without a leader are missing. Raises AdminError if the cluster is
    too old for a filter.
    """
    topics = await cluster.refresh([CONSUMER_OFFSETS])
    lost = [each.partition_index for one in topics for each in one.partitions if each.leader_id < 0]
    found: dict[str, GroupListing] = {}
    failures: dict[int, Exception] = {}
    for node_id in await cluster.live_nodes():
        try:
            for listing in await _list_of(cluster, node_id, states, types):
                found[listing.group] = listing  # a group that moved meanwhile is listed twice
        except (UnreachableError, BrokerError) as error:
            failures[node_id] = error
    return GroupList([found[group] for group in sorted(found)], failures, sorted(lost))


async def _list_of(
    cluster: Cluster, node_id: int, states: Sequence[str], types: Sequence[str]
) -> list[GroupListing]:
    from metaquorum.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

    deadline = cluster.deadline()  # separate, so that a hanging node does not fail the others
    connection = await cluster.connection(node_id, deadline)
    version = connection.version_of(ListGroupsRequest)
    if states and version < _STATES_SINCE:
        raise AdminError("this cluster is too old to select groups by their state")
    if types and version < _TYPES_SINCE:
        raise AdminError("this cluster is too old to select groups by their type")
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    attempt = 0
    while True:
        response: ListGroupsResponse = await cluster.call(request, to=node_id, deadline=deadline)
        if not response.error_code:
            return [
                GroupListing(
                    each.group_id,
                    each.protocol_type,
                    each.group_state if version >= _STATES_SINCE else None,
                    each.group_type if version >= _TYPES_SINCE else None,
                    node_id,
                )
                for each in response.groups
            ]
        error = broker_error(response.error_code, None, f"groups of node {node_id}")
        if not is_retried(error) or not await cluster.back_off(attempt, deadline):
            raise error
        attempt += 1


async def describe_groups(cluster: Cluster, groups: Sequence[str]) -> Outcomes[GroupDescription]:
    """Return the state and members of each group.

    The outcome is GROUP_ID_NOT_FOUND for a group that does not exist, and for one that is not of
    the classic protocol.
    """
    from metaquorum.wire.messages.describe_groups import DescribeGroupsRequest

    deadline = cluster.deadline()

    async def ask(node_id: int, own: list[str]) -> Outcomes[GroupDescription]:
        response: DescribeGroupsResponse = await cluster.call(
            DescribeGroupsRequest(groups=own), to=node_id, deadline=deadline
        )
        found = {each.group_id: _described(each, node_id) for each in response.groups}
        return answered(found, own)

    return await ask_coordinators(cluster, groups, ask, deadline)


def _described(group: DescribedGroup, node_id: int) -> GroupDescription | BrokerError:
    if group.error_code:
        return broker_error(group.error_code, group.error_message, subject(group.group_id))
    if group.group_state == _DEAD:  # so do brokers before Kafka 4.0 describe an unknown group
        text = "there is no such group"
        return BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, text, subject(group.group_id))
    has_format = group.protocol_type == CONSUMER_PROTOCOL
    members = [_member(member, has_format) for member in group.members]
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        node_id,
        sorted(members, key=lambda member: (member.client_id, member.member_id)),
    )


def _member(member: DescribedGroupMember, has_format: bool) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        decode_subscription(bytes(member.member_metadata)) if has_format else None,
        decode_assignment(bytes(member.member_assignment)) if has_format else None,
        len(member.member_metadata),
        len(member.member_assignment),
    )
