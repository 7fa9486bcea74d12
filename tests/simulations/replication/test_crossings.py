"""Interleavings of replication: each takes effect, and finds the mutants that need it."""

import pytest

from metaquorum.simulations.kernel.mutation import Mutant, mutated
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.mutants.interleaving_mutants import CHECK_MUTANTS
from metaquorum.simulations.mutants.registry import MUTANTS
from metaquorum.simulations.mutants.truncation_mutants import CUT_MUTANTS
from metaquorum.simulations.replication import crossings
from metaquorum.simulations.replication.crossing_faults import INTERLEAVINGS, LATER_CROSSINGS

# Crossing that finds each mutant.
SHOWS_IN = {
    "cut-for-another-leader": "unwanted cut",
    "commit-of-another-epoch": "pair",
    "uncommitted-acknowledged": "impatient",
    "duplicate-not-awaited": "impatient",
    "high-watermark-above-cut": "unclean",
    "high-watermark-above-end": "half way",
    "unused-epochs-kept": "uneven",
    "older-isr-replaced": "late wish",
    "fenced-in-isr": "dead wish",
    "joins-behind-epoch-start": "heir",
    "end-of-catching-up-told": "heir",
    "queued-append-not-checked": "handover",
    "deletions-missed": "left behind",
    "stale-broker-epoch-accepted": "reborn wish",
    "recovery-point-above-cut": "cut back",
    "deleted-topics-noted": "namesake",
    "cut-damage-forgotten": "cut damage",
    "unmatched-log-kept": "deleted ahead",
}
SEEDS = range(12)
# Seed that finds a mutant soonest, if it is not 0; the others are played only if it does not.
SOONEST = {"recovery-point-above-cut": 1, "cut-damage-forgotten": 10}

pytestmark = pytest.mark.slow


def played(kind: str, seed: int, mutant: Mutant | None = None) -> World:
    world = World(seed, ends_with=() if mutant is None else mutant.found_as)
    with mutated(mutant):
        world.run(lambda world: crossings.play_kind(world, kind))
    return world


@pytest.mark.parametrize("kind", [*INTERLEAVINGS, *LATER_CROSSINGS])
def test_each_crossing_comes_about_and_leaves_nothing_wrong(kind: str) -> None:
    for seed in range(3):
        world = played(kind, seed)
        assert not world.violations
        if world.counts.get(f"fault: {kind}"):
            return
    pytest.fail(f"{kind} does not come about")


@pytest.mark.parametrize("name", list(SHOWS_IN))
def test_a_mistake_shows_in_the_crossing_that_is_for_it(name: str) -> None:
    mutant = MUTANTS[name]

    def is_found(seed: int) -> bool:
        violations = played(SHOWS_IN[name], seed, mutant).violations
        return any(each.invariant.split()[0] in mutant.found_as for each in violations)

    soonest = SOONEST.get(name, 0)
    assert any(map(is_found, (soonest, *(seed for seed in SEEDS if seed != soonest))))


def test_each_of_these_mistakes_has_its_crossing() -> None:
    assert {mutant.name for mutant in (*CHECK_MUTANTS, *CUT_MUTANTS)} < set(SHOWS_IN)
