"""Names in requests cannot break log lines or control the terminal that shows the log.

All strings of all requests are such names: topics, clients, users, configs, groups, software.
"""

import contextlib
import json
import re
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest

from metaquorum.client.administration.users import new_upsertion
from metaquorum.runtime.one_line import UNSAFE
from metaquorum.security.scram import MIN_ITERATIONS, ScramClient, ScramMechanism
from metaquorum.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from metaquorum.wire.messages.sasl_handshake import SaslHandshakeRequest
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.protocol.headers import encode_request
from metaquorum.wire.schema.message import Message, Struct
from tests.hostile.honest import Client
from tests.metaquorum.security.certificates import Authority
from tests.nodes import PATIENCE_S, Node, elsewhere, free_ports

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="it is our log")

FORGED = "2026-01-01T00:00:00.000Z INFO    server: forged"
ENDS = ("\n", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\x1b[2K\r", "\u202e")
NAMES = [f"x{end}{FORGED}" for end in ENDS]
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR|CRITICAL) +\w+: .+")
# APIs that would stop or change the node itself, or that only nodes send.
NOT_ASKED = {ApiKey.UPDATE_FEATURES}


def filled(cls: type[Struct], version: int, text: str) -> Any:
    """Return a message with this text in all string fields, and one item in each array."""
    values: dict[str, Any] = {}
    for field in cls.FIELDS:
        if version not in field.versions:
            continue
        if field.kind == "string":
            values[field.name] = text
        elif field.kind == "bytes":
            values[field.name] = text.encode()
        elif field.kind == "array":
            item = field.item
            if isinstance(item, str):
                values[field.name] = [text if item == "string" else 1]
            elif item is not None:
                values[field.name] = [filled(item, version, text)]
    return cls(**values)


def told(address: tuple[str, int], source: str, data: bytes) -> None:
    """Send the bytes and wait until the node answers or closes the connection."""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(address, PATIENCE_S, (source, 0)) as sock,
    ):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass


def send_everywhere(ports: dict[str, int], source: str, text: str) -> None:
    for listener in ("PLAINTEXT", "SASL_PLAINTEXT"):
        address = ("127.0.0.1", ports[listener])
        for key, api in APIS.items():
            if key in NOT_ASKED:
                continue
            for version in {api.min_version, api.max_version}:
                with contextlib.suppress(ValueError):  # the message cannot carry this text
                    message = filled(api.request, version, text)
                    told(address, source, encode_request(key, version, 1, text, message))
    address = ("127.0.0.1", ports["SASL_PLAINTEXT"])
    for mechanism in (text, "PLAIN", "SCRAM-SHA-512"):
        for token in (f"\0{text}\0wrong", f"n,,n={text},r=abc", f"n,a={text},n={text},r={text}"):
            told(address, source, sasl(mechanism, token.encode()))
    head = f"GET /{text} HTTP/1.1\r\nhost: {text}\r\n\r\n"
    told(("127.0.0.1", ports["metrics"]), source, head.encode())


def sasl(mechanism: str, token: bytes) -> bytes:
    asked: list[tuple[ApiKey, int, Message]] = [
        (ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=mechanism)),
        (ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=token)),
    ]
    return b"".join(encode_request(key, version, 1, "c", each) for key, version, each in asked)


def overstay(ports: dict[str, int], user: str) -> None:
    """Create a user with this name, log in, and wait until the session expires, which is logged."""
    client = Client("127.0.0.1", ports["PLAINTEXT"])
    made = new_upsertion(user, ScramMechanism.SCRAM_SHA_512, "a password", MIN_ITERATIONS)
    asked = AlterUserScramCredentialsRequest(deletions=[], upsertions=[made])
    assert not client.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, asked).results[0].error_code
    client.close()
    client = Client("127.0.0.1", ports["SASL_PLAINTEXT"])
    client.call(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="SCRAM-SHA-512"))
    scram = ScramClient(ScramMechanism.SCRAM_SHA_512, user, "a password", "nonce")
    token = scram.first()
    for step in (scram.final, scram.finish):
        answer = client.call(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=token))
        token = step(bytes(answer.auth_bytes)) or b""
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            client.call(ApiKey.METADATA, MetadataRequest(topics=[]))
    client.close()


def guarded(folder: Path, log_format: str) -> tuple[Node, dict[str, int]]:
    names = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "metrics")
    first = free_ports(range(1, len(names)))
    ports = {name: first + offset for offset, name in enumerate(names)}
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    authority = Authority(folder)
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{ports[name]}" for name in names[:3]),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} user_alice="secret";',
        "connection.failed.authentication.delay.ms": 0,
        "connections.max.reauth.ms": 100,
        "ssl.keystore.location": authority.store("node"),
        "ssl.truststore.location": authority.path,
        "ssl.client.auth": "required",
    }
    metrics = ("--metrics-listen", f"127.0.0.1:{ports['metrics']}")
    return Node(folder, settings, "--log-format", log_format, *metrics), ports


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_name_ends_a_line_of_the_log(tmp_path: Path, log_format: str) -> None:
    node, ports = guarded(tmp_path, log_format)
    authority = Authority(tmp_path)  # unauthenticated
    node.start()
    try:
        # From separate addresses, starting with the requests that are certainly logged: each
        # address may cause some log lines, and all together a hundred.
        sources = {f"127.0.0.{number}": name for number, name in enumerate(NAMES, 2)}
        for source, name in sources.items():
            told(("127.0.0.1", ports["SASL_PLAINTEXT"]), source, sasl(name, b""))
            overstay(ports, name)
        for source, name in sources.items():
            send_everywhere(ports, source, name)
        shake_hands(ports["SSL"], tmp_path, authority, NAMES[0])
        node.stop()
    finally:
        node.kill()
    data = node.errors.read_bytes()
    lines = data.decode().split("\n")
    assert lines.pop() == ""
    assert "on the command line" in lines.pop(0), "of the password that this test gives there"
    for source in sources:
        assert any(f" {source}:" in line and "forged" in line for line in lines)
    assert sum("the session of User:x" in line for line in lines) == len(NAMES)
    for line in lines:
        assert not UNSAFE.search(line), line
        if log_format == "json":
            assert set(json.loads(line)) == {"time", "level", "logger", "message"}
        else:
            assert LINE.fullmatch(line), line
            assert not line.startswith(FORGED)


def shake_hands(port: int, folder: Path, authority: Authority, name: str) -> None:
    own = authority.files("hostile", common_name=name[:64])
    context = ssl.create_default_context(cafile=authority.path)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(own.certificate, own.key)
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock,
        context.wrap_socket(sock) as secured,
    ):
        secured.sendall(struct.pack(">i", 10) + b"forgedname")
        secured.recv(1)
