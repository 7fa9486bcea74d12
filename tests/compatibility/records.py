"""All records of a cluster's topics, read by librdkafka, as plain data."""

import base64
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.compatibility.commands import TOPICS
from tests.nodes import PATIENCE_S


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def read_all(
    bootstrap: str, *, topics: Sequence[str] = TOPICS, **security: str
) -> dict[str, list[list[Any]]]:
    """Return for each "topic-partition": offset, timestamp type, timestamp, key, value, headers."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "compatibility",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            **security,
        }
    )
    rows: dict[str, list[list[Any]]] = {}
    try:
        metadata = consumer.list_topics(timeout=PATIENCE_S)
        for topic in topics:
            for partition in sorted(metadata.topics[topic].partitions):
                rows[f"{topic}-{partition}"] = _read(consumer, topic, partition)
    finally:
        consumer.close()
    return rows


def _read(consumer: Consumer, topic: str, partition: int) -> list[list[Any]]:
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S)
    consumer.assign([TopicPartition(topic, partition, low)])
    rows: list[list[Any]] = [[low, high]]
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"nothing more of {topic}-{partition}"
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            return rows
        headers = [[name, _text(value)] for name, value in message.headers() or ()]
        kind, at = message.timestamp()
        key, value = _text(message.key()), _text(message.value())
        rows.append([message.offset(), kind, at, key, value, headers])
