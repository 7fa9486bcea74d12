"""A data directory of commit 8291db4, the version before moves, opens, and its partitions move.

`capture_transactions` made it.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.cli.admin.running import Admin
from tests.clusters import Cluster
from tests.compatibility.records import read_all
from tests.nodes import elsewhere, wait_until

GOLDEN = Path(__file__).parent / "8291db4"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
TOPICS = ("orders",)
PARTITIONS = {"orders": 2, "__consumer_offsets": 1, "__transaction_state": 1}

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="no other cluster has this directory")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Run node 1 on the data directory and another one, and worker 2, which is new."""
    first = tmp_path / "node1"
    cluster = Cluster(tmp_path, (1,), (1, 2))
    with tarfile.open(GOLDEN / "data.tar.gz") as archive:
        archive.extractall(first, filter="data")
    cluster[1].configure({"log.dirs": f"{first}/data,{first}/another"}, "--host", "machine-1")
    cluster[2].configure({}, "--host", "machine-2")
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


def features(admin: Admin) -> dict[str, int]:
    return dict(admin.json("cluster", "describe")["features"])


def assert_all_is_kept(bootstrap: str) -> None:
    assert read_all(bootstrap, topics=TOPICS) == EXPECTED["records"]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    (row,) = consumer.committed([TopicPartition("orders", 0)], 60)
    consumer.close()
    assert row.offset == EXPECTED["committed"]


def replicas(admin: Admin) -> dict[str, list[Any]]:
    described = admin.json("topics", "describe", *PARTITIONS)
    return {row["topic"]: [each["replicas"] for each in row["partitions"]] for row in described}


def test_partitions_of_an_earlier_version_move_once_the_level_is_raised(
    cluster: Cluster, tmp_path: Path
) -> None:
    admin, plan = Admin(MQ_BOOTSTRAP=cluster.bootstrap), tmp_path / "plan.json"
    assert features(admin) == EXPECTED["features"]
    assert EXPECTED["features"]["metadata.version"] == 3
    assert_all_is_kept(cluster.bootstrap)

    # Between the disks of one worker a replica moves at every level.
    admin("log-dirs", "--node", 1, "--move", "orders-0", "--to", tmp_path / "node1" / "another")
    moved = tmp_path / "node1" / "another" / "orders-0"
    wait_until(lambda: moved.exists() and not (tmp_path / "node1" / "data" / "orders-0").exists())

    words = ["--drain", 1, "--measure-seconds", 0, "--no-throttle", "--plan-file", plan]
    admin("moves", "plan", *words)
    for refused in (["moves", "start", plan], ["workers", "drain", 1], ["moves", "pause", 1]):
        admin(*refused, code=1)
        assert "mq-admin cluster upgrade metadata.version=4" in admin.errors
    admin("cluster", "upgrade", "metadata.version=4")
    admin("moves", "start", plan)
    target = {topic: [[2]] * count for topic, count in PARTITIONS.items()}
    wait_until(lambda: replicas(admin) == target, what="all partitions on worker 2")
    wait_until(lambda: not moved.exists(), what="no log of a partition that has moved")

    cluster.stop()
    cluster.start()
    assert features(admin) == EXPECTED["features"] | {"metadata.version": 4}
    assert replicas(admin) == target
    assert_all_is_kept(cluster.bootstrap)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "transfers"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("orders", "more", partition=0)
    producer.commit_transaction(60)
