"""Scenario `moving-partitions`: partitions move between four or five workers all the time.

Movers ask for random targets, larger and smaller replication factors, new targets of partitions
that move already, and cancels, while topics are deleted and recreated and all faults of
`replication` happen. In a part of the worlds an operator drains workers and lets them return. In
another part the clients are those of `transactions`, and the internal topics move, too.

no faults -> faults -> no faults: within `LIVENESS_S` every move has ended, and the logs of removed
replicas are deleted
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import nullcontext
from random import Random
from typing import Final

import trio

from metaquorum.simulations.cluster.cluster_setup import LIVENESS_S
from metaquorum.simulations.cluster.cluster_state import ClusterChecker
from metaquorum.simulations.cluster.fault_plan import PlannedFault, draw_faults, without
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.moves.draining import DRAINING_CHECKERS, DRAINS, Drainer
from metaquorum.simulations.moves.move_checkers import (
    MOVE_CHECKERS,
    MovesEnd,
    RemovedAreNoLosses,
    RemovedLogsAreGone,
)
from metaquorum.simulations.moves.mover import Mover
from metaquorum.simulations.replication.replica_faults import ReplicaFaults
from metaquorum.simulations.replication.replicated_cluster import (
    ReplicatedClusterState,
    ReplicationSettings,
)
from metaquorum.simulations.replication.replication_scenario import (
    CHECKERS,
    KINDS,
    Clients,
    KindsOf,
    draw_failing_reads,
    play_settings,
    replication_clients,
)
from metaquorum.simulations.replication.replication_scenario import (
    draw_settings as draw_replication,
)
from metaquorum.simulations.transactions.transactions_scenario import (
    ALL_CHECKERS,
    TransactionSettings,
    clients_of_transactions,
    draw_transactions,
    small_internal_topics,
)
from metaquorum.simulations.transactions.transactions_scenario import (
    draw_settings as draw_transacting,
)

PLAIN_CHECKERS: Final = (*CHECKERS, *MOVE_CHECKERS, *DRAINING_CHECKERS)
CHECKERS_OF_ALL: Final = (*ALL_CHECKERS, *MOVE_CHECKERS, *DRAINING_CHECKERS)
TRANSACTIONS: Final = 0.3  # share of worlds with transactions and internal topics
FEW_KINDS: Final = ("kill", "power", "restart", "pause", "isolate", "slow links", "down")
MOST_FAULTS: Final = 8
LOOK_S: Final = 0.05
LOST_DISKS: Final = 0.3  # share of the worlds without transactions
FIRST_LOST_DISK: Final = 200  # number of the first such fault


def draw_settings(draw: Random) -> ReplicationSettings:
    settings = draw_replication(draw)
    settings.workers = draw.choice([4, 4, 5])
    settings.producers, settings.consumers = draw.randint(1, 3), draw.randint(0, 2)
    settings.records, settings.think_s = draw.choice([60, 150]), draw.choice([0.02, 0.1])
    settings.administrators, settings.changes = 1, draw.choice([3, 8, 16])
    settings.disk_delay_s = draw.choice([0.0005, 0.005])
    settings.delay_s = draw.choice([0.0002, 0.002, 0.02])
    kinds = draw.choice([KINDS, KINDS, FEW_KINDS])
    settings.faults = draw_faults(draw, kinds, over_s=settings.fault_s, most=MOST_FAULTS)
    return settings


def draw_lost_disks(draw: Random, over_s: float) -> tuple[PlannedFault, ...]:
    """Return lost disks for a part of the worlds: moves add replicas to workers that are new."""
    if draw.random() >= LOST_DISKS:
        return ()
    begins = sorted(draw.uniform(0.2, over_s) for _ in range(draw.randint(1, 3)))
    return tuple(
        PlannedFault(FIRST_LOST_DISK + number, "lost disk", round(at_s, 3), draw.choice([0.3, 1.5]))
        for number, at_s in enumerate(begins)
    )


def draw_movers(draw: Random) -> int:
    return draw.choice([1, 1, 2])


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    draw = world.stream("settings moving-partitions")
    movers, transacts = draw_movers(draw), draw.random() < TRANSACTIONS
    world.count("worlds with transactions", transacts)
    transactions = draw_transactions(world.stream("transactions"))
    if transacts:
        settings = draw_transacting(draw)
        settings.workers, settings.controllers = 4, draw.choice([1, 3])
        world.say("story", f"{transactions}")
    else:
        settings = draw_settings(draw)
        failing = draw_failing_reads(world.stream("failing reads"), settings.fault_s)
        settings.faults += failing
        settings.has_operator = bool(failing)
        if lost := draw_lost_disks(world.stream("lost disks"), settings.fault_s):
            settings.is_combined = False  # no voter may lose its disk
            settings.faults += lost
    # A separate random stream: the operator does not change the draws of other worlds.
    drains = not transacts and world.stream("drains").random() < DRAINS

    def add_movers(cluster_state: ReplicatedClusterState, clients: Clients) -> None:
        if drains:
            clients.movers.append(Drainer(cluster_state, "drainer", world.stream("drainer")))
        for number in range(movers):
            name = f"mover-{number}"
            clients.movers.append(Mover(cluster_state, name, world.stream(name)))

    await play_moves(world, settings, leave_out, transactions if transacts else None, add_movers)


async def play_moves(
    world: World,
    settings: ReplicationSettings,
    leave_out: Collection[int],
    transactions: TransactionSettings | None,
    add_movers: Callable[[ReplicatedClusterState, Clients], object],
    kinds_of: KindsOf = lambda cluster_state: ReplicaFaults(cluster_state).kinds,
    more_checkers: Sequence[type[ClusterChecker]] = (),
    at_end: Callable[[ReplicatedClusterState], Awaitable[None]] | None = None,
) -> None:
    """Play one world; `add_movers` adds to its clients, which are those of `transactions` if given.

    `kinds_of` returns the kinds of fault, and `at_end` checks the cluster (`look_at_moves` by
    default).
    """
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)

    def clients_of(cluster_state: ReplicatedClusterState) -> Clients:
        clients = (
            replication_clients(cluster_state)
            if transactions is None
            else clients_of_transactions(cluster_state, transactions)
        )
        add_movers(cluster_state, clients)
        return clients

    checkers = PLAIN_CHECKERS if transactions is None else CHECKERS_OF_ALL
    with nullcontext() if transactions is None else small_internal_topics(transactions, settings):
        await play_settings(
            world,
            settings,
            kinds_of,
            clients_of,
            (*checkers, *more_checkers),
            at_end or look_at_moves,
        )


async def look_at_moves(cluster_state: ReplicatedClusterState) -> None:
    """Wait until all moves have ended and the logs of removed replicas are deleted; then check."""
    moves, logs = cluster_state.checker(MovesEnd), cluster_state.checker(RemovedLogsAreGone)
    await wait_until_none(cluster_state, moves.open_moves)
    await wait_until_none(cluster_state, logs.strays)
    if cluster_state.world.violations:
        return
    moves.finals()
    logs.finals()
    cluster_state.checker(RemovedAreNoLosses).finals()


async def wait_until_none(
    cluster_state: ReplicatedClusterState, left: Callable[[], list[str]]
) -> None:
    """Wait until nothing is left, within `LIVENESS_S`; a checker looks at the rest."""
    world = cluster_state.world
    with trio.move_on_after(LIVENESS_S):
        while left() and not world.violations:
            await world.sleep(LOOK_S)


MOVING_PARTITIONS: Final = Scenario(
    "moving-partitions",
    "partitions that move between workers all the time, with all faults of replication",
    play,
    CHECKERS_OF_ALL,
    gates=(
        "acknowledged records",
        "records read",
        "topics made again",
        "moves asked for",
        "moves cancelled",
        "moves begun",
        "moves ended",
        "moves ended with another leader",
        "moves replaced",
        "factors raised",
        "factors lowered",
        "logs deleted by moves",
        "workers drained",
        "workers returned",
        "partitions created during a drain",
        "moves: INVALID_REPLICA_ASSIGNMENT",
        "moves: INVALID_REPLICATION_FACTOR",
        "moves: NO_REASSIGNMENT_IN_PROGRESS",
        "worlds with transactions",
        "transactions committed",
        "truncations",
    ),
)
