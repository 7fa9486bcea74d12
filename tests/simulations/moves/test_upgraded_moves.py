"""Mutants of the levels of moves: the test of the rule finds each."""

from collections.abc import Callable

import pytest

from metaquorum.simulations.mutants.registry import MUTANTS
from metaquorum.simulations.mutants.upgrade_mutants import MOVES_LEVEL_MUTANTS
from tests.metaquorum.quorum.controller import test_draining as draining
from tests.metaquorum.quorum.controller import test_features as features
from tests.metaquorum.quorum.controller import test_reassignment as moves
from tests.metaquorum.quorum.controller.plans import test_move_plans as plans
from tests.simulations.mutant_tests import assert_fails_with

# Test that fails with each mutant.
FAILS: dict[str, Callable[[], None]] = {
    "moves-at-every-level": moves.test_moves_need_their_level_of_metadata_version,
    "plans-at-every-level": plans.test_plans_need_their_level_of_metadata_version,
    "drains-at-every-level": draining.test_a_level_below_moves_has_no_draining_workers,
    "newest-record-versions": features.test_moves_are_written_from_their_level_on,
}


def test_each_mistake_has_its_test() -> None:
    assert set(FAILS) == {mutant.name for mutant in MOVES_LEVEL_MUTANTS}


@pytest.mark.parametrize("name", list(FAILS))
def test_each_mutant_is_found_by_the_test_of_its_rule(name: str) -> None:
    assert_fails_with(MUTANTS[name], FAILS[name])
