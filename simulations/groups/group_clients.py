"""Requests of groups that all clients share, and what the members of one group know together."""

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.groups.group_checkers import (
    CommitsAreDurable,
    CommitsAreReadBack,
    CoordinatorsKnowTheirRole,
    DeletionsAreWhole,
    LiveGroupsKeepOffsets,
    NothingIsSkipped,
    OffsetRead,
    OffsetsBelongToTopics,
)
from metaquorum.simulations.groups.group_log import Attempt, CoordinatorRole, GenerationsGrow
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.replication.cleanup_clients import CleanupAdministrator
from metaquorum.simulations.replication.replica_checkers import MIN_ISR
from metaquorum.simulations.replication.replica_clients import ReplicaReader
from metaquorum.simulations.replication.replicas import Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.messages.delete_groups import DeleteGroupsRequest
from metaquorum.wire.messages.describe_groups import DescribeGroupsRequest
from metaquorum.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from metaquorum.wire.messages.list_groups import ListGroupsRequest
from metaquorum.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from metaquorum.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from metaquorum.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

TOPICS: Final = 2  # existing at the same time
NAMES: Final = 8  # topic names, most of which are never used
PROTOCOL_TYPE: Final = "consumer"
PROTOCOL: Final = "range"
_BATCHED_FIND_SINCE: Final = 4
_FETCH_GROUPS_SINCE: Final = 8
_IDS_SINCE: Final = 10  # version of OffsetCommit and OffsetFetch
_FETCH_ERROR_SINCE: Final = 2
_LEAVE_MANY_SINCE: Final = 3
# Outcomes of DeleteGroups after which nothing is deleted any longer.
_WITHOUT_DELETION: Final = (
    ErrorCode.NONE,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.NON_EMPTY_GROUP,
)
# Versions with group.instance.id.
STATIC_SINCE: Final[Mapping[ApiKey, int]] = {
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.HEARTBEAT: 3,
    ApiKey.LEAVE_GROUP: 3,
    ApiKey.OFFSET_COMMIT: 7,
}


def topic_names() -> list[str]:
    """Return the names of all topics that may exist: every group subscribes to them."""
    return [f"events-{number}" for number in range(NAMES)]


def encoded_names(names: Sequence[str]) -> bytes:
    """Return a subscription to topics."""
    parts = [struct.pack(">hi", 0, len(names))]
    parts += [struct.pack(">h", len(name)) + name.encode() for name in names]
    return b"".join(parts) + struct.pack(">i", -1)


def encoded_places(places: Sequence[tuple[str, int]]) -> bytes:
    """Return an assignment of partitions."""
    parts = [struct.pack(">hi", 0, len(places))]
    parts += [
        struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", index)
        for name, index in places
    ]
    return b"".join(parts)


def decoded_places(data: bytes) -> list[tuple[str, int]]:
    if not data:
        return []
    _, count = struct.unpack_from(">hi", data)
    at, places = 6, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", data, at)
        name = data[at + 2 : at + 2 + length].decode()
        (index,) = struct.unpack_from(">i", data, at + 2 + length)
        places.append((name, index))
        at += 6 + length
    return places


