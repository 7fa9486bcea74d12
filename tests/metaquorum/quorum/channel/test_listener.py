"""Connections to the listener of a controller, and its answers."""

import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from metaquorum.quorum.channel import (
    Caller,
    Cause,
    ChannelListener,
    ChannelTimings,
    End,
    HandshakeError,
    RpcClient,
    RpcServer,
    StreamKind,
    listener,
)
from metaquorum.quorum.channel.listener import MAX_IN_HANDSHAKE
from metaquorum.runtime.interfaces import Connection
from tests.metaquorum.quorum.channel.nodes import (
    HOST,
    PATIENT,
    SECRET,
    endpoint,
    in_trio,
    shared_runtime,
)
from tests.nodes import PATIENCE_S

QUICK = replace(PATIENT, keepalive_s=0.02, silent_keepalives=10)


async def echo(caller: Caller, method: str, payload: bytes) -> bytes:
    return payload


@asynccontextmanager
async def listening(
    timings: ChannelTimings | None = None,
) -> AsyncIterator[ChannelListener]:
    async with trio.open_nursery() as nursery:
        found = ChannelListener(endpoint(1, timings=timings), rpc=RpcServer(echo))
        await found.listen(HOST, 0)
        nursery.start_soon(found.run)
        yield found
        nursery.cancel_scope.cancel()


async def knock(address: tuple[str, int]) -> Connection:
    return await shared_runtime().network.connect(*address)


async def everything(connection: Connection) -> bytes:
    """Return all bytes that the listener sends until it closes."""
    data, buffer = b"", bytearray(1000)
    with contextlib.suppress(ConnectionError):
        while count := await connection.receive_into(buffer):
            data += buffer[:count]
    connection.close()
    return data


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"secret": b"quite another secret"}, "another cluster secret"),
        ({"cluster_id": "AnotherCluster"}, "another cluster"),
        ({"node_id": 7, "dials": 2}, "an unexpected node id"),
    ],
)
@in_trio
async def test_who_does_not_belong_is_told_why_and_logged_without_a_secret(
    change: dict[str, object], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    dials = change.pop("dials", 1)
    change.pop("node_id", None)
    async with listening() as found:
        for _ in range(3):
            with pytest.raises(HandshakeError, match=words):
                await endpoint(7, **change).dial(StreamKind.RPC, dials, *found.address)  # type: ignore[arg-type]
        assert found.rpc_stream_count == 0
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) == 1  # one line for the three attempts
    assert "refused a connection from 127.0.0.1" in lines[0]
    assert "the peer claims to be node 7" in lines[0]
    assert SECRET.decode() not in caplog.text


@in_trio
async def test_strangers_get_no_answer() -> None:
    async with listening() as found:
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\xf0", bytes(1 << 16)):
            connection = await knock(found.address)
            await connection.send(data)
            assert await everything(connection) == b""


@in_trio
async def test_a_port_without_peers_or_calls_says_so() -> None:
    async with listening() as found:
        with pytest.raises(HandshakeError, match="does not accept this kind"):
            await endpoint(7).dial(StreamKind.PEER, 1, *found.address)


@in_trio
async def test_a_proof_for_the_listener_between_workers_opens_no_stream_to_a_controller() -> None:
    async with listening() as found:
        with pytest.raises(HandshakeError, match="does not accept this kind"):
            await endpoint(7).dial(StreamKind.REPLICA, 1, *found.address)
        assert found.rpc_stream_count == 0


@in_trio
async def test_who_says_nothing_is_closed_in_time() -> None:
    async with listening(ChannelTimings(handshake_s=0.1)) as found:
        silent = await knock(found.address)
        begun = await knock(found.address)
        await begun.send(b"mqch")
        assert await everything(silent) == b""
        assert await everything(begun) == b""
        await trio.testing.wait_all_tasks_blocked()
        assert found.in_handshake_count == 0


@in_trio
async def test_a_node_gets_in_however_many_strangers_wait() -> None:
    async with listening(ChannelTimings(handshake_s=30)) as found:
        strangers = []
        for number in range(3 * MAX_IN_HANDSHAKE):
            strangers.append(await knock(found.address))
            if number % 50 == 0:
                (await endpoint(7).dial(StreamKind.RPC, 1, *found.address)).close()
        # The oldest connections were closed; the newest are still open.
        assert await everything(strangers[0]) == b""
        assert found.in_handshake_count <= MAX_IN_HANDSHAKE
        (await endpoint(7).dial(StreamKind.RPC, 1, *found.address)).close()
        for stranger in strangers:
            stranger.close()


@in_trio
async def test_a_controller_with_too_many_connections_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "MAX_RPC_STREAMS", 2)
    async with listening() as found, trio.open_nursery() as nursery:
        clients = [await RpcClient.connect(endpoint(7), 1, *found.address) for _ in range(2)]
        for client in clients:
            nursery.start_soon(client.run)
            await client.call("echo", b"", PATIENCE_S)
        with pytest.raises(HandshakeError, match="too many connections"):
            await endpoint(7).dial(StreamKind.RPC, 1, *found.address)
        for client in clients:
            client.close()


@in_trio
async def test_one_to_a_vanished_node_ends() -> None:
    ends: list[End] = []
    stranded = trio.Event()

    def ended(_: Caller, end: End) -> None:
        ends.append(end)
        stranded.set()

    async with trio.open_nursery() as nursery:
        server = RpcServer(echo, ended=ended)
        found = ChannelListener(endpoint(1, timings=QUICK), rpc=server)
        await found.listen(HOST, 0)
        nursery.start_soon(found.run)
        # The peer authenticates, and then sends nothing.
        stream = await endpoint(7).dial(StreamKind.RPC, 1, *found.address)
        await stranded.wait()
        assert [(end.cause, end.is_evidence) for end in ends] == [(Cause.SILENT, False)]
        stream.close()
        nursery.cancel_scope.cancel()


@in_trio
async def test_calls_of_a_node_that_connects_in_a_loop_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, logger="metaquorum.quorum.channel.rpc_server"):
        async with listening() as found:
            for _ in range(5):
                stream = await endpoint(7).dial(StreamKind.RPC, 1, *found.address)
                while not found.rpc_stream_count:
                    await trio.sleep(0.001)
                stream.close()
                while found.rpc_stream_count:
                    await trio.sleep(0.001)
    (line,) = [each.getMessage() for each in caplog.records if "rpc_server" in each.name]
    assert "node 7 at 127.0.0.1" in line
