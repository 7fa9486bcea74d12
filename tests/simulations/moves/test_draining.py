"""Mutants of draining workers: the test of the rule finds each."""

from collections.abc import Callable

import pytest

from metaquorum.simulations.mutants.registry import MUTANTS
from tests.metaquorum.quorum.controller import test_draining as controller
from tests.simulations.mutant_tests import assert_fails_with


@pytest.mark.parametrize(
    ("name", "test"),
    [
        (
            "replicas-on-draining",
            controller.test_too_few_workers_that_are_not_draining_are_named_in_the_refusal,
        ),
        (
            "draining-elected",
            controller.test_other_workers_lead_what_a_draining_one_led_where_they_may,
        ),
    ],
)
def test_each_mutant_is_found_by_the_test_of_its_rule(
    name: str, test: Callable[[], object]
) -> None:
    assert_fails_with(MUTANTS[name], test)
