"""Where the records of a batch lie, and their keys: for who drops or checks some, and decodes none.

Deltas count from the batch's base offset and timestamp, so that a record's bytes may be copied to
another batch with the same two.
"""

from collections.abc import Iterator
from typing import NamedTuple

from wire.batches import BatchHeader
from wire.errors import WireError
from wire.varint import ONE_BYTE, read_varint, read_varlong, write_varint


class RecordSpan(NamedTuple):
    start: int
    end: int
    rest: int  # where what follows the timestamp begins
    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool


_new = tuple.__new__


def record_spans(data: bytes, header: BatchHeader) -> Iterator[RecordSpan]:
    """Each record of `data`, the decompressed records of a batch; WireError where one is none.

    Headers of records are not looked at. All that is told is checked once the iterator has ended.
    """
    position, last_delta, size = 0, -1, len(data)
    one_byte, most = ONE_BYTE, header.last_offset_delta
    for index in range(header.record_count):
        start = position
        try:  # most varints are one byte
            if (length := one_byte[data[position]]) is None:
                length, at = read_varint(data, position)
            else:
                at = position + 1
            end = at + length
            at += 1  # attributes, unused
            if (timestamp := one_byte[data[at]]) is None:
                timestamp, rest = read_varlong(data, at)
            else:
                rest = at + 1
            if (delta := one_byte[data[rest]]) is None:
                delta, at = read_varint(data, rest)
            else:
                at = rest + 1
            if (length := one_byte[data[at]]) is None:
                length, at = read_varint(data, at)
            else:
                at += 1
            key = None
            if length >= 0:
                key = data[at : at + length]
                at += length
            if (length := one_byte[data[at]]) is None:
                length, at = read_varint(data, at)
            else:
                at += 1
        except IndexError:
            raise WireError(f"record {index}: the records end inside it") from None
        if not start < at + (length if length > 0 else 0) < end <= size:
            raise WireError(f"record {index}: {end - start} bytes, {size - start} are left")
        if not last_delta < delta <= most:
            raise WireError(
                f"record {index}: offset delta {delta} behind {last_delta}, the last is {most}"
            )
        last_delta = delta
        position = end
        yield _new(RecordSpan, (start, end, rest, delta, timestamp, key, length >= 0))
    if position != size:
        raise WireError(f"{size - position} bytes behind the last of {header.record_count} records")


def with_timestamp_delta(data: bytes, span: RecordSpan, timestamp_delta: int) -> bytes:
    """The record's bytes, for a batch with another base timestamp."""
    body = bytearray(1)  # attributes, unused
    write_varint(body, timestamp_delta)
    body += data[span.rest : span.end]
    record = bytearray()
    write_varint(record, len(body))
    return bytes(record + body)
