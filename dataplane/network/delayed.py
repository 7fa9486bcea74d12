"""Answers that have to wait for something that other requests do, without a task that waits.

A long poll waits for an append, a produce with acks=all for its followers' fetches: each is ended
by a request of somebody else. Such an answer is a `DelayedResponse`: whatever it waits for calls
`ready`, or its time is over, and its connection is notified, which sends it in a slice of its own.

    waiting --ready--> ready --complete--> given
       `---------cancel---------> dropped (the connection has ended)

Waking a task for it costs as much as all the rest of the request.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

import trio

from metaquorum.runtime import Clock

# So many timers that were cancelled may be left among those that count, and half of all.
LEAST_DEAD: Final = 1000
# Timers that are due at the same time are called so many in one slice of the loop.
CALLED_AT_ONCE: Final = 1000


class DelayedResponse:
    """What a handler returns. Its owner calls `complete` once it is ready, or `cancel`."""

    __slots__ = ("_callback", "allows_pipelining", "is_ready")

    def __init__(self, *, allows_pipelining: bool = False) -> None:
        """`allows_pipelining`:

        requests behind it on its connection may be handled before it is given.
        """
        self.allows_pipelining = allows_pipelining
        self.is_ready = False
        self._callback: Callable[[], object] | None = None

    def ready(self) -> None:
        """There is nothing to wait for any more. Any number of times."""
        if not self.is_ready:
            self.is_ready = True
            if self._callback is not None:
                self._callback()

    def on_ready(self, callback: Callable[[], object]) -> None:
        """`callback` is called when it is ready, and nobody who was to be told before."""
        self._callback = callback
        if self.is_ready:
            callback()

    def complete(self) -> Any:
        """The answer; all that was to make it ready is forgotten."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Nobody wants it."""
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
    """Calls made at their time, nearly all of which are cancelled before it. One task for all."""

    def __init__(self, clock: Clock) -> None:
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
        """`call()` is made then, or a little later, unless it is cancelled."""
        at = self._clock.monotonic() + seconds
        timer = Timer(call, self)
        heappush(self._queue, (at, next(self._numbers), timer))
        if at < self._sleeps_until:
            self._added.set()
            self._sleeping.cancel()
        return timer

    def died(self) -> None:
        """One of them was cancelled."""
        self._dead += 1
        if self._dead > LEAST_DEAD and self._dead > len(self._queue) // 2:
            self._queue = [entry for entry in self._queue if entry[2].call is not None]
            heapify(self._queue)
            self._dead = 0

    async def run(self) -> None:
        while True:
            while self._call_due():
                await trio.lowlevel.checkpoint()
            while not self._queue:  # and all that were added may be cancelled before our turn
                self._added = trio.Event()
                self._sleeps_until = float("inf")
                await self._added.wait()
            self._sleeps_until = self._queue[0][0]
            with trio.CancelScope() as self._sleeping:
                await self._clock.sleep_until(self._sleeps_until)

    def _call_due(self) -> bool:
        """Whether there may be more."""
        now = self._clock.monotonic()
        for _ in range(CALLED_AT_ONCE):
            if not self._queue or self._queue[0][0] > now:
                return False
            _, _, timer = heappop(self._queue)
            if timer.call is None:
                self._dead -= 1
            else:
                call, timer.call = timer.call, None
                call()
        return True
