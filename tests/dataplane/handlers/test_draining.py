"""Three nodes: workers are drained, returned and removed through AlterWorker."""

from typing import Any

import pytest

from metaquorum.dataplane.prometheus.collector import Slices, _add_cluster
from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.metadata.records import METADATA_VERSION, FeatureRange
from metaquorum.quorum.controller import features
from metaquorum.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from metaquorum.wire.messages.alter_worker import AlterWorkerRequest
from metaquorum.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from metaquorum.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from metaquorum.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from metaquorum.wire.messages.describe_workers import DescribeWorkersRequest
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.messages.unregister_broker import UnregisterBrokerRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import APIS, ApiKey
from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.together import NODES, Together, run_together, together
from tests.dataplane.serving import RawClient, batch_of

E = ErrorCode
DRAIN, RETURN, REMOVE = 1, 2, 3
SESSION = {"broker_session_timeout_ms": 2000, "broker_heartbeat_interval_ms": 500}


async def alter(client: RawClient, worker_id: int, action: int) -> Any:
    asked = AlterWorkerRequest(worker_id=worker_id, action=action)
    return await client.call(ApiKey.ALTER_WORKER, asked)


async def done(client: RawClient, worker_id: int, action: int) -> None:
    answer = await alter(client, worker_id, action)
    assert (answer.error_code, answer.error_message) == (E.NONE, None)


def hosts(cluster: Together, topic: str) -> set[int]:
    partitions = cluster.worker(1).image.topic(topic).partitions
    return {replica for partition in partitions for replica in partition.replicas}


def active_controller(cluster: Together) -> int:
    (active,) = [
        node_id
        for node_id in NODES
        if cluster.nodes[node_id].node.controller_role.quorum.status.is_active  # type: ignore[union-attr]
    ]
    return active


async def create(client: RawClient, name: str, partitions: int, factor: int) -> int:
    asked = CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
    answer = await client.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked]))
    return int(answer.topics[0].error_code)


async def grow(client: RawClient, name: str, count: int) -> None:
    asked = CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[asked], timeout_ms=10_000)
    answer = await client.call(ApiKey.CREATE_PARTITIONS, request)
    assert answer.results[0].error_code == E.NONE


@together(leader_imbalance_check_interval_seconds=5, offsets_topic_num_partitions=4, **SESSION)
async def test_a_draining_worker_stays_empty_of_new_replicas_through_failover_and_restart(
    cluster: Together,
) -> None:
    await cluster.create("t", (3, 1, 2))
    client = await cluster.connect(1)
    await fill(await cluster.connect(3), "t", 3)
    await done(client, 3, DRAIN)
    await cluster.until(lambda: cluster.replica(1, "t").is_leader)
    assert cluster.state("t", 1).leader == 1
    assert cluster.state("t", 1).isr == (3, 1, 2), "it stays in sync"

    async def stays_empty(client: RawClient, name: str) -> None:
        assert await create(client, name, 4, 2) == E.NONE
        await grow(client, name, 7)
        asked = MetadataRequest(
            topics=[MetadataRequestTopic(name=f"{name}-auto")], allow_auto_topic_creation=True
        )
        await client.call(ApiKey.METADATA, asked)
        await cluster.until(lambda: cluster.worker(1).image.topic(f"{name}-auto"))
        assert hosts(cluster, name) == {1, 2}
        assert 3 not in hosts(cluster, f"{name}-auto")

    await stays_empty(client, "first")
    await cluster.restart(3)
    await cluster.until(lambda: cluster.state("t", 1).isr == (3, 1, 2))
    assert cluster.worker(1).image.is_draining(3)
    active = active_controller(cluster)
    await cluster.restart(active)
    await cluster.until(lambda: cluster.state("t", 2).isr == (3, 1, 2))
    assert active_controller(cluster) != active
    assert cluster.worker(1).image.is_draining(3)
    client = await cluster.connect(1)
    await stays_empty(client, "second")
    assert await create(client, "wide", 1, 3) == E.INVALID_REPLICATION_FACTOR
    await cluster.create_offsets_topic()
    assert hosts(cluster, CONSUMER_OFFSETS) == {1, 2}
    await cluster.world.sleep(20.0)  # the preferred leader election passes over it
    assert cluster.state("t", 1).leader != 3
    await done(client, 3, RETURN)
    await cluster.until(lambda: cluster.state("t", 1).leader == 3)
    assert await create(client, "wide", 1, 3) == E.NONE


