"""Mutants of transactions: a test of the part finds each, and so does the simulator."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.dataplane.coordinators.transaction import marker_sender
from metaquorum.dataplane.coordinators.transaction.marker_sender import MarkerSender
from metaquorum.dataplane.coordinators.transaction.transaction import State, Transaction
from metaquorum.simulations.mutants.transaction_mutants import TRANSACTION_MUTANTS
from tests.dataplane.coordinators import test_client_budget as budget
from tests.dataplane.coordinators.group import test_transactional_offsets as offsets
from tests.dataplane.coordinators.transaction import test_loss as loss
from tests.dataplane.coordinators.transaction import test_transaction_shard as shard
from tests.dataplane.handlers import test_produce_transactions as produce
from tests.dataplane.handlers.transactions import test_offsets as commits
from tests.dataplane.log import test_aborted_in as aborted
from tests.dataplane.log import test_transactions as log
from tests.simulations.mutant_tests import assert_fails_with

MUTANTS = {mutant.name: mutant for mutant in TRANSACTION_MUTANTS}


def in_folder(test: Callable[..., None], *values: Any) -> Callable[[], None]:
    """Return the test with a temporary folder as its first argument."""

    def run() -> None:
        with TemporaryDirectory() as folder:
            test(Path(folder), *values)

    return run


def a_transaction_keeps_its_earlier_partitions() -> None:
    begun = Transaction(7, 0, 1000, 0).with_partitions([("t", 0)], 0, 2)
    assert begun.with_partitions([("t", 1)], 0, 2).partitions == {("t", 0), ("t", 1)}


def prepared(state: State) -> Transaction:
    return Transaction(7, 0, 1000, 0).with_partitions([("t", 0)], 0, 0).prepared(state, 0, 0)


def an_abort_is_written_as_an_abort() -> None:
    found: Any = SimpleNamespace(
        prepared=prepared(State.PREPARE_ABORT), shard=SimpleNamespace(coordinator_epoch=3)
    )
    assert not marker_sender._marker(found, [("t", 0)]).transaction_result


def a_transaction_is_complete_once_its_markers_are_written() -> None:
    topic = SimpleNamespace(partitions=[SimpleNamespace(leader=2)])
    parts: Any = SimpleNamespace(
        worker_id=1,
        image=SimpleNamespace(topic=lambda name: topic),
        clock=SimpleNamespace(monotonic=float),
    )
    completed: list[str] = []
    unused: Any = None
    sender = MarkerSender(parts, unused, unused, lambda _, each: completed.append(each))
    at: Any = SimpleNamespace(is_unloaded=False)
    sender.send(at, "x", prepared(State.PREPARE_COMMIT))
    assert (len(sender), completed) == (1, [])


# Test of the part that fails with each mutant.
FAILS: dict[str, Callable[[], None]] = {
    "open-transaction-passed": in_folder(
        log.test_a_transaction_is_unstable_until_its_marker_is_replicated
    ),
    "marker-not-awaited": in_folder(
        log.test_a_transaction_is_unstable_until_its_marker_is_replicated
    ),
    "aborted-not-indexed": in_folder(log.test_aborted_transactions_of_a_range),
    "aborted-range-cut-short": in_folder(aborted.test_a_read_within_a_transaction_has_its_row),
    "snapshot-without-open-offset": in_folder(
        log.test_a_restart_keeps_open_and_aborted_transactions, True
    ),
    "older-epoch-appended": in_folder(log.test_a_batch_of_a_coordinator_has_no_sequence),
    "late-marker-appended": in_folder(
        log.test_markers_are_fenced_by_producer_and_coordinator_epoch
    ),
    "last-transaction-joined": (
        commits.test_a_client_that_changes_to_version_5_does_not_join_its_last_transaction
    ),
    "transaction-not-verified": in_folder(
        produce.test_the_coordinator_is_asked_once_per_transaction_and_partition
    ),
    "administrators-raise-epochs": in_folder(
        produce.test_an_administrator_ends_a_hanging_transaction
    ),
    "ongoing-ended-by-administrators": in_folder(
        produce.test_an_administrator_ends_a_hanging_transaction
    ),
    "marker-before-decision": shard.test_nothing_is_prepared_before_the_record_is_committed,
    "complete-before-markers": a_transaction_is_complete_once_its_markers_are_written,
    "commit-marker-for-abort": an_abort_is_written_as_an_abort,
    "epoch-not-bumped": shard.test_a_client_may_raise_its_epoch_and_retry_that,
    "zombies-accepted": shard.test_a_new_instance_aborts_the_open_transaction_and_fences,
    "transaction-timeouts-ignored": (shard.test_a_transaction_that_is_open_for_too_long_is_aborted),
    "added-partitions-extend-the-time": (
        shard.test_added_partitions_do_not_extend_the_time_of_a_transaction
    ),
    "prepared-not-resumed": shard.test_prepared_transactions_resume_after_a_failover,
    "lost-epochs-given-again": partial(
        loss.test_an_epoch_that_a_loss_has_forgotten_is_not_given_again, 2
    ),
    "verified-begins-after-loss": (
        loss.test_a_transaction_that_was_verified_before_the_loss_does_not_begin_after_it
    ),
    "last-partitions-only": a_transaction_keeps_its_earlier_partitions,
    "verified-without-look": shard.test_verification_answers_for_each_partition,
    "offsets-outside-of-transactions": (
        offsets.test_a_commit_after_the_transactional_one_wins_over_the_marker
    ),
    "aborted-offsets-committed": partial(
        commits.test_offsets_are_committed_by_the_end_of_the_transaction, 4, False
    ),
    "unstable-offsets-returned": (
        offsets.test_a_transactional_commit_is_unstable_before_it_is_replicated
    ),
    "ids-without-shares": budget.test_a_client_finds_room_after_any_number_of_others,
    "removed-ids-counted": shard.test_an_id_expires_unless_its_transaction_is_open,
}


def test_each_mutant_has_its_test() -> None:
    assert set(FAILS) == set(MUTANTS)


@pytest.mark.parametrize("name", list(FAILS))
def test_a_part_has_a_test_that_fails_without_the_rule(name: str) -> None:
    assert_fails_with(MUTANTS[name], FAILS[name])
