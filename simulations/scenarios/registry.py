"""Table of the scenarios: their settings and faults, and the events that gate them."""

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Final

from metaquorum.simulations.checkers.all import CHECKERS
from metaquorum.simulations.checkers.delivery import (
    AcknowledgedIsDurable,
    FailedDirectoriesTakeNothing,
    LongPollsAreWoken,
)
from metaquorum.simulations.checkers.log_dir_moves import MovesEnd
from metaquorum.simulations.checkers.metadata import AppliedStays
from metaquorum.simulations.checkers.retention import RetentionIsDue
from metaquorum.simulations.cluster.cluster_scenario import CLUSTER
from metaquorum.simulations.cluster.quorum_scenario import QUORUM
from metaquorum.simulations.cluster.rebuilt_voter import REBUILT_VOTER
from metaquorum.simulations.faults.device_faults import FAILING_LOG, HANGING_DEVICE
from metaquorum.simulations.groups.groups_scenario import GROUPS
from metaquorum.simulations.groups.throttled_members import THROTTLED_MEMBERS
from metaquorum.simulations.groups.upgrade_scenario import UPGRADES
from metaquorum.simulations.harness.environment import Checker, Environment, Settings, draw_settings
from metaquorum.simulations.harness.observing import small_sizes, watched, watched_retirement
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.moves.moves_scenario import MOVING_PARTITIONS
from metaquorum.simulations.moves.moving_dirs_scenario import MOVING_DIRS
from metaquorum.simulations.moves.plans_scenario import PLANNED_MOVES
from metaquorum.simulations.moves.upgraded_moves_scenario import UPGRADED_MOVES
from metaquorum.simulations.replication.crossings import INTERLEAVINGS_SCENARIO
from metaquorum.simulations.replication.replication_scenario import (
    CLEANED_REPLICAS,
    DAMAGED_REPLICAS,
    HELD_UP_WRITERS,
    RANGE_LOADS,
    REPLICATION,
    THROTTLED_REPLICAS,
    THROTTLED_REPLICATION,
)
from metaquorum.simulations.single_node.narrow import narrow
from metaquorum.simulations.single_node.quotas import QUOTAS
from metaquorum.simulations.single_node.run import play
from metaquorum.simulations.transactions.forged_producers import FORGED_PRODUCERS
from metaquorum.simulations.transactions.transactions_scenario import TRANSACTIONS
from metaquorum.wire.records.records import Codec


def _single_node(
    name: str,
    about: str,
    shape: Callable[[Settings, Random], None],
    gates: tuple[str, ...],
    checkers: tuple[type[Checker], ...] = CHECKERS,
) -> Scenario:
    """Return a scenario of one node; `shape` adapts the drawn settings to the scenario."""

    async def play_world(world: World, leave_out: Collection[int]) -> None:
        draw = world.stream(f"settings {name}")
        settings = draw_settings(draw)
        shape(settings, draw)
        purpose = narrow(name, settings, world.stream("narrow"))
        for stream, fault in LAST_FAULTS.get(name, ()) if purpose is None else ():
            if world.stream(stream).random() < ONE_MORE_FAULT:
                settings.faults.append(fault)
        if purpose is not None:
            world.say("story", f"narrow world: {purpose}")
            world.count(f"narrow: {purpose}")
        await play_settings(world, settings, checkers, leave_out)

    return Scenario(name, about, play_world, checkers, gates)


async def play_settings(
    world: World,
    settings: Settings,
    checkers: tuple[type[Checker], ...] = CHECKERS,
    leave_out: Collection[int] = (),
) -> None:
    """Play one world of one node, without the faults with the numbers in `leave_out`."""
    world.faults = dict(enumerate(settings.faults))
    settings.faults = [f for number, f in world.faults.items() if number not in leave_out]
    environment = Environment(world, settings, checkers)
    retention = environment.checker(RetentionIsDue)
    with (
        watched(environment.checker(AppliedStays).seen),
        watched_retirement(retention.advanced, retention.retired),
        small_sizes(world.stream("sizes"), many_logs=settings.many_logs),
    ):
        await play(environment)


