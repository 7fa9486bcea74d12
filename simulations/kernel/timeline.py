"""Virtual time: one heap of what happens next, and trio asks it how long to sleep.

trio consults its clock only when no task can run. At that moment nothing more can happen *now*, so
the timeline moves to the next thing that is due (one of its own timers, or a deadline of trio's),
performs it, and answers that there is no need to sleep. This is what `MockClock` with an autojump
does, less its idle detection (a quarter of the cost of a sleep), and with two gains: callbacks need
no task of their own, and the order of things that fall on the same instant is ours.
"""

import heapq
from collections.abc import Callable
from math import inf

import trio
from trio._core import _run


class Timer:
    """Something that will happen unless it is cancelled."""

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
        """`action` is called at `when`, outside of any task; ties are served in order of calls."""
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
        if deadline == inf:  # the world is over, and trio waits for its own wake-up socket
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
