"""A data directory of commit 958e3c3 opens, and the JSON output of its commands is still printed.

`capture` made both and describes how to capture a later version.
"""

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.cli.admin.running import Admin
from tests.compatibility.commands import CHANGING, PASSWORDS, READING, Command
from tests.compatibility.records import read_all
from tests.conftest import KafkaTool
from tests.nodes import Node, elsewhere, free_ports, wait_until

GOLDEN = Path(__file__).parent / "958e3c3"
OUTPUT: dict[str, str] = json.loads((GOLDEN / "output.json").read_text())
RECORDS = json.loads((GOLDEN / "records.json").read_text())

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="no other cluster has this directory")


def captured(*words: str) -> Any:
    return json.loads(OUTPUT[Command(words).name])


@contextmanager
def restored(folder: Path) -> Iterator[Node]:
    """Run a node on the data directory, extracted to `folder`."""
    with tarfile.open(GOLDEN / "data.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    port = free_ports([1])
    listeners = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{port + 1}",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    }
    started = Node(folder, listeners, "--host", "machine-1", "--rack", "rack-1")
    started.start()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with restored(tmp_path_factory.mktemp("node")) as started:
        yield started


@pytest.fixture(scope="module")
def admin(node: Node) -> Admin:
    return Admin(MQ_BOOTSTRAP=node.bootstrap)


# The data directory


def test_the_cluster_is_the_same(admin: Admin) -> None:
    assert (
        admin.json("cluster", "describe")["cluster_id"]
        == (captured("cluster", "describe")["cluster_id"])
    )


def test_every_record_is_as_it_was(node: Node) -> None:
    assert sum(len(rows) for rows in RECORDS.values()) > 200
    assert read_all(node.bootstrap) == RECORDS


def test_configs_are_as_they_were(admin: Admin) -> None:
    for resource in (("topic", "orders"), ("broker", "1")):
        before = {row["config"]: row for row in captured("configs", "describe", *resource)}
        now = {row["config"]: row for row in admin.json("configs", "describe", *resource)}
        set_before = {name: row for name, row in before.items() if "dynamic" in row["source"]}
        assert set_before
        assert {name: now[name] for name in set_before} == set_before


def test_topics_are_as_they_were(admin: Admin) -> None:
    assert admin.json("topics", "list") == captured("topics", "list")


def test_quotas_are_as_they_were(admin: Admin) -> None:
    assert len(captured("quotas", "list")) == 4
    assert admin.json("quotas", "list") == captured("quotas", "list")


@pytest.mark.parametrize("user", PASSWORDS)
def test_users_log_in_with_the_passwords_that_they_had(node: Node, user: str) -> None:
    mechanisms = {"alice": ("SCRAM-SHA-256", "SCRAM-SHA-512"), "bob": ("SCRAM-SHA-512",)}
    for mechanism in mechanisms[user]:
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }
        host, port = node.bootstrap.rsplit(":", 1)
        assert read_all(f"{host}:{int(port) + 1}", **login) == RECORDS


# Output of commands


def compare(before: Any, now: Any, where: str) -> None:
    """Check that every earlier field exists with a value of the same type.

    A null value gives no type. There may be more fields, and more or fewer rows.
    """
    if before is None:
        return
    assert type(now) is type(before), f"{where}: was {before!r}, is {now!r}"
    if isinstance(before, dict):
        assert not (missing := before.keys() - now.keys()), f"{where}: without {missing}"
        for name, value in before.items():
            compare(value, now[name], f"{where}.{name}")
    elif isinstance(before, list):
        assert now or not before, f"{where}: had rows, and has none"
        for number, (one, other) in enumerate(zip(before, now, strict=False)):
            compare(one, other, f"{where}[{number}]")


def read(command: Command, text: str) -> Any:
    if command.words[0] == "consume":  # one object per line
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text) if text else None


def holds(admin: Admin, command: Command) -> None:
    now = admin(*command.words, "-o", "json", stdin=PASSWORDS.get(command.stdin, command.stdin))
    compare(read(command, OUTPUT[command.name]), read(command, now), command.name)


@pytest.mark.parametrize("command", READING, ids=lambda command: command.name)
def test_json_has_the_same_fields_and_types(node: Node, admin: Admin, command: Command) -> None:
    if command.words[:2] == ("quotas", "top"):
        read_all(node.bootstrap)  # so that a client uses its quota
        now = json.loads(admin(*command.words, "-o", "json"))
        # The users of other tests may be on top; each kind of quota has values of its own type.
        (was,) = captured(*command.words)["uses"]
        now["uses"] = [row for row in now["uses"] if row["quota"] == was["quota"]]
        compare(captured(*command.words), now, command.name)
        return
    holds(admin, command)


def test_json_of_changes_has_the_same_fields_and_types(admin: Admin) -> None:
    for command in CHANGING:
        holds(admin, command)


def test_the_feature_level_is_kept_until_it_is_raised(admin: Admin) -> None:
    def level() -> int:
        return int(admin.json("cluster", "describe")["features"]["metadata.version"])

    assert level() == captured("cluster", "describe")["features"]["metadata.version"] == 1
    admin("cluster", "upgrade", "metadata.version=2", "--dry-run")
    assert level() == 1
    admin("cluster", "upgrade", "metadata.version=2")
    assert level() == 2


def test_groups_begin_when_kafkas_tool_has_raised_the_level(
    tmp_path: Path, kafka_tool: KafkaTool
) -> None:
    with restored(tmp_path) as node:
        at = ["--bootstrap-server", node.bootstrap]
        assert first_error_of_a_group(node.bootstrap) == "UNSUPPORTED_VERSION"
        raised = kafka_tool("features", *at, "upgrade", "--feature", "metadata.version=2")
        assert raised.returncode == 0, raised.stdout + raised.stderr
        reading = ["--topic", "orders", "--group", "g", "--from-beginning", "--max-messages", 5]
        read = kafka_tool("console-consumer", *at, *reading, "--timeout-ms", 170_000)
        assert len(read.stdout.splitlines()) == 5, read.stderr
        shown = kafka_tool("consumer-groups", *at, "--describe", "--group", "g").stdout
        offsets = [line.split()[3] for line in shown.splitlines() if "orders" in line]
        assert sum(int(offset) for offset in offsets if offset != "-") == 5


def first_error_of_a_group(bootstrap: str) -> str:
    """Subscribe with librdkafka; return the name of the first error that it reports."""
    errors: list[str] = []
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "error_cb": lambda error: errors.append(error.name()),
        }
    )

    def reported() -> str:
        message = consumer.poll(0.1)
        if message is not None and (error := message.error()) is not None:
            errors.append(error.name())
        return next(iter(errors), "")

    consumer.subscribe(["orders"])
    try:
        return wait_until(reported, what="an error")
    finally:
        consumer.close()


def test_every_captured_command_is_compared() -> None:
    assert sorted(OUTPUT) == sorted(command.name for command in (*READING, *CHANGING))
