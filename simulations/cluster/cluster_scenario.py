"""Scenario `cluster`: whole nodes, three or five controllers and three workers, and their clients.

Controllers and workers run in separate processes, or share them. Administrators make changes
through any worker while machines and links fail; producers write to the leaders. Every partition
has one replica, and every record is flushed: no acknowledged record may be lost.

no faults -> faults -> no faults: within `LIVENESS_S` all workers are live and all nodes have all
metadata; a topic can be created and every partition accepts records -> all records are read ->
clean stop -> compare
"""

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Final

import trio

from metaquorum.dataplane.worker_server import CONTROLLED_SHUTDOWN_S
from metaquorum.simulations.cluster.cluster_checkers import (
    CLUSTER_CHECKERS,
    RecordsAreKept,
    ShutdownsEnd,
)
from metaquorum.simulations.cluster.cluster_clients import Administrator, ClusterProducer, Inspector
from metaquorum.simulations.cluster.cluster_setup import (
    LIVENESS_S,
    compare,
    finish_clients,
    recover,
    settle,
    start_client,
    stop,
    targets,
    watched,
    within,
)
from metaquorum.simulations.cluster.cluster_state import ClusterSettings, ClusterState
from metaquorum.simulations.cluster.fault_plan import SPLITS, draw_faults, without
from metaquorum.simulations.cluster.faults import CLUSTER_FAULTS, calm, play_faults
from metaquorum.simulations.harness.observing import small_sizes
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.world import World

PLAYED_CHECKERS: Final = (*CLUSTER_CHECKERS, ShutdownsEnd)
WORKERS: Final = 3
# Share of worlds in which one worker stops cleanly after the faults while another one is dead, and
# the time that may take: half of the time after which a worker stops without a controlled shutdown.
STOPS: Final = 0.3
STOP_S: Final = CONTROLLED_SHUTDOWN_S / 2
# Faults that may end a node or take a partition offline: `failing-disk` and `quorum` have them.
_ELSEWHERE: Final = (
    "lost disk",
    "bit rot",
    "failing sync",
    "failing read",
    "full disk",
    "stop in snapshot",
)
KINDS: Final = tuple(kind for kind in CLUSTER_FAULTS if kind not in _ELSEWHERE)


def draw_settings(draw: Random) -> ClusterSettings:
    fault_s = draw.choice([4.0, 8.0])
    return ClusterSettings(
        controllers=draw.choice([3, 3, 3, 5]),
        is_combined=draw.random() < 0.5,
        producers=draw.randint(1, 3),
        records=draw.choice([20, 60]),
        administrators=draw.randint(1, 2),
        changes=draw.choice([5, 15, 30]),
        think_s=draw.choice([0.0, 0.05, 0.3]),
        fault_s=fault_s,
        peace_s=draw.choice([0.0, 3.0]),
        delay_s=draw.choice([0.0002, 0.002, 0.02]),
        disk_delay_s=draw.choice([0.0005, 0.005, 0.03]),
        session_timeout_ms=draw.choice([2000, 9000]),
        faults=draw_faults(draw, KINDS, over_s=fault_s, most=12),
    )


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_settings(world.stream("settings cluster"))
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    world.say("story", f"{settings}")
    world.internet.default.delay_s = settings.delay_s
    world.internet.default.split = world.stream("links").choice(SPLITS)
    cluster_state = ClusterState(world, settings, PLAYED_CHECKERS)
    settle(cluster_state, WORKERS, {})
    with small_sizes(world.stream("sizes")), watched(cluster_state):
        async with trio.open_nursery() as nursery:
            for member in cluster_state.members.values():
                nursery.start_soon(member.supervisor.run)
            clients = _start_clients(cluster_state)
            await world.sleep(settings.peace_s)
            fault_context = targets(cluster_state, clients.names)
            await play_faults(fault_context, settings.faults)
            await calm(fault_context)
            await recover(cluster_state)
            await finish_clients(cluster_state, lambda: clients.are_done)
            await _inspect(cluster_state)
            await _stop_one_of_two(cluster_state)
            await stop(cluster_state, nursery)
    compare(cluster_state)
    world.count("events", len(world.trace.events))


@dataclass(slots=True)
class _Clients:
    administrators: list[Administrator]
    producers: list[ClusterProducer]

    @property
    def are_done(self) -> bool:
        return all(client.done for client in (*self.administrators, *self.producers))

    @property
    def names(self) -> list[str]:
        return [client.name for client in (*self.administrators, *self.producers)]


def _start_clients(cluster_state: ClusterState) -> _Clients:
    world = cluster_state.world
    clients = _Clients([], [])
    for number in range(cluster_state.settings.administrators):
        name = f"admin-{number}"
        clients.administrators.append(Administrator(cluster_state, name, world.stream(name)))
        start_client(cluster_state, name, clients.administrators[-1].run)
    for number in range(cluster_state.settings.producers):
        name = f"producer-{number}"
        clients.producers.append(ClusterProducer(cluster_state, name, world.stream(name)))
        start_client(cluster_state, name, clients.producers[-1].run)
    return clients


async def _inspect(cluster_state: ClusterState) -> None:
    """Read all partitions from their leaders; check that all acknowledged records exist."""
    if cluster_state.world.violations:
        return
    inspector = Inspector(cluster_state, cluster_state.world.stream("inspector"))
    fate = cluster_state.world.machine("inspector").start(inspector.run)
    with trio.move_on_after(LIVENESS_S) as limit:
        await fate.done.wait()
        if fate.error is not None:
            raise fate.error
    if limit.cancelled_caught:
        cluster_state.world.violate("liveness", f"not all records read in {LIVENESS_S:.0f} s")
        return
    cluster_state.checker(RecordsAreKept).finals(inspector.found)
    await within(cluster_state, LIVENESS_S, "whole again", cluster_state.is_whole)


async def _stop_one_of_two(cluster_state: ClusterState) -> None:
    """Kill one worker, stop another one cleanly once the first is fenced, and restart both."""
    world = cluster_state.world
    draw = world.stream("last stop")
    if world.violations or draw.random() >= STOPS:
        return
    dead, stopping = draw.sample(cluster_state.workers, 2)
    for member in (dead, stopping):
        member.supervisor.hold()
    dead.supervisor.machine.kill()

    def is_fenced() -> bool:
        return stopping.image.workers[dead.config.node_id].fenced

    await within(cluster_state, LIVENESS_S, "the dead worker fenced", is_fenced)
    node, machine = stopping.node, stopping.supervisor.machine
    if node is not None and not world.violations:
        began = world.now
        machine.say("is asked to stop")
        node.stop()
        await within(cluster_state, LIVENESS_S, "stopped", lambda: not machine.running)
        world.count("clean stops with another worker dead")
        cluster_state.checker(ShutdownsEnd).stopped(stopping.name, world.now - began, STOP_S)
    for member in (dead, stopping):
        member.supervisor.release()
    await within(cluster_state, LIVENESS_S, "whole again", cluster_state.is_whole)


CLUSTER: Final = Scenario(
    "cluster",
    "whole nodes: controllers, workers that follow them, administration and records through faults",
    play,
    PLAYED_CHECKERS,
    gates=(
        "acknowledged records",
        "records read",
        "topics created",
        "topics deleted",
        "clean stops with another worker dead",
        *(f"fault: {kind}" for kind in KINDS),
    ),
)
