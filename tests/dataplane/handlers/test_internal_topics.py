"""`__consumer_offsets` through a node: clients can read it, and nothing else."""

from collections.abc import Sequence

import pytest

from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.topics import topic_records
from metaquorum.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from metaquorum.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from metaquorum.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from metaquorum.wire.messages.describe_topic_partitions import TopicRequest as DescribedTopic
from metaquorum.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol import request_form
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import encode_request
from tests.dataplane.serving import (
    PRODUCE_VERSION,
    RawClient,
    Simulated,
    append_unvalidated,
    batch_of,
    produce_message,
    run_simulated,
    simulated,
)

INVALID = ErrorCode.INVALID_TOPIC_EXCEPTION
ONE = {"offsets_topic_num_partitions": 1}


def by_id(topic_id: bytes, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=batch_of(b"x"))
    topic = TopicProduceData(topic_id=topic_id, partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


@pytest.mark.parametrize("is_fast", [True, False])
def test_no_client_writes_to_it(monkeypatch: pytest.MonkeyPatch, *, is_fast: bool) -> None:
    async def scenario(node: Simulated) -> None:
        topic = await node.worker.internal_topics.ensure()
        partition = node.worker.replica_manager.by_name(CONSUMER_OFFSETS, 0)
        client = await node.connect()
        for acks in (1, -1):
            row = await client.produce(CONSUMER_OFFSETS, batch_of(b"x"), acks=acks, error=INVALID)
            assert "clients can only read it" in row.error_message
            answer = await client.call(ApiKey.PRODUCE, by_id(topic.topic_id, acks))
            assert answer.responses[0].partition_responses[0].error_code == INVALID
        # Kafka lets this client id write.
        message = produce_message(CONSUMER_OFFSETS, batch_of(b"x"))
        frame = encode_request(ApiKey.PRODUCE, PRODUCE_VERSION, 99, "__admin_client", message)
        await client.send(bytes(frame))
        answer = await client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
        assert answer.responses[0].partition_responses[0].error_code == INVALID
        await client.ask(ApiKey.PRODUCE, by_id(topic.topic_id, 0))
        assert await client.is_closed()
        assert partition.log.log_end_offset == 0

    if not is_fast:
        monkeypatch.setattr(request_form, "decode_one", lambda *_: None)
    run_simulated(scenario, **ONE)


@simulated(**ONE)
async def test_other_topics_of_the_same_request_are_written(node: Simulated) -> None:
    await node.worker.internal_topics.ensure()
    client = await node.connect()
    await client.create("orders")
    message = produce_message("orders", batch_of(b"x"))
    message.topic_data += produce_message(CONSUMER_OFFSETS, batch_of(b"x")).topic_data
    answer = await client.call(ApiKey.PRODUCE, message, PRODUCE_VERSION)
    rows = {each.name: each.partition_responses[0].error_code for each in answer.responses}
    assert rows == {"orders": 0, CONSUMER_OFFSETS: INVALID}
    assert await client.values("orders") == [b"x"]


@simulated(**ONE)
async def test_its_records_can_be_read_and_not_deleted(node: Simulated) -> None:
    await node.worker.internal_topics.ensure()
    partition = node.worker.replica_manager.by_name(CONSUMER_OFFSETS, 0)
    append_unvalidated(partition, batch_of(b"x", b"y"))
    client = await node.connect()
    row = DeleteRecordsPartition(partition_index=0, offset=1)
    message = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=CONSUMER_OFFSETS, partitions=[row])], timeout_ms=1000
    )
    answer = await client.call(ApiKey.DELETE_RECORDS, message)
    assert answer.topics[0].partitions[0].error_code == INVALID
    assert await client.values(CONSUMER_OFFSETS) == [b"x", b"y"]


