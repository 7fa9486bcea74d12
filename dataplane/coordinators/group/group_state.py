"""State of one group of the classic protocol: generations, rebalances, timers, sessions.

    state                  event                                          next state
    EMPTY                  a member joins                                 PREPARING_REBALANCE
    PREPARING_REBALANCE    the joins are complete                         COMPLETING_REBALANCE
    PREPARING_REBALANCE    the joins are complete, without members        EMPTY
    COMPLETING_REBALANCE   the leader's assignment was stored             STABLE
    COMPLETING_REBALANCE   members change, or do not sync in time         PREPARING_REBALANCE
    STABLE                 members change, or do not sync in time         PREPARING_REBALANCE
    any                    the leadership of the partition ends           DEAD
    EMPTY                  the group is deleted                           DEAD

The joins are complete if all members have joined, or if the rebalance timeout is over (the largest
of all members). A dynamic member that has not joined by then is removed; a static one stays until
its session ends. The rebalance of an empty group is *initial*: it waits for
`group.initial.rebalance.delay.ms`, and again while members join, up to the rebalance timeout. A
member that does not send SyncGroup within the rebalance timeout is removed, and the group
rebalances.

A session is a deadline that a heartbeat moves. It is only read when the earliest deadline of the
group, as of the last look, is due; a waiting request holds the session.

Plain state: `now` is monotonic seconds, `now_ms` the wall clock. `classic_group` has the requests.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from math import inf
from typing import Final, NamedTuple, TypeAlias, TypeVar

from dataplane.coordinators.group.group_metadata import GroupMetadata
from dataplane.coordinators.group.membership import GroupMembers, Member, restored
from dataplane.coordinators.group.rebalance_history import Cause, RebalanceHistory
from dataplane.coordinators.group.requests import (
    GroupLimits,
    GroupView,
    JoinAnswer,
    MemberView,
    SyncAnswer,
)
from dataplane.coordinators.shard import CoordinatorRecord, Write
from wire.primitives.errors import ErrorCode

T = TypeVar("T")

# Clients choose the rebalance timeout, which may be 0: a timer must not run in each turn.
LEAST_WAIT_S: Final = 1.0

# Reverses a change whose record could not be stored.
Undo: TypeAlias = Callable[[ErrorCode], None]


class State(Enum):
    """Kafka's names of the states."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY: Final = State.EMPTY
PREPARING: Final = State.PREPARING_REBALANCE
COMPLETING: Final = State.COMPLETING_REBALANCE
STABLE: Final = State.STABLE
DEAD: Final = State.DEAD

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    EMPTY: frozenset({PREPARING, DEAD}),
    PREPARING: frozenset({COMPLETING, EMPTY, DEAD}),
    COMPLETING: frozenset({STABLE, PREPARING, DEAD}),
    STABLE: frozenset({PREPARING, DEAD}),
    DEAD: frozenset({DEAD}),
}


class _Owed(NamedTuple):
    """A generation to store, and what must be undone if that fails."""

    metadata: GroupMetadata
    undo: Undo | None


