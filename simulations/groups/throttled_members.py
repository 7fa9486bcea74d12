"""Scenario `throttled-members`: groups whose members have quotas that mute their connections.

A member fetches from its coordinator on the connection of its heartbeats, so that they wait behind
a mute that is longer than the session. Its quotas, by client id, end with the faults.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from metaquorum.dataplane.coordinators.group.sessions import Sessions
from metaquorum.dataplane.quotas.client_state import ClientQuotaState
from metaquorum.quorum.controller.quota_changes import CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.cluster.fault_plan import draw_faults, without
from metaquorum.simulations.groups.group_clients import lone_group
from metaquorum.simulations.groups.group_faults import GroupFaults
from metaquorum.simulations.groups.groups_scenario import (
    ALL_CHECKERS,
    LONE,
    MOVES,
    GroupClients,
    GroupsSettings,
    clients_of_groups,
    draw_groups,
    draw_settings,
    small_offsets_topic,
)
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.replication.quota_administrator import QuotaAdministrator
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replicated_cluster import (
    ReplicatedClusterState,
    ReplicationSettings,
)
from metaquorum.simulations.replication.replication_scenario import play_settings
from metaquorum.simulations.replication.throttling import FASTEST, QUOTA_CHECKERS, SLACK_S

# Lowest rates: a fetch of a few records mutes for seconds.
RATES: Final = (50.0, 200.0, 1000.0)
PERCENTAGES: Final = (None, 0.005, 0.02)
FEW_FAULTS: Final = 3


class ThrottledMembersStay(WatchingChecker):
    """No session ends while a quota mutes its member's connection, or within its timeout after."""

    invariant = "Q6"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        # End of the last mute of each connection's quota state, by the identity of the state.
        self._unmuted_at: dict[int, tuple[ClientQuotaState, float]] = {}

    def unmuted(self, state: ClientQuotaState) -> None:
        self._unmuted_at[id(state)] = state, self.world.now

    def timed_out(
        self, member_id: str, state: ClientQuotaState, timeout_s: float, *, is_expelled: bool
    ) -> None:
        """Check a session timer that ran out; `timeout_s` by the worker's clock."""
        _, unmuted_at = self._unmuted_at.get(id(state), (state, None))
        is_recent = unmuted_at is not None and (
            self.world.now - unmuted_at < timeout_s / FASTEST - SLACK_S
        )
        if state.mute is None and not is_recent:
            return
        self.world.count("sessions kept through mutes", not is_expelled)
        self.compare(
            not is_expelled,
            "the session of {} ends ({} s), but its mute ends in {} s; the last one ended at {}",
            member_id,
            timeout_s,
            None if state.mute is None else state.mute.left_s,
            unmuted_at,
        )


class MemberQuotas(QuotaAdministrator):
    """Administrator that sets quotas of members, and removes them once the faults are over."""

    def __init__(
        self, cluster_state: ReplicatedClusterState, name: str, draw: Random, members: Sequence[str]
    ) -> None:
        super().__init__(cluster_state, name, draw)
        self._leaves = False
        self.quotas = {member: self._drawn() for member in members}

    def _drawn(self) -> dict[str, float]:
        quotas = {CONSUMER_BYTE_RATE: self._draw.choice(RATES)}
        percentage = self._draw.choice(PERCENTAGES)
        return quotas if percentage is None else quotas | {REQUEST_PERCENTAGE: percentage}


@contextmanager
def watched_sessions() -> Iterator[list[ThrottledMembersStay]]:
    """Report ends of mutes and session timers to the checkers in the list while the block runs."""
    checkers: list[ThrottledMembersStay] = []

    def ends(right: Any) -> Any:
        def end_mute(self: ClientQuotaState) -> None:
            if self.mute is not None:
                for checker in checkers:
                    checker.unmuted(self)
            right(self)

        return end_mute

    def times_out(right: Any) -> Any:
        def _session_ended(self: Sessions, member_id: str, now: float) -> None:
            members = self._members
            member = members.by_id[member_id]
            state = getattr(member.muted_until, "__self__", None)
            right(self, member_id, now)
            if isinstance(state, ClientQuotaState):
                for checker in checkers:
                    checker.timed_out(
                        member_id,
                        state,
                        member.session_timeout_ms / 1000,
                        is_expelled=member_id not in members,
                    )

        return _session_ended

    with (
        swapped(ClientQuotaState, "end_mute", ends),
        swapped(Sessions, "_session_ended", times_out),
    ):
        yield checkers


def draw_throttled(draw: Random) -> tuple[ReplicationSettings, GroupsSettings]:
    settings, groups = draw_settings(draw), draw_groups(draw)
    settings.throttles = True
    settings.records, settings.changes = 40, 4
    settings.configs["quota.window.num"] = draw.choice(["2", "5"])
    settings.faults = draw_faults(draw, MOVES, over_s=settings.fault_s, most=FEW_FAULTS)
    groups.groups, groups.changes = draw.randint(1, 2), 0
    return settings, groups


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    settings, groups = draw_throttled(world.stream("settings throttled-members"))
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    world.say("story", f"{groups}")

    def clients_of(cluster_state: ReplicatedClusterState) -> GroupClients:
        sessions.append(cluster_state.checker(ThrottledMembersStay))
        clients = clients_of_groups(cluster_state, groups)
        for member in clients.members:
            member.shares_connection = True
        names = [member.name for member in clients.members]
        quotas = MemberQuotas(cluster_state, "quotas", world.stream("quotas"), names)
        clients.administrators.append(quotas)
        return clients

    with small_offsets_topic(groups), watched_sessions() as sessions:
        await play_settings(
            world,
            settings,
            lambda cluster_state: GroupFaults(cluster_state, lone_group(LONE)).kinds,
            clients_of,
            THROTTLED_CHECKERS,
        )


THROTTLED_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    *ALL_CHECKERS,
    *QUOTA_CHECKERS,
    ThrottledMembersStay,
)

THROTTLED_MEMBERS: Final = Scenario(
    "throttled-members",
    "consumer groups whose members are muted by quotas for longer than their sessions",
    play,
    THROTTLED_CHECKERS,
    gates=(
        "acknowledged records",
        "records processed",
        "assignments shown",
        "commit: NONE",
        "answers that throttle",
        "muted by consumer_byte_rate",
        "muted by request_percentage",
        "sessions kept through mutes",
        "members that vanish",
    ),
)
