"""Course of a world with one node: clients run during faults, and then all records are read.

start -> clients begin -> fault, fault, ... -> faults end -> clients end
      -> every partition is read from start to end -> clean stop -> the files are scanned
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from metaquorum.dataplane.log.recovery.checkpoints import decode_offsets
from metaquorum.dataplane.log.segments.names import LOG_START_CHECKPOINT
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.quorum.raft.peers import NoPeers
from metaquorum.quorum.raft.voter import RaftVoter
from metaquorum.runtime import Runtime
from metaquorum.simulations.checkers.log_files import (
    IndexIsScan,
    RetentionLeavesTheActive,
    naive_segments,
)
from metaquorum.simulations.checkers.metadata import AppliedStays, ImageIsFold
from metaquorum.simulations.faults.device_faults import DEVICE_FAULTS
from metaquorum.simulations.faults.node_faults import FAULTS, FaultContext
from metaquorum.simulations.harness.environment import NODE, PORT, Environment
from metaquorum.simulations.harness.history import PartitionOf
from metaquorum.simulations.harness.node import DATA_DIR, LOG_DIRS, NodeOnMachine, log_folder
from metaquorum.simulations.kernel.machine import Fate
from metaquorum.simulations.kernel.storage import Storage
from metaquorum.simulations.workloads.admin import Admin
from metaquorum.simulations.workloads.audit import Auditor, Overseer
from metaquorum.simulations.workloads.consumer import Consumer
from metaquorum.simulations.workloads.disk_mover import DiskMover, MoveInspector
from metaquorum.simulations.workloads.hostile import Hostile, Liar, Prober
from metaquorum.simulations.workloads.long_poller import LongPoller
from metaquorum.simulations.workloads.producer import Producer
from metaquorum.simulations.workloads.session_consumer import SessionConsumer

# Virtual time after the faults within which all producers must be done.
CLIENTS_LIMIT_S: Final = 120.0


async def play(environment: Environment) -> None:
    world, settings = environment.world, environment.settings
    configs = {
        "log.retention.check.interval.ms": "300",
        "log.flush.offset.checkpoint.interval.ms": "200",
        **settings.node_configs,
    }
    log_dirs = LOG_DIRS if settings.several_log_dirs else ()
    node = NodeOnMachine(world, environment.node, PORT, configs, log_dirs=log_dirs)
    fault_context = FaultContext(environment, node, world.stream("faults"))
    world.say("story", f"{settings}")
    await fault_context.up()
    clients = _start_clients(environment)
    for name in settings.faults:
        await fault_context.pause_between()
        if world.violations:
            break
        world.say("fault", name)
        await (FAULTS | DEVICE_FAULTS)[name](fault_context)
    await fault_context.up()
    await _finish_clients(environment, clients)
    await fault_context.up()
    await _await_last_requests(environment)
    if settings.disk_movers:
        await environment.run("move inspector", MoveInspector(environment).run)
    await environment.run("auditor", Auditor(environment).run)
    if settings.hostiles:
        await environment.run("prober", Prober(environment, world.stream("prober")).run)
    await node.stop()
    await _compare_images(environment, node)
    _scan_files(environment)
    environment.finished()
    _count(environment)


@dataclass(slots=True)
class Clients:
    fates: list[Fate] = field(default_factory=list)
    producers: list[Producer] = field(default_factory=list)
    sessions: list[SessionConsumer] = field(default_factory=list)


def _start_clients(environment: Environment) -> Clients:
    settings, world = environment.settings, environment.world
    clients = Clients()

    def start(name: str, program: Callable[[Runtime], Awaitable[None]]) -> None:
        clients.fates.append(world.machine(name).start(program))

    start("admin", Admin(environment, world.stream("admin")).run)
    for number in range(settings.producers):
        name = f"producer-{number}"
        clients.producers.append(Producer(environment, name, world.stream(name)))
        start(name, clients.producers[-1].run)
    for number in range(settings.consumers):
        name = f"consumer-{number}"
        start(name, Consumer(environment, name, world.stream(name)).run)
    for number in range(settings.disk_movers):
        name = f"disk-mover-{number}"
        start(name, DiskMover(environment, world.stream(name)).run)
    for number in range(settings.sessions):
        name = f"session-{number}"
        clients.sessions.append(SessionConsumer(environment, name, world.stream(name)))
        start(name, clients.sessions[-1].run)
    for number in range(settings.long_pollers):
        name = f"long-poller-{number}"
        start(name, LongPoller(environment, name, world.stream(name)).run)
    for number in range(settings.hostiles):
        name = f"hostile-{number}"
        start(name, Hostile(environment, name, world.stream(name)).run)
        name = f"liar-{number}"
        start(name, Liar(environment, name, world.stream(name)).run)
    return clients


async def _finish_clients(environment: Environment, clients: Clients) -> None:
    with trio.move_on_after(CLIENTS_LIMIT_S) as limit:
        while not all(p.done for p in clients.producers) and not environment.world.violations:
            await environment.world.sleep(0.1)
        await environment.world.sleep(environment.settings.linger_s)
        if clients.sessions and not environment.world.violations:
            await environment.run("overseer", Overseer(environment, clients.sessions).run)
        environment.closing = True
        for fate in clients.fates:
            await fate.done.wait()
            if fate.error is not None:
                raise fate.error
    environment.closing = True
    if limit.cancelled_caught:
        environment.world.violate("liveness", f"clients do not finish in {CLIENTS_LIMIT_S:.0f} s")


async def _await_last_requests(environment: Environment) -> None:
    """Wait until the node has read all that clients sent before they ended.

    A producer with acks=0 waits for no response: its last batches may be appended after its end.
    """
    world = environment.world

    def are_left() -> bool:
        return any(
            end.hosts[0] == NODE and not world.machines[end.hosts[1]].running
            for end in world.internet.connections
        )

    with trio.move_on_after(CLIENTS_LIMIT_S):
        while are_left() and not world.violations:
            await world.sleep(0.05)


async def _compare_images(environment: Environment, node: NodeOnMachine) -> None:
    """Compare the node's last metadata image with its disk and with the applied batches."""
    if node.node is None or node.node.worker is None or environment.world.violations:
        return
    image, reloaded = node.node.worker.loader.image, MetadataLoader(node.node.cluster_id)

    async def reload(runtime: Runtime) -> None:
        disk, clock, random = runtime.disk, runtime.clock, runtime.random
        directory = f"{DATA_DIR}/metadata"
        voter = RaftVoter(disk, clock, random, directory, reloaded, 1, (1,), NoPeers())
        await voter.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(voter.run)
            await voter.wait_active()
            nursery.cancel_scope.cancel()
        await voter.close()

    fate = environment.node.start(reload)
    await fate.done.wait()
    if fate.error is not None:
        raise fate.error
    fold = environment.checker(AppliedStays).fold(image.cluster_id)
    environment.checker(ImageIsFold).images(image, fold, reloaded.image)


