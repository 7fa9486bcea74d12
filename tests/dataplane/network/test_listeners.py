"""Listeners from Kafka's configs: accepted values, and the errors for invalid ones."""

from pathlib import Path

import pytest

from metaquorum.config.definition import Scope
from metaquorum.config.registry import parse_all
from metaquorum.config.resolution import WorkerLayers
from metaquorum.dataplane.network.listeners import (
    ClientListener,
    ListenerError,
    ReplicationListener,
    SecurityProtocol,
    client_listeners,
    replicating,
)
from metaquorum.security.tls_context import TlsFiles
from metaquorum.wire.primitives.errors import KafkaError
from tests.metaquorum.security.certificates import Authority

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SASL = {
    "listeners": "INSIDE://10.0.0.1:9092,OUTSIDE://:9093",
    "advertised.listeners": "OUTSIDE://log.example.org:443",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
}


def listeners(**texts: str) -> tuple[ClientListener, ...]:
    return parsed({name.replace("_", "."): text for name, text in texts.items()})


def parsed(texts: dict[str, str]) -> tuple[ClientListener, ...]:
    parse_all(Scope.WORKER, texts)
    return client_listeners(WorkerLayers(texts).worker_configs())


def between(texts: dict[str, str]) -> ReplicationListener:
    configs = WorkerLayers(texts).worker_configs()
    return replicating(configs, client_listeners(configs))


def test_listeners_have_names_protocols_and_addresses() -> None:
    inside, outside = parsed(SASL)
    assert (inside.name, inside.protocol) == ("INSIDE", SecurityProtocol.PLAINTEXT)
    assert (inside.bind, inside.advertise) == (("10.0.0.1", 9092), ("10.0.0.1", None))
    assert outside.bind == ("0.0.0.0", 9093)
    assert outside.advertise == ("log.example.org", 443)
    assert inside.sasl is None
    assert outside.sasl is not None
    assert outside.sasl.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert between(SASL) == ReplicationListener("INSIDE", SecurityProtocol.PLAINTEXT)


def test_a_listener_named_like_a_protocol_has_it() -> None:
    (plain,) = listeners(listeners="plaintext://[::1]:0")
    assert (plain.name, plain.bind) == ("PLAINTEXT", ("::1", 0))
    assert listeners() == ()


def test_a_listener_has_configs_of_its_own() -> None:
    _, outside = parsed(
        SASL
        | {
            "connections.max.reauth.ms": "1000",
            "listener.name.outside.connections.max.reauth.ms": "2000",
            "listener.name.outside.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.outside.plain.sasl.jaas.config": f'{MODULE} user_alice="x";',
        }
    )
    assert outside.sasl is not None
    assert outside.sasl.mechanisms == ("PLAIN",)
    assert outside.sasl.passwords == {"alice": "x"}
    assert outside.sasl.session_ms == 2000
    assert "alice" not in repr(outside)


