"""Work that is counted instead of timed, so that a bound is the same on every machine.

A line is counted each time that Python executes it, also for each iteration of a loop or
comprehension within one line. Loops within C (a copy of a dict, a sort) have no lines: they show in
the bytes that are allocated.
"""

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import trio


class Lines:
    """Lines of Python that this thread has executed within `counting`."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        def trace(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
            self.count += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)


def lines_of(work: Callable[[], object]) -> int:
    """Return the number of lines that `work` executes."""
    lines = Lines()
    with lines.counting():
        work()
    return lines.count


def allocated_bytes_of(work: Callable[[], object]) -> int:
    """Return the most bytes of new objects at a time while `work` runs."""
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        result = work()
        _, peak = tracemalloc.get_traced_memory()
        del result
        return peak - before
    finally:
        tracemalloc.stop()


class Step(NamedTuple):
    """Lines that a step has executed, and by how many its objects are more or fewer after it."""

    lines: int
    objects: int


class Steps(trio.abc.Instrument):
    """The steps of tasks, and the steps of connections between two turns of tasks.

    `is_counted` chooses tasks by their names; without it, all steps count.
    """

    def __init__(self, is_counted: Callable[[str], bool] | None = None) -> None:
        self._steps: list[Step] = []
        self._is_counted = is_counted
        self._lines = Lines()
        self._began: Step | None = None  # None: within a step that does not count

    def clear(self) -> None:
        """Forget the steps so far, and the one that calls this."""
        self._steps.clear()
        self._began = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        trio.lowlevel.add_instrument(self)
        try:
            with self._lines.counting():
                yield
        finally:
            trio.lowlevel.remove_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        counts = self._is_counted is None or self._is_counted(task.name)
        self._began = self._now() if counts else None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._ended()

    def before_io_wait(self, timeout: float) -> None:
        self._ended()  # steps of connections: the poller of this process is an instrument, too

    def _now(self) -> Step:
        return Step(self._lines.count, sys.getallocatedblocks())

    def _ended(self) -> None:
        now, began = self._now(), self._began
        if began is not None:
            self._steps.append(Step(now.lines - began.lines, now.objects - began.objects))
        self._began = now if self._is_counted is None else None

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def all_lines(self) -> int:
        return sum(step.lines for step in self._steps)

    @property
    def most_lines(self) -> int:
        return max(step.lines for step in self._steps)

    @property
    def most_objects(self) -> int:
        """Return the largest number of objects that a step has created or freed."""
        return max(abs(step.objects) for step in self._steps)
