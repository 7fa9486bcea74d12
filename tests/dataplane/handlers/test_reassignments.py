"""Partitions move between three real workers."""

from typing import Any

import pytest

from metaquorum.metadata.records import ELIGIBLE_LEADERS, METADATA_VERSION, FeatureRange
from metaquorum.quorum.controller import features
from metaquorum.quorum.controller.reassignment import Reassignment
from metaquorum.quorum.rpc.methods import REASSIGN_PARTITIONS, ReassignPartitions, RequestContext
from metaquorum.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from metaquorum.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.together import Together, run_together, together
from tests.dataplane.serving import RawClient

CONTEXT = RequestContext("User:ANONYMOUS", None, "127.0.0.1")


async def moved(cluster: Together, target: tuple[int, ...] | None) -> KafkaError | None:
    errors = await cluster.worker(1).controller_client.change_each(
        REASSIGN_PARTITIONS,
        [Reassignment("t", 0, target)],
        lambda part: ReassignPartitions(CONTEXT, part),
        timeout_s=10.0,
    )
    (error,) = errors
    assert error is None or isinstance(error, KafkaError)
    return error


@together()
async def test_a_partition_moves_with_its_records_to_other_workers(cluster: Together) -> None:
    await cluster.create("t", (1, 2))
    writer = await cluster.connect(1)
    await fill(writer, "t", 5)
    assert await moved(cluster, (3, 2)) is None
    await cluster.until(lambda: cluster.state("t", 1).replicas == (3, 2))
    state = cluster.state("t", 1)
    assert (state.isr, state.leader, state.is_moving) == ((3, 2), 3, False)
    await cluster.until(lambda: cluster.replica(3, "t").high_watermark == 5)
    error = await moved(cluster, None)
    assert error is not None
    assert error.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert await moved(cluster, (1, 2, 3)) is None
    await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2, 3))
    await cluster.until(lambda: cluster.replica(1, "t").high_watermark == 5)


def asked_for(name: str, *rows: tuple[int, list[int] | None], **more: Any) -> Any:
    partitions = [
        ReassignablePartition(partition_index=index, replicas=replicas) for index, replicas in rows
    ]
    topic = ReassignableTopic(name=name, partitions=partitions)
    return AlterPartitionReassignmentsRequest(topics=[topic], **more)


async def listed(client: RawClient, *names: str) -> list[tuple[str, int, list[int], list[int]]]:
    topics = [
        ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 7, -1]) for name in names
    ]
    asked = ListPartitionReassignmentsRequest(topics=topics or None)
    answer = await client.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, asked)
    assert (answer.error_code, answer.error_message) == (0, None)
    return [
        (topic.name, one.partition_index, one.replicas, [*one.adding_replicas, -1])
        for topic in answer.topics
        for one in topic.partitions
    ]


@together()
async def test_a_move_is_listed_until_it_is_complete_or_cancelled(cluster: Together) -> None:
    await cluster.create("t", (1, 2))
    await cluster.create("u", (1, 2))
    client = await cluster.connect(1)
    await cluster.kill(3)
    await cluster.until(lambda: cluster.worker(1).image.workers[3].fenced)
    for version in range(2):
        message = asked_for("t", (0, [3, 1]), (9, [1]), (0, [1, 1]))
        answer = await client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message, version)
        (topic,) = answer.responses
        assert [one.error_code for one in topic.partitions] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ]
        assert [one.partition_index for one in topic.partitions] == [0, 9, 0]
        moves = [("t", 0, [3, 1, 2], [3, -1])]
        assert await listed(client) == await listed(client, "t", "what") == moves
        assert await listed(client, "t", "u", "t") == moves, "each partition once"
        assert await listed(client, "u") == []
        cancel = asked_for("t", (0, None))
        for code in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
            answer = await client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, cancel, version)
            assert answer.responses[0].partitions[0].error_code == code
        assert await listed(client) == []
        assert set(cluster.state("t", 1).replicas) == {1, 2}
    message = asked_for("t", (0, [1]), allow_replication_factor_change=False)
    answer = await client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message)
    assert not answer.allow_replication_factor_change
    (refused,) = answer.responses[0].partitions
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@together()
async def test_a_timeout_is_an_error_of_the_whole_request(cluster: Together) -> None:
    """As in Kafka: some clients read only this error, others only those of partitions."""
    await cluster.create("t", (1, 2))
    client = await cluster.connect(1)
    late = int(ErrorCode.REQUEST_TIMED_OUT)
    for timeout_ms in (0, -1):
        message = asked_for("t", (0, [2, 1]), (9, [1]), timeout_ms=timeout_ms)
        answer = await client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message)
        assert answer.error_code == late
        (topic,) = answer.responses
        assert [one.error_code for one in topic.partitions] == [late, late]
    message = asked_for("t", (0, [9, -3, 8]))
    answer = await client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message)
    assert answer.error_code == ErrorCode.NONE
    assert "broker -3," in answer.responses[0].partitions[0].error_message
    nothing = AlterPartitionReassignmentsRequest()
    answer = await client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, nothing)
    assert (answer.error_code, answer.error_message, answer.responses) == (0, "", [])


def test_below_their_level_moves_are_refused_and_none_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    earlier = (FeatureRange(METADATA_VERSION, 1, 3), FeatureRange(ELIGIBLE_LEADERS, 0, 1))
    monkeypatch.setattr(features, "SUPPORTED_FEATURES", earlier)

    async def scenario(cluster: Together) -> None:
        await cluster.create("t", (1, 2))
        client = await cluster.connect(1)
        message = asked_for("t", (0, [3, 1]))
        answer = await client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "mq-admin cluster upgrade metadata.version=4" in answer.error_message
        assert await listed(client) == []

    run_together(scenario)
