"""Commands `ci` and `gates`: play every scenario for its share of the time, and check its gates."""

import json
import os
import random
import sys
import threading
import time
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from metaquorum.simulations.runner.batch import Player
from metaquorum.simulations.runner.report import Progress, print_findings, summary
from metaquorum.simulations.runner.schedule import PHASES, Schedule
from metaquorum.simulations.scenarios.gates import CI, is_gated
from metaquorum.simulations.scenarios.registry import SCENARIOS

SEEDS_FILE: Final = Path(__file__).parents[1] / "seeds.toml"
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
@click.option("--only", type=click.Choice(list(SCENARIOS)), help="Play only this scenario.")
@click.option(
    "--committed/--no-committed",
    default=True,
    show_default=True,
    help="Play the seeds of seeds.toml, which `make test` plays as well.",
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write totals to this file."
)
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes.")
def ci(
    seconds: float,
    start: int | None,
    only: str | None,
    committed: bool,
    json_path: Path | None,
    jobs: int,
) -> None:
    """Play every scenario for its share of the time; exit with 1 on a finding or a missed gate.

    The committed seeds and a few fresh seeds of each scenario are played even if the time is over;
    then fresh seeds until it is over; then the first seeds of each scenario of which a gate is not
    met, until it is met, at most as many as `gates` prints.
    """
    first_fresh = random.randrange(1 << 30) if start is None else start
    click.echo(f"fresh seeds from {first_fresh} (--start {first_fresh} repeats them)")
    began = time.monotonic()
    schedule = Schedule(
        {
            name: (SCENARIOS[name], share, committed_seeds(name) if committed else ())
            for name, share in CI.items()
            if only in (None, name)
        },
        first_fresh,
        players=max(jobs, 2),
        end_s=began + seconds,
    )
    play(schedule, jobs)
    found = schedule.totals
    for name, totals in found.items():
        print_findings(SCENARIOS[name], totals, totals.open_gates(SCENARIOS[name]))
        click.echo(summary(SCENARIOS[name], totals))
        click.echo(f"    seeds {ranges(totals.outcomes)}")
        if met := schedule.met_after(name):
            click.echo(f"    all gates met by {met[0]} seeds in {met[1]:.1f} s of CPU")
    seeds = sum(len(totals.outcomes) for totals in found.values())
    wall_s = time.monotonic() - began
    click.echo(f"{seeds} seeds in {wall_s:.0f} s, {schedule.used_s:.0f} s of CPU")
    if json_path is not None:
        rows = [totals.as_json(SCENARIOS[name]) for name, totals in found.items()]
        json_path.write_text(json.dumps(rows, indent=1) + "\n")
    failed = [name for name, t in found.items() if t.failures or t.open_gates(SCENARIOS[name])]
    click.echo(f"failed: {', '.join(failed)}" if failed else f"clean: {len(found)} scenarios")
    sys.exit(1 if failed else 0)


def play(schedule: Schedule, jobs: int) -> None:
    """Play the seeds of a schedule, at most `jobs` at a time. Blocking.

    There are at least two processes, each with a PYTHONHASHSEED of its own, so that a seed can be
    played again by another one. Raises RuntimeError if a process fails.
    """
    heard = {name: Progress(SCENARIOS[name]).heard for name in schedule.totals}
    phases = _Phases(schedule)
    lock = threading.Lock()
    errors: list[BaseException] = []
    players = [Player(number + 1) for number in range(schedule.players)]

    def take_turns(numbers: Sequence[int]) -> None:
        """Let these players play, one at a time: the first, or one that is to repeat a seed."""
        try:
            while not errors:
                began = time.monotonic()
                with lock:
                    number = next(filter(schedule.repeats, numbers), numbers[0])
                    turn = schedule.next(number, began)
                    phases.look(began)
                if turn is None:
                    break
                outcome = players[number].play(turn.scenario, turn.seed)
                with lock:
                    schedule.heard(outcome, (time.monotonic() - began) / jobs)
                    heard[turn.scenario](outcome)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    lanes = [[number] for number in range(jobs)] if jobs > 1 else [list(range(schedule.players))]
    threads = [threading.Thread(target=take_turns, args=(lane,), daemon=True) for lane in lanes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for player in players:
            player.close()
    if errors:
        raise errors[0]


class _Phases:
    """Prints the time and CPU at which a phase of a schedule has ended, and gates were met."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._began = time.monotonic()
        self._phase = schedule.phase
        self._open = schedule.open_scenarios

    def look(self, now: float) -> None:
        schedule = self._schedule
        at = f"{now - self._began:.0f} s, {schedule.used_s:.0f} s of CPU"
        if schedule.phase != self._phase:
            click.echo(f"{at}: end of {self._phase}")
            self._phase = schedule.phase
            self._open = schedule.open_scenarios
            click.echo(f"    gates are not met yet in {', '.join(self._open) or 'no scenario'}")
        if schedule.phase != PHASES[0] and schedule.open_scenarios != self._open:
            met = sorted(set(self._open).difference(schedule.open_scenarios))
            self._open = schedule.open_scenarios
            click.echo(f"{at}: gates are met in {', '.join(met)}; not in {len(self._open)} others")


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
    click.echo(f"{'scenario':<20} {'of the time':>11}  {'first seeds':>11}")
    for name, share in CI.items():
        click.echo(f"{name:<20} {share.percent:>9} %  {share.seeds:>11}")