# Faults that were added later: each comes last, in this share of the seeds, and is drawn from a
# stream of its own, so that the other seeds and the earlier faults do not change.
ONE_MORE_FAULT: Final = 0.2
LAST_FAULTS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "log-dirs": (("one more fault", FAILING_LOG), ("one more hangs", HANGING_DEVICE)),
}

_WORKED: Final = ("acknowledged records", "records read", "topics created")


def _single_node_kill(settings: Settings, draw: Random) -> None:
    settings.faults = draw.choices(["kill", "kill at change", "restart"], k=draw.randint(1, 4))


def _single_node_power(settings: Settings, draw: Random) -> None:
    settings.faults = draw.choices(
        ["power", "power at change", "stop while starting", "kill", "restart"], k=draw.randint(1, 4)
    )
    if draw.random() < 0.4:  # an unclean stop after a clean one
        settings.faults[:0] = ["restart", draw.choice(["power", "power at change"])]


def _syncs(settings: Settings, draw: Random) -> None:
    """Sync records while others are appended, or the whole file system at a stop."""
    settings.big_value, settings.think_s = 0.0, draw.choice([0.0, 0.005])
    settings.topics, settings.producers, settings.pipeline = 1, 3, draw.choice([1, 5])
    settings.consumers, settings.sessions = 1, 0
    settings.records, settings.fault_gap_s, settings.changes = 60, 0.1, 0.0
    if draw.random() < 0.5:
        # The sync of a new segment has a second step, during which other requests append.
        settings.flush, settings.interleaved, settings.segment_bytes = 1.0, 1.0, 1000
        settings.max_value_bytes, settings.max_batch_records = 300, 1
        settings.faults = draw.choices(["power", "power at change"], k=6)
    else:
        settings.flush, settings.syncs_all, settings.many_logs = draw.choice([0.0, 0.5]), True, 1
        more = draw.choices(["power after stop", "restart", "power"], k=2)
        settings.faults = ["power after stop", *more]


def _disk_full(settings: Settings, draw: Random) -> None:
    settings.faults = draw.choices(["full", "full", "kill"], k=draw.randint(1, 3))
    settings.think_s = 0.005


def _restart(settings: Settings, draw: Random) -> None:
    settings.faults = ["restart"] * draw.randint(1, 3)
    settings.delete_topics = draw.choice([0.0, 0.5])


def _hostile(settings: Settings, draw: Random) -> None:
    settings.hostiles = draw.randint(1, 3)
    settings.pipeline = 5
    settings.consumers = draw.randint(2, 4)
    settings.topics = draw.choice([1, 3])
    settings.faults = draw.choices(["kill", "slow disk"], k=draw.randint(0, 1))


def _compaction(settings: Settings, draw: Random) -> None:
    settings.compacted = draw.choice([0.7, 1.0])
    settings.keys = draw.choice([1, 3, 10])
    settings.deletions = draw.choice([0.0, 0.2, 0.5])
    settings.linger_s = 3.0  # worker threads decompress batches one after the other
    settings.delete_retention_ms = draw.choice([100, 60_000])
    settings.segment_bytes = draw.choice([1000, 4096])
    settings.max_value_bytes, settings.max_batch_records = 60, draw.choice([1, 4])
    settings.big_value = 0.0
    settings.topics = draw.randint(1, 2)
    settings.records = draw.choice([80, 160])
    settings.node_configs = {
        "log.cleaner.backoff.ms": "20",
        "log.cleaner.threads": draw.choice(["1", "2"]),
        "log.flush.scheduler.interval.ms": "50",
        "log.segment.delete.delay.ms": draw.choice(["0", "500"]),
    }
    kinds = ["kill", "kill at change", "power", "power at change", "restart"]
    kinds += ["stop while starting", "full", "slow disk"]
    settings.faults = draw.choices(kinds, k=draw.randint(0, 5))