class Position(NamedTuple):
    """Identity under which a client commits; generation -1 without membership."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass(slots=True, eq=False)
class Group:
    """One group: its settings, and what all of its members have reached together."""

    group_id: str
    session_ms: int
    rebalance_ms: int
    static_ids: list[str] = field(default_factory=list)
    # Partitions whose end was reached and committed after the last record was produced.
    settled: set[Place] = field(default_factory=set)
    active: int = 0  # members that have not ended
    # The member that stays has joined again after the last record was produced, or has ended.
    is_final: bool = False


class GroupClient(ReplicaReader):
    """Client that finds coordinators, and commits and reads offsets."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._attempts = 0

    @property
    def log(self) -> GenerationsGrow:
        return self.cluster_state.checker(GenerationsGrow)

    async def coordinator(self, runtime: Runtime, group_id: str) -> int:
        """Return the coordinator's worker id. Raises an error of `BROKEN` if there is none."""
        if self.log.is_early:
            raise EOFError("too few workers are live")
        async with self.connected(runtime) as connection:
            is_batched = connection.version(ApiKey.FIND_COORDINATOR) >= _BATCHED_FIND_SINCE
            message = FindCoordinatorRequest(
                key="" if is_batched else group_id,
                coordinator_keys=[group_id] if is_batched else [],
            )
            response = await connection.call(ApiKey.FIND_COORDINATOR, message)
        found = response.coordinators[0] if is_batched else response
        if found.error_code:
            raise EOFError(f"no coordinator: {ErrorCode(found.error_code).name}")
        return int(found.node_id)

    def accepted(self, group_id: str, before: CoordinatorRole) -> None:
        """Check that the worker that has answered without an error may be the coordinator."""
        checker = self.cluster_state.checker(CoordinatorsKnowTheirRole)
        checker.accepted(group_id, before, self.log.role(group_id, before.worker_id))

    async def commit(
        self,
        connection: ClientConnection,
        worker_id: int,
        group_id: str,
        position: Position,
        offsets: Mapping[tuple[str, Place], int],
    ) -> dict[tuple[str, Place], ErrorCode]:
        """Commit offsets; return the error of each."""
        version = connection.version(ApiKey.OFFSET_COMMIT)
        attempts = {
            at: self._attempt(group_id, position, at, offset) for at, offset in offsets.items()
        }
        topics = [
            OffsetCommitRequestTopic(
                name=name if version < _IDS_SINCE else "",
                topic_id=place.topic_id,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=place.partition,
                        committed_offset=offset,
                        committed_metadata=attempts[name, place].metadata,
                    )
                ],
            )
            for (name, place), offset in offsets.items()
        ]
        message = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=position.generation,
            member_id=position.member_id,
            group_instance_id=position.instance_id,
            retention_time_ms=self._draw.choice([-1, 300]) if version < 5 else -1,
            topics=topics,
        )
        before = self.log.role(group_id, worker_id)
        response = await connection.call(ApiKey.OFFSET_COMMIT, message)
        codes = [ErrorCode(row.error_code) for topic in response.topics for row in topic.partitions]
        outcome = dict(zip(offsets, codes, strict=True))
        for at, code in outcome.items():
            self.log.answered(attempts[at], code)
            if code is ErrorCode.NONE:
                self.accepted(group_id, before)
                self.cluster_state.checker(CommitsAreReadBack).acknowledged(attempts[at])
                self.cluster_state.checker(CommitsAreDurable).acknowledged(
                    attempts[at], before, self.log.role(group_id, worker_id)
                )
                progress = self.cluster_state.checker(NothingIsSkipped).of(group_id, at[1])
                progress.committed = max(progress.committed, offsets[at])
        shown = [(str(at[1]), offsets[at], code.name) for at, code in outcome.items()]
        self.say(f"commits {tuple(position)}: {shown}")
        return outcome

    def _attempt(
        self, group_id: str, position: Position, at: tuple[str, Place], offset: int
    ) -> Attempt:
        self._attempts += 1
        attempt = Attempt(
            f"{self.name}/{self._attempts}",
            group_id,
            at[0],
            at[1],
            offset,
            position.member_id,
            position.instance_id,
            position.generation,
        )
        self.log.asked(attempt)
        return attempt

    async def committed(
        self,
        connection: ClientConnection,
        worker_id: int,
        group_id: str,
        places: Sequence[tuple[str, Place]],
    ) -> dict[tuple[str, Place], int]:
        """Return the committed offsets of partitions that have one.

        Raises EOFError if the answer has an error. An offset of another topic of the same name
        is left out: the coordinator does not know the new topic yet, which a client cannot see.
        """
        version = connection.version(ApiKey.OFFSET_FETCH)
        if version < _FETCH_GROUPS_SINCE:
            message = OffsetFetchRequest(
                group_id=group_id,
                topics=[
                    OffsetFetchRequestTopic(name=name, partition_indexes=[place.partition])
                    for name, place in places
                ],
            )
        else:
            topics = [
                OffsetFetchRequestTopics(
                    name=name if version < _IDS_SINCE else "",
                    topic_id=place.topic_id,
                    partition_indexes=[place.partition],
                )
                for name, place in places
            ]
            message = OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=group_id, topics=topics)]
            )
        asked_at, before = self.cluster_state.world.now, self.log.role(group_id, worker_id)
        deletion = self.log.deletion_of(group_id)
        response = await connection.call(ApiKey.OFFSET_FETCH, message)
        of_group = response if version < _FETCH_GROUPS_SINCE else response.groups[0]
        if of_group.error_code:
            raise EOFError(ErrorCode(of_group.error_code).name)
        rows = [row for topic in of_group.topics for row in topic.partitions]
        if not any(row.error_code for row in rows):
            checker = self.cluster_state.checker(DeletionsAreWhole)
            checker.read(group_id, deletion, before)
        found: dict[tuple[str, Place], int] = {}
        for (name, place), row in zip(places, rows, strict=True):
            code = ErrorCode(row.error_code)
            if code is not ErrorCode.NONE:
                if version < _FETCH_ERROR_SINCE or version >= _FETCH_GROUPS_SINCE:
                    raise EOFError(code.name)
                continue
            offset = int(row.committed_offset)
            read = OffsetRead(
                group_id,
                name,
                place,
                offset,
                row.metadata if offset >= 0 else None,
                asked_at,
                version >= _IDS_SINCE,
            )
            if self._checked(read, before):
                found[name, place] = offset
        return found

    def _checked(self, read: OffsetRead, before: CoordinatorRole) -> bool:
        """Check an offset; return whether it is one of the topic that the client means."""
        cluster_state = self.cluster_state
        after = self.log.role(read.group, before.worker_id)
        self.accepted(read.group, before)
        attempt = cluster_state.checker(CommitsAreReadBack).read(read, before, after)
        cluster_state.world.count("committed offsets read", attempt is not None)
        if attempt is None or attempt.written is None or attempt.written.value is None:
            return False
        cluster_state.checker(OffsetsBelongToTopics).read(read, attempt, before, after)
        return attempt.written.value.topic_id == read.place.topic_id

    @property
    def _deletions(self) -> Counter[str]:
        return self.cluster_state.checker(LiveGroupsKeepOffsets).deletions

    async def delete_offset(
        self, connection: ClientConnection, group_id: str, name: str, place: Place
    ) -> None:
        row = OffsetDeleteRequestPartition(partition_index=place.partition)
        topic = OffsetDeleteRequestTopic(name=name, partitions=[row])
        message = OffsetDeleteRequest(group_id=group_id, topics=[topic])
        self._deletions[group_id] += 1
        asked_at = self.cluster_state.world.now
        response = await connection.call(ApiKey.OFFSET_DELETE, message)
        self._deletions[group_id] -= 1
        codes = [response.error_code]
        codes += [each.error_code for found in response.topics for each in found.partitions]
        self.cluster_state.world.count(f"delete offset: {ErrorCode(max(codes)).name}")
        if not any(codes):
            checker = self.cluster_state.checker(CommitsAreReadBack)
            checker.removed(group_id, {(name, place.partition)}, asked_at)

    async def delete_group(self, connection: ClientConnection, group_id: str) -> None:
        message = DeleteGroupsRequest(groups_names=[group_id])
        self._deletions[group_id] += 1
        asked_at = self.cluster_state.world.now
        response = await connection.call(ApiKey.DELETE_GROUPS, message)
        code = ErrorCode(response.results[0].error_code)
        # After any other error, a deletion in parts that has begun is completed later.
        self._deletions[group_id] -= code in _WITHOUT_DELETION
        self.say(f"deletes {group_id}: {code.name}")
        if code is ErrorCode.NONE:
            self.cluster_state.checker(CommitsAreReadBack).removed(group_id, None, asked_at)
        self.cluster_state.world.count(f"delete group: {code.name}")

    def places(self) -> list[tuple[str, Place]]:
        """Return all partitions of the topics that should exist."""
        names, lasting = topic_names(), self.cluster_state.topic_outcomes.lasting
        return [
            (name, Place(topic_id, index))
            for name, (topic_id, partitions) in sorted(lasting.items())
            if name in names
            for index in range(partitions)
        ]


