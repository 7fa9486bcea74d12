"""Faults of the simulated disk, and functions in worker threads during them."""

import errno
from collections.abc import Awaitable, Callable

import pytest
import trio

from metaquorum.runtime.interfaces import Identity, Runtime
from metaquorum.simulations.kernel.machine import Machine
from metaquorum.simulations.kernel.storage import Storage
from metaquorum.simulations.kernel.world import World

DATA = b"0123456789"


def play(scenario: Callable[[World, Machine], Awaitable[None]], seed: int = 1) -> World:
    world = World(seed)

    async def play_world(world: World) -> None:
        await scenario(world, world.machine("node"))

    world.run(play_world)
    assert not world.violations, world.violations
    return world


async def run(machine: Machine, program: Callable[[Runtime], Awaitable[None]]) -> None:
    fate = machine.start(program)
    await fate.done.wait()
    if fate.error is not None:
        raise fate.error


def test_a_read_that_fails_leaves_the_bytes_as_they_were() -> None:
    async def scenario(world: World, machine: Machine) -> None:
        async def program(runtime: Runtime) -> None:
            file = runtime.disk.open("/a", create=True)
            file.write(DATA, 0)
            machine.faults.failing_read = lambda path: path == "/a"
            for read in (lambda: file.read(3, 0), lambda: runtime.disk.read_file("/a")):
                with pytest.raises(OSError, match="a") as failure:
                    read()
                assert failure.value.errno == errno.EIO
            machine.faults.failing_read = None
            assert file.read(3, 0) == DATA[:3]

        await run(machine, program)
        assert machine.faults.failures == 2

    play(scenario)


def test_what_is_synced_as_a_whole_survives_a_loss_of_power() -> None:
    async def scenario(world: World, machine: Machine) -> None:
        machine.faults.syncs_all = True

        async def program(runtime: Runtime) -> None:
            for name in ("/a", "/b"):
                runtime.disk.open(name, create=True).write(DATA, 0)
            assert runtime.disk.sync_all("/")

        await run(machine, program)
        machine.power_cut()
        assert [bytes(inode.data) for inode in machine.storage.files().values()] == [DATA, DATA]

    play(scenario)


def test_an_image_that_is_put_back_has_what_was_durable_when_it_was_made() -> None:
    async def scenario(world: World, machine: Machine) -> None:
        async def program(runtime: Runtime) -> None:
            file = runtime.disk.open("/a", create=True)
            runtime.disk.sync_dir("/")
            file.write(DATA, 0)
            file.sync()
            image = machine.storage.image()
            file.write(b"later", 0)
            file.sync()
            images.append(image)

        images: list[object] = []
        await run(machine, program)
        before = machine.storage
        machine.put_back(images[0])  # type: ignore[arg-type]
        assert bytes(machine.storage.file("/a").data) == DATA
        assert bytes(before.file("/a").data) == b"later56789"
        # After a restart, the machine's boot id differs from the one at the time of the image.
        assert machine.storage.power_cuts == before.power_cuts + 1

    play(scenario)


def test_a_folder_has_the_same_identity_until_it_or_the_disk_is_replaced() -> None:
    async def scenario(world: World, machine: Machine) -> None:
        async def look(runtime: Runtime) -> None:
            seen.append(runtime.disk.identity("/a"))

        async def make(runtime: Runtime) -> None:
            runtime.disk.make_dirs("/a/b")
            runtime.disk.sync_dir("/")
            assert runtime.disk.identity("/a") != runtime.disk.identity("/a/b")
            images.append(machine.storage.image())
            await look(runtime)

        async def replace(runtime: Runtime) -> None:
            runtime.disk.remove_tree("/a")
            await make(runtime)

        seen: list[Identity] = []
        images: list[Storage] = []
        await run(machine, make)
        await run(machine, look)
        machine.power_cut()
        await run(machine, look)
        assert len(set(seen)) == 1
        await run(machine, replace)
        machine.put_back(images[0])
        await run(machine, look)
        machine.lose_disk()
        await run(machine, make)
        assert len(set(seen)) == 4

    play(scenario)


def test_the_loop_runs_between_two_operations_of_a_function_beside_it() -> None:
    async def scenario(world: World, machine: Machine) -> None:
        machine.faults.interleaved = machine.faults.pausing = 1.0
        seen: list[str] = []

        async def program(runtime: Runtime) -> None:
            disk = runtime.disk

            def write() -> str:
                for number in range(5):
                    seen.append("function")
                    disk.open(f"/{number}", create=True)
                return "done"

            async def steps() -> None:
                while True:
                    seen.append("loop")
                    await trio.sleep(0.0001)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(steps)
                assert await disk.run(write) == "done"
                nursery.cancel_scope.cancel()

        await run(machine, program)
        first = seen.index("function")
        last = len(seen) - seen[::-1].index("function")
        assert "loop" in seen[first:last]

    play(scenario)


@pytest.mark.parametrize("how", ["kill", "stop at a change"])
def test_a_function_beside_the_loop_writes_nothing_once_its_machine_has_stopped(how: str) -> None:
    async def scenario(world: World, machine: Machine) -> None:
        machine.faults.interleaved = machine.faults.pausing = 1.0
        ended: list[BaseException] = []

        async def program(runtime: Runtime) -> None:
            def write() -> None:
                try:
                    for number in range(1000):
                        runtime.disk.open(f"/{number}", create=True)
                except BaseException as error:
                    ended.append(error)
                    raise

            await runtime.disk.run(write)

        fate = machine.start(program)
        if how == "kill":
            await world.sleep(0.005)
            machine.kill()
        else:
            machine.stop_at_disk_change(7, "kill")
        await fate.done.wait()
        await world.sleep(0.1)
        assert len(ended) == 1
        assert 0 < len(machine.storage.files()) < 1000

    play(scenario)
