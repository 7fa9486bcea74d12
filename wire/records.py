"""Record batches, format v2: a header read in place, and the records inside where one needs them.

    0  base_offset            int64   assigned by the leader; outside the checksum
    8  size of what follows   int32
   12  partition leader epoch int32   assigned by the leader; outside the checksum
   16  magic                  int8    2
   17  crc                    uint32  CRC-32C of everything from 21 on
   21  attributes             int16   bits 0-2 codec, 3 log append time, 4 transactional, 5 control,
                                      6 base_timestamp is a delete horizon
   23  last_offset_delta      int32   stays when compaction takes records away
   27  base_timestamp         int64
   35  max_timestamp          int64
   43  producer_id            int64   -1 none; so epoch and sequence
   51  producer_epoch         int16
   53  base_sequence          int32
   57  record_count           int32
   61  records                        compressed as one block

Source: the Kafka protocol guide, "Record Batch"; KIP-98 for producers, KIP-534 for delete horizons.
What is wrong with a header is a KafkaError, as a Produce response tells it; what is wrong inside
is a WireError. A batch stays where it is: nothing here copies one but to decompress or build it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from wire.compression import Codec, compress, decompress
from wire.crc import crc32c
from wire.errors import ErrorCode, KafkaError, WireError
from wire.types import Buffer
from wire.varint import ONE_BYTE, read_varint, read_varlong, write_varint

MAGIC: Final = 2
HEADER_BYTES: Final = 61
NO_PRODUCER_ID: Final = -1
NO_TIMESTAMP: Final = -1
# What the records of one batch may decompress to, where the caller names no bound.
MAX_DECOMPRESSED_BYTES: Final = 1 << 27

_PREFIX_BYTES: Final = 12  # base_offset and size, which `size` does not count
_CRC_START: Final = 21
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_DELETE_HORIZON: Final = 0x40
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_RECORD_MIN_BYTES: Final = 7

_HEADER: Final = Struct(">qiibIhiqqqhii")
_unpack_header = _HEADER.unpack_from
_pack_offset = Struct(">q").pack_into
_pack_epoch = Struct(">i").pack_into
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
        """Sequences wrap to 0 behind 2^31 - 1; -1 without one."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & _SEQUENCE_MASK

    @property
    def codec(self) -> Codec:
        """WireError when this is none that exists."""
        number = self.attributes & _CODEC_MASK
        if number > Codec.ZSTD:
            raise WireError(f"attributes: codec {number} is unknown")
        return Codec(number)

    @property
    def is_compressed(self) -> bool:
        return self.attributes & _CODEC_MASK != 0

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(self.attributes >> 3 & 1)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & _TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & _CONTROL != 0

    @property
    def has_producer(self) -> bool:
        return self.producer_id >= 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop this batch's tombstones and markers, if that is decided."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None


_new_tuple = tuple.__new__


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; KafkaError when no batch of format v2 can begin there.

    The batch may reach beyond the buffer, and its checksum is not looked at: see `check_batch`.
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
        ) = _unpack_header(buffer, position)
    except struct_error:
        raise _headless(buffer, position) from None
    if magic != MAGIC:
        raise _wrong_magic(magic)
    size += _PREFIX_BYTES
    if size < HEADER_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a record batch of {size} bytes")
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
    if left > 16 and buffer[position + 16] != MAGIC:  # the older formats' headers are shorter
        return _wrong_magic(buffer[position + 16])
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a record batch's header in {left} bytes")


def _wrong_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"message format v{magic}; only v2 is kept"
        )
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"magic {magic}")


