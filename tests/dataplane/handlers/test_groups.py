"""The group APIs through a node, in every version that it serves."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio

import dataplane.worker_server  # noqa: F401 - binds SUPPORTED_FEATURES before a test replaces it
import metaquorum.controller_server  # noqa: F401
from dataplane.coordinators.group import committed_offsets
from dataplane.handlers.groups.admin import handle_list_groups
from dataplane.handlers.groups.offsets import handle_offset_fetch
from dataplane.network.client import Client
from dataplane.scheduling.time_slices import at_once
from dataplane.worker.context import Request
from metaquorum.controller import features
from metaquorum.metadata.records import ELIGIBLE_LEADERS, METADATA_VERSION, FeatureRange
from tests.dataplane.quotas.test_quota_enforcement import set_quota
from tests.dataplane.serving import (
    RawClient,
    Simulated,
    append_unvalidated,
    batch_of,
    produce_message,
    simulated,
)
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.describe_groups import DescribeGroupsRequest
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from wire.messages.list_groups import ListGroupsRequest
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from wire.primitives.errors import ErrorCode
from wire.primitives.types import ZERO_UUID
from wire.protocol.apis import APIS, ApiKey
from wire.records.records import Record, encode_batch

CONFIGS = {
    "offsets_topic_num_partitions": 3,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 100,
}
NONE = ErrorCode.NONE


def groups(scenario: Callable[[Simulated], Awaitable[None]], **configs: object) -> None:
    simulated(scenario, **(CONFIGS | configs))


def versions(api: ApiKey, first: int = 0) -> range:
    return range(max(first, APIS[api].min_version), APIS[api].max_version + 1)


def joining(
    member_id: str,
    *,
    group_id: str = "g",
    instance_id: str | None = None,
    session_ms: int = 10_000,
    metadata: bytes = b"m",
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


class GroupClient:
    """A client of the group APIs with one connection."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.call = client.call

    @classmethod
    async def connect(cls, node: Simulated, group_id: str = "g") -> "GroupClient":
        """Connect, and wait until the coordinator of the group has loaded."""
        client = cls(await node.connect())
        await client.find(group_id)
        while node.worker.groups.is_loading:
            await trio.sleep(0.01)
        return client

    async def find(self, group_id: str) -> Any:
        asked = FindCoordinatorRequest(coordinator_keys=[group_id])
        (found,) = (await self.call(ApiKey.FIND_COORDINATOR, asked)).coordinators
        return found

    async def join(self, member_id: str = "", *, version: int = 9, **options: Any) -> Any:
        return await self.call(ApiKey.JOIN_GROUP, joining(member_id, **options), version)

    async def joined(self, version: int = 9, **options: Any) -> Any:
        """Join with a new member id, also where the coordinator gives one first."""
        answer = await self.join(version=version, **options)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = await self.join(answer.member_id, version=version, **options)
        assert answer.error_code == NONE
        return answer

    async def sync(
        self,
        joined: Any,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        version: int = 5,
    ) -> Any:
        asked = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=instance_id,
            protocol_type="consumer" if version >= 5 else None,
            protocol_name="range" if version >= 5 else None,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        )
        return await self.call(ApiKey.SYNC_GROUP, asked, version)

    async def stable(self) -> Any:
        """Become the only member of a stable group."""
        joined = await self.joined()
        synced = await self.sync(joined, {joined.member_id: b"mine"})
        assert (synced.error_code, synced.assignment) == (NONE, b"mine")
        return joined

    async def heartbeat(self, joined: Any, version: int = 4, **other: Any) -> int:
        asked = HeartbeatRequest(
            **(
                {
                    "group_id": "g",
                    "generation_id": joined.generation_id,
                    "member_id": joined.member_id,
                }
                | other
            )
        )
        return int((await self.call(ApiKey.HEARTBEAT, asked, version)).error_code)

    async def commit(
        self,
        offset: int,
        *,
        group_id: str = "g",
        topic: str = "t",
        topic_id: bytes = ZERO_UUID,
        partitions: Sequence[int] = (0,),
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        metadata: str | None = "note",
        version: int = 9,
    ) -> list[int]:
        rows = [
            OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=7,
                committed_metadata=metadata,
            )
            for index in partitions
        ]
        asked = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=[OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=rows)],
        )
        answer = await self.call(ApiKey.OFFSET_COMMIT, asked, version)
        return [row.error_code for topic in answer.topics for row in topic.partitions]

    async def committed(self, group_id: str = "g", topic: str = "t") -> dict[int, int]:
        """The committed offsets of the topic, by partition."""
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)])
        (group,) = (await self.call(ApiKey.OFFSET_FETCH, asked, 9)).groups
        assert group.error_code == NONE
        return {
            row.partition_index: row.committed_offset
            for each in group.topics
            if each.name == topic
            for row in each.partitions
        }

    async def describe(self, group_id: str = "g", version: int = 6) -> Any:
        asked = DescribeGroupsRequest(groups=[group_id])
        (group,) = (await self.call(ApiKey.DESCRIBE_GROUPS, asked, version)).groups
        return group

    async def listed(self, version: int = 5, **filters: Any) -> dict[str, str]:
        answer = await self.call(ApiKey.LIST_GROUPS, ListGroupsRequest(**filters), version)
        assert answer.error_code == NONE
        return {group.group_id: group.group_state for group in answer.groups}

    async def leave(self, *members: MemberIdentity, version: int = 5) -> Any:
        asked = LeaveGroupRequest(group_id="g", members=list(members))
        return await self.call(ApiKey.LEAVE_GROUP, asked, version)


