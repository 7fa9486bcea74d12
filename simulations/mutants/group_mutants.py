"""Mutants of consumer groups and their coordinators; a test of the same rule finds each, too."""

from contextlib import AbstractContextManager
from typing import Any, Final

from metaquorum.dataplane.coordinators.client_budget import SHARE, UNKNOWN, ClientBudget, Refusal
from metaquorum.dataplane.coordinators.group import committed_offsets, group_shard
from metaquorum.dataplane.coordinators.group.classic_group import ClassicGroup
from metaquorum.dataplane.coordinators.group.committed_offsets import (
    CommittedOffsets,
    ExpiredOffsets,
)
from metaquorum.dataplane.coordinators.group.group_shard import GroupShard
from metaquorum.dataplane.coordinators.group.members import GroupMember, GroupMembers
from metaquorum.dataplane.coordinators.group.offset_retention import OffsetRetention
from metaquorum.dataplane.coordinators.group.rebalancing import GroupState, Persist, Rebalancing
from metaquorum.dataplane.coordinators.group.record_formats import decode_offset_value
from metaquorum.dataplane.coordinators.group.sessions import Sessions
from metaquorum.dataplane.coordinators.hosted_shard import HostedShard, State
from metaquorum.dataplane.coordinators.loading import ShardLoader
from metaquorum.dataplane.coordinators.runtime import CoordinatorRuntime
from metaquorum.dataplane.coordinators.shard import Write
from metaquorum.dataplane.handlers import produce, records
from metaquorum.dataplane.handlers.groups import offsets
from metaquorum.dataplane.partition import partition
from metaquorum.quorum.controller import config_changes, topics
from metaquorum.simulations.kernel.mutation import Mutant, all_of, swapped
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError


def budgets_without_shares() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _refusal(self: Any, client: str, admitted: int, grown: int, counted: int) -> Any:
            before = self.use_of(client)
            own = max(before.admitted_bytes + admitted, before.grown_bytes + grown)
            added = own - before.counted_bytes
            is_full = added > 0 and counted + added > self.limit_bytes()
            return Refusal.FULL if is_full else None

        return _refusal

    return swapped(ClientBudget, "_refusal", wrong)


def _known_may_not_grow() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _refusal(self: Any, client: str, admitted: int, grown: int, counted: int) -> Any:
            own = self.use_of(client).counted_bytes
            total, limit = counted + grown, self.limit_bytes()
            if grown > 0 and 2 * total > limit and (own + grown) * SHARE > limit - total:
                return Refusal.SHARE
            return right(self, client, admitted, grown, counted)

        return _refusal

    return swapped(ClientBudget, "_refusal", wrong)


def _loaded_not_counted() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def use(self: Any, client: str, admitted: int, grown: int = 0) -> None:
            if client != UNKNOWN:
                right(self, client, admitted, grown)

        return use

    return swapped(ClientBudget, "use", wrong)


def _left_members_counted() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _use(self: Any, member: Any, by: int) -> None:
            if by > 0 or member.member_id in self.by_id:
                right(self, member, by)

        return _use

    return swapped(GroupMembers, "_use", wrong)


def _accepted(code: ErrorCode) -> AbstractContextManager[None]:
    """Accept commits of named members that the coordinator refuses with `code`."""

    def wrong(right: Any) -> Any:
        def _check_commit(self: Any, now: float, request: Any) -> ErrorCode:
            found: ErrorCode = right(self, now, request)
            is_named = request.member_id and request.group_id in self.groups
            return ErrorCode.NONE if found is code and is_named else found

        return _check_commit

    return swapped(GroupShard, "_check_commit", wrong)


def _generation_not_checked() -> AbstractContextManager[None]:
    return _accepted(ErrorCode.ILLEGAL_GENERATION)


def _member_id_not_checked() -> AbstractContextManager[None]:
    return _accepted(ErrorCode.UNKNOWN_MEMBER_ID)


def _instance_fencing_not_checked() -> AbstractContextManager[None]:
    return _accepted(ErrorCode.FENCED_INSTANCE_ID)


def _membership_not_needed() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _check_commit(self: Any, now: float, request: Any) -> ErrorCode:
            if request.generation < 0 and not request.member_id:
                return ErrorCode.NONE
            found: ErrorCode = right(self, now, request)
            return found

        return _check_commit

    return swapped(GroupShard, "_check_commit", wrong)


def _answered_at_append() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _append(
            self: Any, hosted: Any, records: Any, committed: Any, failed: Any, *rest: Any
        ) -> Any:
            has_ended = False

            def fail(code: ErrorCode) -> None:
                nonlocal has_ended
                if not has_ended:
                    has_ended = True
                    failed(code)

            code = right(self, hosted, records, None, fail, *rest)
            if code is None and committed is not None and not has_ended:
                has_ended = True
                committed()
            return code

        return _append

    return swapped(CoordinatorRuntime, "_append", wrong)


