"""Three workers, some of them down: the output of mq-admin and of Kafka's tools."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cli.admin.test_main import Admin
from tests.clusters import Cluster
from tests.conftest import KafkaTool
from tests.nodes import PATIENCE_S, elsewhere, eventually, unique, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="starts clusters of our own")

RACKS = {1: "a", 2: "b", 3: "c"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Worker 1 is the only controller. Tests leave all workers running."""
    made = Cluster(
        tmp_path_factory.mktemp("cluster"),
        controllers=(1,),
        settings={
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        },
        racks=RACKS,
    )
    made.start()
    yield made
    made.stop()


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(MQ_BOOTSTRAP=cluster[1].bootstrap)


def create(cluster: Cluster, name: str, assignment: list[list[int]], **configs: str) -> str:
    client = AdminClient({"bootstrap.servers": cluster[1].bootstrap, "log_level": 0})
    texts = {key.replace("_", "."): value for key, value in configs.items()}
    new = NewTopic(name, len(assignment), replica_assignment=assignment, config=texts)
    client.create_topics([new])[name].result(PATIENCE_S)
    return name


def produce(cluster: Cluster, topic: str, count: int, **more: Any) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0} | more
    producer = Producer(settings)
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def in_sync(admin: Admin, topic: str) -> list[list[int]]:
    (described,) = admin.json("topics", "describe", topic, "--no-offsets")
    return [partition["isr"] for partition in described["partitions"]]


def test_what_is_missing_is_shown_by_us_and_by_kafkas_tool(
    cluster: Cluster, admin: Admin, kafka_tool: KafkaTool
) -> None:
    if others := [row["topic"] for row in admin.json("topics", "list")]:  # they count, too
        admin("topics", "delete", *others, "--yes")
        wait_until(lambda: admin.json("topics", "list") == [])
    whole = create(cluster, unique("whole"), [[1, 2, 3], [1, 3, 2]], min_insync_replicas="2")
    lone = create(cluster, unique("lone"), [[3]])
    produce(cluster, whole, 5)

    def all_is_well() -> None:
        health = admin.json("cluster", "health")
        assert (health["healthy"], health["live_workers"], health["offline"]) == (True, 3, 0)
        assert admin.json("topics", "list", "--unhealthy") == []

    eventually(all_is_well)
    cluster[3].kill()
    wait_until(lambda: in_sync(admin, whole) == [[1, 2], [1, 2]])
    produce(cluster, whole, 7)

    def one_is_missing() -> None:
        rows = {row["topic"]: row for row in admin.json("topics", "list", "--unhealthy")}
        assert rows[whole] == {
            "topic": whole,
            "partitions": 2,
            "offline": 0,
            "under_min_isr": 0,
            "at_min_isr": 2,
            "under_replicated": 2,
        }
        assert rows[lone]["offline"] == 1
        (described,) = admin.json("topics", "describe", whole, "--health")
        first = described["partitions"][0]
        assert first["troubles"] == ["at min ISR", "under-replicated"]
        (missing,) = first["missing"]
        assert missing["node"] == 3
        assert missing["why"].startswith("its worker is fenced: ")
        assert missing["lag"] == 7
        assert missing["since_ms_ago"] > 0
        text = admin("topics", "describe", whole, "--health")
        assert re.search(
            r"at min ISR, under-replicated +3: its worker is fenced: .*, 7 records", text
        )
        said = {one["about"]: one for one in admin.json("topics", "explain", whole)["sentences"]}
        assert said["now"]["level"] == "bad"
        assert "2 of 3 are in sync, and acks=all stops if one more fails" in said["now"]["text"]
        assert said["racks"]["level"] == "good"

    eventually(one_is_missing)
    cluster[2].kill()
    wait_until(lambda: in_sync(admin, whole) == [[1], [1]])

    def one_is_left() -> None:
        health = admin.json("cluster", "health")
        assert (health["healthy"], health["live_workers"]) == (False, 1)
        # As in Kafka, the ISR of a partition without a leader is empty.
        assert (health["offline"], health["under_min_isr"], health["under_replicated"]) == (1, 3, 3)

    eventually(one_is_left)
    admin("ledger")
    assert "worker 3 is fenced; its ledger is not shown" in admin.errors

    def told(option: str) -> list[str]:
        at = ["--bootstrap-server", cluster[1].bootstrap, "--describe", option]
        done = kafka_tool("topics", *at)
        assert done.returncode == 0, done.stderr
        return re.findall(r"Topic: (\S+)\s+Partition: \d+", done.stdout)

    def told_so() -> None:
        assert sorted(told("--under-replicated-partitions")) == sorted([whole, whole, lone])
        assert sorted(told("--under-min-isr-partitions")) == sorted([whole, whole, lone])
        assert told("--unavailable-partitions") == [lone]

    eventually(told_so)
    cluster.start(2, 3)
    wait_until(lambda: [sorted(isr) for isr in in_sync(admin, whole)] == [[1, 2, 3]] * 2)
    eventually(all_is_well)
    wait_until(lambda: told("--under-replicated-partitions") == [])


def test_one_that_is_eligible_leads_without_loss_where_nobody_is_in_sync(
    cluster: Cluster, admin: Admin, kafka_tool: KafkaTool
) -> None:
    """KIP-966: two workers are killed one after the other, and the first one returns first."""
    topic = create(cluster, unique("eligible"), [[2, 3]], min_insync_replicas="2")
    produce(cluster, topic, 50)

    def told() -> tuple[str, ...]:
        """Return leader, ISR, ELR and last known ELR."""
        at = ["--bootstrap-server", cluster[1].bootstrap, "--describe", "--topic", topic]
        done = kafka_tool("topics", *at)
        assert done.returncode == 0, done.stderr
        words = r"Leader: (\S+)\s.*\tIsr: (\S*)\s+Elr: (\S*)\s+LastKnownElr: (\S*)"
        (found,) = re.findall(words, done.stdout)
        return tuple(found)

    wait_until(lambda: told() == ("2", "2,3", "", ""))
    cluster[3].kill()
    wait_until(lambda: in_sync(admin, topic) == [[2]])
    wait_until(lambda: told() == ("2", "2", "3", ""))
    # No other replica has the record, so it is neither acknowledged nor read.
    produce(cluster, topic, 1, acks="1")
    assert values_at(cluster[1].bootstrap, topic, 50) == [b"%d" % number for number in range(50)]
    cluster[2].kill()
    wait_until(lambda: in_sync(admin, topic) == [[]])
    wait_until(lambda: told() == ("none", "", "2,3", "2"))
    said = {one["about"]: one for one in admin.json("topics", "explain", topic)["sentences"]}
    assert "2 or 3 becomes leader when it is back, and nothing acknowledged" in said["now"]["text"]
    text = admin("topics", "describe", topic, "--health")
    assert re.search(r"^ +0 .* offline, under min ISR, under-replicated +2, ?3 +2 ", text, re.M)

    cluster.start(3)
    wait_until(lambda: in_sync(admin, topic) == [[3]])
    wait_until(lambda: told() == ("3", "3", "2", ""))
    cluster.start(2)
    wait_until(lambda: sorted(in_sync(admin, topic)[0]) == [2, 3])
    wait_until(lambda: told()[2:] == ("", ""))
    produce(cluster, topic, 5)
    expected = [b"%d" % number for number in (*range(50), *range(5))]
    assert values_at(cluster[1].bootstrap, topic, 55) == expected
    assert admin.json("ledger", "--topic", topic) is not None


