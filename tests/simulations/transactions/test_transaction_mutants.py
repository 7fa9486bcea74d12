"""Mutants of transactions: a test of the part finds each, and so does the simulator."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from simulations.kernel.mutation import mutated
from simulations.mutants.transaction_mutants import TRANSACTION_MUTANTS
from tests.dataplane.fetch import test_read_committed as reads
from tests.dataplane.handlers import test_produce_transactions as produce
from tests.dataplane.log import test_transactions as log
from tests.dataplane.log.segments import test_verification as verification

MUTANTS = {mutant.name: mutant for mutant in TRANSACTION_MUTANTS}


def in_folder(test: Callable[..., None], *values: Any) -> Callable[[], None]:
    """Return the test with a temporary folder as its first argument."""

    def run() -> None:
        with TemporaryDirectory() as folder:
            test(Path(folder), *values)

    return run


# Test of the part that fails with each mutant.
FAILS: dict[str, Callable[[], None]] = {
    "open-transaction-passed": in_folder(
        log.test_a_transaction_is_unstable_until_its_marker_is_replicated
    ),
    "marker-not-awaited": in_folder(
        log.test_a_transaction_is_unstable_until_its_marker_is_replicated
    ),
    "aborted-not-indexed": in_folder(log.test_aborted_transactions_of_a_range),
    "aborted-range-cut-short": (
        reads.test_reads_end_at_the_last_stable_offset_and_list_aborted_transactions
    ),
    "snapshot-without-open-offset": in_folder(
        log.test_a_restart_keeps_open_and_aborted_transactions, True
    ),
    "older-epoch-appended": in_folder(log.test_a_batch_of_a_coordinator_has_no_sequence),
    "late-marker-appended": in_folder(
        log.test_markers_are_fenced_by_producer_and_coordinator_epoch
    ),
    "transaction-not-verified": verification.test_only_the_verification_in_progress_counts,
    "ongoing-ended-by-administrators": in_folder(
        produce.test_an_administrator_ends_a_hanging_transaction
    ),
}


def test_each_mutant_has_its_test() -> None:
    assert set(FAILS) == set(MUTANTS)


@pytest.mark.parametrize("name", list(FAILS))
def test_a_part_has_a_test_that_fails_without_the_rule(name: str) -> None:
    FAILS[name]()

    def fails() -> bool:
        try:
            FAILS[name]()
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - however it fails
            return True
        return False

    with mutated(MUTANTS[name]):
        assert fails()
