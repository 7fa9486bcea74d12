"""MirrorMaker 2 copies topics between a node and Apache Kafka, both ways at the same time."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from tests.conformance.clients import Librdkafka, Record, admin, create
from tests.nodes import KAFKA, PATIENCE_S, Peer, elsewhere, unique, wait_until

EACH = 200  # records of a topic before MirrorMaker is killed, and again after
READ = 50  # records that a group has read
RETENTION = {"retention.ms": "7200000", "cleanup.policy": "compact,delete", "preallocate": "false"}
SETTINGS = {
    "refresh.topics.interval.seconds": 1,
    "refresh.groups.interval.seconds": 1,
    "sync.topic.configs.interval.seconds": 1,
    "emit.checkpoints.interval.seconds": 1,
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": 1,
    "offset.lag.max": 0,  # the copy's offset is known for each record
    "replication.factor": 1,
    **{
        f"{topic}.replication.factor": 1
        for topic in (
            "checkpoints.topic", "heartbeats.topic", "offset-syncs.topic",
            "offset.storage", "status.storage", "config.storage",
        )
    },
    "scheduled.rebalance.max.delay.ms": 500,
    "session.timeout.ms": 6000,
}  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(elsewhere()), reason="needs a node and Apache Kafka"),
]


@contextmanager
def mirror_maker(
    folder: Path, clusters: dict[str, Peer], topics: str
) -> Iterator[Callable[[], None]]:
    """Run MirrorMaker between two clusters; the value kills it, and starts another."""
    settings: dict[str, object] = {"clusters": ",".join(clusters), **SETTINGS}
    for name, peer in clusters.items():
        settings[f"{name}.bootstrap.servers"] = peer.bootstrap
        settings[f"{name}.exactly.once.source.support"] = "enabled"
        other = next(each for each in clusters if each != name)
        settings |= {f"{name}->{other}.enabled": "true", f"{name}->{other}.topics": topics}
        settings |= {f"{name}->{other}.groups": topics}
    config, log = folder / "mm2.properties", folder / "mm2.log"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    running: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with log.open("ab") as out:
            command = [KAFKA / "tool", "connect-mirror-maker", config]  # `exec`s java
            running.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT))

    def kill() -> None:
        running[-1].send_signal(signal.SIGKILL)
        running[-1].wait(PATIENCE_S)

    def again() -> None:
        kill()
        start()

    start()
    try:
        yield again
    finally:
        kill()


def numbered(topic: str, numbers: range) -> list[Record]:
    return [
        Record(b"key %d" % number, f"{topic} {number}".encode(), (("n", b"%d" % number),))
        for number in numbers
    ]


def test_topics_groups_and_configs_are_copied_both_ways_once_under_kills(
    node: Peer, kafka: Peer, tmp_path: Path
) -> None:
    clusters = {"ours": node, "theirs": kafka}
    prefix = unique("mirrored")
    client = Librdkafka()
    sent: dict[str, list[Record]] = {}
    for name, peer in clusters.items():
        topic = create(peer.bootstrap, f"{prefix}-{name}", 1, RETENTION)
        sent[name] = numbered(topic, range(EACH))
        client.send(peer.bootstrap, topic, sent[name], "lz4")
        commit(peer, prefix, TopicPartition(topic, 0, READ))

    with mirror_maker(tmp_path, clusters, f"{prefix}.*") as kill_and_start:
        for name in clusters:
            copied_records(clusters, name, prefix, EACH)
        kill_and_start()
        for name, peer in clusters.items():
            more = numbered(f"{prefix}-{name}", range(EACH, 2 * EACH))
            client.send(peer.bootstrap, f"{prefix}-{name}", more, "zstd")
            sent[name] += more
        for name in clusters:
            copied = copied_records(clusters, name, prefix, 2 * EACH)
            assert copied == sent[name]
            target, copy = copy_of(clusters, name, prefix)
            # MirrorMaker knows the copies of some offsets only: a position is never behind its own.
            read = wait_until(partial(copied_position, target, prefix, copy))
            following = client.read(target.bootstrap, copy, 1, start=read)
            assert 0 < int(following[0].record.headers[0][1] or b"") <= READ
            assert configs(target, copy) == RETENTION


def commit(peer: Peer, group: str, position: TopicPartition) -> None:
    """Commit the position, when the coordinator of the group has loaded its partition."""
    consumer = Consumer({"bootstrap.servers": peer.bootstrap, "group.id": group})

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=[position], asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            return False
        return True

    try:
        wait_until(is_committed, what=f"a commit to {peer.bootstrap}")
    finally:
        consumer.close()


def copied_position(peer: Peer, group: str, topic: str) -> int:
    """Return the committed offset; 0 as long as there is none."""
    consumer = Consumer({"bootstrap.servers": peer.bootstrap, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)[0]
    finally:
        consumer.close()
    return max(0, int(found.offset))


def copy_of(clusters: dict[str, Peer], source: str, prefix: str) -> tuple[Peer, str]:
    """Return the cluster with the copy of the source's topic, and its name there."""
    return clusters["theirs" if source == "ours" else "ours"], f"{source}.{prefix}-{source}"


def copied_records(clusters: dict[str, Peer], source: str, prefix: str, count: int) -> list[Record]:
    """Return the first `count` copied records, without their timestamps."""
    target, topic = copy_of(clusters, source, prefix)
    known = admin(target.bootstrap)
    wait_until(lambda: topic in known.list_topics(timeout=PATIENCE_S).topics, what=topic)
    stored = Librdkafka().read(target.bootstrap, topic, count)
    return [Record(one.record.key, one.record.value, one.record.headers) for one in stored]


def configs(peer: Peer, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin(peer.bootstrap).describe_configs([resource])[resource].result(PATIENCE_S)
    return {key: found[key].value for key in RETENTION}
