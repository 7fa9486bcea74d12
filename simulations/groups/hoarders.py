"""Clients that make coordinators keep as much as they can, and a newcomer that must find room.

The budgets of these worlds are small, so that two or three hoarders use nearly all of them: with
members of large subscriptions, and with offsets of groups of their own.
"""

from random import Random
from typing import Final, TypeAlias

from metaquorum.dataplane.coordinators.group.committed_offsets import (
    OFFSET_BYTES,
    USUAL_VALUE_BYTES,
    CommittedOffsets,
    group_bytes,
)
from metaquorum.dataplane.coordinators.group.group_coordinator import GroupCoordinator
from metaquorum.dataplane.coordinators.group.group_shard import GroupShard
from metaquorum.dataplane.coordinators.group.sessions import pending_bytes
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.groups.budget_checkers import (
    BudgetsCountAll,
    BudgetsHaveRoom,
    settled_worker,
)
from metaquorum.simulations.groups.group_clients import PROTOCOL, PROTOCOL_TYPE, GroupClient
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from metaquorum.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

HOARDERS: Final = 0.3  # share of the worlds with hoarders
MOST_HOARDERS: Final = 3
GROUP_MEMORY_BYTES: Final = 100_000
OFFSETS_MEMORY_BYTES: Final = 50_000
# Longest retention of offsets in these worlds: a world ends when all groups have consumed all, and
# after a failover loaded state may use more than a whole budget.
RETENTION_MS: Final = 3000
_SIZES: Final = (10_000, 1000, 10)  # subscriptions; a smaller one after a refusal
# Subscription of the newcomer after its growth. With the history of its rebalances, it is less
# than what its group and member were admitted with: known state may always grow by as much.
_GROWN_BYTES: Final = 3000
# A record with both fits the smallest segment of these worlds.
_METADATA: Final = "m" * 300
_LONG_ID: Final = 300
_ATTEMPTS: Final = 40  # commits and JoinGroups of one connection
_OLD_JOIN: Final = 3  # version in which a new member joins with its first request
_SESSION_MS: Final = 2000
_SHORT_SESSION_MS: Final = 200
# Errors of a JoinGroup of a new group for which a budget has no memory.
_REFUSED: Final = (ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.COORDINATOR_NOT_AVAILABLE)


# Hoarder, group, member id, and bytes of the subscription of a member.
Hoarded: TypeAlias = tuple[str, str, str, int]


def _members_bytes(shard: GroupShard) -> int:
    used_bytes = 0
    for group in shard.groups.values():
        used_bytes += group.own_bytes + group.history.size_bytes
        used_bytes += sum(map(pending_bytes, group.pending))
        used_bytes += sum(member.size_bytes for member in group.members)
    return used_bytes


def _offsets_bytes(offsets: CommittedOffsets) -> int:
    groups = set()
    used_bytes = 0
    for group, topic, partition in offsets.committed_places():
        groups.add(group)
        size_bytes = len(offsets.value(group, topic, partition) or b"")
        used_bytes += OFFSET_BYTES + max(0, size_bytes - USUAL_VALUE_BYTES)
    waiting = [
        offset.size_bytes
        for places in offsets.transactional.groups.values()
        for of_place in places.values()
        for offset in of_place.values()
    ]
    return used_bytes + sum(map(group_bytes, groups)) + sum(waiting)


