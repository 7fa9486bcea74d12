"""Headers of record batches, format v2: parsed, checked and patched in place.

    0  base_offset            int64   assigned by the leader; outside the checksum
    8  size after this field  int32
   12  partition leader epoch int32   assigned by the leader; outside the checksum
   16  magic                  int8    2
   17  crc                    uint32  CRC-32C of all bytes from 21 on
   21  attributes             int16   bits 0-2 codec, 3 log append time, 4 transactional, 5 control,
                                      6 base_timestamp is a delete horizon
   23  last_offset_delta      int32   not changed when compaction removes records
   27  base_timestamp         int64
   35  max_timestamp          int64
   43  producer_id            int64   -1: none; the same for epoch and sequence
   51  producer_epoch         int16
   53  base_sequence          int32
   57  record_count           int32
   61  records                        compressed as one block; see metaquorum.wire.records.records

Source: the Kafka protocol guide, "Record Batch"; KIP-98 for producers, KIP-534 for delete horizons.
No function here copies a batch or parses its records. A malformed batch raises KafkaError with the
error code for the Produce response.
"""

from collections.abc import Iterator
from enum import Enum
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError
from metaquorum.wire.primitives.types import Buffer
from metaquorum.wire.records.compression import Codec
from metaquorum.wire.records.crc import crc32c

MAGIC: Final = 2
HEADER_BYTES: Final = 61
NO_PRODUCER_ID: Final = -1
NO_TIMESTAMP: Final = -1

# Bits of the attributes
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

_CODECS: Final = tuple(Codec)  # by number
PREFIX_BYTES: Final = 12  # base_offset and size, which `size` does not count
CRC_START: Final = 21  # position of the first byte that the checksum covers
_MAGIC_AT: Final = 16
ATTRIBUTES_LOW_AT: Final = 22  # the byte of the attributes that has all flags
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_NOT_FOR_PRODUCERS: Final = LOG_APPEND_TIME | CONTROL | DELETE_HORIZON
_ZSTD_SINCE: Final = 7  # KIP-110
# A constant, because Python 3.11 looks up members of an enum slowly.
_ZSTD: Final = int(Codec.ZSTD)
_WRONG_CRC: Final = "the record batch's checksum does not match"

# The fields of the header as far as the checksum, and the rest, as `struct` names them.
_UP_TO_CRC: Final = "qiibI"
AFTER_CRC: Final = "hiqqqhii"
_HEADER: Final = Struct(f">{_UP_TO_CRC}{AFTER_CRC}")
# unpack_header(buffer, position), and both parts as bytes from the values of their fields
unpack_header: Final = _HEADER.unpack_from
pack_up_to_crc: Final = Struct(f">{_UP_TO_CRC}").pack
pack_after_crc: Final = Struct(f">{AFTER_CRC}").pack
_pack_offset = Struct(">q").pack_into
# Sets the base offset and leader epoch, which the checksum does not cover, without a Python frame:
# assign(buffer, position, base offset, bytes of the batch - PREFIX_BYTES, leader epoch)
assign: Final = Struct(">qii").pack_into
_pack_crc = Struct(">I").pack_into
_pack_attributes = Struct(">h").pack_into