def _session_never_ends() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _session_ended(self: Any, member_id: str, now: float) -> None:
            self._members.by_id[member_id].heard_at = now
            right(self, member_id, now)

        return _session_ended

    return swapped(Sessions, "_session_ended", wrong)


def _syncs_do_not_keep_sessions() -> AbstractContextManager[None]:
    return swapped(
        GroupMember, "is_waiting", lambda _: property(lambda self: self.join is not None)
    )


def _assignment_shown_early() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def sync(self: Any, now: float, request: Any, callback: Any) -> Any:
            outcome = right(self, now, request, callback)
            if isinstance(outcome, Persist):
                self.committed(now, outcome.record)
            return outcome

        return sync

    return swapped(ClassicGroup, "sync", wrong)


def _earlier_assignment_applied() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def committed(self: Any, now: float, record: Any) -> None:
            if self.state is GroupState.COMPLETING_REBALANCE:
                assigned, self._is_assigned = self._is_assigned, True
                right(self, now, record._replace(generation=self.generation))
                self._is_assigned = assigned

        return committed

    return swapped(Rebalancing, "committed", wrong)


def _generation_restored_low() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def restored(self: Any, metadata: Any) -> None:
            right(self, metadata)
            self.generation -= 1

        return restored

    return swapped(Rebalancing, "restored", wrong)


def _topic_id_ignored() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def _of_topic(value: bytes, topic_id: bytes) -> Any:
            return decode_offset_value(value)

        return _of_topic

    return all_of(
        swapped(committed_offsets, "_of_topic", wrong),
        swapped(CommittedOffsets, "delete_stale", lambda _: lambda self, group, *_: []),
    )


def _load_not_awaited() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def wait_committed(self: Any) -> None: ...

        return wait_committed

    return swapped(ShardLoader, "wait_committed", wrong)


def _loaded_to_high_watermark() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def wait_committed(self: Any) -> None:
            hosted = self._hosted
            hosted.first_offset = min(hosted.first_offset, hosted.partition.high_watermark)

        return wait_committed

    return swapped(ShardLoader, "wait_committed", wrong)


def _expiry_of_live_groups() -> AbstractContextManager[None]:
    return swapped(group_shard, "_retention_of", lambda _: lambda group: OffsetRetention())


def _pending_commits_expire() -> AbstractContextManager[None]:
    """Let offsets expire although a newer commit of them is appended."""

    def wrong(right: Any) -> Any:
        def expire(self: Any, group: str, retention: Any, **times: Any) -> ExpiredOffsets:
            pending, self._pending = self._pending, {}
            try:
                expired: ExpiredOffsets = right(self, group, retention, **times)
            finally:
                self._pending = pending
            return expired

        return expire

    return swapped(CommittedOffsets, "expire", wrong)


def _loss_of_leadership_missed() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        return property(lambda self: self.state is not State.UNLOADED)

    def wrongly_active(_: Any) -> Any:
        return property(lambda self: self.state is State.ACTIVE)

    return all_of(
        swapped(HostedShard, "is_current", wrong),
        swapped(HostedShard, "is_active", wrongly_active),
    )


def _live_group_deleted() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def delete_group(self: Any, group_id: str, *_: Any) -> Any:
            if group_id not in self.groups and not self.offsets.has_group(group_id):
                return ErrorCode.GROUP_ID_NOT_FOUND
            return Write(self._deletion_of(group_id), ErrorCode.NONE)

        return delete_group

    return swapped(GroupShard, "delete_group", wrong)


def _tombstones_not_loaded() -> AbstractContextManager[None]:
    """Skip tombstones of offsets while a shard is loaded."""

    def wrong(right: Any) -> Any:
        def replay(self: Any, record: Any, now: float) -> None:
            if record.value is not None or self._is_loaded:
                right(self, record, now)

        return replay

    return swapped(GroupShard, "replay", wrong)


def _answered_unflushed() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def is_committed_at_once(self: Any, end_offset: int) -> bool:
            return not self.pending and end_offset <= self.partition.high_watermark

        return is_committed_at_once

    return all_of(
        swapped(HostedShard, "needs_flush", lambda _: property(lambda self: False)),
        swapped(HostedShard, "is_committed_at_once", wrong),
    )


