"""The records of a batch: checked, decoded, searched by timestamp, encoded.

A malformed record raises WireError, which names the record; a malformed batch header raises
KafkaError, see `metaquorum.wire.records.batches`. All functions use one parser
(`metaquorum.wire.records.record_walk`) on pieces of the records, so a batch that decompresses to
gigabytes needs the memory of one piece or one record.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.primitives.types import Buffer
from metaquorum.wire.primitives.varint import read_varint, varint, write_varint
from metaquorum.wire.records.batches import (
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
    pack_plain_batch,
    parse_header,
    produced_batch,
    scan,
    set_log_append_time,
    stored_problem,
)
from metaquorum.wire.records.compression import PIECE_BYTES, Codec, bounded, compress, decompressed
from metaquorum.wire.records.record_walk import (
    RECORD_FIELDS,
    RECORD_MIN_BYTES,
    RecordWalk,
    Span,
    record_bytes,
)
from metaquorum.wire.records.walk_form import is_compiled, new_walk

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
    "RecordWalk",
    "Scan",
    "Span",
    "TimestampType",
    "assign",
    "batch_crc",
    "batches",
    "check_batch",
    "check_records",
    "decode_marker",
    "decode_pieces",
    "decode_records",
    "encode_batch",
    "encode_marker",
    "encode_pairs",
    "find_max_timestamp",
    "find_timestamp",
    "iter_records",
    "new_walk",
    "pack_batch",
    "parse_header",
    "produced_batch",
    "record_fields",
    "record_pieces",
    "record_spans",
    "scan",
    "set_log_append_time",
    "stored_problem",
    "with_timestamp_delta",
]

# Default limit on the decompressed records of one batch that are decoded at once
MAX_DECOMPRESSED_BYTES: Final = 1 << 27
# Records of a zstd frame that are checked as one piece: all of a batch, for most producers.
_CHECKED_WHOLE_BYTES: Final = 1 << 20
_MIN_VARLONG: Final = -(1 << 63)
_MAX_VARLONG: Final = (1 << 63) - 1
_NULL: Final = b"\x01"  # the varint of -1, the length of an absent key or value
_NO_HEADERS: Final = b"\0"
_NULL_AND_NO_HEADERS: Final = _NULL + _NO_HEADERS


@dataclass(slots=True)
class Record:
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def record_pieces(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    max_bytes: int | None = None,
    whole_bytes: int = PIECE_BYTES,
    *,
    is_produced: bool = False,
) -> Iterator[bytes]:
    """Return an iterator over the decompressed records of a batch: see `compression.decompressed`.

    Raises WireError, also from the iterator, if the batch or its compressed data is truncated or
    malformed, or exceeds `max_bytes`.
    """
    if header.batch_bytes > len(buffer) - position:
        raise WireError(f"a record batch of {header.batch_bytes} bytes is truncated")
    codec, count = header.codec, header.record_count
    if count == 0:
        return iter(())
    body = memoryview(buffer)[position + HEADER_BYTES : position + header.batch_bytes]
    if count < 0 or (codec is Codec.NONE and count * RECORD_MIN_BYTES > len(body)):
        raise WireError(f"record_count {count} for {len(body)} bytes of records")
    pieces = decompressed(codec, body, whole_bytes, is_produced=is_produced)
    return pieces if max_bytes is None else bounded(pieces, codec, max_bytes)


def _fed(
    pieces: Iterable[bytes], walk: RecordWalk, feed: Callable[[bytes], int]
) -> Iterator[bytes]:
    """Feed the pieces to the walk. Yield the fed bytes: whole records, and the start of one.

    Each step takes one piece. A piece that does not complete a record is kept for the next step,
    which yields b"" for it.
    """
    parts: list[bytes] = []  # the start of a record, and the pieces after it
    size = wanted = 0
    for piece in pieces:
        if parts:
            parts.append(piece)
            size += len(piece)
            if size < wanted:
                yield b""
                continue
            piece = b"".join(parts)
        used = feed(piece)
        yield piece
        parts, size = [], len(piece) - used
        if size:
            parts.append(piece[used:])
            # The walk did not check the length of a start shorter than RECORD_MIN_BYTES.
            wanted = RECORD_MIN_BYTES if size < RECORD_MIN_BYTES else record_bytes(piece, used)
    walk.finish(size)


def _fed_plain(
    body: memoryview, walk: RecordWalk, feed: Callable[[memoryview], int]
) -> Iterator[memoryview]:
    """Feed uncompressed records to the walk without copying them; otherwise as `_fed`."""
    start, wanted = 0, PIECE_BYTES
    while start < len(body):
        window = body[start : start + wanted]
        used = feed(window)
        yield window[:used]
        start += used
        if not used:
            if start + wanted >= len(body):
                break
            wanted *= 2
    walk.finish(len(body) - start)


def check_records(
    buffer: Buffer, position: int, header: BatchHeader, walk: RecordWalk
) -> Iterator[int]:
    """Check the records of a producer's batch in steps. Yield the bytes of records of each step.

    `walk` collects the timestamps and null keys; all records are valid when the iterator ends.
    Raises WireError, which names the record, for a malformed record, a wrong number of records, or
    offset deltas that are not dense.
    """
    pieces = record_pieces(
        buffer, position, header, whole_bytes=_CHECKED_WHOLE_BYTES, is_produced=True
    )
    if header.codec is Codec.NONE and header.record_count:
        body = memoryview(buffer)[position + HEADER_BYTES : position + header.batch_bytes]
        for window in _fed_plain(body, walk, walk.check):
            yield len(window)
        return
    opened = 0

    def counted() -> Iterator[bytes]:
        nonlocal opened
        for piece in pieces:
            opened += len(piece)
            yield piece

    for _ in _fed(counted(), walk, walk.check):
        yield opened
        opened = 0


def record_spans(
    buffer: Buffer, position: int, header: BatchHeader, max_bytes: int | None = None
) -> Iterator[tuple[bytes, list[Span]]]:
    """Yield pieces of the records of a stored batch, with the spans of the records in each piece.

    The next step clears the list of spans. Raises WireError at a malformed record, possibly after
    earlier pieces.
    """
    walk = new_walk(header.record_count, header.last_offset_delta, False)
    spans: list[Span] = []
    pieces = record_pieces(buffer, position, header, max_bytes)
    for piece in _fed(pieces, walk, lambda piece: walk.spans(piece, spans)):
        yield piece, spans
        spans.clear()


def record_fields(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    fields: "array[int]",
    take_in: Callable[[bytes | memoryview, int], None],
) -> Iterator[None]:
    """Walk over a stored batch without an object per record. Yield after each piece.

    Call `take_in(data, count)` when `fields` holds the next `count` records (see
    `RecordWalk.fields`); their positions are relative to `data`. Raises WireError at a malformed
    record, after `take_in` got all records before it.
    """
    count, last_delta = header.record_count, header.last_offset_delta
    walk = new_walk(count, last_delta, count == last_delta + 1)

    def feed(data: bytes | memoryview) -> int:
        at = 0
        if not is_compiled():
            data = bytes(data)  # bytes are indexed twice as fast as a view
        while True:
            before = walk.index
            try:
                at = walk.fields(data, at, fields)
            finally:
                if walk.filled:
                    take_in(data, walk.filled)
            if walk.filled * RECORD_FIELDS < len(fields) or walk.index == before:
                return at

    pieces = record_pieces(buffer, position, header)
    if header.codec is Codec.NONE and count:
        body = memoryview(buffer)[position + HEADER_BYTES : position + header.batch_bytes]
        for _ in _fed_plain(body, walk, feed):
            yield
        return
    for _ in _fed(pieces, walk, feed):
        yield


def decode_pieces(
    buffer: Buffer, position: int = 0, max_bytes: int | None = None
) -> Iterator[list[Record]]:
    """Yield the records of the batch at `position`, in lists of bounded memory.

    Raises WireError at a malformed record, possibly after earlier records. Header keys that are not
    UTF-8 are decoded with surrogates, which encode to the same bytes again.
    """
    header = parse_header(buffer, position)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    for data, spans in record_spans(buffer, position, header, max_bytes):
        yield [
            Record(
                base_offset + delta,
                base_timestamp + timestamp if append_time is None else append_time,
                data[key_at : key_at + key_length] if key_length >= 0 else None,
                data[value_at : value_at + value_length] if value_length >= 0 else None,
                _record_headers(data, at, headers) if headers else (),
            )
            for (
                _, _, _, delta, timestamp, key_at, key_length, value_at, value_length, at, headers
            ) in spans
        ]  # fmt: skip


def iter_records(buffer: Buffer, position: int = 0) -> Iterator[Record]:
    """Return an iterator over the records of `decode_pieces`, one by one."""
    return chain.from_iterable(decode_pieces(buffer, position))


def decode_records(
    buffer: Buffer, position: int = 0, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> list[Record]:
    """Return all records of the batch. Raises WireError if they have more than `max_bytes`."""
    records: list[Record] = []
    for piece in decode_pieces(buffer, position, max_bytes):
        records += piece
    return records


def _record_headers(data: bytes, at: int, count: int) -> tuple[tuple[str, bytes | None], ...]:
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, at = read_varint(data, at)
        key = data[at : at + length].decode("utf-8", "surrogateescape")
        length, at = read_varint(data, at + length)
        headers.append((key, None if length < 0 else data[at : at + length]))
        at += max(0, length)
    return tuple(headers)


def with_timestamp_delta(data: bytes, span: Span, timestamp_delta: int) -> bytes:
    """Return the record's bytes with another timestamp delta, for a new base timestamp.

    A delta that exceeds 64 bits is clamped, because no reader accepts it.
    """
    body = bytearray(1)  # attributes, unused
    write_varint(body, max(_MIN_VARLONG, min(timestamp_delta, _MAX_VARLONG)))
    _, end, rest = span[:3]
    body += data[rest:end]
    record = bytearray()
    write_varint(record, len(body))
    return bytes(record + body)


def find_timestamp(
    buffer: Buffer, position: int, timestamp_ms: int, start_offset: int = 0
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record with a timestamp >= `timestamp_ms`.

    Records below `start_offset` are ignored. Return None if there is no such record.
    """
    header = parse_header(buffer, position)
    if header.max_timestamp < timestamp_ms:
        return None
    for offset, timestamp in _times(buffer, position, header):
        if timestamp >= timestamp_ms and offset >= start_offset:
            return offset, timestamp
    return None