def _scan_files(environment: Environment) -> None:
    index, retention = (
        environment.checker(IndexIsScan),
        environment.checker(RetentionLeavesTheActive),
    )
    starts = _log_starts(environment.node.storage)
    for final in environment.history.finals.values():
        if PartitionOf(final.topic.topic_id, final.partition) in environment.history.rotten:
            continue
        folder = log_folder(environment.node.storage, final.topic.name, final.partition)
        segments = naive_segments(environment.node.storage, folder)
        index.scanned(final, segments)
        # Retention may have moved the log start offset since the audit.
        noted = starts.get((final.topic.name, final.partition), 0)
        retention.scanned(final, segments, max(noted, final.log_start_offset))


def _log_starts(storage: Storage) -> dict[tuple[str, int], int]:
    """Return the log start offsets in the checkpoints that the clean stop has written."""
    found: dict[tuple[str, int], int] = {}
    for log_dir in LOG_DIRS:
        with suppress(FileNotFoundError):
            path = f"{log_dir}/{LOG_START_CHECKPOINT}"
            found |= decode_offsets(bytes(storage.file(path).data))
    return found


def _count(environment: Environment) -> None:
    world = environment.world
    for name, number in environment.node.faults.happened.items():
        world.count(name, number)
    for final in environment.history.finals.values():
        world.count("records at the end", len(final.reads))
    world.count("events", len(world.trace.events))
