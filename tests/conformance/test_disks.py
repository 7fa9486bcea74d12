"""A node with several log directories, as a process, with disks that fail or fill up.

A directory fails because a symbolic link replaces a checkpoint file: writes to its target fail.
This needs no privileges, no mount and no fault injection.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.clients import Librdkafka, create
from tests.conformance.test_java import at, output
from tests.conftest import KafkaTool
from tests.nodes import PATIENCE_S, Node, elsewhere, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="for a node of this machine")

CHECKPOINT = "recovery-point-offset-checkpoint"


def start(folder: Path, *log_dirs: Path, **settings: object) -> Node:
    node = Node(folder, settings | {"log.dirs": ",".join(map(str, log_dirs))})
    node.start()
    return node


def send(
    node: Node, topic: str, partition: int, size: int = 10, within_s: float = PATIENCE_S
) -> bool:
    """Return whether a record was acknowledged within that time."""
    outcome: list[bool] = []
    producer = Librdkafka().producer(node.bootstrap, message_timeout_ms=int(1000 * within_s))
    producer.produce(
        topic,
        bytes(size),
        partition=partition,
        on_delivery=lambda error, message: outcome.append(error is None),
    )
    assert producer.flush(2 * PATIENCE_S) == 0
    return outcome[0]


def fail(log_dir: Path) -> None:
    def in_the_way() -> bool:
        try:
            (log_dir / f"{CHECKPOINT}.tmp").symlink_to("/proc/self/mem")
        except FileExistsError:  # the node is writing at this moment
            return False
        return True

    wait_until(in_the_way)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node whose partitions are in a and b alternately."""
    folders = (tmp_path / "a", tmp_path / "b")
    running = start(tmp_path / "node", *folders, **{"log.flush.offset.checkpoint.interval.ms": 50})
    yield running
    running.kill()


def is_offline(node: Node, log_dir: Path) -> bool:
    return f"log directory {log_dir} is offline" in node.errors.read_text()


def test_a_node_lives_on_with_the_directory_that_is_left(node: Node, tmp_path: Path) -> None:
    topic = create(node.bootstrap, "t", 4)
    for partition in range(4):
        assert send(node, topic, partition)
    assert sorted(path.name for path in (tmp_path / "a").glob("t-*")) == ["t-0", "t-2"]
    assert sorted(path.name for path in (tmp_path / "b").glob("t-*")) == ["t-1", "t-3"]
    fail(tmp_path / "a")
    wait_until(lambda: is_offline(node, tmp_path / "a"))
    assert not send(node, topic, 0, within_s=2)
    assert send(node, topic, 1)
    assert node.errors.read_text().count("is offline") == 1
    node.stop()
    (tmp_path / "a" / f"{CHECKPOINT}.tmp").unlink()
    node.start()
    for partition in range(4):
        assert send(node, topic, partition)


def test_a_node_ends_with_its_last_directory(node: Node, tmp_path: Path) -> None:
    fail(tmp_path / "a")
    wait_until(lambda: is_offline(node, tmp_path / "a"))
    fail(tmp_path / "b")
    process = node._process
    assert process is not None
    assert process.wait(PATIENCE_S) == 1
    last = node.errors.read_text().splitlines()[-1]
    assert last.startswith(
        "mq-server: all log directories have failed: cannot write a checkpoint in"
    )
    assert "Traceback" not in node.errors.read_text()


def test_kafkas_tool_shows_directories_that_work_and_that_do_not(
    node: Node, tmp_path: Path, kafka_tool: KafkaTool
) -> None:
    topic = create(node.bootstrap, "t", 2)
    for partition in range(2):
        assert send(node, topic, partition, 3000)
    fail(tmp_path / "a")
    wait_until(lambda: is_offline(node, tmp_path / "a"))
    shown = output(kafka_tool("log-dirs", *at(node), "--describe"))
    (answer,) = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    (broker,) = answer["brokers"]
    found = {Path(one["logDir"]).name: one for one in broker["logDirs"]}
    assert "KafkaStorageException" in found["a"]["error"]
    assert found["a"]["partitions"] == []
    assert found["b"]["error"] is None
    (partition,) = found["b"]["partitions"]
    assert partition["partition"] == f"{topic}-1"
    assert 3000 < partition["size"] < 3200

    def leads_what_is_left() -> bool:
        shown = output(kafka_tool("topics", *at(node), "--describe", "--topic", topic))
        assert "Partition: 1\tLeader: 1" in shown
        return "Partition: 0\tLeader: none" in shown

    wait_until(leads_what_is_left)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"]
    if os.geteuid() or subprocess.run(["mount", *options, folder], capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_takes_appends_again_when_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    node = start(tmp_path / "node", small_disk / "log", tmp_path / "b")
    try:
        topic = create(node.bootstrap, "t", 2)
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(900_000))
        assert send(node, topic, 0)
        assert not send(node, topic, 0, 200_000, within_s=2)
        assert send(node, topic, 1, 200_000)
        assert "No space left on device" in node.errors.read_text()
        ballast.unlink()
        assert send(node, topic, 0, 200_000)
        assert "is offline" not in node.errors.read_text()
        node.stop()
        node.start()
        assert send(node, topic, 0, 200_000)
    finally:
        node.kill()
