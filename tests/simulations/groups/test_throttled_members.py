"""Q6: a test of sessions finds a mutant that counts mutes for them, and so does the simulator."""

import pytest

from metaquorum.simulations.kernel.mutation import mutated
from metaquorum.simulations.mutants.registry import MUTANTS
from tests.dataplane.coordinators.group.test_classic_group import (
    test_a_muted_member_keeps_its_session as muted_member_keeps_its_session,
)
from tests.simulations.mutant_tests import assert_found

MUTANT = "mutes-counted-for-sessions"


def test_a_test_of_sessions_fails_if_mutes_count() -> None:
    with mutated(MUTANTS[MUTANT]), pytest.raises(AssertionError):
        muted_member_keeps_its_session()


@pytest.mark.slow
def test_a_member_that_is_expelled_while_it_is_muted_shows_in_the_simulator() -> None:
    assert MUTANTS[MUTANT].found_as == ("Q6",)
    assert_found(MUTANT, 5)
