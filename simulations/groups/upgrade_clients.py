"""Clients of an upgrade: the operator that carries it out, and a client without patience."""

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

import trio

from metaquorum.metadata.records import METADATA_VERSION, TRANSACTION_VERSION
from metaquorum.quorum.controller.features import MOVES_LEVEL
from metaquorum.quorum.controller.internal_topics import GROUPS_LEVEL, TRANSACTIONS_LEVEL
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.cluster.cluster_state import Member
from metaquorum.simulations.cluster.faults import STOP_WITHIN_S
from metaquorum.simulations.groups.group_clients import (
    PROTOCOL,
    PROTOCOL_TYPE,
    GroupClient,
    encoded_names,
    topic_names,
)
from metaquorum.simulations.groups.upgrade_checkers import (
    GroupsNeedTheirLevel,
    LevelsAreSupported,
    level_of,
)
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.replication.attacker import ReplicaAttacker
from metaquorum.simulations.replication.replica_clients import ReplicaClient
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.messages.delete_groups import DeleteGroupsRequest
from metaquorum.wire.messages.describe_groups import DescribeGroupsRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.heartbeat import HeartbeatRequest
from metaquorum.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from metaquorum.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from metaquorum.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from metaquorum.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from metaquorum.wire.messages.sync_group import SyncGroupRequest
from metaquorum.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

RAISE_MS: Final = 3000
EARLY: Final = 0.7  # share of the operator's pauses in which it asks for the new level
# Longest wait of a careful operator for a node, before the next one.
SERVES_WITHIN_S: Final = 3.0
_UPGRADE: Final = 1  # upgrade_type of UpdateFeatures
_VALIDATE_SINCE: Final = 1
_BATCHED_FIND_SINCE: Final = 4
_FETCH_GROUPS_SINCE: Final = 8
_IDS_SINCE: Final = 10  # version of OffsetCommit and OffsetFetch
_LEAVE_MANY_SINCE: Final = 3
_SYNC_PROTOCOL_SINCE: Final = 5
# Levels to raise, in this order.
STEPS: Final = (
    (METADATA_VERSION, GROUPS_LEVEL),
    (METADATA_VERSION, TRANSACTIONS_LEVEL),
    (METADATA_VERSION, MOVES_LEVEL),
    (TRANSACTION_VERSION, 1),
    (TRANSACTION_VERSION, 2),
)
Probe = Callable[[ClientConnection, int], Coroutine[Any, Any, None]]


class UpgradeAttacker(ReplicaAttacker):
    """Attacker of workers of the new version; those before groups believe every replica id."""

    def may_attack(self, leader: int) -> bool:
        machine = self.cluster_state.members[leader].supervisor.machine
        versions = self.cluster_state.checker(LevelsAreSupported).versions
        is_first = versions.old_level < GROUPS_LEVEL
        return not (is_first and versions.is_old(machine.name, machine.runs))


