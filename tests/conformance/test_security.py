"""Independent clients on listeners with TLS and SASL."""

import socket
import ssl
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from metaquorum.security.tls_context import TlsFiles
from tests.cli.admin.running import Admin
from tests.clusters import Cluster
from tests.conformance.clients import (
    CLIENTS,
    TIMEOUT_S,
    Client,
    KafkaPython,
    Librdkafka,
    Record,
    admin,
    create,
)
from tests.metaquorum.security.certificates import Authority
from tests.nodes import Node, elsewhere, free_ports, unique, wait_until

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SESSION_MS = 1500
API_VERSIONS = bytes.fromhex("0000000a00120000000000010000")
PASSWORD = "s3cret, of alice"

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="another cluster has other users")


class Secured:
    """A node with a listener of each kind, and alice, who has a password for each mechanism."""

    def __init__(self, node: Node, base_port: int, authority: Authority) -> None:
        self.node = node
        self.authority = authority
        self.plaintext, self.sasl_plaintext, self.ssl, self.sasl_ssl = (
            f"127.0.0.1:{base_port + offset}" for offset in range(len(LISTENERS))
        )

    def has_said(self, words: str) -> bool:
        return words in self.node.errors.read_text()

    def at(self, protocol: str) -> str:
        return str(getattr(self, protocol.lower()))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder, port = tmp_path_factory.mktemp("secured"), free_ports(range(1, len(LISTENERS)))
    authority = Authority(folder)
    settings = {
        "listeners": ",".join(
            f"{name}://127.0.0.1:{port + offset}" for offset, name in enumerate(LISTENERS)
        ),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "connections.max.reauth.ms": SESSION_MS,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{MODULE} user_alice="{PASSWORD}";'
        ),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{MODULE} user_alice="{PASSWORD}";',
        "ssl.keystore.location": authority.store("node"),
        "ssl.truststore.location": authority.path,
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/,DEFAULT",
    }
    node = Node(folder, settings)
    node.start()
    client = admin(node.bootstrap)
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, 4096)
        upsertion = UserScramCredentialUpsertion("alice", info, PASSWORD.encode())
        client.alter_user_scram_credentials([upsertion])["alice"].result(TIMEOUT_S)
    yield Secured(node, port, authority)
    node.stop()


def settings_for(
    client: Client, protocol: str, mechanism: str = "PLAIN", password: str = PASSWORD
) -> dict[str, Any]:
    settings: dict[str, Any] = {"security_protocol": protocol}
    if protocol.startswith("SASL_"):
        name = "sasl" if isinstance(client, Librdkafka) else "sasl_plain"
        settings |= {f"{name}_username": "alice", f"{name}_password": password}
        settings["sasl_mechanism"] = mechanism
    return settings


def tls_for(client: Client, authority: Authority, own: TlsFiles | None = None) -> dict[str, Any]:
    """Return the TLS settings. `own`: with a client certificate."""
    if isinstance(client, Librdkafka):
        shown = (
            {} if own is None
            else {"ssl_certificate_location": own.certificate, "ssl_key_location": own.key}
        )  # fmt: skip
        return {"ssl_ca_location": authority.path, **shown}
    if isinstance(client, KafkaPython):
        shown = {} if own is None else {"ssl_certfile": own.certificate, "ssl_keyfile": own.key}
        return {"ssl_cafile": authority.path, **shown}
    context = ssl.create_default_context(cafile=authority.path)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return {"ssl_context": context}


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_records_go_through_tls_small_and_large(
    secured: Secured, client: Client, protocol: str
) -> None:
    topic = create(secured.plaintext, unique("tls"))
    own = secured.authority.files("alice", common_name="alice") if protocol == "SSL" else None
    settings = settings_for(client, protocol, "SCRAM-SHA-512")
    settings |= tls_for(client, secured.authority, own)
    values = [b"%d" % i * (1 if i % 3 else 150_000) for i in range(10)]
    records = [Record(None, value) for value in values]
    client.send(secured.at(protocol), topic, records, "none", **settings)
    stored = client.read(secured.at(protocol), topic, 10, **settings)
    assert [one.record.value for one in stored] == values


def is_served(context: ssl.SSLContext, address: tuple[str, int]) -> bool:
    with socket.create_connection(address, TIMEOUT_S) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=address[0]) as secure:
                secure.sendall(API_VERSIONS)
                return bool(secure.recv(1))
        except OSError:
            return False