def test_a_topic_is_explained(cluster: Cluster, admin: Admin) -> None:
    name = create(cluster, unique("explained"), [[1, 2, 3]], min_insync_replicas="2")
    text = admin("topics", "explain", name)
    assert re.search(r"^\+ acks=all +A record acknowledged with acks=all", text, re.MULTILINE)
    assert re.search(r"^! hosts +All replicas of partition 0 are on one host", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 96
    admin("topics", "explain", "no-such", code=1)


# Fetching from the nearest replica (KIP-392). The leader redirects such consumers.


def test_librdkafka_reads_from_the_replica_in_its_rack(cluster: Cluster) -> None:
    topic = create(cluster, unique("near"), [[1, 2, 3]])
    produce(cluster, topic, 20)
    read_from: list[int] = []

    def note(statistics: str) -> None:
        partitions = json.loads(statistics)["topics"].get(topic, {}).get("partitions", {})
        if "0" in partitions:
            read_from.append(partitions["0"]["broker"])

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "client.rack": "b",
            "statistics.interval.ms": 50,
            "stats_cb": note,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen: list[bytes | None] = []

        def read_all(count: int) -> bool:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                seen.append(message.value())
            return len(seen) >= count and read_from[-1:] == [2]

        wait_until(lambda: read_all(20))
        produce(cluster, topic, 20)
        wait_until(lambda: read_all(40))
        assert seen == [b"%d" % number for number in range(20)] * 2
    finally:
        consumer.close()


def test_java_reads_from_the_replica_in_its_rack(cluster: Cluster, kafka_tool: KafkaTool) -> None:
    topic = create(cluster, unique("near"), [[1, 2, 3]])
    produce(cluster, topic, 20)
    at = ["--bootstrap-server", cluster[1].bootstrap, "--topic", topic, "--partition", 0]
    at += ["--offset", 0, "--max-messages", 20, "--timeout-ms", 180_000]
    at += ["--command-property", "client.rack=c"]
    done = kafka_tool("console-consumer", *at)
    assert done.stdout.split() == [str(number) for number in range(20)], done.stderr


# Recreated topics (R10)


def values_at(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """Read the first records of partition 0, and check that there are no more."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes | None] = []
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, found
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                assert len(found) == count
                return found
            found.append(message.value())
    finally:
        consumer.close()


def test_a_worker_that_was_down_serves_nothing_of_the_topic_before(
    cluster: Cluster, admin: Admin
) -> None:
    topic, other = unique("again"), unique("gone")
    create(cluster, topic, [[3, 1, 2]])
    create(cluster, other, [[3, 1, 2]])
    produce(cluster, topic, 30)
    produce(cluster, other, 30)
    cluster[3].kill()
    admin("topics", "delete", topic, other, "--yes")
    create(cluster, topic, [[3, 1, 2]])
    produce(cluster, topic, 5)
    cluster[3].start()
    wait_until(lambda: [sorted(isr) for isr in in_sync(admin, topic)] == [[1, 2, 3]])
    data = cluster[3].data_dir
    strays = [path.name for path in data.glob("*-stray")]
    assert sorted(name.rpartition(".")[0] for name in strays) == sorted(
        [f"{topic}-0", f"{other}-0"]
    )
    assert not (data / f"{other}-0").exists()
    # Now it is the leader, and its log is the log of the partition.
    client = AdminClient({"bootstrap.servers": cluster[1].bootstrap, "log_level": 0})
    client.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(PATIENCE_S)
    wait_until(lambda: admin.json("topics", "describe", topic)[0]["partitions"][0]["leader"] == 3)

    def ends_where_it_should() -> None:
        (described,) = admin.json("topics", "describe", topic)
        (partition,) = described["partitions"]
        assert (partition["start_offset"], partition["end_offset"]) == (0, 5)

    eventually(ends_where_it_should)
    assert values_at(cluster.bootstrap, topic, 5) == [b"%d" % number for number in range(5)]


def test_a_topic_that_is_made_again_at_once_is_another_one_everywhere(
    cluster: Cluster, admin: Admin
) -> None:
    """While followers fetch and a producer sends."""
    topic = unique("fast")
    for attempt in range(3):
        create(cluster, topic, [[1 + attempt % 3, 1 + (attempt + 1) % 3, 1 + (attempt + 2) % 3]])
        produce(cluster, topic, 4 + attempt)
        assert len(values_at(cluster.bootstrap, topic, 4 + attempt)) == 4 + attempt
        if attempt < 2:
            admin("topics", "delete", topic, "--yes")
    folders = [cluster[number].data_dir / f"{topic}-0" for number in (1, 2, 3)]

    def all_hold_the_last_one() -> bool:
        files = [folder / "partition.metadata" for folder in folders]
        return all(map(Path.exists, files)) and len({file.read_text() for file in files}) == 1

    wait_until(all_hold_the_last_one)