class Hoarder(GroupClient):
    """Joins and commits for groups of its own, also after it was refused.

    Hoarders then join as members of each other, whose `hoard` they share: if state moved to the
    client that uses it without a limit, two of them could use a whole budget.
    """

    def __init__(
        self,
        cluster_state: ReplicatedClusterState,
        name: str,
        draw: Random,
        hoard: list[Hoarded],
    ) -> None:
        """Create a hoarder; hoarders share `hoard`."""
        super().__init__(cluster_state, name, draw)
        self._hoard = hoard
        self._versions[ApiKey.JOIN_GROUP] = _OLD_JOIN
        self._made = 0

    async def run(self, runtime: Runtime) -> None:
        while not self.cluster_state.closing and not self.cluster_state.calm:
            try:
                if not self.log.is_early:
                    async with self.connected(runtime) as connection:
                        await self._use(runtime, connection)
            except BROKEN as error:
                self.say(repr(error))
            await sleep(runtime.clock, RETRY_S)
        self.done = True

    async def _use(self, runtime: Runtime, connection: ClientConnection) -> None:
        sizes = list(_SIZES)
        for _ in range(_ATTEMPTS):
            self._made += 1
            group_id = f"{self.name}-{self._made}"
            if sizes:
                code, member_id = await self.join(connection, group_id, sizes[0])
                if code is ErrorCode.NONE:
                    self._hoard.append((self.name, group_id, member_id, sizes[0]))
                elif code in _REFUSED:
                    del sizes[0]
            elif others := [each for each in self._hoard if each[0] != self.name]:
                other = self._draw.choice(others)
                self._hoard.remove(other)
                _, group_id, member_id, size_bytes = other
                # With the same subscription, nothing would change in its generation.
                size_bytes = size_bytes - 1 if size_bytes else _SIZES[-1]
                code, _ = await self.join(connection, group_id, size_bytes, member_id)
                if code is ErrorCode.NONE:
                    self._hoard.append((self.name, group_id, member_id, size_bytes))
                    sizes = list(_SIZES)
            await self._commit(connection, group_id)

    async def join(
        self,
        connection: ClientConnection,
        group_id: str,
        size_bytes: int,
        member_id: str = "",
        session_ms: int = _SESSION_MS,
    ) -> tuple[ErrorCode, str]:
        """Join a group; return the error, and the id of the member."""
        protocol = JoinGroupRequestProtocol(name=PROTOCOL, metadata=bytes(size_bytes))
        message = JoinGroupRequest(
            group_id=group_id,
            member_id=member_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=session_ms,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
        )
        response = await connection.call(ApiKey.JOIN_GROUP, message)
        what = "joins again" if member_id else "joins"
        return self._answered(what, ErrorCode(response.error_code)), response.member_id

    async def _commit(self, connection: ClientConnection, group_id: str) -> None:
        """Commit for an own group; members of it commit nothing."""
        place = self.place()
        if place is None:
            return
        row = OffsetCommitRequestPartition(
            partition_index=place[1].partition, committed_offset=1, committed_metadata=_METADATA
        )
        topic = OffsetCommitRequestTopic(
            name=place[0], topic_id=place[1].topic_id, partitions=[row]
        )
        message = OffsetCommitRequest(group_id=group_id.ljust(_LONG_ID, "x"), topics=[topic])
        response = await connection.call(ApiKey.OFFSET_COMMIT, message)
        self._answered("commits", ErrorCode(response.topics[0].partitions[0].error_code))

    def _answered(self, what: str, code: ErrorCode) -> ErrorCode:
        self.say(f"{what}: {code.name}")
        self.cluster_state.world.count(f"hoarder {what}: {code.name}")
        self._look()
        return code

    def _coordinator(self) -> GroupCoordinator | None:
        """Return the coordinator of the worker of the last connection, if it has settled."""
        worker = settled_worker(self.cluster_state, self.worker_id)
        if worker is None or worker.groups.is_loading:
            return None
        groups = worker.groups
        return groups if len(groups.shards) == groups.runtime.hosted_count else None

    def _look(self) -> None:
        groups = self._coordinator()
        if groups is None:
            return
        shards = groups.shards.values()
        for budget, used_bytes in (
            (groups.budget, sum(map(_members_bytes, shards))),
            (groups.offsets_budget, sum(_offsets_bytes(each.offsets) for each in shards)),
        ):
            checker = self.cluster_state.checker(BudgetsCountAll)
            checker.look(self.worker_id, budget, used_bytes)
            self.cluster_state.checker(BudgetsHaveRoom).look(budget)


class Newcomer(Hoarder):
    """Joins groups of its own with a small subscription and a short session."""

    async def _use(self, runtime: Runtime, connection: ClientConnection) -> None:
        self._made += 1
        group_id = f"{self.name}-{self._made}"
        before, checker = self._coordinator(), self.cluster_state.checker(BudgetsHaveRoom)
        is_new = before is not None and not before.budget.use_of(self.name).counted_bytes
        code, member_id = await self.join(
            connection, group_id, _SIZES[-1], session_ms=_SHORT_SESSION_MS
        )
        groups = self._coordinator()
        if is_new and groups is before and groups is not None:
            checker.created(self.name, groups.budget, code, is_refused=code in _REFUSED)
        if code is ErrorCode.NONE:
            code, _ = await self.join(
                connection, group_id, _GROWN_BYTES, member_id, _SHORT_SESSION_MS
            )
            checker.known(self.name, code, is_refused=code in _REFUSED)
