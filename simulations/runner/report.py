"""Output of a run of many seeds."""

import sys
from collections.abc import Sequence

import click

from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.runner.batch import Totals
from metaquorum.simulations.runner.runs import Outcome
from metaquorum.simulations.scenarios.gates import CI


class Progress:
    """Prints a line for each seed that fails and, on a terminal, a dot for each other seed."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._dots = sys.stdout.isatty()

    def heard(self, outcome: Outcome) -> None:
        if outcome.violations:
            name, text = outcome.violations[0]
            click.echo(f"seed {outcome.seed}: {name}: {text}")
            click.echo(
                f"    python -m metaquorum.simulations replay {self._scenario.name} {outcome.seed}"
            )
        elif self._dots:
            click.echo(".", nl=False)


def print_totals(scenario: Scenario, totals: Totals) -> None:
    """Print the findings, all counters and comparisons, and a line of rates."""
    print_findings(scenario, totals, totals.missed_gates(scenario))
    if totals.open_gates(scenario) and not totals.judges_gates(scenario):
        click.echo(f"gates apply to runs of at least {CI[scenario.name].seeds} seeds")
    for name, number in sorted(totals.counts.items()):
        click.echo(f"  {name:<40} {number:>10}")
    for name, number in sorted(totals.comparisons.items()):
        click.echo(f"  checked {name:<32} {number:>10}")
    click.echo(summary(scenario, totals))


def print_findings(scenario: Scenario, totals: Totals, missed: Sequence[str]) -> None:
    """Print traces that differ and missed gates; violations were printed earlier."""
    for outcome in totals.failures:
        if totals.differs(outcome.seed):
            click.echo(f"seed {outcome.seed}: its trace differs in another process")
            replay = f"replay {scenario.name} {outcome.seed} --twice"
            click.echo(f"    python -m metaquorum.simulations {replay}")
    for gate in missed:
        click.echo(f"missed gate: {gate}")


def summary(scenario: Scenario, totals: Totals) -> str:
    seeds = len(totals.outcomes)
    faults = sum(n for name, n in totals.counts.items() if name.startswith("fault: "))
    commits = totals.counts.get("acknowledged records", 0) + totals.counts.get("commits", 0)
    cpu, wall = max(totals.cpu_s, 1e-9), max(totals.wall_s, 1e-9)
    return (
        f"{scenario.name}: {seeds} seeds, {len(totals.failures)} failed, {len(totals.again)} run "
        f"twice; {wall:.1f} s, {cpu:.1f} s of CPU: {seeds / wall:.1f} seeds per second, "
        f"{seeds / cpu:.1f} per CPU second, {faults / cpu:.0f} faults and "
        f"{commits / cpu:.0f} commits per CPU second"
    )
