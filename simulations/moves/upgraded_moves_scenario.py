"""Scenario `upgraded-moves`: a cluster before moves of partitions is upgraded by nodes, then moves.

An operator restarts each node as the new version, among other faults, asks too early for higher
levels, then raises them. Until then a probe asks for moves, plans and drains, and every new worker
refuses them. Afterwards a mover, a planner and, in some worlds, an operator that drains workers do
what they do in `moving-partitions` and `planned-moves`.

Left out: workers that are unregistered, as the level may be raised without them, and nodes that
return to the old version.
"""

from collections.abc import Collection
from random import Random
from typing import Final

from metaquorum.simulations.cluster.fault_plan import draw_faults, without
from metaquorum.simulations.groups.node_versions import OLD_LEVELS, NodeVersions, mixed_versions
from metaquorum.simulations.groups.upgrade_checkers import (
    LevelsAreSupported,
    OldNodesReadOldRecords,
)
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.moves.draining import DRAINS, Drainer
from metaquorum.simulations.moves.move_probe import (
    AfterTheRaise,
    LastingMover,
    MovesNeedTheirLevel,
    MovesProbe,
    PatientOperator,
)
from metaquorum.simulations.moves.moves_scenario import FEW_KINDS, PLAIN_CHECKERS
from metaquorum.simulations.moves.moves_scenario import draw_settings as draw_moves
from metaquorum.simulations.moves.plan_checkers import PLAN_CHECKERS
from metaquorum.simulations.moves.planner import Planner
from metaquorum.simulations.moves.plans_scenario import look_at_plans
from metaquorum.simulations.replication.replica_faults import ReplicaFaults
from metaquorum.simulations.replication.replicated_cluster import (
    ReplicatedClusterState,
    ReplicationSettings,
)
from metaquorum.simulations.replication.replication_scenario import (
    KINDS,
    AnyClient,
    Clients,
    play_settings,
    replication_clients,
)

UPGRADED_KINDS: Final = tuple(kind for kind in KINDS if kind != "unregister")
UPGRADED_CHECKERS: Final = (
    *PLAIN_CHECKERS,
    *PLAN_CHECKERS,
    LevelsAreSupported,
    OldNodesReadOldRecords,
    MovesNeedTheirLevel,
)
BEFORE_MOVES: Final = 3
MOST_FAULTS: Final = 6


def draw_settings(draw: Random) -> ReplicationSettings:
    settings = draw_moves(draw)
    settings.controllers, settings.is_combined = draw.choice([1, 3, 3]), draw.random() < 0.4
    settings.workers, settings.changes = 4, draw.choice([3, 6])
    settings.session_timeout_ms = 2000
    kinds = draw.choice([FEW_KINDS, UPGRADED_KINDS])
    settings.faults = draw_faults(draw, kinds, over_s=settings.fault_s, most=MOST_FAULTS)
    return settings


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    draw = world.stream("settings upgraded-moves")
    settings = draw_settings(draw)
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    longest_s = draw.choice([0.1, 0.2, 1.0])
    share_new = draw.choice([0.0, 0.5])  # new nodes at first, among those without a controller
    versions = NodeVersions(draw.choice([BEFORE_MOVES, BEFORE_MOVES, *OLD_LEVELS]))
    drains = draw.random() < DRAINS

    def clients_of(cluster_state: ReplicatedClusterState) -> Clients:
        for member in cluster_state.members.values():
            is_new = not member.config.is_controller and draw.random() < share_new
            if not is_new:
                versions.old.add(member.name)
        cluster_state.checker(LevelsAreSupported).versions = versions
        versions.applied = cluster_state.checker(OldNodesReadOldRecords).applied
        clients = replication_clients(cluster_state)
        operator = PatientOperator(cluster_state, "operator", world.stream("operator"), longest_s)
        clients.movers.append(operator)
        clients.movers.append(MovesProbe(cluster_state, "probe", world.stream("probe")))
        later: list[AnyClient] = [
            LastingMover(cluster_state, "mover", world.stream("mover")),
            Planner(cluster_state, "planner", world.stream("planner")),
        ]
        if drains:
            later.append(Drainer(cluster_state, "drainer", world.stream("drainer")))
        clients.movers += [AfterTheRaise(cluster_state, client) for client in later]
        return clients

    with mixed_versions(versions):
        await play_settings(
            world,
            settings,
            lambda cluster_state: ReplicaFaults(cluster_state).kinds,
            clients_of,
            UPGRADED_CHECKERS,
            look_at_plans,
        )


UPGRADED_MOVES: Final = Scenario(
    "upgraded-moves",
    "nodes that are upgraded one by one, and moves of partitions that need the new level",
    play,
    UPGRADED_CHECKERS,
    gates=(
        "acknowledged records",
        "levels raised",
        "raise: NONE",
        "raise: INVALID_UPDATE_VERSION",
        "nodes upgraded",
        "early moves: UNSUPPORTED_VERSION",
        "moves asked for",
        "moves ended",
        "plans started",
        "plans complete",
    ),
)
