"""CreateDelegationToken (38): a token to authenticate with, for a password. KIP-48, KIP-373."""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, Struct, array, blob, int16, int32, int64, string


class CreatableRenewers(Struct):
    principal_type: str = string()
    principal_name: str = string()


class CreateDelegationTokenRequest(Message, api=38, versions="1-3", flexible="2+"):
    owner_principal_type: str | None = string("3+", nullable="3+", default=None)
    owner_principal_name: str | None = string("3+", nullable="3+", default=None)
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()


class CreateDelegationTokenResponse(Message, api=38, versions="1-3", flexible="2+"):
    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = blob()
    throttle_time_ms: int = int32()