def batches(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Each batch that lies whole in the buffer and where it begins; a part at the end is left out.

    KafkaError where no header can be read. Nothing behind the headers is checked.
    """
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        header = parse_header(buffer, position)
        if header.batch_bytes > end - position:
            return
        yield position, header
        position += header.batch_bytes


# A batch as a producer sends it


def check_batch(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """KafkaError unless this is a sound batch as a producer may send it.

    Trusted from here on: record_count, which is not counted again, and the records' own content.
    """
    if header.batch_bytes > len(buffer) - position:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"a record batch of {header.batch_bytes} bytes in {len(buffer) - position}",
        )
    if batch_crc(buffer, position, header.batch_bytes) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the record batch's checksum does not match")
    if (problem := _produced_problem(header)) is not None:
        raise KafkaError(ErrorCode.INVALID_RECORD, problem)


def _produced_problem(header: BatchHeader) -> str | None:
    attributes = header.attributes
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        return f"{header.record_count} records, last offset delta {header.last_offset_delta}"
    if attributes & _CODEC_MASK > Codec.ZSTD:
        return f"codec {attributes & _CODEC_MASK} is unknown"
    if attributes & _CONTROL:
        return "clients may not write control records"
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            return f"producer {header.producer_id} without epoch or sequence"
    elif attributes & _TRANSACTIONAL:
        return "transactional, without a producer id"
    return None


def batch_crc(buffer: Buffer, position: int, batch_bytes: int) -> int:
    """The checksum that this batch should carry."""
    return crc32c(memoryview(buffer)[position + _CRC_START : position + batch_bytes])


def assign(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """The batch has its place in the log; its checksum does not cover these two."""
    _pack_offset(buffer, position, base_offset)
    _pack_epoch(buffer, position + 12, leader_epoch)


def set_log_append_time(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp_ms: int
) -> None:
    """All records of the batch carry this time, and the checksum is right again."""
    _pack_attributes(buffer, position + 21, header.attributes | _LOG_APPEND_TIME)
    _pack_offset(buffer, position + 35, timestamp_ms)
    _pack_crc(buffer, position + 17, batch_crc(buffer, position, header.batch_bytes))


# A batch as a log holds it


class BatchState(Enum):
    WHOLE = "whole"
    TORN = "torn"  # the buffer ends inside it, if its size is to be believed
    CORRUPT = "corrupt"


class Scan(NamedTuple):
    state: BatchState
    header: BatchHeader | None  # None when not even that can be read
    problem: str


def scan(buffer: Buffer, position: int = 0) -> Scan:
    """Whether a sound batch stands at `position`, as a value; what a stored batch must satisfy."""
    if len(buffer) - position < HEADER_BYTES:
        return Scan(BatchState.TORN, None, f"{len(buffer) - position} bytes of a header")
    try:
        header = parse_header(buffer, position)
    except KafkaError as error:
        return Scan(BatchState.CORRUPT, None, error.message)
    if header.batch_bytes > len(buffer) - position:
        have = len(buffer) - position
        return Scan(BatchState.TORN, header, f"{have} of {header.batch_bytes} bytes")
    if batch_crc(buffer, position, header.batch_bytes) != header.crc:
        return Scan(BatchState.CORRUPT, header, "the checksum does not match")
    if header.base_offset < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        problem = (
            f"base offset {header.base_offset}, {header.record_count} records, "
            f"last offset delta {header.last_offset_delta}"
        )
        return Scan(BatchState.CORRUPT, header, problem)
    return Scan(BatchState.WHOLE, header, "")


# Records


@dataclass(slots=True)
class Record:
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def records_data(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> bytes:
    """The records of a batch, one after the other, decompressed."""
    if header.batch_bytes > len(buffer) - position:
        raise WireError(f"a record batch of {header.batch_bytes} bytes is cut short")
    if header.record_count == 0:
        return b""
    body = memoryview(buffer)[position + HEADER_BYTES : position + header.batch_bytes]
    data = decompress(header.codec, body, max_bytes)
    if not 0 <= header.record_count * _RECORD_MIN_BYTES <= len(data):
        raise WireError(f"record_count {header.record_count} for {len(data)} bytes of records")
    return data


def decode_records(
    buffer: Buffer, position: int = 0, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> list[Record]:
    """The records of the batch at `position`; WireError names what is wrong with them.

    Header keys that are not UTF-8 come with surrogates and are encoded to the same bytes again.
    """
    header = parse_header(buffer, position)
    data = records_data(buffer, position, header, max_bytes)
    records: list[Record] = []
    try:
        end = _decode(data, header, records)
    except IndexError:
        raise WireError(f"record {len(records)}: the records end inside it") from None
    if end != len(data):
        raise WireError(f"{len(data) - end} bytes behind the last of {len(records)} records")
    return records


def _decode(data: bytes, header: BatchHeader, records: list[Record]) -> int:
    """Append all records and return where they end. Hot: most varints are one byte."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.attributes & _LOG_APPEND_TIME
    one_byte, size = ONE_BYTE, len(data)
    position, last_delta = 0, -1
    for index in range(header.record_count):
        if (length := one_byte[data[position]]) is None:
            length, position = read_varint(data, position)
        else:
            position += 1
        end = position + length
        if end > size:
            raise WireError(f"record {index}: {length} bytes, {size - position} are left")
        position += 1  # attributes, unused
        if (timestamp := one_byte[data[position]]) is None:
            timestamp, position = read_varlong(data, position)
        else:
            position += 1
        if (delta := one_byte[data[position]]) is None:
            delta, position = read_varint(data, position)
        else:
            position += 1
        if delta <= last_delta:
            raise WireError(f"record {index}: offset delta {delta} behind {last_delta}")
        last_delta = delta
        if (length := one_byte[data[position]]) is None:
            length, position = read_varint(data, position)
        else:
            position += 1
        key = value = None
        if length >= 0:
            key = data[position : position + length]
            position += length
        if (length := one_byte[data[position]]) is None:
            length, position = read_varint(data, position)
        else:
            position += 1
        if length >= 0:
            value = data[position : position + length]
            position += length
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if data[position]:
            headers, position = _decode_headers(data, position, end, index)
        else:
            position += 1
        if position != end:
            raise WireError(f"record {index}: its length and its fields differ")
        timestamp = header.max_timestamp if append_time else base_timestamp + timestamp
        records.append(Record(base_offset + delta, timestamp, key, value, headers))
    if last_delta > header.last_offset_delta:
        raise WireError(f"offset delta {last_delta} beyond {header.last_offset_delta}")
    return position


def _decode_headers(
    data: bytes, position: int, end: int, index: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = read_varint(data, position)
    if not 0 <= count <= (end - position) // 2:
        raise WireError(f"record {index}: {count} headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, position = read_varint(data, position)
        if not 0 <= length <= end - position:
            raise WireError(f"record {index}: a header key of {length} bytes")
        key = data[position : position + length].decode("utf-8", "surrogateescape")
        length, position = read_varint(data, position + length)
        if length > end - position:
            raise WireError(f"record {index}: a header value of {length} bytes")
        headers.append((key, None if length < 0 else data[position : position + length]))
        position += max(0, length)
    return tuple(headers), position


def find_timestamp(
    buffer: Buffer,
    position: int,
    timestamp_ms: int,
    start_offset: int = 0,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record from `start_offset` on that is not older."""
    if parse_header(buffer, position).max_timestamp < timestamp_ms:
        return None
    for record in decode_records(buffer, position, max_bytes):
        if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
            return record.offset, record.timestamp_ms
    return None


def find_max_timestamp(
    buffer: Buffer, position: int, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> tuple[int, int] | None:
    """Offset and timestamp of the youngest record, the first of several; None of an empty batch."""
    best: Record | None = None
    for record in decode_records(buffer, position, max_bytes):
        if best is None or record.timestamp_ms > best.timestamp_ms:
            best = record
    return (best.offset, best.timestamp_ms) if best else None


def encode_batch(
    records: Iterable[Record],
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """A batch of records whose offsets increase.

    `base_offset` and `last_offset` are the first and last record's unless compaction took those
    away; a batch without records needs both.
    """
    records = list(records)
    if base_offset is None:
        base_offset = records[0].offset
    if last_offset is None:
        last_offset = records[-1].offset
    base_timestamp = records[0].timestamp_ms if records else NO_TIMESTAMP
    max_timestamp = max((record.timestamp_ms for record in records), default=NO_TIMESTAMP)
    attributes = codec | transactional * _TRANSACTIONAL | control * _CONTROL
    if log_append_time_ms is not None:
        max_timestamp = log_append_time_ms
        attributes |= _LOG_APPEND_TIME
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
        attributes |= _DELETE_HORIZON
    data = bytearray()
    for record in records:
        _encode_record(data, record, base_offset, base_timestamp)
    body = compress(codec, data, level) if records else b""
    batch = bytearray(HEADER_BYTES)
    batch += body
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - _PREFIX_BYTES,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    _pack_crc(batch, 17, batch_crc(batch, 0, len(batch)))
    return batch


def _encode_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    body = bytearray(1)  # attributes, unused
    write_varint(body, record.timestamp_ms - base_timestamp)
    write_varint(body, record.offset - base_offset)
    _encode_bytes(body, record.key)
    _encode_bytes(body, record.value)
    write_varint(body, len(record.headers))
    for key, value in record.headers:
        _encode_bytes(body, key.encode("utf-8", "surrogateescape"))
        _encode_bytes(body, value)
    write_varint(out, len(body))
    out += body


def _encode_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # the varint of -1
        return
    write_varint(out, len(value))
    out += value


# Control records: how a transaction ended in this partition

_MARKER_KEY: Final = Struct(">hh")
_MARKER_VALUE: Final = Struct(">hi")
_MARKER_VERSION: Final = 0


class ControlType(Enum):
    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    control_type: ControlType
    coordinator_epoch: int


def encode_marker(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The control batch that ends a transaction. Source: KIP-98."""
    key = _MARKER_KEY.pack(_MARKER_VERSION, marker.control_type.value)
    value = _MARKER_VALUE.pack(_MARKER_VERSION, marker.coordinator_epoch)
    return encode_batch(
        [Record(offset, timestamp_ms, key, value)],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def decode_marker(record: Record) -> EndTransactionMarker | None:
    """What a record of a control batch says; None for a kind that ends no transaction.

    Newer versions may be longer; what is known of them comes first.
    """
    key, value = record.key or b"", record.value or b""
    if len(key) < _MARKER_KEY.size:
        raise WireError(f"control record key of {len(key)} bytes")
    version, number = _MARKER_KEY.unpack_from(key)
    if version < 0:
        raise WireError(f"control record key version {version}")
    if number not in (ControlType.ABORT.value, ControlType.COMMIT.value):
        return None
    if len(value) < _MARKER_VALUE.size:
        raise WireError(f"end transaction marker of {len(value)} bytes")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    if version < 0:
        raise WireError(f"end transaction marker version {version}")
    return EndTransactionMarker(ControlType(number), coordinator_epoch)
