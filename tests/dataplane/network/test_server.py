"""The server: connection limits, idle connections and stopping."""

import errno
import logging
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from metaquorum.dataplane.instruments.log_rate_limit import ADDRESS_LINES
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.connection import ListenerContext
from metaquorum.dataplane.network.connection_limits import (
    MAX_PROVISIONAL,
    PROVISIONAL_S,
    PeerListener,
)
from metaquorum.dataplane.network.delayed import DelayedResponse
from metaquorum.dataplane.network.replies import DelayedReply, Handle, PendingReply, Reply
from metaquorum.dataplane.network.server import Server, ServerLimits
from metaquorum.runtime import Connection, Runtime
from metaquorum.runtime.system import RealClock, RealDisk, RealNetwork
from metaquorum.wire.messages.authenticate_replica import AuthenticateReplicaRequest
from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import encode_request
from tests.dataplane.network.test_pipeline import PlayedConnection, framed
from tests.dataplane.serving import in_trio

LIMITS: dict[str, Any] = {
    "max_request_bytes": 1 << 20,
    "max_queued_request_bytes": 1 << 24,
    "max_connections": 100,
    "max_connections_per_ip": 100,
    "max_idle_ms": -1,
}


class PlayedListener:
    """A listener that accepts the connections, or raises the errors, that the test offers."""

    address = ("192.0.2.1", 9092)

    def __init__(self) -> None:
        self._offer, self._offers = trio.open_memory_channel[PlayedConnection | Exception](100)
        self.is_closed = False

    def offer(self, *offers: PlayedConnection | Exception) -> None:
        for one in offers:
            self._offer.send_nowait(one)

    async def accept(self) -> Connection:
        try:
            one: PlayedConnection | Exception = self._offers.receive_nowait()  # no checkpoint
        except trio.WouldBlock:
            one = await self._offers.receive()
        if isinstance(one, Exception):
            raise one
        return one

    def close(self) -> None:
        self.is_closed = True


def echo(frame: memoryview, client: Client) -> Reply | PendingReply:
    return bytes(frame)


def played(
    handle: Handle = echo, peers: PeerListener | None = None, **limits: Any
) -> tuple[Server, PlayedListener]:
    listener = PlayedListener()
    runtime = Runtime(RealClock(), RealNetwork(), RealDisk(), random.Random(1))
    listener_contexts = [(listener, ListenerContext("PLAINTEXT", handle))]
    asked = ServerLimits(**LIMITS | limits)
    return Server(runtime, listener_contexts, asked, peers=peers), listener


def believing_echo(frame: memoryview, client: Client) -> Reply | PendingReply:
    """Echo frames; accept every client that authenticates as worker 2."""
    if frame[:2] == ApiKey.AUTHENTICATE_REPLICA.to_bytes(2, "big"):
        client.replica.worker_id = 2
    return bytes(frame)


@asynccontextmanager
async def serving(
    peers: PeerListener | None = None, **limits: Any
) -> AsyncIterator[tuple[Server, PlayedListener]]:
    server, listener = played(believing_echo, peers, **limits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve)
        yield server, listener
        await server.drain()
    assert listener.is_closed
    assert server.connection_count == 0


def virtual(test: Any) -> Any:
    """Run the test in virtual time, which advances only while all tasks wait."""

    def run(**arguments: Any) -> None:
        async def main() -> None:
            with trio.fail_after(100_000):
                await test(**arguments)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    run.__name__ = test.__name__
    return run


@in_trio
async def test_no_more_connections_than_allowed_are_served() -> None:
    async with serving(max_connections=3) as (server, listener):
        connections = [PlayedConnection() for _ in range(5)]
        listener.offer(*connections)  # all at once, before the task of any connection has run
        await trio.testing.wait_all_tasks_blocked()
        assert [one.is_closed for one in connections] == [False] * 3 + [True] * 2
        connections[0].end()
        await trio.testing.wait_all_tasks_blocked()
        listener.offer(late := PlayedConnection())
        await trio.testing.wait_all_tasks_blocked()
        assert not late.is_closed
        assert server.connection_count == 3


