"""Objects are checked after their steps while a world runs, and as they are otherwise."""

import pytest

from metaquorum.dataplane.coordinators.client_budget import ClientBudget
from metaquorum.dataplane.quotas.rate_window import RateWindow
from metaquorum.quorum.raft.progress import Progress
from metaquorum.simulations.checkers.states import SPARSE, checked_states
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.mutants.registry import MUTANTS
from metaquorum.simulations.mutants.state_mutants import STATE_MUTANTS
from tests.simulations.mutant_tests import assert_found

# The cheapest seed known to find each.
SOONEST = {
    "proposal-kept": 1,
    "answered-bytes-kept": 0,
    "partitions-counted-for-ever": 0,
    "client-numbers-kept": 0,
    "metadata-of-members-kept": 0,
    "own-epoch-kept": 0,
    "partitions-after-the-end": 0,
    "recovery-point-kept": 14,
    "latest-epoch-kept": 0,
    "short-samples": 0,
}


def violations_of(world: World) -> list[str]:
    return [f"{violation.invariant}: {violation.text}" for violation in world.violations]


def test_an_object_that_contradicts_itself_is_reported_after_a_step() -> None:
    world, progress = World(0), Progress(1)
    with checked_states(world):
        progress.connected(1)
        assert violations_of(world) == []
        progress.matched_index = 9
        progress.refused(20, 0)
        progress.next_index = 5
        progress.disconnected()
    (found,) = violations_of(world)
    assert found.startswith("I1 StatesAreValid: Progress.check_invariants:")
    assert found.endswith("after Progress.disconnected: (9, 5)")


def test_one_of_many_frequent_steps_is_checked() -> None:
    world, budget = World(0), ClientBudget("x", lambda: 1 << 20)
    with checked_states(world):
        budget.counted_bytes = 7
        for _ in range(SPARSE - 1):
            budget.use("client", 10)
        assert violations_of(world) == []
        budget.use("client", 10)
    assert len(violations_of(world)) == 1


def test_steps_are_as_before_when_the_world_has_ended() -> None:
    before = RateWindow.use
    with checked_states(World(0)):
        assert RateWindow.use is not before
    assert RateWindow.use is before


def test_a_peer_that_lost_its_log_is_no_longer_at_what_it_had_matched() -> None:
    progress = Progress(11)
    progress.connected(11)
    progress.matched(11)
    progress.check_invariants()
    progress.refused(1, 0)
    assert progress.matched_index == 0
    progress.check_invariants()


@pytest.mark.slow
@pytest.mark.parametrize("name", SOONEST)
def test_a_contradiction_that_no_client_sees_is_found(name: str) -> None:
    assert MUTANTS[name].found_as == ("I1",)
    assert_found(name, SOONEST[name])


def test_every_mutant_of_states_is_looked_for() -> None:
    assert SOONEST.keys() == {mutant.name for mutant in STATE_MUTANTS}
