"""DescribeTruncations (10002): what replicas of this worker have lost. An API of our own."""

from __future__ import annotations

from wire.schema.message import Message, Struct, array, boolean, int16, int32, int64, string, uuid


class DescribeTruncationsRequest(Message, api=10002, versions="0", flexible="0+"):
    """Of these topics; null: of all."""

    topics: list[str] | None = array(string, nullable="0+", default=None)


class DescribedTruncation(Struct):
    """An `end_offset` that nobody knows is -1."""

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
    """The oldest first. `has_forgotten`: there may have been others before."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    has_forgotten: bool = boolean()
    truncations: list[DescribedTruncation] = array(DescribedTruncation)
