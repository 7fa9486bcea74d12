"""UnregisterBroker (64): removes the registration of a worker. KIP-631."""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, int16, int32, string


class UnregisterBrokerRequest(Message, api=64, versions="0", flexible="0+"):
    broker_id: int = int32()


class UnregisterBrokerResponse(Message, api=64, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
