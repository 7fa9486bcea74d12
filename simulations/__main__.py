"""Command line of the simulator: python -m metaquorum.simulations run | ci | gates | replay |
shrink | ..."""

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import click

from metaquorum.runtime.own_processes import own_command, own_environment
from metaquorum.simulations.mutants.registry import MUTANTS, Mutant
from metaquorum.simulations.runner.batch import Job, run_batch, run_jobs
from metaquorum.simulations.runner.ci import ci, gates
from metaquorum.simulations.runner.report import Progress, print_totals
from metaquorum.simulations.runner.runs import Outcome, run_seed
from metaquorum.simulations.runner.shrinking import shrink_seed
from metaquorum.simulations.scenarios.registry import SCENARIOS

MUTANT_SEEDS: Final = 200
# Seconds of CPU after which a seed counts as hung: no task in a world waits for real time, so a
# busy machine does not matter. The slowest seeds take about ten.
SEED_LIMIT_S: Final = 120
# A full collection after this many seeds: a seed may leave some objects of older generations.
ALL_GARBAGE_EVERY: Final = 20
_scenarios = click.Choice(list(SCENARIOS))


@click.group()
def main() -> None:
    """Run whole nodes with simulated time, network and disk; a seed determines each run."""


main.add_command(ci)
main.add_command(gates)


@main.command("list")
def list_scenarios() -> None:
    """List the scenarios and the mutants (defects that can be planted)."""
    for scenario in SCENARIOS.values():
        click.echo(f"{scenario.name:<20} {scenario.about}")
    click.echo("\nplanted defects:")
    for mutant in MUTANTS.values():
        click.echo(f"{mutant.name:<32} {mutant.about}")


