"""Timers of delayed responses: nearly all are cancelled, and the others fire in time."""

import trio
import trio.testing

from metaquorum.dataplane.network.delayed import LEAST_DEAD, Timers
from metaquorum.runtime.system import RealClock
from tests.dataplane.serving import in_trio


class Setting:
    def __init__(self) -> None:
        self.timers = Timers(RealClock())
        self.called: list[str] = []

    def after(self, seconds: float, name: str) -> None:
        self.timers.call_after(seconds, lambda: self.called.append(name))


def test_calls_come_in_the_order_of_their_times() -> None:
    trio.run(_called_in_order, clock=trio.testing.MockClock(autojump_threshold=0))


async def _called_in_order() -> None:
    setting = Setting()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.timers.run)
        await trio.testing.wait_all_tasks_blocked()
        setting.after(3, "third")
        setting.timers.call_after(1, lambda: setting.called.append("never")).cancel()
        await trio.sleep(0.5)
        setting.after(0.7, "first")
        setting.after(0.7, "second")
        await trio.sleep(1)
        assert setting.called == ["first", "second"]
        await trio.sleep(2)
        assert setting.called == ["first", "second", "third"]
        setting.after(1, "fourth")
        await trio.sleep(1.1)
        assert setting.called[-1] == "fourth"
        nursery.cancel_scope.cancel()


def test_cancelled_timers_wake_nobody() -> None:
    trio.run(_dropped_at_once, clock=trio.testing.MockClock(autojump_threshold=0))


async def _dropped_at_once() -> None:
    setting = Setting()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.timers.run)
        await trio.testing.wait_all_tasks_blocked()
        setting.after(1, "first")
        for number in range(100):
            setting.timers.call_after(1.5 + number / 100, setting.called.clear).cancel()
        setting.after(3, "second")
        await trio.sleep(1.1)
        assert setting.called == ["first"]
        assert len(setting.timers) == 1  # the next wake is for the second call
        await trio.sleep(2)
        assert setting.called == ["first", "second"]
        nursery.cancel_scope.cancel()


@in_trio
async def test_timers_that_were_cancelled_do_not_pile_up() -> None:
    setting = Setting()
    for _ in range(5 * LEAST_DEAD):
        setting.timers.call_after(300, setting.called.clear).cancel()
    assert len(setting.timers) <= LEAST_DEAD + 1


@in_trio
async def test_timers_that_are_all_cancelled_before_their_first_turn_harm_nobody() -> None:
    setting = Setting()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.timers.run)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(LEAST_DEAD + 1):
            setting.timers.call_after(300, setting.called.clear).cancel()
        assert not len(setting.timers)
        await trio.testing.wait_all_tasks_blocked()
        setting.after(0, "called")
        await trio.testing.wait_all_tasks_blocked()
        assert setting.called == ["called"]
        nursery.cancel_scope.cancel()
