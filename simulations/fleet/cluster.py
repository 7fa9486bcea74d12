"""Scenario `cluster`: whole nodes, three or five controllers and three workers, and their clients.

Controllers and workers are processes of their own, or share them. Administrators change things
through any worker while machines and links fail; producers write to whoever leads. Every partition
has one replica, and every message is flushed: what was acknowledged is there for good.

peace -> troubles -> calm: within `LIVENESS_S` all workers are live, all nodes have all metadata,
a topic can be made and every partition be written to -> everything is read -> clean stop -> compare
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import trio

import dataplane.node
from dataplane.node import Node
from dataplane.node_config import CONTROLLER, WORKER, NodeConfig
from metaquorum.batch import Batch
from metaquorum.loader import MetadataLoader
from metaquorum.runtime.seams import Runtime
from simulations.fleet.cluster_checkers import (
    CLUSTER_CHECKERS,
    AnswersHold,
    ClusterImagesAreOne,
    ClusterIsOneLog,
    RecordsAreKept,
)
from simulations.fleet.cluster_clients import Administrator, ClusterProducer, Inspector
from simulations.fleet.council import CLUSTER_ID
from simulations.fleet.keeper import Kept
from simulations.fleet.nation import ClusterSettings, Member, Nation
from simulations.fleet.plan import draw_troubles, without
from simulations.fleet.troubles import TROUBLES, Scene, calm, play_troubles
from simulations.fleet.voting import SECRET
from simulations.machine import Program, running_on
from simulations.observing import small_sizes
from simulations.scenario import Scenario
from simulations.world import World

LIVENESS_S: Final = 30.0
STOP_LIMIT_S: Final = 60.0
CLIENT_PORT: Final = 9092
QUORUM_PORT: Final = 9093
FIRST_WORKER: Final = 11
WORKERS: Final = 3
# What a node may end of, or leave a partition offline for: `failing-disk` and `quorum` have them.
_ELSEWHERE: Final = ("lost disk", "bit rot", "failing sync", "full disk", "stop in snapshot")
KINDS: Final = tuple(kind for kind in TROUBLES if kind not in _ELSEWHERE)


def draw_settings(draw: Random) -> ClusterSettings:
    trouble_s = draw.choice([4.0, 8.0])
    return ClusterSettings(
        controllers=draw.choice([3, 3, 3, 5]),
        is_combined=draw.random() < 0.5,
        producers=draw.randint(1, 3),
        records=draw.choice([20, 60]),
        administrators=draw.randint(1, 2),
        changes=draw.choice([5, 15, 30]),
        think_s=draw.choice([0.0, 0.05, 0.3]),
        trouble_s=trouble_s,
        peace_s=draw.choice([0.0, 3.0]),
        delay_s=draw.choice([0.0002, 0.002, 0.02]),
        disk_delay_s=draw.choice([0.0005, 0.005, 0.03]),
        session_timeout_ms=draw.choice([2000, 9000]),
        troubles=draw_troubles(draw, KINDS, over_s=trouble_s, most=12),
    )


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_settings(world.stream("settings cluster"))
    world.faults = {trouble.number: str(trouble) for trouble in settings.troubles}
    settings.troubles = without(settings.troubles, leave_out)
    world.say("story", f"{settings}")
    world.internet.default.delay_s = settings.delay_s
    nation = Nation(world, settings, CLUSTER_CHECKERS)
    _settle(nation)
    with small_sizes(world.stream("sizes")), _watched(nation):
        async with trio.open_nursery() as nursery:
            for member in nation.members.values():
                nursery.start_soon(member.kept.run)
            clients = _start_clients(nation)
            await world.sleep(settings.peace_s)
            scene = _scene(nation)
            await play_troubles(scene, settings.troubles)
            await calm(scene)
            await _recover(nation)
            await _finish_clients(nation, clients)
            await _inspect(nation)
            await _stop(nation, nursery)
    _compare(nation)
    world.count("events", len(world.trace.events))


def _settle(nation: Nation) -> None:
    """Which machines there are, and which roles they have."""
    settings = nation.settings
    voters = range(1, settings.controllers + 1)
    roles = {node_id: {CONTROLLER} for node_id in voters}
    first = 1 if settings.is_combined else FIRST_WORKER
    for node_id in range(first, first + WORKERS):
        roles.setdefault(node_id, set()).add(WORKER)
    controllers = {node_id: (f"node-{node_id}", QUORUM_PORT) for node_id in voters}
    for node_id, own in roles.items():
        config = NodeConfig(
            node_id=node_id,
            data_dir="/data",
            listen=("0.0.0.0", CLIENT_PORT),  # noqa: S104 - a simulated interface
            advertise=(f"node-{node_id}", None),
            roles=frozenset(own),
            controllers=controllers,
            cluster_id=CLUSTER_ID,
            secret=SECRET,
            host=f"node-{node_id}",
            configs={"broker.session.timeout.ms": str(settings.session_timeout_ms)},
        )
        nation.members[node_id] = _member(nation, config)


def _member(nation: Nation, config: NodeConfig) -> Member:
    world, name = nation.world, f"node-{config.node_id}"
    skew_s = world.stream(f"skew {name}").uniform(-300, 300)
    machine = world.machine(name, skew_s=skew_s)
    machine.faults.delay_s = nation.settings.disk_delay_s
    member: Member

    def program() -> Program:
        member.node = member.loader = None  # those of the process before

        async def run(runtime: Runtime) -> None:
            node = member.node = Node(config, runtime)
            member.kept.stop = node.stop
            await node.run(lambda _: machine.say("serves"))

        return run

    member = Member(config, Kept(world, machine, program, world.stream(f"keep {name}")))
    return member


@contextmanager
def _watched(nation: Nation) -> Iterator[None]:
    """Every batch that takes effect on a node is told to the nation."""

    members = {member.name: member for member in nation.members.values()}

    class WatchedLoader(MetadataLoader):
        def __init__(self, cluster_id: str) -> None:
            super().__init__(cluster_id)
            members[running_on.get()].loader = self

        async def apply(self, term: int, batch: Batch) -> bool:
            took_effect = await super().apply(term, batch)
            if took_effect:
                nation.checker(ClusterIsOneLog).applied(term, batch)
            return took_effect

    module: Any = dataplane.node
    module.MetadataLoader = WatchedLoader
    try:
        yield
    finally:
        module.MetadataLoader = MetadataLoader


@dataclass(slots=True)
class _Clients:
    administrators: list[Administrator]
    producers: list[ClusterProducer]

    @property
    def are_done(self) -> bool:
        return all(client.done for client in (*self.administrators, *self.producers))


def _start_clients(nation: Nation) -> _Clients:
    world = nation.world

    def start(name: str, program: Program) -> None:
        nation.fates.append(world.machine(name).start(program))

    clients = _Clients([], [])
    for number in range(nation.settings.administrators):
        name = f"admin-{number}"
        clients.administrators.append(Administrator(nation, name, world.stream(name)))
        start(name, clients.administrators[-1].run)
    for number in range(nation.settings.producers):
        name = f"producer-{number}"
        clients.producers.append(ClusterProducer(nation, name, world.stream(name)))
        start(name, clients.producers[-1].run)
    return clients


def _scene(nation: Nation) -> Scene:
    def leader() -> Kept | None:
        member = nation.active()
        return None if member is None else member.kept

    clients = [f"admin-{number}" for number in range(nation.settings.administrators)]
    clients += [f"producer-{number}" for number in range(nation.settings.producers)]
    victims = [member.kept for member in nation.members.values()]
    return Scene(nation.world, victims, clients, leader=leader)


async def _within(nation: Nation, seconds: float, what: str, is_so: Callable[[], bool]) -> None:
    world = nation.world
    with trio.move_on_after(seconds) as limit:
        while not is_so() and not world.violations:
            await world.sleep(0.05)
    if limit.cancelled_caught:
        world.violate("liveness", f"after {seconds:.0f} s: not {what}; {nation.stands()}")


async def _recover(nation: Nation) -> None:
    began = nation.world.now
    await _within(
        nation, LIVENESS_S, "all workers live, and all metadata everywhere", nation.is_whole
    )
    nation.world.count("recovered within ms, in all", round((nation.world.now - began) * 1000))


async def _finish_clients(nation: Nation, clients: _Clients) -> None:
    nation.calm = True
    await _within(nation, LIVENESS_S, "all clients done", lambda: clients.are_done)
    nation.closing = True
    for fate in nation.fates:
        await fate.done.wait()
        if fate.error is not None:
            raise fate.error


async def _inspect(nation: Nation) -> None:
    """Everything that was acknowledged can be read, from whichever worker leads it."""
    if nation.world.violations:
        return
    inspector = Inspector(nation, nation.world.stream("inspector"))
    fate = nation.world.machine("inspector").start(inspector.run)
    with trio.move_on_after(LIVENESS_S) as limit:
        await fate.done.wait()
        if fate.error is not None:
            raise fate.error
    if limit.cancelled_caught:
        nation.world.violate("liveness", f"not all could be read in {LIVENESS_S:.0f} s")
        return
    nation.checker(RecordsAreKept).finals(inspector.found)
    await _within(nation, LIVENESS_S, "whole again", nation.is_whole)


async def _stop(nation: Nation, nursery: trio.Nursery) -> None:
    """Workers first: they leave in good order as long as there is a quorum."""
    nursery.cancel_scope.cancel()
    with trio.move_on_after(STOP_LIMIT_S, shield=True) as limit:
        for member in sorted(nation.members.values(), key=lambda m: m.config.is_controller):
            machine = member.kept.machine
            if machine.running and member.node is not None:
                nation.images[member.name] = member.image
                machine.say("is asked to stop")
                member.node.stop()
                await machine.fate.done.wait()
                if machine.fate.error is not None:
                    text = f"{member.name} does not stop well: {machine.fate.error!r}"
                    nation.world.violate("liveness", text)
    if limit.cancelled_caught:
        nation.world.violate("liveness", f"no stop within {STOP_LIMIT_S:.0f} s")


def _compare(nation: Nation) -> None:
    if nation.world.violations:
        return
    nation.checker(ClusterImagesAreOne).images(nation.images)
    nation.checker(AnswersHold).images(nation.images)


CLUSTER: Final = Scenario(
    "cluster",
    "whole nodes: controllers, workers that follow them, administration and records through faults",
    play,
    CLUSTER_CHECKERS,
    gates=(
        "acknowledged records",
        "records read",
        "topics created",
        "topics deleted",
        *(f"fault: {kind}" for kind in KINDS),
    ),
)
