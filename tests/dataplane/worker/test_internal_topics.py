"""Creation of `__consumer_offsets` on first use, by whole nodes in virtual time."""

from contextlib import suppress
from typing import Any

import pytest
import trio

from metaquorum.client import connect
from metaquorum.client.administration.admin import AdminClient
from metaquorum.dataplane.worker.internal_topics import CREATE_S
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from metaquorum.metadata.records import ELIGIBLE_LEADERS, METADATA_VERSION, FeatureRange
from metaquorum.quorum.controller import features
from metaquorum.quorum.controller.features import FeatureUpdate
from metaquorum.quorum.rpc.methods import UPDATE_FEATURES, RequestContext, UpdateFeatures
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.together import NODES, PORT, Together, together
from tests.dataplane.serving import Simulated, run_simulated, simulated
from tests.dataplane.worker.test_mutation_limits import creation, limited


async def refusal(worker: Any) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        await worker.internal_topics.ensure()
    return refused.value


@simulated(offsets_topic_num_partitions=7, offsets_topic_segment_bytes=2 << 20)
async def test_the_topic_has_the_configs_of_the_worker(node: Simulated) -> None:
    topic = await node.worker.internal_topics.ensure()
    assert (topic.name, len(topic.partitions)) == (CONSUMER_OFFSETS, 7)
    assert {tuple(each.replicas) for each in topic.partitions} == {(1,)}
    assert node.worker.image.topic(CONSUMER_OFFSETS) is topic
    configs = node.worker.image.topic_configs(CONSUMER_OFFSETS)
    assert configs["segment.bytes"] == "2097152"
    assert await node.worker.internal_topics.ensure() is topic


@together()
async def test_the_topic_has_a_replica_on_each_of_three_workers(cluster: Together) -> None:
    await cluster.create_offsets_topic()
    topic = cluster.worker(2).image.topic(CONSUMER_OFFSETS)
    assert len(topic.partitions) == 50
    assert {frozenset(each.replicas) for each in topic.partitions} == {frozenset(NODES)}
    assert {each.leader for each in topic.partitions} == set(NODES)


@simulated(transaction_state_log_num_partitions=3, transaction_state_log_segment_bytes=2 << 20)
async def test_a_node_alone_has_the_topic_of_transactions_and_is_not_blocked_by_its_min_isr(
    node: Simulated,
) -> None:
    topic = await node.worker.internal_topics.ensure(TRANSACTION_STATE)
    assert (topic.name, len(topic.partitions)) == (TRANSACTION_STATE, 3)
    assert {tuple(each.replicas) for each in topic.partitions} == {(1,)}
    configs = node.worker.image.topic_configs(TRANSACTION_STATE)
    assert configs["min.insync.replicas"] == "2"
    assert configs["segment.bytes"] == "2097152"
    partition = node.worker.replica_manager.by_name(TRANSACTION_STATE, 0)
    assert partition.config.min_insync_replicas == 2
    assert partition.least_isr == 1
    partition.check_append(-1)


@simulated(offsets_topic_num_partitions=1)
async def test_requests_that_come_together_ask_the_controller_once(node: Simulated) -> None:
    before = node.worker.image.end_offset
    topics: list[object] = []

    async def one() -> None:
        topics.append(await node.worker.internal_topics.ensure())

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(one)
        await trio.lowlevel.checkpoint()
        assert len(node.worker.internal_topics._creations) == 1
    assert len(topics) == 100
    assert len({id(topic) for topic in topics}) == 1
    # The topic, three configs, one partition.
    assert node.worker.image.end_offset == before + 5


@together()
async def test_all_that_wait_have_one_answer_when_no_controller_is_active(
    cluster: Together,
) -> None:
    await cluster.kill(2)
    await cluster.kill(3)
    worker = cluster.worker(1)
    began, errors = cluster.world.now, list[KafkaError]()

    async def one() -> None:
        errors.append(await refusal(worker))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(one)
    assert cluster.world.now - began <= CREATE_S + 0.1
    assert {error.code for error in errors} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert "'__consumer_offsets' does not exist yet and was not created" in errors[0].message
    await cluster.restart(2)
    await cluster.restart(3)
    for _ in range(10):  # until a controller is elected
        with suppress(KafkaError):
            await worker.internal_topics.ensure()
    assert worker.image.topic(CONSUMER_OFFSETS) is not None


