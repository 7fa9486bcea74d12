"""ListGroups, DescribeGroups and DeleteGroups: the groups that this worker coordinates."""

from collections.abc import Collection
from functools import partial
from typing import Final

from metaquorum.dataplane.coordinators.group.group_shard import GroupShard
from metaquorum.dataplane.coordinators.group.members import GroupMember
from metaquorum.dataplane.coordinators.group.rebalancing import GroupState
from metaquorum.dataplane.handlers.groups.asking import (
    GROUP_OPERATIONS,
    CoordinatesGroups,
    GroupResponse,
    HasGroups,
    settled,
)
from metaquorum.dataplane.scheduling.time_slices import each_once, in_pieces, pause, pieces
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from metaquorum.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from metaquorum.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.schema.message import Message

CLASSIC: Final = "classic"
_STATES: Final = frozenset(state.value.lower() for state in GroupState)
_NOT_FOUND_SINCE: Final = 6  # DescribeGroups: an unknown group is an error (KIP-1043)


# ListGroups


async def handle_list_groups(
    worker: HasGroups, request: Request, message: ListGroupsRequest
) -> ListGroupsResponse:
    """Return the groups of this worker in some states and of some types; all without a filter."""
    if worker.groups.is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = await _known(message.states_filter, _STATES)
    types = await _known(message.types_filter, {CLASSIC})
    response = ListGroupsResponse()
    if message.types_filter and not types:
        return response
    for shard in list(worker.groups.shards.values()):
        rows: list[ListedGroup] = []
        for group_ids in shard.group_id_pieces():
            listed = await in_pieces(group_ids, partial(_listed, shard))
            rows += [
                each
                for each in listed
                if not message.states_filter or each.group_state.lower() in states
            ]
            await pause()
        if worker.groups.shards.get(shard.index) is shard:  # else another worker lists them
            response.groups += rows
    return response


async def _known(filters: list[str], names: Collection[str]) -> set[str]:
    """Return the filters that name a state or a type, in lower case."""
    found: set[str] = set()
    for piece in pieces(filters):
        found.update(name for each in piece if (name := each.lower()) in names)
        await pause()
    return found


def _listed(shard: GroupShard, group_id: str) -> ListedGroup:
    group = shard.groups.get(group_id)
    state = GroupState.EMPTY if group is None else group.state
    if group_id in shard.being_deleted:
        state = GroupState.DEAD
    return ListedGroup(
        group_id=group_id,
        protocol_type="" if group is None else group.protocol_type,
        group_state=state.value,
        group_type=CLASSIC,
    )


# DescribeGroups


async def handle_describe_groups(
    worker: CoordinatesGroups, request: Request, message: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    response = DescribeGroupsResponse()
    for group_id in await each_once(message.groups):
        described = await _describe(worker, request.version, group_id)
        if message.include_authorized_operations:
            described.authorized_operations = GROUP_OPERATIONS
        response.groups.append(described)
        await pause()
    return response


async def _describe(worker: HasGroups, version: int, group_id: str) -> DescribedGroup:
    described = DescribedGroup(group_id=group_id)
    try:
        shard = worker.groups.shard(group_id)
    except KafkaError as error:
        described.error_code, described.error_message = error.code, error.message
        return described
    group = shard.groups.get(group_id)
    is_deleted = group_id in shard.being_deleted
    if group is None or is_deleted:
        if not is_deleted and shard.offsets.has_group(group_id):
            described.group_state = GroupState.EMPTY.value
            return described
        described.group_state = GroupState.DEAD.value
        if version >= _NOT_FOUND_SINCE:
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = f"Group {group_id} not found."
        return described
    described.group_state = group.state.value
    described.protocol_type = group.protocol_type
    protocol = group.protocol if group.state is GroupState.STABLE else None
    described.protocol_data = protocol or ""
    described.members = await in_pieces(group.members, partial(_member, protocol))
    return described


def _member(protocol: str | None, member: GroupMember) -> DescribedGroupMember:
    """Describe a member; its subscription only while the group is stable."""
    described = DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_assignment=member.assignment,
    )
    if protocol is not None:
        described.member_metadata = member.metadata_of(protocol)
    return described


# DeleteGroups


class _Deletions:
    """Outcomes of the deletions of one request."""

    def __init__(self, results: list[DeletableGroupResult]) -> None:
        self.response = GroupResponse()
        self._results = results
        self._left = len(results)

    def ended(self, number: int, code: ErrorCode) -> None:
        self._results[number].error_code = code
        self._left -= 1
        if not self._left:
            self.response.answer(DeleteGroupsResponse(results=self._results))


async def handle_delete_groups(
    worker: CoordinatesGroups, request: Request, message: DeleteGroupsRequest
) -> Message | GroupResponse:
    once = await each_once(message.groups_names)
    if not once:
        return DeleteGroupsResponse()
    deletions = _Deletions(
        await in_pieces(once, lambda group_id: DeletableGroupResult(group_id=group_id))
    )
    for number, group_id in enumerate(once):
        ended = partial(deletions.ended, number)
        try:
            worker.groups.delete_group(group_id, ended, request.client.account)
        except KafkaError as error:
            ended(error.code)
        await pause()
    response = deletions.response
    return await settled(response.complete() if response.is_ready else response)
