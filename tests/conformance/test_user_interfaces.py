"""Independent web interfaces and exporters with a node.

Each test needs an environment variable with the path of the program, and is skipped without it.
docs/howto/use-kafka-tools.md lists the tested versions and the results.
"""

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conformance.clients import create
from tests.nodes import PATIENCE_S, Peer, free_port, unique, wait_until

PARTITIONS = 2
RECORDS = 5  # all records in the last partition
COMMAND_TIMEOUT_S = PATIENCE_S

pytestmark = pytest.mark.conformance


def program(variable: str) -> str:
    """Return the path in the variable, or skip the test."""
    path = os.environ.get(variable, "")
    if not path:
        pytest.skip(f"{variable} does not say where it is")
    return path


@pytest.fixture
def topic(node: Peer) -> str:
    name = create(node.bootstrap, unique("shown"), PARTITIONS, {"retention.ms": "86400000"})
    producer = Producer({"bootstrap.servers": node.bootstrap, "compression.type": "zstd"})
    for number in range(RECORDS):
        producer.produce(name, f"value {number}", key="key", partition=PARTITIONS - 1)
    assert producer.flush(COMMAND_TIMEOUT_S) == 0
    return name


def answered(url: str) -> bytes:
    """Return the page; empty if no program listens there."""
    try:
        with urllib.request.urlopen(url, timeout=COMMAND_TIMEOUT_S) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError:
        raise
    except OSError:
        return b""


@contextmanager
def running(command: list[str], url: str, log: Path, **environment: str) -> Iterator[bytes]:
    """Start a program and return its page."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | environment
        )
    try:
        yield wait_until(lambda: answered(url), COMMAND_TIMEOUT_S, f"{url}: {log.read_text()}")
    finally:
        process.kill()
        process.wait()


def test_kafka_exporter_counts_topics_partitions_and_offsets(
    node: Peer, topic: str, tmp_path: Path
) -> None:
    path, at = program("METAQUORUM_KAFKA_EXPORTER"), f"127.0.0.1:{free_port()}"
    command = [path, f"--kafka.server={node.bootstrap}", f"--web.listen-address={at}"]
    with running(command, f"http://{at}/metrics", tmp_path / "log") as page:
        metrics = page.decode().splitlines()
    assert "kafka_brokers 1" in metrics
    assert f'kafka_topic_partitions{{topic="{topic}"}} {PARTITIONS}' in metrics
    place = f'{{partition="{PARTITIONS - 1}",topic="{topic}"}}'
    assert f"kafka_topic_partition_current_offset{place} {RECORDS}" in metrics
    assert f"kafka_topic_partition_oldest_offset{place} 0" in metrics
    assert f"kafka_topic_partition_under_replicated_partition{place} 0" in metrics


def test_redpanda_console_shows_topics_partitions_configs_and_disks(
    node: Peer, topic: str, tmp_path: Path
) -> None:
    path, port = program("METAQUORUM_REDPANDA_CONSOLE"), free_port()
    config = tmp_path / "console.json"
    settings = {
        "kafka": {"brokers": [node.bootstrap]},
        "server": {"listenAddress": "127.0.0.1", "listenPort": port},
    }
    config.write_text(json.dumps(settings))  # this is YAML, too
    api = f"http://127.0.0.1:{port}/api"
    command = [path, f"-config.filepath={config}"]
    with running(command, f"{api}/topics", tmp_path / "log") as page:
        (shown,) = [row for row in json.loads(page)["topics"] if row["topicName"] == topic]
        assert shown["partitionCount"] == PARTITIONS
        assert shown["logDirSummary"]["totalSizeBytes"] > 0
        partitions = json.loads(answered(f"{api}/topics/{topic}/partitions"))["partitions"]
        described = json.loads(answered(f"{api}/topics/{topic}/configuration"))
        (broker,) = json.loads(answered(f"{api}/brokers"))
    assert [row["waterMarkHigh"] for row in partitions] == [0, RECORDS]
    (retention,) = [
        row
        for row in described["topicDescription"]["configEntries"]
        if row["name"] == "retention.ms"
    ]
    assert (retention["value"], retention["source"]) == ("86400000", "DYNAMIC_TOPIC_CONFIG")
    assert broker["isController"]


def kafkactl(path: str, node: Peer, home: Path, *arguments: str) -> str:
    environment: Mapping[str, str] = os.environ | {"BROKERS": node.bootstrap, "HOME": str(home)}
    done = subprocess.run(
        [path, *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        env=environment,
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kafkactl_describes_changes_and_reads_topics(
    node: Peer, topic: str, tmp_path: Path
) -> None:
    path = program("METAQUORUM_KAFKACTL")

    def run(*arguments: str) -> str:
        return kafkactl(path, node, tmp_path, *arguments)

    run("alter", "topic", topic, "--partitions", "3", "--config", "flush.messages=7")
    described: Any = json.loads(run("describe", "topic", topic, "-o", "json"))
    assert [row["newestOffset"] for row in described["Partitions"]] == [0, RECORDS, 0]
    configs = {row["Name"]: row["Value"] for row in described["Configs"]}
    assert configs["flush.messages"] == "7"
    run("produce", topic, "--key", "k", "--value", "v", "--partition", "0")
    lines = run("consume", topic, "--from-beginning", "--exit", "--print-keys").splitlines()
    assert sorted(lines) == ["k#v", *(f"key#value {number}" for number in range(RECORDS))]
    run("delete", "records", topic, "--offset", "1=3")
    assert len(run("consume", topic, "--from-beginning", "--exit").splitlines()) == 3
