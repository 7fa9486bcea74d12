"""Scenario `groups`: consumer groups in a cluster whose coordinators move and die.

Groups consume topics that are deleted and created again. Members leave, vanish, pause for longer
than their session, return with the same instance id, or share one; some requests break the
protocol. Administrators delete groups and offsets, and move leaders. Offsets of groups without
members expire within seconds. In some worlds a client tries to change `__consumer_offsets`. The
checkers of `cleaned-replicas` hold, too.

no faults -> faults -> no faults: within `LIVENESS_S` every group has consumed and committed every
partition to its end
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from metaquorum.dataplane.coordinators import background_writes
from metaquorum.dataplane.coordinators.group import committed_offsets
from metaquorum.dataplane.coordinators.group.committed_offsets import PIECE_OFFSETS
from metaquorum.dataplane.coordinators.group.group_coordinator import CoordinatorConfigs
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.quorum.controller import internal_topics
from metaquorum.simulations.cluster.fault_plan import draw_faults, without
from metaquorum.simulations.groups.budget_checkers import BudgetsCountAll, BudgetsHaveRoom
from metaquorum.simulations.groups.group_checkers import GROUP_CHECKERS
from metaquorum.simulations.groups.group_clients import (
    EventsAdministrator,
    Group,
    GroupAdministrator,
    GroupDeleter,
    LoneConsumer,
    lone_group,
)
from metaquorum.simulations.groups.group_faults import GROUP_KINDS, GroupFaults
from metaquorum.simulations.groups.group_log import OFFSETS_PARTITIONS, GenerationsGrow
from metaquorum.simulations.groups.group_members import GroupMember
from metaquorum.simulations.groups.hoarders import (
    GROUP_MEMORY_BYTES,
    HOARDERS,
    MOST_HOARDERS,
    OFFSETS_MEMORY_BYTES,
    RETENTION_MS,
    Hoarded,
    Hoarder,
    Newcomer,
)
from metaquorum.simulations.groups.intruders import SHARE, InternalTopicsAreProtected, Intruder
from metaquorum.simulations.groups.waiting_members import WaitingMembersStay, watched_waits
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.replication.cleanup_checkers import CLEANUP_CHECKERS
from metaquorum.simulations.replication.cleanup_clients import CleanupProducer
from metaquorum.simulations.replication.replicated_cluster import (
    ReplicatedClusterState,
    ReplicationSettings,
)
from metaquorum.simulations.replication.replication_scenario import (
    CHECKERS,
    KINDS,
    AnyClient,
    Clients,
    draw_cleaned_settings,
    play_settings,
)

FEW_FAULTS: Final = 8
DELETERS: Final = 3  # clients that delete groups, where these are deleted in parts
# Faults that move coordinators, the only ones of a part of the worlds.
LONE: Final = "lone"  # name of the consumer without membership
MOVES: Final = ("kill", "restart", "pause", "isolate", "down", "slow links")
NARROW: Final = 0.4  # share of narrow worlds
SLOW_ASSIGNMENTS: Final = 0.3  # share of worlds in which leaders compute their assignments slowly
ALL_CHECKERS: Final = (*CHECKERS, *CLEANUP_CHECKERS, *GROUP_CHECKERS)
PLAYED_CHECKERS: Final = (
    *ALL_CHECKERS,
    InternalTopicsAreProtected,
    WaitingMembersStay,
    BudgetsHaveRoom,
    BudgetsCountAll,
)


@dataclass(slots=True)
class GroupsSettings:
    groups: int
    members: int  # most members of a group
    static: float  # share of groups with static members
    session_ms: int
    rebalance_ms: int
    changes: int  # made by the administrator of groups
    least_workers: int  # live before the first coordinator is asked for
    retention_ms: int  # after which offsets of groups without members expire
    topic_configs: dict[str, str] = field(default_factory=dict)
    piece_offsets: int = PIECE_OFFSETS  # a group with more offsets is deleted in parts
    hoarders: int = 0  # clients that fill budgets, which are small then


def draw_settings(draw: Random) -> ReplicationSettings:
    settings = draw_cleaned_settings(draw)
    settings.controllers = draw.choice([1, 3])
    settings.is_combined = draw.random() < 0.5
    settings.workers = 3
    settings.racks = settings.near_consumers = settings.consumers = 0
    settings.configs.pop("replica.selector.class", None)
    settings.producers, settings.administrators = draw.randint(1, 2), 1
    settings.records, settings.think_s = draw.choice([40, 100]), draw.choice([0.02, 0.1])
    settings.changes = draw.choice([4, 12])
    settings.unclean = 0.0
    settings.fault_s, settings.peace_s = draw.choice([4.0, 8.0]), draw.choice([1.0, 2.5])
    settings.disk_delay_s, settings.delay_s = draw.choice([0.0005, 0.005]), 0.002
    kinds = draw.choice([(*KINDS, *GROUP_KINDS), (*MOVES, *GROUP_KINDS), GROUP_KINDS])
    if kinds == GROUP_KINDS:
        # The follower that is cut off stays in the ISR for a while, and is not fenced.
        settings.session_timeout_ms = 9000
        settings.configs["replica.lag.time.max.ms"] = "3000"
    settings.faults = draw_faults(draw, kinds, over_s=settings.fault_s, most=FEW_FAULTS)
    settings.configs |= {
        "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
        "group.initial.rebalance.delay.ms": draw.choice(["0", "100", "500"]),
        "group.min.session.timeout.ms": "100",
        "offsets.retention.check.interval.ms": draw.choice(["100", "700"]),
        "offsets.commit.timeout.ms": draw.choice(["200", "5000"]),
        "offsets.load.buffer.size": draw.choice(["100", "5242880"]),
    }
    return settings


def draw_groups(draw: Random) -> GroupsSettings:
    configs = {
        "internal.segment.bytes": draw.choice(["1000", "4000"]),
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": draw.choice(["100", "86400000"]),
        "min.insync.replicas": draw.choice(["1", "1", "2"]),
    }
    if draw.random() < 0.5:
        configs["flush.messages"] = "1"
    return GroupsSettings(
        groups=draw.randint(1, 3),
        members=draw.randint(1, 3),
        static=draw.choice([0.0, 0.5, 1.0]),
        session_ms=draw.choice([600, 1500]),
        rebalance_ms=draw.choice([600, 2000]),
        changes=draw.choice([0, 10, 25]),
        least_workers=draw.choice([1, 3, 3, 3]),
        retention_ms=draw.choice([500, 3000, 600_000]),
        topic_configs=configs,
    )


def _slow_commits(settings: ReplicationSettings, groups: GroupsSettings, draw: Random) -> None:
    """Let commits of coordinators take about as long as what they may coincide with.

    That is expiry, the next generation, and the next leader of the partition.
    """
    settings.delay_s = draw.choice([0.02, 0.03])
    settings.configs |= {
        "replica.lag.time.max.ms": "3000",
        "offsets.commit.timeout.ms": draw.choice(["100", "200"]),
        "offsets.retention.check.interval.ms": "100",
        "group.initial.rebalance.delay.ms": "0",
    }
    settings.session_timeout_ms = 9000
    settings.faults = draw_faults(draw, GROUP_KINDS, over_s=settings.fault_s, most=FEW_FAULTS)
    groups.groups, groups.members, groups.changes = draw.randint(1, 2), 2, 40
    groups.session_ms, groups.rebalance_ms = 1500, 600
    groups.retention_ms = 500
    groups.topic_configs["min.insync.replicas"] = "1"


def _moves(settings: ReplicationSettings, groups: GroupsSettings, draw: Random) -> None:
    """Move coordinators all the time: workers restart, and leaders return to preferred ones."""
    settings.delay_s = draw.choice([0.002, 0.02])
    settings.session_timeout_ms = 2000
    settings.faults = draw_faults(draw, ("restart",), over_s=settings.fault_s, most=2 * FEW_FAULTS)
    groups.groups, groups.members, groups.changes = 3, 2, 60
    groups.session_ms = groups.rebalance_ms = 1500


# Worlds of one purpose: what they are for coincides in few of the others.
NARROW_WORLDS: Final[
    Mapping[str, Callable[[ReplicationSettings, GroupsSettings, Random], None]]
] = {"slow commits": _slow_commits, "moves": _moves}


@contextmanager
def small_offsets_topic(groups: GroupsSettings) -> Iterator[None]:
    """Add configs to those of the new `__consumer_offsets`, and shorten retention and budgets.

    The shortest segment and retention that operators can set would take hours to fill or to pass,
    and a group that is deleted in parts would need hundreds of partitions: each part waits for the
    commit of the one before.
    """

    def more(right: Any) -> Any:
        return {**right, CONSUMER_OFFSETS: {**right[CONSUMER_OFFSETS], **groups.topic_configs}}

    def shorten(right: Any) -> Any:
        def update(self: CoordinatorConfigs, configs: Any) -> None:
            right(self, configs)
            self.groups.offsets_retention_ms = groups.retention_ms
            if groups.hoarders:
                self.memory_bytes = GROUP_MEMORY_BYTES
                self.offsets_memory_bytes = OFFSETS_MEMORY_BYTES

        return update

    with (
        swapped(internal_topics, "_CONFIGS", more),
        swapped(CoordinatorConfigs, "update", shorten),
        swapped(committed_offsets, "PIECE_OFFSETS", lambda _: groups.piece_offsets),
        swapped(background_writes, "MAX_WRITES", lambda most: min(most, groups.piece_offsets)),
    ):
        yield


@dataclass(slots=True)
class GroupClients(Clients):
    others: list[AnyClient] = field(default_factory=list)
    members: list[GroupMember] = field(default_factory=list)

    @property
    def all(self) -> list[AnyClient]:
        return [*self.administrators, *self.producers, *self.others, *self.members]


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_settings(world.stream("settings groups"))
    groups = draw_groups(world.stream("groups"))
    groups.piece_offsets = world.stream("pieces of groups").choice([1, PIECE_OFFSETS])
    draw = world.stream("narrow groups")
    if draw.random() < NARROW:
        purpose = draw.choice([*NARROW_WORLDS])
        NARROW_WORLDS[purpose](settings, groups, draw)
        world.say("story", f"narrow world: {purpose}")
        world.count(f"narrow: {purpose}")
    draw = world.stream("hoarders")
    if draw.random() < HOARDERS:
        groups.hoarders = draw.randint(1, MOST_HOARDERS)
        groups.retention_ms = min(groups.retention_ms, RETENTION_MS)
    # A separate random stream for few worlds: the other worlds do not change.
    computes_slowly = world.stream("slow assignments").random() < SLOW_ASSIGNMENTS
    if computes_slowly:
        groups.members, groups.session_ms, groups.rebalance_ms = 3, 600, 2000
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    world.say("story", f"{groups}")

    def clients_of(cluster_state: ReplicatedClusterState) -> Clients:
        waits.append(cluster_state.checker(WaitingMembersStay))
        clients = clients_of_groups(cluster_state, groups)
        for member in clients.members:
            member.computes_slowly = computes_slowly
        if groups.piece_offsets < PIECE_OFFSETS:
            for number in range(DELETERS):
                name = f"deleter-{number}"
                clients.others.append(GroupDeleter(cluster_state, name, world.stream(name)))
        draw = world.stream("intruder")
        if draw.random() < SHARE:
            clients.others.append(Intruder(cluster_state, "intruder", draw))
        hoard: list[Hoarded] = []
        for number in range(groups.hoarders):
            name = f"hoarder-{number}"
            clients.others.append(Hoarder(cluster_state, name, world.stream(name), hoard))
        if groups.hoarders:
            draw = world.stream("newcomer")
            clients.others.append(Newcomer(cluster_state, "newcomer", draw, hoard))
        return clients

    with small_offsets_topic(groups), watched_waits() as waits:
        await play_settings(
            world,
            settings,
            lambda cluster_state: GroupFaults(cluster_state, lone_group(LONE)).kinds,
            clients_of,
            PLAYED_CHECKERS,
        )


def clients_of_groups(
    cluster_state: ReplicatedClusterState, settings: GroupsSettings
) -> GroupClients:
    """Create the clients of groups; `__consumer_offsets` is one of the topics that may exist."""
    cluster_state.topic_outcomes.asked.add(CONSUMER_OFFSETS)
    world, clients = cluster_state.world, GroupClients()
    cluster_state.checker(GenerationsGrow).least_workers = settings.least_workers
    draw = world.stream("members")
    events = EventsAdministrator(cluster_state, "admin-0", world.stream("admin-0"))
    clients.administrators.append(events)
    for number in range(cluster_state.settings.producers):
        name = f"producer-{number}"
        clients.producers.append(CleanupProducer(cluster_state, name, world.stream(name)))
    groups = [
        Group(f"group-{number}", settings.session_ms, settings.rebalance_ms)
        for number in range(settings.groups)
    ]
    name = "groups-admin"
    clients.others = [
        GroupAdministrator(cluster_state, name, world.stream(name), groups, settings.changes),
        LoneConsumer(cluster_state, LONE, world.stream(LONE), settings.retention_ms / 1000),
    ]
    for group in groups:
        is_static = draw.random() < settings.static
        for number in range(draw.randint(1, settings.members)):
            name = f"{group.group_id}-member-{number}"
            # The last two of three members have the same instance id.
            instance_id = f"{group.group_id}-instance-{min(number, 1)}" if is_static else None
            clients.members.append(
                GroupMember(
                    cluster_state,
                    name,
                    world.stream(name),
                    group,
                    instance_id,
                    stays=number == 0,
                )
            )
    for member in clients.members:
        member.sources = [events, *clients.producers]
    return clients


GROUPS: Final = Scenario(
    "groups",
    "consumer groups: members that come and go, coordinators that move, offsets that expire",
    play,
    PLAYED_CHECKERS,
    gates=(
        "acknowledged records",
        "records processed",
        "assignments shown",
        "committed offsets read",
        "commit: NONE",
        "commit: ILLEGAL_GENERATION",
        "commit: UNKNOWN_MEMBER_ID",
        "commit: FENCED_INSTANCE_ID",
        "members fenced",
        "members left",
        "members that vanish",
        "members that pause",
        "delete group: NONE",
        "groups deleted or expired",
        "deletions in parts",
        "offsets of groups without members removed",
        "offsets of deleted topics removed",
        "topics made again",
        "coordinators changed",
        "records compacted away",
        "heartbeat: REBALANCE_IN_PROGRESS",
        "sessions kept by a waiting JoinGroup",
        "sessions kept by a waiting SyncGroup",
        "intrusions refused",
        "hoarder joins: GROUP_MAX_SIZE_REACHED",
        "hoarder commits: POLICY_VIOLATION",
        *(f"narrow: {purpose}" for purpose in NARROW_WORLDS),
        *(f"fault: {kind}" for kind in GROUP_KINDS),
    ),
)
