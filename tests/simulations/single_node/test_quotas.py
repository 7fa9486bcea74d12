"""A mutant of the counts of quotas: a test of these finds it, and so does the simulator."""

import pytest

from metaquorum.simulations.mutants.registry import MUTANTS
from tests.dataplane.quotas.test_quota_enforcement import (
    test_a_client_that_was_forgotten_shares_its_allowance_when_it_returns as allowance_is_shared,
)
from tests.simulations.mutant_tests import assert_fails_with, assert_found

MUTANT = "dropped-allowances-used"


def test_a_test_of_allowances_fails_if_dropped_ones_are_used() -> None:
    assert_fails_with(MUTANTS[MUTANT], allowance_is_shared)


@pytest.mark.slow
def test_a_quota_that_is_granted_twice_shows_in_the_simulator() -> None:
    assert_found(MUTANT, 2)
