"""Movable deadline on a clock that only offers sleep."""

import math
from collections.abc import Callable

import trio

from metaquorum.runtime.interfaces import Clock


class Alarm:
    """Timer that calls `ring` at the deadline that was set last."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._deadline = math.inf
        self._was_set = trio.Event()
        self._sleep = trio.CancelScope()

    def set(self, deadline: float) -> None:
        """Replace the deadline. A later one costs little: the timer wakes early, sleeps again."""
        if deadline < self._deadline:
            self._sleep.cancel()
        self._deadline = deadline
        self._was_set.set()

    async def run(self) -> None:
        while True:
            if self._deadline == math.inf:
                self._was_set = trio.Event()
                await self._was_set.wait()
            elif self._clock.monotonic() < self._deadline:
                with trio.CancelScope() as self._sleep:
                    await self._clock.sleep_until(self._deadline)
            else:
                self._deadline = math.inf
                self._ring()
