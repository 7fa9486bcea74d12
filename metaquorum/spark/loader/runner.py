"""What runs the tasks of a load, as its driver sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from metaquorum.spark.loader.table.range_result import RangeResult
from metaquorum.spark.loader.tasks.range_task import TaskProgress
from metaquorum.spark.loader.tasks.task_spec import RangeTask, TaskContext

# By the range's index: how far an attempt is, or what became of the range.
OnEvent: TypeAlias = Callable[[int, TaskProgress | RangeResult], None]
# By the range's index: why it could not be loaded, as a sentence.
Failures: TypeAlias = Mapping[int, str]


class Runner(Protocol):
    def run(self, context: TaskContext, tasks: Sequence[RangeTask], on_event: OnEvent) -> Failures:
        """Each task has a result or a failure; attempts that died were made again.

        After the first failure no further task is begun: those have neither. RunnerError: nothing
        can be run.
        """
