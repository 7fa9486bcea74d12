"""One group of the classic protocol: members, generations and assignments. Plain state.

Members join; when all have, or the rebalance timeout is over, the coordinator begins a generation:
it selects a protocol and a leader, and answers every JoinGroup. The leader computes the assignment
and sends it in its SyncGroup; the coordinator records it, and answers every SyncGroup.

    state                 event                                     next state
    EMPTY                 a member joins                            PREPARING_REBALANCE
    PREPARING_REBALANCE   all members have joined, or the rebalance COMPLETING_REBALANCE
                          timeout is over: those that have not are
                          removed, but for static members
    PREPARING_REBALANCE   the same, without members                 EMPTY, recorded
    COMPLETING_REBALANCE  the record of the leader's assignment is  STABLE: SyncGroups are answered
                          committed
    COMPLETING_REBALANCE  a member joins with other protocols,      PREPARING_REBALANCE: SyncGroups
                          leaves, or ends; the record was not       are answered with
                          written                                   REBALANCE_IN_PROGRESS
    STABLE                a member joins, leaves, ends or changes   PREPARING_REBALANCE
                          its protocols; the leader joins again
    the last two          a SyncGroup is missing for the rebalance  PREPARING_REBALANCE, without
                          timeout                                   that member
    any                   the leadership ends                       DEAD

The first rebalance of a group waits for `initial_rebalance_delay_s` for more members, and again
while members arrive, at most for their rebalance timeout; it does not wait for pending members.

A generation is memory of this coordinator until its assignment is recorded: if the coordinator dies
before, its members are unknown to the next one and join again. The methods return the answer, None
for a request that waits, or a `Persist`, whose answer holds once the record is committed.

A new member without an id receives one, and joins again with it (KIP-394); it is *pending* until
then. A session ends if the member sends nothing for its session timeout; members with a waiting
JoinGroup or SyncGroup are alive as long as their connection. Source: KIP-62, 345, 394, 559, 814,
and the behaviour of Kafka 4.3.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from math import inf
from typing import Final, NamedTuple, TypeAlias

from dataplane.coordinators.group.members import (
    GroupMember,
    GroupMembers,
    GroupMemory,
    never_muted,
)
from dataplane.coordinators.group.rebalance_history import RebalanceHistory
from dataplane.coordinators.group.record_formats import GroupMetadataValue
from dataplane.coordinators.group.requests import (
    NO_ERROR,
    NO_GENERATION,
    JoinAnswer,
    JoinCallback,
    JoinedMember,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncCallback,
    SyncRequest,
)
from dataplane.coordinators.group.timeouts import Timeout, Timeouts
from dataplane.instruments.histogram import Histogram
from dataplane.scheduling.time_slices import PIECE_ROWS, Work
from wire.primitives.errors import ErrorCode

CONSUMER: Final = "consumer"
# Shortest time for which absent static members are awaited again: clients choose the timeout.
LEAST_WAIT_S: Final = 1.0
# Memory of an id that was given to a new member.
PENDING_BYTES: Final = 600
# Returns, at a monotonic time, until when a quota mutes, or muted, the client.
MutedUntil: TypeAlias = Callable[[float], float]


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Awaited(Enum):
    """Event that a group waits for before all its members have their partitions."""

    NOTHING = ""
    MORE_MEMBERS = "more members"  # the initial delay
    JOIN_GROUP = "JoinGroup"
    ASSIGNMENT = "assignment"  # the leader's SyncGroup
    COMMIT = "commit"  # the record of the assignment is in the log
    SYNC_GROUP = "SyncGroup"  # the SyncGroups of members other than the leader


@dataclass(slots=True)
class Persist:
    """The record of a group to write, and the JoinGroup's answer that holds once it is committed.

    `answer` is None if the request waits, and is answered by `ClassicGroup.committed`.
    """

    metadata: GroupMetadataValue
    answer: JoinAnswer | None = None
    on_failed: Callable[[ErrorCode], object] | None = None


@dataclass(slots=True)
class GroupLimits:
    """Configs in force that limit each group."""

    initial_rebalance_delay_s: float = 3.0
    max_size: int = 2**31 - 1
    max_pending: int = 1000


class PendingMember(NamedTuple):
    """A new member that has been given an id, until `ends`."""

    client_host: str
    ends: Timeout


class ClassicGroup:
    """One group. `write` takes records that no request waits for."""

    def __init__(
        self,
        group_id: str,
        limits: GroupLimits,
        memory: GroupMemory,
        timeouts: Timeouts,
        wall_ms: Callable[[], int],
        write: Callable[[GroupMetadataValue], object],
        rebalance_times: Histogram,
        client_host: str = "",
    ) -> None:
        """Create an empty group, for a client. `wall_ms` returns the time for records."""
        self.group_id = group_id
        self.client_host = client_host
        self.limits = limits
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol: str | None = None
        self.members = GroupMembers(memory)
        self._memory = memory
        # Ids given to new members that have not joined with them.
        self.pending: dict[str, PendingMember] = {}
        self.state_timestamp_ms = -1
        self.history = RebalanceHistory(rebalance_times)
        self._timeouts = timeouts
        self._wall_ms = wall_ms
        self._write = write
        self._sessions: dict[str, Timeout] = {}
        self._phase: Timeout | None = None  # end of the delay, of PREPARING or of COMPLETING
        self._first_ends_at = 0.0  # longest time of the first rebalance
        self._has_new_members = False
        self._is_first = False  # the rebalance began without members
        # The leader's assignment is written: at most one in a generation, also if it was late.
        self._is_assigned = False
        self._unsynced: set[str] = set()  # members without a SyncGroup in this generation
        self._syncs_end_at = 0.0

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def protocol_type(self) -> str:
        return self.members.protocol_type or ""

    @property
    def awaited(self) -> Awaited:
        if self.state is GroupState.PREPARING_REBALANCE:
            return Awaited.MORE_MEMBERS if self._is_first else Awaited.JOIN_GROUP
        if self.state is GroupState.COMPLETING_REBALANCE:
            return Awaited.COMMIT if self._is_assigned else Awaited.ASSIGNMENT
        is_missing = self.state is GroupState.STABLE and self._unsynced
        return Awaited.SYNC_GROUP if is_missing else Awaited.NOTHING

    @property
    def wait_ends_at(self) -> float:
        """Monotonic seconds at which the group continues without late members; inf: never."""
        if self._phase is None or self.awaited in (Awaited.NOTHING, Awaited.COMMIT):
            return inf
        return self._phase.due

    def is_late(self, member: GroupMember) -> bool:
        """Return whether the group waits for a request of this member."""
        awaited = self.awaited
        if awaited is Awaited.JOIN_GROUP:
            return member.join is None
        if awaited is Awaited.ASSIGNMENT:
            return member.member_id == self.members.leader
        return awaited is Awaited.SYNC_GROUP and member.member_id in self._unsynced

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
        if not self._has_room_for(request.member_id):
            self._remove(now, request.member_id, "the group is full")
            return _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, request)
        if not self.members.supports(request):
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

    def _has_room_for(self, member_id: str) -> bool:
        most, known = self.limits.max_size, self.members.by_id.get(member_id)
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
            if len(self.pending) >= self.limits.max_pending:
                return _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, request)
            ends = self._timeouts.at(
                now + request.session_timeout_ms / 1000, partial(self._pending_ended, member_id)
            )
            self.pending[member_id] = PendingMember(request.client_host, ends)
            self._memory.use(request.client_host, PENDING_BYTES)
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
        if self.state is GroupState.PREPARING_REBALANCE and self._is_first:
            self._has_new_members = True
        self._forget_pending(member_id)
        self.members.add(member, request.protocol_type)
        self._hear(now, member)
        self.members.wait_join(member, callback)
        self._rebalance(now, "a member has joined", member, request.reason)

    def _join_again(
        self, now: float, member: GroupMember, request: JoinRequest, callback: JoinCallback
    ) -> JoinAnswer | None:
        self._hear(now, member)
        is_same = member.matches(request)
        if self.state is GroupState.COMPLETING_REBALANCE and is_same:
            return self._joined(member)  # its earlier answer was lost
        if self.state is GroupState.STABLE and is_same and self.members.leader != member.member_id:
            return self._joined(member)
        self.members.update(member, request)
        self.members.wait_join(member, callback)
        is_leader = self.members.leader == member.member_id
        cause = "the leader has joined again" if is_leader else "a member has joined again"
        self._rebalance(
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
        session = self._sessions.pop(self.members.static_ids[request.instance_id], None)
        if session is not None:
            session.cancel()
        self._unsynced.discard(self.members.static_ids[request.instance_id])
        member = self.members.replace(request.instance_id, member_id)
        member.muted_until = muted_until
        self._hear(now, member)
        self.members.update(member, request)
        is_stable = self.state is GroupState.STABLE
        if is_stable and self.members.select_protocol() == self.protocol:
            answer = self._joined(member)
            if request.may_skip_assignment:
                answer.skip_assignment = self.members.leader == member_id
            else:  # a leader that must not compute an assignment gets another member's id
                answer.leader, answer.members = leader_before, []
            return Persist(self._metadata(self._assignments()), answer)
        self.members.wait_join(member, callback)
        self._rebalance(now, "a static member was replaced", member, request.reason)
        return None

    def _joined(self, member: GroupMember) -> JoinAnswer:
        """Return the answer to a JoinGroup in the current generation."""
        return JoinAnswer(
            NO_ERROR,
            member.member_id,
            self.generation,
            self.members.protocol_type,
            self.protocol,
            self.members.leader or "",
            members=self._joined_members() if self.members.leader == member.member_id else [],
        )

    def _joined_members(self) -> list[JoinedMember]:
        protocol = self.protocol
        return [
            JoinedMember(each.member_id, each.instance_id, each.metadata_of(protocol))
            for each in self.members
        ]

    def drop_join(self, now: float, member_id: str) -> None:
        """Note that the connection of a waiting JoinGroup has ended: the member must join again."""
        member = self.members.by_id.get(member_id)
        if member is not None and member.join is not None:
            self.members.drop_join(member)
            self._hear(now, member)

    def drop_sync(self, now: float, member_id: str) -> None:
        """Note that the connection of a waiting SyncGroup has ended."""
        member = self.members.by_id.get(member_id)
        if member is not None and member.sync is not None:
            member.sync = None
            self._hear(now, member)

    # Rebalances

    def _rebalance(
        self, now: float, cause: str, member: GroupMember | None, reason: str = ""
    ) -> None:
        """Begin a rebalance, unless one has begun; complete it if all members have joined."""
        if self.state in (
            GroupState.EMPTY,
            GroupState.COMPLETING_REBALANCE,
            GroupState.STABLE,
        ):
            self._prepare(now, cause, member, reason)
        elif self.state is GroupState.PREPARING_REBALANCE and not self._is_first:
            self._complete_if_all_joined(now)

    def _prepare(
        self, now: float, cause: str, member: GroupMember | None, reason: str = ""
    ) -> None:
        self.history.begin(now, cause, member, reason)
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        self._is_first = self.state is GroupState.EMPTY
        self._turn(GroupState.PREPARING_REBALANCE)
        delay_s = self.limits.initial_rebalance_delay_s
        if self._is_first:
            self._has_new_members = False
            self._first_ends_at = now + max(self.members.rebalance_timeout_s, delay_s)
            if delay_s > 0:
                self._wait(now + delay_s, self._delay_ended)
            else:
                self._complete(now)
            return
        if not self._complete_if_all_joined(now):
            self._wait(now + self.members.rebalance_timeout_s, self._complete)

    def _delay_ended(self, now: float) -> None:
        left_s = self._first_ends_at - now
        if self._has_new_members and left_s > 0:
            self._has_new_members = False
            delay_s = min(self.limits.initial_rebalance_delay_s, left_s)
            self._wait(now + delay_s, self._delay_ended)
            return
        self._complete(now)

    def _complete_if_all_joined(self, now: float) -> bool:
        if not self.pending and self.members.joined_count == len(self.members):
            self._complete(now)
            return True
        return False

    def _complete(self, now: float) -> None:
        """Begin the next generation with the members that have joined."""
        for member in self.members:
            if member.join is None and not member.is_static:
                self._forget(member.member_id)
        if len(self.members) and not self.members.elect_leader():
            # Only static members are left, and none has joined: their sessions will end.
            timeout_s = max(self.members.rebalance_timeout_s, LEAST_WAIT_S)
            self._wait(now + timeout_s, self._complete)
            return
        self._is_first = self._is_assigned = False
        self.generation += 1
        if not len(self.members):
            self.protocol = None
            self._turn(GroupState.EMPTY)
            self.history.end(now, self.generation)
            self._write(self._metadata({}))
            return
        self.protocol = self.members.select_protocol()
        self._turn(GroupState.COMPLETING_REBALANCE)
        self._unsynced = set(self.members.by_id)
        self._syncs_end_at = now + self.members.rebalance_timeout_s
        self._wait(self._syncs_end_at, self._syncs_ended)
        for member in self.members:
            member.is_new = False
            if member.join is not None:
                self._hear(now, member)
                self.members.answer_join(member, self._joined(member))

    def _syncs_ended(self, now: float) -> None:
        """Remove the members that have not sent a SyncGroup in time."""
        missing = [self.members.by_id[member_id] for member_id in sorted(self._unsynced)]
        if not missing:
            return  # the record of the assignment is not committed yet
        for member in missing:
            self._forget(member.member_id)
        self._prepare(now, "a member has not sent its SyncGroup in time", missing[0])

    def _refuse_syncs(self, code: ErrorCode) -> None:
        for member in self.members:
            self.members.assign(member, b"")
            member.answer_sync(SyncAnswer(code))

    # SyncGroup

    def sync(
        self, now: float, request: SyncRequest, callback: SyncCallback
    ) -> SyncAnswer | Persist | None:
        """Take the leader's assignment, or return the member's; None if the request waits."""
        code = self._check_sync(request)
        if code is not NO_ERROR:
            return SyncAnswer(code)
        member = self.members.by_id[request.member_id]
        self._hear(now, member)
        self._unsynced.discard(member.member_id)
        if self.state is GroupState.STABLE:
            return self._synced(member)
        member.answer_sync(SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))  # sent again by its client
        member.sync = callback
        if member.member_id != self.members.leader or self._is_assigned:
            return None
        self._is_assigned = True
        return Persist(
            self._metadata(request.assignments),
            on_failed=partial(self._assignment_failed, self.generation),
        )

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = self.check(request.member_id, request.instance_id, request.generation)
        if code is not NO_ERROR:
            return code
        if request.protocol_type not in (None, self.members.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol not in (None, self.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return NO_ERROR

    def _synced(self, member: GroupMember) -> SyncAnswer:
        return SyncAnswer(NO_ERROR, self.members.protocol_type, self.protocol, member.assignment)

    def committed(self, now: float, metadata: GroupMetadataValue) -> None:
        """Apply a committed record; answer the SyncGroups if it is this generation's assignment."""
        if (
            self.state is not GroupState.COMPLETING_REBALANCE
            or not self._is_assigned
            or metadata.generation != self.generation
        ):
            return
        assignments = {each.member_id: each.assignment for each in metadata.members}
        self._turn(GroupState.STABLE)
        if self._unsynced:
            self._wait(self._syncs_end_at, self._syncs_ended)
        self.history.end(now, self.generation)
        for member in self.members:
            self.members.assign(member, assignments.get(member.member_id, b""))
            if member.sync is not None:
                self._hear(now, member)
                member.answer_sync(self._synced(member))

    def _assignment_failed(self, generation: int, code: ErrorCode) -> None:
        """Begin another rebalance: the record of the assignment was not committed in time.

        If it is committed before the next timeout, the generation has its assignment after all.
        """
        if self.state is GroupState.COMPLETING_REBALANCE and generation == self.generation:
            self._refuse_syncs(code)
            self._timeouts.at(float("-inf"), partial(self._prepare_after_failure, generation))

    def _prepare_after_failure(self, generation: int, now: float) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE and generation == self.generation:
            self._prepare(now, "the assignment could not be recorded", None)

    # Heartbeats, sessions and leaving

    def check(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Return the error for a request of a member of a generation, apart from rebalances."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = self.members.check(member_id, instance_id)
        if code is NO_ERROR and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    def heartbeat(
        self,
        now: float,
        member_id: str,
        instance_id: str | None,
        generation: int,
        muted_until: MutedUntil = never_muted,
        principal: str = "",
    ) -> ErrorCode:
        code = self.check(member_id, instance_id, generation)
        if code is not NO_ERROR:
            return code
        member = self.members.by_id[member_id]
        member.heard_at, member.muted_until = now, muted_until
        member.principal = principal
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return NO_ERROR

    def hear(self, now: float, member_id: str) -> None:
        """Note a request of a member, which is a sign of life; also a commit."""
        member = self.members.by_id.get(member_id)
        if member is not None:
            member.heard_at = now

    def _hear(self, now: float, member: GroupMember) -> None:
        """Note a request of the member, and watch its session."""
        member.heard_at = now
        if member.member_id not in self._sessions:
            self._sessions[member.member_id] = self._timeouts.at(
                member.session_ends_at(now), partial(self._session_ended, member.member_id)
            )

    def _session_ended(self, member_id: str, now: float) -> None:
        del self._sessions[member_id]
        member = self.members.by_id[member_id]
        ends_at = member.session_ends_at(now)
        if member.is_waiting:
            ends_at = now + member.session_timeout_ms / 1000
        if ends_at > now:
            self._sessions[member_id] = self._timeouts.at(
                ends_at, partial(self._session_ended, member_id)
            )
            return
        self._remove(now, member_id, "a member's session has timed out")

    def _pending_ended(self, member_id: str, now: float) -> None:
        self._forget_pending(member_id)
        if self.state is GroupState.PREPARING_REBALANCE and not self._is_first:
            self._complete_if_all_joined(now)

    def _forget_pending(self, member_id: str) -> None:
        pending = self.pending.pop(member_id, None)
        if pending is not None:
            pending.ends.cancel()
            self._memory.use(pending.client_host, -PENDING_BYTES)

    def forget_pending(self) -> None:
        """Forget the ids that were given and not used yet: their owners join as new members."""
        for member_id in list(self.pending):
            self._forget_pending(member_id)

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
            self._rebalance(now, "a member has left", *left)
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
            self._pending_ended(member_id, now)
            return NO_ERROR, None
        code = self.members.check(member_id, leaving.instance_id)
        return code, self._forget(member_id) if code is NO_ERROR else None

    def _remove(self, now: float, member_id: str, cause: str, reason: str = "") -> None:
        """Remove a member and rebalance."""
        member = self._forget(member_id)
        if member is not None:
            self._rebalance(now, cause, member, reason)

    def _forget(self, member_id: str) -> GroupMember | None:
        """Remove a member; its waiting requests are answered with UNKNOWN_MEMBER_ID."""
        member = self.members.by_id.get(member_id)
        if member is None:
            return None
        if (session := self._sessions.pop(member_id, None)) is not None:
            session.cancel()
        self.members.refuse(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.members.remove(member_id)
        self._unsynced.discard(member_id)
        return member

    # Records

    def _assignments(self) -> dict[str, bytes]:
        return {each.member_id: each.assignment for each in self.members}

    def _metadata(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        return GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.members.leader if self.protocol is not None else None,
            current_state_timestamp=self.state_timestamp_ms,
            members=[
                each.persisted(self.protocol, assignments.get(each.member_id, b""))
                for each in self.members
            ],
        )

    def write_empty(self) -> None:
        """Write the record of a group without members, unless it has members again."""
        if self.is_empty:
            self._write(self._metadata({}))

    def restore(
        self, now: float, metadata: GroupMetadataValue, loaded_at: Callable[[], float]
    ) -> Work[None]:
        """Become the group that another coordinator has recorded, in pieces.

        `loaded_at` returns the time at which sessions begin: no request is handled before.
        """
        self.generation = metadata.generation
        self.protocol = metadata.protocol
        self.state_timestamp_ms = metadata.current_state_timestamp
        self.members.protocol_type = metadata.protocol_type or None
        for number, persisted in enumerate(metadata.members):
            if number % PIECE_ROWS == PIECE_ROWS - 1:
                yield
            member = GroupMember.restored(
                persisted, metadata.protocol_type, metadata.protocol or ""
            )
            member.muted_until = lambda _: loaded_at()
            self.members.add(member, metadata.protocol_type)
            self._hear(now, member)
        if len(self.members):
            if (metadata.leader or "") in self.members:
                self.members.leader = metadata.leader
            self.state = GroupState.STABLE
            if len(self.members) > self.limits.max_size:
                self._timeouts.at(float("-inf"), self._shrink)

    def _shrink(self, now: float) -> None:
        if self.state is GroupState.STABLE:
            self._prepare(now, "the group is larger than group.max.size", None)

    def close(self, code: ErrorCode) -> Work[None]:
        """Answer all waiting requests with an error, and end all timeouts, in pieces."""
        self.state = GroupState.DEAD
        if self._phase is not None:
            self._phase.cancel()
        for timeout in self._sessions.values():
            timeout.cancel()
        self._sessions.clear()
        self.forget_pending()
        for number, member in enumerate(self.members):
            self.members.refuse(member, code)
            if number % PIECE_ROWS == PIECE_ROWS - 1:
                yield
        yield from self.members.clear()

    def _turn(self, state: GroupState) -> None:
        self.state = state
        self.state_timestamp_ms = self._wall_ms()
        if self._phase is not None:
            self._phase.cancel()
            self._phase = None

    def _wait(self, due: float, call: Callable[[float], object]) -> None:
        if self._phase is not None:
            self._phase.cancel()
        self._phase = self._timeouts.at(due, call)


def _refused(code: ErrorCode, request: JoinRequest) -> JoinAnswer:
    return JoinAnswer(code, request.member_id, NO_GENERATION)
