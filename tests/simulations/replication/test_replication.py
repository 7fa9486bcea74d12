"""Clusters with replicas: single faults, agreement of the replicas, and a mutant."""

import pytest

from metaquorum.simulations.cluster.fault_plan import PlannedFault
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.mutants.registry import MUTANTS
from metaquorum.simulations.replication import replication_scenario
from tests.dataplane.partition import test_joins
from tests.simulations.mutant_tests import assert_fails_with, assert_found

pytestmark = pytest.mark.slow


def play_with(kind: str, seed: int = 3) -> World:
    world = World(seed)

    async def play(world: World) -> None:
        settings = replication_scenario.draw_settings(world.stream("settings"))
        settings.is_combined, settings.workers, settings.disk_delay_s = False, 3, 0.0005
        settings.records, settings.changes, settings.think_s = 60, 8, 0.05
        settings.session_timeout_ms = 2000
        settings.faults = (PlannedFault(0, kind, 0.5, 0.5),)
        await replication_scenario.play_settings(world, settings)

    world.run(play)
    return world


@pytest.mark.parametrize("kind", ["power everywhere", "lost disk", "unregister"])
def test_replicas_agree_after_each_trouble_alone(kind: str) -> None:
    world = play_with(kind)
    assert not world.violations
    assert world.counts["acknowledged records"] > 0
    assert world.counts[f"fault: {kind}"] > 0
    assert {c.name for c in world.checkers if c.invariant in ("R1", "R2", "R5") and c.comparisons}


def test_a_mistake_in_replication_is_found_and_named() -> None:
    # Each added kind of fault changes the draws of a seed, and some worlds have no acks=all.
    assert_found("ack-before-followers", 2)


def test_the_test_of_joins_fails_without_their_rule() -> None:
    assert_fails_with(
        MUTANTS["joins-without-fetch"],
        test_joins.test_a_follower_that_is_cut_off_from_its_leader_leaves_the_isr_once,
    )
