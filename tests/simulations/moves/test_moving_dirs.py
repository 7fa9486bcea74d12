"""Mutants of moves between log directories: the test of the rule finds each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from metaquorum.simulations.mutants.log_dir_mutants import LOG_DIR_MUTANTS
from metaquorum.simulations.mutants.registry import MUTANTS
from tests.dataplane.handlers.log_dirs import test_alter_replica_log_dirs as moves
from tests.simulations.mutant_tests import assert_fails_with

# Test that fails with each mutant.
FAILS: dict[str, Callable[[Path], None]] = {
    "swap-before-caught-up": moves.test_deleted_records_stay_deleted_in_the_other_directory,
    "producers-left-behind": moves.test_a_replica_moves_with_its_records_epochs_and_producers,
    "future-kept-after-cancel": moves.test_a_deleted_topic_ends_its_move,
    "copy-continued-blindly": (
        moves.test_a_copy_does_not_keep_records_that_others_replaced_before_it_is_recovered
    ),
    "copy-not-cut": moves.test_a_truncation_reaches_the_copy,
    "copy-starts-earlier": moves.test_deleted_records_stay_deleted_in_the_other_directory,
    "replaced-log-kept": moves.test_a_replica_moves_with_its_records_epochs_and_producers,
}


def test_each_mistake_has_its_test() -> None:
    assert set(FAILS) == {mutant.name for mutant in LOG_DIR_MUTANTS}


@pytest.mark.parametrize("name", list(FAILS))
def test_each_mutant_is_found_by_the_test_of_its_rule(tmp_path: Path, name: str) -> None:
    runs = iter(range(10))

    def run() -> None:
        folder = tmp_path / str(next(runs))
        folder.mkdir()
        FAILS[name](folder)

    assert_fails_with(MUTANTS[name], run)
