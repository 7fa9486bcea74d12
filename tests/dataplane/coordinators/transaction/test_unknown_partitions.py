"""Partitions that the coordinator's metadata does not have are not added to transactions."""

from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from metaquorum.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.groups.clients import groups
from tests.dataplane.handlers.transactions.test_offsets import Producer
from tests.dataplane.serving import Simulated


@groups()
async def test_a_worker_cannot_add_partitions_that_the_coordinator_does_not_know_yet(
    node: Simulated,
) -> None:
    """Its end would write no marker there: the coordinator treats the topic as deleted."""
    producer = await Producer.create(node)
    created = CreateTopicsRequest(
        topics=[CreatableTopic(name="known", num_partitions=1, replication_factor=1)]
    )
    await producer.client.call(ApiKey.CREATE_TOPICS, created)
    for verify_only in (False, True):
        asked = AddPartitionsToTxnTransaction(
            transactional_id=producer.name,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=verify_only,
            topics=[
                AddPartitionsToTxnTopic(name="known", partitions=[0, 1]),
                AddPartitionsToTxnTopic(name="unknown", partitions=[0]),
            ],
        )
        response = await node.worker.transactions.add_partitions(
            AddPartitionsToTxnRequest(transactions=[asked])
        )
        codes = {
            (topic.name, each.partition_index): each.partition_error_code
            for topic in response.results_by_transaction[0].topic_results
            for each in topic.results_by_partition
        }
        assert codes == {
            ("known", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
            ("known", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("unknown", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert not node.worker.transactions.describe(producer.name).partitions


@groups()
async def test_a_client_cannot_add_partitions_of_internal_topics(node: Simulated) -> None:
    """No marker can be written to `__transaction_state`: the transaction would never end."""
    producer = await Producer.create(node)
    await producer.add_offsets()
    await producer.end()
    created = CreateTopicsRequest(
        topics=[CreatableTopic(name="known", num_partitions=1, replication_factor=1)]
    )
    await producer.client.call(ApiKey.CREATE_TOPICS, created)
    topics = [
        AddPartitionsToTxnTopic(name=name, partitions=[0])
        for name in ("known", "__consumer_offsets", "__transaction_state", "unknown")
    ]
    for_one = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=topics,
    )
    for_each = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=producer.name,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                topics=topics,
            )
        ]
    )
    for version, asked in ((0, for_one), (3, for_one), (4, for_each), (5, for_each)):
        answer = await producer.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, asked, version)
        results = answer.results_by_topic_v3_and_below
        if version >= 4:
            results = answer.results_by_transaction[0].topic_results
        assert [
            row.partition_error_code for topic in results for row in topic.results_by_partition
        ] == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert not node.worker.transactions.describe(producer.name).partitions
