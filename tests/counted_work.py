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
from typing import Any

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


class Steps(trio.abc.Instrument):
    """Lines of the steps of tasks, and of the steps of connections between two turns of tasks.

    `is_counted` chooses tasks by their names; without it, all steps count.
    """

    def __init__(self, is_counted: Callable[[str], bool] | None = None) -> None:
        self.lines: list[int] = []
        self._is_counted = is_counted
        self._counted = Lines()
        self._began: int | None = None  # None: within a step that does not count

    def clear(self) -> None:
        """Forget the steps so far, and the one that calls this."""
        self.lines.clear()
        self._began = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        trio.lowlevel.add_instrument(self)
        try:
            with self._counted.counting():
                yield
        finally:
            trio.lowlevel.remove_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        counts = self._is_counted is None or self._is_counted(task.name)
        self._began = self._counted.count if counts else None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._ended()

    def before_io_wait(self, timeout: float) -> None:
        self._ended()  # steps of connections: the poller of this process is an instrument, too

    def _ended(self) -> None:
        count = self._counted.count
        if self._began is not None:
            self.lines.append(count - self._began)
        self._began = count if self._is_counted is None else None

    @property
    def largest_share(self) -> float:
        """The share of all lines that the largest step has."""
        return max(self.lines) / sum(self.lines)
