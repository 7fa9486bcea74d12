"""Long polls of one worker: fetches that wait for min bytes or their timeout.

When the worker stops, all long polls are woken and later fetches do not wait. Plain state.
"""

from collections.abc import Callable

from metaquorum.dataplane.fetch.parked_polls import ParkedRequests
from metaquorum.dataplane.network.delayed import Timer, Timers
from metaquorum.dataplane.partition.waiting import FetchWaiter


class LongPolls:
    """Waiting fetches of one worker; a fetch is registered from `hold` to `release`."""

    def __init__(self, timers: Timers) -> None:
        self.parked = ParkedRequests()  # large long polls and their memory
        self.is_closed = False  # fetches no longer wait
        self._timers = timers
        self._waiters: set[FetchWaiter] = set()

    def __len__(self) -> int:
        return len(self._waiters)

    def hold(self, waiter: FetchWaiter, wait_s: float, time_over: Callable[[], object]) -> Timer:
        """Register `waiter`, which `close` wakes; call `time_over` after `wait_s` seconds."""
        self._waiters.add(waiter)
        return self._timers.call_after(wait_s, time_over)

    def release(self, waiter: FetchWaiter) -> None:
        """Remove `waiter`; idempotent."""
        self._waiters.discard(waiter)

    def close(self) -> None:
        """Wake all waiters; later fetches do not wait."""
        self.is_closed = True
        for waiter in self._waiters:
            waiter.wake()
