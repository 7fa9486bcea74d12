"""Delayed responses: responses that wait for other requests, without a waiting task.

A long poll waits for an append, a produce with acks=all for the fetches of followers: a request of
another client completes them. Such a response is a `DelayedResponse`. The append, the follower's
fetch or a timer calls `ready`, which notifies the connection; the connection then sends the
response in its own time slice. (Kafka: purgatory.)

    waiting --ready--> ready --complete--> sent
       '---------cancel---------> dropped (the connection has ended)

Waking a task per response would cost as much as the rest of the request.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

import trio

from metaquorum.dataplane.scheduling.time_slices import TimeSlicer
from metaquorum.runtime import Clock

# The queue is cleaned when it holds more cancelled timers than this, and than half of all timers.
LEAST_DEAD: Final = 1000
# Due timers that are called before other tasks run.
CALLED_AT_ONCE: Final = 1000


class DelayedResponse:
    """A response that a handler returns before it is ready.

    Its owner calls `complete` once the response is ready, or `cancel`.
    """

    __slots__ = ("_callback", "allows_pipelining", "is_ready", "may_outlast_idle")

    def __init__(self, *, allows_pipelining: bool = False, may_outlast_idle: bool = False) -> None:
        """Create a response that is not ready.

        `allows_pipelining`: whether later requests of the connection may be handled before this
        response is sent. `may_outlast_idle`: whether the response may take longer than
        connections.max.idle.ms; its connection is then not idle, the arrays of its request are
        freed, and the response is cancelled as soon as the client closes the connection.
        """
        self.allows_pipelining = allows_pipelining
        self.may_outlast_idle = may_outlast_idle
        self.is_ready = False
        self._callback: Callable[[], object] | None = None

    def ready(self) -> None:
        """Mark the response as ready and call its callback. Idempotent."""
        if not self.is_ready:
            self.is_ready = True
            if self._callback is not None:
                self._callback()

    def on_ready(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the response is ready; it replaces an earlier callback."""
        self._callback = callback
        if self.is_ready:
            callback()

    def complete(self) -> Any:
        """Return the response, and remove the response from all that could make it ready."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Drop the response: its connection has ended."""
        raise NotImplementedError


class Timer:
    __slots__ = ("_timers", "call")

    def __init__(self, call: Callable[[], object], timers: "Timers") -> None:
        self.call: Callable[[], object] | None = call
        self._timers = timers

    def cancel(self) -> None:
        if self.call is not None:
            self.call = None
            self._timers.died()


class Timers:
    """Timed calls, nearly all of which are cancelled before they are due. One task runs them.

    Clients choose when many of them are due, such as the ends of their sessions, and may choose the
    same millisecond for all. So the calls of one step end with the slice of `slicer`, if it is set.
    """

    def __init__(self, clock: Clock) -> None:
        self.slicer: TimeSlicer | None = None
        self._clock = clock
        self._queue: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._dead = 0
        self._sleeping = trio.CancelScope()
        self._sleeps_until = float("inf")
        self._added = trio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def call_after(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Call `call()` after `seconds`, or a little later, unless the timer is cancelled."""
        at = self._clock.monotonic() + seconds
        timer = Timer(call, self)
        heappush(self._queue, (at, next(self._numbers), timer))
        if at < self._sleeps_until:
            self._added.set()
            self._sleeping.cancel()
        return timer

    def died(self) -> None:
        """Count a cancelled timer, and clean the queue if it holds too many of them."""
        self._dead += 1
        if self._dead > LEAST_DEAD and self._dead > len(self._queue) // 2:
            self._queue = [entry for entry in self._queue if entry[2].call is not None]
            heapify(self._queue)
            self._dead = 0

    async def run(self) -> None:
        while True:
            while self._call_due():
                await trio.lowlevel.checkpoint()
            while not self._queue:  # added timers may all be cancelled before this task runs
                self._added = trio.Event()
                self._sleeps_until = float("inf")
                await self._added.wait()
            self._sleeps_until = self._queue[0][0]
            with trio.CancelScope() as self._sleeping:
                await self._clock.sleep_until(self._sleeps_until)

    def _call_due(self) -> bool:
        """Call due timers, at most CALLED_AT_ONCE. Return whether more may be due.

        Cancelled timers before the first other one are dropped, or each would wake the task later.
        """
        now, slicer = self._clock.monotonic(), self.slicer
        if slicer is not None:
            slicer.start()
        for _ in range(CALLED_AT_ONCE):
            if not self._queue:
                return False
            at, _, first = self._queue[0]
            if at > now and first.call is not None:
                return False
            _, _, timer = heappop(self._queue)
            if timer.call is None:
                self._dead -= 1
            else:
                call, timer.call = timer.call, None
                call()
                if slicer is not None and slicer.is_over:
                    break
        return True
