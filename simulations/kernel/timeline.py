"""Virtual time: a heap of timers, which serves as the clock of trio.

trio consults its clock only when no task can run. At that moment nothing more can happen *now*, so
the timeline moves to the next due timer (one of its own, or a deadline of trio's), runs it, and
returns that there is no need to sleep. `MockClock` with an autojump does the same, with an idle
detection in addition (a quarter of the cost of a sleep). The timeline has two advantages: callbacks
need no task of their own, and it determines the order of timers that are due at the same instant.
"""

import heapq
from collections.abc import Callable
from math import inf

import trio
from trio._core import _run


class Timer:
    """Callback that runs at its time unless it is cancelled."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Timeline(trio.abc.Clock):
    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._made = 0
        self.happened = 0

    def at(self, when: float, action: Callable[[], None]) -> Timer:
        """Call `action` at `when`, outside of any task; ties run in the order of calls of `at`."""
        timer = Timer(max(when, self.now), action)
        self._made += 1
        heapq.heappush(self._heap, (timer.when, self._made, timer))
        return timer

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        return self.at(self.now + seconds, action)

    # trio.abc.Clock

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if deadline == inf:  # the world has ended, and trio waits for its own wake-up socket
            return 0.0
        heap = self._heap
        runnable = _run.GLOBAL_RUN_CONTEXT.runner.runq
        while not runnable:
            if not heap or heap[0][0] > deadline:
                self.now = max(self.now, deadline)
                break
            when, _, timer = heapq.heappop(heap)
            action = timer.action
            if action is None:
                continue
            self.now = when
            self.happened += 1
            action()
        return 0.0
