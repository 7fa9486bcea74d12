"""The part of `capture_messages` about groups: one group for each version, with one member."""

import time
from typing import TYPE_CHECKING, Any

from metaquorum.wire.messages.delete_groups import DeleteGroupsRequest
from metaquorum.wire.messages.describe_groups import DescribeGroupsRequest
from metaquorum.wire.messages.heartbeat import HeartbeatRequest
from metaquorum.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
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
from metaquorum.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import APIS, ApiKey

if TYPE_CHECKING:
    from tests.wire.messages.capture_messages import Peer


# Kafka 4.3.1 decodes it, and never completes a rebalance with a malformed one: version 0, the topic
# "t", no user data.
SUBSCRIPTION = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\0"


def ask_groups(peer: "Peer", topic: str) -> None:
    _wait_for_coordinator(peer)
    newest = APIS[ApiKey.JOIN_GROUP].max_version
    for version in range(newest + 1):
        _live_one_life(peer, topic, version)
    _administer(peer, topic)


def _wait_for_coordinator(peer: "Peer") -> None:
    request = DescribeGroupsRequest(groups=["golden-0"])
    while peer.ask(ApiKey.DESCRIBE_GROUPS, 0, request).groups[0].error_code:
        time.sleep(0.1)
    peer.exchanges[ApiKey.DESCRIBE_GROUPS].clear()


def _live_one_life(peer: "Peer", topic: str, version: int) -> None:
    """Join, sync, heartbeat, commit and leave, each in this version or the next one served."""

    def at(key: ApiKey) -> int:
        return max(APIS[key].min_version, min(version, APIS[key].max_version))

    group = f"golden-{version}"
    join = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000 if version else -1,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    )
    if version >= 8:
        join.reason = "to be captured"
    joined = peer.ask(ApiKey.JOIN_GROUP, version, join)
    if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        join.member_id = joined.member_id
        joined = peer.ask(ApiKey.JOIN_GROUP, version, join)
    join.member_id = "stranger"
    peer.ask(ApiKey.JOIN_GROUP, version, join)
    ids: dict[str, Any] = {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
    }
    sync = SyncGroupRequest(
        **ids,
        assignments=[
            SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"assignment")
        ],
    )
    if at(ApiKey.SYNC_GROUP) >= 5:
        sync.protocol_type, sync.protocol_name = "consumer", "range"
    peer.ask(ApiKey.SYNC_GROUP, at(ApiKey.SYNC_GROUP), sync)
    sync.generation_id += 1
    peer.ask(ApiKey.SYNC_GROUP, at(ApiKey.SYNC_GROUP), sync)
    for generation in (joined.generation_id, 77):
        heartbeat = HeartbeatRequest(**(ids | {"generation_id": generation}))
        peer.ask(ApiKey.HEARTBEAT, at(ApiKey.HEARTBEAT), heartbeat)
    _commit(peer, topic, at(ApiKey.OFFSET_COMMIT), ids)
    describe = DescribeGroupsRequest(groups=[group, "golden-unknown"])
    if at(ApiKey.DESCRIBE_GROUPS) >= 3:
        describe.include_authorized_operations = True
    peer.ask(ApiKey.DESCRIBE_GROUPS, at(ApiKey.DESCRIBE_GROUPS), describe)
    leave = LeaveGroupRequest(group_id=group)
    if at(ApiKey.LEAVE_GROUP) < 3:
        leave.member_id = joined.member_id
    else:
        leave.members = [MemberIdentity(member_id=each) for each in (joined.member_id, "x")]
    peer.ask(ApiKey.LEAVE_GROUP, at(ApiKey.LEAVE_GROUP), leave)


def _commit(peer: "Peer", topic: str, version: int, ids: dict[str, Any]) -> None:
    rows = [
        OffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=1,
            committed_leader_epoch=0 if version >= 6 else -1,
            committed_metadata=metadata,
        )
        for metadata in (None, "note", "x" * 5000)
    ]
    for generation in (ids["generation_id"], 77):
        request = OffsetCommitRequest(
            group_id=ids["group_id"],
            generation_id_or_member_epoch=generation,
            member_id=ids["member_id"],
            topics=[
                OffsetCommitRequestTopic(
                    name=topic if version < 10 else "",
                    topic_id=peer.topic_id if version >= 10 else bytes(16),
                    partitions=rows,
                ),
                OffsetCommitRequestTopic(
                    name="golden-missing" if version < 10 else "",
                    topic_id=b"no such topic id" if version >= 10 else bytes(16),
                    partitions=rows[:1],
                ),
            ],
        )
        peer.ask(ApiKey.OFFSET_COMMIT, version, request)


def _administer(peer: "Peer", topic: str) -> None:
    """Commit with the versions that are left, list, and delete offsets and groups."""
    newest = APIS[ApiKey.OFFSET_COMMIT].max_version
    _commit(
        peer,
        topic,
        newest,
        {"group_id": "golden-offsets", "generation_id": -1, "member_id": ""},
    )
    for version in range(APIS[ApiKey.LIST_GROUPS].max_version + 1):
        peer.ask(ApiKey.LIST_GROUPS, version, ListGroupsRequest())
        if version >= 4:
            request = ListGroupsRequest(states_filter=["empty", "Stable"])
            if version >= 5:
                request.types_filter = ["classic"]
            peer.ask(ApiKey.LIST_GROUPS, version, request)
    for group, name in (("golden-offsets", topic), ("golden-9", "golden-missing"), ("no", topic)):
        partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)]
        topics = [OffsetDeleteRequestTopic(name=name, partitions=partitions)]
        peer.ask(ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest(group_id=group, topics=topics))
    for version in range(APIS[ApiKey.DELETE_GROUPS].max_version + 1):
        names = [f"golden-{version}", "golden-unknown"]
        peer.ask(ApiKey.DELETE_GROUPS, version, DeleteGroupsRequest(groups_names=names))