@simulated(**ONE)
async def test_it_is_neither_deleted_nor_given_partitions(node: Simulated) -> None:
    topic = await node.worker.internal_topics.ensure()
    client = await node.connect()
    for state in (
        DeleteTopicState(name=CONSUMER_OFFSETS),
        DeleteTopicState(name=None, topic_id=topic.topic_id),
    ):
        deletion = DeleteTopicsRequest(topics=[state], timeout_ms=1000)
        (row,) = (await client.call(ApiKey.DELETE_TOPICS, deletion)).responses
        assert row.error_code == ErrorCode.INVALID_REQUEST
        assert "cannot be deleted" in row.error_message
    more = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=CONSUMER_OFFSETS, count=2, assignments=None)],
        timeout_ms=1000,
    )
    (row,) = (await client.call(ApiKey.CREATE_PARTITIONS, more)).results
    assert row.error_code == ErrorCode.INVALID_REQUEST
    assert node.worker.image.topic(CONSUMER_OFFSETS) is topic


@simulated(**ONE)
async def test_no_config_stops_or_removes_its_state(node: Simulated) -> None:
    await node.worker.internal_topics.ensure()
    client = await node.connect()
    for name, value in (("max.message.bytes", "0"), ("cleanup.policy", "compact,delete")):
        config = AlterableConfig(name=name, config_operation=0, value=value)
        resource = AlterConfigsResource(
            resource_type=2, resource_name=CONSUMER_OFFSETS, configs=[config]
        )
        change = IncrementalAlterConfigsRequest(resources=[resource])
        (row,) = (await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, change)).responses
        assert row.error_code == ErrorCode.INVALID_REQUEST
        assert f"state of consumer groups: {name} must be" in row.error_message
    assert "max.message.bytes" not in node.worker.image.topic_configs(CONSUMER_OFFSETS)


async def described(client: RawClient, names: Sequence[str]) -> list[tuple[str, int, bool]]:
    """Return (name, error code, is_internal) of the topics; both APIs must agree on it."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    rows = (await client.call(ApiKey.METADATA, request)).topics
    found = sorted([(row.name, row.error_code, row.is_internal) for row in rows])
    again = DescribeTopicPartitionsRequest(topics=[DescribedTopic(name=name) for name in names])
    rows = (await client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, again)).topics
    assert sorted([(row.name, row.error_code, row.is_internal) for row in rows]) == found
    return found


def test_it_is_described_as_internal_whether_it_exists_or_not() -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        await client.create("orders")
        names = [CONSUMER_OFFSETS, TRANSACTION_STATE, "orders"]
        assert await described(client, names) == [  # the same as from Kafka 4.3.1
            (CONSUMER_OFFSETS, unknown, True),
            (TRANSACTION_STATE, unknown, True),
            ("orders", 0, False),
        ]
        await node.worker.internal_topics.ensure()
        for _ in range(2):  # the second answer is cached
            assert (await described(client, names))[0] == (CONSUMER_OFFSETS, 0, True)

    run_simulated(scenario, **ONE)


@simulated()
async def test_a_request_for_its_metadata_does_not_create_it(node: Simulated) -> None:
    client = await node.connect()
    names = ("orders", CONSUMER_OFFSETS)
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    rows = (await client.call(ApiKey.METADATA, asked)).topics
    assert {row.name: row.error_code for row in rows} == {
        "orders": 0,
        CONSUMER_OFFSETS: INVALID,
    }
    row = await client.create(CONSUMER_OFFSETS)
    assert row.error_code == INVALID
    assert "a worker creates it on the first use of consumer groups" in row.error_message
    assert node.worker.image.topic(CONSUMER_OFFSETS) is None


@simulated()
async def test_a_topic_that_a_user_of_an_earlier_version_created_is_kept_and_protected(
    node: Simulated,
) -> None:
    on_machine = node.on_machine.node
    assert on_machine is not None
    assert on_machine.controller_role is not None
    await on_machine.controller_role.controller.change(
        lambda image: Decision(
            None, topic_records(image, CONSUMER_OFFSETS, bytes(range(16)), {}, [(1,), (1,)])
        )
    )
    await node.on_machine.stop()
    await node.on_machine.start()
    topic = await node.worker.internal_topics.ensure()
    assert (topic.topic_id, len(topic.partitions)) == (bytes(range(16)), 2)
    client = await node.connect()
    await client.produce(CONSUMER_OFFSETS, batch_of(b"x"), error=INVALID)
    assert await client.values(CONSUMER_OFFSETS) == []
