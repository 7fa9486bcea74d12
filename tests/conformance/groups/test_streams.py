"""Kafka Streams: two instances of its word count share a group and its internal topics.

The example is Kafka's own WordCountDemo with the classic protocol, at least once and exactly
once.
"""

import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    KafkaException,
    TopicPartition,
)

from tests.conformance.clients import Librdkafka, Record, admin, create
from tests.conformance.groups.peers import ThreeNodes, coordinator_node
from tests.conformance.groups.test_java_tools import committed
from tests.nodes import KAFKA, PATIENCE_S, Peer, skip_without, unique, wait_until

DEMO = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
INPUT, OUTPUT = "streams-plaintext-input", "streams-wordcount-output"
PARTITIONS = 4
LINES = 50
SETTINGS = {
    "commit.interval.ms": 200,
    "session.timeout.ms": 3000,
    "heartbeat.interval.ms": 300,
    "group.protocol": "classic",
}
EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2", "replication.factor": 3}
Start = Callable[..., "subprocess.Popen[bytes]"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("streams")]


@pytest.fixture(scope="session")
def streams(java: None) -> None:
    done = subprocess.run([KAFKA / "install", "streams"], capture_output=True, text=True)
    if done.returncode:
        skip_without(f"Kafka Streams cannot be downloaded: {done.stderr[-300:]}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as ended:

        def run(bootstrap: str, group: str, **more: object) -> "subprocess.Popen[bytes]":
            folder = tmp_path / unique("instance")
            folder.mkdir()
            named = {"bootstrap.servers": bootstrap, "application.id": group}
            settings = {**SETTINGS, **more, **named, "state.dir": folder / "state"}
            config = folder / "streams.properties"
            config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(
                    [KAFKA / "tool", DEMO, config], stdout=log, stderr=subprocess.STDOUT
                )  # `exec`s java
            ended.callback(kill, process)
            return process

        yield run


def kill(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)


class Counts:
    """The last count of each word."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 2}
        self._consumer = Consumer({**settings, "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(OUTPUT, 0, OFFSET_BEGINNING)])
        self._last: dict[str, int] = {}
        self.all: Counter[tuple[str, int]] = Counter()  # each count as it was read

    def read(self) -> dict[str, int]:
        for message in self._consumer.consume(1000, 0.1):
            if message.error() is None:
                key, value = message.key(), message.value()
                assert isinstance(key, bytes)
                assert isinstance(value, bytes)
                self._last[key.decode()] = int.from_bytes(value, "big")
                self.all[key.decode(), self._last[key.decode()]] += 1
        return self._last

    def end(self, topic: str, partition: int) -> int:
        offsets = self._consumer.get_watermark_offsets(TopicPartition(topic, partition))
        assert offsets is not None
        return int(offsets[1])

    def close(self) -> None:
        self._consumer.close()


def live_members(bootstrap: str, group: str) -> int:
    """Return how many members have partitions; 0 during a rebalance, or without a coordinator."""
    asked = admin(bootstrap).describe_consumer_groups([group])[group]
    try:
        described = asked.result(PATIENCE_S)
    except KafkaException:
        return 0
    if described.state != ConsumerGroupState.STABLE:
        return 0
    return sum(bool(each.assignment.topic_partitions) for each in described.members)


def send(bootstrap: str, number: int) -> Counter[str]:
    """Send lines of words to each partition; return how often each word occurs."""
    lines = [f"word{n % 7} Round{number} twice twice" for n in range(LINES)]
    for index in range(PARTITIONS):
        records = [Record(None, line.encode()) for line in lines]
        Librdkafka().send(bootstrap, INPUT, records, "none", index)
    words = Counter(word.lower() for line in lines for word in line.split())
    return Counter({word: count * PARTITIONS for word, count in words.items()})


def test_counts_go_on_when_an_instance_is_killed(peer: Peer, start: Start) -> None:
    group = unique("streams")
    create(peer.bootstrap, INPUT, PARTITIONS)
    create(peer.bootstrap, OUTPUT)
    counts = Counts(peer.bootstrap)
    try:
        first, _ = start(peer.bootstrap, group), start(peer.bootstrap, group)
        wait_until(
            lambda: live_members(peer.bootstrap, group) == 2, what="two members with partitions"
        )
        sent = send(peer.bootstrap, 1)
        wait_until(lambda: counts.read() == sent, what=f"counts {sent}")

        def is_all_committed() -> bool:
            offsets = committed(peer, group)
            ends = {place: counts.end(*place) for place in offsets}
            return len(offsets) > PARTITIONS and offsets == ends

        wait_until(is_all_committed, what="commits of all records")
        kill(first)
        wait_until(lambda: live_members(peer.bootstrap, group) == 1, what="one member")
        sent += send(peer.bootstrap, 2)
        wait_until(lambda: counts.read() == sent, what=f"counts {sent}")
    finally:
        counts.close()


def test_words_are_counted_exactly_once(three_nodes: ThreeNodes, start: Start) -> None:
    """With a kill of an instance and of the node that coordinates the group.

    Commits are rare enough for a kill to leave a transaction; each count of a word is read once.
    """
    group = unique("streams")
    bootstrap = ",".join(three_nodes.addresses)
    create(bootstrap, INPUT, PARTITIONS, replicas=3)
    create(bootstrap, OUTPUT, replicas=3)
    counts = Counts(bootstrap)
    settings: dict[str, object] = {
        **EXACTLY_ONCE,
        "transaction.timeout.ms": 10_000,
        "statestore.cache.max.bytes": 0,  # each record is a count
    }
    try:
        first, _ = (start(bootstrap, group, **settings) for _ in range(2))
        wait_until(lambda: live_members(bootstrap, group) == 2, what="two members")
        sent = send(bootstrap, 1)
        wait_until(lambda: counts.read() == sent, what=f"counts {sent}")
        sent += send(bootstrap, 2)
        kill(first)
        wait_until(lambda: counts.read() == sent, what=f"counts {sent}")
        start(bootstrap, group, **settings)
        wait_until(lambda: live_members(bootstrap, group) == 2, what="two members again")
        killed = coordinator_node(three_nodes, group)
        sent += send(bootstrap, 3)
        three_nodes.kill(killed)
        wait_until(lambda: counts.read() == sent, what=f"counts {sent}")
        three_nodes.restart(killed)
        sent += send(bootstrap, 4)
        wait_until(lambda: counts.read() == sent, what=f"counts {sent}")
        assert counts.all == {
            (word, n): 1 for word, count in sent.items() for n in range(1, count + 1)
        }
    finally:
        counts.close()