@together(**SESSION)
async def test_a_drained_worker_is_removed_when_it_is_empty_and_stopped(cluster: Together) -> None:
    await cluster.create("t", (3, 1))
    client = await cluster.connect(1)
    await fill(await cluster.connect(3), "t", 5)
    await done(client, 3, DRAIN)
    answer = await alter(client, 3, REMOVE)
    assert answer.error_code == E.INVALID_REQUEST
    assert "Worker 3 is draining and still has 1 replica: no move is planned" in (
        answer.error_message
    )
    one = ReassignablePartition(partition_index=0, replicas=[2, 1])
    asked = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="t", partitions=[one])]
    )
    await client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, asked)
    await cluster.until(lambda: cluster.state("t", 1).replicas == (2, 1))
    answer = await alter(client, 3, REMOVE)
    assert answer.error_code == E.INVALID_REQUEST
    assert "Worker 3 is alive" in answer.error_message
    assert "stop the worker, and remove it" in answer.error_message
    await cluster.nodes[3].stop()
    await cluster.until(lambda: 3 in cluster.worker(1).image.fenced_workers())
    for _ in range(40):  # an active controller that is new waits for a session timeout
        answer = await alter(client, 3, REMOVE)
        if answer.error_code == E.NONE:
            break
        await cluster.world.sleep(0.25)
    assert (answer.error_code, answer.error_message) == (E.NONE, None)
    assert 3 not in cluster.worker(1).image.workers
    await client.produce("t", batch_of(b"after"))


@together()
async def test_the_drain_is_shown_by_the_cluster(cluster: Together) -> None:
    client, other = await cluster.connect(1), await cluster.connect(3)
    await done(client, 3, DRAIN)
    await cluster.until(lambda: cluster.worker(3).image.is_draining(3))
    for version, shown in ((0, []), (1, [3])):
        workers = await client.call(ApiKey.DESCRIBE_WORKERS, DescribeWorkersRequest(), version)
        assert [each.worker_id for each in workers.workers if each.is_draining] == shown
    for connection, is_cordoned in ((client, False), (other, True)):
        dirs = await connection.call(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(), 5)
        assert [each.is_cordoned for each in dirs.results] == [is_cordoned]
        older = await connection.call(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(), 4)
        assert [each.error_code for each in older.results] == [E.NONE]
    await cluster.create("t", (1, 3))
    page = Page()
    await _add_cluster(page, cluster.worker(1).image, Slices(cluster.runtime.clock))
    text = b"".join(page.texts()).decode()
    assert "metaquorum_draining_workers 1\n" in text
    assert "metaquorum_draining_replicas 1\n" in text


def test_a_cluster_below_the_level_of_moves_refuses_to_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    earlier = tuple(
        FeatureRange(each.name, each.least, 3) if each.name == METADATA_VERSION else each
        for each in features.SUPPORTED_FEATURES
    )
    monkeypatch.setattr(features, "SUPPORTED_FEATURES", earlier)

    async def scenario(cluster: Together) -> None:
        client = await cluster.connect(1)
        for action in (DRAIN, RETURN, REMOVE):
            answer = await alter(client, 3, action)
            assert answer.error_code == E.UNSUPPORTED_VERSION
            assert "mq-admin cluster upgrade metadata.version=4" in answer.error_message
        workers = await client.call(ApiKey.DESCRIBE_WORKERS, DescribeWorkersRequest())
        assert [each.is_draining for each in workers.workers] == [False] * 3

    run_together(scenario)


@together()
async def test_requests_that_make_no_sense_are_refused_and_change_nothing(
    cluster: Together,
) -> None:
    client = await cluster.connect(1)
    before = cluster.worker(1).image
    for worker_id, action, code in (
        (4, DRAIN, E.BROKER_ID_NOT_REGISTERED),
        (-1, RETURN, E.BROKER_ID_NOT_REGISTERED),
        (2**31 - 1, REMOVE, E.BROKER_ID_NOT_REGISTERED),
        (3, 0, E.INVALID_REQUEST),
        (3, 4, E.INVALID_REQUEST),
        (3, -128, E.INVALID_REQUEST),
    ):
        answer = await alter(client, worker_id, action)
        assert answer.error_code == code, answer
    await done(client, 3, RETURN)
    assert cluster.worker(1).image.workers == before.workers
    for worker_id in NODES[:2]:
        await done(client, worker_id, DRAIN)
        await done(client, worker_id, DRAIN)
    answer = await alter(client, 3, DRAIN)
    assert answer.error_code == E.INVALID_REQUEST
    assert "last one that is not draining" in answer.error_message
    assert APIS[ApiKey.ALTER_WORKER].permissions == ("ALTER CLUSTER",)
    assert E.NONE not in (
        (
            await client.call(ApiKey.UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id=1))
        ).error_code,
    )
