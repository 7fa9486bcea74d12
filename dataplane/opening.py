"""What has to be done with the records inside a batch before it is appended.

Almost every topic takes batches as they come. A compacted one takes no record without a key, and
one with a codec of its own stores batches in that: these are opened. Opening may take long (a batch
of a few kilobytes may decompress to a hundred megabytes) and then belongs beside the loop.
"""

from typing import Final

from dataplane.topic_config import TopicConfig
from wire.batches import CODEC_MASK, HEADER_BYTES, BatchHeader, pack_batch, parse_header
from wire.compression import compress
from wire.errors import ErrorCode, KafkaError, WireError
from wire.record_spans import record_spans
from wire.records import MAX_DECOMPRESSED_BYTES, records_data
from wire.types import Buffer

# Of the records that are refused, so many are named.
MAX_NAMED_RECORDS: Final = 100
_SHOWN_RECORDS: Final = 3
# What the records of most batches have at most: these are opened side by side.
COMMON_BYTES: Final = 4 << 20
# Records of an uncompressed batch looked at in place: some two milliseconds.
INLINE_RECORDS: Final = 1000
_RECORD_COUNT_AT: Final = 57
_ATTRIBUTES_LOW_AT: Final = 22


class InvalidRecordsError(KafkaError):
    """Some records of a batch are refused, and so the batch; `records` says which and why."""

    def __init__(self, records: list[tuple[int, str]], count: int) -> None:
        shown = ", ".join(
            f"RecordError(batchIndex={index}, message='{text}')"
            for index, text in records[:_SHOWN_RECORDS]
        )
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"One or more records have been rejected due to {count} record errors in total, "
            f"and only showing the first three errors at most: [{shown}]",
        )
        self.records = records


def is_slow(config: TopicConfig, batch: Buffer) -> bool:
    """Whether this batch, of a topic that opens batches, has to be opened beside the loop."""
    if len(batch) < HEADER_BYTES:
        return False  # it will be refused for that
    codec = batch[_ATTRIBUTES_LOW_AT] & CODEC_MASK
    if config.codec is not None and codec != config.codec:
        return True
    count = int.from_bytes(batch[_RECORD_COUNT_AT:HEADER_BYTES], "big")
    return config.compacts and (codec != 0 or count > INLINE_RECORDS)


def opened(
    batch: bytearray | memoryview,
    header: BatchHeader,
    config: TopicConfig,
    partition: str,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> tuple[bytearray | memoryview, BatchHeader]:
    """The batch as it is to be appended; KafkaError when its records are not acceptable.

    INVALID_RECORD, too, when these have more than `max_bytes`.
    """
    try:
        data = records_data(batch, 0, header, max_bytes)
        _check_records(data, header, config, partition)
    except WireError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
    if config.codec is None or config.codec == header.codec:
        return batch, header
    body = compress(config.codec, data, config.compression_level)
    attributes = header.attributes & ~CODEC_MASK | config.codec
    stored = pack_batch(header._replace(attributes=attributes), body)
    if len(stored) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the record batch has {len(stored)} bytes as {config.codec.name.lower()}, {partition} "
            f"takes {config.max_message_bytes} (max.message.bytes)",
        )
    return stored, parse_header(stored)


def _check_records(data: bytes, header: BatchHeader, config: TopicConfig, partition: str) -> None:
    refused: list[tuple[int, str]] = []
    count = 0
    for index, span in enumerate(record_spans(data, header)):
        if span.key is None and config.compacts:
            count += 1
            if count <= MAX_NAMED_RECORDS:
                text = "Compacted topic cannot accept message without key in topic partition"
                refused.append((index, f"{text} {partition}"))
    if count:
        raise InvalidRecordsError(refused, count)
