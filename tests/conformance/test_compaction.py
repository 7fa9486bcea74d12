"""A compacted topic has the last value of each key, for all clients.

As in Kafka's LogCompactionTester: random puts and deletes during compaction; then the remaining
records are compared with those written.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random

import confluent_kafka
import pytest

from tests.conformance.clients import CLIENTS, CODECS, TIMEOUT_S, Client, Librdkafka, Record, Stored
from tests.conformance.clients import create as create_topic
from tests.conftest import KafkaTool
from tests.nodes import KafkaNode, Node, Peer, new_node, unique, wait_until

KEYS = 200
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "max.message.bytes": "100000",
}
SENT = {"enable_idempotence": True, "linger_ms": 5, "batch_num_messages": 100}


@pytest.fixture(scope="module")
def busy_cleaner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node | KafkaNode]:
    """Run one node for all tests, each of which has a topic of its own."""
    node = new_node(tmp_path_factory.mktemp("cleaner") / "node", {"log.cleaner.backoff.ms": 100})
    node.start()
    yield node
    node.stop()


def writes(random: Random, count: int) -> list[Record]:
    """Return puts and deletes, followed by records with separate keys."""
    made = []
    for number in range(count):
        key = b"key %d" % random.randrange(KEYS)
        value = None if random.random() < 0.2 else b"%d " % number + random.randbytes(900)
        made.append(Record(key, value, (("n", b"%d" % number),), 1_600_000_000_000 + number))
    return made


def read_all(bootstrap: str, topic: str) -> list[Stored]:
    """Read all records from the beginning to the end."""
    config = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(config | {"enable.auto.commit": False, "log_level": 2})
    found: list[Stored] = []
    try:
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)]
        )
        while (message := consumer.poll(TIMEOUT_S)) is not None:
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            headers = tuple(message.headers() or ())
            record = Record(message.key(), message.value(), headers, message.timestamp()[1])
            found.append(Stored(message.offset(), record))
    finally:
        consumer.close()
    raise AssertionError("the end was not reached")


def compacted(node: Node | KafkaNode, topic: str, sent: int) -> list[Stored]:
    """Return the remaining records when the cleaner has no more work."""
    before: list[Stored] = []

    def settled() -> list[Stored]:
        nonlocal before
        last, before = before, read_all(node.bootstrap, topic)
        return before if before == last and len(before) < sent // 2 else []

    wait_until(lambda: cleaned_to(node, topic) == active_segment(node, topic), what="compaction")
    return wait_until(settled, what="the end of compaction")


def cleaned_to(node: Node | KafkaNode, topic: str) -> int:
    """Return the cleaner's checkpoint of the partition; -1 if there is none yet."""
    try:
        text = (node.data_dir / "cleaner-offset-checkpoint").read_text()
    except FileNotFoundError:
        return -1
    return next((int(at) for at in re.findall(rf"^{topic} 0 (\d+)$", text, re.MULTILINE)), -1)


def active_segment(node: Node | KafkaNode, topic: str) -> int:
    """Return the first offset of the active segment, which is not cleaned."""
    return max(int(log.stem) for log in (node.data_dir / f"{topic}-0").glob("*.log"))


def table(records: Sequence[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records}


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_left_is_the_last_record_of_each_key(
    busy_cleaner: Node | KafkaNode, codec: str
) -> None:
    bootstrap = busy_cleaner.bootstrap
    topic = create_topic(bootstrap, unique("table"), config=COMPACTED)
    sent = writes(Random(codec), 6000)
    for start in range(0, len(sent), 1500):
        part = sent[start : start + 1500]
        offsets = Librdkafka().send(bootstrap, topic, part, codec, **SENT)
        assert offsets == list(range(start, start + len(part)))

    stored = compacted(busy_cleaner, topic, len(sent))
    assert [one.offset for one in stored] == sorted({one.offset for one in stored})
    assert all(sent[one.offset] == one.record for one in stored)
    assert table([one.record for one in stored]) == table(sent)
    last = {record.key: number for number, record in enumerate(sent)}
    assert set(last.values()) <= {one.offset for one in stored}


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_reads_over_the_gaps(busy_cleaner: Node | KafkaNode, client: Client) -> None:
    bootstrap = busy_cleaner.bootstrap
    topic = create_topic(bootstrap, unique("gaps"), config=COMPACTED)
    sent = writes(Random(1), 5000)
    Librdkafka().send(bootstrap, topic, sent, "zstd", **SENT)
    stored = compacted(busy_cleaner, topic, len(sent))
    assert client.read(bootstrap, topic, len(stored)) == stored
    gap = next(a.offset + 1 for a, b in pairwise(stored) if b.offset > a.offset + 1)
    behind = [one for one in stored if one.offset >= gap]
    assert client.read(bootstrap, topic, len(behind), gap) == behind


@pytest.mark.usefixtures("java")
def test_java_reads_a_compacted_topic(
    busy_cleaner: Node | KafkaNode, kafka_tool: KafkaTool
) -> None:
    bootstrap = busy_cleaner.bootstrap
    topic = create_topic(bootstrap, unique("java-table"), config=COMPACTED)
    Librdkafka().send(bootstrap, topic, writes(Random(2), 5000), "lz4", **SENT)
    stored = compacted(busy_cleaner, topic, 5000)
    done = kafka_tool(
        "console-consumer", "--bootstrap-server", bootstrap, "--topic", topic, "--partition", 0,
        "--offset", "earliest", "--max-messages", len(stored), "--timeout-ms", 170_000,
        "--formatter-property", "print.offset=true", "--formatter-property", "print.key=true",
        "--formatter-property", "print.value=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [f"Offset:{one.offset}\t{(one.record.key or b'').decode()}" for one in stored]
    assert done.stdout.splitlines() == lines


def test_a_record_without_a_key_is_refused(node: Peer) -> None:
    topic = create_topic(node.bootstrap, unique("keyless"), config=COMPACTED)
    failed: list[confluent_kafka.KafkaError] = []
    producer = Librdkafka().producer(node.bootstrap, compression_type="zstd")
    producer.produce(topic, b"value", None, 0, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert [error.code() for error in failed] == [confluent_kafka.KafkaError.INVALID_RECORD]


@pytest.mark.usefixtures("java")
def test_java_is_told_which_record_had_no_key(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = create_topic(node.bootstrap, unique("keyless"), config=COMPACTED)
    done = kafka_tool(
        "console-producer", "--bootstrap-server", node.bootstrap, "--topic", topic, stdin="value\n"
    )
    text = f"Compacted topic cannot accept message without key in topic partition {topic}-0"
    assert text in done.stdout + done.stderr


@pytest.mark.parametrize("codec", ["uncompressed", *CODECS[1:]])
def test_a_topic_with_a_codec_of_its_own_is_read_as_it_was_written(node: Peer, codec: str) -> None:
    topic = create_topic(node.bootstrap, unique("codec"), config={"compression.type": codec})
    sent = writes(Random(3), 50)
    for sent_as in CODECS:
        Librdkafka().send(node.bootstrap, topic, sent, sent_as)
    stored = Librdkafka().read(node.bootstrap, topic, 250)
    assert [one.record for one in stored] == sent * 5