# FindCoordinator


def test_coordinators_are_found_in_every_version() -> None:
    """The response to each type of key is final for the clients that use the version."""

    def expected(kind: int, version: int) -> ErrorCode:
        if kind not in (0, 1, 2):
            return ErrorCode.INVALID_REQUEST
        return NONE if kind in (0, 1) else ErrorCode.UNSUPPORTED_VERSION

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        address = node.worker.image.workers[1].endpoints[0]
        for version in versions(ApiKey.FIND_COORDINATOR):
            for kind in (0, 1, 2, 77, -128) if version else (0,):
                asked = FindCoordinatorRequest(
                    key="g" if version < 4 else "",
                    key_type=kind,
                    coordinator_keys=["g", "h"] if version >= 4 else [],
                )
                answer = await client.call(ApiKey.FIND_COORDINATOR, asked, version)
                rows = answer.coordinators if version >= 4 else [answer]
                if version >= 4:
                    assert [row.key for row in rows] == ["g", "h"]
                code = expected(kind, version)
                assert {row.error_code for row in rows} == {code}
                at = {(row.node_id, row.host, row.port) for row in rows}
                here = (1, address.host, address.port)
                assert at == ({here} if code is NONE else {(-1, "", -1)})
                reasons = {getattr(row, "error_message", None) for row in rows}
                if version and code and kind == 2:
                    assert "this version of metaquorum has no" in str(reasons)

    groups(scenario)


