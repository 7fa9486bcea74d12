"""Q6: a test of sessions finds a mutant that counts mutes for them, and so does the simulator."""

import pytest

from simulations.kernel.mutation import mutated
from simulations.mutants.registry import MUTANTS
from simulations.runner.runs import run_seed
from tests.dataplane.coordinators.group.test_classic_group import (
    test_a_muted_member_keeps_its_session as muted_member_keeps_its_session,
)

MUTANT = "mutes-counted-for-sessions"


def test_a_test_of_sessions_fails_if_mutes_count() -> None:
    with mutated(MUTANTS[MUTANT]), pytest.raises(AssertionError):
        muted_member_keeps_its_session()


def test_a_member_that_is_expelled_while_it_is_muted_shows_in_the_simulator() -> None:
    def found(seed: int) -> bool:
        outcome, _ = run_seed("throttled-members", seed, mutant=MUTANT)
        return any(each.startswith("Q6") for each, _ in outcome.violations)

    assert any(map(found, range(6)))