def _administration(settings: Settings, draw: Random) -> None:
    settings.changes = draw.choice([0.7, 1.0])
    settings.sessions = draw.randint(1, 2)
    settings.delete_topics = draw.choice([0.0, 0.2])
    settings.retention = draw.choice([0.0, 0.7, 1.0])
    settings.segment_bytes = draw.choice([1000, 4096])
    settings.big_value = 0.0
    settings.linger_s = 1.0
    kinds = ["kill", "power", "restart", "kill at change", "power at change", "clock jump"]
    if settings.retention:
        kinds += ["power at retirement"] * 3
    settings.faults = draw.choices(kinds, k=draw.randint(0, 4))


def _failing_disk(settings: Settings, draw: Random) -> None:
    settings.segment_bytes = draw.choice([1000, 4096])
    settings.big_value = 0.0
    settings.records = draw.choice([80, 160])
    settings.retention = draw.choice([0.0, 0.5])
    settings.compacted = draw.choice([0.0, 0.0, 1.0])
    settings.keys = 30
    settings.index_interval_bytes = draw.choice([1, 256])
    kinds = ["sync failure", "slow disk", "clock jump", "restart", *["bit rot"] * 4]
    kinds += ["read failure"] * 2
    settings.faults = draw.choices(kinds, k=draw.randint(1, 5))
    settings.node_configs = {"log.cleaner.backoff.ms": "20"}


def _log_dirs(settings: Settings, draw: Random) -> None:
    settings.several_log_dirs = True
    settings.big_value = 0.0
    settings.topics = draw.randint(2, 3)
    settings.records = draw.choice([80, 160])
    settings.delete_topics = draw.choice([0.0, 0.2])
    settings.retention = draw.choice([0.0, 0.3])
    kinds = ["kill", "power", "restart", "full", "sync failure", *["broken device"] * 4]
    settings.faults = draw.choices(kinds, k=draw.randint(1, 5))


def _moved_dirs(settings: Settings, draw: Random) -> None:
    """Move replicas between log directories, with faults in any step of a move."""
    settings.several_log_dirs = True
    settings.disk_movers = 1
    settings.big_value = 0.0
    settings.topics = draw.randint(1, 3)
    settings.records = draw.choice([80, 160])
    settings.delete_topics = draw.choice([0.0, 0.0, 0.2])
    settings.retention = draw.choice([0.0, 0.3])
    settings.compacted = draw.choice([0.0, 0.0, 0.5])
    kinds = ["restart", "full", "sync failure", "broken device", *["kill"] * 3, *["power"] * 4]
    settings.faults = draw.choices(kinds, k=draw.randint(1, 6))
    settings.node_configs = {"log.segment.delete.delay.ms": "500"}
    if draw.random() < 0.5:  # slow enough to be interrupted
        settings.node_configs["replica.alter.log.dirs.io.max.bytes.per.second"] = "5000"


def _long_polls(settings: Settings, draw: Random) -> None:
    """Produce few records, for each of which a fetch waits; no faults."""
    settings.long_pollers = draw.randint(2, 4)
    settings.consumers = settings.sessions = 0
    settings.changes = settings.big_value = settings.append_time = 0.0
    settings.records, settings.max_batch_records = 12, 2
    settings.max_value_bytes, settings.think_s = 300, draw.choice([0.05, 0.5])
    settings.codecs = (Codec.NONE,)


def _everything(settings: Settings, draw: Random) -> None:
    kinds = draw.sample(sorted(_EVERY_FAULT), draw.randint(1, 5))
    settings.faults = draw.choices(kinds, k=draw.randint(1, 6))
    settings.hostiles = draw.choice([0, 0, 1])
    settings.delete_topics = draw.choice([0.0, 0.3])
    settings.retention = draw.choice([0.0, 0.0, 0.7])
    settings.compacted = draw.choice([0.0, 0.0, 0.3])
    settings.several_log_dirs = draw.choice([False, True])


_EVERY_FAULT: Final = (
    "kill",
    "power",
    "kill at change",
    "power at change",
    "stop while starting",
    "restart",
    "full",
    "pause",
    "cut",
    "slow disk",
    "sync failure",
    "read failure",
    "bit rot",
    "clock jump",
    "broken device",
)

SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        _single_node(
            "single-node-kill",
            "kill -9 between requests and between any two changes of the disk",
            _single_node_kill,
            (*_WORKED, "fault: kill", "fault: kill at a change of the disk", "batches sent again"),
        ),
        _single_node(
            "single-node-power",
            "power losses, also while the node recovers from one",
            _single_node_power,
            (
                *_WORKED,
                "fault: power",
                "fault: power at a change of the disk",
                "fault: stop while starting",
                "power took bytes",
                "power took names",
                "power took torn files",
            ),
        ),
        _single_node(
            "syncs",
            "power losses while logs are synced, and after clean stops that sync a file system",
            _syncs,
            (*_WORKED, "fault: power", "fault: power after a clean stop", "power took bytes"),
            (*CHECKERS, AcknowledgedIsDurable),
        ),
        _single_node(
            "disk-full",
            "a disk that accepts a part of a write and then nothing, until it has room again",
            _disk_full,
            (*_WORKED, "fault: disk full"),
        ),
        _single_node(
            "restart",
            "clean stops and starts under load",
            _restart,
            (*_WORKED, "fault: restart", "topics deleted"),
        ),
        _single_node(
            "hostile",
            "random bytes, incomplete requests, pipelines, every version of every API",
            _hostile,
            (*_WORKED, "malformed: random bytes", "malformed: half a request"),
        ),
        _single_node(
            "compaction",
            "keys written again and deleted, a cleaner that runs all the time, kills, power losses",
            _compaction,
            (
                *_WORKED,
                "records that came again, gone",
                "deletions, gone",
                "fault: power at a change of the disk",
                "fault: kill at a change of the disk",
            ),
        ),
        _single_node(
            "administration",
            "changes of configs, partitions, records, topics; retention; sessions; clock jumps",
            _administration,
            (
                *_WORKED,
                "configs changed",
                "partitions added",
                "records deleted",
                "segments deleted",
                "fetches of sessions",
                "fault: clock jump",
            ),
        ),
        _single_node(
            "failing-disk",
            "failed syncs and reads, bits that flip in synced data, a slow disk",
            _failing_disk,
            (
                *_WORKED,
                "fault: sync failure",
                "fault: read failure",
                "fault: bit rot",
                "segments deleted",
            ),
        ),
        _single_node(
            "log-dirs",
            "three log directories, one of which fails or is full; the others stay available",
            _log_dirs,
            (
                *_WORKED,
                "fault: broken device",
                "fault: sync failure",
                "fault: disk full",
                f"fault: {FAILING_LOG}",
                f"fault: {HANGING_DEVICE}",
            ),
            (*CHECKERS, FailedDirectoriesTakeNothing),
        ),
        _single_node(
            "moved-dirs",
            "replicas that move between three log directories; kills, power losses, failing disks",
            _moved_dirs,
            (
                *_WORKED,
                "disk moves: NONE",
                "disk moves cancelled",
                "disk moves continued",
                "fault: broken device",
                "fault: sync failure",
                "fault: disk full",
            ),
            (*CHECKERS, MovesEnd),
        ),
        _single_node(
            "long-polls",
            "fetches that wait for seconds, by sessions or not, of few and of many partitions",
            _long_polls,
            (*_WORKED, "long polls"),
            (*CHECKERS, LongPollsAreWoken),
        ),
        _single_node(
            "everything",
            "each seed draws its kinds of faults and all other parameters",
            _everything,
            (*_WORKED, "fault: cut", "fault: pause", "fault: power", "fault: disk full"),
        ),
        QUORUM,
        REBUILT_VOTER,
        CLUSTER,
        REPLICATION,
        DAMAGED_REPLICAS,
        HELD_UP_WRITERS,
        CLEANED_REPLICAS,
        RANGE_LOADS,
        INTERLEAVINGS_SCENARIO,
        THROTTLED_REPLICAS,
        THROTTLED_REPLICATION,
        GROUPS,
        UPGRADES,
        THROTTLED_MEMBERS,
        TRANSACTIONS,
        FORGED_PRODUCERS,
        MOVING_PARTITIONS,
        PLANNED_MOVES,
        UPGRADED_MOVES,
        MOVING_DIRS,
        QUOTAS,
    )
}
