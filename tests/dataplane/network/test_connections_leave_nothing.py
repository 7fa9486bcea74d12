"""A closed connection is freed at once, because the garbage collector rarely runs (`mq-server`)."""

import gc
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from metaquorum.dataplane.network.connection import ClientConnection, ListenerContext
from metaquorum.dataplane.network.listener_tls import ListenerTls, TlsSettings
from metaquorum.dataplane.network.principal_mapping import PrincipalMapping
from metaquorum.dataplane.network.server import Server, ServerLimits
from metaquorum.runtime import sleep
from metaquorum.runtime.system import real_runtime
from metaquorum.security.tls_connection import TlsConnection
from metaquorum.security.tls_context import TlsFiles
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import encode_request
from tests.dataplane.network.test_sasl_authenticator import (
    SCRAM_256,
    handshake,
    is_served,
    log_in,
    secured,
)
from tests.dataplane.network.test_server import LIMITS
from tests.dataplane.serving import RawClient, Simulated, fetch_message, in_trio, simulated
from tests.metaquorum.security.certificates import Authority


def connections() -> list[ClientConnection]:
    return [one for one in gc.get_objects() if type(one) is ClientConnection]


class Since:
    """The connections made since its creation, without those that other tests have left."""

    def __init__(self) -> None:
        self._before = connections()

    def made(self) -> list[ClientConnection]:
        known = set(map(id, self._before))
        return [one for one in connections() if id(one) not in known]


async def leaves_nothing(node: Simulated, meet: Callable[[RawClient], Awaitable[object]]) -> None:
    gc.collect()
    since = Since()
    gc.disable()
    try:
        for _ in range(3):
            client = await node.connect()
            await meet(client)
            assert len(since.made()) <= 1
            client.connection.close()
            await sleep(node.runtime.clock, 3)
        left = since.made()
        assert not left, gc.get_referrers(left[-1])
    finally:
        gc.enable()


async def served(client: RawClient) -> None:
    assert await is_served(client)


async def logs_in(client: RawClient) -> None:
    assert (await log_in(client, SCRAM_256)).error_code == 0
    assert await is_served(client)


async def guesses(client: RawClient) -> None:
    await log_in(client, SCRAM_256, password="wr0ng")


async def stops_half_way(client: RawClient) -> None:
    await handshake(client, SCRAM_256)


async def sends_nonsense(client: RawClient) -> None:
    await client.send(struct.pack(">i", -1))


async def waits_for_records(client: RawClient) -> None:
    assert (await client.create("t")).error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)
    asked = fetch_message({"t": [(0, 0)]}, max_wait_ms=500)
    await client.send(encode_request(ApiKey.FETCH, 12, 1, "test", asked))
    await client.send(encode_request(ApiKey.FETCH, 12, 2, "test", asked))


@pytest.mark.slow
@pytest.mark.parametrize("meet", [served, sends_nonsense, waits_for_records])
@simulated()
async def test_a_connection_leaves_nothing(
    node: Simulated, meet: Callable[[RawClient], Awaitable[object]]
) -> None:
    await leaves_nothing(node, meet)


@pytest.mark.slow
@pytest.mark.parametrize("meet", [logs_in, guesses, stops_half_way, sends_nonsense])
@secured()
async def test_one_that_has_to_log_in_leaves_nothing(
    node: Simulated, meet: Callable[[RawClient], Awaitable[object]]
) -> None:
    await leaves_nothing(node, meet)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"neither TLS nor anything", None])
def test_one_with_tls_leaves_nothing(sent: bytes | None, tmp_path: Path) -> None:
    """With None, the TLS handshake succeeds and a frame is sent and returned."""
    store = Authority(tmp_path).store("node")
    listening = ListenerTls(
        TlsSettings(TlsFiles(store, store), "none", PrincipalMapping("DEFAULT"))
    )
    dialing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    dialing.check_hostname, dialing.verify_mode = False, ssl.CERT_NONE
    runtime = real_runtime()

    async def meet(address: tuple[str, int]) -> None:
        connection = await runtime.network.connect(*address)
        if sent is None:
            connection = secured = TlsConnection(connection, dialing, server_hostname="node")
            await secured.handshake()
            await connection.send(b"\0\0\0\1x")
            assert await connection.receive_into(bytearray(10)) == 1
        else:
            await connection.send(sent)
        connection.close()

    @in_trio
    async def main() -> None:
        listener = await runtime.network.listen("127.0.0.1", 0)
        listener_context = ListenerContext("SSL", lambda frame, client: bytes(frame), tls=listening)
        server = Server(runtime, [(listener, listener_context)], ServerLimits(**LIMITS))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            since = Since()
            gc.disable()
            try:
                for number in range(1, 6):
                    await meet(listener.address)
                    while server.accepted_counts["SSL"] < number or server.connection_count:
                        await trio.sleep(0.001)
                    await trio.testing.wait_all_tasks_blocked()
                assert (
                    len(since.made()) <= 1
                )  # the event loop may keep a reference to the last task
            finally:
                gc.enable()
            await server.drain()

    gc.collect()
    main()
