"""RenewDelegationToken (39): a later expiry of a delegation token. KIP-48."""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, blob, int16, int32, int64


class RenewDelegationTokenRequest(Message, api=39, versions="1-2", flexible="2+"):
    hmac: bytes = blob()
    renew_period_ms: int = int64()


class RenewDelegationTokenResponse(Message, api=39, versions="1-2", flexible="2+"):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
