"""Timeouts of one shard: calls that are due at a time, most of which are cancelled. Plain state."""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Final

from metaquorum.dataplane.scheduling.time_slices import Steps, emptied

# Timeouts that one `run` calls; each may end a rebalance.
CALLED_AT_ONCE: Final = 64
# The queue is cleaned when it holds more cancelled timeouts than this, and than half of all.
LEAST_CANCELLED: Final = 1000


def is_never_over() -> bool:
    return False


class Timeout:
    __slots__ = ("_timeouts", "call", "due", "is_queued")

    def __init__(self, due: float, call: Callable[[float], object], timeouts: "Timeouts") -> None:
        self.due = due  # monotonic seconds
        self.call: Callable[[float], object] | None = call
        self._timeouts = timeouts
        self.is_queued = True

    def cancel(self) -> None:
        """Do not call. Idempotent."""
        if self.call is not None:
            self.call = None
            if self.is_queued:
                self._timeouts.cancelled()


class Timeouts:
    """Timeouts by the monotonic time at which they are due."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, Timeout]] = []
        self._numbers = count()
        self._cancelled = 0
        self._is_closed = False

    @property
    def next_due(self) -> float:
        """Monotonic seconds of the next timeout; infinite if there is none."""
        while self._queue and self._queue[0][2].call is None:
            heappop(self._queue)
            self._cancelled -= 1
        return self._queue[0][0] if self._queue else inf

    def at(self, due: float, call: Callable[[float], object]) -> Timeout:
        """Call `call(now)` at `due` or later, unless the timeout is cancelled."""
        timeout = Timeout(due, call, self)
        heappush(self._queue, (due, next(self._numbers), timeout))
        return timeout

    def cancelled(self) -> None:
        self._cancelled += 1
        if self._is_closed:
            return  # the queue is freed in pieces
        if self._cancelled > LEAST_CANCELLED and self._cancelled > len(self._queue) // 2:
            self._queue = [entry for entry in self._queue if entry[2].call is not None]
            heapify(self._queue)
            self._cancelled = 0

    def run(self, now: float, is_over: Callable[[], bool] = is_never_over) -> None:
        """Make the calls that are due, in the order of their times, at most CALLED_AT_ONCE.

        Timeouts that these calls add wait for the next `run`, also if they are due: other tasks run
        in between. So do the other timeouts once `is_over` returns true.
        """
        due: deque[tuple[float, int, Timeout]] = deque()
        while len(due) < CALLED_AT_ONCE and self.next_due <= now:
            due.append(heappop(self._queue))
            due[-1][2].is_queued = False
        while due:
            timeout = due.popleft()[2]
            call, timeout.call = timeout.call, None
            if call is not None:  # an earlier call may have cancelled it
                call(now)
                if is_over():
                    break
        for entry in due:
            if entry[2].call is not None:
                entry[2].is_queued = True
                heappush(self._queue, entry)

    def close(self) -> Steps[None]:
        """Free the timeouts, in pieces; no call is made from now on."""
        self._is_closed = True
        return emptied(self._queue)
