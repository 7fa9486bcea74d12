"""Timeouts, backoff and log throttling for connections between nodes."""

import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import outcome
import trio

from metaquorum.runtime.interfaces import Clock, sleep
from metaquorum.wire.primitives.frozen import frozen

T = TypeVar("T")

SAME_LINE_SECONDS: Final = 30.0  # least interval between two equal log lines
MAX_LINES_REMEMBERED: Final = 100


@frozen
class ChannelTimings:
    """Timeouts and intervals of streams, in seconds."""

    dial_s: float = 2.0  # time to connect and authenticate
    handshake_s: float = 2.0  # time for an accepted connection to authenticate
    keepalive_s: float = 0.5  # a side that has sent nothing for this time sends an empty frame
    silent_keepalives: int = 5  # intervals without a frame from the peer before the stream closes
    redial_least_s: float = 0.02
    redial_most_s: float = 0.3


async def within(clock: Clock, seconds: float, operation: Callable[[], Awaitable[T]]) -> T:
    """Run `operation` and return its result.

    Raises TimeoutError if `operation` is cancelled because it takes longer than `seconds`.
    """
    expired = False

    async def expire(scope: trio.CancelScope) -> None:
        nonlocal expired
        await sleep(clock, seconds)
        expired = True
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expire, nursery.cancel_scope)
        result = await outcome.acapture(operation)
        nursery.cancel_scope.cancel()
    if expired and isinstance(result, outcome.Error) and isinstance(result.error, trio.Cancelled):
        raise TimeoutError(f"not done within {seconds:g} s")
    return result.unwrap()


class Backoff:
    """Exponential backoff: delays that double up to a bound, each with a jitter of ±50 %."""

    def __init__(self, draw: random.Random, least_s: float, most_s: float) -> None:
        self._random = draw
        self._least_s = least_s
        self._most_s = most_s
        self._next_s = least_s

    def next_s(self) -> float:
        seconds, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        return seconds * (0.5 + self._random.random())

    def reset(self) -> None:
        self._next_s = self._least_s


class LogThrottle:
    """Limits equal log lines to one per SAME_LINE_SECONDS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_at: dict[str, float] = {}

    def is_due(self, line: str) -> bool:
        now = self._clock.monotonic()
        if now - self._said_at.get(line, float("-inf")) < SAME_LINE_SECONDS:
            return False
        self._said_at.pop(line, None)
        if len(self._said_at) >= MAX_LINES_REMEMBERED:
            del self._said_at[next(iter(self._said_at))]
        self._said_at[line] = now
        return True
