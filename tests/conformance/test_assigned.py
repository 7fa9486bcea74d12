"""Consumers with a group id read what they assign themselves."""

import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as TheirPartition
from kafka import KafkaConsumer, TopicPartition

from tests.conformance.clients import create
from tests.nodes import PATIENCE_S, Peer, unique

GROUP = "a-group"


@pytest.fixture
def topic(node: Peer) -> str:
    name = unique("topic")
    create(node.bootstrap, name, 1)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce(name, b"value")
    assert producer.flush(PATIENCE_S) == 0
    return name


def polled(consumer: Consumer) -> tuple[bytes | None, KafkaError | None]:
    """Return the first message: its value, or its error."""
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    error = message.error()
    return (None, error) if error is not None else (message.value(), None)


@pytest.mark.parametrize("offset", [None, OFFSET_BEGINNING])
def test_librdkafka_reads_what_it_assigns_itself(
    node: Peer, topic: str, offset: int | None
) -> None:
    """librdkafka requires a group id, requests its offsets if none is given, and commits at the
    end.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
        }
    )
    at = TheirPartition(topic, 0) if offset is None else TheirPartition(topic, 0, offset)
    consumer.assign([at])
    assert polled(consumer) == (b"value", None)
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < PATIENCE_S / 6, "it waits for a coordinator, for 50 s"


def test_kafka_python_reads_what_it_assigns_itself(node: Peer, topic: str) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=node.bootstrap,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.assign([TopicPartition(topic, 0)])
    assert next(consumer).value == b"value"
    consumer.close()
