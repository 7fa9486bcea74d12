"""Acknowledged records exist after a restart, once and in order, for any end of the node."""

import struct
from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import NewTopic

from tests.conformance.clients import (
    CLIENTS,
    TIMEOUT_S,
    Client,
    Librdkafka,
    Record,
    admin,
    create,
    reconnected,
)
from tests.conftest import NewNode
from tests.nodes import KafkaNode, Node, wait_until

End = Callable[[Node | KafkaNode], None]
ENDS: dict[str, End] = {"SIGTERM": lambda node: node.stop(), "SIGKILL": lambda node: node.kill()}
PARTITIONS = 3


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest) -> End:
    return ENDS[request.param]


class Stream:
    """Numbered records without pause, and the list of acknowledged ones."""

    def __init__(self, bootstrap: str, topic: str, **config: object) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged: list[tuple[int, int, int]] = []  # partition, offset, number
        self.failed: list[str] = []
        self.producer = Librdkafka().producer(
            bootstrap,
            acks="all",
            linger_ms=1,
            delivery_timeout_ms=600_000,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100,
            retry_backoff_ms=20,
            **config,
        )

    def _note(self, error: object, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        (number,) = struct.unpack_from(">q", message.value())
        self.acknowledged.append((message.partition(), message.offset(), number))

    def run_until_acknowledged(self, count: int) -> None:
        """Wait until at least `count` records are acknowledged and more are being sent."""
        while len(self.acknowledged) < count:
            assert not self.failed, self.failed[:3]
            if len(self.producer) < 2_000:
                value = struct.pack(">q", self.sent) + bytes(92)
                partition = self.sent % PARTITIONS
                self.producer.produce(self.topic, value, None, partition, on_delivery=self._note)
                self.sent += 1
                self.producer.poll(0)
            else:
                self.producer.poll(0.01)

    def finish(self) -> None:
        assert self.producer.flush(TIMEOUT_S) == 0
        assert self.failed == []
        assert len(self.acknowledged) == self.sent


def stored_numbers(bootstrap: str, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Return (offset, number) of all records of each partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    found: dict[int, list[tuple[int, int]]] = {p: [] for p in range(PARTITIONS)}
    ended = set()
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        while len(ended) < PARTITIONS:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, "reading back stalled"
            if message.error():
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                ended.add(message.partition())
            else:
                (number,) = struct.unpack_from(">q", message.value())
                found[message.partition()].append((message.offset(), number))
    finally:
        consumer.close()
    return found


def test_idempotent_stream_survives_once_and_in_order(start_node: NewNode, end: End) -> None:
    node = start_node()
    create(node.bootstrap, "stream", PARTITIONS)
    stream = Stream(node.bootstrap, "stream", enable_idempotence=True)
    for target in (5_000, 15_000):
        stream.run_until_acknowledged(target)
        end(node)
        node.start()
    stream.run_until_acknowledged(25_000)
    stream.finish()
    found = stored_numbers(node.bootstrap, "stream")
    for partition, rows in found.items():
        assert [offset for offset, _ in rows] == list(range(len(rows)))
        assert [number for _, number in rows] == list(range(partition, stream.sent, PARTITIONS))
    acknowledged = {(p, offset): number for p, offset, number in stream.acknowledged if offset >= 0}
    stored = {(p, offset): number for p, rows in found.items() for offset, number in rows}
    assert acknowledged.items() <= stored.items()


def test_a_plain_stream_loses_nothing(start_node: NewNode, end: End) -> None:
    node = start_node()
    create(node.bootstrap, "stream", PARTITIONS)
    stream = Stream(
        node.bootstrap,
        "stream",
        enable_idempotence=False,
        max_in_flight_requests_per_connection=1,
        retries=1000,
    )
    stream.run_until_acknowledged(5_000)
    end(node)
    node.start()
    stream.run_until_acknowledged(10_000)
    stream.finish()
    for partition, rows in stored_numbers(node.bootstrap, "stream").items():
        once = list(dict.fromkeys(number for _, number in rows))
        assert once == list(range(partition, stream.sent, PARTITIONS))


def test_topics_and_cluster_id_survive(start_node: NewNode, end: End) -> None:
    node = start_node()

    def seen() -> tuple[str, dict[str, str], dict[str, list[int]]]:
        client = reconnected(node.bootstrap)
        cluster = client.list_topics(timeout=TIMEOUT_S)
        topics = client.describe_topics(TopicCollection(list(cluster.topics)))
        ids = {name: str(one.result(TIMEOUT_S).topic_id) for name, one in topics.items()}
        return cluster.cluster_id, ids, {t: list(v.partitions) for t, v in cluster.topics.items()}

    client = admin(node.bootstrap)
    for i in range(20):
        new = [NewTopic(f"topic-{i}-{k}", i % 3 + 1, 1) for k in range(2)]
        for answer in client.create_topics(new).values():
            answer.result(TIMEOUT_S)
    for answer in client.delete_topics(["topic-3-0", "topic-7-1"]).values():
        answer.result(TIMEOUT_S)
    kept = {f"topic-{i}-{k}" for i in range(20) for k in range(2)} - {"topic-3-0", "topic-7-1"}
    wait_until(lambda: set(client.list_topics(timeout=TIMEOUT_S).topics) == kept)
    before = seen()
    assert all(before[2].values())
    for _ in range(2):
        end(node)
        node.start()
        wait_until(lambda: seen() == before)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_client_reads_on_after_a_restart(start_node: NewNode, client: Client) -> None:
    node = start_node()
    create(node.bootstrap, "topic")
    records = [Record(b"%d" % i, b"v" * 100, (), 1_600_000_000_000 + i) for i in range(200)]
    for codec in ("none", "lz4"):
        client.send(node.bootstrap, "topic", records, codec)
    node.stop()
    node.start()
    client.send(node.bootstrap, "topic", records, "zstd")
    stored = client.read(node.bootstrap, "topic", 600)
    assert [one.record for one in stored] == records * 3
    assert [one.offset for one in stored] == list(range(600))
