"""Responses that are held to the end of a turn, on real sockets that do not take them then."""

import random
import select
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.connection import ClientConnection, ListenerContext
from metaquorum.dataplane.network.replies import PendingReply, Reply
from metaquorum.dataplane.network.server import Server, ServerLimits
from metaquorum.dataplane.quotas.cpu_meter import OFF, CpuMeter
from metaquorum.runtime import Runtime
from metaquorum.runtime.system import RealClock, RealConnection, RealDisk, RealNetwork
from metaquorum.simulations.kernel.network import SimulatedConnection
from metaquorum.wire.messages.api_versions import ApiVersionsRequest
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import Simulated, run_simulated
from tests.nodes import PATIENCE_S

RESPONSE = b"small response " * 100
FILLER = bytes(1000)
MEMORY_BYTES = 1 << 20
QUIET_S = 0.01
UNREAD = 500  # responses: several times what a connection takes


class Slow:
    """A client that has not read what a node sent, and another one that sends at the same time."""

    def __init__(self, meter: CpuMeter = OFF) -> None:
        self._meter = meter
        self.handled: list[bytes] = []
        self.is_released = trio.Event()

    def handle(self, frame: bytearray | memoryview, _: Client) -> Reply | PendingReply:
        kind = bytes(frame[:1])
        self.handled.append(kind)
        if kind == b"!":
            raise WireError("nonsense")
        if kind == b"p":
            return PendingReply(self._wait())
        return RESPONSE

    async def _wait(self) -> bytes:
        await self.is_released.wait()
        return b"late"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        network = RealNetwork()
        listener = await network.listen("127.0.0.1", 0)
        runtime = Runtime(RealClock(), network, RealDisk(), random.Random(1))
        limits = ServerLimits(MEMORY_BYTES, MEMORY_BYTES, 100, 100, -1)
        self.server = Server(
            runtime, [(listener, ListenerContext("PLAINTEXT", self.handle))], limits, self._meter
        )
        with trio.fail_after(PATIENCE_S), ExitStack() as self._ended:
            self._ended.callback(listener.close)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.server.serve)
                self.client = await self._connected(listener.address)
                (self.served,) = self.server._connections
                assert isinstance(self.served, ClientConnection)
                self.other = await self._connected(listener.address)
                (self.second,) = self.server._connections.keys() - {self.served}
                yield
                nursery.cancel_scope.cancel()

    async def _connected(self, address: tuple[str, int]) -> socket.socket:
        before = len(self.server._connections)
        client = self._ended.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(address)
        client.setblocking(False)
        while len(self.server._connections) == before:
            await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked(QUIET_S)
        return client

    @property
    def socket(self) -> RealConnection:
        connection = self.served._connection
        assert isinstance(connection, RealConnection)
        return connection

    async def fill(self) -> int:
        """Fill the buffers of the socket, as earlier responses would; return the size."""
        size = 0
        for _ in range(10):  # the peer's buffer takes more for some time
            while sent := self.socket.send_nowait(FILLER):
                size += sent
            await trio.sleep(QUIET_S)
        return size

    async def ask(self, data: bytes) -> list[bool]:
        """Send `data`, as the other client sends a request, too; return which sends were held."""
        held: list[bool] = []
        send_soon = RealConnection.send_soon

        def noted(connection: RealConnection, *arguments: object) -> bool:
            is_held = send_soon(connection, *arguments)  # type: ignore[arg-type]
            if connection is self.socket:
                held.append(is_held)
            return is_held

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(RealConnection, "send_soon", noted)
            self.client.send(data)
            assert select.select([self.socket._socket], [], [], PATIENCE_S)[0]
            self.other.send(framed(b"r"))
            other = self.second._connection
            assert isinstance(other, RealConnection)
            assert select.select([other._socket], [], [], PATIENCE_S)[0]
            await trio.testing.wait_all_tasks_blocked(QUIET_S)
        return held

    async def read(self, size: int) -> bytes:
        """Read this many bytes, or to the end of the stream."""
        read = bytearray()
        while len(read) < size:
            try:
                data = self.client.recv(1 << 16)
            except BlockingIOError:
                await trio.sleep(0.001)
                continue
            except ConnectionResetError:
                break
            if not data:
                break
            read += data
        return bytes(read)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize(
    "rest",
    [framed(b"!"), framed(b"p"), struct.pack(">i", 800_000) + b"r"],
    ids=["nonsense", "pending", "memory"],
)
def test_a_held_response_that_the_client_does_not_take_is_sent_before_what_the_task_waits_for(
    rest: bytes,
) -> None:
    async def main() -> None:
        slow = Slow()
        async with slow.serving():
            if rest[4:] == b"r":
                assert slow.server._memory.reserve_nowait(MEMORY_BYTES // 2)
            size = await slow.fill()
            assert (await slow.ask(framed(b"r") + rest))[:1] == [True]
            assert await slow.read(size + len(RESPONSE)) == bytes(size) + RESPONSE
            slow.is_released.set()
            if rest == framed(b"p"):
                assert await slow.read(4) == b"late"

    trio.run(main)


def test_responses_that_the_client_does_not_take_are_not_held_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A held one is given back at the end of the step, in a network where a step is a turn."""
    held: list[bool] = []
    send_soon = SimulatedConnection.send_soon

    def counted(connection: SimulatedConnection, *arguments: object) -> bool:
        held.append(send_soon(connection, *arguments))  # type: ignore[arg-type]
        assert len(held) <= UNREAD, "held again without a request"
        return held[-1]

    async def scenario(here: Simulated) -> None:
        client = await here.connect()
        for _ in range(UNREAD):
            await client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0)
        await here.runtime.clock.sleep_until(here.now + 1)
        for number in range(UNREAD):
            assert await client.correlation_id() == number + 1
        assert True in held

    monkeypatch.setattr(SimulatedConnection, "send_soon", counted)
    run_simulated(scenario)


def test_a_drain_sends_held_responses_that_the_client_did_not_take() -> None:
    async def main() -> None:
        slow = Slow()
        async with slow.serving():
            size = await slow.fill()
            assert (await slow.ask(framed(b"r")))[:1] == [True]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(slow.server.drain)
                await trio.testing.wait_all_tasks_blocked(QUIET_S)
                slow.other.setblocking(False)
                assert await slow.read(size + len(RESPONSE) + 1) == bytes(size) + RESPONSE

    trio.run(main)


def test_a_step_sends_at_once_while_its_cpu_time_is_metered() -> None:
    async def main() -> None:
        meter = CpuMeter(time.thread_time, lambda _: None)
        meter.is_on = True
        slow = Slow(meter)
        async with slow.serving():
            assert await slow.ask(framed(b"r")) == []
            assert await slow.read(len(RESPONSE)) == RESPONSE
            slow.served.client.quota.credit = 3  # its next slices are not metered
            assert await slow.ask(framed(b"r")) == [True]
            assert await slow.read(len(RESPONSE)) == RESPONSE

    trio.run(main)