def test_workers_log_in_to_each_other_as_the_module_says() -> None:
    found = between(
        SASL
        | {
            "inter.broker.listener.name": "OUTSIDE",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
            "listener.name.outside.scram-sha-256.sasl.jaas.config": (
                f'{MODULE} username="worker" password="secret";'
            ),
        }
    )
    assert found.login is not None
    assert (found.login.mechanism, found.login.username) == ("SCRAM-SHA-256", "worker")
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ({"listeners": "PLAINTEXT:9092"}, "is not NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://a:70000"}, "is not NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://a:2"}, "PLAINTEXT is listed twice"),
        ({"listeners": "A://a:1"}, "must map A to one of PLAINTEXT"),
        (
            {"listeners": "A://a:1", "listener.security.protocol.map": "A:KERBEROS"},
            "A must be one of PLAINTEXT",
        ),
        ({"listeners": "A://a:1", "listener.security.protocol.map": "A"}, "NAME:PROTOCOL"),
        ({"advertised.listeners": "PLAINTEXT://a:1"}, "is set, but listeners is not"),
        (
            {"listeners": "PLAINTEXT://a:1", "advertised.listeners": "X://a:1"},
            "has X, which is not in listeners",
        ),
        (
            {"listeners": "PLAINTEXT://a:1", "advertised.listeners": "PLAINTEXT://:1"},
            "clients cannot connect to an empty host",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://a:1", "sasl.enabled.mechanisms": "PLAIN"},
            "listener.name.sasl_plaintext.plain.sasl.jaas.config has no user for PLAIN",
        ),
        (
            {
                "listeners": "SASL_PLAINTEXT://a:1",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": "secret",
            },
            "plain.sasl.jaas.config must end with a semicolon",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_config_s_name(
    texts: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ListenerError, match=complaint) as caught:
        parsed(texts)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (SASL | {"inter.broker.listener.name": "OTHER"}, "OTHER, which is not in listeners"),
        (
            {name: text for name, text in SASL.items() if not name.startswith("inter.broker")},
            "must name the one by which the nodes reach each other",
        ),
        (SASL | {"inter.broker.listener.name": "OUTSIDE"}, "must have username and password"),
        (
            SASL
            | {
                "inter.broker.listener.name": "OUTSIDE",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
            },
            "not among the sasl.enabled.mechanisms of OUTSIDE",
        ),
    ],
)
def test_workers_that_could_not_reach_each_other_are_refused(
    texts: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ListenerError, match=complaint):
        between(texts)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sasl.enabled.mechanisms", "GSSAPI"),
        ("sasl.enabled.mechanisms", "OAUTHBEARER,PLAIN"),
        ("sasl.kerberos.service.name", "kafka"),
        ("listener.name.outside.sasl.kerberos.service.name", "kafka"),
        ("listener.name.outside.listeners", "x"),
        ("listener.name.outside.plain.sasl.enabled.mechanisms", "PLAIN"),
    ],
)
def test_what_is_not_there_is_not_taken(name: str, text: str) -> None:
    with pytest.raises(KafkaError):
        parse_all(Scope.WORKER, {name: text})


def test_a_listener_with_tls_has_the_files_that_its_configs_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    store = authority.store("node")
    texts = {
        "listeners": "SSL://a:1,SASL_SSL://a:2",
        "inter.broker.listener.name": "SSL",
        "ssl.keystore.location": store,
        "ssl.truststore.location": authority.path,
        "ssl.client.auth": "required",
    }
    mutual, with_sasl = parsed(texts)
    assert mutual.tls is not None
    assert with_sasl.tls is not None
    assert mutual.tls.files == TlsFiles(store, store, authority.path)
    assert mutual.tls.client_certificates == "required"
    assert with_sasl.tls.client_certificates == "none", "KIP-684"
    own = {"listener.name.sasl_ssl.ssl.client.auth": "requested"}
    _, with_sasl = parsed(texts | own)
    assert with_sasl.tls is not None
    assert with_sasl.tls.client_certificates == "requested"
    found = between(texts | {"ssl.endpoint.identification.algorithm": ""})
    assert found.tls == TlsFiles(store, store, authority.path, verify_hostname=False)


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ({}, "ssl.keystore.location must name"),
        ({"ssl.keystore.location": "/nowhere"}, "cannot read the certificate file /nowhere"),
        ({"ssl.keystore.location": "store", "ssl.client.auth": "required"}, "ssl.truststore"),
        (
            {"ssl.keystore.location": "store", "ssl.principal.mapping.rules": "RULE:x"},
            "ssl.principal.mapping.rules: not a rule",
        ),
        ({"ssl.keystore.location": "store"}, "nodes reach each other by SSL"),
    ],
)
def test_tls_that_cannot_be_is_refused(
    texts: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    store = Authority(tmp_path).store("node")
    texts = {name: store if text == "store" else text for name, text in texts.items()}
    with pytest.raises(ListenerError, match=complaint):
        between(texts | {"listeners": "SSL://a:1"})
