"""DescribeGroupActivity: what the members of a group wait for, and its last rebalances.

The API is this project's own, not Kafka's.
"""

from functools import partial
from math import inf
from typing import Final, Protocol

from metaquorum.dataplane.coordinators.group.classic_group import ClassicGroup
from metaquorum.dataplane.coordinators.group.members import NEVER, GroupMember
from metaquorum.dataplane.coordinators.group.rebalance_history import Rebalance
from metaquorum.dataplane.coordinators.group.rebalancing import GroupState
from metaquorum.dataplane.handlers.groups.asking import HasGroups
from metaquorum.dataplane.scheduling.time_slices import each_once, in_pieces, pause
from metaquorum.dataplane.worker.capabilities import HasClock
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.describe_group_activity import (
    ActiveGroup,
    ActiveMember,
    DescribeGroupActivityRequest,
    DescribeGroupActivityResponse,
    OpenTransaction,
    PastRebalance,
    PendingMember,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

UNKNOWN_MS: Final = -1


class DescribesActivity(HasGroups, HasClock, Protocol):
    """Capability to read the groups of this worker and the time."""


async def handle_describe_group_activity(
    worker: DescribesActivity, request: Request, message: DescribeGroupActivityRequest
) -> DescribeGroupActivityResponse:
    response = DescribeGroupActivityResponse()
    for group_id in await each_once(message.groups):
        response.groups.append(await _describe(worker, group_id))
        await pause()
    return response


async def _describe(worker: DescribesActivity, group_id: str) -> ActiveGroup:
    try:
        shard = worker.groups.shard(group_id)
    except KafkaError as error:
        return ActiveGroup(
            group_id=group_id, error_code=error.code, error_message=str(error.message)
        )
    group = shard.groups.get(group_id)
    if group_id not in shard.being_deleted:
        described = None
        if group is not None:
            described = await _active(worker, group)
        elif shard.offsets.has_group(group_id):
            described = ActiveGroup(group_id=group_id, state=GroupState.EMPTY.value)
        if described is not None:
            held = await shard.offsets.transactional.producers(group_id)
            described.transactions = await in_pieces(
                held.items(), lambda each: OpenTransaction(producer_id=each[0], offsets=each[1])
            )
            return described
    return ActiveGroup(
        group_id=group_id,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {group_id} not found.",
    )


async def _active(worker: DescribesActivity, group: ClassicGroup) -> ActiveGroup:
    """Describe a group; all but the members in one piece."""
    now, since_ms = worker.clock.monotonic(), group.state_timestamp_ms
    described = ActiveGroup(
        group_id=group.group_id,
        state=group.state.value,
        protocol_type=group.protocol_type,
        protocol=group.protocol or "",
        generation=group.generation,
        leader=group.members.leader or "",
        waits_for=group.rebalancing.awaited.value,
        state_ms=max(0, worker.clock.now_ms() - since_ms) if since_ms >= 0 else UNKNOWN_MS,
        left_ms=_until_ms(group.rebalancing.wait_ends_at, now),
        rebalances=[_rebalance(each, now) for each in group.history.rebalances],
    )
    described.pending = await in_pieces(
        list(group.pending.items()),
        lambda each: PendingMember(
            member_id=each[0],
            client_host=each[1].client_host,
            left_ms=_until_ms(each[1].ends.due, now),
        ),
    )
    described.members = await in_pieces(group.members, partial(_member, group, now))
    return described


def _member(group: ClassicGroup, now: float, member: GroupMember) -> ActiveMember:
    protocol = group.protocol
    if protocol is None or not member.metadata_of(protocol):
        protocol = next(iter(member.protocols), None)
    waiting_in = "JoinGroup" if member.join is not None else ""
    if member.sync is not None:
        waiting_in = "SyncGroup"
    return ActiveMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        user=member.principal.removeprefix("User:") or None,
        waiting_in=waiting_in,
        is_late=group.rebalancing.is_late(member),
        heard_ms_ago=UNKNOWN_MS if member.heard_at == NEVER else _ms(now - member.heard_at),
        muted_ms=_ms(max(0.0, member.muted_until(now) - now)),
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        metadata=member.metadata_of(protocol),
        assignment=member.assignment,
    )


def _rebalance(rebalance: Rebalance, now: float) -> PastRebalance:
    ended = rebalance.ended
    return PastRebalance(
        cause=rebalance.cause,
        member_id=rebalance.member_id,
        client_id=rebalance.client_id,
        client_host=rebalance.client_host,
        reason=rebalance.reason,
        began_ms_ago=_ms(now - rebalance.began),
        lasted_ms=UNKNOWN_MS if ended is None else _ms(ended - rebalance.began),
        generation=rebalance.generation,
    )


def _until_ms(due: float, now: float) -> int:
    return UNKNOWN_MS if due == inf else max(0, _ms(due - now))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
