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
    try:
        metadata = consumer.list_topics(timeout=PATIENCE_S)
        places = [(topic, each) for topic in topics for each in metadata.topics[topic].partitions]
        return _read(consumer, sorted(places))
    finally:
        consumer.close()


def _read(consumer: Consumer, places: Sequence[tuple[str, int]]) -> dict[str, list[list[Any]]]:
    rows: dict[str, list[list[Any]]] = {}
    starts = []
    for topic, partition in places:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S)
        rows[f"{topic}-{partition}"] = [[low, high]]
        starts.append(TopicPartition(topic, partition, low))
    # All at once: librdkafka takes a second for each assignment.
    consumer.assign(starts)
    unread = set(rows)
    while unread:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"nothing more of {unread}"
        where = f"{message.topic()}-{message.partition()}"
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            unread.discard(where)
            continue
        headers = [[name, _text(value)] for name, value in message.headers() or ()]
        kind, at = message.timestamp()
        key, value = _text(message.key()), _text(message.value())
        rows[where].append([message.offset(), kind, at, key, value, headers])
    return rows
