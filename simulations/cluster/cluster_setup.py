"""How whole nodes are put on a stage: their machines, who is troubled, and the end of it all."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import trio

import dataplane.node
from dataplane.node import Node
from dataplane.node_config import CONTROLLER, WORKER, NodeConfig
from metaquorum.metadata.batch import Batch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.runtime.interfaces import Runtime
from simulations.cluster.cluster_checkers import AnswersHold, ClusterImagesAreOne, ClusterIsOneLog
from simulations.cluster.cluster_state import Member, Nation
from simulations.cluster.faults import Scene
from simulations.cluster.supervisor import Kept
from simulations.cluster.voter_group import CLUSTER_ID
from simulations.cluster.voter_program import SECRET
from simulations.kernel.machine import Program, running_on

LIVENESS_S: Final = 30.0
# A client waits for no more than so many delays of disks and links for one wish when all is well.
DELAYS_OF_A_WISH: Final = 15
STOP_LIMIT_S: Final = 60.0
CLIENT_PORT: Final = 9092
QUORUM_PORT: Final = 9093
FIRST_WORKER: Final = 11


def rack_of(worker_id: int, racks: int) -> str | None:
    """In a cluster whose workers stand in so many racks; None: nobody has said so."""
    return f"rack-{worker_id % racks}" if racks else None


def settle(nation: Nation, workers: int, configs: Mapping[str, str], *, racks: int = 0) -> None:
    """Which machines there are, and which roles they have; `configs` are those of workers."""
    settings = nation.settings
    voters = range(1, settings.controllers + 1)
    roles = {node_id: {CONTROLLER} for node_id in voters}
    first = 1 if settings.is_combined else FIRST_WORKER
    for node_id in range(first, first + workers):
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
            rack=rack_of(node_id, racks),
            configs={
                "broker.session.timeout.ms": str(settings.session_timeout_ms),
                "broker.heartbeat.interval.ms": str(settings.session_timeout_ms // 4),
                **(configs if WORKER in own else {}),
            },
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
        member.serves = False

        def served(_: object) -> None:
            member.serves = True
            machine.say("serves")

        async def run(runtime: Runtime) -> None:
            node = member.node = Node(config, runtime)
            member.kept.stop = node.stop
            await node.run(served)

        return run

    member = Member(config, Kept(world, machine, program, world.stream(f"keep {name}")))
    return member


@contextmanager
def watched(nation: Nation, told: Callable[[Batch], None] = lambda _: None) -> Iterator[None]:
    """Every batch that takes effect on a node is told to the nation, and to `told`."""
    members = {member.name: member for member in nation.members.values()}

    class WatchedLoader(MetadataLoader):
        def __init__(self, cluster_id: str) -> None:
            super().__init__(cluster_id)
            members[running_on.get()].loader = self

        async def apply(self, term: int, batch: Batch) -> bool:
            took_effect = await super().apply(term, batch)
            if took_effect:
                nation.checker(ClusterIsOneLog).applied(term, batch)
                told(batch)
            return took_effect

    module: Any = dataplane.node
    module.MetadataLoader = WatchedLoader
    try:
        yield
    finally:
        module.MetadataLoader = MetadataLoader


def scene(nation: Nation, clients: Iterable[str], weak: Iterable[Kept] = ()) -> Scene:
    """Who is troubled: the nodes, the active controller's most of all; clients are cut off."""

    def leader() -> Kept | None:
        member = nation.active()
        return None if member is None else member.kept

    victims = [member.kept for member in nation.members.values()]
    return Scene(nation.world, victims, list(clients), leader=leader, weak=weak)


def start_client(nation: Nation, name: str, run: Program) -> None:
    nation.fates.append(nation.world.machine(name).start(run))


async def within(nation: Nation, seconds: float, what: str, is_so: Callable[[], bool]) -> None:
    world = nation.world
    with trio.move_on_after(seconds) as limit:
        while not is_so() and not world.violations:
            await world.sleep(0.05)
    if limit.cancelled_caught:
        world.violate("liveness", f"after {seconds:.0f} s: not {what}; {nation.stands()}")


async def recover(nation: Nation) -> None:
    began = nation.world.now
    await within(
        nation, LIVENESS_S, "all workers live, and all metadata everywhere", nation.is_whole
    )
    nation.world.count("recovered within ms, in all", round((nation.world.now - began) * 1000))


async def finish_clients(
    nation: Nation, are_done: Callable[[], bool], *, throttled_s: float = 0.0
) -> None:
    """Clients have done what they were to do, and are gone; quotas may keep them for so long."""
    nation.calm = True
    settings = nation.settings
    wish_s = settings.think_s + DELAYS_OF_A_WISH * (settings.disk_delay_s + settings.delay_s)
    leisure_s = max(settings.records, settings.changes) * wish_s
    await within(nation, LIVENESS_S + leisure_s + throttled_s, "all clients done", are_done)
    nation.closing = True
    for fate in nation.fates:
        await fate.done.wait()
        if fate.error is not None:
            raise fate.error


async def stop(nation: Nation, nursery: trio.Nursery) -> None:
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


def compare(nation: Nation) -> None:
    if nation.world.violations:
        return
    nation.checker(ClusterImagesAreOne).images(nation.images)
    nation.checker(AnswersHold).images(nation.images)
