"""A worker's listeners, parsed from its configs. Names and rules are Kafka's.

    listeners=INTERNAL://:9092,OUTSIDE://0.0.0.0:9093
    advertised.listeners=OUTSIDE://log1.example.org:9093
    listener.security.protocol.map=INTERNAL:PLAINTEXT,OUTSIDE:SASL_SSL
    inter.broker.listener.name=INTERNAL

A client receives the advertised addresses of the listeners with the same name as the listener it is
connected to.
"""

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from metaquorum.client.security import Login
from metaquorum.config.addresses import is_anywhere
from metaquorum.config.resolution import Configs, ListenerConfigs
from metaquorum.dataplane.network.listener_tls import TlsSettings
from metaquorum.dataplane.network.principal_mapping import PrincipalMapping
from metaquorum.dataplane.network.sasl_authenticator import SaslSettings
from metaquorum.security.sasl import PLAIN, jaas_options, plain_users
from metaquorum.security.tls_context import (
    ClientCertificates,
    TlsFiles,
    TlsFilesError,
    server_context,
)
from metaquorum.wire.primitives.frozen import frozen

Address = tuple[str, int]

MAX_LISTENERS: Final = 64
DEFAULT_NAME: Final = "PLAINTEXT"
_ENTRY: Final = re.compile(r"([A-Za-z0-9_\-]{1,64})://(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*):(\d{1,5})")


class ListenerError(Exception):
    """The configs of the listeners are invalid; the message names the config."""


class SecurityProtocol(Enum):
    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_sasl(self) -> bool:
        return self.name.startswith("SASL_")

    @property
    def has_tls(self) -> bool:
        return self.name.endswith("SSL")


class ClientListener(NamedTuple):
    """One listener for clients.

    `advertise` is the host and port that clients receive; port None means the bound port.
    """

    name: str
    protocol: SecurityProtocol
    bind: Address
    advertise: tuple[str, int | None]
    sasl: SaslSettings | None = None
    tls: TlsSettings | None = None


@frozen
class ReplicationListener:
    """The listener between workers; `login` is this worker's SASL login at the others, if any."""

    listener: str
    protocol: SecurityProtocol
    login: Login | None = None
    tls: TlsFiles | None = None


def client_listeners(configs: Configs) -> tuple[ClientListener, ...]:
    """Return the listeners of the config `listeners`, in its order; empty if it is not set.

    Raises ListenerError if a config of a listener is invalid or missing.
    """
    bound = _entries(configs, "listeners")
    advertised = _entries(configs, "advertised.listeners")
    if not bound:
        if advertised:
            raise ListenerError("advertised.listeners is set, but listeners is not")
        return ()
    if unknown := advertised.keys() - bound.keys():
        raise ListenerError(f"advertised.listeners has {min(unknown)}, which is not in listeners")
    protocols = _protocols(configs)
    return tuple(
        _listener(configs, name, address, advertised.get(name), protocols)
        for name, address in bound.items()
    )


def replicating(configs: Configs, listeners: Sequence[ClientListener]) -> ReplicationListener:
    """Return the listener that inter.broker.listener.name chooses.

    Raises ListenerError if the config is missing or wrong, or if the listener does not have the
    login or the truststore for connections to other nodes.
    """
    by_name = {listener.name: listener for listener in listeners}
    name = configs["inter.broker.listener.name"]
    if not name:
        name = next(iter(by_name)) if len(by_name) == 1 else DEFAULT_NAME
        if name not in by_name:
            raise ListenerError(
                "with several listeners, inter.broker.listener.name must name the one by which"
                " the nodes reach each other"
            )
    assert isinstance(name, str)
    if name.upper() not in by_name:
        raise ListenerError(f"inter.broker.listener.name is {name}, which is not in listeners")
    listener = by_name[name.upper()]
    login = _login(configs, listener) if listener.protocol.has_sasl else None
    tls = None if listener.tls is None else _dialing(configs, listener.name, listener.tls)
    return ReplicationListener(listener.name, listener.protocol, login, tls)


def _entries(configs: Configs, key: str) -> dict[str, Address]:
    found: dict[str, Address] = {}
    value = configs[key]
    for text in value if isinstance(value, tuple) else ():
        entry = _ENTRY.fullmatch(text)
        if entry is None or int(entry[3]) > 65_535:
            raise ListenerError(f"{key}: {text!r} is not NAME://HOST:PORT")
        name = entry[1].upper()
        if name in found:
            raise ListenerError(f"{key}: {name} is listed twice")
        found[name] = entry[2].strip("[]"), int(entry[3])
    if len(found) > MAX_LISTENERS:
        raise ListenerError(f"{key}: more than {MAX_LISTENERS} listeners")
    return found