@in_trio
async def test_no_more_connections_of_one_address_than_allowed_are_served() -> None:
    async with serving(max_connections_per_ip=2) as (_, listener):
        same = [PlayedConnection() for _ in range(4)]
        other = PlayedConnection()
        other.peer = ("192.0.2.8", 1)
        listener.offer(*same, other)
        await trio.testing.wait_all_tasks_blocked()
        assert [one.is_closed for one in (*same, other)] == [False, False, True, True, False]
        for one in same:
            one.end()
        await trio.testing.wait_all_tasks_blocked()
        listener.offer(late := PlayedConnection())
        await trio.testing.wait_all_tasks_blocked()
        assert not late.is_closed


PEERS = PeerListener("PLAINTEXT", True, lambda: True)
PROOF = encode_request(
    ApiKey.AUTHENTICATE_REPLICA, 0, 1, "2", AuthenticateReplicaRequest(auth_bytes=b"a proof")
)
METADATA = encode_request(ApiKey.METADATA, 12, 1, "client", MetadataRequest())


@virtual
async def test_another_worker_is_served_whatever_crowd_of_clients_is_there() -> None:
    async with serving(PEERS, max_connections=3, max_connections_per_ip=3) as (server, listener):
        clients = [PlayedConnection() for _ in range(3)]
        listener.offer(*clients)
        await trio.testing.wait_all_tasks_blocked()
        clients[0].feed(framed(b"x"))
        for _ in range(3):
            listener.offer(*(PlayedConnection() for _ in range(MAX_PROVISIONAL)))
            await trio.testing.wait_all_tasks_blocked()
            assert server.connection_count == 3 + MAX_PROVISIONAL
        listener.offer(worker := PlayedConnection())
        worker.feed(PROOF)
        await trio.testing.wait_all_tasks_blocked()
        assert worker.sent
        assert [one.is_closed for one in (*clients, worker)] == [False, True, False, False]
        await trio.sleep(PROVISIONAL_S + 1)
        assert server.connection_count == 3
        assert not worker.is_closed
        listener.offer(late := PlayedConnection())
        late.feed(METADATA + PROOF)
        await trio.testing.wait_all_tasks_blocked()
        assert late.is_closed
        assert not late.sent


@in_trio
async def test_an_address_may_have_a_number_of_its_own() -> None:
    own = {"192.0.2.7": 3}
    async with serving(max_connections_per_ip=1, max_connections_by_ip=own) as (_, listener):
        same, others = ([PlayedConnection() for _ in range(4)] for _ in range(2))
        for one in others:
            one.peer = ("192.0.2.8", 1)
        listener.offer(*same, *others)
        await trio.testing.wait_all_tasks_blocked()
        assert [one.is_closed for one in same] == [False, False, False, True]
        assert [one.is_closed for one in others] == [False, True, True, True]


def test_refusals_are_told_but_not_each(caplog: pytest.LogCaptureFixture) -> None:
    @in_trio
    async def test() -> None:
        async with serving(max_connections=0) as (_, listener):
            listener.offer(*(PlayedConnection() for _ in range(50)))
            await trio.testing.wait_all_tasks_blocked()

    with caplog.at_level(logging.WARNING, logger="metaquorum.dataplane"):
        test()
    assert [record.getMessage() for record in caplog.records] == [
        "refused a connection from 192.0.2.7: 0 connections are open, the limit of max.connections"
    ]


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.EPERM, errno.ENETDOWN]
)
def test_a_failed_accept_is_not_the_end(number: int) -> None:
    """accept(2) also reports network errors that concern one connection only."""

    @virtual
    async def test() -> None:
        async with serving() as (_, listener):
            listener.offer(
                OSError(number, os.strerror(number)),
                OSError(number, os.strerror(number)),
                connection := PlayedConnection(),
            )
            connection.feed(framed(b"x"))
            await trio.sleep(1)
            assert connection.sent == b"x"

    test()


