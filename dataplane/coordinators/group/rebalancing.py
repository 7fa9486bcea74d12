"""The rebalances of one group: its state, generation and assignment. Plain state.

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
before, its members are unknown to the next one and join again. Source: KIP-62, 345, 559, and the
behaviour of Kafka 4.3.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from math import inf
from typing import Final

from metaquorum.dataplane.coordinators.group.members import GroupMember, GroupMembers
from metaquorum.dataplane.coordinators.group.rebalance_history import RebalanceHistory
from metaquorum.dataplane.coordinators.group.record_formats import (
    GroupMetadataValue,
    RecordedGeneration,
    encode_members,
)
from metaquorum.dataplane.coordinators.group.requests import (
    NO_ERROR,
    JoinAnswer,
    JoinedMembers,
    SyncAnswer,
    SyncCallback,
    SyncRequest,
)
from metaquorum.dataplane.coordinators.group.sessions import Sessions
from metaquorum.dataplane.coordinators.group.timeouts import Timeout, Timeouts
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS
from metaquorum.wire.primitives.errors import ErrorCode

# Shortest wait of the first rebalance, also with group.initial.rebalance.delay.ms=0: members that
# start together then share the first generation, and need no second rebalance. In Kafka, the change
# between two threads takes about as long.
LEAST_DELAY_S: Final = 0.003
# Shortest time for which absent static members are awaited again: clients choose the timeout.
LEAST_WAIT_S: Final = 1.0
MAX_GENERATION: Final = 2**31 - 1
# Most members of a group: those of more would not fit one record with their assignments (by default
# 1 MB), and the steps of a rebalance would hold the event loop for too long.
MAX_MEMBERS: Final = 4000
# Members whose JoinGroup or SyncGroup is answered in one step.
ANSWERED_AT_ONCE: Final = 256


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_WITH_GENERATION: Final = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


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

    record: RecordedGeneration
    answer: JoinAnswer | None = None
    on_failed: Callable[[ErrorCode, float], object] | None = None


@dataclass(slots=True)
class GroupLimits:
    """Configs in force that limit each group."""

    initial_rebalance_delay_s: float = 3.0
    max_size: int = 2**31 - 1
    max_pending: int = 2000  # half of it for one client (`Sessions.may_add_pending`)


class Rebalancing:
    """Rebalances of one group. `write` takes records that no request waits for."""

    def __init__(
        self,
        limits: GroupLimits,
        members: GroupMembers,
        sessions: Sessions,
        timeouts: Timeouts,
        wall_ms: Callable[[], int],
        write: Callable[[RecordedGeneration], object],
        history: RebalanceHistory,
    ) -> None:
        """Create the state of a group that is empty. `wall_ms` returns the time for records."""
        self.limits = limits
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol: str | None = None
        self.state_timestamp_ms = -1
        self.history = history
        self._members = members
        self._sessions = sessions
        self._timeouts = timeouts
        self._wall_ms = wall_ms
        self._write = write
        self._phase: Timeout | None = None  # end of the delay, of PREPARING or of COMPLETING
        self._first_ends_at = 0.0  # longest time of the first rebalance
        self._has_new_members = False
        self._is_first = False  # the rebalance began without members
        # The leader's assignment is written: at most one in a generation, also if it was late.
        self._is_assigned = False
        self._unsynced: set[str] = set()  # members without a SyncGroup in this generation
        self._syncs_end_at = 0.0

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
            return member.member_id == self._members.leader
        return awaited is Awaited.SYNC_GROUP and member.member_id in self._unsynced

    # Rebalances

    def begin(self, now: float, cause: str, member: GroupMember | None, reason: str = "") -> None:
        """Begin a rebalance, unless one has begun; complete it if all members have joined."""
        if self.state in (
            GroupState.EMPTY,
            GroupState.COMPLETING_REBALANCE,
            GroupState.STABLE,
        ):
            self._prepare(now, cause, member, reason)
        else:
            self.look(now)

    def look(self, now: float) -> None:
        """Complete a rebalance, unless it is the first, if all members have joined."""
        if self.state is GroupState.PREPARING_REBALANCE and not self._is_first:
            self._complete_if_all_joined(now)

    def note_new_member(self) -> None:
        """Let the first rebalance wait for more members again."""
        if self.state is GroupState.PREPARING_REBALANCE and self._is_first:
            self._has_new_members = True

    def _prepare(
        self, now: float, cause: str, member: GroupMember | None, reason: str = ""
    ) -> None:
        self.history.begin(now, cause, member, reason)
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._members.assign({})
        if self.state in _WITH_GENERATION:
            self._refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._is_first = self.state is GroupState.EMPTY
        self._turn(GroupState.PREPARING_REBALANCE)
        if self._is_first:
            self._has_new_members = False
            delay_s = self._first_delay_s
            self._first_ends_at = now + max(self._members.rebalance_timeout_s, delay_s)
            self._wait(now + delay_s, self._delay_ended)
            return
        if not self._complete_if_all_joined(now):
            self._wait(now + self._members.rebalance_timeout_s, self._complete)

    def _delay_ended(self, now: float) -> None:
        left_s = self._first_ends_at - now
        if self._has_new_members and left_s > 0:
            self._has_new_members = False
            self._wait(now + min(self._first_delay_s, left_s), self._delay_ended)
            return
        self._complete(now)

    @property
    def _first_delay_s(self) -> float:
        return max(self.limits.initial_rebalance_delay_s, LEAST_DELAY_S)

    def _complete_if_all_joined(self, now: float) -> bool:
        if not self._sessions.pending and self._members.joined_count == len(self._members):
            self._complete(now)
            return True
        return False

    def _complete(self, now: float) -> None:
        """Begin the next generation with the members that have joined."""
        absent = [each for each in self._members if each.join is None and not each.is_static]
        if self._remove_some(absent):
            self._wait(now, self._complete)
            return
        if len(self._members) and not self._members.elect_leader():
            # Only static members are left, and none has joined: their sessions will end. One that
            # joins is not kept waiting (in Kafka it is, in the first rebalance of a group).
            self._is_first = False
            timeout_s = max(self._members.rebalance_timeout_s, LEAST_WAIT_S)
            self._wait(now + timeout_s, self._complete)
            return
        self._is_first = self._is_assigned = False
        self.generation = self.generation + 1 if self.generation < MAX_GENERATION else 1
        if not len(self._members):
            self.protocol = None
            self._turn(GroupState.EMPTY)
            self.history.end(now, self.generation)
            self._write(self.record({}))
            return
        self.protocol = self._members.select_protocol()
        self._turn(GroupState.COMPLETING_REBALANCE)
        self._unsynced = set(self._members.by_id)
        self._syncs_end_at = now + self._members.rebalance_timeout_s
        self._wait(self._syncs_end_at, self._syncs_ended)
        for member in self._members:
            member.is_new = False
        self._answer_joins(self.generation, iter(self._members), now)

    def _answer_joins(self, generation: int, members: Iterator[GroupMember], now: float) -> None:
        """Answer the JoinGroups that wait for this generation, in pieces.

        Those that still wait when the next rebalance begins take part in it.
        """
        if generation != self.generation or self.state not in _WITH_GENERATION:
            return
        for member in (piece := list(islice(members, ANSWERED_AT_ONCE))):
            if member.join is not None:
                self._sessions.hear(now, member)
                self._members.answer_join(member, self.joined(member))
        if len(piece) == ANSWERED_AT_ONCE:
            self._timeouts.at(-inf, partial(self._answer_joins, generation, members))

    def _syncs_ended(self, now: float) -> None:
        """Remove the members that have not sent a SyncGroup in time."""
        missing = [each for each in self._members if each.member_id in self._unsynced]
        if not missing:
            return  # the record of the assignment is not committed yet
        if self._remove_some(missing):
            self._wait(now, self._syncs_ended)
            return
        self._prepare(now, "a member has not sent its SyncGroup in time", missing[0])

    def _refuse_syncs(self, code: ErrorCode, now: float) -> None:
        """Answer the SyncGroups that wait now, in pieces."""
        waiting = [(member, member.sync) for member in self._members if member.sync is not None]
        self._refuse_some_syncs(iter(waiting), code, now)

    def _refuse_some_syncs(
        self, waiting: Iterator[tuple[GroupMember, SyncCallback]], code: ErrorCode, now: float
    ) -> None:
        for member, sync in (piece := list(islice(waiting, ANSWERED_AT_ONCE))):
            if member.sync is sync:  # not dropped, nor answered and sent again
                self._sessions.hear(now, member)
                member.answer_sync(SyncAnswer(code))
        if len(piece) == ANSWERED_AT_ONCE:
            self._timeouts.at(-inf, partial(self._refuse_some_syncs, waiting, code))

    # Members

    def joined(self, member: GroupMember, *, names_members: bool = True) -> JoinAnswer:
        """Return the answer to a JoinGroup in the current generation.

        That of the leader has all members, if `names_members`.
        """
        is_leader = self._members.leader == member.member_id
        return JoinAnswer(
            NO_ERROR,
            member.member_id,
            self.generation,
            self._members.protocol_type,
            self.protocol,
            self._members.leader or "",
            members=self._joined_members() if is_leader and names_members else [],
        )

    def _joined_members(self) -> JoinedMembers:
        by_id, protocol = self._members.by_id, self.protocol
        return JoinedMembers(
            list(by_id),
            [each.instance_id for each in by_id.values()],
            [each.metadata_of(protocol) for each in by_id.values()],
        )

    def remove(self, member_id: str) -> GroupMember | None:
        """Remove a member; its waiting requests are answered with UNKNOWN_MEMBER_ID."""
        member = self._members.by_id.get(member_id)
        if member is None:
            return None
        self._sessions.forget(member_id)
        self._members.refuse(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._members.remove(member_id)
        self._unsynced.discard(member_id)
        return member

    def _remove_some(self, members: Sequence[GroupMember]) -> bool:
        """Remove the first members of a list; return whether others are left, for another step."""
        for member in members[:PIECE_ROWS]:
            self.remove(member.member_id)
        return len(members) > PIECE_ROWS

    def replace(self, instance_id: str, member_id: str) -> GroupMember:
        """Give a static member a new member id (KIP-345); requests with the old one are fenced."""
        old_id = self._members.static_ids[instance_id]
        self._sessions.forget(old_id)
        self._unsynced.discard(old_id)
        return self._members.replace(instance_id, member_id)

    # SyncGroup

    def check(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Return the error for a request of a member of a generation, apart from rebalances."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = self._members.check(member_id, instance_id)
        if code is NO_ERROR and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    def sync(
        self, now: float, request: SyncRequest, callback: SyncCallback
    ) -> SyncAnswer | Persist | None:
        """Take the leader's assignment, or return the member's; None if the request waits."""
        code = self._check_sync(request)
        if code is not NO_ERROR:
            return SyncAnswer(code)
        member = self._members.by_id[request.member_id]
        self._sessions.hear(now, member)
        self._unsynced.discard(member.member_id)
        if self.state is GroupState.STABLE:
            return self._synced(member)
        member.answer_sync(SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))  # sent again by its client
        member.sync = callback
        if member.member_id != self._members.leader or self._is_assigned:
            return None
        self._is_assigned = True
        return Persist(
            self.record(request.assignments),
            on_failed=partial(self._assignment_failed, self.generation),
        )

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = self.check(request.member_id, request.instance_id, request.generation)
        if code is not NO_ERROR:
            return code
        if request.protocol_type not in (None, self._members.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol not in (None, self.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return NO_ERROR

    def _synced(self, member: GroupMember) -> SyncAnswer:
        return SyncAnswer(NO_ERROR, self._members.protocol_type, self.protocol, member.assignment)

    def committed(self, now: float, record: RecordedGeneration) -> None:
        """Apply a committed record; answer the SyncGroups if it is this generation's assignment."""
        if (
            self.state is not GroupState.COMPLETING_REBALANCE
            or not self._is_assigned
            or record.generation != self.generation
        ):
            return
        self._turn(GroupState.STABLE)
        if self._unsynced:
            self._wait(self._syncs_end_at, self._syncs_ended)
        self.history.end(now, self.generation)
        self._members.assign(record.assignments)
        self._answer_syncs(self.generation, iter(self._members), now)

    def _answer_syncs(self, generation: int, members: Iterator[GroupMember], now: float) -> None:
        """Answer the SyncGroups that wait for the assignment of this generation, in pieces.

        If the next rebalance begins before, it answers the others.
        """
        if generation != self.generation or self.state is not GroupState.STABLE:
            return
        for member in (piece := list(islice(members, ANSWERED_AT_ONCE))):
            if member.sync is not None:
                self._sessions.hear(now, member)
                member.answer_sync(self._synced(member))
        if len(piece) == ANSWERED_AT_ONCE:
            self._timeouts.at(-inf, partial(self._answer_syncs, generation, members))

    def _assignment_failed(self, generation: int, code: ErrorCode, now: float) -> None:
        """Begin another rebalance: the record of the assignment was not committed in time.

        If it is committed before the next timeout, the generation has its assignment after all.
        """
        if self.state is GroupState.COMPLETING_REBALANCE and generation == self.generation:
            self._members.assign({})
            self._refuse_syncs(code, now)
            self._timeouts.at(float("-inf"), partial(self._prepare_after_failure, generation))

    def _prepare_after_failure(self, generation: int, now: float) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE and generation == self.generation:
            self._prepare(now, "the assignment could not be recorded", None)

    # Records

    def record(self, assignments: Mapping[str, bytes]) -> RecordedGeneration:
        """Return the record of the current generation, with assignments by member id."""
        return self._record({each: assignments.get(each, b"") for each in self._members.by_id})

    def record_again(self) -> RecordedGeneration:
        """Return the record of the current generation, with the assignments that members have."""
        by_id = self._members.by_id
        return self._record({member_id: each.assignment for member_id, each in by_id.items()})

    def _record(self, assignments: dict[str, bytes]) -> RecordedGeneration:
        metadata = GroupMetadataValue(
            protocol_type=self._members.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self._members.leader if self.protocol is not None else None,
            current_state_timestamp=self.state_timestamp_ms,
        )
        protocol, members = self.protocol, self._members.by_id.values()
        value = encode_members(
            metadata,
            [each.head for each in members],
            [each.metadata_of(protocol) for each in members],
            list(assignments.values()),
        )
        return RecordedGeneration(value, self.generation, assignments)

    def restored(self, metadata: GroupMetadataValue) -> None:
        """Take the state of a generation whose members are restored."""
        if not len(self._members):
            return
        if (metadata.leader or "") in self._members:
            self._members.leader = metadata.leader
        self.state = GroupState.STABLE
        if len(self._members) > self.limits.max_size:
            self._timeouts.at(float("-inf"), self._shrink)

    def _shrink(self, now: float) -> None:
        if self.state is GroupState.STABLE:
            self._prepare(now, "the group is larger than group.max.size", None)

    def close(self) -> None:
        """End: no event follows."""
        self.state = GroupState.DEAD
        if self._phase is not None:
            self._phase.cancel()

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

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        members = self._members
        assert 0 <= self.generation <= MAX_GENERATION
        assert self.state is not GroupState.EMPTY or not len(members)
        if self.state in _WITH_GENERATION:
            assert len(members)
            assert self.generation > 0
            assert self.protocol is not None
            assert members.leader is not None
            assert all(self.protocol in member.protocols for member in members)
            assert not any(member.is_new for member in members)
        else:
            assert not any(member.sync is not None for member in members)
        assert self._unsynced <= members.by_id.keys() or self.state not in _WITH_GENERATION
