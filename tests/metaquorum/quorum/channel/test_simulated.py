"""Meshes in a simulated world: network failures, kills, power loss, pauses."""

import os
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest
import trio

from metaquorum.quorum.channel import (
    Caller,
    CallLostError,
    Cause,
    ChannelIdentity,
    ChannelListener,
    End,
    Endpoint,
    HandshakeError,
    PeerMesh,
    RpcClient,
    RpcServer,
)
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.kernel.machine import Machine
from metaquorum.simulations.kernel.world import Violation, World
from tests.metaquorum.quorum.channel.nodes import SECRET, Voter

PORT = 9093
NAMES = {1: "one", 2: "two", 3: "three"}
ADDRESSES = {node_id: (name, PORT) for node_id, name in NAMES.items()}
# Seconds within which a stream to an unreachable peer ends, and within which a new one is open
# once the peer is reachable.
SILENCE_S = 3.5
RECONNECT_S = 2.6  # a failed attempt may take its two seconds
_TAG = struct.Struct(">QQQ")  # process, connection, message number


class CountingVoter(Voter):
    """Sends numbered messages on every connection, and checks those it gets."""

    def __init__(self, world: World, runtime: Runtime, node_id: int) -> None:
        super().__init__()
        self.world = world
        self.node_id = node_id
        self.process = runtime.random.getrandbits(64)
        self.connections = 0
        self.next_out: dict[int, tuple[int, int]] = {}
        self.next_in: dict[int, tuple[int, int, int] | None] = {}

    def connected(self, voter_id: int) -> None:
        super().connected(voter_id)
        self.connections += 1
        self.next_out[voter_id] = (self.connections, 0)
        self.next_in[voter_id] = None

    def message_to(self, voter_id: int, size: int) -> bytes:
        connection, number = self.next_out[voter_id]
        self.next_out[voter_id] = (connection, number + 1)
        return _TAG.pack(self.process, connection, number) + bytes(size)

    def received(self, voter_id: int, message: bytes) -> None:
        process, connection, number = _TAG.unpack_from(message)
        expected = self.next_in[voter_id] or (process, connection, 0)
        if (process, connection, number) != expected:
            raise Violation("FIFO", f"{voter_id} -> {self.node_id}: {number} for {expected}")
        self.next_in[voter_id] = (process, connection, number + 1)
        self.world.count("messages")


def voter_program(
    world: World, node_id: int, voters: dict[int, CountingVoter]
) -> Callable[[Runtime], Awaitable[None]]:
    async def program(runtime: Runtime) -> None:
        endpoint = Endpoint(runtime, ChannelIdentity("a cluster", node_id, SECRET))
        mesh = PeerMesh(endpoint, ADDRESSES)
        voter = voters[node_id] = CountingVoter(world, runtime, node_id)
        mesh.attach(voter)
        listener = ChannelListener(endpoint, mesh)
        await listener.listen("", PORT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mesh.run)
            nursery.start_soon(listener.run)
            while True:
                for other in list(voter.connected_ids):
                    for _ in range(runtime.random.randrange(4)):
                        size = runtime.random.choice((0, 10, 1000, 30_000))
                        if not mesh.send(other, voter.message_to(other, size)):
                            break
                await sleep(runtime.clock, runtime.random.uniform(0, 0.1))

    return program


