"""Thousands of watchers of one partition are notified of its events, in time slices."""

from pathlib import Path

import trio

from metaquorum.dataplane.network.delayed import CALLED_AT_ONCE, Timers
from metaquorum.dataplane.partition.waiting import NOTIFIED_AT_ONCE
from metaquorum.runtime.system import RealClock
from tests.dataplane.serving import batch_of, in_trio, serving

COUNT = 5 * NOTIFIED_AT_ONCE + 7


class Counted:
    """A watcher that counts its notifications."""

    def __init__(self, *, goes_on: bool = True) -> None:
        self.noted: list[int] = []
        self.woken = 0
        self._goes_on = goes_on

    def note(self, new_bytes: int) -> bool:
        self.noted.append(new_bytes)
        return self._goes_on

    def wake(self) -> None:
        self.woken += 1


@in_trio
async def test_all_hear_of_an_append_and_others_have_their_turn_meanwhile(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        partition = served.worker.replica_manager.by_name("t", 0)
        watchers = [Counted(goes_on=number % 2 == 0) for number in range(COUNT)]
        partition.waiters.update(watchers)
        batch = batch_of(b"x")
        partition._note(partition.waiters, len(batch))  # as an append does
        partition.waiters.discard(watchers[0])
        partition.waiters.add(late := Counted())
        most = before = 0
        while before < COUNT - 1:
            await trio.lowlevel.checkpoint()
            now = sum(bool(watcher.noted) for watcher in watchers)
            most, before = max(most, now - before), now
        assert most <= 2 * NOTIFIED_AT_ONCE
        assert [watcher.noted for watcher in watchers[1:]] == [[len(batch)]] * (COUNT - 1)
        assert watchers[0].noted == late.noted == []
        assert partition.waiters == {*watchers[2::2], late}
        await client.produce("t", batch)
        while not late.noted:
            await trio.lowlevel.checkpoint()


@in_trio
async def test_appends_that_come_faster_than_they_are_told_are_told_together(
    tmp_path: Path,
) -> None:
    """Otherwise pending notifications would grow while many clients watch and others produce."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        partition = served.worker.replica_manager.by_name("t", 0)
        watchers = [Counted() for _ in range(COUNT)]
        partition.waiters.update(watchers)
        for _ in range(100):
            partition._note(partition.waiters, 10)
        while not all(watcher.noted for watcher in watchers):
            await trio.lowlevel.checkpoint()
        partition._note(partition.waiters, 7)
        while not all(sum(watcher.noted) > 1000 for watcher in watchers):
            await trio.lowlevel.checkpoint()
        assert [watcher.noted for watcher in watchers] == [[1000, 7]] * COUNT


@in_trio
async def test_an_append_does_not_hide_that_something_else_has_happened(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        partition = served.worker.replica_manager.by_name("t", 0)
        watchers = [Counted() for _ in range(COUNT)]
        partition.waiters.update(watchers)
        partition._note(partition.waiters, 10)
        partition.wake_waiters()
        partition._note(partition.waiters, 10)
        while not all(watcher.woken for watcher in watchers):
            await trio.lowlevel.checkpoint()


@in_trio
async def test_all_hear_that_something_else_has_happened(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        partition = served.worker.replica_manager.by_name("t", 0)
        watchers = [Counted() for _ in range(COUNT)]
        partition.waiters.update(watchers)
        assert await client.delete("t") == 0
        while not all(watcher.woken for watcher in watchers):
            await trio.lowlevel.checkpoint()


@in_trio
async def test_timers_that_are_due_together_leave_turns_to_others() -> None:
    timers = Timers(RealClock())
    called: list[int] = []
    for number in range(5 * CALLED_AT_ONCE + 7):
        timers.call_after(0, lambda number=number: called.append(number))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        most = before = 0
        while before < 5 * CALLED_AT_ONCE + 7:
            await trio.lowlevel.checkpoint()
            most, before = max(most, len(called) - before), len(called)
        nursery.cancel_scope.cancel()
    assert most <= 2 * CALLED_AT_ONCE
    assert called == sorted(called)