class UpgradeOperator(ReplicaClient):
    """Operator that restarts one node after another as the new version, and raises the levels.

    Between two nodes it may ask for a new level too early.
    """

    def __init__(
        self, cluster_state: ReplicatedClusterState, name: str, draw: Random, longest_s: float
    ) -> None:
        """Create the operator, which waits at most `longest_s` between two nodes."""
        super().__init__(cluster_state, name, draw)
        self._longest_s = longest_s
        self._is_careful = draw.random() < 0.5
        self._checker = cluster_state.checker(LevelsAreSupported)

    async def run(self, runtime: Runtime) -> None:
        state = self.cluster_state
        while not self._checker.level:
            await sleep(runtime.clock, RETRY_S)
        for member in self._order():
            next_at = state.world.now + self._draw.uniform(0.0, self._longest_s)
            while state.world.now < next_at:
                if self._draw.random() < EARLY:
                    await self._raise(runtime)
                await sleep(runtime.clock, self._draw.uniform(0.0, self._longest_s) / 3)
            acknowledged = state.world.counts.get("acknowledged records", 0)
            await self._upgrade(member)
            new = state.world.counts.get("acknowledged records", 0) - acknowledged
            state.world.count("records acknowledged while a node was upgraded", new)
        while self._next is not None and not state.closing:
            await self._raise(runtime)
            await sleep(runtime.clock, RETRY_S)
        self.done = True

    @property
    def _next(self) -> tuple[str, int] | None:
        """Feature and level to raise next; None if the cluster has the highest levels."""
        features = self._checker.features
        steps = ((name, level) for name, level in STEPS if features.get(name, 0) < level)
        return next(steps, None)

    def _order(self) -> list[Member]:
        """Return the nodes in the order of their upgrades: the workers first, or last, or mixed."""
        order = sorted(self.cluster_state.members.values(), key=lambda member: member.name)
        self._draw.shuffle(order)
        if (first := self._draw.choice([True, False, None])) is not None:
            order.sort(key=lambda member: member.config.is_worker is not first)
        return order

    async def _upgrade(self, member: Member) -> None:
        """Restart the node as the new version; a careful operator waits until it serves again."""
        machine, world = member.supervisor.machine, self.cluster_state.world
        self._checker.versions.install(machine)
        how = self._draw.choice(["stop", "stop", "kill"])
        self.say(f"upgrades {member.name}: {how}")
        if machine.running:
            fate = machine.fate
            if how == "stop":
                member.supervisor.stop()
                with trio.move_on_after(STOP_WITHIN_S):
                    await fate.done.wait()
            if machine.running and machine.fate is fate:
                machine.kill()
        world.count("nodes upgraded")
        if not self._is_careful:
            return
        with trio.move_on_after(SERVES_WITHIN_S):
            while self._checker.versions.is_old(member.name, machine.runs) or not member.serves:
                await world.sleep(RETRY_S)

    async def _raise(self, runtime: Runtime) -> None:
        """Ask for the next level through any worker."""
        wanted = self._next
        if wanted is None:
            return
        if self._draw.random() < 0.2:  # perhaps before the level of metadata.version that it needs
            wanted = STEPS[-1]
        old_nodes = self._checker.old_nodes
        update = FeatureUpdateKey(
            feature=wanted[0], max_version_level=wanted[1], upgrade_type=_UPGRADE
        )
        try:
            async with self.connected(runtime) as connection:
                validates = connection.version(ApiKey.UPDATE_FEATURES) >= _VALIDATE_SINCE
                message = UpdateFeaturesRequest(
                    timeout_ms=RAISE_MS,
                    feature_updates=[update],
                    validate_only=validates and self._draw.random() < 0.2,
                )
                response = await connection.call(ApiKey.UPDATE_FEATURES, message)
        except BROKEN as error:
            self.say(f"raises {wanted}: {error!r}")
            return
        codes = [response.error_code, *(row.error_code for row in response.results)]
        code = ErrorCode(next((each for each in codes if each), 0))
        self.say(f"raises {wanted}: {code.name}, old {old_nodes}")
        if code is ErrorCode.NONE:  # all nodes that are old now were old then
            old_nodes = self._checker.old_nodes
        if self._checker.versions.old_supports(*wanted):  # the level is that of the old nodes
            old_nodes = []
        self._checker.answered(old_nodes, code)


