"""Long polls of many partitions: the oldest are answered early if they exceed the memory limit."""

import pytest
import trio

from metaquorum.dataplane.fetch.parked_polls import ROW_BYTES, UNCOUNTED_ROWS, ParkedRequests
from metaquorum.dataplane.network.delayed import DelayedResponse
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import (
    FETCH_VERSION,
    RawClient,
    Simulated,
    batch_of,
    fetch_message,
    simulated,
)

ROWS = 1000
PRESENT = 100  # existing partitions of the requested ones
POLLS = 50
PATIENCE_S = 60


def test_the_oldest_goes_and_nobody_is_counted_twice() -> None:
    parked = ParkedRequests(limit_bytes=2 * ROWS * ROW_BYTES)
    polls = [DelayedResponse() for _ in range(4)]
    for poll in polls[:3]:
        parked.add(poll, ROWS)
    assert [poll.is_ready for poll in polls] == [True, False, False, False]
    parked.remove(polls[0])  # as at its response
    parked.remove(polls[1])
    parked.remove(polls[1])
    assert (len(parked), parked.used_bytes, parked.early_count) == (1, ROWS * ROW_BYTES, 1)
    parked.add(polls[3], ROWS)
    assert not polls[3].is_ready
    for poll in polls:
        parked.remove(poll)
    assert (len(parked), parked.used_bytes) == (0, 0)


def test_small_ones_are_never_ended_by_large_ones() -> None:
    parked = ParkedRequests(limit_bytes=ROWS * ROW_BYTES)
    small = DelayedResponse()
    parked.add(small, UNCOUNTED_ROWS)
    for _ in range(10):
        parked.add(DelayedResponse(), ROWS)
    assert not small.is_ready


def test_one_beyond_the_limit_is_answered_at_once() -> None:
    parked = ParkedRequests(limit_bytes=ROWS * ROW_BYTES)
    parked.add(poll := DelayedResponse(), ROWS + 1)
    assert poll.is_ready
    assert parked.used_bytes == 0


@simulated()
async def test_fetches_that_wait_are_bounded_by_what_they_hold(sim: Simulated) -> None:
    parked = sim.worker.long_polls.parked
    parked.limit_bytes = 2 * ROWS * ROW_BYTES
    clients = [await sim.connect() for _ in range(3)]
    await clients[0].create("t")
    # One partition exists; the others make the request a large one.
    message = fetch_message({"t": [(i, 0) for i in range(ROWS)]}, max_wait_ms=60_000)
    began = sim.now
    for number, client in enumerate(clients, 1):
        await client.ask(ApiKey.FETCH, message, FETCH_VERSION)
        while len(parked) + parked.early_count < number:
            await trio.sleep(0.01)
    first = await clients[0].answer(ApiKey.FETCH, FETCH_VERSION)
    assert len(first.responses[0].partitions) == ROWS
    assert sim.now - began < 1
    assert (len(parked), parked.early_count) == (2, 1)
    for client in clients[1:]:
        await client.answer(ApiKey.FETCH, FETCH_VERSION)
        assert sim.now - began >= 59
    assert parked.used_bytes == 0


@pytest.mark.slow
@simulated()
async def test_all_polls_of_many_partitions_are_answered_after_one_append(sim: Simulated) -> None:
    """Fifty connections wait for the same thousand partitions, and each receives one batch."""
    producer = await sim.connect()
    await producer.create("t", PRESENT)
    clients = [await sim.connect() for _ in range(POLLS)]
    message = fetch_message({"t": [(i, 0) for i in range(ROWS)]}, max_wait_ms=600_000)
    for client in clients:
        await client.ask(ApiKey.FETCH, message, FETCH_VERSION)
    parked = sim.worker.long_polls.parked
    while len(parked) < POLLS:
        await trio.sleep(0.01)
    answered: list[list[int]] = []

    async def take(client: RawClient) -> None:
        answer = await client.answer(ApiKey.FETCH, FETCH_VERSION)
        rows = answer.responses[0].partitions
        assert len(rows) == ROWS
        answered.append([row.partition_index for row in rows if row.records])

    with trio.move_on_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(take, client)
            await producer.produce("t", batch_of(b"x"), partition=PRESENT - 1)
    assert answered == [[PRESENT - 1]] * POLLS
    assert not parked.used_bytes
    assert not sim.worker.long_polls


@simulated()
async def test_a_connection_that_ends_gives_back_what_its_poll_held(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("t")
    message = fetch_message({"t": [(i, 0) for i in range(ROWS)]}, max_wait_ms=60_000)
    await client.ask(ApiKey.FETCH, message, FETCH_VERSION)
    parked = sim.worker.long_polls.parked
    while not parked.used_bytes:
        await trio.sleep(0.01)
    client.connection.close()
    while parked.used_bytes:
        await trio.sleep(0.01)
    assert not sim.worker.long_polls
