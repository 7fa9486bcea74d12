"""An unauthenticated client cannot find out which users exist."""

import base64
from pathlib import Path

import pytest

from metaquorum.security.scram import BY_SASL_NAME
from metaquorum.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from metaquorum.wire.messages.sasl_handshake import SaslHandshakeRequest
from metaquorum.wire.protocol.apis import ApiKey
from tests.hostile.honest import Client
from tests.hostile.test_secrets_on_disk import guarded_node
from tests.nodes import Node, elsewhere

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="users of another cluster are its own")

Shown = tuple[bytes, int]


def shown_of(node: Node, user: str, mechanism: str) -> Shown:
    """Return the salt and the iteration count of the server's first message."""
    host, port = node.bootstrap.split(":")
    client = Client(host, int(port))
    client.call(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=mechanism))
    asked = SaslAuthenticateRequest(auth_bytes=f"n,,n={user},r=abcdef".encode())
    answer = client.call(ApiKey.SASL_AUTHENTICATE, asked)
    client.close()
    fields = dict(part.split("=", 1) for part in bytes(answer.auth_bytes).decode().split(","))
    return base64.b64decode(fields["s"]), int(fields["i"])


def test_users_cannot_be_told_from_decoys(tmp_path: Path) -> None:
    node, admin = guarded_node(tmp_path)
    node.start()
    admin("users", "create", "alice", "--mechanism", "SCRAM-SHA-512", stdin="a password")

    def shown() -> dict[tuple[str, str], Shown]:
        users = ("alice", "nobody", "somebody", "x" * 249, "Ünïcode")
        return {(u, m): shown_of(node, u, m) for u in users for m in BY_SASL_NAME}

    before = shown()
    assert len({(len(salt), iterations) for salt, iterations in before.values()}) == 1
    node.kill()
    node.start()
    assert shown() == before, "a client that returns after a restart learns which users exist"
    admin("users", "delete", "alice", "--yes")
    assert shown() == before, "a client that returns later learns which user was deleted"
    node.stop()
