"""Simulated machines: stops at any point, connections, clocks, and seeds that repeat."""

import errno
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest
import trio

from metaquorum.runtime.interfaces import Connection, Runtime, sleep
from metaquorum.simulations.kernel.process import MachineStopped
from metaquorum.simulations.kernel.world import Violation, World

PORT = 7000


async def receive_exactly(connection: Connection, size: int) -> bytes:
    data = bytearray(size)
    got = 0
    while got < size:
        count = await connection.receive_into(memoryview(data)[got:])
        if count == 0:
            raise EOFError
        got += count
    return bytes(data)


def appending_server(path: str = "/log") -> Callable[[Runtime], Awaitable[None]]:
    """Return a server that appends ten bytes, syncs them, and sends them back."""

    async def serve(runtime: Runtime) -> None:
        file = runtime.disk.open(path, create=True)
        await runtime.disk.run(lambda: runtime.disk.sync_dir("/"))
        listener = await runtime.network.listen("", PORT)

        async def handle(connection: Connection) -> None:
            try:
                while True:
                    data = await receive_exactly(connection, 10)
                    file.write(data, file.size())
                    await runtime.disk.run(file.sync)
                    await connection.send(data)
            except (OSError, EOFError):
                pass
            finally:
                connection.close()

        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(handle, await listener.accept())

    return serve


async def scenario(world: World) -> None:
    """Append with kills, power losses and pauses; acknowledged bytes must be in the file."""
    draw = world.stream("story")
    server, client = world.machine("server"), world.machine("client")
    acknowledged: list[bytes] = []

    async def write(runtime: Runtime) -> None:
        number = 0
        while True:
            try:
                connection = await runtime.network.connect("server", PORT)
                while True:
                    data = b"%010d" % number
                    number += 1
                    await connection.send(data)
                    with trio.fail_after(1):
                        if await receive_exactly(connection, 10) == data:
                            acknowledged.append(data)
            except (OSError, EOFError, trio.TooSlowError):
                await sleep(runtime.clock, 0.05)

    client.start(write)
    for _ in range(6):
        server.start(appending_server())
        server.stop_at_disk_change(draw.randint(5, 60), draw.choice(["kill", "power"]))
        await server.fate.done.wait()
    await world.sleep(0.1)
    client.kill()
    left = bytes(server.storage.file("/log").data)
    for data in acknowledged:
        if data not in left:
            raise Violation("R4", f"{data!r} was acknowledged, but is lost")
    world.count("acknowledged", len(acknowledged))


def run(seed: int) -> World:
    world = World(seed)
    world.run(scenario)
    return world


def test_synced_appends_survive_every_stop() -> None:
    worlds = [run(seed) for seed in range(20)]
    assert not [world.violations for world in worlds if world.violations]
    assert all(world.counts["acknowledged"] > 5 for world in worlds)


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_in_another_process_with_another_hash_seed() -> None:
    here = [run(seed).trace.digest() for seed in range(5)]
    code = (
        "from tests.simulations.kernel.test_world import run\n"
        "print([run(seed).trace.digest() for seed in range(5)])"
    )
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        )
        assert there.stdout.strip() == str(here)
    assert len(set(here)) == 5


def in_world(
    inner: Callable[[World], Awaitable[None]],
) -> World:
    world = World(1)
    world.run(inner)
    if world.violations:
        raise world.violations[0]
    return world


def test_a_stopped_process_writes_nothing_more_not_even_in_finally() -> None:
    async def program(runtime: Runtime) -> None:
        file = runtime.disk.open("/f", create=True)
        try:
            await trio.sleep_forever()
        finally:
            try:
                file.write(b"too late", 0)
            except MachineStopped:
                file.write(b"still too late", 0)

    async def inner(world: World) -> None:
        machine = world.machine("m")
        machine.start(program)
        await world.sleep(1)
        machine.kill()
        await machine.fate.done.wait()
        assert machine.storage.file("/f").data == b""

    in_world(inner)


def test_a_function_on_the_disk_is_cut_in_the_middle() -> None:
    async def program(runtime: Runtime) -> None:
        def write_three() -> None:
            file = runtime.disk.open("/f", create=True)
            for position in range(3):
                file.write(b"x", position)

        with pytest.raises(MachineStopped):
            await runtime.disk.run(write_three)
        raise MachineStopped

    async def inner(world: World) -> None:
        machine = world.machine("m")
        machine.start(program)
        machine.stop_at_disk_change(3, "kill")
        await machine.fate.done.wait()
        assert len(machine.storage.file("/f").data) in (1, 2)
        assert not machine.running

    in_world(inner)


def test_a_paused_process_does_nothing_until_it_is_resumed() -> None:
    ticks: list[float] = []

    async def program(runtime: Runtime) -> None:
        while True:
            await sleep(runtime.clock, 0.1)
            ticks.append(runtime.clock.monotonic())

    async def inner(world: World) -> None:
        machine = world.machine("m", rate=1.001)
        machine.start(program)
        await world.sleep(1.05)
        before = len(ticks)
        assert before in (10, 11)
        machine.pause()
        await world.sleep(5)
        assert len(ticks) == before
        machine.resume()
        await world.sleep(0.05)
        assert len(ticks) == before + 1

    in_world(inner)


