"""State machine of one group of the classic protocol: requests and their answers.

    request      EMPTY     PREPARING_REBALANCE    COMPLETING_REBALANCE      STABLE
    join, new    rebalance waits                  rebalance                 rebalance
    join, same   unknown   waits                  the same generation       the same generation, or
                                                                            of the leader: rebalance
    join, other  unknown   waits                  rebalance                 rebalance
    join, static new       waits                  rebalance                 waits for its record, if
     restarted                                                              the protocol is the same
    sync         unknown   REBALANCE_IN_PROGRESS  waits for the record of   the assignment
                                                  the leader's assignment
    heartbeat    unknown   REBALANCE_IN_PROGRESS  NONE                      NONE
    leave        unknown   may complete joins     rebalance                 rebalance

`group_state` has the states and their transitions. "Same" and "other" compare the member's
protocols with those of its last join. "Unknown" is UNKNOWN_MEMBER_ID; DEAD answers each request
with COORDINATOR_NOT_AVAILABLE. A request that waits is answered exactly once.

All that a client may rely on after a failover changes in `replay`: a sync is answered, and the
group becomes STABLE, when the record of the leader's assignment was committed while the group is in
the same generation. Members, timers and waiting requests are memory of this coordinator.

Deviations from Apache Kafka, on purpose:
- A request that is superseded by the next one of its member, and the sync of a member that leaves,
  is answered. Kafka never answers it.
- A second sync of the leader does not write another assignment of the same generation, because
  after a failover members would own partitions by the second one, and others by the first one.
- If a rebalance starts before the record of a restarted static member is committed, its join waits
  for the next generation, like all other ones.
- A pending member that leaves causes no rebalance of a stable group.

Plain state: `now` is monotonic seconds, `now_ms` the wall clock. Sources: KIP-62, KIP-134, KIP-345,
KIP-394, KIP-559, KIP-814, and Kafka's ClassicGroup and GroupMetadataManager.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from dataplane.coordinators.group.group_metadata import GroupMetadata
from dataplane.coordinators.group.group_state import (
    COMPLETING,
    DEAD,
    EMPTY,
    PREPARING,
    STABLE,
    GroupState,
)
from dataplane.coordinators.group.membership import (
    Member,
    Replacement,
    member_of,
    rebalance_timeout_of,
)
from dataplane.coordinators.group.rebalance_history import Cause
from dataplane.coordinators.group.requests import (
    WAITING,
    CompleteJoin,
    CompleteSync,
    JoinAnswer,
    JoinRequest,
    JoinResult,
    LeaveAnswer,
    LeaveMember,
    LeaveResult,
    LeftMember,
    SyncAnswer,
    SyncRequest,
    SyncResult,
    Waiting,
)
from wire.primitives.errors import ErrorCode

# A new member has no session: its client does not know its member id, or is still in its first
# join. A client that is still alive after this time joins again.
NEW_MEMBER_JOIN_TIMEOUT_S: Final = 300.0


class ClassicGroup(GroupState):
    """One group: the requests of its members, and the committed records that answer them."""

    # Requests

    def join(
        self, now: float, now_ms: int, request: JoinRequest, complete: CompleteJoin
    ) -> JoinResult:
        """Handle JoinGroup. `check_join` has checked the request."""
        self._begin(now, now_ms)
        return self._result(self._join(request, complete))

    def sync(
        self, now: float, now_ms: int, request: SyncRequest, complete: CompleteSync
    ) -> SyncResult:
        """Handle SyncGroup."""
        self._begin(now, now_ms)
        return self._result(self._sync(request, complete))

    def heartbeat(
        self, now: float, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode:
        """Handle Heartbeat: extend the member's session. Writes nothing."""
        error = self._check(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self.touch(now, member_id)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is PREPARING else ErrorCode.NONE

    def touch(self, now: float, member_id: str) -> None:
        """Extend a session, as of a member that commits offsets or was muted by a quota."""
        member = self.members.get(member_id)
        if member is not None:
            self._set_deadline(member, now + member.session_timeout_ms / 1000)

    def leave(self, now: float, now_ms: int, leaving: Sequence[LeaveMember]) -> LeaveResult:
        """Handle LeaveGroup of one or several members."""
        self._begin(now, now_ms)
        if self.state is DEAD:
            return LeaveAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        removed: list[Member] = []
        answer = LeaveAnswer(
            ErrorCode.NONE,
            tuple(
                LeftMember(row.member_id, row.instance_id, self._leave(row, removed))
                for row in leaving
            ),
        )
        if self.state is PREPARING:
            self._complete_join_if_due()
        elif removed:
            self._prepare_rebalance(Cause.MEMBER_LEFT, removed[0])
        return self._result(answer)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, in_transaction: bool
    ) -> ErrorCode:
        """Check whether a client may commit offsets: a member, or any client if there are none."""
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is EMPTY:
            return ErrorCode.NONE
        if generation >= 0 or member_id or instance_id is not None:
            error = self._check(member_id, instance_id, generation)
            if error is not ErrorCode.NONE:
                return error
        elif not in_transaction:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if self.state is COMPLETING and not in_transaction:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # The log

    def replay(self, metadata: GroupMetadata, now: float) -> None:
        """Apply a record that was committed while this coordinator leads the partition."""
        self._now = now
        self.is_stored = True
        if metadata.generation != self.generation or not metadata.members:
            return
        if self.state is COMPLETING:
            self._store_assignment(metadata)
        stored = {row.member_id for row in metadata.members}
        for member in self.members:
            if member.replacement is not None and member.member_id in stored:
                self._replacement_stored(member, member.replacement)

    def replay_tombstone(self) -> bool:
        """Apply a committed deletion. Returns whether the group has no members: it is DEAD then."""
        self.is_stored = False
        if len(self.members) or self.members.pending or self.state is PREPARING:
            return False
        self._change_state(DEAD)
        return True

    # Join

    def _join(self, request: JoinRequest, complete: CompleteJoin) -> JoinAnswer | Waiting:
        member_id = request.member_id
        if not self._has_place(member_id):
            self._remove_refused(member_id)
            return JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        if self.state is DEAD:
            return JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id)
        if not self._supports(request):
            return JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        if not member_id:
            return self._join_unknown(request, complete)
        if self.members.is_pending(member_id):
            if request.instance_id is not None:
                # A static member never gets a pending id, so the client mixes up its ids.
                return JoinAnswer(ErrorCode.UNKNOWN_SERVER_ERROR, member_id)
            return self._add(request, member_id, complete)
        error = self.members.check(member_id, request.instance_id)
        member = self.members.get(member_id)
        if error is not ErrorCode.NONE or member is None:
            return JoinAnswer(error, member_id)
        return self._rejoin(request, member, complete)

    def _has_place(self, member_id: str) -> bool:
        """Return whether the group is small enough for a join.

        In PREPARING_REBALANCE the members that have joined count: if the limit was lowered, those
        that join last are refused.
        """
        member = self.members.get(member_id)
        if self.state in (EMPTY, DEAD):
            return True
        if self.state is PREPARING:
            return (member is not None and member.joining is not None) or (
                self.members.joining < self.limits.max_size
            )
        return member is not None or len(self.members) < self.limits.max_size

    def _remove_refused(self, member_id: str) -> None:
        self.members.remove_pending(member_id)
        member = self.members.get(member_id)
        if member is not None:
            self._remove(member, ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is EMPTY:
            return bool(request.protocol_type and request.protocols)
        return self.members.supports(request.protocol_type, request.protocols)

    def _join_unknown(self, request: JoinRequest, complete: CompleteJoin) -> JoinAnswer | Waiting:
        known = self.members.of_instance(request.instance_id)
        if known is not None:
            return self._restart_static(request, known, complete)
        if request.instance_id is None and request.requires_known_member_id:
            deadline = self._now + request.session_timeout_ms / 1000
            self.members.add_pending(request.new_member_id, deadline)
            self._session_due = min(self._session_due, deadline)
            return JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id)
        return self._add(request, request.new_member_id, complete)

    def _add(self, request: JoinRequest, member_id: str, complete: CompleteJoin) -> Waiting:
        member = member_of(request, member_id)
        self._extend = self._extend or (self.state is PREPARING and self._initial)
        self.members.add(member, request.protocol_type)
        self.members.wait_join(member, complete)
        self._set_deadline(member, self._now + NEW_MEMBER_JOIN_TIMEOUT_S)
        self.history.joined(member_id)
        self._rebalance_or_complete(Cause.NEW_MEMBER, member)
        return WAITING

    def _rejoin(
        self, request: JoinRequest, member: Member, complete: CompleteJoin
    ) -> JoinAnswer | Waiting:
        same = member.protocols == request.protocols
        leads = self.members.leader == member.member_id
        if self.state is COMPLETING and same:
            # The client may not have received the answer of this generation.
            return self._generation_answer(member, with_members=leads)
        if self.state is STABLE and same and not leads:
            return self._generation_answer(member)
        # A leader may join because partitions were added, with the same metadata.
        cause = Cause.METADATA_CHANGED if not same else Cause.LEADER_REJOINED
        self._update(request, member, complete)
        self._rebalance_or_complete(cause, member)
        return WAITING

    def _restart_static(
        self, request: JoinRequest, old: Member, complete: CompleteJoin
    ) -> JoinAnswer | Waiting:
        """Replace a static member by its next incarnation, which has no member id yet."""
        replacement = Replacement(
            old.member_id,
            old.protocols,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            self.members.leader,
            request.supports_skip_assignment,
        )
        self.members.answer_all(old, ErrorCode.FENCED_INSTANCE_ID, old.member_id)
        member = self.members.replace(old, request.new_member_id)
        self._update(request, member, complete)
        self._start_session(member)
        if self.state is STABLE and self.members.select_protocol() == self.protocol:
            member.replacement = replacement
            assignments = {row.member_id: row.assignment for row in self.members}
            self._owe(assignments, partial(self._undo_replacement, member))
        elif self.state is STABLE:
            self._prepare_rebalance(Cause.PROTOCOL_CHANGED, member)
        elif self.state is COMPLETING:
            # The leader may assign to the old member id.
            self._prepare_rebalance(Cause.STATIC_MEMBER_RESTARTED, member)
        else:
            self._complete_join_if_due()
        return WAITING

    def _replacement_stored(self, member: Member, replacement: Replacement) -> None:
        """Answer the join of a restarted static member, unless a rebalance will do that."""
        member.replacement = None
        if self.state is not STABLE:
            return
        leads = self.members.leader == member.member_id
        if replacement.supports_skip_assignment:
            answer = self._generation_answer(member, with_members=leads, skip_assignment=leads)
        else:
            # A client that does not know `skip_assignment` would assign with its old view.
            answer = self._generation_answer(member, leader=replacement.old_leader)
        self.members.answer_join(member, answer)
        self._start_session(member)

    def _undo_replacement(self, member: Member, error: ErrorCode) -> None:
        """Return to the old member id, because the new one was not stored.

        A rebalance that has started meanwhile stores the new one with its next generation.
        """
        old, member.replacement = member.replacement, None
        if old is None or self.state is not STABLE:
            return
        if self.members.get(member.member_id) is not member:
            return  # it has left, and its join was answered
        answer = JoinAnswer(
            error,
            "",
            self.generation,
            self.members.protocol_type,
            self.protocol,
            old.old_leader or "",
        )
        self.members.answer_join(member, answer)
        restored_member = self.members.replace(member, old.old_member_id)
        self.members.update(
            restored_member,
            old.old_protocols,
            old.old_rebalance_timeout_ms,
            old.old_session_timeout_ms,
        )
        self._start_session(restored_member)

    def _update(self, request: JoinRequest, member: Member, complete: CompleteJoin) -> None:
        timeout_ms = rebalance_timeout_of(request)
        self.members.update(member, request.protocols, timeout_ms, request.session_timeout_ms)
        self.members.wait_join(member, complete)

    # Sync

    def _sync(self, request: SyncRequest, complete: CompleteSync) -> SyncAnswer | Waiting:
        error = self._check_sync(request)
        member = self.members.get(request.member_id)
        if error is not ErrorCode.NONE or member is None:
            return SyncAnswer(error)
        if self.state is PREPARING:
            return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state is STABLE:
            self.members.synced(member.member_id)
            return self._sync_answer(member)
        self.members.wait_sync(member, complete)
        generation = self.generation
        if self.members.leader == member.member_id and self._assigning != generation:
            self._assigning = generation
            self._owe(dict(request.assignments), partial(self._assignment_failed, generation))
        return WAITING

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        error = self._check(request.member_id, request.instance_id, request.generation)
        if error is ErrorCode.NONE and (
            _differ(request.protocol_type, self.members.protocol_type)
            or _differ(request.protocol, self.protocol)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return error

    def _store_assignment(self, metadata: GroupMetadata) -> None:
        """Become STABLE with the assignment of a committed record."""
        assignments = {row.member_id: row.assignment for row in metadata.members}
        for member in self.members:
            self.members.assign(member, assignments.get(member.member_id, b""))
        self._change_state(STABLE, metadata.state_timestamp_ms)
        self.history.finished(self._now, self.generation)
        self._answer_syncs(ErrorCode.NONE)

    def _assignment_failed(self, generation: int, error: ErrorCode) -> None:
        if self.state is COMPLETING and generation == self.generation:
            self._answer_syncs(error)
            self._prepare_rebalance(Cause.ASSIGNMENT_NOT_STORED)

    # Members that leave

    def _leave(self, row: LeaveMember, removed: list[Member]) -> ErrorCode:
        if row.member_id and self.members.is_pending(row.member_id):
            self.members.remove_pending(row.member_id)
            return ErrorCode.NONE
        if row.member_id:
            error = self.members.check(row.member_id, row.instance_id)
            member = self.members.get(row.member_id)
        else:
            # An administrator removes a static member, or its client has lost the member id.
            error, member = ErrorCode.NONE, self.members.of_instance(row.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self.history.left(member.member_id)
        self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        removed.append(member)
        return ErrorCode.NONE


def _differ(requested: str | None, current: str | None) -> bool:
    """Return whether both are given and differ."""
    return requested is not None and current is not None and requested != current
