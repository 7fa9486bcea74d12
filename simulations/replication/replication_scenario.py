"""Scenario `replication`, and its variants: whole clusters, topics with one to three replicas.

In addition to `cluster`: producers with every acks level, idempotent or not, with several batches
in flight; consumers at all times; recreated topics, requested elections, deleted records; disks
that are lost, fail, or fill up. The cluster history follows every replica record by record
(`replicas`); the checkers compare the replicas at every step.

no faults -> faults -> no faults: within `LIVENESS_S` every partition has a leader, all its replicas
are in sync, and all clients are done -> all records are read -> clean stop -> compare
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol, TypeAlias

import trio

from metaquorum.dataplane.fetch.replica_selector import RACK_AWARE_SELECTOR
from metaquorum.dataplane.log.segments.names import parse_partition_folder
from metaquorum.runtime.interfaces import Runtime
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
from metaquorum.simulations.cluster.cluster_state import ClusterChecker
from metaquorum.simulations.cluster.fault_plan import SPLITS, PlannedFault, draw_faults, without
from metaquorum.simulations.cluster.faults import (
    CLUSTER_FAULTS,
    STOP_WITHIN_S,
    FaultFunction,
    calm,
    play_faults,
)
from metaquorum.simulations.harness.observing import small_sizes
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.replication.attacker import ReplicaAttacker
from metaquorum.simulations.replication.cleanup_checkers import (
    CLEANUP_CHECKERS,
    LastOfEachKeyIsRead,
)
from metaquorum.simulations.replication.cleanup_clients import CleanupAdministrator, CleanupProducer
from metaquorum.simulations.replication.loss_checkers import (
    LOSS_CHECKERS,
    LossesAreRecorded,
    RecordedWasLost,
)
from metaquorum.simulations.replication.near_consumer import NEAR_CHECKERS, NearConsumer
from metaquorum.simulations.replication.probes import watched_replicas
from metaquorum.simulations.replication.quota_administrator import QuotaAdministrator
from metaquorum.simulations.replication.range_loads import (
    LOAD_CHECKERS,
    LoadsAdministrator,
    RangeLoader,
    small_arrow_batches,
)
from metaquorum.simulations.replication.replica_checkers import (
    REPLICATION_CHECKERS,
    AcknowledgedStays,
    DeliveredOnce,
    TopicsAreTheirOwn,
)
from metaquorum.simulations.replication.replica_clients import (
    ReplicaAdministrator,
    ReplicaConsumer,
    ReplicaInspector,
    ReplicaProducer,
)
from metaquorum.simulations.replication.replica_faults import (
    DAMAGE_KINDS,
    REPLICA_KINDS,
    ReplicaFaults,
)
from metaquorum.simulations.replication.replica_files import (
    ReplicaIndexIsScan,
    log_folders,
    scan_replicas,
)
from metaquorum.simulations.replication.replicated_cluster import (
    ReplicatedClusterState,
    ReplicationSettings,
)
from metaquorum.simulations.replication.replication_throttles import (
    REPLICATION_QUOTA_CHECKERS,
    watched_throttles,
)
from metaquorum.simulations.replication.throttle_administrator import ThrottleAdministrator
from metaquorum.simulations.replication.throttling import QUOTA_CHECKERS, watched_quotas

KindsOf: TypeAlias = Callable[[ReplicatedClusterState], Mapping[str, FaultFunction]]
CHECKERS: Final = (*REPLICATION_CHECKERS, *LOSS_CHECKERS, ReplicaIndexIsScan)
# Bytes between two index entries: with Kafka's 4096 the small segments here have hardly any.
# None: the default, which half of the worlds keep.
INDEX_INTERVALS: Final = (None, None, "1", "200")
THROTTLED_REPLICATION_CHECKERS: Final = (*CHECKERS, *REPLICATION_QUOTA_CHECKERS)
THROTTLED_CHECKERS: Final = (*CHECKERS, *QUOTA_CHECKERS, *NEAR_CHECKERS)
# With the lowest quota, a worker accepts all remaining records of a producer within this time.
THROTTLED_S: Final = 90.0
CLEANED_CHECKERS: Final = (*CHECKERS, *CLEANUP_CHECKERS, *NEAR_CHECKERS)
LOADS_CHECKERS: Final = (*CHECKERS, *CLEANUP_CHECKERS, *LOAD_CHECKERS)
# Damage of journals belongs to scenario `quorum`; `draw_failing_reads` plans failing reads.
_ELSEWHERE: Final = ("bit rot", "stop in snapshot", "failing read")
KINDS: Final = (*(kind for kind in CLUSTER_FAULTS if kind not in _ELSEWHERE), *REPLICA_KINDS)
# Drawn twice as often, as they take effect only where workers are separate processes.
_OFTEN: Final = ("lost disk", "stumble")
# Share of worlds with only faults of replicas, which rarely take effect among other faults.
AIMED: Final = 0.2
AIMED_FAULTS: Final = 4
OVERTAKEN: Final = 0.4  # share of the `AIMED` worlds
OPERATORS: Final = 0.5  # share of the worlds of `cleaned-replicas`
FAILING_READS: Final = 0.25  # share of all worlds
MOST_FAILING_READS: Final = 4
FIRST_FAILING_READ: Final = 100  # number of the first such fault


def draw_settings(draw: Random) -> ReplicationSettings:
    fault_s = draw.choice([3.0, 6.0])
    settings = ReplicationSettings(
        controllers=3,
        is_combined=draw.random() < 0.6,
        workers=draw.choice([3, 3, 3, 4, 5]),
        producers=draw.randint(1, 4),
        consumers=draw.randint(0, 2),
        records=draw.choice([20, 60, 150]),
        administrators=draw.randint(1, 2),
        changes=draw.choice([3, 8, 20]),
        think_s=draw.choice([0.0, 0.05, 0.3]),
        fault_s=fault_s,
        peace_s=draw.choice([0.6, 1.8]),
        delay_s=draw.choice([0.0002, 0.002, 0.02]),
        disk_delay_s=draw.choice([0.0005, 0.005, 0.03]),
        session_timeout_ms=draw.choice([2000, 9000]),
        flushed=draw.choice([0.0, 0.5, 1.0]),
        unclean=draw.choice([0.0, 0.0, 0.7]),
        configs={
            "replica.lag.time.max.ms": draw.choice(["300", "1000", "3000"]),
            "replica.fetch.wait.max.ms": draw.choice(["50", "200", "500"]),
            "replica.fetch.max.bytes": draw.choice(["100", "1048576"]),
            "replica.fetch.response.max.bytes": draw.choice(["200", "10485760"]),
            "num.replica.fetchers": draw.choice(["1", "2"]),
            "replica.high.watermark.checkpoint.interval.ms": draw.choice(["100", "5000"]),
            "log.segment.delete.delay.ms": draw.choice(["0", "1000"]),
        },
        faults=draw_faults(draw, (*KINDS, *_OFTEN), over_s=fault_s, most=16),
    )
    # Recovery points are checkpointed soon, or only at the stop: both occur in large clusters.
    often = draw.choice(["200", "60000"])
    settings.configs["log.flush.offset.checkpoint.interval.ms"] = often
    if draw.random() < AIMED:
        # Most truncations are harmless, so some worlds have only the fault that leads to them.
        kinds = ("overtaken",) if draw.random() < OVERTAKEN else REPLICA_KINDS
        settings.faults = draw_faults(draw, kinds, over_s=fault_s, most=AIMED_FAULTS)
        # Producers must run during the whole world, and not all topics sync each record.
        settings.records, settings.think_s = 150, 0.05
        settings.flushed = min(settings.flushed, 0.5)
    return settings


def draw_damaged_settings(draw: Random) -> ReplicationSettings:
    """Return settings with one kind of disk damage as the only faults; no worker is a voter."""
    settings = draw_settings(draw)
    settings.is_combined = False
    settings.records, settings.think_s = 150, 0.05
    kind = (draw.choice(DAMAGE_KINDS),)
    most = AIMED_FAULTS
    settings.faults = draw_faults(draw, kind, over_s=settings.fault_s, most=most)
    return settings


def draw_cleaned_settings(draw: Random) -> ReplicationSettings:
    """Return settings with frequent retention and compaction of topics with small segments."""
    settings = draw_settings(draw)
    settings.cleans = True
    settings.producers = draw.randint(2, 4)
    settings.records, settings.think_s = 150, draw.choice([0.0, 0.05])
    settings.changes = draw.choice([3, 8])
    settings.racks = draw.choice([0, 2, 3])
    if settings.racks:
        settings.near_consumers = draw.randint(2, 4)
        settings.configs["replica.selector.class"] = RACK_AWARE_SELECTOR
    settings.configs |= {
        "log.retention.check.interval.ms": draw.choice(["50", "300"]),
        "log.cleaner.backoff.ms": "20",
        "log.flush.scheduler.interval.ms": "50",
    }
    settings.has_operator = draw.random() < OPERATORS
    return settings


def draw_throttled_settings(draw: Random) -> ReplicationSettings:
    """Return settings in which clients exceed their quotas."""
    settings = draw_settings(draw)
    settings.throttles = True
    settings.producers, settings.consumers = draw.randint(2, 4), draw.randint(1, 2)
    settings.records, settings.think_s = draw.choice([60, 120]), 0.0
    settings.configs["quota.window.num"] = draw.choice(["2", "5"])
    settings.racks = draw.choice([0, 2])
    if settings.racks:
        settings.near_consumers = 1
        settings.configs["replica.selector.class"] = RACK_AWARE_SELECTOR
    return settings


def draw_failing_reads(draw: Random, over_s: float) -> tuple[PlannedFault, ...]:
    """Return failing reads for a quarter of the worlds, in addition to their other faults."""
    if draw.random() >= FAILING_READS:
        return ()
    begins = sorted(draw.uniform(0.2, over_s) for _ in range(draw.randint(1, MOST_FAILING_READS)))
    return tuple(
        PlannedFault(
            FIRST_FAILING_READ + number, "failing read", round(at_s, 3), draw.choice([0.3, 1.5])
        )
        for number, at_s in enumerate(begins)
    )


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_settings(world.stream("settings replication"))
    failing = draw_failing_reads(world.stream("failing reads"), settings.fault_s)
    settings.faults += failing
    # A read that fails takes its partition offline until the worker is restarted.
    settings.has_operator = bool(failing)
    await _play_drawn(world, settings, leave_out)


async def play_held_up(world: World, leave_out: Collection[int] = ()) -> None:
    """Let disks hold up writers, so that nearly all records are written in worker threads."""
    world.held_up = world.stream("held up").choice([0.002, 0.02, 0.5])
    settings = draw_settings(world.stream("settings held-up-writers"))
    settings.disk_delay_s = min(settings.disk_delay_s, 0.02)
    await _play_drawn(world, settings, leave_out)
    for machine in world.machines.values():
        world.count("writers held up", machine.faults.happened.get("writers held up", 0))


async def play_damaged(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_damaged_settings(world.stream("settings damaged-replicas"))
    await _play_drawn(world, settings, leave_out)


async def _play_drawn(
    world: World, settings: ReplicationSettings, leave_out: Collection[int]
) -> None:
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    # A separate random stream: attackers do not change the other draws.
    settings.attackers = world.stream("attackers").choice([0, 0, 1, 2])
    await play_settings(world, settings)


async def play_throttled(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_throttled_settings(world.stream("settings throttled-replicas"))
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    await play_settings(world, settings, checkers=THROTTLED_CHECKERS)


def draw_throttled_replication_settings(draw: Random) -> ReplicationSettings:
    """Return settings in which replicas fall behind, and get small responses."""
    settings = draw_settings(draw)
    settings.throttles_replication = True
    settings.producers, settings.consumers = draw.randint(2, 4), 1
    settings.records, settings.think_s = 150, draw.choice([0.0, 0.05])
    settings.administrators, settings.changes = 1, draw.choice([3, 8])
    # A follower rolls a segment for nearly each batch, and fetches one at a time.
    settings.disk_delay_s = min(settings.disk_delay_s, 0.005)
    settings.configs |= {
        "replica.lag.time.max.ms": draw.choice(["300", "1000"]),
        "replica.fetch.max.bytes": "100",
        "replica.fetch.response.max.bytes": draw.choice(["200", "1000"]),
    }
    kinds = draw.choice([KINDS, ("kill", "down", "restart")])
    settings.faults = draw_faults(draw, kinds, over_s=settings.fault_s, most=8)
    return settings


async def play_throttled_replication(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_throttled_replication_settings(world.stream("settings throttled-replication"))
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    await play_settings(world, settings, checkers=THROTTLED_REPLICATION_CHECKERS)


async def play_cleaned(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_cleaned_settings(world.stream("settings cleaned-replicas"))
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    await play_settings(world, settings, checkers=CLEANED_CHECKERS)


def draw_loads_settings(draw: Random) -> ReplicationSettings:
    """Return settings like those of cleaned-replicas with fewer records and faults.

    The world is small so that the loaders read many ranges.
    """
    settings = draw_cleaned_settings(draw)
    settings.controllers = 1
    settings.is_combined = False
    settings.workers = 3
    settings.producers, settings.consumers, settings.near_consumers = 2, 0, 0
    settings.administrators = 1
    settings.records, settings.think_s = 60, 0.05
    settings.changes = draw.choice([3, 8, 14])
    settings.unclean = draw.choice([0.0, 0.9, 0.9])
    settings.fault_s, settings.peace_s = 3.0, draw.choice([0.3, 0.8])
    settings.disk_delay_s, settings.delay_s = draw.choice([0.0005, 0.005]), 0.002
    settings.session_timeout_ms = 2000
    settings.loaders = draw.randint(1, 2)
    kinds = draw.choice([(*KINDS, *_OFTEN), ("alone",), ("alone", "overtaken")])
    settings.faults = draw_faults(draw, kinds, over_s=settings.fault_s, most=AIMED_FAULTS)
    return settings


async def play_loads(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_loads_settings(world.stream("settings range-loads"))
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    with small_arrow_batches(world.stream("arrow batches")):
        await play_settings(world, settings, checkers=LOADS_CHECKERS)


async def play_settings(
    world: World,
    settings: ReplicationSettings,
    kinds_of: KindsOf = lambda cluster_state: ReplicaFaults(cluster_state).kinds,
    clients_of: "ClientsOf | None" = None,
    checkers: Sequence[type[ClusterChecker]] = CHECKERS,
    at_end: "Callable[[ReplicatedClusterState], Awaitable[None]] | None" = None,
) -> None:
    """Play one world; `kinds_of` returns its kinds of faults, `clients_of` its clients.

    `at_end` checks the cluster once all replicas are in sync.
    """
    interval = world.stream("index interval").choice(INDEX_INTERVALS)
    if interval is not None:
        settings.configs["log.index.interval.bytes"] = interval
    world.say("story", f"{settings}")
    world.internet.default.delay_s = settings.delay_s
    world.internet.default.split = world.stream("links").choice(SPLITS)
    cluster_state = ReplicatedClusterState(world, settings, checkers)
    settle(
        cluster_state,
        settings.workers,
        settings.configs,
        racks=settings.racks,
        log_dirs=settings.log_dirs,
    )
    with (
        small_sizes(world.stream("sizes")),
        watched(cluster_state, cluster_state.cluster_history.applied),
        watched_replicas(cluster_state.cluster_history),
        watched_quotas(cluster_state) if settings.throttles else nullcontext(),
        watched_throttles(cluster_state) if settings.throttles_replication else nullcontext(),
    ):
        async with trio.open_nursery() as nursery:
            for member in cluster_state.members.values():
                nursery.start_soon(member.supervisor.run)
            clients = _start_clients(
                cluster_state, (clients_of or replication_clients)(cluster_state)
            )
            await world.sleep(settings.peace_s)
            # A node that is not a voter may lose its disk.
            weak = [
                m.supervisor for m in cluster_state.members.values() if not m.config.is_controller
            ]
            fault_context = targets(cluster_state, clients.names, weak)
            await play_faults(fault_context, settings.faults, kinds_of(cluster_state))
            await calm(fault_context)
            if settings.has_operator:
                await restart_impaired(cluster_state)
            await recover(cluster_state)
            throttled_s = THROTTLED_S if settings.throttles else 0.0
            await finish_clients(cluster_state, lambda: clients.are_done, throttled_s=throttled_s)
            await within(cluster_state, LIVENESS_S, "all in sync", cluster_state.is_in_sync)
            if at_end is not None:
                await at_end(cluster_state)
            await _inspect(cluster_state)
            await _look_at_hosts(cluster_state)
            cluster_state.checker(LossesAreRecorded).finals()
            cluster_state.checker(RecordedWasLost).finals()
            await stop(cluster_state, nursery)
    compare(cluster_state)
    scan_replicas(cluster_state)
    world.count("events", len(world.trace.events))


async def restart_impaired(cluster_state: ReplicatedClusterState) -> None:
    """Restart the workers whose disks have failed, as their log lines advise the operator."""
    for member in cluster_state.workers:
        supervisor = member.supervisor
        if not supervisor.impaired or not supervisor.machine.running:
            continue
        supervisor.machine.say("is restarted by an operator, as its disk has failed")
        cluster_state.world.count("workers restarted by an operator")
        fate = supervisor.machine.fate
        supervisor.stop()
        with trio.move_on_after(STOP_WITHIN_S):
            await fate.done.wait()
        if not fate.done.is_set():
            supervisor.machine.kill()


class AnyClient(Protocol):
    """A client that runs on a machine of its own until it is done."""

    name: str
    done: bool

    async def run(self, runtime: Runtime) -> None: ...


@dataclass(slots=True)
class Clients:
    administrators: list[ReplicaAdministrator | QuotaAdministrator | ThrottleAdministrator] = field(
        default_factory=list
    )
    producers: list[ReplicaProducer] = field(default_factory=list)
    consumers: list[ReplicaConsumer] = field(default_factory=list)
    attackers: list[ReplicaAttacker] = field(default_factory=list)
    loaders: list[RangeLoader] = field(default_factory=list)
    movers: list[AnyClient] = field(default_factory=list)

    @property
    def all(self) -> list[AnyClient]:
        return [
            *self.administrators,
            *self.producers,
            *self.consumers,
            *self.attackers,
            *self.loaders,
            *self.movers,
        ]

    @property
    def are_done(self) -> bool:
        return all(client.done for client in self.all)

    @property
    def names(self) -> list[str]:
        return [client.name for client in self.all]


ClientsOf: TypeAlias = Callable[[ReplicatedClusterState], Clients]


def _start_clients(cluster_state: ReplicatedClusterState, clients: Clients) -> Clients:
    for client in clients.all:
        start_client(cluster_state, client.name, client.run)
    return clients


def replication_clients(cluster_state: ReplicatedClusterState) -> Clients:
    world, settings = cluster_state.world, cluster_state.settings
    clients = Clients()
    for number in range(settings.administrators):
        name = f"admin-{number}"
        administrator = CleanupAdministrator if settings.cleans else ReplicaAdministrator
        administrator = LoadsAdministrator if settings.loaders else administrator
        clients.administrators.append(administrator(cluster_state, name, world.stream(name)))
    for number in range(settings.producers):
        name = f"producer-{number}"
        producer = CleanupProducer if settings.cleans else ReplicaProducer
        clients.producers.append(producer(cluster_state, name, world.stream(name)))
    for number in range(settings.consumers):
        name = f"consumer-{number}"
        clients.consumers.append(ReplicaConsumer(cluster_state, name, world.stream(name)))
    if settings.throttles:
        clients.administrators.append(
            QuotaAdministrator(cluster_state, "quotas", world.stream("quotas"))
        )
    if settings.throttles_replication:
        clients.administrators.append(
            ThrottleAdministrator(cluster_state, "throttles", world.stream("throttles"))
        )
    for number in range(settings.near_consumers):
        name = f"near-{number}"
        clients.consumers.append(NearConsumer(cluster_state, name, world.stream(name)))
    for number in range(settings.attackers):
        name = f"attacker-{number}"
        clients.attackers.append(ReplicaAttacker(cluster_state, name, world.stream(name)))
    for number in range(settings.loaders):
        name = f"loader-{number}"
        clients.loaders.append(RangeLoader(cluster_state, name, world.stream(name)))
    return clients


async def _inspect(cluster_state: ReplicatedClusterState) -> None:
    """Read all records, and check that they include every acknowledged one."""
    if cluster_state.world.violations:
        return
    inspector = ReplicaInspector(cluster_state, cluster_state.world.stream("inspector"))
    fate = cluster_state.world.machine("inspector").start(inspector.run)
    with trio.move_on_after(LIVENESS_S) as limit:
        await fate.done.wait()
        if fate.error is not None:
            raise fate.error
    if limit.cancelled_caught:
        text = f"not all records could be read in {LIVENESS_S:.0f} s; {cluster_state.stands()}"
        cluster_state.world.violate("liveness", text)
        return
    for place, found in inspector.found.items():
        history = cluster_state.cluster_history.history(*place)
        cluster_state.checker(AcknowledgedStays).finals(history, found)
        cluster_state.checker(DeliveredOnce).finals(history, found)
        cluster_state.checker(TopicsAreTheirOwn).finals(history, found)
        if cluster_state.settings.cleans:
            cluster_state.checker(LastOfEachKeyIsRead).finals(history, found)


async def _look_at_hosts(cluster_state: ReplicatedClusterState) -> None:
    """Check that workers have, on disk and in memory, only partitions of existing topics.

    A worker that has applied the deletion of a topic may still wait for its disk: it has
    `LIVENESS_S` for that.
    """
    world = cluster_state.world
    with trio.move_on_after(LIVENESS_S):
        while any(_of_no_topic(cluster_state).values()) and not world.violations:
            await world.sleep(0.05)
    if not world.violations:
        checker = cluster_state.checker(TopicsAreTheirOwn)
        for worker_id, found in _of_no_topic(cluster_state).items():
            checker.hosted(worker_id, found)


def _of_no_topic(cluster_state: ReplicatedClusterState) -> dict[int, list[str]]:
    """Return, by running worker, what it has of topics that do not exist."""
    image = cluster_state.cluster_history.image
    known = {f"{name}-{i}" for name, t in image.topics.items() for i in range(len(t.partitions))}
    ids = {topic.topic_id for topic in image.topics.values()}
    found: dict[int, list[str]] = {}
    for member in cluster_state.workers:
        if member.running is None or (worker := member.running.worker) is None:
            continue
        names = (path.rsplit("/", 1)[1] for path in log_folders(member))
        found[member.config.node_id] = [
            *(f"folder {n}" for n in names if parse_partition_folder(n) and n not in known),
            *(
                f"{p} of topic id {p.topic_id.hex()}"
                for p in worker.replica_manager
                if p.topic_id not in ids
            ),
        ]
    return found


REPLICATION: Final = Scenario(
    "replication",
    "whole clusters with replicated topics: followers, elections, lost disks, every acks level",
    play,
    CHECKERS,
    gates=(
        "acknowledged records",
        "acknowledged with acks=1",
        "records sent with acks=0",
        "batches sent again",
        "records read",
        "topics created",
        "topics deleted",
        "topics made again",
        "configs changed",
        "records deleted",
        "elected, preferred",
        "unclean elections",
        "truncations",
        "records cut by followers",
        "records lost by replicas",
        "logs scanned that had been cut",
        "claims of strangers",
        "claims of late processes",
        "lying batches refused",
        "fault: failing read",
        "workers restarted by an operator",
        *(f"fault: {kind}" for kind in KINDS),
    ),
)

DAMAGED_REPLICAS: Final = Scenario(
    "damaged-replicas",
    "clusters with replicated topics: bits of their logs flip, older images of disks are put back",
    play_damaged,
    CHECKERS,
    gates=("acknowledged records", *(f"fault: {kind}" for kind in DAMAGE_KINDS)),
)

CLEANED_REPLICAS: Final = Scenario(
    "cleaned-replicas",
    "replicated topics with retention, compaction and compression.type; reads from followers",
    play_cleaned,
    CLEANED_CHECKERS,
    gates=(
        "acknowledged records",
        "records read",
        "records compacted away",
        "log starts moved by retention",
        "records deleted",
        "truncations",
        "fetches from followers that gave records",
        "followers left for the leader",
        "fault: overtaken",
        "fault: alone",
    ),
)

HELD_UP_WRITERS: Final = Scenario(
    "held-up-writers",
    "replicated topics on disks that hold up writers: records are written in worker threads",
    play_held_up,
    CHECKERS,
    gates=(
        "acknowledged records",
        "acknowledged with acks=1",
        "records read",
        "truncations",
        "writers held up",
    ),
)

RANGE_LOADS: Final = Scenario(
    "range-loads",
    "repeated loads of planned offset ranges, from clusters that lose and delete records",
    play_loads,
    LOADS_CHECKERS,
    gates=(
        "acknowledged records",
        "ranges loaded",
        "ranges loaded in the end",
        "plans of an unknown policy",
        "loads retried",
        "loads from several fetches",
        "leaders that moved in mid-range",
        "connections of loads reset",
        "gaps: DELETED",
        "gaps: COMPACTED",
        "gaps of logs that were cut",
        "records compacted away",
        "log starts moved by retention",
        "unclean elections",
        "topics made again",
    ),
)

THROTTLED_REPLICAS: Final = Scenario(
    "throttled-replicas",
    "replicated topics whose clients have quotas: byte rates and request percentages, acks=all",
    play_throttled,
    THROTTLED_CHECKERS,
    gates=(
        "acknowledged records",
        "acknowledged with acks=all, and throttled",
        "answers that throttle",
        "records read",
        "muted by producer_byte_rate",
        "muted by consumer_byte_rate",
        "muted by request_percentage",
    ),
)

THROTTLED_REPLICATION: Final = Scenario(
    "throttled-replication",
    "replicated topics with replication quotas (KIP-73) that hold replicas back while faults last",
    play_throttled_replication,
    THROTTLED_REPLICATION_CHECKERS,
    gates=(
        "acknowledged records",
        "records read",
        "throttles set",
        "partitions omitted by leaders",
        "partitions left out by followers",
    ),
)
