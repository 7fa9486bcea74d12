"""Mutants of consumer groups: a test of the coordinator finds each, and so does the simulator."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from metaquorum.simulations.mutants.group_mutants import GROUP_MUTANTS
from metaquorum.simulations.mutants.registry import MUTANTS
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.coordinators import test_client_budget as budget
from tests.dataplane.coordinators import test_runtime as runtime
from tests.dataplane.coordinators.group import test_classic_group as group
from tests.dataplane.coordinators.group import test_group_shard as shard
from tests.dataplane.handlers import test_internal_topics as internal_topics
from tests.dataplane.handlers.groups import test_offsets as offsets
from tests.simulations.mutant_tests import assert_fails_with, assert_found


def a_write_is_answered_after_its_flush() -> None:
    with TemporaryDirectory() as folder:
        runtime.test_a_write_is_answered_after_the_flush_that_the_topic_asks_for(
            tmp_path=Path(folder)
        )


def no_offsets_are_returned_of_a_group_that_is_being_deleted() -> None:
    with pytest.MonkeyPatch.context() as patch:
        offsets.test_no_offsets_are_returned_of_a_group_that_is_being_deleted(patch)


def no_client_writes_to_an_internal_topic() -> None:
    with pytest.MonkeyPatch.context() as patch:
        internal_topics.test_no_client_writes_to_it(patch, is_fast=True)


# Test of the coordinator that fails with each mutant.
FAILS: dict[str, Callable[[], None]] = {
    "generation-not-checked": partial(
        shard.test_only_members_of_the_generation_commit, 0, True, ErrorCode.ILLEGAL_GENERATION
    ),
    "member-id-not-checked": partial(
        shard.test_only_members_of_the_generation_commit, 1, False, ErrorCode.UNKNOWN_MEMBER_ID
    ),
    "instance-fencing-not-checked": shard.test_a_process_that_was_replaced_does_not_commit,
    "membership-not-needed": (
        shard.test_anybody_commits_without_a_generation_while_the_group_is_empty
    ),
    "group-answered-at-append": (
        runtime.test_a_write_is_replayed_and_answered_only_when_all_in_sync_replicas_have_it
    ),
    "session-never-ends": partial(
        group.test_a_session_ends_its_timeout_after_the_last_heartbeat, 0.0
    ),
    "syncs-do-not-keep-sessions": group.test_a_waiting_sync_keeps_the_session,
    "assignment-shown-early": (
        group.test_an_assignment_is_not_shown_before_its_record_is_committed
    ),
    "earlier-assignment-applied": (
        group.test_an_assignment_of_an_earlier_generation_is_not_applied
    ),
    "generation-restored-low": (
        group.test_another_coordinator_restores_members_generation_and_assignment
    ),
    "offset-topic-id-ignored": (
        shard.test_offsets_of_a_deleted_topic_are_not_those_of_the_next_one_of_its_name
    ),
    "group-load-not-awaited": (
        runtime.test_a_load_waits_until_all_records_of_the_log_are_committed
    ),
    "group-loaded-to-high-watermark": (
        runtime.test_a_load_waits_until_all_records_of_the_log_are_committed
    ),
    "expiry-of-live-groups": shard.test_a_live_group_and_its_offsets_do_not_expire,
    "pending-commits-expire": (
        shard.test_an_offset_that_is_committed_again_does_not_expire_before_that_is_committed
    ),
    "leadership-loss-missed": (
        runtime.test_a_write_in_flight_at_the_end_of_leadership_is_refused_and_not_replayed
    ),
    "live-group-deleted": shard.test_a_deleted_group_leaves_nothing,
    "tombstones-not-loaded": shard.test_a_deleted_group_leaves_nothing,
    "group-answered-unflushed": a_write_is_answered_after_its_flush,
    "replacement-unassigned": (
        group.test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance
    ),
    "live-group-expires": shard.test_the_record_of_a_live_group_without_offsets_does_not_expire,
    "deletion-not-resumed": shard.test_the_next_coordinator_completes_a_deletion_in_parts,
    "deletion-shown-in-parts": no_offsets_are_returned_of_a_group_that_is_being_deleted,
    "commits-during-deletion": (
        shard.test_a_group_that_is_deleted_in_parts_takes_no_members_and_no_commits
    ),
    "deletion-ends-first": shard.test_the_next_coordinator_completes_a_deletion_in_parts,
    "late-deletion-ends-next": shard.test_a_late_end_of_one_deletion_does_not_end_the_next_one,
    "budgets-without-shares": budget.test_a_client_finds_room_after_any_number_of_others,
    "known-members-may-not-grow": (
        budget.test_what_is_known_may_grow_by_as_much_again_in_a_full_budget
    ),
    "loaded-state-not-counted": (budget.test_loaded_state_is_that_of_the_next_client_which_uses_it),
    "left-members-counted": (group.test_the_history_of_a_group_is_counted_and_has_no_long_names),
    "clients-write-internal-topics": no_client_writes_to_an_internal_topic,
    "clients-change-internal-topics": (
        internal_topics.test_it_is_neither_deleted_nor_given_partitions
    ),
    "state-configs-unbounded": internal_topics.test_no_config_stops_or_removes_its_state,
    "uncommitted-not-counted": (
        shard.test_a_group_with_records_that_are_not_committed_yet_is_not_forgotten
    ),
}
# Mutants that the simulator finds within few seeds, with the seed that finds it soonest.
SHOWS_SOON = {
    "generation-not-checked": 1,
    "group-answered-at-append": 0,
    "assignment-shown-early": 0,
    "offset-topic-id-ignored": 7,
    "expiry-of-live-groups": 11,
    "session-never-ends": 37,
}


def test_each_mistake_has_its_test() -> None:
    assert set(FAILS) == {mutant.name for mutant in GROUP_MUTANTS}


@pytest.mark.parametrize("name", list(FAILS))
def test_the_coordinator_has_a_test_that_fails_without_the_rule(name: str) -> None:
    assert_fails_with(MUTANTS[name], FAILS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWS_SOON)
def test_a_mistake_shows_in_groups_of_a_world_in_trouble(name: str) -> None:
    assert_found(name, SHOWS_SOON[name])
