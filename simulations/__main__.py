"""python -m simulations run | replay | shrink | defects | list"""

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final

import click

from simulations.batch import Job, Totals, run_batch, run_jobs
from simulations.defects import DEFECTS, Defect
from simulations.runs import Outcome, run_seed
from simulations.scenario import Scenario
from simulations.scenarios import SCENARIOS
from simulations.shrinking import shrink_seed

DEFECT_SEEDS: Final = 200
# Seconds of CPU after which a seed counts as hung (in a world nothing waits for real time), however
# busy the machine is; the slowest take some ten.
SEED_LIMIT_S: Final = 120
# So many seeds may leave a little behind them.
ALL_GARBAGE_EVERY: Final = 20
_scenarios = click.Choice(list(SCENARIOS))


@click.group()
def main() -> None:
    """Whole nodes under simulated time, network and disk; every run follows from its seed."""


@main.command("list")
def list_scenarios() -> None:
    """Name the scenarios and the planted defects."""
    for scenario in SCENARIOS.values():
        click.echo(f"{scenario.name:<20} {scenario.about}")
    click.echo("\nplanted defects:")
    for defect in DEFECTS.values():
        click.echo(f"{defect.name:<32} {defect.about}")


@main.command()
@click.option("--scenario", type=_scenarios, default="everything", show_default=True)
@click.option("--start", default=0, show_default=True, help="The first seed.")
@click.option("--count", default=100, show_default=True, help="How many seeds.")
@click.option("--seconds", type=float, help="Begin no seed later than so many real seconds.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Totals as a file.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--twice", is_flag=True, help="Run every seed twice, not a sample of them.")
def run(
    scenario: str,
    start: int,
    count: int,
    seconds: float | None,
    json_path: Path | None,
    jobs: int,
    twice: bool,
) -> None:
    """Run seeds; exit with 1 on a violation, a trace that differs, or a missed gate.

    With a time limit a missed gate is only told: how many seeds there are is then the machine's.
    """
    chosen = SCENARIOS[scenario]
    show = _Progress(chosen)
    totals = run_batch(
        chosen, start, count, jobs=jobs, twice=twice, seconds=seconds, heard=show.heard
    )
    _print_totals(chosen, totals)
    if json_path is not None:
        json_path.write_text(json.dumps(totals.as_json(chosen), indent=1) + "\n")
    is_missed = seconds is None and bool(totals.missed_gates(chosen))
    sys.exit(1 if totals.failures or is_missed else 0)


