"""Identity of a node within its cluster, and the cluster secret that authenticates the node."""

import os
import secrets
import stat
from collections.abc import Collection
from dataclasses import field
from enum import IntEnum
from typing import Final

from metaquorum.security.tls_context import TlsFiles
from metaquorum.wire.primitives.frozen import frozen

MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 4096
NEW_SECRET_BYTES: Final = 32
MAX_CLUSTER_ID_BYTES: Final = 64
# Node id of a program that has the cluster secret without being a node of the cluster.
TOOL_ID: Final = -1


class StreamKind(IntEnum):
    """Purpose of a stream."""

    PEER = 1  # between two voters of the quorum
    RPC = 2  # from a worker or a tool to a controller
    REPLICA = 3  # from a follower to a leader, on a connection of the inter-broker listener


class SecretError(Exception):
    """Raised if the cluster secret cannot be used; the message says what to do."""


@frozen
class ChannelIdentity:
    """Identity of a node. Raises SecretError if `secret` is too short."""

    cluster_id: str
    node_id: int
    secret: bytes = field(repr=False)
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        assert 0 < len(self.cluster_id.encode()) <= MAX_CLUSTER_ID_BYTES
        if len(self.secret) < MIN_SECRET_BYTES:
            raise SecretError(f"the cluster secret has fewer than {MIN_SECRET_BYTES} bytes")


def require_secret(secret: bytes | None, node_id: int, controllers: Collection[int]) -> None:
    """Raise SecretError if the node has other nodes to connect to and `secret` is None."""
    if secret is None and set(controllers) != {node_id}:
        raise SecretError(
            f"node {node_id} needs a cluster secret to connect to the controllers"
            f" {sorted(controllers)}: configure the same secret file on every node"
        )


def read_secret(path: str) -> bytes:
    """Return the secret in the file, without white space around it. Blocking.

    Raises SecretError if the file cannot be read, is open to all users, or if the secret is
    shorter than MIN_SECRET_BYTES or longer than MAX_SECRET_BYTES.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise SecretError(f"cannot read the secret file {path}: {error.strerror}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise SecretError(
            f"the secret file {path} is accessible to all users of this machine: chmod 600 {path}"
        )
    if len(data) > MAX_SECRET_BYTES:
        raise SecretError(f"the secret file {path} has more than {MAX_SECRET_BYTES} bytes")
    secret = data.strip()
    if len(secret) < MIN_SECRET_BYTES:
        raise SecretError(
            f"the secret file {path} has fewer than {MIN_SECRET_BYTES} bytes: write a longer secret"
        )
    return secret


def create_secret(path: str) -> bytes:
    """Write a new random secret to a new file of mode 600, and return the secret. Blocking.

    Raises SecretError if the file exists or cannot be written.
    """
    secret = secrets.token_urlsafe(NEW_SECRET_BYTES).encode()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(secret + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise SecretError(f"the secret file {path} exists already; it is not replaced") from None
    except OSError as error:
        raise SecretError(f"cannot create the secret file {path}: {error.strerror}") from None
    return secret