def test_the_offsets_topic_is_created_by_the_first_search_only() -> None:
    async def scenario(node: Simulated) -> None:
        client = GroupClient(await node.connect())
        assert await client.commit(1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await client.join()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert node.worker.image.topic("__consumer_offsets") is None
        assert (await client.find("g")).error_code == NONE
        topic = node.worker.image.topic("__consumer_offsets")
        assert topic is not None
        assert len(topic.partitions) == 3

    groups(scenario)


# Members


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_member_joins_in_every_version(version: int) -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        first = await client.join(version=version)
        if version >= 4:
            assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
            first = await client.join(first.member_id, version=version)
        assert (first.error_code, first.generation_id) == (NONE, 1)
        assert first.protocol_name == "range"
        assert first.leader == first.member_id
        assert [(each.member_id, each.metadata) for each in first.members] == [
            (first.member_id, b"m")
        ]
        refused = await client.join("stranger", version=version)
        assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert refused.member_id == "stranger"
        assert refused.protocol_name == (None if version >= 7 else "")
        empty = await client.join(group_id="", version=version)
        assert empty.error_code == ErrorCode.INVALID_GROUP_ID

    groups(scenario)


def test_a_member_with_the_longest_instance_id_has_a_member_id_that_fits_responses() -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        joined = await client.join(instance_id="i" * 32_767)
        assert joined.error_code == NONE
        assert len(joined.member_id) < 300
        assert len(joined.members) == 1

    groups(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_two_members_get_their_assignments_in_every_version(version: int) -> None:
    async def scenario(node: Simulated) -> None:
        one, two = await GroupClient.connect(node), await GroupClient.connect(node)
        first = await one.stable()
        joined: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def join_as_second() -> None:
                joined.append(await two.joined())

            nursery.start_soon(join_as_second)
            while await one.heartbeat(first) == NONE:
                await trio.sleep(0.1)
            assert await one.heartbeat(first) == ErrorCode.REBALANCE_IN_PROGRESS
            first = await one.join(first.member_id)
        (second,) = joined
        assert first.generation_id == second.generation_id == 2
        assert len(first.members) == 2
        assert second.members == []
        synced: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def sync_as_second() -> None:
                synced.append(await two.sync(second, version=version))

            nursery.start_soon(sync_as_second)
            shares = {first.member_id: b"one", second.member_id: b"two"}
            answer = await one.sync(first, shares, version=version)
        assert (answer.assignment, synced[0].assignment) == (b"one", b"two")
        assert answer.protocol_name == ("range" if version >= 5 else None)
        assert (await one.sync(first, version=version)).assignment == b"one"

    groups(scenario)


def test_a_sync_without_protocol_is_refused_since_version_5() -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        joined = await client.stable()
        asked = SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        answer = await client.call(ApiKey.SYNC_GROUP, asked, 5)
        assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await client.call(ApiKey.SYNC_GROUP, asked, 4)).assignment == b"mine"
        asked = SyncGroupRequest(generation_id=1, member_id=joined.member_id)
        answer = await client.call(ApiKey.SYNC_GROUP, asked, 4)
        assert answer.error_code == ErrorCode.INVALID_GROUP_ID

    groups(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_heartbeats_are_checked_in_every_version(version: int) -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        joined = await client.stable()
        expected = {
            (): NONE,
            (("generation_id", 7),): ErrorCode.ILLEGAL_GENERATION,
            (("member_id", "x"),): ErrorCode.UNKNOWN_MEMBER_ID,
            (("group_id", "other"),): ErrorCode.UNKNOWN_MEMBER_ID,
            (("group_id", ""),): ErrorCode.INVALID_GROUP_ID,
        }
        for other, code in expected.items():
            assert await client.heartbeat(joined, version, **dict(other)) == code

    groups(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_members_leave_in_every_version(version: int) -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        joined = await client.stable()
        if version < 3:
            for member_id, code in (("x", ErrorCode.UNKNOWN_MEMBER_ID), (joined.member_id, NONE)):
                asked = LeaveGroupRequest(group_id="g", member_id=member_id)
                answer = await client.call(ApiKey.LEAVE_GROUP, asked, version)
                assert answer.error_code == code
        else:
            both = [MemberIdentity(member_id=each) for each in ("x", joined.member_id)]
            answer = await client.leave(*both, version=version)
            assert answer.error_code == NONE
            assert [(each.member_id, each.error_code) for each in answer.members] == [
                ("x", ErrorCode.UNKNOWN_MEMBER_ID),
                (joined.member_id, NONE),
            ]
        assert (await client.describe()).group_state == "Empty"

    groups(scenario)


def test_a_session_ends_without_heartbeats() -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        joined = await client.joined(session_ms=6000)
        await client.sync(joined)
        for _ in range(3):
            await trio.sleep(4)
            assert await client.heartbeat(joined) == NONE
        await trio.sleep(6.1)
        assert await client.heartbeat(joined) == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await client.describe()).group_state == "Empty"

    groups(scenario)


def test_a_waiting_join_survives_idle_connections_and_ends_with_its_own() -> None:
    async def scenario(node: Simulated) -> None:
        one, two = await GroupClient.connect(node), await GroupClient.connect(node)
        first = await one.joined(session_ms=1_000_000)
        await one.sync(first)
        required = await two.join()
        await two.client.ask(ApiKey.JOIN_GROUP, joining(required.member_id))
        for _ in range(5):
            await trio.sleep(5)  # the member that waits is alive, although it sends nothing
            one = await GroupClient.connect(node)
            assert len((await one.describe()).members) == 2
        two.client.connection.close()
        await trio.sleep(10.1)
        one = await GroupClient.connect(node)
        assert [each.member_id for each in (await one.describe()).members] == [first.member_id]

    groups(scenario, connections_max_idle_ms=8000)


def test_a_process_whose_instance_id_another_one_uses_is_fenced_by_every_request() -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 1)
        first = await client.joined(instance_id="a")
        await client.sync(first, {first.member_id: b"mine"}, instance_id="a")
        assert await client.heartbeat(first, group_instance_id="a") == NONE
        second = await client.joined(instance_id="a")
        assert second.member_id != first.member_id
        fenced = ErrorCode.FENCED_INSTANCE_ID
        assert await client.heartbeat(first, group_instance_id="a") == fenced
        assert (await client.sync(first, instance_id="a")).error_code == fenced
        own = {"generation": first.generation_id, "member_id": first.member_id, "instance_id": "a"}
        assert await client.commit(5, **own) == [fenced]
        assert (await client.join(first.member_id, instance_id="a")).error_code == fenced
        leaving = MemberIdentity(member_id=first.member_id, group_instance_id="a")
        assert (await client.leave(leaving)).members[0].error_code == fenced
        assert await client.heartbeat(second, group_instance_id="a") == NONE

    groups(scenario)


def test_heartbeats_are_accepted_while_the_coordinator_loads_and_other_requests_are_not() -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 1)
        member = await client.stable()
        index = node.worker.groups.partition_of("g")
        partition = node.worker.replica_manager.by_name("__consumer_offsets", index)
        state = partition.state
        # Another worker is in sync and has not fetched the end of the log.
        elected = replace(state, leader_epoch=state.leader_epoch + 1, replicas=(1, 2), isr=(1, 2))
        partition.assign(elected)
        append_unvalidated(partition, encode_batch([Record(0, 1, b"k", b"v")]))
        partition.assign(replace(elected, leader_epoch=elected.leader_epoch + 1))
        node.worker.groups.runtime.look()
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await client.heartbeat(member) == NONE
        assert (await client.sync(member)).error_code == loading
        assert (await client.join(member.member_id)).error_code == loading
        own = {"generation": member.generation_id, "member_id": member.member_id}
        assert await client.commit(5, **own) == [loading]
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        (group,) = (await client.call(ApiKey.OFFSET_FETCH, asked, 9)).groups
        assert group.error_code == loading
        listed = await client.call(ApiKey.LIST_GROUPS, ListGroupsRequest(), 5)
        assert listed.error_code == loading

    groups(scenario)


