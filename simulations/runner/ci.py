"""Commands `ci` and `gates`: play every scenario for its share of the time, and check its gates."""

import json
import os
import random
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from simulations.harness.scenario import Scenario
from simulations.runner.batch import Totals, run_seeds
from simulations.runner.report import Progress, print_findings, summary
from simulations.scenarios.gates import CI, CiShare, is_gated
from simulations.scenarios.registry import SCENARIOS

SEEDS_FILE: Final = Path(__file__).parents[1] / "seeds.toml"
# Upper bound of the seeds per second: a seed takes at least a tenth of a second.
MAX_FRESH_SEEDS_PER_S: Final = 50
# Fresh seeds of each scenario that are played even if the time is over.
FRESH_AT_LEAST: Final = 4
DEFAULT_SECONDS: Final = 600.0


def committed_seeds(scenario: str) -> list[int]:
    """Return the scenario's seeds of `seeds.toml`, each of which once found a bug."""
    known: list[dict[str, Any]] = tomllib.loads(SEEDS_FILE.read_text())["seed"]
    return [int(seed["seed"]) for seed in known if seed["scenario"] == scenario]


@click.command()
@click.option(
    "--seconds", default=DEFAULT_SECONDS, show_default=True, help="Real seconds for all scenarios."
)
@click.option("--start", type=int, help="The first fresh seed; random if not given.")
@click.option(
    "--only", type=click.Choice(list(SCENARIOS)), help="Play only this scenario, for its share."
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write totals to this file."
)
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes.")
def ci(
    seconds: float, start: int | None, only: str | None, json_path: Path | None, jobs: int
) -> None:
    """Play every scenario for its share of the time; exit with 1 on a finding or a missed gate.

    For each scenario, play the committed seeds and the first seeds, even if the time is over, then
    fresh seeds until its share of the time is over; then more of the first seeds while a gate is
    not met, at most as many as `gates` prints.
    """
    first_fresh = random.randrange(1 << 30) if start is None else start
    click.echo(f"fresh seeds from {first_fresh} (--start {first_fresh} repeats them)")
    _print_shares()
    found: dict[str, Totals] = {}
    for name, share in CI.items():
        if only in (None, name):
            share_s = seconds * share.percent / 100
            found[name] = play(SCENARIOS[name], share, share_s, first_fresh, jobs)
    if json_path is not None:
        totals = [totals.as_json(SCENARIOS[name]) for name, totals in found.items()]
        json_path.write_text(json.dumps(totals, indent=1) + "\n")
    failed = [name for name, t in found.items() if t.failures or t.open_gates(SCENARIOS[name])]
    click.echo(f"failed: {', '.join(failed)}" if failed else f"clean: {len(found)} scenarios")
    sys.exit(1 if failed else 0)


def play(scenario: Scenario, share: CiShare, share_s: float, first_fresh: int, jobs: int) -> Totals:
    """Play a scenario for `share_s` seconds and until its gates are met (see `ci`). Blocking.

    A gate that is open in the result was not met by any of the seeds that `share` permits.
    """
    known = committed_seeds(scenario.name)
    begin = [seed for seed in range(share.first) if seed not in known]
    rest = [seed for seed in range(share.first, share.seeds) if seed not in known]
    most = first_fresh + FRESH_AT_LEAST + int(share_s * MAX_FRESH_SEEDS_PER_S)
    fresh = [seed for seed in range(first_fresh, most) if seed >= share.seeds and seed not in known]
    heard = Progress(scenario).heard
    totals = run_seeds(
        scenario,
        [*known, *begin, *fresh],
        jobs=jobs,
        seconds=share_s,
        always=len(known) + len(begin) + FRESH_AT_LEAST,
        heard=heard,
    )
    while rest and totals.open_gates(scenario):
        part, rest = rest[: share.first], rest[share.first :]
        run_seeds(scenario, part, jobs=jobs, heard=heard, totals=totals)
    print_findings(scenario, totals, totals.open_gates(scenario))
    click.echo(summary(scenario, totals))
    click.echo(f"    seeds {ranges(totals.outcomes)}")
    return totals


def ranges(seeds: Iterable[int]) -> str:
    """Return seeds as text, consecutive ones as first-last."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and parts[-1][-1] == seed - 1:
            parts[-1] = [parts[-1][0], seed]
        else:
            parts.append([seed])
    return ", ".join("-".join(map(str, part)) for part in parts)


@click.command()
def gates() -> None:
    """Print which scenario gates which checker and which events, and CI's shares of the time."""
    _print_shares()
    click.echo()
    names = list(CI)
    checkers: dict[str, str] = {}
    for name in names:
        for checker in SCENARIOS[name].checkers:
            checkers.setdefault(checker.__name__, checker.invariant)
    for number, name in enumerate(names, 1):
        click.echo(f"{number:>3} {name}")
    click.echo("\nx: gated; -: played without being gated\n")
    head = "".join(f"{number:>3}" for number in range(1, len(names) + 1))
    click.echo(f"{'checker':<34}{head}")
    for checker_name, invariant in sorted(checkers.items(), key=lambda item: (item[1], item[0])):
        cells = "".join(f"{_cell(name, checker_name):>3}" for name in names)
        click.echo(f"{f'{invariant} {checker_name}':<34}{cells}".rstrip())
    click.echo("\nevents")
    for name in names:
        click.echo(f"{name}: {', '.join(SCENARIOS[name].gates)}")


def _cell(scenario: str, checker: str) -> str:
    if all(known.__name__ != checker for known in SCENARIOS[scenario].checkers):
        return ""
    return "x" if is_gated(scenario, checker) else "-"


def _print_shares() -> None:
    click.echo(f"{'scenario':<20} {'of the time':>11}  {'first seeds':>15}")
    for name, share in CI.items():
        click.echo(f"{name:<20} {share.percent:>9} %  {f'{share.first}-{share.seeds}':>15}")
