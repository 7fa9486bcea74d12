"""Encoding of coordinator records as batches that the topic's configs allow. No I/O."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, NoReturn

from metaquorum.dataplane.config.topic import TopicConfig
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.varint import varint
from metaquorum.wire.records.batches import (
    CRC_START,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    BatchHeader,
    pack_after_crc,
    pack_up_to_crc,
)
from metaquorum.wire.records.crc import crc32c
from metaquorum.wire.records.records import encode_pairs

# Records and bytes of one batch: larger writes are several batches, each replayed in one step.
BATCH_RECORDS: Final = 1000
BATCH_BYTES: Final = 512 << 10
# Bytes of a record without key and value: attributes, and six varints.
_RECORD_BYTES: Final = 32
_new_tuple: Final = tuple.__new__  # creates a NamedTuple without the call of its own __new__
_NULL_AND_NO_HEADERS: Final = b"\1\0"
NOT_WRITTEN: Final = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.RECORD_LIST_TOO_LARGE,
}
# Refusals of a transaction by the log, which its producer or its coordinator must know.
OF_TRANSACTIONS: Final = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    )
)


def refusal(error: KafkaError) -> ErrorCode:
    """Return the error for the client whose write, or marker, the log has refused."""
    if error.code in OF_TRANSACTIONS:
        return error.code
    return NOT_WRITTEN.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR)


class EncodedBatch(NamedTuple):
    records: Sequence[CoordinatorRecord]
    data: bytearray


def encoded_batches(
    records: Sequence[CoordinatorRecord],
    config: TopicConfig,
    timestamp_ms: int,
    transaction_of: tuple[int, int] | None = None,
) -> list[EncodedBatch]:
    """Return the records as batches, nearly always one; of a transaction of producer id and epoch.

    Raises KafkaError (MESSAGE_TOO_LARGE) if a record exceeds max.message.bytes or segment.bytes.
    """
    max_bytes = min(config.max_message_bytes, config.log.segment_bytes)
    if len(records) == 1:
        return [_encoded(records, max_bytes, timestamp_ms, transaction_of)]
    divided = _divided(records, min(BATCH_BYTES, max_bytes - HEADER_BYTES))
    return [_encoded(some, max_bytes, timestamp_ms, transaction_of) for some in divided]


def encoded_record(
    record: CoordinatorRecord, config: TopicConfig, timestamp_ms: int
) -> tuple[bytearray, BatchHeader]:
    """Return a batch of one record, and its header. Raises KafkaError as `encoded_batches` does.

    The same as `encode_pairs` and `parse_header`, in half the time: each transaction writes three.
    """
    key, value = record.key, record.value
    if value is None:
        body = b"\0\0\0" + varint(len(key)) + key + _NULL_AND_NO_HEADERS
    else:
        body = b"\0\0\0" + varint(len(key)) + key + varint(len(value)) + value + b"\0"
    checked = pack_after_crc(0, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1)
    checked += varint(len(body)) + body
    crc, size_bytes = crc32c(checked), CRC_START + len(checked)
    data = bytearray(pack_up_to_crc(0, size_bytes - PREFIX_BYTES, -1, MAGIC, crc))
    data += checked
    if len(data) > config.max_message_bytes or len(data) > config.log.segment_bytes:
        _refuse(data, min(config.max_message_bytes, config.log.segment_bytes))
    return data, _new_tuple(
        BatchHeader,
        (0, size_bytes, -1, MAGIC, crc, 0, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1),
    )


def _encoded(
    records: Sequence[CoordinatorRecord],
    max_bytes: int,
    timestamp_ms: int,
    transaction_of: tuple[int, int] | None,
) -> EncodedBatch:
    data = encode_pairs([each[:2] for each in records], timestamp_ms, transaction_of)
    if len(data) > max_bytes:
        _refuse(data, max_bytes)
    return EncodedBatch(records, data)


def _refuse(data: bytearray, max_bytes: int) -> NoReturn:
    raise KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a coordinator record of {len(data)} bytes exceeds max.message.bytes or"
        f" segment.bytes of the topic, {max_bytes}",
    )


def _divided(
    records: Sequence[CoordinatorRecord], max_bytes: int
) -> Iterator[Sequence[CoordinatorRecord]]:
    """Yield the records in runs of at most `max_bytes`; a larger record is alone in its run."""
    first = size_bytes = 0
    for index, record in enumerate(records):
        added = _RECORD_BYTES + len(record.key) + len(record.value or b"")
        if index > first and (size_bytes + added > max_bytes or index - first == BATCH_RECORDS):
            yield records[first:index]
            first, size_bytes = index, 0
        size_bytes += added
    yield records[first:]