class TimestampType(Enum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    base_offset: int
    batch_bytes: int  # the whole batch
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, which wraps to 0 after 2^31 - 1; -1 for none."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & _SEQUENCE_MASK

    @property
    def codec(self) -> Codec:
        """Compression codec of the records. Raises WireError if the number is unknown."""
        number = self.attributes & CODEC_MASK
        if number > Codec.ZSTD:
            raise WireError(f"attributes: codec {number} is unknown")
        return _CODECS[number]

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(self.attributes >> 3 & 1)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time after which compaction may remove the batch's tombstones and markers, if set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


_new_tuple = tuple.__new__


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at `position`. Raises KafkaError if it is not that of a v2 batch.

    The batch may end beyond the buffer, and its checksum is not checked: see `check_batch`.
    """
    try:
        (
            base,
            size,
            epoch,
            magic,
            crc,
            attributes,
            last,
            first_time,
            max_time,
            pid,
            pepoch,
            seq,
            n,
        ) = unpack_header(buffer, position)
    except struct_error:
        raise _headless(buffer, position) from None
    if magic != MAGIC:
        raise _wrong_magic(magic)
    size += PREFIX_BYTES
    if size < HEADER_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a record batch of {size} bytes is too small")
    return _new_tuple(
        BatchHeader,
        (
            base,
            size,
            epoch,
            magic,
            crc,
            attributes,
            last,
            first_time,
            max_time,
            pid,
            pepoch,
            seq,
            n,
        ),
    )


def _headless(buffer: Buffer, position: int) -> KafkaError:
    left = max(0, len(buffer) - position)
    if (
        left > _MAGIC_AT and buffer[position + _MAGIC_AT] != MAGIC
    ):  # older formats have shorter headers
        return _wrong_magic(buffer[position + _MAGIC_AT])
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f"the record batch's header is incomplete: {left} bytes"
    )


def _wrong_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"message format v{magic} is not supported; use v2",
        )
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the record batch has the unknown magic {magic}")


def batches(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each complete batch in the buffer.

    A partial batch at the end is ignored. Raises KafkaError at a malformed header. Checksums and
    records are not checked.
    """
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        header = parse_header(buffer, position)
        if header.batch_bytes > end - position:
            return
        yield position, header
        position += header.batch_bytes


# Batches of Produce requests


def produced_batch(records: Buffer, api_version: int) -> BatchHeader:
    """Return the header of the batch that a Produce request has for one partition.

    Raises KafkaError if `records` is not exactly one valid batch. The codes are those of Apache
    Kafka 4.3: INVALID_RECORD for older formats and for any number of batches other than one.
    """
    try:
        header = parse_header(records)
    except KafkaError as error:
        if len(records) >= HEADER_BYTES and error.code is ErrorCode.CORRUPT_MESSAGE:
            raise
        raise KafkaError(ErrorCode.INVALID_RECORD, error.message) from None
    if header.batch_bytes != len(records):
        problem = f"{len(records)} bytes of records, but the first batch has {header.batch_bytes}"
        raise KafkaError(ErrorCode.INVALID_RECORD, problem)
    if crc32c(records[CRC_START:]) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, _WRONG_CRC)
    _check_produced(header)
    if header.base_offset != 0:
        problem = f"base offset {header.base_offset} instead of 0"
        raise KafkaError(ErrorCode.INVALID_RECORD, problem)
    if api_version < _ZSTD_SINCE and header.attributes & CODEC_MASK == _ZSTD:
        problem = f"zstd needs Produce version {_ZSTD_SINCE}"
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, problem)
    return header


