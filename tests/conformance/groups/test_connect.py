"""Kafka Connect: two workers share connectors in a group of the protocol type "connect"."""

import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from tests.conformance.clients import Librdkafka, admin
from tests.conformance.test_java import at, output
from tests.conftest import KafkaTool
from tests.nodes import KAFKA, PATIENCE_S, Peer, free_port, unique, wait_until

EACH = 100
STORES = ("config", "offset", "status")
FILE = "org.apache.kafka.connect.file.FileStream"
SETTINGS = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    **{f"{store}.storage.replication.factor": 1 for store in STORES},
    "offset.storage.partitions": 3,
    "status.storage.partitions": 2,
    "offset.flush.interval.ms": 300,
    # Early decisions when a worker is killed: its tasks, and the consumer of its sink task.
    "session.timeout.ms": 3000,
    "heartbeat.interval.ms": 300,
    "scheduled.rebalance.max.delay.ms": 500,
    "consumer.session.timeout.ms": 3000,
    "consumer.heartbeat.interval.ms": 300,
    "plugin.discovery": "service_load",
}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


class Worker:
    """A process of connect-distributed, and its REST interface."""

    def __init__(self, folder: Path, settings: dict[str, object]) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        config = folder / f"{self.address.replace(':', '-')}.properties"
        given = settings | {"listeners": f"HTTP://{self.address}"}
        config.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        with config.with_suffix(".log").open("wb") as log:
            self._process = subprocess.Popen(
                [KAFKA / "tool", "connect-distributed", config],  # `exec`s java
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask(self, path: str, body: dict[str, object] | None = None) -> Any:
        """Return the answer; None while the worker starts or rebalances."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.address}/{path}",
            data,
            {"Content-Type": "application/json"},
            method="GET" if body is None else "PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)
        except (URLError, HTTPException, ConnectionError):  # answers 409 during a rebalance
            return None

    def run(self, name: str, connector: str, **config: object) -> None:
        body = {"connector.class": FILE + connector, "tasks.max": 1, **config}
        wait_until(lambda: self.ask(f"connectors/{name}/config", body), what=f"connector {name}")

    def tasks(self) -> dict[str, str]:
        """Return the address of the worker that runs the task of each connector."""
        shown = self.ask("connectors?expand=status") or {}
        return {
            name: task["worker_id"]
            for name, one in shown.items()
            for task in one["status"]["tasks"]
            if task["state"] == "RUNNING"
        }

    def position(self, name: str) -> int:
        """Return the stored position of a FileStreamSource in its file."""
        shown = self.ask(f"connectors/{name}/offsets") or {"offsets": []}
        return max((one["offset"]["position"] for one in shown["offsets"]), default=0)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)


@pytest.fixture
def start(peer: Peer, tmp_path: Path) -> Iterator[Callable[[str], Worker]]:
    with ExitStack() as ended:

        def run(group: str) -> Worker:
            stores = {f"{store}.storage.topic": f"{group}-{store}" for store in STORES}
            named = {"bootstrap.servers": peer.bootstrap, "group.id": group}
            worker = Worker(tmp_path, {**SETTINGS, **stores, **named})
            ended.callback(worker.kill)
            return worker

        yield run


def test_connectors_move_to_another_worker_when_theirs_is_killed(
    peer: Peer, kafka_tool: KafkaTool, start: Callable[[str], Worker], tmp_path: Path
) -> None:
    group, lines, target = unique("connect"), unique("lines"), tmp_path / "target"
    source = tmp_path / "source"
    first = [str(number) for number in range(EACH)]
    source.write_text("".join(line + "\n" for line in first))
    one = start(group)
    one.run("source", "SourceConnector", file=str(source), topic=lines)
    wait_until(lambda: one.position("source") == source.stat().st_size, what="a stored position")
    one.run("sink", "SinkConnector", file=str(target), topics=lines)
    wait_until(lambda: target.exists() and target.read_text().split() == first)

    two = start(group)
    both = {one.address, two.address}
    wait_until(lambda: set(two.tasks().values()) == both, what="tasks on both workers")
    shown = output(kafka_tool("groups", *at(peer), "--list", "--protocol", "connect"))
    assert group in shown
    for store in STORES:
        resource = ConfigResource(ResourceType.TOPIC, f"{group}-{store}")
        described = admin(peer.bootstrap).describe_configs([resource])[resource].result(PATIENCE_S)
        assert described["cleanup.policy"].value == "compact"

    one.kill()
    more = [str(EACH + number) for number in range(EACH)]
    with source.open("a") as file:
        file.write("".join(line + "\n" for line in more))
    left = {"source": two.address, "sink": two.address}
    wait_until(lambda: two.tasks() == left, what="all tasks on the worker that is left")
    wait_until(lambda: set(target.read_text().split()) == {*first, *more}, what="all lines")
    stored = Librdkafka().read(peer.bootstrap, lines, 2 * EACH)
    assert [(each.record.value or b"").decode() for each in stored] == [*first, *more]
