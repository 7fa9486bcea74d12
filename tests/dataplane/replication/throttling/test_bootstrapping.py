"""A worker without replicas is filled by moves, throttled for all replicas (KIP-73's Q&A)."""

import pytest

from metaquorum.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.test_admin_changes import BROKER, TOPIC, change
from tests.dataplane.replication.throttling.test_throttling import (
    BATCH,
    BATCH_BYTES,
    RATE,
    SMALL,
    metrics_of,
    quota_of,
    rate_of,
    throttle,
)
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import RawClient

NEW = 3
TARGETS = {"a": (1, NEW), "b": (NEW, 2)}
SIDES = ("leader", "follower")
BATCHES = 225  # in each topic: 90 s at RATE
INBOUND = RATE // 5


async def move(client: RawClient) -> None:
    topics = [
        ReassignableTopic(
            name=name,
            partitions=[ReassignablePartition(partition_index=0, replicas=list(target))],
        )
        for name, target in TARGETS.items()
    ]
    asked = AlterPartitionReassignmentsRequest(topics=topics)
    answer = await client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, asked)
    assert [row.error_code for topic in answer.responses for row in topic.partitions] == [0, 0]


@pytest.mark.slow
@together(**SMALL)
async def test_a_new_worker_is_filled_at_the_rate_and_producers_do_not_wait(
    cluster: Together,
) -> None:
    await cluster.create("a", (1, 2))
    await cluster.create("b", (2, 1))
    clients = {"a": await cluster.connect(1), "b": await cluster.connect(2)}
    for name, client in clients.items():
        for _ in range(BATCHES):
            await client.produce(name, bytearray(BATCH), acks=1)
    for side in SIDES:
        await throttle(cluster, side, ("a", "b"))
    await move(clients["a"])
    await cluster.world.sleep(11)  # the first window
    lag = metrics_of(cluster, NEW)["metaquorum_replica_lag_sum"]
    quota = quota_of(cluster, NEW, "follower")
    assert await rate_of(cluster, quota, 30) == pytest.approx(RATE, rel=0.01)
    decreased = lag - metrics_of(cluster, NEW)["metaquorum_replica_lag_sum"]
    assert decreased * BATCH_BYTES == pytest.approx(30 * RATE, rel=0.02)

    for _ in range(10):  # acks=all waits for the present replicas only
        for name, client in clients.items():
            began = cluster.world.now
            await client.produce(name, bytearray(BATCH), acks=-1)
            assert cluster.world.now - began < 0.5
        await cluster.world.sleep(2 * BATCH_BYTES / INBOUND)
    assert all(cluster.state(name, 1).is_moving for name in TARGETS)
    await cluster.until(
        lambda: all(cluster.state(name, 1).replicas == TARGETS[name] for name in TARGETS),
        limit_s=120,
    )
    assert cluster.state("a", 1).leader == 1
    assert cluster.state("b", 1).leader in TARGETS["b"]
    assert metrics_of(cluster, NEW)["metaquorum_replica_lag_sum"] == 0

    for name in TARGETS:
        lists = {f"{side}.replication.throttled.replicas": None for side in SIDES}
        assert await change(clients["a"], TOPIC, name, lists) == ErrorCode.NONE
    rates = {f"{side}.replication.throttled.rate": None for side in SIDES}
    assert await change(clients["a"], BROKER, "", rates) == ErrorCode.NONE
