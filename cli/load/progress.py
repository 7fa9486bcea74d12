"""Progress of a load on stderr: a bar on a terminal, otherwise a line every LINE_EVERY_S."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from metaquorum.cli.common.output import printable, size_text
from metaquorum.spark.loader.coordinator import Events
from metaquorum.spark.loader.table.load_plan import LoadPlan
from metaquorum.spark.loader.table.manifest import Manifest
from metaquorum.spark.loader.table.range_result import RangeResult
from metaquorum.spark.loader.tasks.range_task import TaskProgress

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_EVERY_S: Final = 10.0


class LoadProgress(Events):
    """Sums over the ranges that were started in this run."""

    def __init__(self, client_id: str | None) -> None:
        self._given = client_id
        self.client_id = client_id or ""
        self.version = 0
        self.ranges = 0
        self.done = 0
        self.offsets = 0
        self._starts: list[int] = []
        self._at: dict[int, TaskProgress] = {}

    def on_plan(self, plan: LoadPlan, done: int) -> None:
        self.version, self.client_id = plan.version, self._given or plan.client_id
        self.ranges, self.done = len(plan.read_plan.ranges), done
        self._starts = [range_.start for range_ in plan.read_plan.ranges]
        self.offsets = sum(range_.end - range_.start for range_ in plan.read_plan.ranges)
        self.show()

    def on_range(self, index: int, what: TaskProgress | RangeResult) -> None:
        if isinstance(what, RangeResult):
            self.done += 1
            report = what.report
            what = TaskProgress(what.end, report.records, report.bytes, report.throttled_ms)
        self._at[index] = what
        self.show()

    def on_committed(self, manifest: Manifest) -> None:
        records = sum(each.records for each in manifest.ranges)
        click.echo(f"load {manifest.version} is committed: {records:,} records", err=True)
        self._at.clear()

    def on_group_refused(self, group: str, reason: str) -> None:
        text = f"the offsets are not committed for group {group}: {reason}"
        click.echo(printable(text), err=True)

    @property
    def position(self) -> int:
        return sum(at.position - self._starts[index] for index, at in self._at.items())

    @property
    def text(self) -> str:
        throttled_ms = sum(at.throttled_ms for at in self._at.values())
        size = size_text(sum(at.bytes for at in self._at.values()))
        records = sum(at.records for at in self._at.values())
        parts = [f"{self.done} of {self.ranges} ranges", f"{records:,} records, {size}"]
        if throttled_ms:
            client_id = printable(self.client_id)
            parts.append(f"throttled {throttled_ms / 1000:.1f} s (client id {client_id})")
        return ", ".join(parts)

    def show(self) -> None:
        """Show the current state; subclasses override it."""


class Lines(LoadProgress):
    def __init__(self, client_id: str | None) -> None:
        super().__init__(client_id)
        self._shown_at = time.monotonic()

    def show(self) -> None:
        if time.monotonic() - self._shown_at >= LINE_EVERY_S:
            self._shown_at = time.monotonic()
            click.echo(f"load {self.version}: {self.text}", err=True)


class Bar(LoadProgress):
    def __init__(self, client_id: str | None, progress: "Progress", task: "TaskID") -> None:
        super().__init__(client_id)
        self._progress = progress
        self._task = task

    def show(self) -> None:
        self._progress.update(
            self._task, total=self.offsets, completed=self.position, description=self.text
        )


@contextmanager
def watch_progress(client_id: str | None, *, quiet: bool) -> Iterator[Events]:
    if quiet:
        yield Events()
    elif not sys.stderr.isatty():
        yield Lines(client_id)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield Bar(client_id, progress, progress.add_task("", total=None))
