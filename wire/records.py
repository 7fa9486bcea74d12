"""The records inside a batch, where a feature needs them: decoded, found by time, encoded.

What is wrong with them is a WireError that says which record; what is wrong with the header in
front of them is a KafkaError, see `wire.batches`. Decompression is bounded by the caller.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from wire.batches import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    BatchState,
    Scan,
    TimestampType,
    assign,
    batch_crc,
    batches,
    check_batch,
    pack_batch,
    parse_header,
    produced_batch,
    scan,
    set_log_append_time,
    stored_problem,
)
from wire.compression import Codec, compress, decompress
from wire.errors import WireError
from wire.types import Buffer
from wire.varint import ONE_BYTE, read_varint, read_varlong, write_varint

__all__ = [
    "HEADER_BYTES",
    "MAX_DECOMPRESSED_BYTES",
    "NO_PRODUCER_ID",
    "NO_TIMESTAMP",
    "BatchHeader",
    "BatchState",
    "Codec",
    "ControlType",
    "EndTransactionMarker",
    "Record",
    "Scan",
    "TimestampType",
    "assign",
    "batch_crc",
    "batches",
    "check_batch",
    "decode_marker",
    "decode_records",
    "encode_batch",
    "encode_marker",
    "find_max_timestamp",
    "find_timestamp",
    "pack_batch",
    "parse_header",
    "produced_batch",
    "records_data",
    "scan",
    "set_log_append_time",
    "stored_problem",
]

# What the records of one batch may decompress to, where the caller names no bound.
MAX_DECOMPRESSED_BYTES: Final = 1 << 27
_RECORD_MIN_BYTES: Final = 7


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
    append_time = header.attributes & LOG_APPEND_TIME
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
    header = parse_header(buffer, position)
    if header.max_timestamp < timestamp_ms:
        return None
    for offset, timestamp in _times(records_data(buffer, position, header, max_bytes), header):
        if timestamp >= timestamp_ms and offset >= start_offset:
            return offset, timestamp
    return None


def find_max_timestamp(
    buffer: Buffer,
    position: int,
    start_offset: int = 0,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> tuple[int, int] | None:
    """Offset and timestamp of the youngest record from `start_offset` on, the first of several."""
    header = parse_header(buffer, position)
    times = _times(records_data(buffer, position, header, max_bytes), header)
    return max(
        (time for time in times if time[0] >= start_offset), key=lambda time: time[1], default=None
    )


def _times(data: bytes, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record, the rest of it skipped by its length."""
    append_time = header.attributes & LOG_APPEND_TIME
    end = 0
    for index in range(header.record_count):
        try:
            length, start = read_varint(data, end)
            timestamp, position = read_varlong(data, start + 1)
            delta, position = read_varint(data, position)
        except IndexError:
            raise WireError(f"record {index}: the records end inside it") from None
        end = start + length
        if not position < end <= len(data):
            raise WireError(f"record {index}: {length} bytes, {len(data) - start} are left")
        timestamp = header.max_timestamp if append_time else header.base_timestamp + timestamp
        yield header.base_offset + delta, timestamp


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
    attributes = codec | transactional * TRANSACTIONAL | control * CONTROL
    if log_append_time_ms is not None:
        max_timestamp = log_append_time_ms
        attributes |= LOG_APPEND_TIME
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
        attributes |= DELETE_HORIZON
    data = bytearray()
    for record in records:
        _encode_record(data, record, base_offset, base_timestamp)
    header = BatchHeader(
        base_offset=base_offset,
        batch_bytes=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return pack_batch(header, compress(codec, data, level) if records else b"")


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