@main.command()
@click.option("--scenario", type=_scenarios, default="everything", show_default=True)
@click.option("--start", default=0, show_default=True, help="The first seed.")
@click.option("--count", default=100, show_default=True, help="Number of seeds.")
@click.option("--seconds", type=float, help="Real seconds after which no seed is started.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write totals to this file."
)
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--twice", is_flag=True, help="Run every seed twice, not every tenth.")
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

    Gates apply to runs of at least as many seeds as CI always plays (`gates` prints the number).
    """
    chosen = SCENARIOS[scenario]
    show = Progress(chosen)
    totals = run_batch(
        chosen, start, count, jobs=jobs, twice=twice, seconds=seconds, heard=show.heard
    )
    print_totals(chosen, totals)
    if json_path is not None:
        json_path.write_text(json.dumps(totals.as_json(chosen), indent=1) + "\n")
    sys.exit(1 if totals.failures or totals.missed_gates(chosen) else 0)


@main.command(hidden=True)
@click.option("--scenario", type=_scenarios, required=True)
@click.option("--defect", type=click.Choice(list(MUTANTS)))
@click.option("--seconds", type=float)
@click.option("--enough", type=int)
def work(scenario: str, defect: str | None, seconds: float | None, enough: int | None) -> None:
    """Play the seeds read from standard input; print one outcome per line, as JSON.

    With `--enough`, stop once that number of seeds has found the defect.
    """
    seeds = [int(word) for word in sys.stdin.read().split()]
    began = time.monotonic()
    for outcome in _played(((scenario, seed) for seed in seeds), defect):
        print(json.dumps(outcome.as_json()), flush=True)
        if seconds is not None and time.monotonic() - began > seconds:
            break
        if defect is not None and _is_misfit(outcome):
            break
        if defect is not None and enough is not None and _finds(outcome, MUTANTS[defect]):
            enough -= 1
            if not enough:
                break


@main.command(hidden=True)
def play() -> None:
    """Play each seed read from standard input, a line "SCENARIO SEED", and print its outcome."""
    turns = (line.split() for line in sys.stdin)
    for outcome in _played((scenario, int(seed)) for scenario, seed in turns):
        print(json.dumps(outcome.as_json()), flush=True)


def _played(turns: Iterable[tuple[str, int]], mutant: str | None = None) -> Iterator[Outcome]:
    """Play each seed of a scenario, without garbage collection meanwhile."""
    gc.disable()
    gc.freeze()  # imported modules stay
    signal.signal(signal.SIGPROF, _hung)
    for number, (scenario, seed) in enumerate(turns):
        signal.setitimer(signal.ITIMER_PROF, SEED_LIMIT_S)
        outcome = run_seed(scenario, seed, mutant=mutant)[0]
        signal.setitimer(signal.ITIMER_PROF, 0)
        yield outcome
        # Collect the objects of this world; at times also those that earlier worlds have left.
        gc.collect(2 if number % ALL_GARBAGE_EVERY == 0 else 0)


def _hung(signum: int, frame: FrameType | None) -> None:
    raise RuntimeError(f"a seed has not ended after {SEED_LIMIT_S} s of CPU")


@main.command()
@click.argument("scenario", type=_scenarios)
@click.argument("seed", type=int)
@click.option("--defect", type=click.Choice(list(MUTANTS)), help="With this defect planted.")
@click.option("--last", type=int, help="Number of events to print, the last ones.")
@click.option("--who", help="Print only events of this machine, client or part.")
@click.option(
    "--twice", is_flag=True, help="Run the seed twice and show the first difference instead."
)
@click.option(
    "--without", default="", help="Numbers of faults to leave out, as printed by `shrink`."
)
def replay(
    scenario: str,
    seed: int,
    defect: str | None,
    last: int | None,
    who: str | None,
    twice: bool,
    without: str,
) -> None:
    """Print the events of one seed; exit with 1 if an invariant was violated."""
    if twice:
        _show_difference(scenario, seed, defect)
        return
    left_out = {int(number) for number in without.split(",") if number}
    outcome, world = run_seed(scenario, seed, mutant=defect, leave_out=left_out)
    events = [event for event in world.trace.events if who in (None, event.who)]
    for event in events[-last:] if last else events:
        click.echo(event)
    click.echo(f"digest {outcome.digest}, {len(world.trace.events)} events, {world.now:.3f} s")
    for name, text in outcome.violations:
        click.echo(f"VIOLATION {name}: {text}")
    sys.exit(1 if outcome.violations else 0)


def _show_difference(scenario: str, seed: int, mutant: str | None) -> None:
    import subprocess

    command = [*own_command("metaquorum.simulations"), "replay", scenario, str(seed)]
    command += ["--defect", mutant] if mutant else []
    outputs = [
        subprocess.run(  # noqa: S603 - this very module
            command,
            env={**own_environment(), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        ).stdout.splitlines()
        for hash_seed in ("1", "2")
    ]
    for number, (one, other) in enumerate(zip(*outputs, strict=False)):
        if one != other:
            click.echo("\n".join(outputs[0][max(number - 10, 0) : number]))
            click.echo(f"one:   {one}\nother: {other}")
            sys.exit(1)
    click.echo("no difference")


@main.command()
@click.argument("scenario", type=_scenarios)
@click.argument("seed", type=int)
@click.option("--defect", type=click.Choice(list(MUTANTS)), help="With this defect planted.")
@click.option(
    "--last", default=30, show_default=True, help="Number of events to print before the violation."
)
def shrink(scenario: str, seed: int, defect: str | None, last: int) -> None:
    """Leave out faults while the seed violates the same invariant; print the faults needed."""
    shrunk = shrink_seed(scenario, seed, mutant=defect)
    if shrunk is None:
        click.echo("no invariant is violated")
        sys.exit(0)
    for event in shrunk.events(last):
        click.echo(event)
    click.echo(f"VIOLATION {shrunk.violated}")
    click.echo(f"{len(shrunk.needed)} of {len(shrunk.faults)} faults needed, {shrunk.runs} runs:")
    for number in shrunk.needed:
        click.echo(f"  {shrunk.faults[number]}")
    mutated = f" --defect {defect}" if defect else ""
    left_out = f" --without {','.join(map(str, shrunk.left_out))}" if shrunk.left_out else ""
    click.echo(f"    python -m metaquorum.simulations replay {scenario} {seed}{mutated}{left_out}")
    sys.exit(1)


@main.command()
@click.option("--scenario", type=_scenarios, help="Only the defects of this scenario.")
@click.option("--count", default=MUTANT_SEEDS, show_default=True, help="Seeds for each.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True)
@click.option("--only", type=click.Choice(list(MUTANTS)), help="This defect alone.")
@click.option(
    "--enough",
    type=click.IntRange(min=1),
    help="Stop a job once this number of its seeds has found the defect.",
)
def defects(
    scenario: str | None, count: int, jobs: int, only: str | None, enough: int | None
) -> None:
    """Run seeds with each defect in turn; exit with 1 if a defect is not found."""
    missed = 0
    click.echo(f"{'defect':<32} {'scenario':<18} {'found by':>12} {'first':>6}  as")
    for mutant in MUTANTS.values():
        if scenario not in (None, mutant.scenario) or only not in (None, mutant.name):
            continue
        try:
            found, played = _hunt(mutant, count, jobs, enough)
        except click.ClickException as error:
            missed += 1
            error.show()
            continue
        missed += not found
        click.echo(_mutant_line(mutant, found, played))
    sys.exit(1 if missed else 0)


# Part of the text of an error: a planted function no longer fits the code that calls it.
_MISFIT: Final = ".wrong.<locals>."


def _finds(outcome: Outcome, mutant: Mutant) -> bool:
    return any(name.split()[0] in mutant.found_as for name, _ in outcome.violations)


def _is_misfit(outcome: Outcome) -> bool:
    return any("TypeError" in text and _MISFIT in text for _, text in outcome.violations)


def _hunt(
    mutant: Mutant, count: int, jobs: int, enough: int | None
) -> tuple[dict[int, Outcome], int]:
    """Return the outcomes of the seeds that find the defect, and the number of seeds played."""
    found: dict[int, Outcome] = {}
    misfits: list[Outcome] = []
    played = 0

    def heard(outcome: Outcome) -> None:
        nonlocal played
        played += 1
        if _is_misfit(outcome):
            misfits.append(outcome)
        if _finds(outcome, mutant):
            found[outcome.seed] = outcome

    work = [
        Job(
            mutant.scenario,
            list(range(number, count, jobs)),
            number + 1,
            mutant.name,
            enough=enough,
        )
        for number in range(jobs)
    ]
    run_jobs(work, heard)
    if misfits:
        raise click.ClickException(
            f"{mutant.name} does not fit the code that it is planted into: {misfits[0].violations}"
        )
    return found, played


def _mutant_line(mutant: Mutant, found: dict[int, Outcome], played: int) -> str:
    head = f"{mutant.name:<32} {mutant.scenario:<18} {len(found):>5} of {played:>3}"
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
