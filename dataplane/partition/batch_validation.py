"""Validation of a produced batch: the leader walks its records before the append.

A batch with unreadable records would be acknowledged and then stop every consumer and the cleaner.
The leader therefore checks all records: structure, count, dense offset deltas, timestamps, and keys
if the topic is compacted. docs/explanation/record-validation.md lists the refusals and their
errors: those of Apache Kafka's LogValidator and a few more.
A wrong maximum timestamp in the header is corrected, and other versions in a snappy header, and the
checksum with them.
A follower checks the header and the checksum only.

A batch of many records, or a compressed one, takes long: `validation` works in slices, which the
caller runs in a worker thread (`is_slow`). A slice holds one piece of the decompressed records.
For a short compressed batch the thread would cost ten times the work: see `ShortBatches`.
"""

from collections.abc import Generator
from typing import Final, TypeAlias

from metaquorum.dataplane.config.topic import TopicConfig
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError
from metaquorum.wire.primitives.types import Buffer
from metaquorum.wire.protocol import request_form
from metaquorum.wire.records.batches import (
    ATTRIBUTES_LOW_AT,
    CODEC_MASK,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    pack_batch,
    parse_header,
    produced_batch,
    set_checksum,
    set_max_timestamp,
)
from metaquorum.wire.records.compression import (
    SHORT_COMPRESSED_BYTES,
    check_produced,
    compress_pieces,
    decompress_short,
    has_other_header,
    piece_sizes,
    set_plain_header,
)
from metaquorum.wire.records.record_walk import RECORD_MIN_BYTES
from metaquorum.wire.records.records import check_records, new_walk, record_pieces, record_spans
from metaquorum.wire.records.walk_form import is_compiled

Batch: TypeAlias = bytearray | memoryview
# Yields the bytes of records checked in each slice; a value above COMMON_BYTES is the size of the
# piece to be decompressed next. Returns the batch to store.
Validation: TypeAlias = Generator[int, None, tuple[Batch, BatchHeader]]

# Refused records listed in one response.
MAX_NAMED_RECORDS: Final = 100
_SHOWN_RECORDS: Final = 3
# Records of an uncompressed batch that are walked in the event loop, in some 0.3 milliseconds: by
# the interpreted walk, and by the compiled one, for which a switch to a thread would cost more.
INLINE_RECORDS: Final = 1000
INLINE_COMPILED_RECORDS: Final = 20_000
# Limits on the compressed batches of one request that are validated in the event loop.
MAX_OPENED: Final = 8
MAX_OPENED_BYTES: Final = 1 << 17  # bytes of decompressed records
# The same for the interpreted walk, which takes 0.7 µs for a header of a record.
_MAX_INTERPRETED_BYTES: Final = 1 << 14
# Limit on the decompressed bytes of a batch's records: clients count them in 31 bits. Also limits
# the cost of a decompression bomb.
MAX_RECORDS_BYTES: Final = (1 << 31) - 1
# Batches with more bytes of records than this, decompressed, are validated one at a time.
COMMON_BYTES: Final = 4 << 20
_BLOCKS_PER_SLICE: Final = 1000  # block sizes read per slice, a microsecond each
# An uncompressed batch of INLINE_RECORDS records is at least as large.
SHORT_BYTES: Final = HEADER_BYTES + INLINE_RECORDS * RECORD_MIN_BYTES
_MAX_TIMESTAMP: Final = (1 << 63) - 1
_RECORD_COUNT_AT: Final = 57


