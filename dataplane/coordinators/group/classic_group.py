"""One group of the classic protocol: requests of its members. Plain state.

    request                                     outcome
    JoinGroup of a new member without an id     it gets an id, and joins again with it (KIP-394);
                                                a static member, or in old versions, joins at once
    JoinGroup of a new instance of a static     it takes the member's place; without a rebalance if
    member (KIP-345)                            the group is stable and its protocol remains
    JoinGroup of a member with the same         the answer of the current generation, except for the
    protocols                                   leader of a stable group
    any other JoinGroup                         waits for the next generation (`rebalancing`)
    SyncGroup                                   waits for the assignment (`rebalancing`)
    Heartbeat, commit                           the session is extended (`sessions`)
    LeaveGroup, end of the session              the member is removed, and a rebalance begins

The methods return the answer, None for a request that waits, or a `Persist`, whose answer holds
once the record is committed. Source: KIP-62, 345, 394, 559, 814, and the behaviour of Kafka 4.3.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from metaquorum.dataplane.coordinators.client_budget import UNKNOWN, ClientBudget, text_bytes
from metaquorum.dataplane.coordinators.group.consumer_subscription import subscribed_topics
from metaquorum.dataplane.coordinators.group.members import (
    GroupMember,
    GroupMembers,
    never_muted,
)
from metaquorum.dataplane.coordinators.group.rebalance_history import RebalanceHistory
from metaquorum.dataplane.coordinators.group.rebalancing import (
    MAX_MEMBERS,
    GroupLimits,
    GroupState,
    Persist,
    Rebalancing,
)
from metaquorum.dataplane.coordinators.group.record_formats import (
    GroupMetadataValue,
    MemberMetadata,
    RecordedGeneration,
)
from metaquorum.dataplane.coordinators.group.requests import (
    NO_ERROR,
    NO_GENERATION,
    JoinAnswer,
    JoinCallback,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncCallback,
    SyncRequest,
)
from metaquorum.dataplane.coordinators.group.sessions import PendingMember, Sessions
from metaquorum.dataplane.coordinators.group.timeouts import Timeouts
from metaquorum.dataplane.instruments.histogram import Histogram
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, pause
from metaquorum.wire.primitives.errors import ErrorCode

CONSUMER: Final = "consumer"
# Members from which on a group keeps the topics of all of them: reading them takes a millisecond.
LARGE_GROUP: Final = 100
# Memory of a group without members, and without its id and its last rebalances.
GROUP_BYTES: Final = 3000
# Returns, at a monotonic time, until when a quota mutes, or muted, the client.
MutedUntil: TypeAlias = Callable[[float], float]


def group_bytes(group_id: str) -> int:
    """Return the memory of a group without members and without rebalances."""
    return GROUP_BYTES + text_bytes(group_id)


class ClassicGroup:
    """One group. `write` takes records that no request waits for."""

    def __init__(
        self,
        group_id: str,
        limits: GroupLimits,
        budget: ClientBudget,
        timeouts: Timeouts,
        wall_ms: Callable[[], int],
        write: Callable[[RecordedGeneration], object],
        rebalance_times: Histogram,
        client: str = UNKNOWN,
    ) -> None:
        """Create an empty group, for a client; `wall_ms` returns the time for records.

        It counts in the budget, until `forget`.
        """
        self.group_id = group_id
        self.client = client
        self._budget = budget
        budget.use(client, self.own_bytes)
        self.limits = limits
        self.members = GroupMembers(budget)
        self.history = RebalanceHistory(rebalance_times, self._grow, self._may_grow)
        self.sessions = Sessions(
            self.members, budget, timeouts, self._session_ended, self._pending_ended
        )
        self.rebalancing = Rebalancing(
            limits, self.members, self.sessions, timeouts, wall_ms, write, self.history
        )
        self._write = write
        self._subscribed: tuple[int, str, frozenset[str] | None] = (-1, "", None)

    @property
    def own_bytes(self) -> int:
        """Memory without members, pending members and rebalances."""
        return group_bytes(self.group_id)

    def _grow(self, size_bytes: int) -> None:
        self._budget.use(self.client, 0, size_bytes)

    def _may_grow(self, size_bytes: int) -> bool:
        return self._budget.refusal(self.client, 0, size_bytes) is None

    def used_by(self, client: str) -> None:
        """Count a group that was loaded for the client that uses it, if that has room."""
        if self.client == UNKNOWN:
            self.client = self._budget.take_over(
                UNKNOWN, client, self.own_bytes, self.history.size_bytes
            )

    def forget(self) -> None:
        """Stop counting a group without members."""
        self.history.clear()
        self._budget.use(self.client, -self.own_bytes)

    @property
    def state(self) -> GroupState:
        return self.rebalancing.state

    @property
    def generation(self) -> int:
        return self.rebalancing.generation

    @property
    def protocol(self) -> str | None:
        return self.rebalancing.protocol

    @property
    def state_timestamp_ms(self) -> int:
        return self.rebalancing.state_timestamp_ms

    @property
    def pending(self) -> Mapping[str, PendingMember]:
        """New members that have been given an id and have not joined with it."""
        return self.sessions.pending

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def protocol_type(self) -> str:
        return self.members.protocol_type or ""

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics of all members of a consumer group; None if they are unknown.

        They are those of the protocol of the last generation, as in Kafka.
        """
        protocol, version = self.protocol, self.members.version
        if not len(self.members):
            return frozenset()
        if protocol is None:
            return None
        if self._subscribed[:2] == (version, protocol):
            return self._subscribed[2]
        topics = subscribed_topics([member.metadata_of(protocol) for member in self.members])
        if len(self.members) >= LARGE_GROUP:
            self._subscribed = version, protocol, topics
        return topics

    # JoinGroup

    def join(
        self,
        now: float,
        request: JoinRequest,
        new_id: Callable[[], str],
        callback: JoinCallback,
        muted_until: MutedUntil = never_muted,
    ) -> JoinAnswer | Persist | None:
        """Add a member, or let it take part in the next generation.

        `new_id` returns a member id never used before. Returns None if the request waits; then
        `callback` is called with the answer.
        """
        if self.state is GroupState.DEAD:
            return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, request)
        if not (
            self._has_room_for(request.member_id, request.instance_id)
            and self.members.has_room_for(request)
        ):
            self._remove(now, request.member_id, "the group is full")
            if request.member_id in self.pending:  # the others wait for it no longer
                self.sessions.end_pending(request.member_id, now)
            return JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not self.members.supports(request, is_empty=self.is_empty):
            return _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request)
        if not request.member_id:
            return self._join_new(now, request, new_id(), callback, muted_until)
        if request.member_id in self.pending:
            if request.instance_id is not None:
                return _refused(ErrorCode.UNKNOWN_MEMBER_ID, request)
            self._add(now, request, request.member_id, callback, muted_until)
            return None
        code = self.members.check(request.member_id, request.instance_id)
        if code is not NO_ERROR:
            return _refused(code, request)
        member = self.members.by_id[request.member_id]
        member.muted_until = muted_until
        return self._join_again(now, member, request, callback)

    def member_of(self, request: JoinRequest) -> GroupMember | None:
        """Return the member that sends the request, or that a static one replaces."""
        member_id = request.member_id
        if not member_id and request.instance_id is not None:
            member_id = self.members.static_ids.get(request.instance_id, "")
        return self.members.by_id.get(member_id)

    def _has_room_for(self, member_id: str, instance_id: str | None) -> bool:
        most, known = self.limits.max_size, self.members.by_id.get(member_id)
        is_known = known is not None or instance_id in self.members.static_ids
        if not is_known and len(self.members) >= MAX_MEMBERS:
            return False
        if self.state is GroupState.EMPTY:
            return True
        if self.state is GroupState.PREPARING_REBALANCE:
            is_joined = known is not None and known.join is not None
            return is_joined or self.members.joined_count < most
        return known is not None or len(self.members) < most

    def _join_new(
        self,
        now: float,
        request: JoinRequest,
        member_id: str,
        callback: JoinCallback,
        muted_until: MutedUntil,
    ) -> JoinAnswer | Persist | None:
        if request.instance_id is not None:
            if request.instance_id in self.members.static_ids:
                return self._replace(now, request, member_id, callback, muted_until)
        elif request.needs_member_id:
            if not self.sessions.may_add_pending(request.client, self.limits.max_pending):
                # Until they join or time out.
                return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, request)
            self.sessions.add_pending(
                now,
                member_id,
                request.client_host,
                request.client,
                request.session_timeout_ms,
            )
            return JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        self._add(now, request, member_id, callback, muted_until)
        return None

    def _add(
        self,
        now: float,
        request: JoinRequest,
        member_id: str,
        callback: JoinCallback,
        muted_until: MutedUntil,
    ) -> None:
        member = GroupMember(member_id, request)
        member.muted_until = muted_until
        self.rebalancing.note_new_member()
        self.sessions.forget_pending(member_id)
        self.members.add(member, request.protocol_type)
        self.sessions.hear(now, member)
        self.members.wait_join(member, callback)
        self.rebalancing.begin(now, "a member has joined", member, request.reason)

    def _join_again(
        self, now: float, member: GroupMember, request: JoinRequest, callback: JoinCallback
    ) -> JoinAnswer | None:
        self.sessions.hear(now, member)
        is_same = member.matches(request)
        if self.state is GroupState.COMPLETING_REBALANCE and is_same:
            return self.rebalancing.joined(member)  # its earlier answer was lost
        if self.state is GroupState.STABLE and is_same and self.members.leader != member.member_id:
            return self.rebalancing.joined(member)
        self.members.update(member, request)
        self.sessions.hear(now, member)  # with its new timeout
        self.members.wait_join(member, callback)
        is_leader = self.members.leader == member.member_id
        cause = "the leader has joined again" if is_leader else "a member has joined again"
        self.rebalancing.begin(
            now,
            cause if is_same else "a member has changed its subscription",
            member,
            request.reason,
        )
        return None

    def _replace(
        self,
        now: float,
        request: JoinRequest,
        member_id: str,
        callback: JoinCallback,
        muted_until: MutedUntil,
    ) -> JoinAnswer | Persist | None:
        """Let another process take the place of a static member (KIP-345)."""
        assert request.instance_id is not None
        leader_before = self.members.leader or ""
        member = self.rebalancing.replace(request.instance_id, member_id)
        member.muted_until = muted_until
        is_same = member.matches(request)
        self.members.update(member, request)
        self.sessions.hear(now, member)
        is_stable = self.state is GroupState.STABLE
        # With the same protocols, the group keeps its own, also if another has as many votes.
        if is_stable and (is_same or self.members.select_protocol() == self.protocol):
            may_skip = request.may_skip_assignment
            answer = self.rebalancing.joined(member, names_members=may_skip)
            if may_skip:
                answer.skip_assignment = self.members.leader == member_id
            else:  # a leader that must not compute an assignment gets another member's id
                answer.leader = leader_before
            return Persist(self.rebalancing.record_again(), answer)
        self.members.wait_join(member, callback)
        self.rebalancing.begin(now, "a static member was replaced", member, request.reason)
        return None

    def drop_join(self, now: float, member_id: str) -> None:
        """Note that the connection of a waiting JoinGroup has ended: the member must join again."""
        member = self.members.by_id.get(member_id)
        if member is not None and member.join is not None:
            self.members.drop_join(member)
            self.sessions.hear(now, member)

    def drop_sync(self, now: float, member_id: str) -> None:
        """Note that the connection of a waiting SyncGroup has ended."""
        member = self.members.by_id.get(member_id)
        if member is not None and member.sync is not None:
            member.sync = None
            self.sessions.hear(now, member)

    # SyncGroup

    def sync(
        self, now: float, request: SyncRequest, callback: SyncCallback
    ) -> SyncAnswer | Persist | None:
        """Take the leader's assignment, or return the member's; None if the request waits."""
        return self.rebalancing.sync(now, request, callback)

    def committed(self, now: float, record: RecordedGeneration) -> None:
        """Apply a committed record; answer the SyncGroups if it is this generation's assignment."""
        self.rebalancing.committed(now, record)

    # Heartbeats, sessions and leaving

    def check(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Return the error for a request of a member of a generation, apart from rebalances."""
        return self.rebalancing.check(member_id, instance_id, generation)

    def heartbeat(
        self,
        now: float,
        member_id: str,
        instance_id: str | None,
        generation: int,
        muted_until: MutedUntil = never_muted,
        principal: str = "",
        client: str = UNKNOWN,
    ) -> ErrorCode:
        code = self.check(member_id, instance_id, generation)
        if code is not NO_ERROR:
            return code
        member = self.members.by_id[member_id]
        member.heard_at, member.muted_until = now, muted_until
        member.principal = principal
        if member.client == UNKNOWN:
            self.members.taken_over(member, client)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return NO_ERROR

    def hear(self, now: float, member_id: str) -> None:
        """Note a request of a member, which is a sign of life; also a commit."""
        member = self.members.by_id.get(member_id)
        if member is not None:
            member.heard_at = now

    def _session_ended(self, now: float, member_id: str) -> None:
        self._remove(now, member_id, "a member's session has timed out")

    def _pending_ended(self, now: float) -> None:
        self.rebalancing.look(now)

    def forget_pending(self) -> None:
        """Forget the ids that were given and not used yet: their owners join as new members."""
        self.sessions.forget_all_pending()

    def leave(self, now: float, members: Iterable[LeavingMember]) -> list[ErrorCode]:
        """Remove members by their ids, or by their instance ids alone; rebalance once."""
        codes: list[ErrorCode] = []
        left: tuple[GroupMember, str] | None = None  # the first
        for leaving in members:
            code, member = self._leave(now, leaving)
            codes.append(code)
            if member is not None and left is None:
                left = member, leaving.reason
        if left is not None:
            self.rebalancing.begin(now, "a member has left", *left)
        return codes

    def _leave(self, now: float, leaving: LeavingMember) -> tuple[ErrorCode, GroupMember | None]:
        """Remove a member, which is returned unless it was only pending."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
        member_id = leaving.member_id
        if not member_id and leaving.instance_id is not None:
            member_id = self.members.static_ids.get(leaving.instance_id, "")
        elif member_id in self.pending:
            if leaving.instance_id is not None:
                return ErrorCode.UNKNOWN_MEMBER_ID, None
            self.sessions.end_pending(member_id, now)
            return NO_ERROR, None
        code = self.members.check(member_id, leaving.instance_id)
        return code, self.rebalancing.remove(member_id) if code is NO_ERROR else None

    def _remove(self, now: float, member_id: str, cause: str, reason: str = "") -> None:
        """Remove a member and rebalance."""
        member = self.rebalancing.remove(member_id)
        if member is not None:
            self.rebalancing.begin(now, cause, member, reason)

    # Records

    def write_empty(self) -> None:
        """Write the record of a group without members, unless it has members again."""
        if self.is_empty:
            self._write(self.rebalancing.record({}))

    async def restore(
        self, now: float, metadata: GroupMetadataValue, loaded_at: Callable[[], float]
    ) -> None:
        """Become the group that another coordinator has recorded, in pieces.

        `loaded_at` returns the time at which sessions begin: no request is handled before.
        """
        rebalancing = self.rebalancing
        rebalancing.generation, rebalancing.protocol = metadata.generation, metadata.protocol
        rebalancing.state_timestamp_ms = metadata.current_state_timestamp
        self.members.protocol_type = metadata.protocol_type or None
        for number, persisted in enumerate(metadata.members):
            if number % PIECE_ROWS == PIECE_ROWS - 1:
                await pause()
            if self._is_repeated(persisted):
                continue
            member = GroupMember.restored(
                persisted, metadata.protocol_type, metadata.protocol or ""
            )
            member.muted_until = lambda _: loaded_at()
            self.members.add(member, metadata.protocol_type)
            self.sessions.hear(now, member)
        rebalancing.restored(metadata)

    def _is_repeated(self, persisted: MemberMetadata) -> bool:
        """Return whether an earlier member of a record has an id of this one: no coordinator's."""
        instance_id = persisted.group_instance_id
        return persisted.member_id in self.members or instance_id in self.members.static_ids

    async def close(self, code: ErrorCode) -> None:
        """Answer all waiting requests with an error, and end all timeouts, in pieces."""
        self.rebalancing.close()
        self.sessions.close()
        for number, member in enumerate(self.members):
            self.members.refuse(member, code)
            if number % PIECE_ROWS == PIECE_ROWS - 1:
                await pause()
        await self.members.clear()

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        self.members.check_invariants()
        self.sessions.check_invariants()
        self.rebalancing.check_invariants()
        assert len(self.members) <= MAX_MEMBERS
        assert not len(self.members) or self.members.protocol_type is not None


def _refused(code: ErrorCode, request: JoinRequest) -> JoinAnswer:
    return JoinAnswer(code, request.member_id, NO_GENERATION)