def find_max_timestamp(
    buffer: Buffer, position: int, start_offset: int = 0
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record with the maximum timestamp.

    Records below `start_offset` are ignored. Return None if there is no record.
    """
    header = parse_header(buffer, position)
    times = _times(buffer, position, header)
    return max(
        (time for time in times if time[0] >= start_offset), key=lambda time: time[1], default=None
    )


def _times(buffer: Buffer, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Yield offset and timestamp of each record."""
    append_time = header.attributes & LOG_APPEND_TIME
    for _, spans in record_spans(buffer, position, header):
        for span in spans:
            timestamp = header.max_timestamp if append_time else header.base_timestamp + span[4]
            yield header.base_offset + span[3], timestamp


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
    """Return a batch of records whose offsets increase.

    `base_offset` and `last_offset` default to those of the first and last record; they differ if
    compaction removed these records. A batch without records needs both.
    """
    records = list(records)
    if base_offset is None:
        base_offset = records[0].offset
    if last_offset is None:
        last_offset = records[-1].offset
    base_timestamp = records[0].timestamp_ms if records else NO_TIMESTAMP
    max_timestamp = max([record.timestamp_ms for record in records], default=NO_TIMESTAMP)
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
        base_offset,
        0,  # size and checksum are computed below
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
    return pack_batch(header, compress(codec, data, level) if records else b"")


def encode_pairs(
    pairs: Iterable[tuple[bytes | None, bytes | None]],
    timestamp_ms: int,
    transaction_of: tuple[int, int] | None = None,
) -> bytearray:
    """Return an uncompressed batch of keys and values, all with one timestamp, offsets from 0.

    The same as `encode_batch`, in a fifth of the time for a batch of one short record.
    `transaction_of`: producer id and epoch of the transaction that the batch belongs to.
    """
    parts: list[bytes] = []
    count = 0
    for key, value in pairs:
        # The first two bytes: attributes, and the difference of the timestamp.
        record = b"\0\0" + varint(count) + (_NULL if key is None else varint(len(key)) + key)
        if value is None:
            record += _NULL_AND_NO_HEADERS
        else:
            record += varint(len(value)) + value + _NO_HEADERS
        parts += (varint(len(record)), record)
        count += 1
    return pack_plain_batch(b"".join(parts), count, timestamp_ms, transaction_of)


def _encode_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    body = bytearray(1)  # attributes, unused
    write_varint(body, record.timestamp_ms - base_timestamp)
    write_varint(body, record.offset - base_offset)
    _encode_bytes(body, record.key)
    _encode_bytes(body, record.value)
    if record.headers:
        write_varint(body, len(record.headers))
        for key, value in record.headers:
            _encode_bytes(body, key.encode("utf-8", "surrogateescape"))
            _encode_bytes(body, value)
    else:
        body.append(0)
    write_varint(out, len(body))
    out += body


def _encode_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += _NULL
        return
    write_varint(out, len(value))
    out += value


# Control records, which mark the end of a transaction in a partition

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
    """Return the control batch that ends a transaction. Source: KIP-98."""
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
    """Return the transaction marker of a control record; None for another type of control record.

    Newer versions may have more fields after the known ones. Raises WireError if it is malformed.
    """
    key, value = record.key or b"", record.value or b""
    if len(key) < _MARKER_KEY.size:
        raise WireError(f"control record key of {len(key)} bytes is too short")
    version, number = _MARKER_KEY.unpack_from(key)
    if version < 0:
        raise WireError(f"control record key version {version}")
    if number not in (ControlType.ABORT.value, ControlType.COMMIT.value):
        return None
    if len(value) < _MARKER_VALUE.size:
        raise WireError(f"end transaction marker of {len(value)} bytes is too short")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    if version < 0:
        raise WireError(f"end transaction marker version {version}")
    return EndTransactionMarker(ControlType(number), coordinator_epoch)