class GroupState:
    """State of one group. `record_of` encodes the metadata that the log stores."""

    def __init__(
        self,
        group_id: str,
        limits: GroupLimits,
        record_of: Callable[[GroupMetadata], CoordinatorRecord],
    ) -> None:
        self.group_id = group_id
        self.limits = limits
        self.state = EMPTY
        self.state_timestamp_ms = -1
        self.generation = 0
        self.protocol: str | None = None
        self.members = GroupMembers()
        self.history = RebalanceHistory()
        self.is_stored = False  # whether the log has a record of this group
        self._record_of = record_of
        self._initial = False  # this rebalance started in an empty group
        self._extend = False  # a member has joined since the initial delay started
        self._initial_delay_s = 0.0
        self._initial_left_s = 0.0
        self._join_due = inf
        self._sync_due = inf
        self._session_due = inf  # not after the first deadline of a session
        self._assigning = -1  # the generation whose assignment is in a record, not committed yet
        self._owed: list[_Owed] = []
        self._failures: list[Callable[[], None]] = []
        self._now = 0.0
        self._now_ms = -1

    def load(self, metadata: GroupMetadata) -> None:
        """Apply a record of the log of earlier leaders: it replaces all that earlier ones set."""
        self.is_stored = True
        self.members = GroupMembers()
        self.generation = metadata.generation
        self.protocol = metadata.protocol
        self.state_timestamp_ms = metadata.state_timestamp_ms
        self.members.protocol_type = metadata.protocol_type or None
        self.members.leader = metadata.leader
        for row in metadata.members:
            if row.member_id not in self.members:
                self.members.add(restored(row, metadata.protocol), metadata.protocol_type)
        if self.members.leader not in {member.member_id for member in self.members}:
            self.members.leader = next((member.member_id for member in self.members), None)
        self.state = STABLE if len(self.members) else EMPTY

    def loaded(self, now: float, now_ms: int) -> None:
        """Start the sessions of loaded members: their clients have yet to find this coordinator."""
        self._begin(now, now_ms)
        for member in self.members:
            self._start_session(member)
        if len(self.members) > self.limits.max_size:
            # A rebalance lets members commit offsets, and refuses those that join too late.
            self._prepare_rebalance(Cause.OVER_CAPACITY)

    def unload(self) -> None:
        """Answer all waiting requests with NOT_COORDINATOR: the leadership has ended."""
        self._change_state(DEAD)
        self._join_due = self._sync_due = self._session_due = inf
        self._owed.clear()
        self._failures.clear()
        for member in list(self.members):
            member.replacement = None
            self.members.answer_all(member, ErrorCode.NOT_COORDINATOR, member.member_id)

    @property
    def next_due(self) -> float:
        """Monotonic seconds at which `due` must be called next; infinite if never."""
        if self._owed or self._failures:
            return -inf
        return min(self._join_due, self._sync_due, self._session_due)

    def due(self, now: float, now_ms: int) -> list[CoordinatorRecord]:
        """Run what is due by `now`; return the records to write."""
        self._begin(now, now_ms)
        if now >= self._session_due:
            self._expire_sessions()
        if now >= self._sync_due:
            self._expire_syncs()
        if now >= self._join_due:
            self._join_timer()
        return self._records()

    @property
    def size_bytes(self) -> int:
        """Bytes of members with their metadata and assignments, and of pending member ids."""
        return self.members.size_bytes

    @property
    def is_disposable(self) -> bool:
        """Whether this object holds nothing: without records it need not be kept."""
        return self.state is DEAD or (
            self.state is EMPTY and not self.is_stored and not self.members.pending
        )

    # Rebalance

    def _rebalance_or_complete(self, cause: Cause, member: Member) -> None:
        if self.state is PREPARING:
            self._complete_join_if_due()
        else:
            self._prepare_rebalance(cause, member)

    def _prepare_rebalance(self, cause: Cause, member: Member | None = None) -> None:
        """Begin a rebalance: all members must join again."""
        if self.state is COMPLETING:
            self._answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        self.members.clear_syncs()
        self._sync_due = inf
        self._initial = self.state is EMPTY
        self._change_state(PREPARING)
        self._record_start(cause, member)
        if self._initial:
            self._extend = False
            delay_s = self.limits.initial_rebalance_delay_ms / 1000
            self._initial_delay_s = delay_s
            self._initial_left_s = max(self.members.rebalance_timeout_s() - delay_s, 0.0)
            self._join_due = self._now + delay_s
        elif self.members.all_joined:
            self._complete_join()
        else:
            self._join_due = self._now + self.members.rebalance_timeout_s()

    def _complete_join_if_due(self) -> None:
        """Complete the join phase if all members have joined; an initial rebalance still waits."""
        if self.state is PREPARING and not self._initial and self.members.all_joined:
            self._complete_join()

    def _join_timer(self) -> None:
        if not (self._initial and self._extend and self._initial_left_s):
            self._complete_join()
            return
        self._extend = False
        delay_s = min(self.limits.initial_rebalance_delay_ms / 1000, self._initial_left_s)
        self._initial_left_s = max(self._initial_left_s - self._initial_delay_s, 0.0)
        self._initial_delay_s = delay_s
        self._join_due = self._now + delay_s

    def _complete_join(self) -> None:
        """End the join phase: remove members that are late, begin the next generation."""
        self._join_due = inf
        for member in self.members.not_joined():
            if member.instance_id is None:
                self.history.late(member.member_id)
                self.members.remove(member)
        if len(self.members) and not self.members.elect_joined_leader():
            # Only static members, and none has joined: wait until one does, or its session ends.
            wait_s = max(self.members.rebalance_timeout_s(), LEAST_WAIT_S)
            self._join_due = self._now + wait_s
            return
        self.generation += 1
        self.members.clear_syncs()
        if len(self.members):
            self._begin_generation()
        else:
            self.protocol = None
            self._change_state(EMPTY)
            self.history.finished(self._now, self.generation)
            self._owe({}, None)

    def _begin_generation(self) -> None:
        self.protocol = self.members.select_protocol()
        self._change_state(COMPLETING)
        for member in list(self.members):
            leads = self.members.leader == member.member_id
            self.members.answer_join(member, self._generation_answer(member, with_members=leads))
            member.is_new = False
            member.replacement = None
            self._start_session(member)
        self.members.await_syncs()
        self._sync_due = self._now + self.members.rebalance_timeout_s()

    def _generation_answer(
        self,
        member: Member,
        *,
        with_members: bool = False,
        skip_assignment: bool = False,
        leader: str | None = None,
    ) -> JoinAnswer:
        return JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.members.protocol_type,
            self.protocol,
            leader or self.members.leader or "",
            skip_assignment,
            self.members.joined_members(self.protocol) if with_members else (),
        )

    # Syncs

    def _answer_syncs(self, error: ErrorCode) -> None:
        """Answer waiting syncs: NONE with the assignments, or an error that discards these."""
        for member in list(self.members):
            if error is not ErrorCode.NONE:
                self.members.assign(member, b"")
            failed = SyncAnswer(error)
            answer = failed if error is not ErrorCode.NONE else self._sync_answer(member)
            if self.members.answer_sync(member, answer):
                self._start_session(member)

    def _sync_answer(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            ErrorCode.NONE, self.members.protocol_type, self.protocol, member.assignment
        )

    def _expire_syncs(self) -> None:
        self._sync_due = inf
        late = self.members.unsynced()
        if self.state not in (COMPLETING, STABLE) or not late:
            return
        for member in late:
            self.history.late(member.member_id)
            self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._prepare_rebalance(Cause.SYNC_EXPIRED, late[0])

    # Members and sessions

    def _remove(self, member: Member, error: ErrorCode) -> None:
        """Remove a member; a client that still waits joins again, as a new member."""
        self.members.answer_all(member, error, "")
        self.members.remove(member)

    def _start_session(self, member: Member) -> None:
        self._set_deadline(member, self._now + member.session_timeout_ms / 1000)

    def _set_deadline(self, member: Member, deadline: float) -> None:
        member.deadline = deadline
        self._session_due = min(self._session_due, deadline)

    def _expire_sessions(self) -> None:
        for member_id in self.members.expired_pending(self._now):
            self.members.remove_pending(member_id)
            self._complete_join_of_rest()
        for member in self.members.expired(self._now):
            # The removal of another one may have begun a generation, and a session with it.
            if self.members.get(member.member_id) is member and member.deadline <= self._now:
                self.history.late(member.member_id)
                self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
                if self.state in (COMPLETING, STABLE):
                    self._prepare_rebalance(Cause.SESSION_EXPIRED, member)
                else:
                    self._complete_join_of_rest()
        self._session_due = self.members.next_deadline()

    def _complete_join_of_rest(self) -> None:
        """Complete the join phase, also an initial one, if it waited for what has expired."""
        if self.state is PREPARING and self.members.all_joined:
            self._complete_join()

    # Common

    def _begin(self, now: float, now_ms: int) -> None:
        """Note the time of an operation, and handle writes that have failed since the last one."""
        self._now, self._now_ms = now, now_ms
        failures, self._failures = self._failures, []
        for undo in failures:
            undo()

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.check(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _change_state(self, state: State, timestamp_ms: int | None = None) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} to {state}"
        self.state = state
        self.state_timestamp_ms = self._now_ms if timestamp_ms is None else timestamp_ms

    def _owe(self, assignments: Mapping[str, bytes], undo: Undo | None) -> None:
        """Add a record of the group with these assignments to those of the running operation."""
        metadata = GroupMetadata(
            self.members.protocol_type,
            self.generation,
            self.protocol,
            self.members.leader,
            self.state_timestamp_ms,
            tuple(
                member.persisted(self.protocol, assignments.get(member.member_id, b""))
                for member in self.members
            ),
        )
        self._owed.append(_Owed(metadata, undo))

    def _result(self, answer: T) -> T | Write[T]:
        """Return the answer, or with records to store a Write."""
        if not self._owed:
            return answer
        undone = [row.undo for row in self._owed if row.undo is not None]
        return Write(self._records(), answer, partial(self._failed, undone))

    def _records(self) -> list[CoordinatorRecord]:
        owed, self._owed = self._owed, []
        return [self._record_of(row.metadata) for row in owed]

    def _failed(self, undone: Sequence[Undo], error: ErrorCode) -> None:
        """Remember a failed write. The next operation handles it: `next_due` is in the past."""
        if self.state is not DEAD:
            self._failures.extend(partial(undo, error) for undo in undone)

    def _record_start(self, cause: Cause, member: Member | None) -> None:
        if member is None:
            self.history.started(self._now, self._now_ms, cause)
        else:
            names = (member.member_id, member.client_id, member.client_host)
            self.history.started(self._now, self._now_ms, cause, *names)

    def describe(self) -> GroupView:
        """Return what DescribeGroups and `groups explain` show."""
        stable = self.state is STABLE
        return GroupView(
            self.group_id,
            self.state.value,
            self.members.protocol_type or "",
            (self.protocol or "") if stable else "",
            self.generation,
            self.members.leader,
            self.state_timestamp_ms,
            tuple(self._member_view(member, stable=stable) for member in self.members),
            self.history.views(),
            self._missing(),
        )

    def _missing(self) -> tuple[str, ...]:
        if self.state is PREPARING:
            return tuple(member.member_id for member in self.members.not_joined())
        if self.state is COMPLETING:
            return tuple(member.member_id for member in self.members.unsynced())
        return ()

    def _member_view(self, member: Member, *, stable: bool) -> MemberView:
        return MemberView(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(self.protocol) if stable else b"",
            member.assignment,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
        )
