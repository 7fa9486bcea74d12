"""Topics whose partitions move, and their records: the numbers from 0 on."""

from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients import partitions_of
from tests.nodes import PATIENCE_S, unique

RECORDS: Final = 200
LARGE: Final = 40_000  # bytes of a record; a throttle admits the first response, of 1 MiB


def new_topic(bootstrap: str, partitions: int, replicas: list[int], record_bytes: int = 1) -> str:
    """Return the name of a new topic with records; all partitions have these replicas."""
    topic = unique("moved")
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(topic, partitions, replica_assignment=[replicas] * partitions)
    admin.create_topics([new])[topic].result(PATIENCE_S)
    send(bootstrap, topic, partitions, record_bytes)
    return topic


def send(
    bootstrap: str, topic: str, partitions: int, record_bytes: int = 1, start: int = 0
) -> None:
    """Send as many records as a new topic has, to its partitions in turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for number in range(start, start + RECORDS):
        producer.produce(topic, str(number).ljust(record_bytes), partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0


def read_all(bootstrap: str, topic: str, count: int = RECORDS) -> list[int]:
    """Return the numbers of this many records, sorted."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
        }
    )
    partitions = partitions_of(consumer, topic)
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
    found: list[int] = []
    while len(found) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        found.append(int(message.value()))
    consumer.close()
    return sorted(found)
