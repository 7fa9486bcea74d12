"""A client of the group APIs, and nodes to which it connects."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio

from metaquorum.wire.messages.describe_groups import DescribeGroupsRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.heartbeat import HeartbeatRequest
from metaquorum.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from metaquorum.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from metaquorum.wire.messages.list_groups import ListGroupsRequest
from metaquorum.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from metaquorum.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from metaquorum.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.types import ZERO_UUID
from metaquorum.wire.protocol.apis import APIS, ApiKey
from tests.dataplane.serving import (
    RawClient,
    Simulated,
    run_simulated,
)
from tests.suite.first_argument import given_first

CONFIGS = {
    "offsets_topic_num_partitions": 3,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 100,
}
NONE = ErrorCode.NONE


def run_groups(scenario: Callable[[Simulated], Awaitable[None]], **configs: object) -> None:
    run_simulated(scenario, **(CONFIGS | configs))


def groups(**configs: object) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an async test with a node for groups; `configs` are those of `run_groups`."""
    return given_first(partial(run_groups, **configs))


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
    async def connect(
        cls, node: Simulated, group_id: str = "g", host: str | None = None
    ) -> "GroupClient":
        """Connect, and wait until the coordinator of the group has loaded."""
        client = cls(await node.connect(host))
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
