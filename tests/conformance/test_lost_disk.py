"""One of three nodes is killed and loses its logs, or all its data, while a client produces."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clusters import Cluster
from tests.nodes import PATIENCE_S, elsewhere, unique, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="starts clusters of our own")

PARTITIONS = 6
PAUSE_S = 0.002  # between two records


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests here, which leave all nodes running."""
    made = Cluster(tmp_path_factory.mktemp("lost-disk"))
    made.start()
    yield made
    made.stop()


@contextmanager
def producing(bootstrap: str, topic: str) -> Iterator[set[bytes]]:
    """Produce while the block runs. Yields the records acknowledged with acks=all."""
    acknowledged: set[bytes] = set()
    over = threading.Event()

    def noted(error: object, message: object) -> None:
        assert error is None, error
        acknowledged.add(message.value())  # type: ignore[attr-defined]

    def produce() -> None:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        number = 0
        while not over.wait(PAUSE_S):
            value = b"%d" % number
            producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=noted)
            producer.poll(0)
            number += 1
        assert producer.flush(PATIENCE_S) == 0

    task = threading.Thread(target=produce)
    task.start()
    try:
        yield acknowledged
    finally:
        over.set()
        task.join()


def isr_sizes(bootstrap: str, topic: str) -> list[int]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    described = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic]
    return [len(each.isrs) for each in described.partitions.values()]


def values(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[bytes] = []

    def read() -> bool:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None
            found.append(message.value())
        return len(found) >= count

    wait_until(read, what="all records")
    consumer.close()
    return found


def remove_logs(data_dir: Path) -> None:
    for folder in data_dir.glob(f"*-[0-{PARTITIONS - 1}]"):
        shutil.rmtree(folder)


@pytest.mark.parametrize("lose", [remove_logs, shutil.rmtree], ids=["logs", "everything"])
def test_nothing_acknowledged_is_lost_and_the_node_is_filled_again(
    cluster: Cluster, lose: object
) -> None:
    topic = unique("lost")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    configs = {"min.insync.replicas": "2"}
    admin.create_topics([NewTopic(topic, PARTITIONS, 3, config=configs)])[topic].result()
    with producing(cluster.bootstrap, topic) as acknowledged:
        wait_until(lambda: len(acknowledged) > 100, what="records before")
        cluster[3].kill()
        lose(cluster[3].data_dir)  # type: ignore[operator]
        before = len(acknowledged)
        wait_until(lambda: len(acknowledged) > before + 100, what="records without it")
        cluster[3].start()
        wait_until(lambda: isr_sizes(cluster.bootstrap, topic) == [3] * PARTITIONS, what="the ISRs")
    sizes = [
        sum(log.stat().st_size for log in cluster[3].data_dir.glob(f"{topic}-{number}/*.log"))
        for number in range(PARTITIONS)
    ]
    assert all(sizes)
    cluster[1].kill()  # other nodes lead its partitions
    try:
        found = values(cluster[3].bootstrap, topic, len(acknowledged))
        assert len(found) == len(set(found))
        assert acknowledged <= set(found)
    finally:
        cluster[1].start()
        wait_until(lambda: isr_sizes(cluster.bootstrap, topic) == [3] * PARTITIONS, what="the ISRs")