# Offsets


def test_no_offsets_are_returned_of_a_group_that_is_being_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committed_offsets, "PIECE_OFFSETS", 1)

    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 2)
        assert await client.commit(5, partitions=(0, 1)) == [NONE, NONE]
        answers: list[Any] = []
        # Without the background task, which would continue at once.
        node.worker.groups.call(
            "g", lambda shard: shard.delete_group("g", answers.append), answers.append, print
        )
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        one = OffsetFetchRequest(group_id="g", topics=None)
        assert (await client.call(ApiKey.OFFSET_FETCH, one, 7)).error_code == loading
        many = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        assert (await client.call(ApiKey.OFFSET_FETCH, many, 9)).groups[0].error_code == loading
        assert await client.commit(6) == [loading]
        assert await client.listed() == {"g": "Dead"}
        assert not answers

    groups(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_offsets_are_committed_in_every_version(version: int) -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 2)
        topic = node.worker.image.topic("t")
        assert topic is not None
        of_topic = {"topic_id": topic.topic_id} if version >= 10 else {}
        codes = await client.commit(5, partitions=(0, 1, 2), version=version, **of_topic)
        assert codes == [NONE, NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await client.committed() == {0: 5, 1: 5}
        unknown = (
            ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        other = {"topic_id": b"x" * 16} if version >= 10 else {"topic": "other"}
        assert await client.commit(5, version=version, **other) == [unknown]
        long = await client.commit(6, metadata="x" * 4097, version=version, **of_topic)
        assert long == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
        assert await client.committed() == {0: 5, 1: 5}

    groups(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_a_generation_without_its_group_is_not_found_since_version_9(version: int) -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 1)
        topic = node.worker.image.topic("t")
        assert topic is not None
        mine: dict[str, Any] = {"generation": 1, "member_id": "x", "version": version}
        mine |= {"topic_id": topic.topic_id} if version >= 10 else {}
        is_old = version < 9
        missing = ErrorCode.ILLEGAL_GENERATION if is_old else ErrorCode.GROUP_ID_NOT_FOUND
        assert await client.commit(1, **mine) == [missing]
        assert await client.commit(2) == [NONE]
        assert await client.commit(3, **mine) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert await client.committed() == {0: 2}

    groups(scenario)


def test_only_the_current_generation_commits() -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 1)
        joined = await client.stable()
        mine = {"generation": joined.generation_id, "member_id": joined.member_id}
        assert await client.commit(1, **mine) == [NONE]
        stale = mine | {"generation": 0}
        assert await client.commit(2, **stale) == [ErrorCode.ILLEGAL_GENERATION]
        stranger = mine | {"member_id": "x"}
        assert await client.commit(3, **stranger) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert await client.commit(4) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert await client.committed() == {0: 1}
        await client.leave(MemberIdentity(member_id=joined.member_id))
        assert await client.commit(5) == [NONE]
        assert await client.committed() == {0: 5}

    groups(scenario)


def test_a_long_commit_is_written_in_parts() -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 1000)
        assert await client.commit(7, partitions=range(1001)) == [
            *[NONE] * 1000,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert await client.committed() == dict.fromkeys(range(1000), 7)

    groups(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_offsets_are_fetched_in_every_version(version: int) -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 3)
        image = node.worker.image
        topic = image.topic("t")
        assert topic is not None
        assert await client.commit(5, partitions=(1,)) == [NONE]
        for is_all in (False, True) if version >= 2 else (False,):
            if version < 8:
                named = OffsetFetchRequestTopic(name="t", partition_indexes=[1, 0])
                asked = OffsetFetchRequest(group_id="g", topics=None if is_all else [named])
                answer = await client.call(ApiKey.OFFSET_FETCH, asked, version)
                topics = answer.topics
            else:
                rows = OffsetFetchRequestTopics(
                    name="t" if version < 10 else "",
                    topic_id=topic.topic_id if version >= 10 else ZERO_UUID,
                    partition_indexes=[1, 0],
                )
                of_group = OffsetFetchRequestGroup(group_id="g", topics=None if is_all else [rows])
                asked = OffsetFetchRequest(
                    groups=[of_group, OffsetFetchRequestGroup(group_id="h", topics=None)]
                )
                answer = await client.call(ApiKey.OFFSET_FETCH, asked, version)
                assert [group.group_id for group in answer.groups] == ["g", "h"]
                assert answer.groups[1].topics == []
                topics = answer.groups[0].topics
                if version >= 10:
                    assert {each.topic_id for each in topics} == {topic.topic_id}
            found = [
                (row.partition_index, row.committed_offset, row.metadata, row.error_code)
                for each in topics
                for row in each.partitions
            ]
            assert found == [(1, 5, "note", 0), *([] if is_all else [(0, -1, "", 0)])]
            if version >= 5:
                assert topics[0].partitions[0].committed_leader_epoch == 7
        if version >= 10:
            unknown = OffsetFetchRequestTopics(topic_id=b"x" * 16, partition_indexes=[0])
            asked = OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id="g", topics=[unknown])]
            )
            answer = await client.call(ApiKey.OFFSET_FETCH, asked, version)
            (row,) = answer.groups[0].topics[0].partitions
            assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    groups(scenario)


