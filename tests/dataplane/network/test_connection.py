"""One client connection: order of responses, limits and close, tested with raw frames."""

import gc
import itertools
import logging
import random
import struct
from pathlib import Path

import pytest
import trio

from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    RawClient,
    Simulated,
    batch_of,
    fetch_message,
    frame,
    in_trio,
    produce_message,
    records_of,
    request,
    run_simulated,
    serving,
    simulated,
)

METADATA = frame(ApiKey.METADATA, 5, 7, struct.pack(">ib", 0, 0))
UNKNOWN_API = frame(9999, 0, 1, b"")


def metadata(correlation_id: int) -> bytes:
    return frame(ApiKey.METADATA, 5, correlation_id, struct.pack(">ib", 0, 0))


def produce(correlation_id: int, topic: str, *values: bytes, acks: int = -1) -> bytes:
    message = produce_message(topic, batch_of(*values), acks=acks)
    return request(ApiKey.PRODUCE, message, PRODUCE_VERSION, correlation_id)


def long_poll(correlation_id: int, topic: str, offset: int, max_wait_ms: int) -> bytes:
    message = fetch_message({topic: [(0, offset)]}, max_wait_ms=max_wait_ms)
    return request(ApiKey.FETCH, message, FETCH_VERSION, correlation_id)


@in_trio
async def test_what_came_before_nonsense_in_one_read_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        await client.send(metadata(1) + produce(2, "t", b"kept") + UNKNOWN_API)
        assert [await client.correlation_id(), await client.correlation_id()] == [1, 2]
        assert await client.is_closed()


@in_trio
async def test_what_came_before_a_failed_produce_without_acks_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.send(metadata(1) + produce(2, "absent", b"x", acks=0))
        assert await client.correlation_id() == 1
        assert await client.is_closed()


@in_trio
async def test_a_pipelined_mix_is_answered_in_order_however_it_is_cut(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        stream, expected = b"", []
        for number in range(300):
            match number % 5:
                case 0:
                    stream += metadata(number)
                case 1:
                    stream += produce(number, "t", b"small %d" % number)
                case 2:
                    stream += produce(number, "t", b"silent", acks=0)
                    continue
                case 3:
                    stream += long_poll(number, "t", 0, 1000)
                case 4 if number % 25 == 4:
                    stream += produce(number, "t", random.Random(number).randbytes(300_000))
                case _:
                    stream += long_poll(number, "t", 10**6, 1000)  # an error, answered at once
            expected.append(number)
        draw = random.Random(5)
        cuts = sorted(draw.sample(range(1, len(stream)), 60))

        async def send() -> None:
            for start, end in itertools.pairwise([0, *cuts, len(stream)]):
                await client.send(stream[start:end])
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            assert [await client.correlation_id() for _ in expected] == expected


@simulated()
async def test_a_long_poll_holds_back_what_comes_behind_it_and_loses_nothing(
    sim: Simulated,
) -> None:
    client, other = await sim.connect(), await sim.connect()
    await client.create("t")
    began = sim.now
    await client.send(long_poll(1, "t", 0, 3000) + metadata(2) + long_poll(3, "t", 0, 500))
    assert [await client.correlation_id() for _ in range(3)] == [1, 2, 3]
    assert 3.5 <= sim.now - began < 3.6
    await client.send(metadata(4) + long_poll(5, "t", 0, 60_000) + metadata(6))
    assert await client.correlation_id() == 4
    began = sim.now
    await other.produce("t", batch_of(b"at last"))
    assert [await client.correlation_id(), await client.correlation_id()] == [5, 6]
    assert sim.now - began < 0.1


def test_a_client_that_breaks_off_leaves_nothing_unawaited() -> None:
    """Pipelined responses, then one that must wait, to a client that has disconnected."""

    async def scenario(sim: Simulated) -> None:
        client = await sim.connect()
        await client.create("t", flush_messages=1)
        await client.create("slow")
        for waiting in (
            long_poll(2, "slow", 0, 60_000),
            produce(2, "t", b"flushed"),
            produce(2, "slow", bytes(300_000)),
        ):
            gone = await sim.connect()
            # The connection is reset while requests are pipelined: the node's first send fails.
            await gone.send(b"".join(metadata(1) for _ in range(50)) + waiting)
            gone.connection.close()
        await sim.runtime.clock.sleep_until(sim.runtime.clock.monotonic() + 1)
        assert await client.call(ApiKey.METADATA, MetadataRequest(topics=[]))
        assert len(sim.worker.long_polls) <= 1

    for seed in range(8):
        run_simulated(scenario, seed=seed)
    gc.collect()  # "never awaited" is a warning, and warnings are errors


def test_requests_that_arrive_as_the_node_stops_are_answered_or_not_begun() -> None:
    """Appended records are acknowledged, if the client still reads."""

    async def scenario(sim: Simulated) -> None:
        client = await sim.connect()
        await client.create("t")
        sent = 0
        with_answers = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.on_machine.stop)
            try:
                while True:
                    sent += 1
                    await client.send(produce(sent, "t", b"x"))
                    assert await client.correlation_id() == sent
                    with_answers += 1
            except (OSError, EOFError):
                pass
        sim.world.count("answered", with_answers)

    for seed in range(5):
        run_simulated(scenario, seed=seed)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (UNKNOWN_API, "api_key"),
        (frame(ApiKey.METADATA, 77, 1, b"\0"), "api_version"),
        (frame(ApiKey.METADATA, 5, 1, struct.pack(">ih", 1, 500)), "topics"),
        (struct.pack(">i", -5), "frame size"),
        (struct.pack(">i", 200 << 20), "frame size"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (struct.pack(">ihhih", 12, 3, 5, 1, -2) + b"\xff\xfe", "client_id"),
    ],
    ids=["api", "version", "topics", "negative", "oversized", "http", "client-id"],
)
def test_nonsense_closes_the_connection_with_one_line_that_names_the_field(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, field: str
) -> None:
    @in_trio
    async def test() -> None:
        async with serving(tmp_path) as served:
            client = await served.connect()
            await client.send(data)
            assert await client.is_closed()

    with caplog.at_level(logging.WARNING, logger="metaquorum.dataplane"):
        test()
    lines = [r.getMessage() for r in caplog.records if "closed the connection" in r.getMessage()]
    assert len(lines) == 1
    assert field in lines[0]
    assert "127.0.0.1:" in lines[0]


