"""The fetches of one worker that are held open: until enough has come, or their time is over.

All are woken when the worker stops, and none is held from then on. Plain state.
"""

from collections.abc import Callable

from dataplane.fetch.parked_polls import ParkedRequests
from dataplane.network.delayed import Timer, Timers
from dataplane.partition.partition import FetchWaiter


class LongPolls:
    """Each is in here from `hold` to `release`."""

    def __init__(self, timers: Timers) -> None:
        self.parked = ParkedRequests()  # those of many partitions, by what they hold in memory
        self.is_closed = False  # no fetch is to be held any more
        self._timers = timers
        self._waiters: set[FetchWaiter] = set()

    def __len__(self) -> int:
        return len(self._waiters)

    def hold(self, waiter: FetchWaiter, wait_s: float, time_over: Callable[[], object]) -> Timer:
        """`waiter` is woken by `close`; `time_over` is called in so many seconds."""
        self._waiters.add(waiter)
        return self._timers.call_after(wait_s, time_over)

    def release(self, waiter: FetchWaiter) -> None:
        """It is held no more. Any number of times."""
        self._waiters.discard(waiter)

    def close(self) -> None:
        """All that are held are woken."""
        self.is_closed = True
        for waiter in self._waiters:
            waiter.wake()
