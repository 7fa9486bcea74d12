"""Clients that nobody here wrote, on listeners that ask who they are."""

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.conformance.clients import (
    CLIENTS,
    TIMEOUT_S,
    Aiokafka,
    Client,
    KafkaPython,
    Librdkafka,
    Record,
    admin,
    create,
)
from tests.nodes import Node, elsewhere, free_ports, unique, wait_until

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SESSION_MS = 1500
PASSWORD = "s3cret, of alice"

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="another cluster has other users")


class Secured:
    """A node with a listener of each kind, and alice, who has a password for each mechanism."""

    def __init__(self, node: Node, base_port: int) -> None:
        self.node = node
        self.plaintext, self.sasl_plaintext = (
            f"127.0.0.1:{base_port + offset}" for offset in range(2)
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder, port = tmp_path_factory.mktemp("secured"), free_ports(range(1, 2))
    listeners = ("PLAINTEXT", "SASL_PLAINTEXT")
    settings = {
        "listeners": ",".join(
            f"{name}://127.0.0.1:{port + offset}" for offset, name in enumerate(listeners)
        ),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "connections.max.reauth.ms": SESSION_MS,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{MODULE} user_alice="{PASSWORD}";'
        ),
    }
    node = Node(folder, settings)
    node.start()
    client = admin(node.bootstrap)
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, 4096)
        upsertion = UserScramCredentialUpsertion("alice", info, PASSWORD.encode())
        client.alter_user_scram_credentials([upsertion])["alice"].result(TIMEOUT_S)
    yield Secured(node, port)
    node.stop()


def settings_for(client: Client, protocol: str, mechanism: str, password: str) -> dict[str, Any]:
    if isinstance(client, Librdkafka):
        return {
            "security_protocol": protocol,
            "sasl_mechanism": mechanism,
            "sasl_username": "alice",
            "sasl_password": password,
        }
    assert isinstance(client, KafkaPython | Aiokafka)
    return {
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_who_knows_the_password_produces_and_consumes(
    secured: Secured, client: Client, mechanism: str
) -> None:
    topic = create(secured.plaintext, unique("sasl"))
    settings = settings_for(client, "SASL_PLAINTEXT", mechanism, PASSWORD)
    records = [Record(b"k", b"%d" % i) for i in range(10)]
    offsets = client.send(secured.sasl_plaintext, topic, records, "none", **settings)
    assert offsets == list(range(10))
    stored = client.read(secured.sasl_plaintext, topic, 10, **settings)
    assert [one.record.value for one in stored] == [record.value for record in records]


def test_librdkafka_shows_anew_who_it_is(secured: Secured) -> None:
    topic = create(secured.plaintext, unique("again"))
    settings = settings_for(Librdkafka(), "SASL_PLAINTEXT", "SCRAM-SHA-256", PASSWORD)
    producer = Librdkafka().producer(secured.sasl_plaintext, **settings)
    acknowledged: list[Any] = []

    def send_until(count: int) -> bool:
        producer.produce(topic, b"v", on_delivery=lambda error, _: acknowledged.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        return len(acknowledged) >= count

    until = time.monotonic() + 2.5 * SESSION_MS / 1000
    wait_until(lambda: send_until(1) and time.monotonic() > until, TIMEOUT_S)
    assert not any(acknowledged)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_is_told_that_its_password_is_wrong(secured: Secured, mechanism: str) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    settings = settings_for(Librdkafka(), "SASL_PLAINTEXT", mechanism, "wr0ng")
    client = AdminClient(
        {"bootstrap.servers": secured.sasl_plaintext, "error_cb": errors.append, "log_level": 0}
        | {key.replace("_", "."): value for key, value in settings.items()}
    )

    def refused() -> bool:
        client.poll(0.05)
        return any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors)

    wait_until(refused, TIMEOUT_S)
    line = f"authentication as 'alice' by {mechanism} failed"
    wait_until(lambda: line in secured.node.errors.read_text(), TIMEOUT_S)
    text = secured.node.errors.read_text()
    assert "wr0ng" not in text
    assert PASSWORD not in text.split("on the command line")[-1]