class Trio3:
    """Three machines with a voter each."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.voters: dict[int, CountingVoter] = {}
        self.machines = {node_id: world.machine(name) for node_id, name in NAMES.items()}
        for node_id in NAMES:
            self.start(node_id)

    def start(self, node_id: int) -> None:
        self.machines[node_id].start(voter_program(self.world, node_id, self.voters))

    def linked(self) -> set[tuple[int, int]]:
        return {
            (node_id, other)
            for node_id, voter in self.voters.items()
            if self.machines[node_id].running
            for other in voter.connected_ids
        }

    async def within(self, seconds: float, condition: Callable[[], bool], what: str) -> float:
        since = self.world.now
        while not condition():
            if self.world.now > since + seconds:
                raise Violation("liveness", f"not {what} after {seconds} s: {self.linked()}")
            await self.world.sleep(0.005)
        return self.world.now - since

    async def all_linked(self, seconds: float = RECONNECT_S) -> float:
        return await self.within(seconds, lambda: len(self.linked()) == 6, "all connected")


def in_world(scenario: Callable[[World], Awaitable[None]], seed: int = 1) -> World:
    world = World(seed)
    world.run(scenario)
    if world.violations:
        raise world.violations[0]
    return world


def test_voters_connect_at_once() -> None:
    async def scenario(world: World) -> None:
        assert await Trio3(world).all_linked() < 0.5

    in_world(scenario)


@pytest.mark.parametrize(
    "ways", [[("one", "two")], [("two", "one")], [("one", "two"), ("two", "one")]]
)
def test_a_cut_is_noticed_and_healed(ways: list[tuple[str, str]]) -> None:
    async def scenario(world: World) -> None:
        cluster = Trio3(world)
        await cluster.all_linked()
        for source, target in ways:
            world.internet.cut(source, target)
        apart = {(1, 2), (2, 1)}
        await cluster.within(SILENCE_S, lambda: not cluster.linked() & apart, "disconnected")
        await world.sleep(5)
        assert len(cluster.linked()) == 4
        for source, target in ways:
            world.internet.heal(source, target)
        await cluster.all_linked()

    in_world(scenario)


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_a_killed_voter_is_missed_at_once(node_id: int) -> None:
    async def scenario(world: World) -> None:
        cluster = Trio3(world)
        await cluster.all_linked()
        cluster.machines[node_id].kill()
        assert await cluster.within(1, lambda: len(cluster.linked()) == 2, "missed") < 0.05
        await world.sleep(1)
        cluster.start(node_id)
        assert await cluster.all_linked() < 1

    in_world(scenario)


@pytest.mark.parametrize("node_id", [1, 3])
def test_a_voter_that_lost_power_and_is_back_replaces_its_connections(node_id: int) -> None:
    async def scenario(world: World) -> None:
        cluster = Trio3(world)
        await cluster.all_linked()
        cluster.machines[node_id].power_cut()
        await world.sleep(0.3)  # no voter has noticed yet
        others = [voter for other, voter in cluster.voters.items() if other != node_id]
        assert all(node_id in voter.connected_ids for voter in others)
        cluster.start(node_id)
        await cluster.within(1, lambda: node_id in cluster.voters, "started")
        await cluster.all_linked()
        for voter in others:
            assert voter.events.count(("connected", node_id)) == 2

    in_world(scenario)


def test_a_voter_without_power_is_missed_in_bounded_time() -> None:
    async def scenario(world: World) -> None:
        cluster = Trio3(world)
        await cluster.all_linked()
        cluster.machines[2].power_cut()
        await cluster.within(SILENCE_S, lambda: len(cluster.linked()) == 2, "missed")

    in_world(scenario)


def test_a_process_that_was_held_does_not_take_its_pause_for_the_others_silence() -> None:
    async def scenario(world: World) -> None:
        cluster = Trio3(world)
        await cluster.all_linked()
        cluster.machines[1].pause()
        await world.sleep(1)
        cluster.machines[1].resume()
        await world.sleep(5)
        assert all(len(voter.events) == 2 for voter in cluster.voters.values())

    in_world(scenario)


async def troubles(world: World) -> None:
    """With any faults, each connection delivers in order, without gaps; then all reconnect."""
    draw = world.stream("troubles")
    cluster = Trio3(world)
    cut: list[tuple[str, str]] = []
    for _ in range(25):
        node_id = draw.choice(list(NAMES))
        machine: Machine = cluster.machines[node_id]
        match draw.randrange(5):
            case 0:
                machine.kill()
            case 1:
                machine.power_cut()
            case 2:
                one, other = draw.sample(list(NAMES.values()), 2)
                world.internet.cut(one, other)
                cut.append((one, other))
            case 3 if cut:
                world.internet.heal(*cut.pop(draw.randrange(len(cut))))
            case 4 if machine.running:
                machine.pause()
                await world.sleep(draw.uniform(0, 4))
                machine.resume()
        await world.sleep(draw.expovariate(1.5))
        if not machine.running:
            await machine.fate.done.wait()
            assert machine.fate.error is None, machine.fate.error
            cluster.start(node_id)
    for way in cut:
        world.internet.heal(*way)
    await cluster.within(2 * SILENCE_S, lambda: len(cluster.linked()) == 6, "all connected")
    await world.sleep(SILENCE_S)  # streams to dead peers have ended
    await cluster.all_linked()
    for machine in cluster.machines.values():
        assert machine.fate.error is None, machine.fate.error
    world.count("connections", sum(len(v.events) for v in cluster.voters.values()))


def run(seed: int) -> World:
    return in_world(troubles, seed)


@pytest.mark.slow
def test_each_connection_delivers_in_order_without_holes_through_all_troubles() -> None:
    worlds = [run(seed) for seed in range(6)]
    assert all(world.counts["messages"] > 300 for world in worlds)


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    code = f"from {__name__} import run\nprint(run(3).trace.digest())"
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert there.stdout.strip() == run(3).trace.digest()


def test_a_controller_knows_a_killed_worker_from_one_that_is_cut_off() -> None:
    ends: list[End] = []

    async def controller(runtime: Runtime) -> None:
        async def answer(caller: Caller, method: str, payload: bytes) -> bytes:
            return payload

        server = RpcServer(answer, ended=lambda _, end: ends.append(end))
        endpoint = Endpoint(runtime, ChannelIdentity("a cluster", 1, SECRET))
        listener = ChannelListener(endpoint, rpc=server)
        await listener.listen("", PORT)
        await listener.run()

    async def worker(runtime: Runtime) -> None:
        endpoint = Endpoint(runtime, ChannelIdentity("a cluster", 7, SECRET))
        while True:
            try:
                client = await RpcClient.connect(endpoint, 1, "controller", PORT)
            except (OSError, HandshakeError):
                await sleep(runtime.clock, 0.1)
                continue
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                try:
                    while True:
                        await client.call("heartbeat", b"", 1.0)
                        await sleep(runtime.clock, 0.2)
                except CallLostError:
                    client.close()

    async def scenario(world: World) -> None:
        world.machine("controller").start(controller)
        machine = world.machine("worker")
        machine.start(worker)
        await world.sleep(1)
        machine.kill()
        await world.sleep(0.1)
        assert [(end.cause, end.is_evidence) for end in ends] == [(Cause.PEER_CLOSED, True)]
        machine.start(worker)
        await world.sleep(1)
        world.internet.cut("worker", "controller")
        world.internet.cut("controller", "worker")
        await world.sleep(SILENCE_S)
        assert [(end.cause, end.is_evidence) for end in ends[1:]] == [(Cause.SILENT, False)]

    in_world(scenario)


def test_an_idle_stream_lives() -> None:
    async def echo(caller: Caller, method: str, payload: bytes) -> bytes:
        return payload

    async def controller(runtime: Runtime) -> None:
        endpoint = Endpoint(runtime, ChannelIdentity("a cluster", 1, SECRET))
        listener = ChannelListener(endpoint, rpc=RpcServer(echo))
        await listener.listen("", PORT)
        await listener.run()

    answers: list[bytes] = []

    async def worker(runtime: Runtime) -> None:
        endpoint = Endpoint(runtime, ChannelIdentity("a cluster", 7, SECRET))
        client = await RpcClient.connect(endpoint, 1, "controller", PORT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await sleep(runtime.clock, 10 * SILENCE_S)
            answers.append(await client.call("echo", b"still here", 1.0))

    async def scenario(world: World) -> None:
        world.machine("controller").start(controller)
        await world.sleep(0.1)
        world.machine("worker").start(worker)
        await world.sleep(11 * SILENCE_S)
        assert answers == [b"still here"]

    in_world(scenario)
