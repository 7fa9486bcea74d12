"""Objects are checked after their steps while a world runs, and as they are otherwise."""

from metaquorum.dataplane.coordinators.client_budget import ClientBudget
from metaquorum.dataplane.quotas.rate_window import RateWindow
from metaquorum.quorum.raft.progress import Progress
from metaquorum.simulations.checkers.states import SPARSE, checked_states
from metaquorum.simulations.kernel.world import World


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