@pytest.mark.parametrize("version", [-1, 0, 2, 14, 99])
def test_a_produce_in_a_version_not_served_is_not_appended(tmp_path: Path, version: int) -> None:
    """Even if the bytes have the form of a supported version."""

    @in_trio
    async def test() -> None:
        async with serving(tmp_path) as served:
            client = await served.connect()
            topic_id = (await client.create("t")).topic_id
            good = produce_message("t", batch_of(b"x"))
            for like in (8, 9, 13):
                good.topic_data[0].topic_id = topic_id
                data = bytearray(request(ApiKey.PRODUCE, good, like))
                struct.pack_into(">h", data, 6, version)
                one = await served.connect()
                await one.send(bytes(data))
                assert await one.is_closed()
            assert await client.values("t") == []

    test()


async def flood(client: RawClient, data: bytes, counts: list[int] | None = None) -> None:
    while True:
        await client.send(data)
        if counts is not None:
            counts.append(len(data))


@simulated(connections_max_idle_ms=10_000)
async def test_a_reader_that_never_reads_holds_bounded_memory_and_is_closed_when_idle(
    sim: Simulated,
) -> None:
    client, deaf = await sim.connect(), await sim.connect()
    await client.create("t")
    for _ in range(20):
        await client.produce("t", batch_of(bytes(60_000)))
    fetch = long_poll(1, "t", 0, 0)
    with trio.move_on_after(5):  # until the connection takes no more bytes
        await flood(deaf, fetch, counts := [])
    assert sum(counts) < 2 * 64 * 1024  # capacity of the network and of one frame buffer
    assert await client.call(ApiKey.METADATA, MetadataRequest(topics=[]))
    await sim.runtime.clock.sleep_until(sim.runtime.clock.monotonic() + 12)
    with pytest.raises(OSError, match=r"reset|pipe"):
        await flood(deaf, fetch)


@in_trio
async def test_a_large_answer_arrives_whole_by_whatever_way_it_is_sent(tmp_path: Path) -> None:
    """Copied slices, slices by sendfile, and both in one response."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", 3)
        draw = random.Random(1)
        sizes = {0: [1000] * 5, 1: [300_000] * 3, 2: [60_000] * 3}
        values = {p: [draw.randbytes(size) for size in of] for p, of in sizes.items()}
        for partition, of in values.items():
            for value in of:
                row = await client.produce("t", batch_of(value), partition=partition)
                assert row.error_code == 0
        answer = await client.call(
            ApiKey.FETCH, fetch_message({"t": [(0, 0), (1, 0), (2, 0)]}), FETCH_VERSION
        )
        for row in answer.responses[0].partitions:
            found = [record.value for record in records_of(row)]
            assert found == values[row.partition_index]
