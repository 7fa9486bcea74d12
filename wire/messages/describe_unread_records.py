"""DescribeUnreadRecords (10006): what a reader has not read yet. An API of this project."""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, Struct, array, int16, int32, int64, string


class PositionInPartition(Struct):
    """`offset`: of the next record to read, such as a committed offset."""

    partition_index: int = int32()
    offset: int = int64()


class PositionsInTopic(Struct):
    name: str = string()
    partitions: list[PositionInPartition] = array(PositionInPartition)


class DescribeUnreadRecordsRequest(Message, api=10006, versions="0", flexible="0+"):
    """Requests what follows these offsets, in partitions that the worker leads."""

    topics: list[PositionsInTopic] = array(PositionsInTopic)


class UnreadInPartition(Struct):
    """Committed records of a partition from an offset on; -1: not known.

    `record_count`: offsets from the first unread one to the high watermark, of which compaction and
    transaction markers leave fewer records. `size_bytes`: size of the batches, about.
    `first_timestamp_ms`: timestamp of the first record in the batch with the first unread record;
    -1, too, if all are read.
    """

    partition_index: int = int32()
    error_code: int = int16()
    log_start_offset: int = int64(default=-1)
    high_watermark: int = int64(default=-1)
    record_count: int = int64(default=-1)
    size_bytes: int = int64(default=-1)
    first_timestamp_ms: int = int64(default=-1)


class UnreadInTopic(Struct):
    name: str = string()
    partitions: list[UnreadInPartition] = array(UnreadInPartition)


class DescribeUnreadRecordsResponse(Message, api=10006, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    topics: list[UnreadInTopic] = array(UnreadInTopic)