class EventsAdministrator(CleanupAdministrator):
    """Administrator of the topics that groups consume; also moves leaders of `__consumer_offsets`.

    Every change is one of: deletion, recreation under the same name, election of preferred leaders.
    """

    async def _change(self, connection: ClientConnection, lasting: list[str]) -> None:
        self._made += 1
        if len(lasting) < TOPICS:
            await self._create(connection)
            return
        name, drawn = self._draw.choice(lasting), self._draw.random()
        if drawn < 0.15:
            await self._delete(connection, name)
        elif drawn < 0.4:
            await self._recreate(connection, name)
        elif drawn < 0.7:
            await self._elect(connection, name)
        else:
            await elect_coordinators(connection, self.cluster_state)

    async def _create(self, connection: ClientConnection) -> None:
        outcomes = self.cluster_state.topic_outcomes
        left = [n for n in topic_names() if n not in outcomes.asked or n in outcomes.refused]
        if left:
            await self._create_as(connection, left[0])

    async def _create_as(self, connection: ClientConnection, name: str) -> None:
        draw = self._draw
        least = draw.choice([1, 2])
        overrides = {
            MIN_ISR: str(least),
            "internal.segment.bytes": draw.choice(["1000", "1000000"]),
            "cleanup.policy": "delete",
            "retention.ms": "-1",
        }
        if draw.random() < self.cluster_state.settings.flushed:
            overrides["flush.messages"] = "1"
        partitions = draw.choice([1, 2, 3])
        topic_id = await self._ask_creation(connection, name, partitions, 3, overrides)
        if topic_id is not None:
            self._made_as(topic_id, partitions, least, overrides)


