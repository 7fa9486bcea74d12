"""A mutant of controlled shutdowns: a test of worker sessions and the simulator find it."""

import pytest

from metaquorum.simulations.mutants.registry import MUTANTS
from tests.metaquorum.quorum.controller.test_heartbeats import (
    test_a_shutdown_waits_for_no_worker_that_is_fenced_or_shutting_down as waits_for_live_ones,
)
from tests.simulations.mutant_tests import assert_fails_with, assert_found

MUTANT = "fenced-workers-awaited"


def test_a_test_of_sessions_fails_if_fenced_workers_are_awaited() -> None:
    assert_fails_with(MUTANTS[MUTANT], lambda: waits_for_live_ones({"fenced": True}))


@pytest.mark.slow
def test_a_worker_that_waits_for_a_dead_one_shows_in_the_simulator() -> None:
    assert_found(MUTANT, 2)
