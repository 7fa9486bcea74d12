"""The shipped node with the faults of each scenario, a few seeds each; CI plays hundreds."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from metaquorum.simulations.cluster.faults import CLUSTER_FAULTS
from metaquorum.simulations.faults.device_faults import DEVICE_FAULTS
from metaquorum.simulations.faults.node_faults import FAULTS
from metaquorum.simulations.groups.group_faults import GROUP_KINDS
from metaquorum.simulations.mutants.registry import MUTANTS
from metaquorum.simulations.replication.crossing_faults import INTERLEAVINGS, LATER_CROSSINGS
from metaquorum.simulations.replication.replica_faults import DAMAGE_KINDS, REPLICA_KINDS
from metaquorum.simulations.runner.batch import Player, Totals
from metaquorum.simulations.runner.ci import committed_seeds, ranges
from metaquorum.simulations.runner.runs import Outcome, run_seed
from metaquorum.simulations.runner.schedule import FRESH_AT_LEAST
from metaquorum.simulations.scenarios.gates import CI, UNGATED, is_gated
from metaquorum.simulations.scenarios.registry import SCENARIOS
from tests.nodes import ROOT
from tests.simulations.mutant_tests import assert_found

KNOWN = tomllib.loads((ROOT / "simulations/seeds.toml").read_text())["seed"]


# Seed of each scenario that is played in another process as well: the cheapest committed one, or
# a cheap one. CI plays many more.
REPEATED = {
    "single-node-kill": 22,
    "single-node-power": 910272,
    "syncs": 1,
    "disk-full": 1,
    "restart": 1032,
    "hostile": 47,
    "compaction": 0,
    "administration": 229686800,
    "failing-disk": 736764805,
    "log-dirs": 70000026,
    "moved-dirs": 3,
    "long-polls": 1,
    "everything": 25,
    "quorum": 178995354,
    "rebuilt-voter": 0,
    "cluster": 1,
    "replication": 3001043,
    "damaged-replicas": 80000021,
    "held-up-writers": 1,
    "cleaned-replicas": 37,
    "range-loads": 40,
    "crossings": 1,
    "throttled-replicas": 1194409,
    "throttled-replication": 1,
    "groups": 38,
    "upgrades": 2037,
    "throttled-members": 1,
    "transactions": 770038,
    "forged-producers": 47,
    "moving-partitions": 1,
    "planned-moves": 2611070,
    "upgraded-moves": 0,
    "moving-dirs": 2832120,
    "quotas": 1070295183,
}
FOUND = [(str(known["scenario"]), int(known["seed"])) for known in KNOWN]
PLAYED = [*FOUND, *(played for played in REPEATED.items() if played not in FOUND)]
# Events that must have happened in some of these worlds.
HAPPENS: Mapping[tuple[str, int], Sequence[str]] = {
    ("throttled-replication", 1): ("throttles set",),
    ("planned-moves", 2611070): ("plans started",),
    ("upgraded-moves", 0): ("early moves: UNSUPPORTED_VERSION", "levels raised", "moves ended"),
    ("moving-dirs", 2832120): ("logs moved between directories",),
    ("moving-dirs", 2832124): ("logs moved between directories", "worlds with transactions"),
    ("moving-partitions", 1): (
        "moves ended",
        "logs deleted by moves",
        "workers drained",
        "partitions created during a drain",
        "changes of partitions that a draining worker leads",
    ),
}


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Player]:
    """Yield another process, whose sets have another order; it plays seeds of all scenarios."""
    player = Player(2 if os.environ.get("PYTHONHASHSEED") == "1" else 1)
    yield player
    player.close()


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "seed"), PLAYED, ids=lambda value: str(value))
def test_a_seed_is_clean_and_one_of_each_scenario_repeats_in_another_process(
    elsewhere: Player, scenario: str, seed: int
) -> None:
    outcome, _ = run_seed(scenario, seed)
    assert not outcome.violations
    counts = outcome.counts
    assert [name for name in HAPPENS.get((scenario, seed), ()) if not counts.get(name)] == []
    if REPEATED[scenario] == seed:
        assert counts.get("acknowledged records", 0) + counts.get("commits", 0) > 0
        assert elsewhere.play(scenario, seed).digest == outcome.digest


def test_a_seed_of_each_scenario_is_repeated() -> None:
    assert set(REPEATED) == set(SCENARIOS)
    assert set(HAPPENS) <= set(PLAYED)


def run_command(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "metaquorum.simulations", *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_run_counts_and_exits_with_zero(tmp_path: Path) -> None:
    path = tmp_path / "totals.json"
    done = run_command(
        "run", "--scenario", "restart", "--count", "4", "--twice", "--json", str(path)
    )
    assert done.returncode == 0, done.stdout
    totals = json.loads(path.read_text())
    assert totals["seeds"] == totals["twice"] == 4
    assert totals["failures"] == []
    assert totals["comparisons"]["R6 AcknowledgedIsKept"] > 0


@pytest.mark.slow
def test_replay_tells_the_story_and_list_names_the_scenarios() -> None:
    result = run_command("replay", "single-node-power", "1")
    assert result.returncode == 0
    assert "loses power" in result.stdout
    listed = run_command("list").stdout
    assert all(name in listed for name in (*SCENARIOS, *MUTANTS))


@pytest.mark.slow
def test_a_defect_is_found_and_named() -> None:
    assert_found("metadata-ack-before-fsync", 0)


@pytest.mark.slow
def test_a_deletion_that_is_acknowledged_too_early_is_found() -> None:
    assert_found("deletion-not-written", 2)


@pytest.mark.slow
def test_planting_leaves_the_shipped_code_as_it_was() -> None:
    before, _ = run_seed("single-node-power", 3)
    for mutant in MUTANTS.values():
        with mutant.apply():
            pass
    after, _ = run_seed("single-node-power", 3)
    assert before.digest == after.digest


def outcome(seed: int, **more: object) -> Outcome:
    return Outcome("restart", seed, "d", **more)  # type: ignore[arg-type]


def test_a_batch_in_which_nothing_was_compared_or_happened_fails() -> None:
    totals = Totals()
    for seed in range(CI["restart"].seeds):
        assert not totals.missed_gates(SCENARIOS["restart"])  # too few seeds for gates
        totals.add(outcome(seed, counts={"fault: restart": 0}))
    missed = totals.missed_gates(SCENARIOS["restart"])
    assert "never happened: fault: restart" in missed
    assert "never compared: R6 AcknowledgedIsKept" in missed


def test_every_scenario_has_a_share_of_the_time_and_every_checker_a_gate() -> None:
    assert set(CI) == set(SCENARIOS)
    assert sum(share.percent for share in CI.values()) == 100
    played = {
        name: {checker.__name__ for checker in scenario.checkers}
        for name, scenario in SCENARIOS.items()
    }
    for name, ungated in UNGATED.items():
        assert set(ungated) <= played[name]
    for checker in set().union(*played.values()):
        assert any(checker in played[name] and is_gated(name, checker) for name in SCENARIOS)


@pytest.mark.slow
def test_ci_plays_committed_and_fresh_seeds_and_first_ones_for_gates(tmp_path: Path) -> None:
    path = tmp_path / "totals.json"
    done = run_command(
        "ci", "--only", "restart", "--seconds", "1", "--start", "5000000", "--json", str(path)
    )
    assert done.returncode == 0, done.stdout
    totals = json.loads(path.read_text())[0]
    known = committed_seeds("restart")
    assert totals["seeds"] >= len(known) + FRESH_AT_LEAST
    assert totals["twice"] > 0
    assert totals["missed_gates"] == []
    assert all(str(seed) in done.stdout for seed in known)
    fresh = re.search(r"5000000-(\d+)", done.stdout)  # a fast machine plays more
    assert fresh is not None
    assert int(fresh[1]) >= 5000000 + FRESH_AT_LEAST - 1
    assert "clean: 1 scenarios" in done.stdout


def test_seeds_are_told_as_ranges() -> None:
    assert ranges([7, 1, 2, 3, 9, 10]) == "1-3, 7, 9-10"


@pytest.mark.slow
def test_the_gates_that_are_printed_are_those_of_the_table() -> None:
    shown = run_command("gates").stdout
    assert all(f"{name:<20}" in shown for name in SCENARIOS)
    assert "R6 AcknowledgedIsKept" in shown


def test_the_reference_has_all_scenarios_faults_checkers_and_mutants() -> None:
    page = (ROOT / "docs/reference/simulation.md").read_text()
    names = {*SCENARIOS, *MUTANTS, *FAULTS, *DEVICE_FAULTS, *CLUSTER_FAULTS}
    names |= {*REPLICA_KINDS, *DAMAGE_KINDS, *INTERLEAVINGS, *LATER_CROSSINGS, *GROUP_KINDS}
    names |= {checker.__name__ for one in SCENARIOS.values() for checker in one.checkers}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_a_trace_that_differs_is_a_failure() -> None:
    totals = Totals()
    totals.add(outcome(1))
    totals.add(Outcome("restart", 1, "another"))
    assert totals.differs(1)
    assert totals.failures
