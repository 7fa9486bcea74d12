"""Scenario `crossings`: one interleaving per world, of those that random faults rarely reach.

A small cluster (one controller, three or four workers) and few clients run for a second or two.
Each world plays one interleaving of `crossing_faults`; the checkers of `replication` must hold
during and after it. Mutants of checks that matter only in such an interleaving are found here.
"""

from collections.abc import Collection
from random import Random
from typing import Final

from metaquorum.simulations.cluster.fault_plan import PlannedFault, without
from metaquorum.simulations.harness.observing import few_recent_batches
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.replication.crossing_faults import (
    INTERLEAVINGS,
    LATER_CROSSINGS,
    Interleavings,
)
from metaquorum.simulations.replication.replica_clients import ReplicaConsumer, ReplicaProducer
from metaquorum.simulations.replication.replicated_cluster import (
    ReplicatedClusterState,
    ReplicationSettings,
)
from metaquorum.simulations.replication.replication_scenario import CHECKERS, Clients, play_settings

# The short ones end before all in-sync replicas have a batch: producers with acks=all resend it.
TIMEOUTS_MS: Final = (30, 150, 3000)
# Metadata batches that a controller keeps for workers: a worker that needs an earlier one receives
# a snapshot.
RECENT_BATCHES: Final = (2, 2, 20_000)
# Probability of each of `LATER_CROSSINGS`, drawn one after the other.
LATER: Final = 0.06
# Kinds whose followers must fetch one batch at a time.
SMALL_ANSWERS: Final = ("heir", "half way")


def draw_settings(draw: Random, kind: str | None = None) -> ReplicationSettings:
    """Return the settings of a world; `kind`: the crossing, drawn if None."""
    drawn = draw.choice(list(INTERLEAVINGS))
    kind = kind or drawn
    return ReplicationSettings(
        controllers=1,
        is_combined=False,
        workers=4 if kind == "heir" else 3,
        producers=draw.randint(1, 2),
        consumers=draw.randint(0, 1),
        records=60,
        administrators=0,
        changes=0,
        think_s=draw.choice([0.02, 0.1]),
        fault_s=1.0,
        peace_s=0.2,
        delay_s=0.005 if kind == "heir" else draw.choice([0.0005, 0.005]),
        disk_delay_s=draw.choice([0.0005, 0.005]),
        session_timeout_ms=2000 if kind == "unregister" else 9000,
        flushed=0.0,
        unclean=0.0,
        configs={
            "replica.lag.time.max.ms": "300" if kind == "late wish" else "3000",
            "replica.fetch.wait.max.ms": draw.choice(["50", "500"]),
            "replica.fetch.max.bytes": draw.choice(
                ["100"] if kind in SMALL_ANSWERS else ["100", "1048576"]
            ),
            "replica.high.watermark.checkpoint.interval.ms": "500" if kind == "namesake" else "100",
            "log.flush.offset.checkpoint.interval.ms": "100" if kind == "cut back" else "60000",
            "log.segment.delete.delay.ms": "0",
        },
        faults=(PlannedFault(0, kind, 0.0, round(draw.uniform(0.02, 0.5), 3)),),
    )


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    await play_kind(world, None, leave_out)


async def play_kind(world: World, kind: str | None, leave_out: Collection[int] = ()) -> None:
    for number, name in enumerate(LATER_CROSSINGS):
        later = world.stream(f"later crossings{f' {name}' if number else ''}")
        if kind is None and later.random() < LATER:
            kind = name
    settings = draw_settings(world.stream("settings crossings"), kind)
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    with few_recent_batches(world.stream("recent").choice(RECENT_BATCHES)):
        await play_settings(
            world, settings, lambda cluster_state: Interleavings(cluster_state).kinds, _clients_of
        )


def _clients_of(cluster_state: ReplicatedClusterState) -> Clients:
    world, clients = cluster_state.world, Clients()
    is_impatient = (
        cluster_state.settings.faults[:1] and cluster_state.settings.faults[0].kind == "impatient"
    )
    for number in range(cluster_state.settings.producers):
        name = f"producer-{number}"
        is_idempotent = True if is_impatient and not number else None
        producer = ReplicaProducer(
            cluster_state, name, world.stream(name), is_idempotent=is_idempotent
        )
        timeouts_ms = TIMEOUTS_MS[:2] if is_impatient else TIMEOUTS_MS
        producer.timeout_ms = world.stream(f"timeout {name}").choice(timeouts_ms)
        clients.producers.append(producer)
    for number in range(cluster_state.settings.consumers):
        name = f"consumer-{number}"
        clients.consumers.append(ReplicaConsumer(cluster_state, name, world.stream(name)))
    return clients


INTERLEAVINGS_SCENARIO: Final = Scenario(
    "crossings",
    "clusters with replicated topics: one interleaving per world that random faults rarely reach",
    play,
    CHECKERS,
    gates=(
        "acknowledged records",
        *(f"fault: {kind}" for kind in (*INTERLEAVINGS, *LATER_CROSSINGS)),
    ),
)