def check_batch(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raise KafkaError unless the header and checksum are valid for a batch of a producer.

    The records are not checked: see `metaquorum.wire.records.records.check_records`.
    """
    if header.batch_bytes > len(buffer) - position:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"only {len(buffer) - position} of {header.batch_bytes} bytes of a record batch",
        )
    if batch_crc(buffer, position, header.batch_bytes) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, _WRONG_CRC)
    _check_produced(header)


def _check_produced(header: BatchHeader) -> None:
    attributes = header.attributes
    if attributes & CODEC_MASK > _ZSTD:
        problem = f"codec {attributes & CODEC_MASK} is unknown"
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, problem)
    count = header.record_count
    if count < 1 or header.last_offset_delta != count - 1:
        problem = f"{count} records with the last offset delta {header.last_offset_delta}"
    elif attributes & _NOT_FOR_PRODUCERS:
        problem = f"attributes {attributes:#x} have a bit that only workers set"
    elif header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        problem = f"producer id {header.producer_id} without epoch or sequence"
    elif attributes & TRANSACTIONAL and header.producer_id < 0:
        problem = "a transactional batch without a producer id"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_RECORD, problem)


def batch_crc(buffer: Buffer, position: int, batch_bytes: int) -> int:
    """Return the computed checksum of this batch."""
    return crc32c(memoryview(buffer)[position + CRC_START : position + batch_bytes])


def set_log_append_time(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp_ms: int
) -> None:
    """Set the log append time of all records of the batch, and update the checksum."""
    _pack_attributes(buffer, position + 21, header.attributes | LOG_APPEND_TIME)
    _pack_offset(buffer, position + 35, timestamp_ms)
    _pack_crc(buffer, position + 17, batch_crc(buffer, position, header.batch_bytes))


def set_max_timestamp(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp_ms: int
) -> None:
    """Set the maximum timestamp of the header, and update the checksum."""
    _pack_offset(buffer, position + 35, timestamp_ms)
    _pack_crc(buffer, position + 17, batch_crc(buffer, position, header.batch_bytes))


def set_checksum(buffer: bytearray | memoryview, position: int, header: BatchHeader) -> None:
    """Update the checksum after a change of the records."""
    _pack_crc(buffer, position + 17, batch_crc(buffer, position, header.batch_bytes))


# Batches stored in a log


class BatchState(Enum):
    WHOLE = "whole"
    TORN = "torn"  # the buffer ends inside the batch, according to its size field
    CORRUPT = "corrupt"


class Scan(NamedTuple):
    state: BatchState
    header: BatchHeader | None  # None if the header cannot be parsed
    problem: str


def scan(buffer: Buffer, position: int = 0) -> Scan:
    """Check the stored batch at `position`; return the result instead of raising."""
    if len(buffer) - position < HEADER_BYTES:
        return Scan(BatchState.TORN, None, f"only {len(buffer) - position} bytes of a header")
    try:
        header = parse_header(buffer, position)
    except KafkaError as error:
        return Scan(BatchState.CORRUPT, None, error.message)
    if header.batch_bytes > len(buffer) - position:
        have = len(buffer) - position
        return Scan(BatchState.TORN, header, f"only {have} of {header.batch_bytes} bytes")
    if batch_crc(buffer, position, header.batch_bytes) != header.crc:
        return Scan(BatchState.CORRUPT, header, "the checksum does not match")
    if problem := stored_problem(header):
        return Scan(BatchState.CORRUPT, header, problem)
    return Scan(BatchState.WHOLE, header, "")


def stored_problem(header: BatchHeader) -> str:
    """Return what is invalid in a stored batch's header even if the checksum matches; else ""."""
    if header.base_offset < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        return (
            f"base offset {header.base_offset}, {header.record_count} records, "
            f"last offset delta {header.last_offset_delta}"
        )
    return ""


# Encoding


def pack_batch(header: BatchHeader, body: bytes) -> bytearray:
    """Return a batch of `header` and `body`, with size and checksum computed."""
    base_offset, _, leader_epoch, magic, _, *rest = header
    size_bytes = HEADER_BYTES + len(body)
    batch = bytearray(
        _HEADER.pack(base_offset, size_bytes - PREFIX_BYTES, leader_epoch, magic, 0, *rest)
    )
    batch += body
    _pack_crc(batch, 17, batch_crc(batch, 0, size_bytes))
    return batch


def pack_plain_batch(
    body: bytes,
    record_count: int,
    timestamp_ms: int,
    transaction_of: tuple[int, int] | None = None,
) -> bytearray:
    """Return an uncompressed batch at offset 0, without sequences; `body` has the records.

    `transaction_of`: producer id and epoch of the transaction that the batch belongs to.
    """
    attributes, producer_id, epoch = 0, NO_PRODUCER_ID, -1
    if transaction_of is not None:
        attributes, (producer_id, epoch) = TRANSACTIONAL, transaction_of
    checked = pack_after_crc(
        attributes,
        record_count - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        epoch,
        -1,
        record_count,
    )
    checked += body
    batch_bytes = CRC_START + len(checked)
    batch = bytearray(pack_up_to_crc(0, batch_bytes - PREFIX_BYTES, -1, MAGIC, crc32c(checked)))
    batch += checked
    return batch
