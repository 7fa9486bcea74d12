"""Membership of one consumer in a group: plain state, without I/O.

    state     awaits                                         then
    UNJOINED  `join_request` (when `is_join_due`)            JOINING
    JOINING   the response to JoinGroup                      JOINED, or UNJOINED
    JOINED    `sync_request` (the leader: the assignments)   SYNCING
    SYNCING   the response to SyncGroup                      SYNCED, or UNJOINED
    SYNCED    `take_assignment`                              STABLE
    STABLE    nothing; `is_join_due` in a rebalance          JOINING

What an error code in any response means for the member:

    COORDINATOR_LOAD_IN_PROGRESS                    the request is repeated after a pause
    COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR      also, the coordinator is looked up again
    REBALANCE_IN_PROGRESS                           joins again, and keeps its partitions until then
    MEMBER_ID_REQUIRED                              joins again, with the member id of the response
    ILLEGAL_GENERATION                              has lost its partitions; joins again
    UNKNOWN_MEMBER_ID                               also, without its member id
    FENCED_INSTANCE_ID                              another consumer has its instance id: final
    any other                                       raised by the next poll, after which it joins

An error that answers a request of an earlier generation has no meaning. Source: AbstractCoordinator
and ConsumerCoordinator of Kafka 4.3.1; KIP-62, 345, 394, 429, 559, 800, 814.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.errors import BrokerError, broker_error
from metaquorum.client.groups.assignors import ASSIGNORS, AssignedMember
from metaquorum.client.groups.consumer_protocol import (
    CONSUMER_PROTOCOL,
    NO_GENERATION,
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from metaquorum.client.groups.coordinators import subject
from metaquorum.client.groups.group_config import GroupConfig
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.frozen import frozen

if TYPE_CHECKING:
    from metaquorum.wire.messages.heartbeat import HeartbeatRequest
    from metaquorum.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
    from metaquorum.wire.messages.leave_group import LeaveGroupRequest
    from metaquorum.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_MEMBERS_SINCE: Final = 3  # LeaveGroup: KIP-345
RETRY_PAUSE_S: Final = 0.1  # retry.backoff.ms of Kafka


class State(Enum):
    """State of a membership, as in the table above."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    JOINED = "joined"
    SYNCING = "syncing"
    SYNCED = "synced"
    STABLE = "stable"


class Reaction(Enum):
    """Effect of an error code, as in the table above."""

    RETRY = 1
    FIND_COORDINATOR = 2
    REJOIN = 3
    ADOPT_MEMBER_ID = 4
    LOSE_GENERATION = 5
    LOSE_MEMBER_ID = 6
    FAIL = 7


_REACTIONS: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Reaction.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Reaction.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: Reaction.FIND_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS: Reaction.REJOIN,
    ErrorCode.MEMBER_ID_REQUIRED: Reaction.ADOPT_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION: Reaction.LOSE_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.LOSE_MEMBER_ID,
}

# Responses have no message; these say more than the name of the code.
_TEXTS: Final = {
    ErrorCode.FENCED_INSTANCE_ID: "another consumer has joined with the same instance id",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the members of the group have no assignor in common, "
    "or are not consumers",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the broker does not allow this session timeout "
    "(group.min.session.timeout.ms, group.max.session.timeout.ms)",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as the broker allows "
    "(group.max.size)",
    ErrorCode.ILLEGAL_GENERATION: "the group has rebalanced without this consumer",
    ErrorCode.UNKNOWN_MEMBER_ID: "this consumer is no longer a member",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group rebalances",
}


@frozen
class Identity:
    """Member id and generation of a member; the coordinator knows a member by both."""

    generation: int
    member_id: str


NO_IDENTITY: Final = Identity(NO_GENERATION, "")


def member_error(code: int, group: str) -> BrokerError:
    """Return the error for a code in a response to a member."""
    error = broker_error(code, None, subject(group))
    error.message = _TEXTS.get(error.code, error.message)
    return error


def reaction_to(error: BrokerError) -> Reaction:
    """Return the effect of an error on the member."""
    return _REACTIONS.get(error.code, Reaction.FAIL)


