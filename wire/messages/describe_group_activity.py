"""DescribeGroupActivity (10007): what the members of groups wait for. An API of this project.

Kafka's DescribeGroups returns the members and their assignments, but not who delays a rebalance.
All times are milliseconds, counted by the coordinator: clocks of clients may differ.
"""

from __future__ import annotations

from metaquorum.wire.schema.message import (
    Message,
    Struct,
    array,
    blob,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class DescribeGroupActivityRequest(Message, api=10007, versions="0-1", flexible="0+"):
    """Requests the activity of groups that the worker coordinates."""

    groups: list[str] = array(string)


class ActiveMember(Struct):
    """A member of a group.

    `user`: of its last JoinGroup or Heartbeat; null if it has sent none to this coordinator.
    `waiting_in`: its request that waits for other members, JoinGroup or SyncGroup; else empty.
    `is_late`: the group waits for a request of this member. `heard_ms_ago`: since its last request,
    or since this coordinator loaded the group. `muted_ms`: for which a quota still mutes its
    connection to the coordinator. `metadata`: for the protocol of the group, or the first that the
    member supports. `assignment`: in the last generation that had one.
    """

    member_id: str = string()
    instance_id: str | None = string(nullable="0+", default=None)
    client_id: str = string()
    client_host: str = string()
    user: str | None = string(nullable="0+", default=None)
    waiting_in: str = string()
    is_late: bool = boolean()
    heard_ms_ago: int = int64(default=-1)
    muted_ms: int = int64()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32()
    metadata: bytes = blob()
    assignment: bytes = blob()


class PendingMember(Struct):
    """An id that was given to a new member, which has not joined with it yet (KIP-394)."""

    member_id: str = string()
    client_host: str = string()
    left_ms: int = int64()


class PastRebalance(Struct):
    """One rebalance. `cause`: of its beginning; `reason`: in the client's words (KIP-800).

    Ids and host are those of the member that caused it, or empty. `lasted_ms` -1: it still lasts.
    """

    cause: str = string()
    member_id: str = string()
    client_id: str = string()
    client_host: str = string()
    reason: str = string()
    began_ms_ago: int = int64()
    lasted_ms: int = int64(default=-1)
    generation: int = int32(default=-1)


class OpenTransaction(Struct):
    """A transaction that holds offsets of the group: its producer, and the number of offsets."""

    producer_id: int = int64("1+")
    offsets: int = int32("1+")


class ActiveGroup(Struct):
    """Activity of a group.

    `waits_for`: empty, or one of: more members (the initial delay), JoinGroup, assignment (the
    leader's SyncGroup), commit (of the assignment's record), SyncGroup. `state_ms`: since the state
    began; -1: not known. `left_ms`: until the wait ends without the late members; -1: never.
    `rebalances`: the last ones, oldest first, since this coordinator leads the group's partition.
    `transactions`: those that hold offsets of the group.
    """

    group_id: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    state: str = string()
    protocol_type: str = string()
    protocol: str = string()
    generation: int = int32(default=-1)
    leader: str = string()
    waits_for: str = string()
    state_ms: int = int64(default=-1)
    left_ms: int = int64(default=-1)
    members: list[ActiveMember] = array(ActiveMember)
    pending: list[PendingMember] = array(PendingMember)
    rebalances: list[PastRebalance] = array(PastRebalance)
    transactions: list[OpenTransaction] = array(OpenTransaction, "1+", ignorable=True)


class DescribeGroupActivityResponse(Message, api=10007, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    groups: list[ActiveGroup] = array(ActiveGroup)
