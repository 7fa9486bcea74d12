"""Scenario `planned-moves`: plans with throttles that the controller carries out, under all faults.

A planner starts plans, pauses, resumes, cancels and throttles them, while in half of the worlds a
mover asks for other moves of the same partitions, and topics are deleted and recreated. In a part
of the worlds an operator drains workers and lets them return, while plans move replicas to them, or
limits the rate of replication.

no faults -> faults -> no faults: within `LIVENESS_S` every plan has ended, and every throttle
"""

from collections.abc import Collection
from typing import Final

from metaquorum.dataplane.quotas.replication_quota import ReplicationQuotas
from metaquorum.simulations.cluster.cluster_setup import LIVENESS_S, within
from metaquorum.simulations.cluster.fault_plan import without
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.moves.draining import DRAINS, Drainer
from metaquorum.simulations.moves.move_checkers import (
    MovesEnd,
    RemovedAreNoLosses,
    RemovedLogsAreGone,
)
from metaquorum.simulations.moves.mover import Mover
from metaquorum.simulations.moves.moves_scenario import PLAIN_CHECKERS, draw_settings
from metaquorum.simulations.moves.plan_checkers import (
    PLAN_CHECKERS,
    LowerRateHolds,
    PlansEnd,
    Rates,
    watched_rates,
)
from metaquorum.simulations.moves.planner import Planner
from metaquorum.simulations.replication.replica_faults import ReplicaFaults
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.replication.replication_scenario import (
    Clients,
    play_settings,
    replication_clients,
)
from metaquorum.simulations.replication.throttle_administrator import RateAdministrator

CHECKERS: Final = (*PLAIN_CHECKERS, *PLAN_CHECKERS, LowerRateHolds)
OPERATORS: Final = 0.4  # share of the worlds in which an operator sets rates of replication


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    draw = world.stream("settings planned-moves")
    has_mover = draw.random() < 0.5
    settings = draw_settings(draw)
    # A separate random stream: the operator does not change the draws of other worlds.
    drains = world.stream("drains").random() < DRAINS
    has_operator = world.stream("operators").random() < OPERATORS
    watching: list[LowerRateHolds] = []
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)

    def clients_of(cluster_state: ReplicatedClusterState) -> Clients:
        clients = replication_clients(cluster_state)
        clients.movers.append(Planner(cluster_state, "planner", world.stream("planner")))
        if has_mover:
            clients.movers.append(Mover(cluster_state, "mover", world.stream("mover")))
        if drains:
            clients.movers.append(Drainer(cluster_state, "drainer", world.stream("drainer")))
        if has_operator:
            draw = world.stream("rates")
            clients.administrators.append(RateAdministrator(cluster_state, "rates", draw))
        watching.append(cluster_state.checker(LowerRateHolds))
        return clients

    def limited(quotas: ReplicationQuotas, operator: Rates, plans: Rates) -> None:
        for checker in watching:
            checker.limited(quotas, operator, plans)

    with watched_rates(limited):
        await play_settings(
            world,
            settings,
            lambda cluster_state: ReplicaFaults(cluster_state).kinds,
            clients_of,
            CHECKERS,
            look_at_plans,
        )


async def look_at_plans(cluster_state: ReplicatedClusterState) -> None:
    """Wait until all plans, moves and throttles have ended; then check."""
    plans, moves = cluster_state.checker(PlansEnd), cluster_state.checker(MovesEnd)
    logs = cluster_state.checker(RemovedLogsAreGone)
    await within(cluster_state, LIVENESS_S, "all moves ended", lambda: not moves.open_moves())
    if cluster_state.world.violations:
        return
    if not any(plan.moving for plan in cluster_state.cluster_history.image.plans.values()):
        await within(cluster_state, LIVENESS_S, "all plans ended", lambda: not plans.open_plans())
        await within(
            cluster_state, LIVENESS_S, "all throttles ended", lambda: not plans.throttles()
        )
    await within(cluster_state, LIVENESS_S, "removed logs gone", lambda: not logs.strays())
    if cluster_state.world.violations:
        return
    moves.finals()
    plans.finals()
    logs.finals()
    cluster_state.checker(RemovedAreNoLosses).finals()


PLANNED_MOVES: Final = Scenario(
    "planned-moves",
    "plans of moves with throttles, which the controller carries out, with all faults",
    play,
    CHECKERS,
    gates=(
        "acknowledged records",
        "plans started",
        "plans complete",
        "plans cancelled",
        "moves of plans done",
        "moves of plans stopped",
        "rates of operators and plans together",
        "moves ended",
        "workers drained",
        "partitions created during a drain",
    ),
)
