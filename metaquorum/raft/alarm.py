"""A deadline that moves, on a clock that can only be slept on."""

import math
from collections.abc import Callable

import trio

from metaquorum.runtime.interfaces import Clock


class Alarm:
    """Calls `ring` once the deadline that was set last has come."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._deadline = math.inf
        self._was_set = trio.Event()
        self._sleep = trio.CancelScope()

    def set(self, deadline: float) -> None:
        """In place of the one before. Later ones cost nothing: it wakes early, and sleeps on."""
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
