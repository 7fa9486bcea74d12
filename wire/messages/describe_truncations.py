"""DescribeTruncations (10002): records that this worker's replicas lost. An API of this project."""

from __future__ import annotations

from metaquorum.wire.schema.message import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class DescribeTruncationsRequest(Message, api=10002, versions="0", flexible="0+"):
    """Requests the truncations of these topics; null: of all topics."""

    topics: list[str] | None = array(string, nullable="0+", default=None)


class DescribedTruncation(Struct):
    """One truncation of one replica. `end_offset` is -1 if it is not known."""

    time_ms: int = int64()
    topic: str = string()
    topic_id: bytes = uuid()
    partition: int = int32()
    reason: str = string()
    offset: int = int64()
    end_offset: int = int64(default=-1)
    last_epoch: int = int32(default=-1)
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)
    high_watermark: int = int64(default=-1)
    acknowledged: str = string()
    detail: str = string()


class DescribeTruncationsResponse(Message, api=10002, versions="0", flexible="0+"):
    """Truncations, oldest first. `has_forgotten`: older ones may have been dropped."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    has_forgotten: bool = boolean()
    truncations: list[DescribedTruncation] = array(DescribedTruncation)