class LevelProbe(GroupClient):
    """Client that sends requests of groups to any worker, which must refuse them at first.

    An answer counts if the worker's metadata have the level before groups at the time of the
    request, and at that of the answer.
    """

    async def run(self, runtime: Runtime) -> None:
        level = self.cluster_state.checker(LevelsAreSupported)
        probes: list[Probe] = [
            self._join,
            self._sync,
            self._heartbeat,
            self._leave,
            self._describe,
            self._delete,
            self._commit,
            self._fetch,
            self._find,
        ]
        while level.level < GROUPS_LEVEL and not self.cluster_state.closing:
            try:
                async with self.connected(runtime) as connection:
                    worker_id = self.worker_id
                    for _ in range(self._draw.randint(1, 4)):
                        await self._draw.choice(probes)(connection, worker_id)
            except BROKEN as error:
                self.say(repr(error))
            await sleep(runtime.clock, RETRY_S + self._draw.random() * 0.3)
        self.done = True

    def _is_below(self, worker_id: int) -> bool:
        """Return whether the worker runs, and knows a level below that of groups."""
        image = self.log.image_of(worker_id)
        return image is not None and 0 < level_of(image) < GROUPS_LEVEL

    @property
    def _checker(self) -> GroupsNeedTheirLevel:
        return self.cluster_state.checker(GroupsNeedTheirLevel)

    async def _ask(
        self,
        connection: ClientConnection,
        worker_id: int,
        api: ApiKey,
        message: Any,
        codes: Callable[[Any], list[int]] = lambda response: [response.error_code],
    ) -> None:
        """Send a request; check the error codes that `codes` returns."""
        was_below = self._is_below(worker_id)
        response = await connection.call(api, message)
        found = [ErrorCode(code) for code in codes(response)]
        self.say(f"asks worker {worker_id}, {api.name}: {[code.name for code in found]}")
        if was_below and self._is_below(worker_id):
            self._checker.answered(api.name, worker_id, found)

    async def _join(self, connection: ClientConnection, worker_id: int) -> None:
        protocol = JoinGroupRequestProtocol(name=PROTOCOL, metadata=encoded_names(topic_names()))
        message = JoinGroupRequest(
            group_id="early",
            session_timeout_ms=1000,
            rebalance_timeout_ms=1000,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
        )
        await self._ask(connection, worker_id, ApiKey.JOIN_GROUP, message)

    async def _sync(self, connection: ClientConnection, worker_id: int) -> None:
        has_protocol = connection.version(ApiKey.SYNC_GROUP) >= _SYNC_PROTOCOL_SINCE
        message = SyncGroupRequest(
            group_id="early",
            generation_id=1,
            member_id="nobody",
            protocol_type=PROTOCOL_TYPE if has_protocol else None,
            protocol_name=PROTOCOL if has_protocol else None,
        )
        await self._ask(connection, worker_id, ApiKey.SYNC_GROUP, message)

    async def _heartbeat(self, connection: ClientConnection, worker_id: int) -> None:
        message = HeartbeatRequest(group_id="early", generation_id=1, member_id="nobody")
        await self._ask(connection, worker_id, ApiKey.HEARTBEAT, message)

    async def _leave(self, connection: ClientConnection, worker_id: int) -> None:
        is_many = connection.version(ApiKey.LEAVE_GROUP) >= _LEAVE_MANY_SINCE
        message = LeaveGroupRequest(
            group_id="early",
            member_id="" if is_many else "nobody",
            members=[MemberIdentity(member_id="nobody")] if is_many else [],
        )
        await self._ask(connection, worker_id, ApiKey.LEAVE_GROUP, message)

    async def _describe(self, connection: ClientConnection, worker_id: int) -> None:
        message = DescribeGroupsRequest(groups=["early"])
        await self._ask(
            connection,
            worker_id,
            ApiKey.DESCRIBE_GROUPS,
            message,
            lambda response: [each.error_code for each in response.groups],
        )

    async def _delete(self, connection: ClientConnection, worker_id: int) -> None:
        message = DeleteGroupsRequest(groups_names=["early"])
        await self._ask(
            connection,
            worker_id,
            ApiKey.DELETE_GROUPS,
            message,
            lambda response: [each.error_code for each in response.results],
        )

    async def _commit(self, connection: ClientConnection, worker_id: int) -> None:
        """Commit an offset of a topic, which the worker may not know yet, or no longer."""
        places = self.places()
        if not places:
            return
        name, place = places[0]
        has_ids = connection.version(ApiKey.OFFSET_COMMIT) >= _IDS_SINCE
        row = OffsetCommitRequestPartition(partition_index=place.partition, committed_offset=0)
        topic = OffsetCommitRequestTopic(
            name="" if has_ids else name, topic_id=place.topic_id, partitions=[row]
        )
        image = self.log.image_of(worker_id)
        known = None if image is None else image.topic(name)
        if known is None or known.topic_id != place.topic_id:
            return
        await self._ask(
            connection,
            worker_id,
            ApiKey.OFFSET_COMMIT,
            OffsetCommitRequest(group_id="early", topics=[topic]),
            lambda response: (
                [
                    row.error_code
                    for topic in response.topics
                    for row in topic.partitions
                    if row.error_code
                    not in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                ]
                or [ErrorCode.UNSUPPORTED_VERSION]
            ),
        )

    async def _fetch(self, connection: ClientConnection, worker_id: int) -> None:
        """Read offsets, as consumers do that assign their partitions themselves."""
        places = self.places()[:2]
        version = connection.version(ApiKey.OFFSET_FETCH)
        if version < _FETCH_GROUPS_SINCE:
            topics = [
                OffsetFetchRequestTopic(name=name, partition_indexes=[place.partition])
                for name, place in places
            ]
            message = OffsetFetchRequest(group_id="early", topics=topics)
        else:
            of_group = [
                OffsetFetchRequestTopics(
                    name=name if version < _IDS_SINCE else "",
                    topic_id=place.topic_id,
                    partition_indexes=[place.partition],
                )
                for name, place in places
            ]
            group = OffsetFetchRequestGroup(group_id="early", topics=of_group)
            message = OffsetFetchRequest(groups=[group])
        was_below = self._is_below(worker_id)
        response = await connection.call(ApiKey.OFFSET_FETCH, message)
        found = response if version < _FETCH_GROUPS_SINCE else response.groups[0]
        offsets = [row.committed_offset for topic in found.topics for row in topic.partitions]
        if was_below and self._is_below(worker_id):
            self._checker.read(worker_id, offsets)

    async def _find(self, connection: ClientConnection, worker_id: int) -> None:
        is_batched = connection.version(ApiKey.FIND_COORDINATOR) >= _BATCHED_FIND_SINCE
        message = FindCoordinatorRequest(
            key="" if is_batched else "early", coordinator_keys=["early"] if is_batched else []
        )
        was_below = self._is_below(worker_id)
        response = await connection.call(ApiKey.FIND_COORDINATOR, message)
        found = response.coordinators[0] if is_batched else response
        if was_below and self._is_below(worker_id):
            self._checker.found(worker_id, found.node_id, ErrorCode(found.error_code))
