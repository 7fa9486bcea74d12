"""Offsets are committed, fetched and deleted, in every version that is served."""

from typing import Any

import pytest

from metaquorum.dataplane.coordinators.group import committed_offsets
from metaquorum.dataplane.handlers.groups.offsets import handle_offset_fetch
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.scheduling.time_slices import at_once, step
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.leave_group import MemberIdentity
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
from metaquorum.wire.primitives.types import ZERO_UUID
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.groups.clients import NONE, GroupClient, groups, run_groups, versions
from tests.dataplane.serving import (
    Simulated,
)


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

    run_groups(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
@groups()
async def test_offsets_are_committed_in_every_version(node: Simulated, version: int) -> None:
    client = await GroupClient.connect(node)
    await client.client.create("t", 2)
    topic = node.worker.image.topic("t")
    assert topic is not None
    of_topic = {"topic_id": topic.topic_id} if version >= 10 else {}
    codes = await client.commit(5, partitions=(0, 1, 2), version=version, **of_topic)
    assert codes == [NONE, NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await client.committed() == {0: 5, 1: 5}
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    other = {"topic_id": b"x" * 16} if version >= 10 else {"topic": "other"}
    assert await client.commit(5, version=version, **other) == [unknown]
    long = await client.commit(6, metadata="x" * 4097, version=version, **of_topic)
    assert long == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert await client.committed() == {0: 5, 1: 5}


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
@groups()
async def test_a_generation_without_its_group_is_not_found_since_version_9(
    node: Simulated, version: int
) -> None:
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


@groups()
async def test_only_the_current_generation_commits(node: Simulated) -> None:
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


@groups()
async def test_a_long_commit_is_written_in_parts(node: Simulated) -> None:
    client = await GroupClient.connect(node)
    await client.client.create("t", 1000)
    assert await client.commit(7, partitions=range(1001)) == [
        *[NONE] * 1000,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await client.committed() == dict.fromkeys(range(1000), 7)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
@groups()
async def test_offsets_are_fetched_in_every_version(node: Simulated, version: int) -> None:
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
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[unknown])])
        answer = await client.call(ApiKey.OFFSET_FETCH, asked, version)
        (row,) = answer.groups[0].topics[0].partitions
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [1, 7, 9])
@groups()
async def test_a_fetch_is_not_answered_from_a_coordinator_that_has_ended_meanwhile(
    node: Simulated, version: int
) -> None:
    """The shard is emptied: its rows would show that nothing was committed."""
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
    step(work)
    node.worker.groups.close()
    answer = at_once(work)
    if version == 1:
        codes = [row.error_code for row in answer.topics[0].partitions]
        assert codes == [ErrorCode.NOT_COORDINATOR] * 200
        return
    found = answer if version < 8 else answer.groups[0]
    assert (found.error_code, found.topics) == (ErrorCode.NOT_COORDINATOR, [])


@groups()
async def test_a_recreated_topic_starts_without_offsets(node: Simulated) -> None:
    client = await GroupClient.connect(node)
    await client.client.create("t", 1)
    assert await client.commit(5) == [NONE]
    assert await client.committed() == {0: 5}
    await client.client.delete("t")
    await client.client.create("t", 1)
    assert await client.committed() == {}
    assert await client.commit(1) == [NONE]
    assert await client.committed() == {0: 1}


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

    run_groups(scenario)
