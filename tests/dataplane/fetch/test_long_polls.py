"""Long polls without a worker: each is woken by a stop, or at its timeout."""

import trio
import trio.testing

from metaquorum.dataplane.fetch.long_polls import LongPolls
from metaquorum.dataplane.network.delayed import Timers
from metaquorum.dataplane.partition.waiting import FetchWaiter
from metaquorum.runtime.system import RealClock
from tests.dataplane.serving import in_trio


class Setting:
    def __init__(self) -> None:
        self.timers = Timers(RealClock())
        self.polls = LongPolls(self.timers)
        self.woken: list[str] = []

    def hold(self, name: str) -> FetchWaiter:
        waiter = FetchWaiter(1, lambda: self.woken.append(name))
        self.polls.hold(waiter, 1.0, lambda: self.woken.append(f"{name}: time over"))
        return waiter


@in_trio
async def test_all_that_are_held_are_woken_by_a_stop_and_no_others() -> None:
    setting = Setting()
    first, second = setting.hold("first"), setting.hold("second")
    assert (len(setting.polls), setting.polls.is_closed) == (2, False)
    setting.polls.release(first)
    setting.polls.release(first)
    assert len(setting.polls) == 1
    setting.polls.close()
    assert (setting.woken, setting.polls.is_closed) == (["second"], True)
    setting.polls.release(second)
    assert not setting.polls


def test_a_poll_is_told_that_its_time_is_over() -> None:
    async def main() -> None:
        setting = Setting()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(setting.timers.run)
            setting.hold("only")
            await trio.sleep(0.9)
            assert setting.woken == []
            await trio.sleep(0.2)
            assert setting.woken == ["only: time over"]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
