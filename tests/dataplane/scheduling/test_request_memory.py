"""The memory budget of large requests, and stalled requests."""

import trio
import trio.testing

from metaquorum.dataplane.scheduling.request_memory import (
    GRACE_S,
    LEAST_BYTES_PER_S,
    WHOLE_WITHIN_S,
    RequestMemory,
    StalledRequests,
)
from metaquorum.wire.protocol.frames import SIZE_BYTES
from tests.dataplane.serving import Simulated, batch_of, in_trio, simulated

KIB = 1024


@in_trio
async def test_the_smallest_that_waits_goes_first() -> None:
    memory = RequestMemory(100)
    await memory.reserve(60)
    granted: list[int] = []

    async def want(size_bytes: int) -> None:
        await memory.reserve(size_bytes)
        granted.append(size_bytes)

    async with trio.open_nursery() as nursery:
        for size_bytes in (100, 90, 70, 41):
            nursery.start_soon(want, size_bytes)
            await trio.testing.wait_all_tasks_blocked()
        assert (granted, memory.is_short) == ([], True)
        assert not memory.reserve_nowait(1)  # others wait
        nursery.start_soon(want, 40)  # fits, although others wait
        await trio.testing.wait_all_tasks_blocked()
        for size_bytes in (60, 40, 41, 70, 90, 100):
            memory.release(size_bytes)
            await trio.testing.wait_all_tasks_blocked()
    assert granted == [40, 41, 70, 90, 100]
    assert (memory.used_bytes, memory.is_short) == (0, False)
    assert memory.reserve_nowait(100)
    assert (memory.reserve_nowait(1), memory.used_bytes) == (False, 100)


@in_trio
async def test_whoever_gives_up_waiting_leaves_nothing_behind() -> None:
    memory = RequestMemory(100)
    await memory.reserve(100)
    with trio.move_on_after(0) as gone:
        await memory.reserve(10)
    assert gone.cancelled_caught
    assert not memory.is_short
    memory.release(100)
    await memory.reserve(100)


@in_trio
async def test_a_small_request_does_not_wait_for_all_large_ones_that_came_before_it() -> None:
    """No large request has been overtaken, so the smallest goes first."""
    memory = RequestMemory(100, ages=True)
    await memory.reserve(100)
    granted: list[int] = []

    async def want(size_bytes: int) -> None:
        await memory.reserve(size_bytes)
        granted.append(size_bytes)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(want, 100)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            memory.release(100)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(want, 60)
        await trio.testing.wait_all_tasks_blocked()
        assert granted == [100, 100, 100]
        while memory.used_bytes:
            memory.release(granted[-1])
            await trio.testing.wait_all_tasks_blocked()
    assert granted.index(60) == 3
    assert len(granted) == 21


@in_trio
async def test_who_needs_nothing_never_waits() -> None:
    memory = RequestMemory(100, ages=True)
    await memory.reserve(1000)  # larger than the whole budget
    with trio.move_on_after(0) as waited:
        await memory.reserve(0)
    assert not waited.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.reserve, 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert memory.is_short
        with trio.move_on_after(0) as waited:
            await memory.reserve(0)
        assert not waited.cancelled_caught
        memory.release(0)
        memory.release(1000)
    memory.release(0)
    memory.release(1000)
    assert (memory.used_bytes, memory.is_short) == (0, False)


class Sender:
    def __init__(self, size_bytes: int) -> None:
        self.reserved_bytes = self.missing_bytes = size_bytes
        self.reservation = 1
        self.client = "somebody"

    def abort(self) -> None:
        raise AssertionError


def test_requests_have_to_come_at_a_rate() -> None:
    size_bytes = 1000 * KIB
    still, slow, fast, done = (Sender(size_bytes) for _ in range(4))
    stalled = StalledRequests()
    done.missing_bytes = 0
    everybody = (still, slow, fast, done)
    assert stalled.among(everybody, 0) == []
    assert stalled.among(everybody, GRACE_S) == []
    slow.missing_bytes -= LEAST_BYTES_PER_S // 2
    fast.missing_bytes -= LEAST_BYTES_PER_S * 2
    assert stalled.among(everybody, GRACE_S + 1) == [still, slow]
    assert stalled.among(everybody, GRACE_S + 1.9) == [still, slow]
    assert stalled.among((fast,), GRACE_S + 3) == [fast]
    fast.reservation += 1  # another request: its time starts again
    assert stalled.among((fast,), GRACE_S + 4) == []


def test_a_huge_request_has_to_come_whole_within_its_time() -> None:
    huge = Sender(100 * KIB * KIB)
    stalled = StalledRequests()
    stalled.among((huge,), 0)
    huge.missing_bytes -= 60 * LEAST_BYTES_PER_S
    assert stalled.among((huge,), GRACE_S + 60) == [huge]
    huge.missing_bytes = 1
    assert stalled.among((huge,), GRACE_S + WHOLE_WITHIN_S - 1) == []


@simulated(queued_max_request_bytes=8 * KIB * KIB, socket_request_max_bytes=4 * KIB * KIB)
async def test_a_large_request_passes_those_that_claim_memory_and_do_not_send(
    sim: Simulated,
) -> None:
    await (await sim.connect()).create("t")
    for _ in range(20):
        loris = await sim.connect()
        await loris.send((4 * KIB * KIB - SIZE_BYTES).to_bytes(4, "big"))
    await trio.sleep(1)
    honest = await sim.connect()
    began = sim.now
    await honest.produce("t", batch_of(bytes(200 * KIB)))
    assert sim.now - began < GRACE_S + 2


@simulated(connections_max_idle_ms=2000)
async def test_part_of_a_small_request_keeps_no_connection_alive(sim: Simulated) -> None:
    drip = await sim.connect()
    await drip.send(b"\0\0\1\0")
    began = sim.now
    while sim.now - began < 10:
        try:
            await drip.send(b"\0")
        except OSError:
            break
        await trio.sleep(0.2)
    assert 2 < sim.now - began < 4