class InvalidRecordsError(KafkaError):
    """Raised if records of a batch are invalid; `records` lists their indexes and errors."""

    def __init__(self, code: ErrorCode, message: str, records: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.records = records


def is_slow(config: TopicConfig, batch: Buffer) -> bool:
    """Return whether the validation of this batch must run in a worker thread."""
    size = len(batch)
    if size < HEADER_BYTES:
        return False  # the header check refuses it
    if batch[ATTRIBUTES_LOW_AT] & CODEC_MASK or config.codec:
        return True
    if size < SHORT_BYTES:
        return False
    count = int.from_bytes(batch[_RECORD_COUNT_AT:HEADER_BYTES], "big")
    return count > INLINE_RECORDS and (count > INLINE_COMPILED_RECORDS or not is_compiled())


def plain_header(batch: memoryview, config: TopicConfig, now_ms: int) -> BatchHeader | None:
    """Return the header of an uncompressed batch that is valid and stored as it is: nearly all are.

    None does not refuse it: `produced_batch` and `validation` decide, and know the error to report
    or the timestamp to correct. They take ten times as long for a small batch.
    """
    if config.codec:
        return None
    plain = request_form.plain_batch(batch)
    if plain is None:
        return None
    header, least, null_keys = plain
    if (null_keys and config.compacts) or not _is_timely(config, least, header, now_ms):
        return None
    return header


class ShortBatches:
    """Validation in place of the short compressed batches of one Produce request.

    All of them together take up to half a millisecond; beyond that, and after one that is not valid
    and short, batches need a thread.
    """

    __slots__ = ("_left", "_left_bytes", "_version")

    def __init__(self, version: int) -> None:
        self._version = version
        self._left = MAX_OPENED
        self._left_bytes = MAX_OPENED_BYTES if is_compiled() else _MAX_INTERPRETED_BYTES

    def header(self, batch: memoryview, config: TopicConfig, now_ms: int) -> BatchHeader | None:
        """Return the header of a compressed batch that is short, valid and stored as it is.

        None does not refuse it, as in `plain_header`.
        """
        if not self._left or not batch[ATTRIBUTES_LOW_AT] & CODEC_MASK:
            return None
        self._left -= 1
        header = self._header(batch, config, now_ms)
        if header is None:
            self._left = 0
        return header

    def _header(self, batch: memoryview, config: TopicConfig, now_ms: int) -> BatchHeader | None:
        if len(batch) > HEADER_BYTES + SHORT_COMPRESSED_BYTES:
            return None
        try:
            header = produced_batch(batch, self._version)
            codec, body = header.codec, batch[HEADER_BYTES:]
            most_records = INLINE_COMPILED_RECORDS if is_compiled() else INLINE_RECORDS
            if not 0 < header.record_count <= most_records or config.codec not in (None, codec):
                return None
            check_produced(codec, body)
            if has_other_header(codec, body):
                return None
            records = decompress_short(codec, body, self._left_bytes)
            if records is None:
                return None
            self._left_bytes -= len(records)
            walk = new_walk(header.record_count, header.last_offset_delta, True)
            walk.finish(len(records) - walk.check(records))
        except (KafkaError, WireError):
            return None
        base = header.base_timestamp
        if (
            base + walk.max_timestamp_delta != header.max_timestamp
            or (walk.null_keys and config.compacts)
            or not _is_timely(config, base + walk.min_timestamp_delta, header, now_ms)
        ):
            return None
        return header


def _is_timely(config: TopicConfig, least: int, header: BatchHeader, now_ms: int) -> bool:
    return config.log_append_time or (
        least >= now_ms - config.timestamp_before_max_ms
        and header.max_timestamp <= now_ms + config.timestamp_after_max_ms
    )


def validated(
    batch: Batch, header: BatchHeader, config: TopicConfig, partition: object, now_ms: int
) -> tuple[Batch, BatchHeader]:
    """Run `validation` in one go, for a batch that is not slow."""
    slices = validation(batch, header, config, partition, now_ms)
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def validation(
    batch: Batch, header: BatchHeader, config: TopicConfig, partition: object, now_ms: int
) -> Validation:
    """Validate a batch in slices; return the batch to store and its header.

    The header was checked before (`metaquorum.wire.records.batches.produced_batch`). Raises
    KafkaError if the batch is refused. Blocking if `is_slow`: run it in a worker thread.
    """
    walked = 0
    walk = new_walk(header.record_count, header.last_offset_delta, True)
    try:
        check_produced(header.codec, memoryview(batch)[HEADER_BYTES:])
        yield from _announced(batch, header)
        for size in check_records(batch, 0, header, walk):
            walked += size
            if walked > MAX_RECORDS_BYTES:
                raise WireError(f"the batch has more than {MAX_RECORDS_BYTES} bytes of records")
            yield size
    except WireError as error:
        text = str(error)
        raise InvalidRecordsError(ErrorCode.INVALID_RECORD, text, [(walk.index, text)]) from None
    if not config.log_append_time:
        base = header.base_timestamp
        least, largest = base + walk.min_timestamp_delta, base + walk.max_timestamp_delta
        earliest = now_ms - config.timestamp_before_max_ms
        latest = min(now_ms + config.timestamp_after_max_ms, _MAX_TIMESTAMP)
        if least < earliest or largest > latest:
            yield from _refuse_records(batch, header, config, partition, (earliest, latest))
        if largest != header.max_timestamp:
            set_max_timestamp(batch, 0, header, largest)
            header = parse_header(batch)
    if walk.null_keys and config.compacts:
        yield from _refuse_records(batch, header, config, partition, None)
    if config.codec is None or config.codec == header.codec:
        records = memoryview(batch)[HEADER_BYTES:]
        if has_other_header(header.codec, records):
            set_plain_header(records)
            set_checksum(batch, 0, header)
            header = parse_header(batch)
        return batch, header
    return (yield from _recompressed(batch, header, config, partition))


def _announced(batch: Batch, header: BatchHeader) -> Generator[int, None, None]:
    """Yield the size of the first block above COMMON_BYTES, before it is decompressed."""
    for number, size in enumerate(piece_sizes(header.codec, memoryview(batch)[HEADER_BYTES:]), 1):
        if size > COMMON_BYTES:
            yield size
            return
        if number % _BLOCKS_PER_SLICE == 0:
            yield 0


def _refuse_records(
    batch: Batch,
    header: BatchHeader,
    config: TopicConfig,
    partition: object,
    times: tuple[int, int] | None,
) -> Generator[int, None, None]:
    """Raise InvalidRecordsError if a record has no required key or is out of the time range."""
    refused: list[tuple[int, str]] = []
    count = index = 0
    out_of_range = ""
    code = ErrorCode.INVALID_RECORD
    for data, spans in record_spans(batch, 0, header):
        for _, _, _, _, delta, _, key_length, _, _, _, _ in spans:
            text = ""
            timestamp = header.base_timestamp + delta
            if key_length < 0 and config.compacts:
                text = (
                    "Compacted topic cannot accept message without key in topic partition "
                    f"{partition}"
                )
            elif (
                times is not None
                and timestamp != NO_TIMESTAMP
                and not times[0] <= timestamp <= times[1]
            ):
                code = ErrorCode.INVALID_TIMESTAMP
                text = (
                    f"Timestamp {timestamp} of message with offset {index} is out of range. "
                    f"The timestamp should be within [{times[0]}, {times[1]}] "
                    "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
                )
                out_of_range = out_of_range or text
            if text:
                count += 1
                if count <= MAX_NAMED_RECORDS:
                    refused.append((index, text))
            index += 1
        yield len(data)
    if code is ErrorCode.INVALID_TIMESTAMP:
        message = f"One or more records have been rejected due to invalid timestamp: {out_of_range}"
        raise InvalidRecordsError(code, message, refused)
    if count:
        shown = ", ".join(
            f"RecordError(batchIndex={index}, message='{text}')"
            for index, text in refused[:_SHOWN_RECORDS]
        )
        message = (
            f"One or more records have been rejected due to {count} record errors in total, "
            f"and only showing the first three errors at most: [{shown}]"
        )
        raise InvalidRecordsError(code, message, refused)


def _recompressed(
    batch: Batch, header: BatchHeader, config: TopicConfig, partition: object
) -> Validation:
    """Return the batch compressed with the topic's codec."""
    codec, level = config.codec, config.compression_level
    assert codec is not None
    size = HEADER_BYTES
    output: list[bytes] = []
    for taken, made in compress_pieces(codec, record_pieces(batch, 0, header), level):
        output.append(made)
        size += len(made)
        if size > config.max_message_bytes:
            break
        yield taken
    if size > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the record batch has {size} bytes or more when compressed with "
            f"{codec.name.lower()}; {partition} allows {config.max_message_bytes} "
            "(max.message.bytes)",
        )
    attributes = header.attributes & ~CODEC_MASK | codec
    stored = pack_batch(header._replace(attributes=attributes), b"".join(output))
    return stored, parse_header(stored)