def test_who_shows_no_certificate_or_a_foreign_one_is_not_let_in(
    secured: Secured, tmp_path: Path
) -> None:
    host, _, port = secured.ssl.partition(":")
    stranger = Authority(tmp_path, "stranger").files("mallory")
    for own in (None, stranger):
        context = ssl.create_default_context(cafile=secured.authority.path)
        if own is not None:
            context.load_cert_chain(own.certificate, own.key)
        assert not is_served(context, (host, int(port)))
    with socket.create_connection((host, int(port)), TIMEOUT_S) as plain:
        plain.sendall(API_VERSIONS)
        plain.settimeout(TIMEOUT_S)
        while plain.recv(4096):
            pass  # a TLS alert, and the end of the stream
    for words in ("sent no certificate", "certificate is not trusted", "does not use TLS"):
        wait_until(partial(secured.has_said, words), TIMEOUT_S, words)


def test_a_certificate_that_is_replaced_is_shown_without_a_restart(secured: Secured) -> None:
    def serial() -> object:
        context = ssl.create_default_context(cafile=secured.authority.path)
        host, _, port = secured.sasl_ssl.partition(":")
        with (
            socket.create_connection((host, int(port)), TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            certificate = secure.getpeercert()
            assert certificate is not None
            return certificate["serialNumber"]

    before = serial()
    path = Path(secured.authority.store("node"))
    wait_until(lambda: serial() != before, TIMEOUT_S)
    now = serial()
    path.write_text("no certificate")
    wait_until(lambda: "cannot reload TLS files" in secured.node.errors.read_text(), TIMEOUT_S)
    assert serial() == now
    secured.authority.store("node")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_who_knows_the_password_produces_and_consumes(
    secured: Secured, client: Client, mechanism: str
) -> None:
    topic = create(secured.plaintext, unique("sasl"))
    settings = settings_for(client, "SASL_PLAINTEXT", mechanism)
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


def test_whom_mq_admin_adds_can_log_in_at_once(secured: Secured) -> None:
    user, password = unique("user"), "a p,a=ss\u00e9 word"
    operator = Admin(MQ_BOOTSTRAP=secured.plaintext)
    operator("users", "create", user, stdin=password)
    own = Admin(MQ_BOOTSTRAP=secured.sasl_plaintext, MQ_USERNAME=user, MQ_PASSWORD=password)
    own("topics", "list")
    operator("users", "alter", user, stdin="another")
    own("topics", "list", code=1)
    assert "Authentication failed" in own.errors
    assert password not in own.errors


# Three nodes with encryption on all connections


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Authority]]:
    """TLS on all connections: SASL_SSL for clients and workers, mutual TLS for the quorum."""
    folder = tmp_path_factory.mktemp("three")
    authority = Authority(folder)
    store, port = authority.store("node"), free_ports(range(1, 3))
    quorum = authority.files("quorum")
    cluster = Cluster(folder)
    for number, node in cluster.nodes.items():
        node.configure(
            {
                "listeners": f"SASL_SSL://127.0.0.1:{port + number - 1}",
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                    f'{MODULE} username="node" password="of nodes" user_node="of nodes"'
                    f' user_alice="{PASSWORD}";'
                ),
                "ssl.keystore.location": store,
                "ssl.truststore.location": authority.path,
            },
            *("--quorum-tls-certificate", quorum.certificate),
            *("--quorum-tls-key", quorum.key),
            *("--quorum-tls-authorities", authority.path),
        )
    cluster.start()
    yield cluster, authority
    cluster.stop()


def test_three_nodes_replicate_and_fail_over_with_tls_between_all(
    three: tuple[Cluster, Authority],
) -> None:
    cluster, authority = three
    authority.files("quorum")  # new files, which running nodes reload
    settings = settings_for(Librdkafka(), "SASL_SSL") | tls_for(Librdkafka(), authority)
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0} | dotted)
    wanted = NewTopic("t", 3, 3, config={"min.insync.replicas": "2"})

    def created() -> bool:
        try:
            client.create_topics([wanted], request_timeout=5)["t"].result()
        except confluent_kafka.KafkaException as error:
            return bool(error.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    wait_until(created, TIMEOUT_S)
    records = [Record(None, b"%d" % i) for i in range(10)]
    Librdkafka().send(cluster.bootstrap, "t", records, "none", acks="all", **settings)
    cluster[2].kill()
    more = [Record(None, b"%d" % i) for i in range(10, 20)]
    Librdkafka().send(cluster.bootstrap, "t", more, "none", acks="all", **settings)
    stored = Librdkafka().read(cluster.bootstrap, "t", 20, **settings)
    assert [one.record.value for one in stored] == [b"%d" % i for i in range(20)]

    def has_taken_up(node: Node) -> bool:
        return "authority-quorum.pem, " in node.errors.read_text()  # reloaded

    wait_until(lambda: has_taken_up(cluster[1]) and has_taken_up(cluster[3]), TIMEOUT_S)
    cluster.start(2)
