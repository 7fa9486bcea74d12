"""Requests to a group and their answers, as plain values: handlers translate messages to them.

A request that must wait returns `WAITING` and is answered through the callback that was passed with
it: exactly once, possibly before the call returns. That holds for a `Write` whose answer is
`WAITING` as well, also if the write fails.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from dataplane.coordinators.group.rebalance_history import RebalanceView
from dataplane.coordinators.shard import Write
from wire.primitives.errors import ErrorCode
from wire.primitives.frozen import frozen

# A client that lists thousands of protocols would make each join of its group slow.
MOST_PROTOCOLS: Final = 64


class Waiting(Enum):
    """Result of a request whose answer comes later, by its callback."""

    WAITING = "waiting"


WAITING: Final = Waiting.WAITING


class Protocol(NamedTuple):
    """A protocol that a member supports, such as the assignor "range", and its metadata."""

    name: str
    metadata: bytes


@frozen
class GroupLimits:
    """The `group.*` configs that a group applies."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2_147_483_647
    initial_rebalance_delay_ms: int = 3_000


@frozen
class JoinRequest:
    """JoinGroup. `new_member_id` is the id that a client without one would get."""

    group_id: str
    member_id: str  # empty: the client has none
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int  # negative: the session timeout (version 0)
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]  # the preferred one first
    new_member_id: str
    requires_known_member_id: bool = True  # versions 4 and newer (KIP-394)
    supports_skip_assignment: bool = True  # versions 9 and newer (KIP-814)


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@frozen
class JoinAnswer:
    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()  # for the leader


@frozen
class SyncRequest:
    """SyncGroup. The protocol's type and name are absent before version 5 (KIP-559)."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()  # by member id, from the leader


@frozen
class SyncAnswer:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@frozen
class LeaveMember:
    """A member that leaves; an administrator removes a static member by its instance id alone."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


class LeftMember(NamedTuple):
    member_id: str
    instance_id: str | None
    error: ErrorCode


@frozen
class LeaveAnswer:
    error: ErrorCode
    members: tuple[LeftMember, ...] = ()


@frozen
class MemberView:
    """A member as DescribeGroups shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes  # empty unless the group is stable
    assignment: bytes
    rebalance_timeout_ms: int
    session_timeout_ms: int


@frozen
class GroupView:
    """A group as DescribeGroups and `groups explain` show it."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    generation: int
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberView, ...]
    rebalances: tuple[RebalanceView, ...]  # the newest last
    missing: tuple[str, ...]  # members that the rebalance in progress waits for


CompleteJoin: TypeAlias = Callable[[JoinAnswer], object]
CompleteSync: TypeAlias = Callable[[SyncAnswer], object]
JoinResult: TypeAlias = JoinAnswer | Waiting | Write[JoinAnswer | Waiting]
SyncResult: TypeAlias = SyncAnswer | Waiting | Write[SyncAnswer | Waiting]
LeaveResult: TypeAlias = LeaveAnswer | Write[LeaveAnswer]


def check_join(request: JoinRequest, limits: GroupLimits) -> ErrorCode:
    """Check what does not depend on the group's state; NONE if the request is valid."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    timeout_ms = request.session_timeout_ms
    if not limits.min_session_timeout_ms <= timeout_ms <= limits.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if len(request.protocols) > MOST_PROTOCOLS:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE
