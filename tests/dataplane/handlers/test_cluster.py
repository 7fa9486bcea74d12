"""Clusters of processes with third-party clients: acknowledged changes are kept."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as OtherTopicPartition

from metaquorum.runtime.system import real_runtime
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.clusters import Cluster
from tests.dataplane.serving import RawClient, batch_of, produce_message
from tests.nodes import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow  # nodes as processes

NewCluster = Callable[..., Cluster]


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[NewCluster]:
    made: list[Cluster] = []

    def make(**options: object) -> Cluster:
        made.append(Cluster(tmp_path / f"cluster{len(made)}", **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for cluster in made:
        cluster.kill()


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create(client: AdminClient, topic: str, partitions: int, timeout_s: float = PATIENCE_S) -> None:
    """Create a topic. Raises KafkaException if the creation is not acknowledged."""
    made = client.create_topics([NewTopic(topic, partitions, 1)], request_timeout=timeout_s)
    made[topic].result()


def leaders(client: AdminClient, topic: str) -> dict[int, int]:
    row = client.list_topics(topic, timeout=PATIENCE_S).topics[topic]
    return {number: partition.leader for number, partition in row.partitions.items()}


def produce(bootstrap: str, topic: str, values: list[bytes], **options: object) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **options})
    failed: list[KafkaError] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda e, _: e is not None and failed.append(e))
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def read(bootstrap: str, topic: str, partitions: int, count: int) -> Counter[bytes]:
    """Return the values in all partitions: at least `count`, and what more comes with them."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    values: Counter[bytes] = Counter()
    deadline = time.monotonic() + PATIENCE_S
    while values.total() < count and time.monotonic() < deadline:
        values.update(message.value() for message in consumer.consume(500, 0.2))
    values.update(message.value() for message in consumer.consume(500, 0.2))
    consumer.close()
    return values


def test_topics_made_through_any_worker_are_spread_and_reached_by_all_clients(
    new_cluster: NewCluster,
) -> None:
    cluster = new_cluster()
    cluster.start()
    for number in cluster.workers:
        client = admin(cluster[number].bootstrap)
        topic = f"through-{number}"
        wait_until(lambda at=client: len(at.list_topics(timeout=PATIENCE_S).brokers) == 3)  # type: ignore[misc]
        create(client, topic, 6)
        assert Counter(leaders(client, topic).values()) == {1: 2, 2: 2, 3: 2}  # visible at once
        values = [b"%d" % value for value in range(300)]
        produce(cluster.bootstrap, topic, values, **{"enable.idempotence": True})
        assert read(cluster[number].bootstrap, topic, 6, 300) == Counter(values)
        partitions = [OtherTopicPartition(topic, each) for each in range(6)]
        producer = KafkaProducer(bootstrap_servers=cluster[number].bootstrap)
        for partition in partitions:
            producer.send(topic, b"more", partition=partition.partition)
        producer.flush(PATIENCE_S)
        producer.close()
        consumer = KafkaConsumer(
            bootstrap_servers=cluster[number].bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=int(PATIENCE_S * 1000),
        )
        consumer.assign(partitions)
        found = Counter(message.value for message in islice(consumer, len(values) + 6))
        consumer.close()
        assert found == Counter(values) + Counter({b"more": 6})
    cluster.stop()


def test_what_is_acknowledged_while_controllers_are_killed_is_there_once(
    new_cluster: NewCluster,
) -> None:
    cluster = new_cluster(controllers=(1, 2, 3), workers=(4, 5))
    cluster.start()
    acknowledged: list[str] = []
    unknown: list[str] = []
    codes: set[int] = set()
    done = threading.Event()

    def keep_creating() -> None:
        client = admin(cluster[4].bootstrap)
        while not done.is_set():
            name = f"topic-{len(acknowledged) + len(unknown)}"
            try:
                create(client, name, 2, 5)
            except KafkaException as error:
                unknown.append(name)
                codes.add(error.args[0].code())
            else:
                acknowledged.append(name)

    creating = threading.Thread(target=keep_creating)
    creating.start()
    try:
        for _ in range(3):
            before = len(acknowledged)
            wait_until(lambda least=before: len(acknowledged) > least + 20)  # type: ignore[misc]
            active = cluster.active_controller()
            cluster[active].kill()
            before = len(acknowledged)
            wait_until(lambda least=before: len(acknowledged) > least + 20)  # type: ignore[misc]
            assert cluster.active_controller() != active
            cluster.start(active)
    finally:
        done.set()
        creating.join(PATIENCE_S)
    assert codes <= {KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT}
    other = admin(
        cluster[5].bootstrap
    )  # not the node that acknowledged: it learns of the last topics later
    wait_until(lambda: set(acknowledged) <= set(other.list_topics(timeout=PATIENCE_S).topics))
    topics = other.list_topics(timeout=PATIENCE_S).topics
    assert set(topics) <= {*acknowledged, *unknown}
    assert {len(topics[name].partitions) for name in acknowledged} == {2}
    cluster.stop()


def test_every_node_is_restarted_under_an_idempotent_producer(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.start()
    client = admin(cluster.bootstrap)
    create(client, "rolling", 6)
    values: list[bytes] = []
    done = threading.Event()
    failed: list[KafkaError] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0}
    )

    def keep_producing() -> None:
        while not done.is_set():
            values.append(b"%d" % len(values))
            producer.produce(
                "rolling", values[-1], on_delivery=lambda e, _: e is not None and failed.append(e)
            )
            producer.poll(0.002)

    producing = threading.Thread(target=keep_producing)
    producing.start()
    try:
        for number in cluster.workers:
            cluster[number].stop()
            create(admin(cluster[number % 3 + 1].bootstrap), f"without-{number}", 2)
            cluster[number].start()
    finally:
        done.set()
        producing.join(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []
    assert read(cluster.bootstrap, "rolling", 6, len(values)) == Counter(values)
    topics = client.list_topics(timeout=PATIENCE_S).topics
    assert {"rolling", "without-1", "without-2", "without-3"} <= set(topics)
    cluster.stop()


def test_a_worker_waits_for_the_quorum_and_serves_without_it(new_cluster: NewCluster) -> None:
    cluster = new_cluster(controllers=(1, 2, 3), workers=(4,))
    worker = cluster[4]
    starting = threading.Thread(target=worker.start)
    starting.start()
    wait_until(lambda: "waiting for an active" in worker.log())
    assert "2 at 127.0.0.1" in worker.log()
    cluster.start(*cluster.controllers)
    starting.join(PATIENCE_S)
    client = admin(worker.bootstrap)
    create(client, "led", 2)
    for number in cluster.controllers:
        cluster[number].kill()
    wait_until(lambda: "the quorum is unavailable" in worker.log())
    values = [b"%d" % value for value in range(100)]
    produce(worker.bootstrap, "led", values)
    assert read(worker.bootstrap, "led", 2, 100) == Counter(values)
    began = time.monotonic()
    with pytest.raises(KafkaException, match=r"REQUEST_TIMED_OUT|_TIMED_OUT"):
        create(client, "refused", 1, 2)
    assert time.monotonic() - began < PATIENCE_S / 2  # not for as long as the quorum is unavailable
    cluster.start(*cluster.controllers)
    wait_until(lambda: "the quorum is available again" in worker.log())
    create(client, "made", 1)
    wait_until(lambda: set(leaders(client, "led").values()) == {4})
    produce(worker.bootstrap, "led", values)
    told = re.findall(r"the quorum is (unavailable|available again)", worker.log())
    assert len(told) >= 2
    assert told == ["unavailable", "available again"] * (len(told) // 2)  # once each time
    cluster.stop()


def test_nodes_of_two_clusters_never_merge(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(controllers=(1,), workers=(1, 2))
    cluster.start(1)
    strange = tmp_path / "strange-secret"
    strange.touch(mode=0o600)
    strange.write_text("another secret than that of the cluster")
    for name, options in (
        ("id", {"cluster_id": "B" * 22}),
        ("secret", {"secret": strange}),
    ):
        stranger = cluster.node(tmp_path / name, 2, **options)  # type: ignore[arg-type]
        starting = threading.Thread(target=_start_in_vain, args=(stranger,))
        starting.start()
        try:
            wait_until(
                lambda at=stranger: "waiting for an active" in at.log()  # type: ignore[misc]
            )
            assert len(admin(cluster[1].bootstrap).list_topics(timeout=PATIENCE_S).brokers) == 1
        finally:
            stranger.stop()
            starting.join(PATIENCE_S)
    homeless = cluster.node(tmp_path / "homeless", 2, cluster_id=None)
    with pytest.raises(RuntimeError, match=r"ended with 2: .*--cluster-id"):
        homeless.start()
    cluster.start(2)
    wait_until(
        lambda: len(admin(cluster[1].bootstrap).list_topics(timeout=PATIENCE_S).brokers) == 2
    )
    cluster.stop()


def _start_in_vain(node: object) -> None:
    with pytest.raises((RuntimeError, TimeoutError)):
        node.start()  # type: ignore[attr-defined]


def test_who_asks_the_wrong_worker_is_told_who_leads(new_cluster: NewCluster) -> None:
    cluster = new_cluster(controllers=(1,), workers=(1, 2))
    cluster.start()
    create(admin(cluster.bootstrap), "t", 2)
    client = admin(cluster[1].bootstrap)
    # A node that did not acknowledge the creation may show the topic a moment later.
    wait_until(lambda: set(leaders(client, "t").values()) == {1, 2})
    led = {leader: number for number, leader in leaders(client, "t").items()}
    host, port = cluster[1].bootstrap.split(":")

    async def ask() -> None:
        connection = await real_runtime().network.connect(host, int(port))
        client = RawClient(connection)
        message = produce_message("t", batch_of(b"x"), partition=led[2])
        answer = await client.call(ApiKey.PRODUCE, message, 12)
        row = answer.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, 0)
        assert 2 in {endpoint.node_id for endpoint in answer.node_endpoints}
        connection.close()

    trio.run(ask)
    cluster.stop()