async def elect_coordinators(
    connection: ClientConnection, cluster_state: ReplicatedClusterState
) -> None:
    """Move each partition of `__consumer_offsets` to its preferred leader."""
    topic = cluster_state.cluster_history.image.topic(CONSUMER_OFFSETS)
    if topic is None:
        return
    partitions = TopicPartitions(
        topic=CONSUMER_OFFSETS, partitions=list(range(len(topic.partitions)))
    )
    message = ElectLeadersRequest(election_type=0, topic_partitions=[partitions], timeout_ms=3000)
    response = await connection.call(ApiKey.ELECT_LEADERS, message)
    for found in response.replica_election_results:
        for row in found.partition_result:
            code = ErrorCode(row.error_code)
            cluster_state.world.count("coordinators moved", code is ErrorCode.NONE)


class GroupAdministrator(GroupClient):
    """Deletes groups and offsets, removes static members, and commits and reads without a group."""

    def __init__(
        self,
        cluster_state: ReplicatedClusterState,
        name: str,
        draw: Random,
        groups: Sequence[Group],
        changes: int,
    ) -> None:
        super().__init__(cluster_state, name, draw)
        versions = self._versions
        versions[ApiKey.LEAVE_GROUP] = max(versions[ApiKey.LEAVE_GROUP], _LEAVE_MANY_SINCE)
        self._groups = groups
        self._left = changes

    async def run(self, runtime: Runtime) -> None:
        operations: list[Callable[[ClientConnection, int, str], object]] = [
            self._delete_group,
            self._delete_offsets,
            self._describe,
            self._list,
            self._remove_member,
            self._commit_alone,
            self._read_offsets,
            self._read_offsets,
            self._move,
            self._move,
        ]
        ids = [group.group_id for group in self._groups]
        while self._left and not self.cluster_state.closing and not self.cluster_state.calm:
            group_id = self._draw.choice([*ids, "alone-0", "alone-1"])
            with suppress(*BROKEN):
                worker_id = await self.coordinator(runtime, group_id)
                async with self.connected(runtime, worker_id) as connection:
                    for _ in range(self._draw.randint(1, 3)):
                        self._left -= self._left > 0
                        operation = self._draw.choice(operations)
                        await operation(connection, worker_id, group_id)  # type: ignore[misc]
            await sleep(runtime.clock, RETRY_S + self._draw.random() * 0.3)
        self.done = True

    async def _move(self, connection: ClientConnection, worker_id: int, group_id: str) -> None:
        await elect_coordinators(connection, self.cluster_state)

    async def _delete_group(
        self, connection: ClientConnection, worker_id: int, group_id: str
    ) -> None:
        await self.delete_group(connection, group_id)

    async def _delete_offsets(
        self, connection: ClientConnection, worker_id: int, group_id: str
    ) -> None:
        for name, place in self.places()[:2]:
            await self.delete_offset(connection, group_id, name, place)

    async def _describe(self, connection: ClientConnection, worker_id: int, group_id: str) -> None:
        response = await connection.call(
            ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[group_id])
        )
        found = response.groups[0]
        self.say(f"{group_id} is {found.group_state} with {len(found.members)} members")
        self.cluster_state.world.count(f"described: {found.group_state}")

    async def _list(self, connection: ClientConnection, worker_id: int, group_id: str) -> None:
        response = await connection.call(ApiKey.LIST_GROUPS, ListGroupsRequest())
        self.cluster_state.world.count("groups listed", len(response.groups))

    async def _remove_member(
        self, connection: ClientConnection, worker_id: int, group_id: str
    ) -> None:
        static = [each for group in self._groups for each in group.static_ids]
        if not static:
            return
        identity = MemberIdentity(member_id="", group_instance_id=self._draw.choice(static))
        message = LeaveGroupRequest(group_id=group_id, members=[identity])
        response = await connection.call(ApiKey.LEAVE_GROUP, message)
        self.cluster_state.world.count("static members removed", response.error_code == 0)

    async def _commit_alone(
        self, connection: ClientConnection, worker_id: int, group_id: str
    ) -> None:
        """Commit offset 0 without a generation, which a group without members accepts."""
        places = self.places()
        if places:
            offsets = {self._draw.choice(places): 0}
            await self.commit(connection, worker_id, group_id, Position(), offsets)

    async def _read_offsets(
        self, connection: ClientConnection, worker_id: int, group_id: str
    ) -> None:
        places = self.places()
        if places:
            await self.committed(connection, worker_id, group_id, places)


