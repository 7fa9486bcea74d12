"""Interface of the runners of tasks, used by the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from metaquorum.spark.loader.table.range_result import RangeResult
from metaquorum.spark.loader.tasks.range_task import TaskProgress
from metaquorum.spark.loader.tasks.task_spec import RangeTask, TaskContext

# Called with the range's index and the progress of an attempt, or the result of the range.
OnEvent: TypeAlias = Callable[[int, TaskProgress | RangeResult], None]
# Reason, as a sentence, by the index of a range that could not be loaded.
Failures: TypeAlias = Mapping[int, str]


class Runner(Protocol):
    def run(self, context: TaskContext, tasks: Sequence[RangeTask], on_event: OnEvent) -> Failures:
        """Run the tasks, and return the failures. Blocking. An attempt that dies is repeated.

        After the first failure no further task is started; the remaining tasks then have neither a
        result nor a failure. Raises RunnerError if tasks cannot be run.
        """
