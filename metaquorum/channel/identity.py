"""Who a node is to the other nodes of its cluster, and the secret by which it shows it."""

import os
import secrets
import stat
from collections.abc import Collection
from dataclasses import field
from enum import IntEnum
from typing import Final

from metaquorum.security.tls_context import TlsFiles
from wire.primitives.frozen import frozen

MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 4096
NEW_SECRET_BYTES: Final = 32
MAX_CLUSTER_ID_BYTES: Final = 64
# The node id of a program that is no node of the cluster but has its secret.
TOOL_ID: Final = -1


class StreamKind(IntEnum):
    PEER = 1  # between two voters of the quorum
    RPC = 2  # from a worker or a tool to a controller
    REPLICA = 3  # from a follower to a leader, on a connection of the inter-broker listener


class SecretError(Exception):
    """The cluster's secret cannot be used; one sentence that says what to do."""


@frozen
class ChannelIdentity:
    cluster_id: str
    node_id: int
    secret: bytes = field(repr=False)
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        assert 0 < len(self.cluster_id.encode()) <= MAX_CLUSTER_ID_BYTES
        if len(self.secret) < MIN_SECRET_BYTES:
            raise SecretError(f"the cluster's secret has fewer than {MIN_SECRET_BYTES} bytes")


def require_secret(secret: bytes | None, node_id: int, controllers: Collection[int]) -> None:
    """Who speaks to other nodes has a secret. SecretError."""
    if secret is None and set(controllers) != {node_id}:
        raise SecretError(
            f"node {node_id} and the controllers {sorted(controllers)} are several nodes, which"
            " need a cluster secret: give each of them the same secret file"
        )


def read_secret(path: str) -> bytes:
    """What the file holds, without white space around it. SecretError."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise SecretError(f"the secret file {path} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise SecretError(
            f"the secret file {path} is open to every user of this machine: chmod 600 {path}"
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
    """A new secret, in a new file that its owner alone may read. SecretError."""
    secret = secrets.token_urlsafe(NEW_SECRET_BYTES).encode()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(secret + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise SecretError(f"the secret file {path} exists already and is not replaced") from None
    except OSError as error:
        raise SecretError(f"the secret file {path} cannot be made: {error.strerror}") from None
    return secret