def lone_group(name: str) -> str:
    """Return the group id of the consumer of that name."""
    return f"{name}-group"


class LoneConsumer(GroupClient):
    """Commits offsets of a group without members about as often as they expire."""

    def __init__(
        self, cluster_state: ReplicatedClusterState, name: str, draw: Random, retention_s: float
    ) -> None:
        super().__init__(cluster_state, name, draw)
        self._pause_s = min(retention_s, 1.0)
        self._group_id = lone_group(name)

    async def run(self, runtime: Runtime) -> None:
        while not self.cluster_state.closing and not self.cluster_state.calm:
            with suppress(*BROKEN):
                worker_id = await self.coordinator(runtime, self._group_id)
                async with self.connected(runtime, worker_id) as connection:
                    while not self.cluster_state.calm:
                        await self._work(connection, worker_id)
                        share = self._draw.choice([(0.0, 0.2), (1.0, 1.3)])
                        await sleep(runtime.clock, self._pause_s * self._draw.uniform(*share))
            await sleep(runtime.clock, RETRY_S)
        self.done = True

    async def _work(self, connection: ClientConnection, worker_id: int) -> None:
        """Read the offsets, and commit or delete one of them."""
        places = self.places()[:2]
        if not places:
            return
        await self.committed(connection, worker_id, self._group_id, places)
        at, drawn = places[0], self._draw.random()
        if drawn < 0.6:
            await self.commit(connection, worker_id, self._group_id, Position(), {at: 0})
        elif drawn < 0.8:
            await self.delete_offset(connection, self._group_id, *at)


class GroupDeleter(GroupClient):
    """Commits several offsets of a group without members, and deletes the group with them."""

    async def run(self, runtime: Runtime) -> None:
        while not self.cluster_state.closing and not self.cluster_state.calm:
            group_id = "brief"
            with suppress(*BROKEN):
                worker_id = await self.coordinator(runtime, group_id)
                async with self.connected(runtime, worker_id) as connection:
                    while not self.cluster_state.calm:
                        await self._work(connection, worker_id, group_id)
                        await sleep(runtime.clock, self._draw.random() * 0.1)
            await sleep(runtime.clock, RETRY_S)
        self.done = True

    async def _work(self, connection: ClientConnection, worker_id: int, group_id: str) -> None:
        places, drawn = self.places()[:4], self._draw.random()
        if not places:
            return
        if drawn < 0.3:
            offsets = dict.fromkeys(places, 0)
            await self.commit(connection, worker_id, group_id, Position(), offsets)
        elif drawn < 0.5:
            await self.delete_group(connection, group_id)
        else:
            await self.committed(connection, worker_id, group_id, places)
