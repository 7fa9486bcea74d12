"""Mutants of plans of moves: the test of the rule finds each."""

from collections.abc import Callable

import pytest

from metaquorum.simulations.mutants.registry import MUTANTS
from tests.dataplane.handlers.test_move_plans import (
    test_a_throttle_ends_with_the_record_that_takes_the_partition_out_of_the_plan as throttle_ends,
)
from tests.dataplane.handlers.test_move_plans import (
    test_the_throttle_of_an_operator_stays_and_the_lower_rate_holds as lower_rate_holds,
)
from tests.metaquorum.quorum.controller.plans.test_move_plans import (
    test_a_cancelled_plan_takes_its_partitions_back as taken_back,
)
from tests.metaquorum.quorum.controller.plans.test_move_plans import (
    test_a_paused_plan_begins_nothing_and_its_moves_go_on as begins_nothing,
)
from tests.metaquorum.quorum.controller.plans.test_move_plans import (
    test_a_plan_moves_its_partitions_a_few_at_a_time_in_their_order as a_few_at_a_time,
)
from tests.simulations.mutant_tests import assert_fails_with


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("throttle-left-behind", lambda: throttle_ends("cancel")),
        ("cancelled-stays-in-plan", taken_back),
        ("batch-exceeded", a_few_at_a_time),
        ("pause-ignored", begins_nothing),
        ("rate-of-operator-ignored", lower_rate_holds),
    ],
)
def test_each_mutant_is_found_by_the_test_of_its_rule(
    name: str, test: Callable[[], object]
) -> None:
    assert_fails_with(MUTANTS[name], test)