def _replacement_unassigned() -> AbstractContextManager[None]:
    """Record no assignments when another process takes the place of a static member."""

    def wrong(right: Any) -> Any:
        def _replace(self: Any, *values: Any) -> Any:
            outcome = right(self, *values)
            if isinstance(outcome, Persist):
                outcome.record = self.rebalancing.record({})
            return outcome

        return _replace

    return swapped(ClassicGroup, "_replace", wrong)


def _live_group_expires() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def expire(self: Any, group_id: str, *values: Any) -> Any:
            is_kept = group_id not in self._persisted or self.offsets.has_group(group_id)
            if is_kept or self.groups[group_id].is_empty:
                return right(self, group_id, *values)
            return Write([group_shard._group_record(group_id, None)], None)

        return expire

    return swapped(GroupShard, "expire", wrong)


def _deletion_not_resumed() -> AbstractContextManager[None]:
    """Take a group that the last coordinator was deleting for one without members."""

    def wrong(right: Any) -> Any:
        async def restore(self: Any, now: float) -> None:
            for metadata in self._recorded.values():
                metadata.is_being_deleted = False
            await right(self, now)

        return restore

    return swapped(GroupShard, "restore", wrong)


def _deletion_shown_in_parts() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _offsets(worker: Any, group_id: str) -> Any:
            try:
                return right(worker, group_id)
            except KafkaError:
                return worker.groups.shard(group_id).offsets

        return _offsets

    return swapped(offsets, "_offsets", wrong)


def _commits_during_deletion() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _check_commit(self: Any, now: float, request: Any) -> ErrorCode:
            if request.group_id in self.being_deleted:
                return ErrorCode.NONE
            found: ErrorCode = right(self, now, request)
            return found

        return _check_commit

    return swapped(GroupShard, "_check_commit", wrong)


def _deletion_ends_first() -> AbstractContextManager[None]:
    """Delete the record of a group before its offsets."""

    def wrong(right: Any) -> Any:
        def deletion_pieces(self: Any, group_id: str) -> Any:
            *pieces, last = right(self, group_id)
            yield from (last, *pieces)

        return deletion_pieces

    return swapped(GroupShard, "deletion_pieces", wrong)


def _late_end_ends_next() -> AbstractContextManager[None]:
    """Let any tombstone of a group end its deletion, also that of an earlier attempt."""

    def wrong(right: Any) -> Any:
        def _group_committed(self: Any, group_id: str, recorded: Any, now: float) -> None:
            right(self, group_id, recorded, now)
            if recorded is None and group_id in self._being_deleted:
                del self._being_deleted[group_id]
                self.answer_deletion(group_id, ErrorCode.NONE)

        return _group_committed

    return swapped(GroupShard, "_group_committed", wrong)


def _clients_write_to_it() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def check_writable(name: str) -> None: ...

        return check_writable

    return all_of(
        swapped(produce, "check_writable", wrong),
        swapped(records, "check_writable", wrong),
        swapped(partition, "is_internal", lambda _: lambda name: False),
    )


def _clients_change_it() -> AbstractContextManager[None]:
    """Let clients delete internal topics, and change their partitions and configs."""

    def unchecked(_: Any) -> Any:
        def check(*values: Any) -> None: ...

        return check

    return all_of(
        swapped(topics, "check_not_internal", unchecked),
        swapped(config_changes, "_check_internal", unchecked),
    )


def _state_configs_unbounded() -> AbstractContextManager[None]:
    """Accept any value of a config of an internal topic, unless it permits unclean elections."""

    def unbounded(_: Any) -> Any:
        return lambda *values: None

    return swapped(config_changes, "own_complaint", unbounded)


def _uncommitted_not_counted() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def appended(self: Any, written: Any) -> None:
            right(self, written)
            self._uncommitted.clear()

        return appended

    return swapped(GroupShard, "appended", wrong)


