"""Each committed seed has a mutant with its fault, which worlds of today find, or says why not."""

import re
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from random import Random
from typing import Final, TypeAlias

import pytest

from metaquorum.simulations.checkers.all import CHECKERS
from metaquorum.simulations.checkers.log_dir_moves import MovesEnd
from metaquorum.simulations.cluster.fault_plan import draw_faults
from metaquorum.simulations.harness.environment import Checker, Settings, draw_settings
from metaquorum.simulations.kernel.mutation import mutated
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.mutants.registry import MUTANTS
from metaquorum.simulations.replication import replication_scenario
from metaquorum.simulations.replication.replicated_cluster import ReplicationSettings
from metaquorum.simulations.scenarios.registry import SCENARIOS, play_settings
from tests.nodes import ROOT
from tests.simulations.mutant_tests import assert_found

KNOWN = tomllib.loads((ROOT / "simulations/seeds.toml").read_text())["seed"]
Play: TypeAlias = Callable[[World], Awaitable[None]]


@cache
def all_tests() -> frozenset[str]:
    paths = (ROOT / "tests").rglob("test_*.py")
    return frozenset(
        name for path in paths for name in re.findall(r"def (test_\w+)", path.read_text())
    )


# Mutants that were planted for the fault of a committed seed, with the cheapest seed of their
# scenario that finds each. Tests of the scenarios have the other mutants.
SOONEST: Final[Mapping[str, int]] = {
    "small-files-not-synced": 4,
    "empty-log-waits": 37,
    "wrong-index-emptied": 1069936871,
    "uncommitted-not-counted": 1,
}


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known['scenario']}-{known['seed']}")
def test_a_seed_names_its_mutant_or_says_that_the_simulator_was_fixed(
    known: dict[str, object],
) -> None:
    assert known["scenario"] in SCENARIOS
    assert known["found"]
    fields = set(known) - {"scenario", "seed", "found"}
    if "fixed" in fields:
        assert fields == {"fixed"}
        assert known["fixed"] == "simulator"
    elif known["mutant"]:
        assert fields == {"mutant"}
        assert known["mutant"] in MUTANTS
    else:
        assert fields == {"mutant", "why"}
        assert known["why"]
        for name in re.findall(r"test_[a-z_]{20,}", str(known["why"])):
            assert name in all_tests()


def test_every_mutant_here_is_that_of_a_seed() -> None:
    assert {*SOONEST, *NARROW} <= {known.get("mutant") for known in KNOWN}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOONEST)
def test_the_fault_of_a_seed_is_found(name: str) -> None:
    assert_found(name, SOONEST[name])


# Worlds that have little but the events that a mutant needs: among all faults they are rare.


def of_one_node(
    shape: Callable[[Settings], object], checkers: tuple[type[Checker], ...] = CHECKERS
) -> Play:
    async def play(world: World) -> None:
        settings = draw_settings(world.stream("settings"))
        shape(settings)
        await play_settings(world, settings, checkers)

    return play


def power_at_new_segments(settings: Settings) -> None:
    """Write a recovery point at the end of each segment, and cut the power after the next roll."""
    settings.topics, settings.max_partitions, settings.producers = 1, 1, 2
    settings.flush, settings.retention, settings.changes, settings.big_value = 1.0, 0.0, 0.0, 0.0
    settings.segment_bytes, settings.index_interval_bytes = 1000, 1
    settings.records, settings.max_batch_records = 160, 2
    settings.max_value_bytes, settings.think_s = 200, 0.03
    settings.faults, settings.fault_gap_s = ["power at change"] * 5, 0.3
    settings.node_configs = {"log.flush.offset.checkpoint.interval.ms": "10"}


def clock_jumps_in_a_pass(settings: Settings) -> None:
    """Let passes of retention last long on a slow disk, and set the clock meanwhile."""
    settings.topics, settings.max_partitions, settings.producers = 3, 3, 3
    settings.flush, settings.retention, settings.changes = 0.0, 1.0, 0.0
    settings.segment_bytes, settings.records, settings.think_s = 1000, 160, 0.01
    settings.faults, settings.fault_gap_s = ["slow disk", "clock jump"] * 4, 0.1


def kills_while_logs_move(settings: Settings) -> None:
    settings.several_log_dirs, settings.disk_movers, settings.big_value = True, 1, 0.0
    settings.topics, settings.records = 2, 160
    settings.compacted, settings.changes, settings.retention = 1.0, 0.0, 0.0
    settings.faults, settings.fault_gap_s = ["kill"] * 6, 0.1
    settings.node_configs = {
        "log.segment.delete.delay.ms": "500",
        "log.cleaner.backoff.ms": "20",
    }


def of_replicas(kinds: tuple[str, ...], most: int, changes: int) -> Play:
    """Return worlds with at most `most` faults, all of these kinds, and `changes` of topics."""

    def draw(stream: Random) -> ReplicationSettings:
        settings = replication_scenario.draw_settings(stream)
        settings.is_combined, settings.workers = False, 3
        settings.records, settings.think_s = 150, 0.05
        settings.administrators, settings.changes = 2, changes
        settings.faults = draw_faults(stream, kinds, over_s=settings.fault_s, most=most)
        return settings

    async def play(world: World) -> None:
        await replication_scenario.play_settings(world, draw(world.stream("settings")))

    return play


# World of each mutant, and the cheapest seed that finds it.
NARROW: Final[Mapping[str, tuple[Play, int]]] = {
    "unsynced-index-believed": (of_one_node(power_at_new_segments), 33),
    "clock-read-once": (of_one_node(clock_jumps_in_a_pass), 25),
    "cancelled-move-swapped": (of_one_node(kills_while_logs_move, (*CHECKERS, MovesEnd)), 6),
    "unfinished-folder-kept": (of_replicas(("full disk",), 6, 20), 4),
}
SEEDS: Final = range(60)


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
def test_the_fault_of_a_seed_is_found_in_a_narrow_world(name: str) -> None:
    mutant, (play, soonest) = MUTANTS[name], NARROW[name]
    clean = World(soonest)
    clean.run(play)
    assert not clean.violations
    for seed in (soonest, *(seed for seed in SEEDS if seed != soonest)):
        world = World(seed, ends_with=mutant.found_as)
        with mutated(mutant):
            world.run(play)
        if {each.invariant.split()[0] for each in world.violations} & set(mutant.found_as):
            return
    pytest.fail(f"{name} is not found")
