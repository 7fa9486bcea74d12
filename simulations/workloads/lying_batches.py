"""Batches of an attacker: their checksum is correct, their records contradict the header.

Tests and hostile clients of the simulator use this list. A leader must refuse every kind, and no
log may contain one.
"""

import struct
from collections.abc import Callable
from random import Random
from typing import Final

from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.varint import write_varint
from metaquorum.wire.records.batches import HEADER_BYTES, pack_batch, parse_header
from metaquorum.wire.records.compression import Codec, compress
from metaquorum.wire.records.records import Record, encode_batch

_Lie = Callable[[Random, bytearray], bytes]


def _records(batch: bytearray) -> bytes:
    return bytes(batch[HEADER_BYTES:])


def _with_records(batch: bytearray, records: bytes, **fields: int) -> bytes:
    return bytes(pack_batch(parse_header(batch)._replace(**fields), records))


def _claims(batch: bytearray, count: int) -> bytes:
    return _with_records(
        batch, _records(batch), record_count=count, last_offset_delta=max(count - 1, -(1 << 31))
    )


def _more_records(random: Random, batch: bytearray) -> bytes:
    count = parse_header(batch).record_count
    return _claims(batch, random.choice((count + 1, count + 1000, (1 << 31) - 1)))


def _fewer_records(random: Random, batch: bytearray) -> bytes:
    return _claims(batch, parse_header(batch).record_count - 1)


def _random_records(random: Random, batch: bytearray) -> bytes:
    return _with_records(batch, b"\x03" + random.randbytes(len(_records(batch))))


def _garbage_codec(random: Random, batch: bytearray) -> bytes:
    codec = random.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))
    return _with_records(batch, b"\xff" + random.randbytes(30), attributes=int(codec))


def _cut_codec(random: Random, batch: bytearray) -> bytes:
    codec = random.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))
    body = compress(codec, _records(batch))
    return _with_records(batch, body[: len(body) - random.randint(1, 9)], attributes=int(codec))


def _compressed_fewer(random: Random, batch: bytearray) -> bytes:
    codec = random.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))
    count = parse_header(batch).record_count + 1
    return _with_records(
        batch,
        compress(codec, _records(batch)),
        attributes=int(codec),
        record_count=count,
        last_offset_delta=count - 1,
    )


def _record(
    delta: int, key: bytes = b"\x01", value: bytes = b"\x02v", headers: bytes = b"\0"
) -> bytes:
    body = bytearray(2)
    write_varint(body, delta)
    body += key + value + headers
    record = bytearray()
    write_varint(record, len(body))
    return bytes(record + body)


def _replaced(batch: bytearray, *records: bytes) -> bytes:
    return _with_records(
        batch, b"".join(records), record_count=len(records), last_offset_delta=len(records) - 1
    )


def _offset_twice(random: Random, batch: bytearray) -> bytes:
    return _replaced(batch, _record(0), _record(0))


def _offset_gap(random: Random, batch: bytearray) -> bytes:
    return _replaced(batch, _record(0), _record(2), _record(random.choice((2, 3))))


def _offset_first(random: Random, batch: bytearray) -> bytes:
    return _replaced(batch, _record(random.choice((1, -1, 7))))


def _long_value(random: Random, batch: bytearray) -> bytes:
    return _replaced(batch, _record(0, value=b"\x7ev"), _record(1))


def _long_key(random: Random, batch: bytearray) -> bytes:
    return _replaced(batch, _record(0, key=b"\xfe\xff\xff\xff\x0f"), _record(1))


def _many_headers(random: Random, batch: bytearray) -> bytes:
    return _replaced(batch, _record(0, headers=b"\xfe\xff\xff\xff\x0f"))


def _null_header_key(random: Random, batch: bytearray) -> bytes:
    return _replaced(batch, _record(0, headers=b"\x02\x01\x01"))


def _negative_length(random: Random, batch: bytearray) -> bytes:
    return _replaced(batch, b"\x01" + _record(0))


def _endless_varint(random: Random, batch: bytearray) -> bytes:
    return _with_records(batch, b"\xff" * 20)


def _control(random: Random, batch: bytearray) -> bytes:
    return _with_records(batch, _records(batch), attributes=0x20)


LIES: Final[dict[str, _Lie]] = {
    "more records are claimed": _more_records,
    "fewer records are claimed": _fewer_records,
    "random bytes for records": _random_records,
    "random bytes said to be compressed": _garbage_codec,
    "compressed records cut short": _cut_codec,
    "more compressed records are claimed": _compressed_fewer,
    "an offset delta twice": _offset_twice,
    "a gap in the offset deltas": _offset_gap,
    "a first offset delta that is not 0": _offset_first,
    "a value beyond its record": _long_value,
    "a key beyond its record": _long_key,
    "more headers than bytes": _many_headers,
    "a header without a key": _null_header_key,
    "a record of negative length": _negative_length,
    "a varint without end": _endless_varint,
    "a control batch": _control,
}
# Error code with which a leader refuses each of them.
REFUSAL: Final = ErrorCode.INVALID_RECORD


def lying_batch(random: Random, kind: str | None = None, *, timestamp_ms: int) -> bytes:
    """Return an invalid batch of `kind`, or of a random kind if None."""
    count = random.choice((1, 2, 5, 70, 300))
    records = [Record(i, timestamp_ms, b"k%d" % i, b"v" * 20) for i in range(count)]
    lie = LIES[kind or random.choice(list(LIES))]
    return lie(random, encode_batch(records))


def wrong_max_timestamp(batch: bytes | bytearray, timestamp_ms: int) -> bytes:
    """Return the batch with another largest timestamp in its header, which a leader corrects."""
    changed = bytearray(batch)
    struct.pack_into(">q", changed, 35, timestamp_ms)
    return _with_records(changed, _records(changed))
