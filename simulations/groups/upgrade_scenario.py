"""Scenario `upgrades`: a cluster at a level before groups, or transactions, is upgraded by nodes.

Controllers run the old version when the cluster is founded, and so does a part of the other
workers. An operator restarts each node as the new version, among other faults, then raises the
levels. The clients of `groups` start with the cluster: their members cannot join until then. A
client claims to be a replica, while the workers of both versions replicate from each other.

Left out: workers that are unregistered, as the level may be raised without them, and nodes that
return to the old version.
"""

from collections.abc import Collection
from random import Random
from typing import Final

from metaquorum.simulations.cluster.fault_plan import draw_faults, without
from metaquorum.simulations.groups.group_clients import lone_group
from metaquorum.simulations.groups.group_faults import GroupFaults
from metaquorum.simulations.groups.groups_scenario import (
    ALL_CHECKERS,
    FEW_FAULTS,
    LONE,
    MOVES,
    GroupClients,
    GroupsSettings,
    clients_of_groups,
    draw_groups,
    draw_settings,
    small_offsets_topic,
)
from metaquorum.simulations.groups.node_versions import OLD_LEVELS, NodeVersions, mixed_versions
from metaquorum.simulations.groups.upgrade_checkers import (
    UPGRADE_CHECKERS,
    LevelsAreSupported,
    OldNodesReadOldRecords,
)
from metaquorum.simulations.groups.upgrade_clients import (
    LevelProbe,
    UpgradeAttacker,
    UpgradeOperator,
)
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.replication.replicated_cluster import (
    ReplicatedClusterState,
    ReplicationSettings,
)
from metaquorum.simulations.replication.replication_scenario import KINDS, play_settings

UPGRADED_KINDS: Final = tuple(kind for kind in KINDS if kind != "unregister")
UPGRADED_CHECKERS: Final = (*ALL_CHECKERS, *UPGRADE_CHECKERS)
PROBES: Final = 2


def draw_upgrade_settings(draw: Random) -> tuple[ReplicationSettings, GroupsSettings]:
    settings, groups = draw_settings(draw), draw_groups(draw)
    settings.controllers, settings.is_combined = draw.choice([1, 3, 3]), draw.random() < 0.4
    settings.records, settings.changes = 40, 4
    groups.groups, groups.members = draw.randint(1, 2), draw.randint(1, 2)
    settings.session_timeout_ms = 2000
    kinds = draw.choice([MOVES, UPGRADED_KINDS])
    settings.faults = draw_faults(draw, kinds, over_s=settings.fault_s, most=FEW_FAULTS)
    return settings, groups


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    draw = world.stream("settings upgrades")
    settings, groups = draw_upgrade_settings(draw)
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    longest_s = draw.choice([0.2, 1.0, 2.0])
    share_new = draw.choice([0.0, 0.5])  # new nodes at first, among those without a controller
    versions = NodeVersions(world.stream("old version").choice(OLD_LEVELS))
    world.say("story", f"{groups}")

    def clients_of(cluster_state: ReplicatedClusterState) -> GroupClients:
        for member in cluster_state.members.values():
            is_new = not member.config.is_controller and draw.random() < share_new
            if not is_new:
                versions.old.add(member.name)
        cluster_state.checker(LevelsAreSupported).versions = versions
        versions.applied = cluster_state.checker(OldNodesReadOldRecords).applied
        clients = clients_of_groups(cluster_state, groups)
        operator = UpgradeOperator(cluster_state, "operator", world.stream("operator"), longest_s)
        clients.others.append(operator)
        clients.others.append(UpgradeAttacker(cluster_state, "attacker", world.stream("attacker")))
        for number in range(PROBES):
            name = f"probe-{number}"
            clients.others.append(LevelProbe(cluster_state, name, world.stream(name)))
        return clients

    with small_offsets_topic(groups), mixed_versions(versions):
        await play_settings(
            world,
            settings,
            lambda cluster_state: GroupFaults(cluster_state, lone_group(LONE)).kinds,
            clients_of,
            UPGRADED_CHECKERS,
        )


UPGRADES: Final = Scenario(
    "upgrades",
    "nodes that are upgraded one by one: levels of features, and groups that need them",
    play,
    UPGRADED_CHECKERS,
    gates=(
        "acknowledged records",
        "records acknowledged while a node was upgraded",
        "records processed",
        "assignments shown",
        "committed offsets read",
        "commit: NONE",
        "levels raised",
        "levels of transaction.version raised",
        "raise: NONE",
        "raise: INVALID_UPDATE_VERSION",
        "nodes upgraded",
        "coordinators changed",
    ),
)
