"""AddOffsetsToTxn (25): adds the committed offsets of a group to a transaction. KIP-98."""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, int16, int32, int64, string


class AddOffsetsToTxnRequest(Message, api=25, versions="0-4", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Message, api=25, versions="0-4", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
