"""SaslAuthenticate (36): one message of the chosen SASL mechanism. KIP-152, KIP-368."""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, blob, int16, int64, string


class SaslAuthenticateRequest(Message, api=36, versions="0-2", flexible="2+"):
    auth_bytes: bytes = blob()


class SaslAuthenticateResponse(Message, api=36, versions="0-2", flexible="2+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    auth_bytes: bytes = blob()
    session_lifetime_ms: int = int64("1+", ignorable=True)
