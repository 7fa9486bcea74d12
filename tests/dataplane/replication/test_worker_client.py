"""Requests between workers: authenticated, on connections that are replaced when they fail."""

from typing import Any

import pytest

from metaquorum.dataplane.replication.worker_client import WorkerClient
from metaquorum.wire.messages.describe_unread_records import (
    DescribeUnreadRecordsRequest,
    PositionInPartition,
    PositionsInTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.dataplane.replication.together import Together, together

ROWS = [PositionInPartition(offset=0)]
REQUEST = DescribeUnreadRecordsRequest(topics=[PositionsInTopic(name="t", partitions=ROWS)])


async def code_of(client: WorkerClient, worker_id: int) -> Any:
    response = await client.ask(worker_id, REQUEST, timeout_s=3.0)
    (topic,) = response.topics
    return topic.partitions[0].error_code


async def refusal_of(client: WorkerClient, worker_id: int) -> str:
    with pytest.raises(KafkaError) as refused:
        await code_of(client, worker_id)
    assert refused.value.code is ErrorCode.NETWORK_EXCEPTION
    return refused.value.message


@together()
async def test_a_worker_that_is_back_is_asked_on_a_new_connection(cluster: Together) -> None:
    await cluster.create("t", (2,))
    client = cluster.worker(1).isr_manager.worker_client
    for _ in range(3):
        assert await code_of(client, 2) == ErrorCode.NONE
    assert await code_of(client, 3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert "the metadata have no address of it" in await refusal_of(client, 9)
    await cluster.kill(2)
    began = cluster.world.now
    await refusal_of(client, 2)
    assert cluster.world.now - began <= 3.1
    await cluster.restart(2)
    await cluster.until(lambda: cluster.state("t", 1).leader == 2)
    assert await code_of(client, 2) == ErrorCode.NONE


@together()
async def test_a_worker_without_the_cluster_secret_asks_nothing(cluster: Together) -> None:
    await cluster.create("t", (2,))
    there = cluster.worker(1).image.workers[2].endpoints[0]
    address = there.host, there.port
    client = WorkerClient(1, cluster.runtime, lambda _: address, None, None, None)
    assert "this node has no cluster secret" in await refusal_of(client, 2)
