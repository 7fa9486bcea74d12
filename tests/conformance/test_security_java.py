"""Kafka's own tools on listeners with TLS and SASL."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conformance.clients import create
from tests.conformance.test_java import output
from tests.conformance.test_security import PASSWORD, Secured, secured  # noqa: F401 - a fixture
from tests.conftest import KafkaTool
from tests.nodes import elsewhere, unique

LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"

pytestmark = [
    pytest.mark.usefixtures("java"),
    pytest.mark.skipif(bool(elsewhere()), reason="another cluster has other users"),
]


def properties(path: Path, settings: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    return path


def login(username: str, password: str, authorities: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{LOGIN} username="{username}" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authorities,
    }


def console(
    kafka_tool: KafkaTool, bootstrap: str, topic: str, config: Path
) -> "subprocess.CompletedProcess[str]":
    return kafka_tool(
        "console-producer", "--bootstrap-server", bootstrap, "--topic", topic,
        "--command-config", config, stdin="one\ntwo\n",
    )  # fmt: skip


def test_a_user_that_kafka_configs_makes_comes_in_until_it_is_deleted(
    secured: Secured,  # noqa: F811
    kafka_tool: KafkaTool,
    tmp_path: Path,
) -> None:
    user, topic = unique("java"), create(secured.plaintext, unique("java-sasl"))
    admin = properties(tmp_path / "admin", login("alice", PASSWORD, secured.authority.path))
    entity = ("--entity-type", "users", "--entity-name", user)
    alter = ("--bootstrap-server", secured.sasl_ssl, "--command-config", admin, "--alter", *entity)
    both = "SCRAM-SHA-256=[iterations=8192,password=made],SCRAM-SHA-512=[password=made]"
    output(kafka_tool("configs", *alter, "--add-config", both))
    where = ("--bootstrap-server", secured.plaintext)
    shown = output(kafka_tool("configs", *where, "--describe", *entity))
    assert "SCRAM-SHA-256=iterations=8192" in shown
    assert "SCRAM-SHA-512=iterations=4096" in shown

    own = properties(tmp_path / "own", login(user, "made", secured.authority.path))
    output(console(kafka_tool, secured.sasl_ssl, topic, own))
    read = kafka_tool(
        "console-consumer", "--bootstrap-server", secured.sasl_ssl, "--topic", topic,
        "--partition", 0, "--offset", "earliest", "--max-messages", 2, "--command-config", own,
    )  # fmt: skip
    assert output(read).split() == ["one", "two"]

    output(kafka_tool("configs", *alter, "--delete-config", "SCRAM-SHA-256"))
    refused = kafka_tool(
        "topics", "--bootstrap-server", secured.sasl_ssl, "--list", "--command-config", own
    )
    assert refused.returncode
    assert "SaslAuthenticationException" in refused.stdout + refused.stderr
