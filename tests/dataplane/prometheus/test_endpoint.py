"""Prometheus gets responses while other hosts hold connections to /metrics; time is virtual."""

import logging
from collections.abc import Awaitable, Callable

import pytest
import trio

from metaquorum.dataplane.instruments.log_rate_limit import ADDRESS_LINES
from metaquorum.dataplane.prometheus.collector import Collector
from metaquorum.dataplane.prometheus.endpoint import (
    HEAD_S,
    IDLE_S,
    MAX_CONNECTIONS,
    MetricsEndpoint,
)
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.runtime import Connection, Runtime
from metaquorum.simulations.kernel.machine import Fate
from metaquorum.simulations.kernel.world import World

PORT = 9100
HEAD = b"GET /metrics HTTP/1.1\r\nhost: here\r\n"
REQUEST = HEAD + b"\r\n"
SMALL = b"HEAD / HTTP/1.1\r\nhost: here\r\n\r\n"

Story = Callable[["Hosts"], Awaitable[None]]


class Hosts:
    """Machines that connect to the endpoint of the machine `server`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._runtimes: dict[str, Runtime] = {}

    async def connect(self, host: str, sent: bytes = b"") -> Connection:
        if host not in self._runtimes:
            ready = trio.Event()

            async def program(runtime: Runtime) -> None:
                self._runtimes[host] = runtime
                ready.set()
                await trio.sleep_forever()

            self.world.machine(host).start(program)
            await ready.wait()
        connection = await self._runtimes[host].network.connect("server", PORT)
        if sent:
            await connection.send(sent)
        return connection

    async def connect_many(self, host: str, sent: bytes, count: int) -> list[Connection]:
        made = [await self.connect(host, sent) for _ in range(count)]
        await self.world.sleep(0.5)
        return made


async def answer(connection: Connection) -> bytes:
    """The first bytes of an answer; none where the connection was closed."""
    buffer = bytearray(12)
    try:
        count = await connection.receive_into(buffer)
    except OSError:
        return b""
    return bytes(buffer[:count])


async def closed_after_s(hosts: Hosts, connection: Connection) -> float:
    began = hosts.world.now
    assert await answer(connection) == b""
    return hosts.world.now - began


def told(scenario: Story) -> None:
    world = World(1)

    async def main(world: World) -> None:
        async def serve(runtime: Runtime) -> None:
            loader = MetadataLoader("AAAAAAAAAAAAAAAAAAAAAA")
            collector = Collector("AAAAAAAAAAAAAAAAAAAAAA", 1, loader, runtime.clock)
            listener = await runtime.network.listen("server", PORT)
            await MetricsEndpoint(runtime, listener, collector).run()

        served: Fate = world.machine("server").start(serve)
        await world.sleep(0.1)
        with trio.fail_after(600):
            await scenario(Hosts(world))
        assert served.error is None

    world.run(main)
    for violation in world.violations:
        raise violation


@pytest.mark.parametrize("sent", [b"", b"G", HEAD], ids=["nothing", "a byte", "half a head"])
@pytest.mark.parametrize("other", ["prometheus", "attacker"])
def test_half_open_connections_do_not_shut_prometheus_out(sent: bytes, other: str) -> None:
    async def scenario(hosts: Hosts) -> None:
        await hosts.connect_many("attacker", sent, 3 * MAX_CONNECTIONS)
        for _ in range(3):
            scraping = await hosts.connect(other, REQUEST)
            assert await answer(scraping) == b"HTTP/1.1 200"
            scraping.close()
            await hosts.connect_many("attacker", sent, MAX_CONNECTIONS)

    told(scenario)


def test_no_more_connections_are_held_than_there_may_be() -> None:
    async def scenario(hosts: Hosts) -> None:
        held = await hosts.connect_many("attacker", b"G", 3 * MAX_CONNECTIONS)
        closed = [connection for connection in held if connection.receive_nowait(bytearray(1)) == 0]
        assert closed == held[: 2 * MAX_CONNECTIONS], "the oldest make room"

    told(scenario)


def test_a_head_that_does_not_end_is_bounded_by_seconds_however_it_is_fed() -> None:
    async def scenario(hosts: Hosts) -> None:
        silent, fed = await hosts.connect("one"), await hosts.connect("two", b"GET /")

        async def feed() -> None:
            while True:
                await hosts.world.sleep(HEAD_S / 10)
                await fed.send(b"x")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed)
            assert HEAD_S - 1 < await closed_after_s(hosts, silent) < HEAD_S + 1
            assert await closed_after_s(hosts, fed) < 1
            nursery.cancel_scope.cancel()

    told(scenario)


def test_a_connection_that_has_been_answered_may_be_idle_but_not_begin_in_vain() -> None:
    async def scenario(hosts: Hosts) -> None:
        kept, begun = await hosts.connect("one", SMALL), await hosts.connect("two", SMALL)
        for connection in (kept, begun):
            assert await answer(connection) == b"HTTP/1.1 404"
            await hosts.world.sleep(0.1)
            await connection.receive_into(bytearray(1000))
        await hosts.world.sleep(IDLE_S / 2)
        await kept.send(REQUEST)
        assert await answer(kept) == b"HTTP/1.1 200"
        await begun.send(b"GET")
        assert HEAD_S - 1 < await closed_after_s(hosts, begun) < HEAD_S + 1

    told(scenario)


def test_who_does_not_read_the_answer_does_not_shut_prometheus_out() -> None:
    async def scenario(hosts: Hosts) -> None:
        await hosts.connect_many("attacker", REQUEST * 50, MAX_CONNECTIONS)
        scraping = await hosts.connect("prometheus", REQUEST)
        assert await answer(scraping) == b"HTTP/1.1 200"

    told(scenario)


def test_the_host_with_the_most_connections_makes_room() -> None:
    """Prometheus keeps its connection between two scrapes, though it is the oldest of all."""

    async def scenario(hosts: Hosts) -> None:
        scraping = await hosts.connect("prometheus", REQUEST)
        for _ in range(3):
            assert await answer(scraping) == b"HTTP/1.1 200"
            await hosts.world.sleep(1)
            await scraping.receive_into(bytearray(1 << 20))
            await hosts.connect_many("attacker", b"", 2 * MAX_CONNECTIONS)
            await scraping.send(REQUEST)

    told(scenario)


def test_a_host_that_connects_in_a_loop_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(hosts: Hosts) -> None:
        for _ in range(10):
            await hosts.connect_many("attacker", b"nonsense\r\n\r\n", 2 * MAX_CONNECTIONS)
        await (await hosts.connect("prometheus", b"nonsense\r\n\r\n")).receive_into(bytearray(1))

    with caplog.at_level(logging.DEBUG, logger="metaquorum.dataplane.prometheus.endpoint"):
        told(scenario)
    lines = [each.getMessage() for each in caplog.records if "dataplane" in each.name]
    assert ADDRESS_LINES < len(lines) < 2 * ADDRESS_LINES
    assert "prometheus" in lines[-1]
    assert "lines were omitted" in lines[-1]
