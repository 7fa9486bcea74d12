"""Slices of the event loop for the collection of one page, between which other tasks run."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from metaquorum.runtime import Clock


class Slices:
    """Slices of one collection and the event loop time that they used."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._began = clock.monotonic()
        self._taken_s = 0.0

    async def rest(self) -> None:
        """Let other tasks run; the wait does not count as used time."""
        self._taken_s += self._monotonic() - self._began
        await trio.lowlevel.checkpoint()
        self._began = self._monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Do not count the time of the block, which waits for others."""
        self._taken_s += self._monotonic() - self._began
        try:
            yield
        finally:
            self._began = self._monotonic()

    def end(self) -> float:
        return self._taken_s + self._monotonic() - self._began
