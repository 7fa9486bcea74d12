"""EndTxn (26): commits or aborts a transaction. KIP-98; KIP-890 (the next producer epoch)."""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, boolean, int16, int32, int64, string


class EndTxnRequest(Message, api=26, versions="0-5", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message, api=26, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)