@pytest.mark.parametrize("version", [1, 7, 9])
def test_a_fetch_is_not_answered_from_a_coordinator_that_has_ended_meanwhile(version: int) -> None:
    """The shard is emptied: its rows would show that nothing was committed."""

    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 200)
        assert await client.commit(5, partitions=range(200)) == [NONE] * 200
        if version < 8:
            rows = [OffsetFetchRequestTopic(name="t", partition_indexes=list(range(200)))]
            asked = OffsetFetchRequest(group_id="g", topics=rows if version == 1 else None)
        else:
            asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        request = Request(version, "c", Client(("10.0.0.1", 1), "PLAINTEXT"))
        work = handle_offset_fetch(node.worker, request, asked)
        next(work)
        node.worker.groups.close()
        answer = at_once(work)
        if version == 1:
            codes = [row.error_code for row in answer.topics[0].partitions]
            assert codes == [ErrorCode.NOT_COORDINATOR] * 200
            return
        found = answer if version < 8 else answer.groups[0]
        assert (found.error_code, found.topics) == (ErrorCode.NOT_COORDINATOR, [])

    groups(scenario)


def test_a_recreated_topic_starts_without_offsets() -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 1)
        assert await client.commit(5) == [NONE]
        assert await client.committed() == {0: 5}
        await client.client.delete("t")
        await client.client.create("t", 1)
        assert await client.committed() == {}
        assert await client.commit(1) == [NONE]
        assert await client.committed() == {0: 1}

    groups(scenario)


