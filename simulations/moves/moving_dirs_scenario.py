"""Scenario `moving-dirs`: replicas that move between two log directories of their workers.

Leaders change meanwhile, workers lose power, topics are deleted and made again, and in half of the
worlds the clients are those of `transactions`, whose internal topics move, too. In a part of the
worlds a mover moves the same partitions between workers.

no faults -> faults -> no faults: within `LIVENESS_S` every move has ended
"""

from collections.abc import Collection
from random import Random
from typing import Final

from simulations.cluster.cluster_setup import LIVENESS_S, within
from simulations.cluster.fault_plan import draw_faults
from simulations.harness.scenario import Scenario
from simulations.kernel.world import World
from simulations.moves.mover import Mover
from simulations.moves.moves_scenario import CHECKERS_OF_ALL, look_at_moves, play_moves
from simulations.moves.moves_scenario import draw_settings as draw_moves
from simulations.moves.replica_dir_mover import (
    ChangedLogsAreWhole,
    ReplicaDirMover,
    ReplicasHaveOneLog,
)
from simulations.replication.replicated_cluster import ReplicatedClusterState, ReplicationSettings
from simulations.replication.replication_scenario import Clients
from simulations.transactions.transactions_scenario import draw_settings as draw_transacting
from simulations.transactions.transactions_scenario import draw_transactions

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


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    draw = world.stream("settings moving-dirs")
    transacts, has_mover = draw.random() < 0.5, draw.random() < 0.3
    world.count("worlds with transactions", transacts)
    transactions = draw_transactions(world.stream("transactions"))
    settings = draw_settings(draw, transacts=transacts)

    def add_movers(cluster_state: ReplicatedClusterState, clients: Clients) -> None:
        clients.movers.append(ReplicaDirMover(cluster_state, "dirs", world.stream("dirs")))
        if has_mover:
            clients.movers.append(Mover(cluster_state, "mover", world.stream("mover")))

    await play_moves(
        world,
        settings,
        leave_out,
        transactions if transacts else None,
        add_movers,
        DIR_CHECKERS,
        look_at_dirs,
    )


async def look_at_dirs(cluster_state: ReplicatedClusterState) -> None:
    """Wait until all moves have ended; then check."""
    await look_at_moves(cluster_state)
    dirs = cluster_state.checker(ReplicasHaveOneLog)
    await within(cluster_state, LIVENESS_S, "all dirs settled", lambda: not dirs.open_moves())
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
    ),
)
