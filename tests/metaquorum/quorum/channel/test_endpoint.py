"""Random numbers of an endpoint, and secrets that it must not reveal."""

import random

import pytest

from metaquorum.quorum.channel import ChannelTimings, StreamKind
from metaquorum.quorum.channel.timing import (
    MAX_LINES_REMEMBERED,
    SAME_LINE_SECONDS,
    Backoff,
    LogThrottle,
    within,
)
from metaquorum.runtime.interfaces import sleep
from tests.metaquorum.quorum.channel.nodes import HOST, SECRET, endpoint, in_trio, shared_runtime
from tests.nodes import PATIENCE_S


@in_trio
async def test_nonces_are_drawn_where_nobody_can_guess_them() -> None:
    assert isinstance(shared_runtime().random, random.SystemRandom)


@in_trio
async def test_the_secret_is_in_no_text_of_an_endpoint() -> None:
    assert SECRET.decode() not in repr(endpoint(1))


@in_trio
async def test_a_node_that_accepts_and_says_nothing_is_given_up_in_time() -> None:
    """The kernel of the node accepts the connection while its process is paused."""
    listener = await shared_runtime().network.listen(HOST, 0)
    me = endpoint(7, timings=ChannelTimings(dial_s=0.3))
    with pytest.raises(TimeoutError, match=r"not done within 0\.3 s"):
        await me.dial(StreamKind.RPC, 1, *listener.address)
    listener.close()


@in_trio
async def test_what_is_done_in_time_returns_and_what_fails_fails() -> None:
    clock = shared_runtime().clock

    async def answer() -> str:
        await sleep(clock, 0)
        return "done"

    async def fail() -> str:
        raise KeyError("k")

    assert await within(clock, PATIENCE_S, answer) == "done"
    with pytest.raises(KeyError):
        await within(clock, PATIENCE_S, fail)
    with pytest.raises(TimeoutError):
        await within(clock, 0.01, lambda: sleep(clock, 60))


def test_waits_between_attempts_grow_to_a_bound_and_begin_anew() -> None:
    backoff = Backoff(random.Random(1), 0.02, 0.3)
    waits = [backoff.next_s() for _ in range(50)]
    assert 0.01 <= waits[0] <= 0.03
    assert max(waits) <= 0.45
    assert min(waits[10:]) >= 0.15
    backoff.reset()
    assert backoff.next_s() <= 0.03


class StillClock:
    """A clock that the test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return round(self.now * 1000)

    def cpu_s(self) -> float:
        return 0.0

    async def sleep_until(self, deadline: float) -> None:
        raise NotImplementedError


def test_an_equal_line_is_due_again_after_its_time_or_after_many_others() -> None:
    clock = StillClock()
    throttle = LogThrottle(clock)
    assert throttle.is_due("a")
    clock.now += SAME_LINE_SECONDS - 1
    assert not throttle.is_due("a")
    clock.now += 1
    assert throttle.is_due("a")
    # Peers may cause any number of lines: only the newest are remembered.
    for number in range(MAX_LINES_REMEMBERED - 1):
        assert throttle.is_due(f"line {number}")
    assert not throttle.is_due("a")
    assert throttle.is_due("one more")
    assert throttle.is_due("a")
    assert not throttle.is_due(f"line {MAX_LINES_REMEMBERED - 2}")
