"""Encoding of coordinator records as batches that the topic's configs allow, and refusals.

Plain functions without I/O.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from dataplane.config.topic import TopicConfig
from dataplane.coordinators.shard import CoordinatorRecord
from dataplane.log.segments.config import NEVER
from dataplane.partition.partition import Partition
from wire.primitives.errors import ErrorCode, KafkaError
from wire.records.batches import HEADER_BYTES
from wire.records.compression import Codec
from wire.records.records import Record, encode_batch

# Bytes of a record besides key and value: attributes, and six varints of at most 5 to 10 bytes.
_RECORD_BYTES: Final = 32
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_NOT_LED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)


class EncodedBatch(NamedTuple):
    """One record batch, and the records in it, which all have the timestamp."""

    records: Sequence[CoordinatorRecord]
    timestamp_ms: int
    data: bytearray


def encoded_bytes(record: CoordinatorRecord) -> int:
    """Return the size of the record in a batch without compression, or a little more."""
    return _RECORD_BYTES + len(record.key) + len(record.value or b"")


def encoded_batches(
    records: Sequence[CoordinatorRecord], config: TopicConfig, codec: Codec, timestamp_ms: int
) -> list[EncodedBatch]:
    """Return the records as batches, nearly always one.

    `codec` is used if the topic's compression.type is `producer`.
    Raises KafkaError (MESSAGE_TOO_LARGE) if a record alone exceeds max.message.bytes or
    segment.bytes.
    """
    max_bytes = min(config.max_message_bytes, config.log.segment_bytes)
    batches: list[EncodedBatch] = []
    for some in _divided(records, max_bytes - HEADER_BYTES):
        data = encode_batch(
            [
                Record(offset, timestamp_ms, record.key, record.value)
                for offset, record in enumerate(some)
            ],
            codec=codec if config.codec is None else config.codec,
            level=config.compression_level,
        )
        if len(data) > max_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {len(data)} bytes with {len(some)} coordinator records exceeds"
                f" max.message.bytes or segment.bytes of the topic, {max_bytes}",
            )
        batches.append(EncodedBatch(some, timestamp_ms, data))
    return batches


def _divided(
    records: Sequence[CoordinatorRecord], max_bytes: int
) -> Iterator[Sequence[CoordinatorRecord]]:
    """Yield the records in runs of at most `max_bytes`; a larger record is alone in its run."""
    first = size_bytes = 0
    for index, record in enumerate(records):
        added = encoded_bytes(record)
        if index > first and size_bytes + added > max_bytes:
            yield records[first:index]
            first, size_bytes = index, 0
        size_bytes += added
    if first < len(records):
        yield records[first:]


def split_oversized(
    records: Sequence[CoordinatorRecord], config: TopicConfig, codec: Codec
) -> tuple[list[CoordinatorRecord], list[CoordinatorRecord]]:
    """Return the records that fit into a batch, and those that are too large."""
    fitting: list[CoordinatorRecord] = []
    oversized: list[CoordinatorRecord] = []
    for record in records:
        try:
            encoded_batches([record], config, codec, 0)
        except KafkaError:
            oversized.append(record)
        else:
            fitting.append(record)
    return fitting, oversized


def not_coordinator(partition: Partition | str) -> KafkaError:
    return KafkaError(ErrorCode.NOT_COORDINATOR, f"this worker does not lead partition {partition}")


def needs_flush(partition: Partition) -> bool:
    """Return whether flush.messages requires a flush before a write is answered."""
    plog = partition.log
    most = plog.config.flush_messages
    return most != NEVER and most <= plog.unflushed_records


def for_clients(partition: Partition, error: KafkaError) -> KafkaError:
    """Return the error of a refused append as clients of a coordinator know it."""
    if error.code in _TOO_LARGE:
        return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, error.message)
    if error.code in _NOT_LED:
        return not_coordinator(partition)
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