GROUP_MUTANTS: Final = tuple(
    Mutant(name, about, "groups", found_as, apply)
    for name, about, found_as, apply in (
        (
            "generation-not-checked",
            "a commit of another generation is accepted",
            ("G2",),
            _generation_not_checked,
        ),
        (
            "member-id-not-checked",
            "a commit of a member that is not in the group is accepted",
            ("G2",),
            _member_id_not_checked,
        ),
        (
            "instance-fencing-not-checked",
            "a commit of a process that was replaced by another with its instance id is accepted",
            ("G2",),
            _instance_fencing_not_checked,
        ),
        (
            "membership-not-needed",
            "a commit without a generation is accepted while the group has members",
            ("G2",),
            _membership_not_needed,
        ),
        (
            "group-answered-at-append",
            "a coordinator answers when its records are appended, not when they are committed",
            ("G1", "G3"),
            _answered_at_append,
        ),
        (
            "session-never-ends",
            "a member that sends nothing for its session timeout stays in the group",
            ("liveness",),
            _session_never_ends,
        ),
        (
            "syncs-do-not-keep-sessions",
            "a member is expelled while its SyncGroup waits for longer than the session timeout",
            ("G7",),
            _syncs_do_not_keep_sessions,
        ),
        (
            "assignment-shown-early",
            "SyncGroups are answered before the record of the assignment is committed",
            ("G1",),
            _assignment_shown_early,
        ),
        (
            "earlier-assignment-applied",
            "a record of an earlier generation is applied as the assignment of the current one",
            ("G1",),
            _earlier_assignment_applied,
        ),
        (
            "generation-restored-low",
            "a new coordinator continues with the generation before the recorded one",
            ("G1", "G2"),
            _generation_restored_low,
        ),
        (
            "offset-topic-id-ignored",
            "an offset of a deleted topic is returned for the next topic of its name",
            ("R10",),
            _topic_id_ignored,
        ),
        (
            "group-load-not-awaited",
            "a coordinator loads records that are not committed",
            ("G1", "G3"),
            _load_not_awaited,
        ),
        (
            "group-loaded-to-high-watermark",
            "a coordinator loads only to the high watermark that it knows when it becomes leader",
            ("G1", "G2", "G3"),
            _loaded_to_high_watermark,
        ),
        (
            "expiry-of-live-groups",
            "offsets expire after their commit although the group consumes the topic",
            ("G3",),
            _expiry_of_live_groups,
        ),
        (
            "pending-commits-expire",
            "an offset expires although a newer commit of it is being written",
            ("G3",),
            _pending_commits_expire,
        ),
        (
            "leadership-loss-missed",
            "a coordinator answers after its leadership has ended, from the state of then",
            ("G1", "G2", "G3"),
            _loss_of_leadership_missed,
        ),
        (
            "live-group-deleted",
            "DeleteGroups deletes a group with members",
            ("G1", "G3"),
            _live_group_deleted,
        ),
        (
            "tombstones-not-loaded",
            "a new coordinator returns offsets that were deleted",
            ("G3",),
            _tombstones_not_loaded,
        ),
        (
            "group-answered-unflushed",
            "a coordinator answers before the flush that flush.messages requires",
            ("R6",),
            _answered_unflushed,
        ),
        (
            "replacement-unassigned",
            "the record of a replaced static member has no assignments",
            ("G1",),
            _replacement_unassigned,
        ),
        (
            "live-group-expires",
            "a group without offsets expires although it has members",
            ("G1",),
            _live_group_expires,
        ),
        (
            "deletion-not-resumed",
            "a new coordinator keeps a group of which the last one had deleted a part",
            ("G1", "G2", "G3"),
            _deletion_not_resumed,
        ),
        (
            "deletion-shown-in-parts",
            "offsets of a group that is being deleted are returned until each one is deleted",
            ("G3",),
            _deletion_shown_in_parts,
        ),
        (
            "commits-during-deletion",
            "a commit for a group that is being deleted is accepted",
            ("G2",),
            _commits_during_deletion,
        ),
        (
            "deletion-ends-first",
            "the deletion of a group is answered before all of its offsets are deleted",
            ("G3",),
            _deletion_ends_first,
        ),
        (
            "late-deletion-ends-next",
            "a late record of one deletion of a group ends the next deletion, which continues",
            ("G2", "G3"),
            _late_end_ends_next,
        ),
        (
            "budgets-without-shares",
            "one client may use a whole budget",
            ("B1",),
            budgets_without_shares,
        ),
        (
            "known-members-may-not-grow",
            "a longer subscription of a known member is refused as a new member is",
            ("B1",),
            _known_may_not_grow,
        ),
        (
            "loaded-state-not-counted",
            "state that a coordinator has loaded does not count",
            ("B2",),
            _loaded_not_counted,
        ),
        (
            "left-members-counted",
            "members that have left count in the budget",
            ("B2",),
            _left_members_counted,
        ),
        (
            "clients-write-internal-topics",
            "clients produce to internal topics and delete their records",
            ("G6",),
            _clients_write_to_it,
        ),
        (
            "clients-change-internal-topics",
            "clients delete internal topics, and change their partitions and configs",
            ("G6",),
            _clients_change_it,
        ),
        (
            "state-configs-unbounded",
            "configs of an internal topic may remove or stop the state in it",
            ("G6",),
            _state_configs_unbounded,
        ),
        (
            "uncommitted-not-counted",
            "a group is forgotten, or its deletion ends, while records of it are not committed",
            ("G1", "G2", "G3"),
            _uncommitted_not_counted,
        ),
    )
)