@simulated()
async def test_a_cancelled_request_leaves_the_creation_to_one_that_waits(node: Simulated) -> None:
    topics: list[object] = []

    async def other() -> None:
        topics.append(await node.worker.internal_topics.ensure())

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_first, scope)
            nursery.start_soon(other)
            await node.worker.internal_topics.ensure()
    assert scope.cancelled_caught
    assert topics == [node.worker.image.topic(CONSUMER_OFFSETS)]


async def _cancel_first(scope: trio.CancelScope) -> None:
    scope.cancel()


@simulated()
async def test_a_used_up_quota_of_a_client_does_not_delay_the_topic(node: Simulated) -> None:
    client = await limited(node)
    answer = await client.call(ApiKey.CREATE_TOPICS, creation("a", "b", "c", "d"), 7)
    assert answer.throttle_time_ms > 0
    began = node.now
    await node.worker.internal_topics.ensure()
    assert node.now - began < 1


@simulated()
async def test_refused_changes_of_internal_topics_take_no_tokens(node: Simulated) -> None:
    client = await limited(node)
    await node.worker.internal_topics.ensure()
    for _ in range(5):
        answer = await client.call(ApiKey.CREATE_TOPICS, creation(CONSUMER_OFFSETS), 7)
        assert answer.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        answer = await client.call(ApiKey.CREATE_TOPICS, creation(TRANSACTION_STATE), 7)
        assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await client.delete(CONSUMER_OFFSETS) == ErrorCode.INVALID_REQUEST
    answer = await client.call(ApiKey.CREATE_TOPICS, creation("a", "b"), 7)
    assert [row.error_code for row in answer.topics] == [0, 0]


def test_a_cluster_of_an_earlier_version_creates_it_after_its_upgrade(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(node: Simulated) -> None:
        monkeypatch.undo()
        assert node.worker.image.features[METADATA_VERSION] == 1
        error = await refusal(node.worker)
        assert error.code is ErrorCode.UNSUPPORTED_VERSION
        assert "mq-admin cluster upgrade metadata.version=2" in error.message
        assert node.worker.image.topic(CONSUMER_OFFSETS) is None
        updates = [FeatureUpdate(METADATA_VERSION, 2)]
        await node.worker.controller_client.change(
            UPDATE_FEATURES, UpdateFeatures(RequestContext(), updates), timeout_s=10.0
        )
        assert (await node.worker.internal_topics.ensure()).partitions
        with pytest.raises(KafkaError, match=r"mq-admin cluster upgrade metadata\.version=3"):
            await node.worker.internal_topics.ensure(TRANSACTION_STATE)

    # A cluster that the earlier version founded.
    earlier = (FeatureRange(METADATA_VERSION, 1, 1), FeatureRange(ELIGIBLE_LEADERS, 0, 1))
    monkeypatch.setattr(features, "SUPPORTED_FEATURES", earlier)
    run_simulated(scenario)


@together(offsets_topic_num_partitions=4)
async def test_health_warns_of_replicas_that_a_later_worker_could_have(cluster: Together) -> None:
    await cluster.kill(3)
    await cluster.until(lambda: cluster.worker(1).image.workers[3].fenced)
    await cluster.create_offsets_topic()
    async with connect(f"node-1:{PORT}", timeout_s=60, runtime=cluster.runtime) as known:
        admin = AdminClient(known)

        async def warnings() -> list[str]:
            return list((await admin.describe_cluster_health(await admin.topics())).warnings)

        assert await warnings() == []
        await cluster.restart(3)
        await cluster.until(lambda: not cluster.worker(1).image.workers[3].fenced)
        (warning,) = await warnings()
        assert warning.startswith("4 partitions of __consumer_offsets have fewer replicas")
        assert "3 live workers and offsets.topic.replication.factor=3" in warning
