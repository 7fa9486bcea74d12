"""Kafka's own tools move replicas between the log directories of a node, as a process."""

import json
import subprocess
import sys
from pathlib import Path

from tests.conformance.clients import create
from tests.conformance.test_disks import send, start
from tests.conformance.test_java import at, output
from tests.conftest import KafkaTool
from tests.nodes import ROOT, wait_until


def test_kafkas_tools_move_a_replica_to_another_directory(
    tmp_path: Path, kafka_tool: KafkaTool
) -> None:
    node = start(tmp_path / "node", tmp_path / "a", tmp_path / "b")
    try:
        topic = create(node.bootstrap, "t", 2)
        for partition in range(2):
            assert send(node, topic, partition, 3000)
        plan = tmp_path / "plan.json"
        row = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [str(tmp_path / "b")]}
        plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
        file = ("--reassignment-json-file", str(plan))
        rate = ("--replica-alter-log-dirs-throttle", "10000000")
        shown = output(kafka_tool("reassign-partitions", *at(node), *file, *rate, "--execute"))
        moving = f"Successfully started moving log directory to {tmp_path / 'b'} for replica"
        assert f"{moving} {topic}-0 with broker 1" in shown

        def is_complete() -> bool:
            shown = output(kafka_tool("reassign-partitions", *at(node), *file, "--verify"))
            return f"Reassignment of replica {topic}-0-1 completed successfully" in shown

        wait_until(is_complete)
        shown = output(kafka_tool("log-dirs", *at(node), "--describe", "--topic-list", topic))
        (answer,) = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
        (broker,) = answer["brokers"]
        found = {Path(one["logDir"]).name: one["partitions"] for one in broker["logDirs"]}
        assert found["a"] == []
        assert sorted((one["partition"], one["isFuture"]) for one in found["b"]) == [
            (f"{topic}-0", False),
            (f"{topic}-1", False),
        ]
        node.kill()
        node.start()
        assert send(node, topic, 0)
        assert (tmp_path / "b" / f"{topic}-0").is_dir()
    finally:
        node.kill()


def test_mq_admin_moves_a_replica(tmp_path: Path) -> None:
    node = start(tmp_path / "node", tmp_path / "a", tmp_path / "b")
    try:
        topic = create(node.bootstrap, "t", 1)
        assert send(node, topic, 0, 3000)
        admin = ("-b", node.bootstrap, "log-dirs", "--node", "1")
        asked = (*admin, "--move", f"{topic}-0", "--to")
        assert mq_admin(*asked, str(tmp_path / "b")).returncode == 0
        wait_until(lambda: (tmp_path / "b" / f"{topic}-0").is_dir())
        refused = mq_admin(*asked, str(tmp_path / "c"))
        assert refused.returncode == 1
        assert "LOG_DIR_NOT_FOUND" in refused.stderr
        assert mq_admin(*admin, "--move", f"{topic}-0").returncode == 2
    finally:
        node.kill()


def mq_admin(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "metaquorum.cli.admin.main", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