@in_trio
async def test_a_listener_that_ends_before_its_task_was_cancelled_does_no_harm() -> None:
    """A connection arrives in the same turn of the event loop in which the node stops."""
    for error in (OSError(errno.EBADF, "closed"), trio.ClosedResourceError()):
        server, listener = played()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            await trio.testing.wait_all_tasks_blocked()
            listener.offer(error)  # the accepting task is already scheduled
            await server.drain()


@in_trio
async def test_a_server_may_be_stopped_before_it_has_begun_to_accept() -> None:
    network = RealNetwork()
    for _ in range(10):  # the order of the two tasks is random
        listener = await network.listen("127.0.0.1", 0)
        runtime = Runtime(RealClock(), network, RealDisk(), random.Random(1))
        server = Server(
            runtime, [(listener, ListenerContext("PLAINTEXT", echo))], ServerLimits(**LIMITS)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            nursery.start_soon(server.drain)


@in_trio
async def test_a_connection_that_comes_in_the_turn_of_the_stop_does_not_delay_it() -> None:
    for _ in range(20):  # the order within a turn is random
        server, listener = played(drain_seconds=1000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            listener.offer(first := PlayedConnection())
            await trio.testing.wait_all_tasks_blocked()
            listener.offer(second := PlayedConnection())
            await server.drain()
        assert first.is_closed
        assert second.is_closed


@virtual
async def test_draining_waits_for_slow_readers_but_not_for_ever() -> None:
    server, listener = played(drain_seconds=5)
    slow = PlayedConnection()
    slow.window_bytes = 1
    slow.feed(framed(b"an answer that is not taken"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve)
        listener.offer(slow)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await server.drain()
        assert trio.current_time() - began == pytest.approx(5)
    assert slow.is_closed


@virtual
async def test_a_connection_without_requests_is_closed_when_idle_and_no_other() -> None:
    async with serving(max_idle_ms=60_000) as (server, listener):
        idle, busy = PlayedConnection(), PlayedConnection()
        listener.offer(idle, busy)
        began = trio.current_time()
        while not idle.is_closed:
            await trio.sleep(1)
            busy.feed(framed(b"x"))
        assert 60 <= trio.current_time() - began <= 75
        assert not busy.is_closed
        assert server.connection_count == 1


class LateResponse(DelayedResponse):
    """A response that the test makes ready."""

    def __init__(self, *, may_outlast_idle: bool) -> None:
        super().__init__(may_outlast_idle=may_outlast_idle)
        self.is_cancelled = False

    def complete(self) -> bytes:
        return b"late"

    def cancel(self) -> None:
        self.is_cancelled = True


@asynccontextmanager
async def waiting_for(response: LateResponse) -> AsyncIterator[PlayedConnection]:
    """Serve a connection whose only request waits for `response`, with an idle time of a minute."""

    def handle(frame: memoryview, client: Client) -> DelayedReply:
        return DelayedReply(response, lambda reply: reply)

    server, listener = played(handle, max_idle_ms=60_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve)
        connection = PlayedConnection()
        listener.offer(connection)
        connection.feed(framed(b"x"))
        yield connection
        await server.drain()


@virtual
async def test_a_response_that_may_outlast_idle_keeps_its_connection_open() -> None:
    response = LateResponse(may_outlast_idle=True)
    async with waiting_for(response) as connection:
        await trio.sleep(300)
        assert not connection.is_closed
        response.ready()
        await trio.testing.wait_all_tasks_blocked()
        assert bytes(connection.sent) == b"late"
        began = trio.current_time()
        while not connection.is_closed:
            await trio.sleep(1)
        assert 55 <= trio.current_time() - began <= 75  # idle again, from the response on


@virtual
async def test_any_other_delayed_response_does_not_keep_its_connection_open() -> None:
    async with waiting_for(LateResponse(may_outlast_idle=False)) as connection:
        await trio.sleep(75)
        assert connection.is_closed


@virtual
async def test_a_response_that_may_outlast_idle_is_cancelled_when_its_client_leaves() -> None:
    for later in (b"", framed(b"y"), framed(b"y")[:3]):
        response = LateResponse(may_outlast_idle=True)
        async with waiting_for(response) as connection:
            await trio.sleep(1)
            if later:
                connection.feed(later)
            await trio.sleep(1)
            assert not response.is_cancelled
            connection.end()
            await trio.sleep(1)
            assert response.is_cancelled
            assert connection.is_closed
            assert not connection.sent


@virtual
async def test_without_a_limit_connections_stay_idle_for_ever() -> None:
    async with serving(max_idle_ms=-1) as (_, listener):
        listener.offer(idle := PlayedConnection())
        await trio.sleep(10_000)
        assert not idle.is_closed


@virtual
async def test_a_limit_of_nothing_does_not_keep_the_processor_busy() -> None:
    slicer = 0

    class TimeSlicer(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal slicer
            slicer += 1

    async with serving(max_idle_ms=0) as (_, listener):
        trio.lowlevel.add_instrument(TimeSlicer())
        listener.offer(idle := PlayedConnection())
        await trio.sleep(1)
        assert idle.is_closed
    assert slicer < 1000


def test_a_bug_in_a_handler_ends_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    def buggy(frame: memoryview, client: Client) -> Reply | PendingReply:
        if bytes(frame) == b"x":
            raise KeyError("a bug")
        return bytes(frame)

    @in_trio
    async def test() -> None:
        server, listener = played(buggy)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            bad, good = PlayedConnection(), PlayedConnection()
            listener.offer(bad, good)
            bad.feed(framed(b"x"))
            await trio.testing.wait_all_tasks_blocked()
            good.feed(framed(b"y"))
            await trio.testing.wait_all_tasks_blocked()
            assert bad.is_closed
            assert good.sent == b"y"
            await server.drain()

    with caplog.at_level(logging.ERROR, logger="metaquorum.dataplane"):
        test()
    (record,) = caplog.records
    assert record.exc_info


@in_trio
async def test_real_sockets_hang_up_in_every_way_and_leave_nothing_behind() -> None:
    network = RealNetwork()
    listener = await network.listen("127.0.0.1", 0)
    runtime = Runtime(RealClock(), network, RealDisk(), random.Random(1))
    server = Server(
        runtime, [(listener, ListenerContext("PLAINTEXT", echo))], ServerLimits(**LIMITS)
    )
    linger = b"\1\0\0\0\0\0\0\0"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve)
        for number in range(60):
            with socket.create_connection(listener.address) as sock:
                match number % 4:
                    case 0:
                        sock.sendall(b"\0\0")
                    case 1:
                        sock.sendall(framed(b"x" * 100_000)[:5000])
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    case 2:
                        sock.sendall(framed(*[b"x" * 10_000] * 10))
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    case 3:
                        sock.sendall(framed(b"x"))
                        sock.shutdown(socket.SHUT_WR)
                await trio.lowlevel.checkpoint()
        while server.connection_count:
            await trio.sleep(0.001)
        await server.drain()


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_connections_that_break_in_a_loop_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    """Nor do lines that are not written take the place of others."""

    @in_trio
    async def scenario() -> None:
        network = RealNetwork()
        listener = await network.listen("127.0.0.1", 0)
        runtime = Runtime(RealClock(), network, RealDisk(), random.Random(1))
        server = Server(
            runtime, [(listener, ListenerContext("PLAINTEXT", echo))], ServerLimits(**LIMITS)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            for _ in range(3 * ADDRESS_LINES):
                with socket.create_connection(listener.address) as sock:
                    sock.sendall(framed(b"x" * 100_000)[:5000])
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    while not server.connection_count:
                        await trio.sleep(0.001)
                while server.connection_count:
                    await trio.sleep(0.001)
            if level > logging.DEBUG:
                with socket.create_connection(listener.address) as sock:
                    sock.sendall(b"\xff" * 4)
                    while not caplog.records:
                        await trio.sleep(0.001)
            await server.drain()

    with caplog.at_level(level, logger="metaquorum.dataplane.network.connection"):
        scenario()
    lines = [
        each for each in caplog.records if each.name == "metaquorum.dataplane.network.connection"
    ]
    if level > logging.DEBUG:
        (line,) = lines
        assert line.levelno == logging.WARNING
    else:
        assert 0 < len(lines) <= ADDRESS_LINES + 5
