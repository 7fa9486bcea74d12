"""A data directory of commit bf8513f, the version before transactions, opens and can be raised.

`capture_groups` made it.
"""

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.cli.admin.running import Admin
from tests.compatibility.records import read_all
from tests.conftest import KafkaTool
from tests.nodes import Node, elsewhere

GOLDEN = Path(__file__).parent / "bf8513f"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
TOPICS = ("orders",)

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="no other cluster has this directory")


@contextmanager
def restored(folder: Path) -> Iterator[Node]:
    """Run a node on the data directory, extracted to `folder`."""
    with tarfile.open(GOLDEN / "data.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    started = Node(folder, None, "--host", "machine-1")
    started.start()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with restored(tmp_path) as started:
        yield started


def features(bootstrap: str) -> dict[str, int]:
    return dict(Admin(MQ_BOOTSTRAP=bootstrap).json("cluster", "describe")["features"])


def committed(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    try:
        rows = consumer.committed([TopicPartition("orders", index) for index in range(2)], 60)
    finally:
        consumer.close()
    return [row.offset for row in rows]


def initialized(bootstrap: str) -> str | None:
    """Initialize a transactional producer; return the name of the error."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    try:
        producer.init_transactions(10)
    except KafkaException as error:
        return str(error.args[0].name())
    return None


def test_records_groups_and_levels_are_as_they_were(node: Node) -> None:
    assert read_all(node.bootstrap, topics=TOPICS) == EXPECTED["records"]
    assert features(node.bootstrap) == EXPECTED["features"]
    assert "transaction.version" not in EXPECTED["features"]
    assert EXPECTED["features"]["metadata.version"] == 2
    assert sum(max(offset, 0) for offset in EXPECTED["committed"]) == 20
    assert committed(node.bootstrap) == EXPECTED["committed"]


def test_transactions_are_refused_until_the_level_is_raised(node: Node) -> None:
    admin = Admin(MQ_BOOTSTRAP=node.bootstrap)
    assert initialized(node.bootstrap) is not None
    assert features(node.bootstrap) == EXPECTED["features"]
    admin("cluster", "upgrade", "transaction.version=2", code=1)
    admin("cluster", "upgrade", "metadata.version=3", "transaction.version=1", "--dry-run")
    assert features(node.bootstrap) == EXPECTED["features"]
    admin("cluster", "upgrade", "metadata.version=3")
    admin("cluster", "upgrade", "transaction.version=1")
    admin("cluster", "upgrade", "transaction.version=2")
    raised = {"metadata.version": 3, "transaction.version": 2}
    assert features(node.bootstrap) == EXPECTED["features"] | raised
    node.stop()
    node.start()
    assert features(node.bootstrap) == EXPECTED["features"] | raised
    assert committed(node.bootstrap) == EXPECTED["committed"]
    assert read_all(node.bootstrap, topics=TOPICS) == EXPECTED["records"]


def test_kafkas_tool_raises_and_lowers_the_levels(node: Node, kafka_tool: KafkaTool) -> None:
    def tool(*words: str) -> Any:
        return kafka_tool("features", "--bootstrap-server", node.bootstrap, *words)

    both = [
        "--feature", "metadata.version=3", "--feature", "transaction.version=2",
    ]  # fmt: skip
    early = tool("upgrade", "--feature", "transaction.version=2")
    assert early.returncode != 0
    assert "depends on level 3 of metadata.version" in early.stdout + early.stderr
    raised = tool("upgrade", *both)
    assert raised.returncode == 0, raised.stdout + raised.stderr
    assert features(node.bootstrap)["transaction.version"] == 2
    for level in (1, 0):
        lowered = tool("downgrade", "--feature", f"transaction.version={level}")
        assert lowered.returncode == 0, lowered.stdout + lowered.stderr
        assert features(node.bootstrap).get("transaction.version", 0) == level
