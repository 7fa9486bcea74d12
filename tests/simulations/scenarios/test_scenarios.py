"""The shipped node with the faults of each scenario, a few seeds each; CI plays hundreds."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simulations
from simulations.cluster.faults import CLUSTER_FAULTS
from simulations.faults.device_faults import DEVICE_FAULTS
from simulations.faults.node_faults import FAULTS
from simulations.groups.group_faults import GROUP_KINDS
from simulations.mutants.registry import MUTANTS
from simulations.replication.crossing_faults import INTERLEAVINGS, LATER_CROSSINGS
from simulations.replication.replica_faults import DAMAGE_KINDS, REPLICA_KINDS
from simulations.runner.batch import Totals
from simulations.runner.ci import FRESH_AT_LEAST, committed_seeds, play, ranges
from simulations.runner.runs import Outcome, run_seed
from simulations.scenarios.gates import CI, UNGATED, CiShare, is_gated
from simulations.scenarios.registry import SCENARIOS

KNOWN = tomllib.loads((Path(simulations.__file__).parent / "seeds.toml").read_text())["seed"]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known['scenario']}-{known['seed']}")
def test_a_seed_that_found_something_stays_clean(known: Mapping[str, Any]) -> None:
    outcome, _ = run_seed(known["scenario"], known["seed"])
    assert not outcome.violations


def digest_elsewhere(scenario: str, seed: int) -> str:
    """Return the digest of a seed in another process, whose sets have another order."""
    here = os.environ.get("PYTHONHASHSEED")
    code = (
        "import sys; from simulations.runner.runs import run_seed\n"
        "print(run_seed(sys.argv[1], int(sys.argv[2]))[0].digest)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, scenario, str(seed)],
        env={
            "PYTHONHASHSEED": "2" if here == "1" else "1",
            "PYTHONPATH": str(Path(__file__).parents[3]),
        },
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_a_few_seeds_of_every_scenario_are_clean_and_one_repeats_in_another_process(
    scenario: str,
) -> None:
    worked = 0
    digests: list[str] = []
    for seed in range(2):  # CI plays more
        outcome, _ = run_seed(scenario, seed)
        assert not outcome.violations, (scenario, seed)
        worked += outcome.counts.get("acknowledged records", 0) + outcome.counts.get("commits", 0)
        digests.append(outcome.digest)
    assert worked > 0
    assert digest_elsewhere(scenario, 0) == digests[0]


def run_command(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "simulations", *words],
        capture_output=True,
        text=True,
        check=False,
    )


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


def test_replay_tells_the_story_and_list_names_the_scenarios() -> None:
    result = run_command("replay", "single-node-power", "1")
    assert result.returncode == 0
    assert "loses power" in result.stdout
    listed = run_command("list").stdout
    assert all(name in listed for name in (*SCENARIOS, *MUTANTS))


def test_a_defect_is_found_and_named() -> None:
    mutant = MUTANTS["metadata-ack-before-fsync"]
    found = [run_seed(mutant.scenario, seed, mutant=mutant.name)[0] for seed in range(5)]
    names = {name.split()[0] for outcome in found for name, _ in outcome.violations}
    assert names & set(mutant.found_as)


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


def test_ci_plays_the_committed_seeds_the_first_ones_and_fresh_ones(tmp_path: Path) -> None:
    path = tmp_path / "totals.json"
    done = run_command(
        "ci", "--only", "restart", "--seconds", "1", "--start", "5000000", "--json", str(path)
    )
    assert done.returncode == 0, done.stdout
    totals = json.loads(path.read_text())[0]
    known = [seed["seed"] for seed in KNOWN if seed["scenario"] == "restart"]
    first = CI["restart"].first  # more of them while a gate is not met
    assert totals["seeds"] >= first + FRESH_AT_LEAST
    assert totals["missed_gates"] == []
    least, most = re.search(r"seeds 0-(\d+), ", done.stdout), CI["restart"].seeds - 1
    assert least is not None
    assert first - 1 <= int(least[1]) <= most
    assert all(str(seed) in done.stdout for seed in known if seed >= first)
    assert "5000000-" in done.stdout
    assert "clean: 1 scenarios" in done.stdout


def test_ci_plays_more_of_the_first_seeds_only_while_a_gate_is_not_met() -> None:
    restart, known = SCENARIOS["restart"], committed_seeds("restart")
    fresh = range(5_000_000, 5_000_000 + FRESH_AT_LEAST)
    for gates, first in ((), 2), (("fault: restart",), 2), (("never happens",), 5):
        scenario = replace(restart, gates=gates, checkers=())
        totals = play(scenario, CiShare(1, 5), 0.0, fresh.start, 1)
        assert set(totals.outcomes) == {*known, *range(first), *fresh}
        open_gates = [] if first == 2 else ["never happened: never happens"]
        assert totals.open_gates(scenario) == open_gates


def test_seeds_are_told_as_ranges() -> None:
    assert ranges([7, 1, 2, 3, 9, 10]) == "1-3, 7, 9-10"


def test_the_gates_that_are_printed_are_those_of_the_table() -> None:
    shown = run_command("gates").stdout
    assert all(f"{name:<20}" in shown for name in SCENARIOS)
    assert "R6 AcknowledgedIsKept" in shown


def test_the_reference_has_all_scenarios_faults_checkers_and_mutants() -> None:
    page = (Path(simulations.__file__).parents[1] / "docs/reference/simulation.md").read_text()
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
