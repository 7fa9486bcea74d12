"""AuthenticateReplica (10005): one message of the handshake that authenticates a follower to a
leader. An API of this project, not of Kafka, modelled on SaslAuthenticate.
"""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, blob, int16, string


class AuthenticateReplicaRequest(Message, api=10005, versions="0", flexible="0+"):
    """First the follower's hello; in a second request its proof."""

    auth_bytes: bytes = blob()


class AuthenticateReplicaResponse(Message, api=10005, versions="0", flexible="0+"):
    """First the leader's hello, then its proof. With an error, `auth_bytes` is the rejection."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    auth_bytes: bytes = blob()
