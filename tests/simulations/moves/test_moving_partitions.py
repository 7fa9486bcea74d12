"""Mutants of moving partitions: the test of the rule finds each."""

from collections.abc import Callable
from functools import partial

import pytest

from metaquorum.simulations.mutants.registry import MUTANTS
from tests.dataplane.replication.moves import test_added_while_down as added
from tests.dataplane.replication.moves import test_removed_replicas as removed
from tests.dataplane.replication.moves import test_under_replicated as behind
from tests.metaquorum.quorum.controller import test_reassignment as controller
from tests.simulations.mutant_tests import assert_fails_with

partition = controller.partition


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "test"),
    [
        (
            "removed-before-in-sync",
            controller.test_a_move_is_complete_with_the_record_in_which_the_whole_target_is_in_sync,
        ),
        ("cancel-drops-originals", controller.test_a_request_without_replicas_cancels_the_move),
        (
            "ended-in-two-records",
            controller.test_a_move_is_complete_with_the_record_in_which_the_whole_target_is_in_sync,
        ),
        (
            "epoch-kept-at-removal",
            partial(
                controller.test_a_replica_that_leaves_begins_a_leader_epoch,
                partition("123", "123"),
                "12",
            ),
        ),
        (
            "earlier-target-dropped",
            controller.test_a_new_target_keeps_what_is_in_sync_of_the_one_before,
        ),
        (
            "eligible-forgotten-at-a-request",
            controller.test_a_request_keeps_the_eligible_replicas,
        ),
        ("removed-log-kept", removed.test_a_follower_that_is_removed_deletes_its_log),
        (
            "moved-meanwhile-kept",
            removed.test_a_worker_that_was_down_when_it_was_removed_deletes_its_log_when_it_returns,
        ),
        (
            "adding-reported-as-lost",
            added.test_a_log_that_a_move_has_added_is_not_lost_although_the_disk_is_new,
        ),
        ("adding-counted-as-behind", behind.test_adding_replicas_do_not_count_as_behind),
    ],
)
def test_each_mutant_is_found_by_the_test_of_its_rule(
    name: str, test: Callable[[], object]
) -> None:
    assert_fails_with(MUTANTS[name], test)
