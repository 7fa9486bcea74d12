"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the classic protocol of groups.

A waiting JoinGroup or SyncGroup may take longer than connections.max.idle.ms. If its connection
ends, the coordinator drops it: the member stays until its session ends, or joins again.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from metaquorum.dataplane.coordinators.group.group_shard import MAX_PROTOCOLS, GroupShard
from metaquorum.dataplane.coordinators.group.requests import (
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    LeavingMember,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from metaquorum.dataplane.coordinators.shard import Write
from metaquorum.dataplane.handlers.groups.asking import (
    Answer,
    CoordinatesGroups,
    GroupResponse,
    ask,
    drop,
    settled,
)
from metaquorum.dataplane.handlers.groups.parts import WritesInParts, write_in_parts
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, Steps, emptied, in_pieces
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from metaquorum.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from metaquorum.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from metaquorum.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.schema.message import Message

_MEMBER_ID_REQUIRED_SINCE: Final = 4  # KIP-394
_STATIC_SINCE: Final = 5  # KIP-345
_PROTOCOL_TYPE_SINCE: Final = 7  # in JoinGroup; protocol_name is nullable from then on
_SKIP_ASSIGNMENT_SINCE: Final = 9  # KIP-814
_SYNC_PROTOCOL_SINCE: Final = 5  # KIP-559
_LEAVE_MANY_SINCE: Final = 3  # KIP-345
# Members that leave in one step. All of a request cause one rebalance: those that are still to
# leave have not joined it.
LEAVE_ROWS: Final = 128


# JoinGroup


def handle_join_group(
    worker: CoordinatesGroups, request: Request, message: JoinGroupRequest
) -> Answer | GroupResponse:
    group_id, version = message.group_id, request.version
    if not group_id:
        return _join_refused(version, message.member_id, ErrorCode.INVALID_GROUP_ID)
    new_id = message.member_id
    if not new_id:
        try:
            new_id = worker.groups.new_member_id(
                message.group_instance_id or request.client_id or ""
            )
        except KafkaError as error:
            return _join_refused(version, "", error.code)
    session_ms, rebalance_ms = message.session_timeout_ms, message.rebalance_timeout_ms
    join = JoinRequest(
        group_id,
        message.member_id,
        message.group_instance_id,
        request.client_id or "",
        f"/{request.client.address[0]}",
        # Version 0 has only the session timeout.
        max(0, session_ms if rebalance_ms < 0 else rebalance_ms),
        session_ms,
        message.protocol_type,
        # One more than permitted is enough for the coordinator to refuse it.
        tuple(
            Protocol(each.name, each.metadata) for each in message.protocols[: MAX_PROTOCOLS + 1]
        ),
        message.reason or "",
        new_member_id=new_id,
        needs_member_id=version >= _MEMBER_ID_REQUIRED_SINCE,
        may_skip_assignment=version >= _SKIP_ASSIGNMENT_SINCE,
        principal=request.client.principal,
        client=request.client.account,
    )
    response = GroupResponse(may_outlast_idle=True)
    response.on_drop = partial(_drop_join, worker, group_id, new_id)

    def operation(shard: GroupShard) -> JoinAnswer | Write[JoinAnswer | None] | None:
        return shard.join(
            worker.clock.monotonic(),
            join,
            lambda answer: response.answer(_join_response(version, answer)),
            request.client.quota.muted_until,
        )

    return ask(
        worker,
        group_id,
        operation,
        lambda answer: _join_response(version, answer),
        lambda code: _join_refused(version, message.member_id, code),
        response,
    )


def _drop_join(worker: CoordinatesGroups, group_id: str, member_id: str) -> None:
    now = worker.clock.monotonic()
    drop(worker, group_id, lambda shard: shard.drop_join(now, group_id, member_id))


def _join_refused(version: int, member_id: str, code: ErrorCode) -> JoinGroupResponse:
    protocol = None if version >= _PROTOCOL_TYPE_SINCE else ""
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=protocol)


def _join_response(version: int, answer: JoinAnswer) -> Answer:
    response = JoinGroupResponse(
        error_code=answer.code,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment if version >= _SKIP_ASSIGNMENT_SINCE else False,
        member_id=answer.member_id,
    )
    if response.protocol_name is None and version < _PROTOCOL_TYPE_SINCE:
        response.protocol_name = ""
    if len(answer.members) > PIECE_ROWS:
        return _with_members(version, response, answer.members)
    response.members = [_joined_member(version, each) for each in answer.members]
    return response


async def _with_members(
    version: int, response: JoinGroupResponse, members: Sequence[JoinedMember]
) -> Message:
    response.members = await in_pieces(members, partial(_joined_member, version))
    return response


