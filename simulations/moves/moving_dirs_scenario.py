"""Scenario `moving-dirs`: replicas that move between two log directories of their workers.

Leaders change meanwhile, workers lose power, topics are deleted and made again, and in half of the
worlds the clients are those of `transactions`, whose internal topics move, too. In a part of the
worlds a mover moves the same partitions between workers.

no faults -> faults -> no faults: within `LIVENESS_S` every move has ended
"""

from collections.abc import Collection
from contextlib import nullcontext
from random import Random
from typing import Final

from metaquorum.simulations.cluster.fault_plan import PlannedFault, draw_faults
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.moves.copy_faults import (
    COPIED_TAIL,
    CopyFaults,
    slow_recovery_of_copies,
)
from metaquorum.simulations.moves.mover import Mover
from metaquorum.simulations.moves.moves_scenario import (
    CHECKERS_OF_ALL,
    look_at_moves,
    play_moves,
    wait_until_none,
)
from metaquorum.simulations.moves.moves_scenario import draw_settings as draw_moves
from metaquorum.simulations.moves.replica_dir_mover import (
    ChangedLogsAreWhole,
    ReplicaDirMover,
    ReplicasHaveOneLog,
)
from metaquorum.simulations.replication.replicated_cluster import (
    ReplicatedClusterState,
    ReplicationSettings,
)
from metaquorum.simulations.replication.replication_scenario import Clients
from metaquorum.simulations.transactions.transactions_scenario import (
    draw_settings as draw_transacting,
)
from metaquorum.simulations.transactions.transactions_scenario import draw_transactions

DIR_CHECKERS: Final = (ChangedLogsAreWhole, ReplicasHaveOneLog)
LOG_DIRS: Final = ("/data", "/disk-1")
# Faults of whole machines and links: the others damage the files of one directory.
DIR_KINDS: Final = (
    "kill",
    "power",
    "restart",
    "pause",
    "isolate",
    "slow links",
    "down",
    "split",
    "overtaken",
)
MOST_FAULTS: Final = 8
HELD_UP: Final = 0.2  # share of the worlds in which disks hold up writers
COPIES: Final = 0.5  # share of the worlds without transactions; their only faults are of copies
MOST_COPIES: Final = 4
COPIES_BEGIN_S: Final = (0.6, 2.0)


def draw_settings(draw: Random, *, transacts: bool) -> ReplicationSettings:
    if transacts:
        settings = draw_transacting(draw)
        settings.controllers = draw.choice([1, 3])
    else:
        settings = draw_moves(draw)
        settings.controllers = draw.choice([1, 3])
    settings.workers = 3
    settings.log_dirs = LOG_DIRS
    settings.configs["log.segment.delete.delay.ms"] = draw.choice(["0", "500"])
    settings.faults = draw_faults(draw, DIR_KINDS, over_s=settings.fault_s, most=MOST_FAULTS)
    return settings


def draw_copies(settings: ReplicationSettings, draw: Random) -> None:
    """Change the settings so that copies have records that their logs lose."""
    begins = sorted(draw.uniform(*COPIES_BEGIN_S) for _ in range(draw.randint(1, MOST_COPIES)))
    settings.faults = tuple(
        PlannedFault(number, COPIED_TAIL, round(at_s, 3), 0.0) for number, at_s in enumerate(begins)
    )
    settings.producers, settings.records, settings.think_s = 3, 300, 0.03
    settings.flushed = min(settings.flushed, 0.5)
    # A leader that is cut off is replaced soon, and is not alone in the ISR before.
    settings.is_combined, settings.session_timeout_ms = False, 2000
    settings.configs["replica.lag.time.max.ms"] = "3000"


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    draw = world.stream("settings moving-dirs")
    transacts, has_mover = draw.random() < 0.5, draw.random() < 0.3
    world.count("worlds with transactions", transacts)
    transactions = draw_transactions(world.stream("transactions"))
    settings = draw_settings(draw, transacts=transacts)
    if world.stream("held up").random() < HELD_UP:
        world.held_up = 0.02
    copies = world.stream("copies")
    is_aimed = not transacts and copies.random() < COPIES
    if is_aimed:
        draw_copies(settings, copies)

    def add_movers(cluster_state: ReplicatedClusterState, clients: Clients) -> None:
        if not is_aimed:  # its requests would cancel the moves of the faults
            clients.movers.append(ReplicaDirMover(cluster_state, "dirs", world.stream("dirs")))
        if has_mover:
            clients.movers.append(Mover(cluster_state, "mover", world.stream("mover")))

    with slow_recovery_of_copies() if is_aimed else nullcontext():
        await play_moves(
            world,
            settings,
            leave_out,
            transactions if transacts else None,
            add_movers,
            lambda cluster_state: CopyFaults(cluster_state).kinds_with_copies(),
            DIR_CHECKERS,
            look_at_dirs,
        )


async def look_at_dirs(cluster_state: ReplicatedClusterState) -> None:
    """Wait until all moves have ended; then check."""
    await look_at_moves(cluster_state)
    dirs = cluster_state.checker(ReplicasHaveOneLog)
    await wait_until_none(cluster_state, dirs.open_moves)
    if not cluster_state.world.violations:
        dirs.finals()


MOVING_DIRS: Final = Scenario(
    "moving-dirs",
    "replicas that move between log directories, while leaders change and workers lose power",
    play,
    (*CHECKERS_OF_ALL, *DIR_CHECKERS),
    gates=(
        "acknowledged records",
        "logs moved between directories",
        "moves to a directory: NONE",
        "worlds with transactions",
        "transactions committed",
        "truncations",
        "moves ended",
        "fault: copied tail",
    ),
)
