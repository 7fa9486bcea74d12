"""Setup and end of a world with whole nodes: machines, roles, probes, fault targets, clean stop."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import trio

import metaquorum.dataplane.node
from metaquorum.dataplane.node import Node
from metaquorum.dataplane.node_config import CONTROLLER, WORKER, NodeConfig
from metaquorum.metadata.batch import Batch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.runtime.interfaces import Runtime
from metaquorum.simulations.cluster.cluster_checkers import (
    AnswersHold,
    ClusterImagesAreOne,
    ClusterIsOneLog,
)
from metaquorum.simulations.cluster.cluster_state import ClusterState, Member
from metaquorum.simulations.cluster.faults import FaultTargets
from metaquorum.simulations.cluster.supervisor import Supervisor
from metaquorum.simulations.cluster.voter_group import CLUSTER_ID
from metaquorum.simulations.cluster.voter_program import SECRET
from metaquorum.simulations.kernel.machine import Program, running_on

LIVENESS_S: Final = 30.0
# Without faults, a request takes at most this many delays of disks and links.
DELAYS_PER_REQUEST: Final = 15
STOP_LIMIT_S: Final = 60.0
CLIENT_PORT: Final = 9092
QUORUM_PORT: Final = 9093
FIRST_WORKER: Final = 11


def rack_of(worker_id: int, racks: int) -> str | None:
    """Return the rack of a worker in a cluster with `racks` racks; None without racks."""
    return f"rack-{worker_id % racks}" if racks else None


def settle(
    cluster_state: ClusterState,
    workers: int,
    configs: Mapping[str, str],
    *,
    racks: int = 0,
    log_dirs: tuple[str, ...] = (),
) -> None:
    """Create the machines and assign their roles; `configs` and `log_dirs` are those of workers."""
    settings = cluster_state.settings
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
            log_dirs=log_dirs if WORKER in own else (),
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
        cluster_state.members[node_id] = _member(cluster_state, config)


def _member(cluster_state: ClusterState, config: NodeConfig) -> Member:
    world, name = cluster_state.world, f"node-{config.node_id}"
    skew_s = world.stream(f"skew {name}").uniform(-300, 300)
    machine = world.machine(name, skew_s=skew_s)
    machine.faults.delay_s = cluster_state.settings.disk_delay_s
    member: Member

    def program() -> Program:
        member.node = member.loader = None  # those of the previous process
        member.serves = False

        def served(_: object) -> None:
            member.serves = True
            machine.say("serves")

        async def run(runtime: Runtime) -> None:
            node = member.node = Node(config, runtime)
            member.supervisor.stop = node.stop
            await node.run(served)

        return run

    member = Member(config, Supervisor(world, machine, program, world.stream(f"keep {name}")))
    return member


@contextmanager
def watched(
    cluster_state: ClusterState, on_batch: Callable[[Batch], None] = lambda _: None
) -> Iterator[None]:
    """Report every batch that takes effect on a node to the checker and to `on_batch`.

    In force while the block runs.
    """
    members = {member.name: member for member in cluster_state.members.values()}

    class WatchedLoader(MetadataLoader):
        def __init__(self, cluster_id: str) -> None:
            super().__init__(cluster_id)
            members[running_on.get()].loader = self

        async def apply(self, term: int, batch: Batch) -> bool:
            took_effect = await super().apply(term, batch)
            if took_effect:
                cluster_state.checker(ClusterIsOneLog).applied(term, batch)
                on_batch(batch)
            return took_effect

    module: Any = metaquorum.dataplane.node
    module.MetadataLoader = WatchedLoader
    try:
        yield
    finally:
        module.MetadataLoader = MetadataLoader


def targets(
    cluster_state: ClusterState, clients: Iterable[str], weak: Iterable[Supervisor] = ()
) -> FaultTargets:
    """Return the targets of faults: all nodes, the active controller most often.

    Clients are only cut off from the network.
    """

    def leader() -> Supervisor | None:
        member = cluster_state.active()
        return None if member is None else member.supervisor

    victims = [member.supervisor for member in cluster_state.members.values()]
    return FaultTargets(cluster_state.world, victims, list(clients), leader=leader, weak=weak)


def start_client(cluster_state: ClusterState, name: str, run: Program) -> None:
    cluster_state.fates.append(cluster_state.world.machine(name).start(run))


async def within(
    cluster_state: ClusterState, seconds: float, what: str, is_so: Callable[[], bool]
) -> None:
    world = cluster_state.world
    with trio.move_on_after(seconds) as limit:
        while not is_so() and not world.violations:
            await world.sleep(0.05)
    if limit.cancelled_caught:
        world.violate("liveness", f"after {seconds:.0f} s: not {what}; {cluster_state.stands()}")


async def recover(cluster_state: ClusterState) -> None:
    began = cluster_state.world.now
    await within(
        cluster_state,
        LIVENESS_S,
        "all workers live, and all metadata everywhere",
        cluster_state.is_whole,
    )
    cluster_state.world.count(
        "recovered within ms, in all", round((cluster_state.world.now - began) * 1000)
    )


async def finish_clients(
    cluster_state: ClusterState, are_done: Callable[[], bool], *, throttled_s: float = 0.0
) -> None:
    """Wait until all clients are done, and stop them; `throttled_s`: time for quota throttling."""
    cluster_state.calm = True
    settings = cluster_state.settings
    request_s = settings.think_s + DELAYS_PER_REQUEST * (settings.disk_delay_s + settings.delay_s)
    leisure_s = max(settings.records, settings.changes) * request_s
    await within(cluster_state, LIVENESS_S + leisure_s + throttled_s, "all clients done", are_done)
    cluster_state.closing = True
    for fate in cluster_state.fates:
        await fate.done.wait()
        if fate.error is not None:
            raise fate.error


async def stop(cluster_state: ClusterState, nursery: trio.Nursery) -> None:
    """Stop all nodes cleanly, workers first: their controlled shutdown needs the quorum."""
    nursery.cancel_scope.cancel()
    with trio.move_on_after(STOP_LIMIT_S, shield=True) as limit:
        for member in sorted(cluster_state.members.values(), key=lambda m: m.config.is_controller):
            machine = member.supervisor.machine
            if machine.running and member.node is not None:
                cluster_state.images[member.name] = member.image
                machine.say("is asked to stop")
                member.node.stop()
                await machine.fate.done.wait()
                if machine.fate.error is not None:
                    text = f"{member.name} does not stop cleanly: {machine.fate.error!r}"
                    cluster_state.world.violate("liveness", text)
    if limit.cancelled_caught:
        cluster_state.world.violate(
            "liveness", f"the nodes do not stop within {STOP_LIMIT_S:.0f} s"
        )


def compare(cluster_state: ClusterState) -> None:
    if cluster_state.world.violations:
        return
    cluster_state.checker(ClusterImagesAreOne).images(cluster_state.images)
    cluster_state.checker(AnswersHold).images(cluster_state.images)
