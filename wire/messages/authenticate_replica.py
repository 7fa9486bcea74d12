"""AuthenticateReplica (10005): one message of the handshake by which a follower proves to a leader
which worker it is. An API of our own, in the style of SaslAuthenticate.
"""

from __future__ import annotations

from wire.schema.message import Message, blob, int16, string


class AuthenticateReplicaRequest(Message, api=10005, versions="0", flexible="0+"):
    """The follower's hello; then, in a second request, its proof."""

    auth_bytes: bytes = blob()


class AuthenticateReplicaResponse(Message, api=10005, versions="0", flexible="0+"):
    """The leader's hello, then its proof. On an error `auth_bytes` is the handshake's refusal."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    auth_bytes: bytes = blob()