def _joined_member(version: int, member: JoinedMember) -> JoinGroupResponseMember:
    return JoinGroupResponseMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id if version >= _STATIC_SINCE else None,
        metadata=member.metadata,
    )


# SyncGroup


def handle_sync_group(
    worker: CoordinatesGroups, request: Request, message: SyncGroupRequest
) -> Answer | GroupResponse | Steps[Message | GroupResponse]:
    if not message.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if request.version >= _SYNC_PROTOCOL_SINCE and None in (
        message.protocol_type,
        message.protocol_name,
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return _sync(worker, message, request.client.account)


async def _sync(
    worker: CoordinatesGroups, message: SyncGroupRequest, client: str
) -> Message | GroupResponse:
    group_id, member_id = message.group_id, message.member_id
    assignments: dict[str, bytes] = {}

    def take(assigned: SyncGroupRequestAssignment) -> None:
        assignments[assigned.member_id] = assigned.assignment

    await in_pieces(message.assignments, take)
    sync = SyncRequest(
        group_id,
        member_id,
        message.group_instance_id,
        message.generation_id,
        message.protocol_type,
        message.protocol_name,
        assignments,
        client,
    )
    response = GroupResponse(may_outlast_idle=True)
    response.on_drop = partial(_drop_sync, worker, group_id, member_id)

    def operation(shard: GroupShard) -> SyncAnswer | Write[SyncAnswer | None] | None:
        return shard.sync(
            worker.clock.monotonic(), sync, lambda answer: response.answer(_sync_response(answer))
        )

    outcome = ask(
        worker,
        group_id,
        operation,
        lambda answer: _sync_response(answer),
        lambda code: SyncGroupResponse(error_code=code),
        response,
    )
    if len(assignments) > PIECE_ROWS:
        await emptied(assignments)  # the coordinator has read those of its members
    return await settled(outcome)


def _drop_sync(worker: CoordinatesGroups, group_id: str, member_id: str) -> None:
    now = worker.clock.monotonic()
    drop(worker, group_id, lambda shard: shard.drop_sync(now, group_id, member_id))


def _sync_response(answer: SyncAnswer) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=answer.code,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


# Heartbeat


def handle_heartbeat(
    worker: CoordinatesGroups, request: Request, message: HeartbeatRequest
) -> HeartbeatResponse:
    if not message.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        shard = worker.groups.shard(message.group_id)
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # As in Kafka: the members of a group that is loading keep their assignments.
            code = ErrorCode.NONE
        return HeartbeatResponse(error_code=code)
    return HeartbeatResponse(
        error_code=shard.heartbeat(
            worker.clock.monotonic(),
            message.group_id,
            message.member_id,
            message.group_instance_id,
            message.generation_id,
            request.client.quota.muted_until,
            request.client.principal,
            request.client.account,
        )
    )


# LeaveGroup


def handle_leave_group(
    worker: WritesInParts, request: Request, message: LeaveGroupRequest
) -> Answer | GroupResponse | Steps[Message | GroupResponse]:
    group_id = message.group_id
    if not group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if request.version < _LEAVE_MANY_SINCE:
        leaving = [LeavingMember(message.member_id, None)]
        return ask(
            worker,
            group_id,
            lambda shard: shard.leave(
                worker.clock.monotonic(), group_id, leaving, request.client.account
            ),
            lambda codes: LeaveGroupResponse(error_code=codes[0]),
            lambda code: LeaveGroupResponse(error_code=code),
        )
    return _leave(worker, message, request.client.account)


async def _leave(
    worker: WritesInParts, message: LeaveGroupRequest, client: str
) -> Message | GroupResponse:
    group_id, members = message.group_id, message.members
    leaving = await in_pieces(
        members,
        lambda each: LeavingMember(each.member_id, each.group_instance_id, each.reason or ""),
    )

    def finished(codes: Iterator[ErrorCode], refused: ErrorCode) -> Answer:
        if refused is not ErrorCode.NONE:
            return LeaveGroupResponse(error_code=refused)
        return _left(members, codes)

    return await write_in_parts(
        worker,
        group_id,
        leaving,
        lambda shard, part: shard.leave(worker.clock.monotonic(), group_id, part, client),
        finished,
        even_without_rows=True,
        part_rows=LEAVE_ROWS,
    )


async def _left(members: list[MemberIdentity], codes: Iterator[ErrorCode]) -> Message:
    rows = await in_pieces(
        zip(members, codes, strict=True),
        lambda row: MemberResponse(
            member_id=row[0].member_id,
            group_instance_id=row[0].group_instance_id,
            error_code=row[1],
        ),
    )
    return LeaveGroupResponse(members=rows)
