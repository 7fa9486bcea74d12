"""Batches with malformed headers and records, to topics of all kinds; then a kill and a restart."""

import random
import time

import pytest

from metaquorum.simulations.workloads.lying_batches import LIES, REFUSAL, lying_batch
from metaquorum.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, batches, decode_records, encode_batch
from tests.conftest import NewNode
from tests.hostile.honest import Client
from tests.nodes import elsewhere

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="Kafka takes some of them")

KINDS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "zstd": {"compression.type": "zstd"},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
}


def connected(bootstrap: str) -> Client:
    host, port = bootstrap.split(":")
    return Client(host, int(port))


def produce(client: Client, topic: str, batch: bytes) -> int:
    data = PartitionProduceData(index=0, records=batch)
    message = ProduceRequest(
        acks=-1,
        timeout_ms=100_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    answer = client.call(ApiKey.PRODUCE, message)
    return int(answer.responses[0].partition_responses[0].error_code)


def values(client: Client, topic: str) -> list[bytes | None]:
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    message = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic=topic, partitions=[asked])])
    data = bytes(client.call(ApiKey.FETCH, message).responses[0].partitions[0].records or b"")
    return [record.value for at, _ in batches(data) for record in decode_records(data, at)]


def test_no_lie_is_taken_and_what_is_written_between_them_is_kept(start_node: NewNode) -> None:
    node = start_node({})
    client = connected(node.bootstrap)
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in kind.items()],
        )
        for name, kind in KINDS.items()
    ]
    client.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics, timeout_ms=60_000))
    dice = random.Random(11)
    written: list[bytes | None] = []
    for number, kind in enumerate(LIES):
        now_ms = int(time.time() * 1000)
        written.append(b"%d" % number)
        honest = bytes(encode_batch([Record(0, now_ms, b"k%d" % number, written[-1])]))
        for topic in KINDS:
            lie = lying_batch(dice, kind, timestamp_ms=now_ms)
            assert produce(client, topic, lie) == REFUSAL, (topic, kind)
            assert produce(client, topic, honest) == 0
    client.close()
    node.kill()
    node.start()
    client = connected(node.bootstrap)
    for topic in KINDS:
        assert values(client, topic) == written
    client.close()