def test_connections_end_as_tcp_ends_them() -> None:
    seen: list[object] = []

    async def server(runtime: Runtime) -> None:
        listener = await runtime.network.listen("0.0.0.0", PORT)
        first = await listener.accept()
        await first.send(b"whole message")
        first.close()
        second = await listener.accept()
        await trio.sleep_forever()
        second.close()

    async def client(runtime: Runtime) -> None:
        connection = await runtime.network.connect("server", PORT)
        seen.append(await receive_exactly(connection, 13))
        seen.append(await connection.receive_into(bytearray(1)))
        with pytest.raises(OSError, match="refused"):
            await runtime.network.connect("server", PORT + 1)
        connection = await runtime.network.connect("server", PORT)
        try:
            await connection.receive_into(bytearray(1))
            seen.append("end")
        except OSError as error:
            seen.append(error.errno)

    async def inner(world: World) -> None:
        machine = world.machine("server")
        machine.start(server)
        fate = world.machine("client").start(client)
        await world.sleep(2)
        machine.kill()
        await fate.done.wait()
        assert fate.error is None, fate.error
        assert seen == [b"whole message", 0, "end"]

    in_world(inner)


def test_a_cut_link_holds_bytes_until_it_heals_and_a_slow_reader_stops_its_writer() -> None:
    arrived: list[tuple[float, int]] = []
    sent: list[int] = []

    async def inner(world: World) -> None:
        async def server(runtime: Runtime) -> None:
            connection = await (await runtime.network.listen("", PORT)).accept()
            await world.sleep(5)
            while count := await connection.receive_into(bytearray(50_000)):
                arrived.append((world.now, count))

        async def client(runtime: Runtime) -> None:
            connection = await runtime.network.connect("server", PORT)
            world.internet.cut("client", "server")
            for _ in range(10):
                await connection.send(b"x" * 50_000)
                sent.append(50_000)
            connection.close()

        world.machine("server").start(server)
        fate = world.machine("client").start(client)
        await world.sleep(2)
        assert sum(sent) == 50_000  # the second does not fit
        world.internet.heal("client", "server")
        await world.sleep(2)
        assert sum(sent) == 50_000  # the server does not read
        await fate.done.wait()
        await world.sleep(1)
        assert sum(count for _, count in arrived) == 500_000

    in_world(inner)


def test_a_machine_without_power_is_silent_and_resets_after_it_is_back() -> None:
    seen: list[int | None] = []

    async def inner(world: World) -> None:
        async def server(runtime: Runtime) -> None:
            connection = await (await runtime.network.listen("", PORT)).accept()
            await trio.sleep_forever()
            connection.close()

        async def client(runtime: Runtime) -> None:
            connection = await runtime.network.connect("server", PORT)
            await world.sleep(1)
            await connection.send(b"anyone?")
            try:
                await connection.receive_into(bytearray(1))
            except OSError as error:
                seen.append(error.errno)

        machine = world.machine("server")
        machine.start(server)
        fate = world.machine("client").start(client)
        await world.sleep(0.5)
        machine.power_cut()
        await world.sleep(5)
        assert not seen
        machine.start(server)
        await fate.done.wait()
        assert seen == [errno.ECONNRESET]

    in_world(inner)


def test_a_reset_is_told_to_both_ends_of_every_connection_between_two_machines() -> None:
    async def check(world: World) -> None:
        one, other, third = (world.machine(name) for name in ("one", "other", "third"))
        ended: list[tuple[str, int | None]] = []

        async def read(name: str, connection: Connection) -> None:
            try:
                await connection.receive_into(bytearray(1))
            except OSError as error:
                ended.append((name, error.errno))

        async def serve(runtime: Runtime) -> None:
            listener = await runtime.network.listen("", PORT)
            async with trio.open_nursery() as nursery:
                while True:
                    nursery.start_soon(read, "server", await listener.accept())

        def client(name: str) -> Callable[[Runtime], Awaitable[None]]:
            async def run(runtime: Runtime) -> None:
                await read(name, await runtime.network.connect("one", PORT))

            return run

        one.start(serve)
        other.start(client("other"))
        third.start(client("third"))
        await world.sleep(1)
        assert world.internet.reset("one", "other") == 2
        await world.sleep(1)
        assert sorted(ended) == [("other", errno.ECONNRESET), ("server", errno.ECONNRESET)]

    in_world(check)


def test_a_clock_that_is_slowed_neither_jumps_nor_wakes_early() -> None:
    async def check(world: World) -> None:
        machine = world.machine("one", skew_s=5.0, rate=1.01)
        woken: list[float] = []

        async def run(runtime: Runtime) -> None:
            began = runtime.clock.monotonic()
            await runtime.clock.sleep_until(began + 10)
            assert runtime.clock.monotonic() - began >= 10
            woken.append(world.now)

        fate = machine.start(run)
        await world.sleep(5)
        before = machine.clock.monotonic(), machine.clock.wall_s()
        machine.clock.run_at(0.5)
        after = machine.clock.monotonic(), machine.clock.wall_s()
        assert after == pytest.approx(before, abs=1e-6)
        await fate.done.wait()
        assert fate.error is None
        assert woken == [pytest.approx(5 + (10 - 5.05) / 0.5, abs=1e-3)]

    in_world(check)


def test_only_what_a_loss_of_power_would_leave_counts_as_durable() -> None:
    async def check(world: World) -> None:
        machine = world.machine("one")

        async def run(runtime: Runtime) -> None:
            runtime.disk.make_dirs("/d")
            runtime.disk.sync_dir("/")
            for name in ("kept", "nameless"):
                file = runtime.disk.open(f"/d/{name}", create=True)
                file.write(b"x", 0)
                file.sync()
                file.write(b"yz", 1)
                if name == "kept":
                    runtime.disk.sync_dir("/d")

        await machine.start(run).done.wait()
        durable = machine.storage.durable_files("/d")
        assert {name: bytes(inode.durable) for name, inode in durable.items()} == {"kept": b"x"}
        machine.lose_disk()
        assert machine.storage.durable_files("/d") == {}

    in_world(check)
