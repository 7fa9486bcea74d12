"""Malformed batches while independent clients run: the clients read on and see the errors."""

import random
import subprocess
import sys
import time
from pathlib import Path

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest

from metaquorum.simulations.workloads.lying_batches import LIES, REFUSAL, lying_batch
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.protocol.apis import ApiKey
from tests.conformance.clients import CLIENTS, CODECS, Aiokafka, Client, KafkaPython, Record, create
from tests.hostile.honest import Client as RawClient
from tests.nodes import PATIENCE_S, Peer, elsewhere, unique

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def produced(client: RawClient, topic: str, batch: bytes) -> int:
    """Return the error code."""
    data = PartitionProduceData(index=0, records=batch)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    message = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
    answer = client.call(ApiKey.PRODUCE, message)
    return int(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.skipif(bool(elsewhere()), reason="Kafka takes some of them")
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_lies_between_its_records_do_not_stop_a_consumer(node: Peer, client: Client) -> None:
    topic = create(node.bootstrap, unique("lies"))
    host, port = node.bootstrap.split(",")[0].rsplit(":", 1)
    raw = RawClient(host, int(port))
    dice = random.Random(3)
    values = []
    try:
        for number, kind in enumerate(LIES):
            lie = lying_batch(dice, kind, timestamp_ms=int(time.time() * 1000))
            assert produced(raw, topic, lie) == REFUSAL, kind
            if number % 4 == 0:
                values.append(b"after %d" % number)
                client.send(node.bootstrap, topic, [Record(None, values[-1])], CODECS[number // 4])
    finally:
        raw.close()
    found = client.read(node.bootstrap, topic, len(values))
    assert [stored.record.value for stored in found] == values
    assert [stored.offset for stored in found] == list(range(len(values)))
    told = subprocess.run(
        [Path(sys.executable).with_name("mq-admin"), "-b", node.bootstrap, "consume", topic],
        capture_output=True,
        check=True,
    )
    assert told.stdout.splitlines() == values


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_timestamp_out_of_range_is_told_as_that(node: Peer, client: Client, codec: str) -> None:
    limits = {"message.timestamp.before.max.ms": str(HOUR_MS)}
    topic = create(node.bootstrap, unique("times"), config=limits)
    old = Record(None, b"old", timestamp=int(time.time() * 1000) - YEAR_MS)
    if isinstance(client, KafkaPython):
        with pytest.raises(kafka.errors.InvalidTimestampError):
            client.send(node.bootstrap, topic, [old], codec)
    elif isinstance(client, Aiokafka):
        with pytest.raises(aiokafka.errors.InvalidTimestampError):
            client.send(node.bootstrap, topic, [old], codec)
    else:
        errors: list[confluent_kafka.KafkaError] = []
        producer = client.producer(node.bootstrap, compression_type=codec)
        producer.produce(
            topic,
            old.value,
            timestamp=old.timestamp,
            on_delivery=lambda error, _: errors.append(error),
        )
        assert producer.flush(PATIENCE_S) == 0
        assert [error.code() for error in errors] == [confluent_kafka.KafkaError.INVALID_TIMESTAMP]
    client.send(node.bootstrap, topic, [Record(None, b"new")], codec)
    assert client.read(node.bootstrap, topic, 1)[0].record.value == b"new"