def _protocols(configs: Configs) -> Mapping[str, str]:
    key, protocols = "listener.security.protocol.map", {}
    for text in configs.list(key):
        name, colon, protocol = text.partition(":")
        if not colon:
            raise ListenerError(f"{key}: {text!r} is not NAME:PROTOCOL")
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def _listener(
    configs: Configs,
    name: str,
    bind: Address,
    advertised: Address | None,
    protocols: Mapping[str, str],
) -> ClientListener:
    known = ", ".join(protocol.name for protocol in SecurityProtocol)
    try:
        protocol = SecurityProtocol(protocols[name])
    except KeyError:
        raise ListenerError(
            f"listener.security.protocol.map must map {name} to one of {known}"
        ) from None
    except ValueError:
        raise ListenerError(
            f"listener.security.protocol.map: {name} must be one of {known}, not {protocols[name]}"
        ) from None
    host, port = bind
    advertise: tuple[str, int | None] = (
        (socket.gethostname() if is_anywhere(host) else host, None)
        if advertised is None
        else advertised
    )
    if is_anywhere(advertise[0]):
        raise ListenerError(
            f"advertised.listeners: clients cannot connect to {advertise[0] or 'an empty host'};"
            f" give a host name or an address by which they reach {name}"
        )
    own = ListenerConfigs(configs, name)
    return ClientListener(
        name,
        protocol,
        (host or "0.0.0.0", port),  # noqa: S104
        advertise,
        _sasl(own) if protocol.has_sasl else None,
        _tls(own, protocol) if protocol.has_tls else None,
    )


def _sasl(configs: ListenerConfigs) -> SaslSettings:
    mechanisms = configs.list("sasl.enabled.mechanisms")
    if not mechanisms:
        raise ListenerError(f"sasl.enabled.mechanisms of {configs.listener} is empty")
    passwords: dict[str, str] = {}
    if PLAIN in mechanisms:
        passwords = plain_users(_jaas(configs, PLAIN))
        if not passwords:
            raise ListenerError(
                f"{_jaas_name(configs, PLAIN)} has no user for {PLAIN}; example:"
                ' org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="...";'
            )
    return SaslSettings(
        mechanisms,
        passwords,
        configs.integer("connections.max.reauth.ms"),
        configs.integer("connection.failed.authentication.delay.ms"),
        configs.integer("sasl.server.max.receive.size"),
    )


def _tls(configs: ListenerConfigs, protocol: SecurityProtocol) -> TlsSettings:
    store, trusted = configs.find("ssl.keystore.location"), configs.find("ssl.truststore.location")
    if not store:
        raise ListenerError(
            f"ssl.keystore.location must name the PEM file with the key and the certificate of"
            f" {configs.listener}"
        )
    # With SASL, only a listener's own ssl.client.auth requests certificates (KIP-684).
    asks = configs.find("ssl.client.auth", inherits=not protocol.has_sasl)
    clients = _CLIENT_CERTIFICATES[str(asks)]
    if clients != "none" and not trusted:
        raise ListenerError(
            f"ssl.client.auth of {configs.listener} is {clients}: ssl.truststore.location"
            " must name the PEM file with the authorities of clients' certificates"
        )
    files = TlsFiles(str(store), str(store), None if not trusted else str(trusted))
    try:
        rules = PrincipalMapping(configs.text("ssl.principal.mapping.rules"))
    except ValueError as error:
        raise ListenerError(f"ssl.principal.mapping.rules: {error}") from None
    try:
        server_context(files, client_certificates=clients)
    except TlsFilesError as error:
        raise ListenerError(f"listener {configs.listener}: {error}") from None
    return TlsSettings(files, clients, rules)


_CLIENT_CERTIFICATES: Final[Mapping[str, ClientCertificates]] = {
    "none": "none",
    "requested": "requested",
    "required": "required",
}


def _dialing(configs: Configs, listener: str, tls: TlsSettings) -> TlsFiles:
    """Return the TLS files for connections to other nodes, which also verify their certificates."""
    if tls.files.authorities is None:
        raise ListenerError(
            f"nodes reach each other by {listener}: ssl.truststore.location must name"
            " the PEM file with the authorities of their certificates"
        )
    algorithm = ListenerConfigs(configs, listener).find("ssl.endpoint.identification.algorithm")
    return replace(tls.files, verify_hostname=bool(algorithm))


def _login(configs: Configs, listener: ClientListener) -> Login:
    own = ListenerConfigs(configs, listener.name)
    mechanism = configs.text("sasl.mechanism.inter.broker.protocol")
    assert listener.sasl is not None
    if mechanism not in listener.sasl.mechanisms:
        raise ListenerError(
            f"sasl.mechanism.inter.broker.protocol is {mechanism}, which is not among the"
            f" sasl.enabled.mechanisms of {listener.name}"
        )
    options = _jaas(own, mechanism)
    if not (options.get("username") and options.get("password")):
        raise ListenerError(
            f"{_jaas_name(own, mechanism)} must have username and password: nodes reach each"
            f" other by {listener.name}"
        )
    return Login(mechanism, options["username"], options["password"])


def _jaas(configs: ListenerConfigs, mechanism: str) -> dict[str, str]:
    text = configs.find("sasl.jaas.config", mechanism)
    if not text:
        return {}
    assert isinstance(text, str)
    try:
        return jaas_options(text)
    except ValueError as error:
        raise ListenerError(f"{_jaas_name(configs, mechanism)} {error}") from None


def _jaas_name(configs: ListenerConfigs, mechanism: str) -> str:
    return f"listener.name.{configs.listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
