"""Prints where the time of test runs went: by kind of work, and by folder.

`python -m tests.suite.cost_table` prints it of the last run, `--since SECONDS` of all runs that
began since then (Unix time) together, `--tests 50` the most expensive tests as well.
"""

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from tests.suite import journal

ROWS: Final = 8
IN_PROCESS: Final = ("simulated", "hypothesis", "garbage", "other")
NAMES: Final = {
    "simulated": "tests: simulated worlds",
    "hypothesis": "tests: Hypothesis",
    "garbage": "tests: garbage collection",
    "other": "tests: other Python",
}


def by_kind(test: dict[str, Any]) -> dict[str, float]:
    """Return the CPU seconds of the test's own process by kind."""
    kinds = dict.fromkeys(IN_PROCESS, 0.0)
    kinds["garbage"] = test["garbage"]
    kinds["simulated"] = max(0.0, test["simulated"] - test["garbage"])
    rest = max(0.0, test["cpu"] - kinds["garbage"] - kinds["simulated"])
    kinds["hypothesis" if test["hypothesis"] else "other"] = rest
    return kinds


def with_programs(run: journal.Run) -> list[tuple[dict[str, Any], Counter[str]]]:
    """Return each test with the CPU seconds of programs by kind while it ran in its process."""
    of_worker: dict[str, list[tuple[dict[str, Any], Counter[str]]]] = defaultdict(list)
    for test in sorted(run.tests.values(), key=lambda test: test["began"]):
        of_worker[test["worker"]].append((test, Counter()))
    for worker, tests in of_worker.items():
        begins = [test["began"] for test, _ in tests]
        for at, other, kind, cpu_s in run.programs:
            if other == worker and (index := bisect.bisect_right(begins, at)):
                tests[index - 1][1][kind] += cpu_s
    return [one for tests in of_worker.values() for one in tests]


def folder_of(name: str) -> str:
    parts = name.partition("::")[0].split("/")[1:3]
    return "/".join(part for part in parts if not part.endswith(".py")) or "tests"


def table(runs: Sequence[journal.Run]) -> list[str]:
    """Return the table in ten lines: the sums, then kinds and folders side by side."""
    kinds: Counter[str] = Counter()
    folders: dict[str, Counter[str]] = defaultdict(Counter)
    wall = busy = idle = 0.0
    for run in runs:
        end = run.end or {}
        wall, busy = wall + end.get("wall", 0.0), busy + end.get("busy", 0.0)
        idle += end.get("idle", 0.0)
        for test, programs in with_programs(run):
            row = folders[folder_of(test["name"])]
            row["tests"] += 1
            row["wall"] += test["wall"]
            row["cpu"] += test["cpu"] + programs.total()
            kinds.update({NAMES[kind]: cpu_s for kind, cpu_s in by_kind(test).items()})
            kinds.update(programs)
    total = busy + idle
    share = f", {100 * busy / total:.0f} % of the processors' time used" if total else ""
    lines = [
        f"costs: {sum(row['tests'] for row in folders.values())} tests, {wall:.0f} s wall, "
        f"{kinds.total():.0f} CPU s of tests and their programs{share}",
        f"{'kind':<26} {'CPU s':>6}   {'folder':<26} {'CPU s':>6} {'wall s':>6} {'tests':>6}",
    ]
    most_kinds = _with_rest(kinds.most_common(), ROWS)
    most_folders = sorted(folders.items(), key=lambda item: -item[1]["cpu"])[:ROWS]
    for index in range(max(len(most_kinds), len(most_folders))):
        left = f"{'':<33}"
        if index < len(most_kinds):
            left = f"{most_kinds[index][0]:<26} {most_kinds[index][1]:>6.0f}"
        right = ""
        if index < len(most_folders):
            name, row = most_folders[index]
            right = f"{name:<26} {row['cpu']:>6.0f} {row['wall']:>6.0f} {row['tests']:>6.0f}"
        lines.append(f"{left}   {right}".rstrip())
    return lines


def _with_rest(rows: list[tuple[str, float]], most: int) -> list[tuple[str, float]]:
    if len(rows) <= most:
        return rows
    return [*rows[: most - 1], ("other", sum(value for _, value in rows[most - 1 :]))]


def most_expensive(runs: Iterable[journal.Run], count: int) -> list[str]:
    """Return the most expensive tests, a line each: CPU, wall, own CPU, and programs."""
    tests = [one for run in runs for one in with_programs(run)]
    tests.sort(key=lambda one: -(one[0]["cpu"] + one[1].total()))
    lines = [f"{'CPU s':>7} {'wall s':>7}  test"]
    for test, programs in tests[:count]:
        cpu_s = test["cpu"] + programs.total()
        started = ", ".join(f"{kind} {value:.1f}" for kind, value in programs.most_common(3))
        lines.append(f"{cpu_s:>7.1f} {test['wall']:>7.1f}  {test['name']}  {started}".rstrip())
    return lines


@click.command(help=__doc__)
@click.option("--since", type=float, help="Unix time; all runs that began since then.")
@click.option("--tests", "count", default=0, help="How many of the most expensive tests.")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True))
def main(since: float | None, count: int, paths: tuple[Path, ...]) -> None:
    chosen = list(paths) or journal.earlier()
    if since is not None:
        chosen = [path for path in chosen if int(path.name.partition("-")[0]) >= 1000 * since]
    elif not paths:
        chosen = chosen[:1]
    runs = [journal.read(path) for path in chosen]
    if not runs:
        raise click.ClickException("there is no such run; run tests first")
    click.echo("\n".join([*table(runs), *(most_expensive(runs, count) if count else ())]))


if __name__ == "__main__":
    main()