class _Progress:
    """A line for each seed that fails, a dot on a terminal for each that does not."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._dots = sys.stdout.isatty()

    def heard(self, outcome: Outcome) -> None:
        if outcome.violations:
            name, text = outcome.violations[0]
            click.echo(f"seed {outcome.seed}: {name}: {text}")
            click.echo(f"    python -m simulations replay {self._scenario.name} {outcome.seed}")
        elif self._dots:
            click.echo(".", nl=False)


def _print_totals(scenario: Scenario, totals: Totals) -> None:
    for outcome in totals.failures:
        if totals.differs(outcome.seed):
            click.echo(f"seed {outcome.seed}: its trace differs in another process")
            click.echo(f"    python -m simulations replay {scenario.name} {outcome.seed} --twice")
    for missed in totals.missed_gates(scenario):
        click.echo(f"missed gate: {missed}")
    seeds, faults = len(totals.outcomes), 0
    for name, number in sorted(totals.counts.items()):
        faults += number if name.startswith("fault: ") else 0
        click.echo(f"  {name:<40} {number:>10}")
    for name, number in sorted(totals.comparisons.items()):
        click.echo(f"  checked {name:<32} {number:>10}")
    commits = totals.counts.get("acknowledged records", 0) + totals.counts.get("commits", 0)
    cpu, wall = max(totals.cpu_s, 1e-9), max(totals.wall_s, 1e-9)
    click.echo(
        f"{scenario.name}: {seeds} seeds, {len(totals.failures)} failed, {len(totals.again)} run "
        f"twice; {wall:.1f} s, {cpu:.1f} s of CPU: {seeds / wall:.1f} seeds per second, "
        f"{seeds / cpu:.1f} per CPU second, {faults / cpu:.0f} faults and "
        f"{commits / cpu:.0f} commits per CPU second"
    )


@main.command(hidden=True)
@click.option("--scenario", type=_scenarios, required=True)
@click.option("--defect", type=click.Choice(list(DEFECTS)))
@click.option("--seconds", type=float)
def work(scenario: str, defect: str | None, seconds: float | None) -> None:
    """Play the seeds named on standard input; print an outcome a line."""
    seeds = [int(word) for word in sys.stdin.read().split()]
    began = time.monotonic()
    gc.disable()
    signal.signal(signal.SIGPROF, _hung)
    for number, seed in enumerate(seeds):
        if seconds is not None and time.monotonic() - began > seconds:
            break
        signal.setitimer(signal.ITIMER_PROF, SEED_LIMIT_S)
        outcome = run_seed(scenario, seed, defect=defect)[0]
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(outcome.as_json()), flush=True)
        # Only what this world has made; and now and then what is left of others.
        gc.collect(2 if number % ALL_GARBAGE_EVERY == 0 else 0)


def _hung(signum: int, frame: FrameType | None) -> None:
    raise RuntimeError(f"a seed has not ended after {SEED_LIMIT_S} s of CPU")


@main.command()
@click.argument("scenario", type=_scenarios)
@click.argument("seed", type=int)
@click.option("--defect", type=click.Choice(list(DEFECTS)), help="With this defect planted.")
@click.option("--last", type=int, help="Only so many events before the end.")
@click.option("--who", help="Only events of this machine, client or part.")
@click.option("--twice", is_flag=True, help="Show where two runs differ instead.")
@click.option("--without", default="", help="Numbers of faults to leave out, as `shrink` says.")
def replay(
    scenario: str,
    seed: int,
    defect: str | None,
    last: int | None,
    who: str | None,
    twice: bool,
    without: str,
) -> None:
    """Tell the story of one seed; exit with 1 when something was violated."""
    if twice:
        _show_difference(scenario, seed, defect)
        return
    left_out = {int(number) for number in without.split(",") if number}
    outcome, world = run_seed(scenario, seed, defect=defect, leave_out=left_out)
    events = [event for event in world.trace.events if who in (None, event.who)]
    for event in events[-last:] if last else events:
        click.echo(event)
    click.echo(f"digest {outcome.digest}, {len(world.trace.events)} events, {world.now:.3f} s")
    for name, text in outcome.violations:
        click.echo(f"VIOLATION {name}: {text}")
    sys.exit(1 if outcome.violations else 0)


def _show_difference(scenario: str, seed: int, defect: str | None) -> None:
    import subprocess

    command = [sys.executable, "-m", "simulations", "replay", scenario, str(seed)]
    command += ["--defect", defect] if defect else []
    stories = [
        subprocess.run(  # noqa: S603 - this very module
            command,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        ).stdout.splitlines()
        for hash_seed in ("1", "2")
    ]
    for number, (one, other) in enumerate(zip(*stories, strict=False)):
        if one != other:
            click.echo("\n".join(stories[0][max(number - 10, 0) : number]))
            click.echo(f"one:   {one}\nother: {other}")
            sys.exit(1)
    click.echo("no difference")


@main.command()
@click.argument("scenario", type=_scenarios)
@click.argument("seed", type=int)
@click.option("--defect", type=click.Choice(list(DEFECTS)), help="With this defect planted.")
@click.option("--last", default=30, show_default=True, help="So many events before the violation.")
def shrink(scenario: str, seed: int, defect: str | None, last: int) -> None:
    """Leave out faults for as long as the seed violates the same; tell what is left."""
    shrunk = shrink_seed(scenario, seed, defect=defect)
    if shrunk is None:
        click.echo("nothing is violated")
        sys.exit(0)
    for event in shrunk.story(last):
        click.echo(event)
    click.echo(f"VIOLATION {shrunk.violated}")
    click.echo(f"{len(shrunk.needed)} of {len(shrunk.faults)} faults needed, {shrunk.runs} runs:")
    for number in shrunk.needed:
        click.echo(f"  {shrunk.faults[number]}")
    planted = f" --defect {defect}" if defect else ""
    left_out = f" --without {','.join(map(str, shrunk.left_out))}" if shrunk.left_out else ""
    click.echo(f"    python -m simulations replay {scenario} {seed}{planted}{left_out}")
    sys.exit(1)


@main.command()
@click.option("--scenario", type=_scenarios, help="Only the defects meant for this scenario.")
@click.option("--count", default=DEFECT_SEEDS, show_default=True, help="Seeds for each.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True)
@click.option("--only", type=click.Choice(list(DEFECTS)), help="This defect alone.")
def defects(scenario: str | None, count: int, jobs: int, only: str | None) -> None:
    """Plant every defect in turn; exit with 1 when one is not found."""
    missed = 0
    click.echo(f"{'defect':<32} {'scenario':<18} {'found by':>12} {'first':>6}  as")
    for defect in DEFECTS.values():
        if scenario not in (None, defect.scenario) or only not in (None, defect.name):
            continue
        found = _hunt(defect, count, jobs)
        missed += not found
        click.echo(_defect_line(defect, found, count))
    sys.exit(1 if missed else 0)


def _hunt(defect: Defect, count: int, jobs: int) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}

    def heard(outcome: Outcome) -> None:
        if any(name.split()[0] in defect.found_as for name, _ in outcome.violations):
            found[outcome.seed] = outcome

    work = [
        Job(defect.scenario, list(range(number, count, jobs)), number + 1, defect.name)
        for number in range(jobs)
    ]
    run_jobs(work, heard)
    return found


def _defect_line(defect: Defect, found: dict[int, Outcome], count: int) -> str:
    head = f"{defect.name:<32} {defect.scenario:<18} {len(found):>5} of {count:>3}"
    if not found:
        return f"{head} {'-':>6}  NOT FOUND"
    names: dict[str, int] = {}
    for outcome in found.values():
        for name, _ in outcome.violations:
            names[name] = names.get(name, 0) + 1
    shown = ", ".join(name for name, _ in sorted(names.items(), key=lambda item: -item[1])[:3])
    return f"{head} {min(found):>6}  {shown}"


if __name__ == "__main__":
    main()
