"""Partitions move between three nodes, as Kafka's kafka-reassign-partitions asks for it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient
from kafka import TopicPartition as OtherTopicPartition

from tests.clusters import Cluster
from tests.conftest import KafkaTool
from tests.nodes import PATIENCE_S, elsewhere, unique, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="starts clusters of our own")

RECORDS = 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    made.start()
    yield made
    made.stop()


def plan_file(folder: Path, topic: str, *targets: list[int]) -> str:
    rows = [
        {"topic": topic, "partition": number, "replicas": target, "log_dirs": ["any"] * len(target)}
        for number, target in enumerate(targets)
    ]
    path = folder / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(path)


def filled(cluster: Cluster, partitions: int, replicas: list[int]) -> str:
    """Return the name of a new topic with records; all partitions have these replicas."""
    topic = unique("moved")
    admin = AdminClient({"bootstrap.servers": cluster[1].bootstrap, "log_level": 0})
    new = NewTopic(topic, partitions, replica_assignment=[replicas] * partitions)
    admin.create_topics([new])[topic].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": cluster[1].bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(topic, str(number), partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0
    return topic


def read(cluster: Cluster, topic: str) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster[1].bootstrap,
            "group.id": unique("reader"),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[int] = []
    while len(found) < RECORDS:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        found.append(int(message.value()))
    consumer.close()
    return sorted(found)


def replicas(cluster: Cluster, topic: str) -> dict[int, tuple[list[int], list[int]]]:
    admin = AdminClient({"bootstrap.servers": cluster[1].bootstrap, "log_level": 0})
    found: Any = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return {number: (one.replicas, sorted(one.isrs)) for number, one in found.items()}


def test_a_plan_is_generated_executed_and_verified(
    cluster: Cluster, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    topic = filled(cluster, 2, [1, 2])
    at = ("--bootstrap-server", cluster[2].bootstrap)
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    generated = kafka_tool(
        "reassign-partitions", *at, "--generate", "--broker-list", "1,2,3",
        "--topics-to-move-json-file", str(topics),
    )  # fmt: skip
    assert "Proposed partition reassignment configuration" in generated.stdout, generated
    plan = plan_file(tmp_path, topic, [3, 2], [3, 1])
    executed = kafka_tool("reassign-partitions", *at, "--execute", "--reassignment-json-file", plan)
    started = f"Successfully started partition reassignments for {topic}-0,{topic}-1"
    assert started in executed.stdout, executed

    def verified() -> bool:
        told = kafka_tool("reassign-partitions", *at, "--verify", "--reassignment-json-file", plan)
        assert told.returncode == 0, told
        return all(
            f"Reassignment of partition {topic}-{n} is completed." in told.stdout for n in (0, 1)
        )

    wait_until(verified)
    assert replicas(cluster, topic) == {0: ([3, 2], [2, 3]), 1: ([3, 1], [1, 3])}
    assert read(cluster, topic) == list(range(RECORDS))
    listed = kafka_tool("reassign-partitions", *at, "--list")
    assert "No partition reassignments found." in listed.stdout, listed


def test_a_move_to_a_worker_that_is_down_is_listed_and_can_be_cancelled(
    cluster: Cluster, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    topic = filled(cluster, 1, [1, 2])
    at = ("--bootstrap-server", cluster[1].bootstrap)
    cluster[3].kill()
    plan = plan_file(tmp_path, topic, [3, 2])
    arguments = ("reassign-partitions", *at, "--reassignment-json-file", plan)
    other = KafkaAdminClient(bootstrap_servers=cluster[1].bootstrap)
    moved = OtherTopicPartition(topic, 0)
    # Kafka's tool asks for no worker that is fenced; other clients do.
    assert other.alter_partition_reassignments({moved: [3, 2]}) == {moved: None}
    other.close()
    listed = kafka_tool("reassign-partitions", *at, "--list").stdout
    assert re.search(rf"{topic}-0: replicas: 3,2,1. adding: 3. removing: 1.", listed), listed
    verified = kafka_tool(*arguments, "--verify").stdout
    assert f"Reassignment of partition {topic}-0 is still in progress." in verified, verified
    # It would wait for the worker that is down, to remove its throttles.
    cancelled = kafka_tool(*arguments, "--cancel", "--preserve-throttles")
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in cancelled.stdout
    assert replicas(cluster, topic) == {0: ([2, 1], [1, 2])}
    assert (
        "No partition reassignments found."
        in kafka_tool("reassign-partitions", *at, "--list").stdout
    )
    cluster[3].start()
    assert read(cluster, topic) == list(range(RECORDS))


def test_the_replication_factor_changes_in_both_directions(
    cluster: Cluster, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    topic = filled(cluster, 1, [1])
    at = ("--bootstrap-server", cluster[1].bootstrap)
    for target in ([2, 1, 3], [3]):
        plan = plan_file(tmp_path, topic, target)
        arguments = ("reassign-partitions", *at, "--reassignment-json-file", plan)
        refused = kafka_tool(*arguments, "--execute", "--disallow-replication-factor-change")
        assert "The replication factor is changed" in refused.stdout + refused.stderr, refused
        executed = kafka_tool(*arguments, "--execute")
        assert "Successfully started partition reassignment" in executed.stdout, executed
        wait_until(lambda to=target: replicas(cluster, topic) == {0: (to, sorted(to))})
        assert read(cluster, topic) == list(range(RECORDS))