class GroupMember:
    """State of one member. Times are seconds of one monotonic clock, passed in.

    `identity`: NO_IDENTITY while it is not a member. `has_lost`: it lost its partitions, which
    another member may own already. `rejoin_reason`: None while it needs no rebalance. `failure`:
    the error that the next poll raises. `members`: with their subscriptions, if this is the leader.
    """

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.state = State.UNJOINED
        self.identity = NO_IDENTITY
        self.protocol = ""
        self.has_lost = False
        self.rejoin_reason: str | None = "a new member"
        self.failure: BrokerError | None = None
        self.members: Sequence[AssignedMember] = ()
        self.is_leader = False
        self.skips_assignment = False
        self.retry_at = 0.0
        self._assignment = b""
        # Generation of the owned partitions; older than `identity` after a failed SyncGroup.
        self._assigned_generation = NO_GENERATION

    # Next steps

    @property
    def is_stable(self) -> bool:
        """Whether it is a member of the current generation, and may commit."""
        return self.state is State.STABLE and self.identity.generation != NO_GENERATION

    @property
    def is_in_session(self) -> bool:
        """Whether the coordinator expects heartbeats."""
        return self.state not in (State.UNJOINED, State.JOINING)

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep their partitions during a rebalance: all assignors support it."""
        return all(ASSIGNORS[name].is_cooperative for name in self.config.assignors)

    def is_join_due(self, now: float) -> bool:
        """Return whether the next step is `join_request`."""
        may_join = self.state in (State.UNJOINED, State.STABLE)
        return may_join and self.rejoin_reason is not None and now >= self.retry_at

    def request_rejoin(self, reason: str) -> None:
        """Join again at the next opportunity; the first of several reasons is kept."""
        self.rejoin_reason = self.rejoin_reason or reason

    def raise_failure(self) -> None:
        """Raise the error that ended the membership; it is final after FENCED_INSTANCE_ID."""
        failure = self.failure
        if failure is None:
            return
        if failure.code is not ErrorCode.FENCED_INSTANCE_ID:
            self.failure = None
        raise failure

    # Requests

    def join_request(
        self, topics: Iterable[str], owned: Sequence[TopicPartition]
    ) -> JoinGroupRequest:
        """Begin to join with the subscribed topics and the partitions that it owns."""
        from metaquorum.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol

        assert self.state in (State.UNJOINED, State.STABLE)
        assert self.rejoin_reason is not None
        config, generation = self.config, self._assigned_generation
        subscribed = tuple(sorted(topics))
        protocols = [
            JoinGroupRequestProtocol(
                name=name,
                metadata=encode_subscription(
                    Subscription(
                        subscribed,
                        ASSIGNORS[name].user_data(generation),
                        tuple(owned),
                        generation,
                        config.rack,
                    )
                ),
            )
            for name in config.assignors
        ]
        request = JoinGroupRequest(
            group_id=config.group,
            session_timeout_ms=int(config.session_timeout_s * 1000),
            rebalance_timeout_ms=int(config.max_poll_interval_s * 1000),
            member_id=self.identity.member_id,
            group_instance_id=config.instance_id,
            protocol_type=CONSUMER_PROTOCOL,
            protocols=protocols,
            reason=self.rejoin_reason,
        )
        self.state = State.JOINING
        self.rejoin_reason = None
        self.has_lost = False
        return request

    def sync_request(self, assignments: Mapping[str, Sequence[TopicPartition]]) -> SyncGroupRequest:
        """Ask for the assignment; the leader sends the assignments of all members by member id."""
        from metaquorum.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

        assert self.state is State.JOINED
        self.state = State.SYNCING
        return SyncGroupRequest(
            group_id=self.config.group,
            generation_id=self.identity.generation,
            member_id=self.identity.member_id,
            group_instance_id=self.config.instance_id,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=self.protocol,
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=member_id,
                    assignment=encode_assignment(Assignment(tuple(partitions), b"")),
                )
                for member_id, partitions in assignments.items()
            ],
        )

    def heartbeat_request(self) -> HeartbeatRequest:
        """Return the heartbeat of the current generation."""
        from metaquorum.wire.messages.heartbeat import HeartbeatRequest

        return HeartbeatRequest(
            group_id=self.config.group,
            generation_id=self.identity.generation,
            member_id=self.identity.member_id,
            group_instance_id=self.config.instance_id,
        )

    def leave_request(self, reason: str, version: int) -> LeaveGroupRequest | None:
        """Return the request to leave; None for a static member or without a member id.

        `version`: in which it will be sent. A static member stays for the session timeout, so that
        its partitions await its restart.
        """
        from metaquorum.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity

        member_id = self.identity.member_id
        if self.config.instance_id is not None or not member_id:
            return None
        if version < _MEMBERS_SINCE:
            return LeaveGroupRequest(group_id=self.config.group, member_id=member_id)
        return LeaveGroupRequest(
            group_id=self.config.group,
            members=[MemberIdentity(member_id=member_id, reason=reason)],
        )

    # Responses

    def on_join(self, response: JoinGroupResponse, now: float) -> Reaction | None:
        """Take the response to JoinGroup; return the reaction to its error, None without one."""
        if self.state is not State.JOINING:
            return None
        if response.error_code:
            return self._on_refusal(response.error_code, now, response.member_id)
        self.state = State.JOINED
        self.identity = Identity(response.generation_id, response.member_id)
        self.protocol = response.protocol_name or ""
        self.is_leader = response.leader == response.member_id
        self.skips_assignment = response.skip_assignment
        self.members = [
            AssignedMember(
                member.member_id,
                member.group_instance_id,
                # A member with malformed bytes subscribes to nothing, and the others continue.
                decode_subscription(bytes(member.metadata)) or Subscription((), b""),
            )
            for member in (response.members if self.is_leader else ())
        ]
        return None

    def on_sync(self, response: SyncGroupResponse, now: float) -> Reaction | None:
        """Take the response to SyncGroup; return the reaction to its error, None without one."""
        if self.state is not State.SYNCING:
            return None
        if response.error_code:
            return self._on_refusal(response.error_code, now, self.identity.member_id)
        self.state = State.SYNCED
        self._assignment = bytes(response.assignment)
        return None

    def take_assignment(self) -> tuple[TopicPartition, ...]:
        """Become STABLE and return the assigned partitions.

        Raises BrokerError if the leader of the group sent malformed bytes.
        """
        assert self.state is State.SYNCED
        self.state = State.STABLE
        self._assigned_generation = self.identity.generation
        assignment = decode_assignment(self._assignment)
        if assignment is None:
            self.request_rejoin("a malformed assignment")
            text = "the leader of the group sent a malformed assignment"
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, text, subject(self.config.group))
        return assignment.partitions

    def on_error(self, identity: Identity, code: int, now: float) -> Reaction | None:
        """Apply the error of a heartbeat or commit of `identity`; None if that is outdated."""
        if identity != self.identity or not self.is_in_session:
            return None
        error = member_error(code, self.config.group)
        reaction = reaction_to(error)
        if reaction is Reaction.REJOIN:
            if self.state is State.STABLE:
                self.request_rejoin("the group rebalances")
        elif reaction in (Reaction.LOSE_GENERATION, Reaction.LOSE_MEMBER_ID):
            self._lose(error.message, keeps_member_id=reaction is Reaction.LOSE_GENERATION)
        elif error.code is ErrorCode.FENCED_INSTANCE_ID:
            self._fail(error)
        elif reaction is Reaction.FAIL:
            self.failure = error
        return reaction

    def on_poll_timeout(self, identity: Identity) -> None:
        """Apply that the background has left the group, since the consumer did not poll in time."""
        if identity == self.identity and self.is_in_session:
            self._lose("did not poll in time", keeps_member_id=False)

    def on_disconnect(self, now: float) -> None:
        """Join again if the connection failed before the response to JoinGroup or SyncGroup."""
        if self.state in (State.JOINING, State.SYNCING):
            self._unjoin("lost the connection to the coordinator")
            self.retry_at = now + RETRY_PAUSE_S

    def on_leave(self) -> None:
        """Forget the membership; a later poll joins as a new member."""
        self.state = State.UNJOINED
        self.identity = NO_IDENTITY
        self._assigned_generation = NO_GENERATION
        self.request_rejoin("a new member")

    def _on_refusal(self, code: int, now: float, member_id: str) -> Reaction:
        error = member_error(code, self.config.group)
        reaction = reaction_to(error)
        if reaction in (Reaction.LOSE_GENERATION, Reaction.LOSE_MEMBER_ID):
            self._lose(error.message, keeps_member_id=reaction is Reaction.LOSE_GENERATION)
        elif reaction is Reaction.FAIL:
            self._fail(error)
        else:
            if reaction is Reaction.ADOPT_MEMBER_ID:
                self.identity = Identity(self.identity.generation, member_id)
            self._unjoin(error.message)
        if reaction in (Reaction.RETRY, Reaction.FIND_COORDINATOR):
            self.retry_at = now + RETRY_PAUSE_S
        return reaction

    def _unjoin(self, reason: str) -> None:
        self.state = State.UNJOINED
        self.request_rejoin(reason)

    def _lose(self, reason: str, *, keeps_member_id: bool) -> None:
        self.has_lost = True
        self._assigned_generation = NO_GENERATION
        member_id = self.identity.member_id if keeps_member_id else ""
        self.identity = Identity(NO_GENERATION, member_id)
        self._unjoin(reason)

    def _fail(self, error: BrokerError) -> None:
        self.failure = error
        self.has_lost = True
        self.identity = NO_IDENTITY
        self._assigned_generation = NO_GENERATION
        self._unjoin(error.message)