def test_offsets_are_deleted_unless_a_member_consumes_the_topic() -> None:
    def asked(*topics: str, group_id: str = "g", partition: int = 0) -> OffsetDeleteRequest:
        rows = [OffsetDeleteRequestPartition(partition_index=partition)]
        return OffsetDeleteRequest(
            group_id=group_id,
            topics=[OffsetDeleteRequestTopic(name=topic, partitions=rows) for topic in topics],
        )

    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        for topic in ("t", "u"):
            await client.client.create(topic, 1)
            assert await client.commit(5, topic=topic) == [NONE]
        # A consumer's subscription to the topic t: version 0, one topic, no user data.
        subscription = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\0"
        joined = await client.joined(metadata=subscription)
        await client.sync(joined)
        missing = await client.call(ApiKey.OFFSET_DELETE, asked("t", partition=1))
        assert missing.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = await client.call(ApiKey.OFFSET_DELETE, asked("t", "u", "absent"))
        codes = [row.error_code for topic in answer.topics for row in topic.partitions]
        assert answer.error_code == NONE
        assert codes == [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert (await client.committed(), await client.committed(topic="u")) == ({0: 5}, {})
        for request in (asked("t", group_id="h", partition=1), asked("t", group_id="h")):
            answer = await client.call(ApiKey.OFFSET_DELETE, request)
            assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        for request in (asked("absent", group_id="h"), asked(group_id="h")):
            answer = await client.call(ApiKey.OFFSET_DELETE, request)
            assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        answer = await client.call(ApiKey.OFFSET_DELETE, asked("t", group_id=""))
        assert answer.error_code == ErrorCode.INVALID_GROUP_ID

    groups(scenario)


# Administration


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_groups_are_described_in_every_version(version: int) -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        joined = await client.stable()
        found = await client.describe(version=version)
        assert (found.error_code, found.group_state) == (NONE, "Stable")
        assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
        (member,) = found.members
        assert (member.member_id, member.client_host) == (joined.member_id, "/client")
        assert (member.member_metadata, member.member_assignment) == (b"m", b"mine")
        unknown = await client.describe("h", version)
        assert unknown.group_state == "Dead"
        if version >= 6:
            assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            assert unknown.error_message == "Group h not found."
        else:
            assert unknown.error_code == NONE
        if version >= 3:
            asked = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
            (found,) = (await client.call(ApiKey.DESCRIBE_GROUPS, asked, version)).groups
            assert found.authorized_operations > 0

    groups(scenario)


def test_assignments_are_described_during_a_rebalance() -> None:
    async def scenario(node: Simulated) -> None:
        one, two = await GroupClient.connect(node), await GroupClient.connect(node)
        first = await one.stable()
        second = await two.join()
        await two.client.ask(ApiKey.JOIN_GROUP, joining(second.member_id))
        while len((found := await one.describe()).members) < 2:
            await trio.sleep(0.01)
        assert found.group_state == "PreparingRebalance"
        shown = {
            row.member_id: (row.member_metadata, row.member_assignment) for row in found.members
        }
        assert shown == {first.member_id: (b"", b"mine"), second.member_id: (b"", b"")}

    groups(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_groups_are_listed_in_every_version(version: int) -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 1)
        await client.stable()
        for number in range(5):
            assert await client.commit(1, group_id=f"offsets-{number}") == [NONE]
        listed = await client.listed(version)
        states = {"g": "Stable"} | {f"offsets-{number}": "Empty" for number in range(5)}
        assert listed.keys() == states.keys()
        if version >= 4:
            assert listed == states
            assert await client.listed(version, states_filter=["sTable"]) == {"g": "Stable"}
            assert await client.listed(version, states_filter=["Dead"]) == {}
        if version >= 5:
            assert await client.listed(version, types_filter=["Classic"]) == states
            assert await client.listed(version, types_filter=["consumer"]) == {}

    groups(scenario)


def test_groups_are_not_listed_by_a_coordinator_that_has_ended_meanwhile() -> None:
    """The shard is emptied: groups would be shown without their members."""

    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 1)
        await client.stable()
        request = Request(5, "c", Client(("10.0.0.1", 1), "PLAINTEXT"))
        work = handle_list_groups(node.worker, request, ListGroupsRequest())
        next(work)
        node.worker.groups.close()
        assert at_once(work).groups == []

    groups(scenario, offsets_topic_num_partitions=1)


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_empty_groups_are_deleted_in_every_version(version: int) -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 1)
        joined = await client.stable()
        assert await client.commit(1, group_id="h") == [NONE]
        asked = DeleteGroupsRequest(groups_names=["g", "h", "absent"])
        answer = await client.call(ApiKey.DELETE_GROUPS, asked, version)
        assert {row.group_id: row.error_code for row in answer.results} == {
            "g": ErrorCode.NON_EMPTY_GROUP,
            "h": NONE,
            "absent": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        assert await client.committed("h") == {}
        assert await client.listed() == {"g": "Stable"}
        await client.leave(MemberIdentity(member_id=joined.member_id))
        asked = DeleteGroupsRequest(groups_names=["g"])
        answer = await client.call(ApiKey.DELETE_GROUPS, asked, version)
        assert [row.error_code for row in answer.results] == [NONE]
        assert await client.listed() == {}

    groups(scenario)


def test_waiting_requests_end_with_not_coordinator_when_the_worker_stops() -> None:
    async def scenario(node: Simulated) -> None:
        one, two = await GroupClient.connect(node), await GroupClient.connect(node)
        await one.stable()
        answers: list[Any] = []

        async def wait_for_the_other() -> None:
            required = await two.join()
            answers.append(await two.join(required.member_id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_the_other)
            while (await one.describe()).group_state != "PreparingRebalance":
                await trio.sleep(0.1)
            node.worker.stop_waiting()
        assert [answer.error_code for answer in answers] == [ErrorCode.NOT_COORDINATOR]
        assert await one.commit(1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await one.join()).error_code == ErrorCode.NOT_COORDINATOR

    groups(scenario)


# Clients without rights, and throttled ones


def test_a_throttled_client_keeps_its_session() -> None:
    """Q6: the requests of a muted connection are handled after the mute, heartbeats as well."""

    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 1)
        joined = await client.joined(session_ms=6000)
        await client.sync(joined)
        await set_quota(node, "producer_byte_rate", 1000)
        batch = batch_of(bytes(40_000))
        answer = await client.call(ApiKey.PRODUCE, produce_message("t", batch), 9)
        assert answer.throttle_time_ms > 20_000
        began = node.now
        assert await client.heartbeat(joined) == NONE
        assert node.now - began > 20
        await trio.sleep(5.9)
        assert await client.heartbeat(joined) == NONE
        await trio.sleep(6.1)
        assert await client.heartbeat(joined) == ErrorCode.UNKNOWN_MEMBER_ID

    groups(scenario)


def test_a_throttled_client_that_vanishes_loses_its_session() -> None:
    async def scenario(node: Simulated) -> None:
        client, other = await GroupClient.connect(node), await GroupClient.connect(node)
        await client.client.create("t", 1)
        joined = await client.joined(session_ms=6000)
        await client.sync(joined)
        await set_quota(node, "producer_byte_rate", 1000)
        batch = batch_of(bytes(40_000))
        answer = await client.call(ApiKey.PRODUCE, produce_message("t", batch), 9)
        assert answer.throttle_time_ms > 20_000
        client.client.connection.close()
        await trio.sleep(6.5)
        assert (await other.describe()).group_state == "Empty"

    groups(scenario)


def test_the_members_of_one_host_use_half_of_the_memory_at_most() -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        assert (await client.join(metadata=bytes(400_000))).error_code == (
            ErrorCode.MEMBER_ID_REQUIRED
        )
        await client.joined(metadata=bytes(400_000))
        for group_id in ("g", "h"):
            refused = await client.join(group_id=group_id, metadata=bytes(400_000))
            assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED

    groups(scenario, group_memory_max_bytes=1 << 20)


def test_ids_that_are_given_and_not_used_are_counted() -> None:
    async def scenario(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        memory = node.worker.groups.memory
        given = 0
        while (await client.join(group_id=f"g-{given}")).error_code == ErrorCode.MEMBER_ID_REQUIRED:
            given += 1
        assert 100 < given < 1000
        assert memory.used_bytes > 500_000
        assert (await client.join(group_id="h")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        await trio.sleep(10.1)  # the session timeout that the clients asked for
        assert memory.used_bytes < 2500 * given  # the groups, until offsets are checked for expiry
        assert (await client.join(group_id="h")).error_code == ErrorCode.MEMBER_ID_REQUIRED

    groups(scenario, group_memory_max_bytes=1 << 20)


# An earlier version's cluster


def test_groups_need_a_raised_metadata_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """At level 1 other nodes may be of an earlier version, which would not protect the topic."""

    async def scenario(node: Simulated) -> None:
        monkeypatch.undo()
        client = GroupClient(await node.connect())
        await client.client.create("t", 1)
        too_low = ErrorCode.UNSUPPORTED_VERSION
        # A consumer that assigns its partitions itself continues as before.
        assert (await client.find("g")).error_code == NONE
        old = FindCoordinatorRequest(key="g")
        assert (await client.call(ApiKey.FIND_COORDINATOR, old, 1)).error_code == too_low
        assert await client.committed() == {}
        joined = await client.join()
        assert joined.error_code == too_low
        assert (await client.sync(joined)).error_code == too_low
        assert await client.heartbeat(joined) == too_low
        left = await client.leave(MemberIdentity(member_id="x"))
        assert left.error_code == too_low
        assert await client.commit(1) == [too_low]
        described = await client.describe()
        assert described.error_code == too_low
        assert "mq-admin cluster upgrade metadata.version=2" in described.error_message
        deleted = await client.call(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=["g"]))
        assert [row.error_code for row in deleted.results] == [too_low]
        assert await client.listed() == {}
        assert node.worker.image.topic("__consumer_offsets") is None
        update = FeatureUpdateKey(feature="metadata.version", max_version_level=2, upgrade_type=1)
        answer = await client.call(
            ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest(feature_updates=[update])
        )
        assert answer.error_code == NONE
        client = await GroupClient.connect(node)
        await client.stable()

    earlier = (FeatureRange(METADATA_VERSION, 1, 1), FeatureRange(ELIGIBLE_LEADERS, 0, 1))
    monkeypatch.setattr(features, "SUPPORTED_FEATURES", earlier)
    groups(scenario)
