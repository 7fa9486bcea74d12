"""Plans of moves in the simulator: a world, and the tests that find each mutant."""

from collections.abc import Callable

import pytest

from simulations.mutants.registry import MUTANTS
from simulations.runner.runs import run_seed
from tests.dataplane.handlers.test_move_plans import (
    test_a_throttle_ends_with_the_record_that_takes_the_partition_out_of_the_plan as throttle_ends,
)
from tests.metaquorum.controller.plans.test_move_plans import (
    test_a_cancelled_plan_takes_its_partitions_back as taken_back,
)
from tests.simulations.mutant_tests import assert_fails_with


def test_a_world_with_plans_keeps_all_invariants() -> None:
    outcome, _ = run_seed("planned-moves", 0)
    assert not outcome.violations
    assert outcome.counts["plans started"]


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("throttle-left-behind", lambda: throttle_ends("cancel")),
        ("cancelled-stays-in-plan", taken_back),
    ],
)
def test_each_mutant_is_found_by_the_test_of_its_rule(
    name: str, test: Callable[[], object]
) -> None:
    assert_fails_with(MUTANTS[name], test)
