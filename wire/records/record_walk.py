# cython: language_level=3, annotation_typing=False, boundscheck=True, wraparound=False
# cython: initializedcheck=False, show_performance_hints=False
"""Parser of the records of a batch (the walk): checks their structure and locates their fields.

    length          varint   bytes after this field
    attributes      int8     unused
    timestamp delta varlong  from the batch's base timestamp
    offset delta    varint   from the batch's base offset
    key length      varint   -1: null; then the key
    value length    varint   -1: null; then the value
    headers         varint   their number; each: key length, key, value length (-1: null), value

A varint has at most 5 bytes and 32 bits, a varlong 10 bytes and 64 bits. Lengths are exact: the
fields of a record end where the record ends. Offset deltas are dense in a producer's batch
(`dense`); they ascend in a batch from which compaction may have removed records.
Source: the Kafka protocol guide, "Record".

All code that reads records uses this parser: produce validation (`check`), compaction, the log
dump, the client and timestamp lookups (`spans`), loads into columns (`fields`). Its input is the
pieces of a decompressor: a record that is incomplete at the end of a piece is not consumed, and the
caller feeds it again with the next piece.

This file has two forms with the same results, which tests/wire/records/test_record_walk.py
compares: interpreted, and compiled by Cython with the C types of `_record_walk.pxd` as
`metaquorum.wire.records._record_walk` (`metaquorum.wire.records.walk_form` chooses). `_walk` is the
parser itself. Interpreted, it takes a microsecond per record, so `check` and `fields` first try two
fast paths, which accept only records that `_walk` accepts and leave all others to it:

    columns   records of one size and structure: each structural byte is compared with the same byte
              of the following records by one strided slice
    shapes    records that differ from the previous one only in the lengths of key and value: a
              precompiled struct reads all fields at once

Both work on blocks of 64 offset deltas: the position in the block determines the first byte of the
delta's varint, and the other bytes are equal throughout the block.
"""

from array import array
from collections.abc import Callable, Sequence
from struct import Struct, pack
from struct import error as struct_error
from typing import Any, Final

from metaquorum.wire.primitives.errors import WireError

if __name__.rpartition(".")[2].startswith("_"):  # compiled
    import cython
else:
    from metaquorum.wire.records import interpreted as cython

# Start, end, position of the offset delta, offset delta, timestamp delta, position and length of
# the key (-1: null), position and length of the value (-1: null), position of the first header,
# number of headers. Positions are relative to the start of the piece.
Span = tuple[int, int, int, int, int, int, int, int, int, int, int]

RECORD_MIN_BYTES = 7
# Maximum record length, because a reader holds a whole record in memory. By default librdkafka
# accepts batches up to 100 MB, decompressed (receive.message.max.bytes); producers send no larger.
MAX_RECORD_BYTES = 1 << 27
BODY_MIN_BYTES = 6
RECORD_FIELDS = 8  # numbers per record in `RecordWalk.fields`

_NO_PROBLEM = 0
_LENGTH = 1
_VARINT = 2
_DELTA = 3
_KEY = 4
_VALUE = 5
_HEADERS = 6
_HEADER_KEY = 7
_HEADER_VALUE = 8
_FIELDS = 9
_BEYOND = 10

_TEXTS: Final = (
    "",
    f"a length of {{0}} bytes, which must be {BODY_MIN_BYTES} to {{1}}",
    "a varint is longer than {0} bytes or exceeds {1} bits",
    "offset delta {0} after {1}",
    "a key of {0} bytes, but {1} are left",
    "a value of {0} bytes, but {1} are left",
    "{0} headers, but {1} bytes are left",
    "a header key of {0} bytes, but {1} are left",
    "a header value of {0} bytes, but {1} are left",
    "its length and its fields differ by {0} bytes",
    "offset delta {0} exceeds {1}",
)


class RecordWalk:
    """State of the walk over the records of one batch, and the values collected so far.

    `index` is the number of valid records so far. The timestamp deltas are 0 before the first one.
    """

    def __init__(self, count: int, last_offset_delta: int, dense: bool) -> None:
        self.count = count
        self.last_offset_delta = last_offset_delta
        self.dense = dense
        self.index = 0
        self.offset_delta = -1  # last offset delta
        self.min_timestamp_delta = 0
        self.max_timestamp_delta = 0
        self.null_keys = 0
        self._problem = 0
        self._found = 0
        self._most = 0
        self._at = 0
        self._key_length = -2  # key length of the shapes tried so far; -2: none, -3: it varies
        self._spans: list[Span] | None = None
        self.filled = 0  # records that the last call of `fields` stored
        self._fields: Any = None
        self._first = 0  # the index of the first record in `_fields`

    def check(self, data: bytes | memoryview) -> int:
        """Check the records in `data`; return the number of bytes of the whole records.

        The bytes after them are the start of the next record. Raises WireError at a malformed
        record.
        """
        if cython.compiled:
            return self._feed(data, 0, self.count, None)
        copied = bytes(data)  # bytes are indexed twice as fast as a view
        position = _check_blocks(self, copied, 0, self.count)
        return self._feed(copied, position, self.count, None)

    def spans(self, data: bytes, spans: list[Span]) -> int:
        """Check the records as `check` does, and append the span of each to `spans`."""
        return self._feed(data, 0, self.count, spans)

    def fields(self, data: bytes | memoryview, position: int, fields: "array[int]") -> int:
        """Check records from `position` on and store their fields until the array is full.

        Returns the position after the last whole record; `filled` is the number of records stored.
        After a WireError these are the records before the malformed one.

        The fields of a record: offset delta, timestamp delta, position and length of the key,
        position and length of the value, position of the first header, number of headers. The
        position of an empty or null item is arbitrary. See `record_columns`.
        """
        self._fields = fields
        self._first = self.index
        try:
            stop = min(self.count, self.index + len(fields) // RECORD_FIELDS)
            if not cython.compiled:
                data = bytes(data)
                position = _check_blocks(self, data, position, stop)
            return self._feed(data, position, stop, None)
        finally:
            self._fields = None
            self.filled = self.index - self._first

    def finish(self, left_bytes: int) -> None:
        """Raise WireError if records are missing, or `left_bytes` bytes follow the last one."""
        if self.index < self.count:
            raise WireError(
                f"record {self.index}: the data ends inside it, {self.count} records are claimed"
            )
        if left_bytes:
            raise WireError(f"{left_bytes} bytes after the last of {self.count} records")

    def _feed(
        self, data: bytes | memoryview, position: int, stop_index: int, spans: "list[Span] | None"
    ) -> int:
        self._spans = spans
        try:
            position = self._run(data, position, stop_index)
        except IndexError:
            raise WireError(f"record {self.index}: the data ends inside it") from None
        finally:
            self._spans = None
        if self._problem:
            text = _TEXTS[self._problem].format(self._found, self._most)
            raise WireError(f"record {self.index}: {text}")
        if self.index == self.count and position < len(data):
            self.finish(len(data) - position)
        return position

    def _run(self, data: bytes | memoryview, position: int, stop_index: int) -> int:
        """Call `_walk`, without the GIL if no spans are collected."""
        if cython.compiled and self._spans is None:
            with cython.nogil:
                return self._walk(data, position, stop_index)
        return self._walk(data, position, stop_index)

    def _walk(self, data: bytes | memoryview, position: int, stop_index: int) -> int:
        """Parse records from `position` on up to `stop_index`; return the position after them.

        At a malformed record `_problem` is set, or IndexError is raised; `index` is that record.
        """
        size = len(data)
        index = self.index
        last_delta = self.offset_delta
        most_delta = self.last_offset_delta
        is_dense = self.dense
        low = self.min_timestamp_delta
        high = self.max_timestamp_delta
        collects = self._spans is not None
        fills = self._fields is not None
        filled = (index - self._first) * RECORD_FIELDS
        while index < stop_index and size - position >= RECORD_MIN_BYTES:
            self.index = index
            at = position
            raw = data[at]
            if raw < 0x80:
                at += 1
            else:
                byte = data[at + 1]
                if byte < 0x80:
                    raw = raw & 0x7F | byte << 7
                    at += 2
                else:
                    raw = self._varint(data, at, 5)
                    at = self._at
                    if self._problem:
                        return position
            length = (raw >> 1) ^ -(raw & 1)
            if length < BODY_MIN_BYTES or length > MAX_RECORD_BYTES:
                return self._fail(_LENGTH, length, MAX_RECORD_BYTES, position)
            end = at + length
            if end > size:
                break
            at += 1  # attributes
            raw = data[at]
            if raw < 0x80:
                at += 1
            else:
                byte = data[at + 1]
                if byte < 0x80:
                    raw = raw & 0x7F | byte << 7
                    at += 2
                else:
                    raw = self._varint(data, at, 10)
                    at = self._at
                    if self._problem:
                        return position
            timestamp = (raw >> 1) ^ -(raw & 1)
            rest = at
            raw = data[at]
            if raw < 0x80:
                at += 1
            else:
                byte = data[at + 1]
                if byte < 0x80:
                    raw = raw & 0x7F | byte << 7
                    at += 2
                else:
                    raw = self._varint(data, at, 5)
                    at = self._at
                    if self._problem:
                        return position
            delta = (raw >> 1) ^ -(raw & 1)
            if delta > most_delta:
                return self._fail(_BEYOND, delta, most_delta, position)
            if delta <= last_delta or (is_dense and delta != index):
                return self._fail(_DELTA, delta, last_delta, position)
            raw = data[at]
            if raw < 0x80:
                at += 1
            else:
                byte = data[at + 1]
                if byte < 0x80:
                    raw = raw & 0x7F | byte << 7
                    at += 2
                else:
                    raw = self._varint(data, at, 5)
                    at = self._at
                    if self._problem:
                        return position
            key_length = (raw >> 1) ^ -(raw & 1)
            key_at = at
            if key_length >= 0:
                at += key_length
            if key_length < -1 or at >= end:
                return self._fail(_KEY, key_length, end - key_at, position)
            raw = data[at]
            if raw < 0x80:
                at += 1
            else:
                byte = data[at + 1]
                if byte < 0x80:
                    raw = raw & 0x7F | byte << 7
                    at += 2
                else:
                    raw = self._varint(data, at, 5)
                    at = self._at
                    if self._problem:
                        return position
            value_length = (raw >> 1) ^ -(raw & 1)
            value_at = at
            if value_length >= 0:
                at += value_length
            if value_length < -1 or at >= end:
                return self._fail(_VALUE, value_length, end - value_at, position)
            headers = data[at]
            at += 1
            headers_at = at
            if headers:
                at -= 1
                raw = data[at]
                if raw < 0x80:
                    at += 1
                else:
                    byte = data[at + 1]
                    if byte < 0x80:
                        raw = raw & 0x7F | byte << 7
                        at += 2
                    else:
                        raw = self._varint(data, at, 5)
                        at = self._at
                        if self._problem:
                            return position
                headers = (raw >> 1) ^ -(raw & 1)
                if headers < 0 or headers > (end - at) // 2:
                    return self._fail(_HEADERS, headers, end - at, position)
                headers_at = at
                left = headers
                while left > 0:
                    left -= 1
                    raw = data[at]
                    if raw < 0x80:
                        at += 1
                    else:
                        byte = data[at + 1]
                        if byte < 0x80:
                            raw = raw & 0x7F | byte << 7
                            at += 2
                        else:
                            raw = self._varint(data, at, 5)
                            at = self._at
                            if self._problem:
                                return position
                    length = (raw >> 1) ^ -(raw & 1)
                    if length < 0 or length > end - at:
                        return self._fail(_HEADER_KEY, length, end - at, position)
                    at += length
                    raw = data[at]
                    if raw < 0x80:
                        at += 1
                    else:
                        byte = data[at + 1]
                        if byte < 0x80:
                            raw = raw & 0x7F | byte << 7
                            at += 2
                        else:
                            raw = self._varint(data, at, 5)
                            at = self._at
                            if self._problem:
                                return position
                    length = (raw >> 1) ^ -(raw & 1)
                    if length < -1 or length > end - at:
                        return self._fail(_HEADER_VALUE, length, end - at, position)
                    if length > 0:
                        at += length
            if at != end:
                return self._fail(_FIELDS, end - at, 0, position)
            if collects:
                self._append(
                    position, end, rest, delta, timestamp, key_at, key_length,
                    value_at, value_length, headers_at, headers,
                )  # fmt: skip
            if fills:
                self._fields[filled] = delta
                self._fields[filled + 1] = timestamp
                self._fields[filled + 2] = key_at
                self._fields[filled + 3] = key_length
                self._fields[filled + 4] = value_at
                self._fields[filled + 5] = value_length
                self._fields[filled + 6] = headers_at
                self._fields[filled + 7] = headers
                filled += RECORD_FIELDS
            if index == 0:
                low = high = timestamp
            elif timestamp < low:
                low = timestamp
            elif timestamp > high:
                high = timestamp
            if key_length < 0:
                self.null_keys += 1
            last_delta = delta
            index += 1
            position = end
        self.index = index
        self.offset_delta = last_delta
        self.min_timestamp_delta = low
        self.max_timestamp_delta = high
        return position

    def _varint(self, data: bytes | memoryview, at: int, max_bytes: int) -> int:
        """Return the unsigned varint at `at` and set `_at` to the position after it.

        Sets `_problem` if the varint is too long.
        """
        raw = shift = 0
        end = at + max_bytes
        while at < end:
            byte = data[at]
            at += 1
            if shift == 63 and byte > 1:
                break
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                if max_bytes == 5 and raw >> 32:
                    break
                self._at = at
                return raw
            shift += 7
        self._fail(_VARINT, max_bytes, 32 if max_bytes == 5 else 64, at)
        return 0

    def _fail(self, problem: int, found: int, most: int, position: int) -> int:
        self._problem = problem
        self._found = found
        self._most = most
        return position

    def _append(
        self, start: int, end: int, rest: int, offset_delta: int, timestamp_delta: int,
        key_at: int, key_length: int, value_at: int, value_length: int,
        headers_at: int, headers: int,
    ) -> None:  # fmt: skip
        assert self._spans is not None
        self._spans.append(
            (
                start, end, rest, offset_delta, timestamp_delta, key_at, key_length,
                value_at, value_length, headers_at, headers,
            )
        )  # fmt: skip


def record_bytes(data: bytes, position: int) -> int:
    """Return the size of the record at `position`; a lower bound if its length is incomplete."""
    raw = 0
    for at in range(position, min(position + 5, len(data))):
        raw |= (data[at] & 0x7F) << 7 * (at - position)
        if data[at] < 0x80:
            return at + 1 - position + ((raw >> 1) ^ -(raw & 1))
    return len(data) - position + 1


# The fast paths of the interpreted form

_BLOCK = 64
# `_walk` parses blocks with fewer records.
_LEAST = 4
# After more misses, `_walk` parses the rest of the block and the next _SKIPPED_BLOCKS blocks.
_MOST_MISSES = 6
_SKIPPED_BLOCKS = 4
_MOST_HEADERS = 16
_REPEATED = tuple(bytes((byte,)) * _BLOCK for byte in range(256))
# First bytes of the varints of 64 offset deltas: in the first block, and in all others
_FIRST_LOWS = bytes(range(0, 2 * _BLOCK, 2))
_LOWS = bytes(range(0x80, 0x80 + 2 * _BLOCK, 2))
_SEVEN_BITS = bytes(byte & 0x7F for byte in range(256))
_TOP_BIT_FLIPPED = bytes(byte ^ 0x80 for byte in range(256))
_PARITY = bytes((byte & 1) << 7 for byte in range(256))
# Index: a varint of one byte with one more byte, or a varint of two bytes (little endian). Value:
# the size of the varint plus the length that it encodes; for null only the size of the varint.
# Anything else has a value below -2^20, which stays negative when a small number is added.
_NO_SIZE = -(1 << 20)
_sizes: list[int] = []
# Length of a key by its one-byte varint
_KEY_BYTES = [
    0 if byte == 1 else byte >> 1 if byte < 0x80 and not byte & 1 else _NO_SIZE
    for byte in range(256)
]
# An array of a range of positions is a slice of this array, which is 20 times faster than building
# it. Most pieces are shorter than _MOST_ASCENDING.
_ascending = array("q")
_MOST_ASCENDING = 1 << 18
_shapes: dict[tuple[int, int, int, int], Callable[[bytes, int], tuple[Any, ...]]] = {}
_MOST_SHAPES = 1000


def _two_byte_sizes() -> list[int]:
    sizes = [_NO_SIZE] * 65536
    for high in range(128):
        first = (high << 8) + 0x80
        sizes[first : first + 128 : 2] = range((high << 6) + 2, (high + 1 << 6) + 2)
    for low in range(0, 128, 2):
        sizes[low::256] = [1 + (low >> 1)] * 256
    sizes[1::256] = [1] * 256
    return sizes


def _check_blocks(walk: RecordWalk, data: bytes, position: int, stop_index: int) -> int:
    """Parse records with the fast paths, before `stop_index`; return the position after them."""
    most = walk.last_offset_delta
    if not walk.dense or most < walk.count - 1 or stop_index - walk.index <= _LEAST:
        return position
    skipped = 0
    while walk.index < stop_index:
        end_index = min((walk.index | _BLOCK - 1) + 1, stop_index)
        if skipped or end_index - walk.index <= _LEAST:
            skipped = max(0, skipped - 1)
            end = _walk_to(walk, data, position, end_index)
            if end < 0 or walk.index < end_index:
                return max(position, end)
            position = end
            continue
        position, misses = _check_block(walk, data, position, end_index)
        if misses < 0:
            return position
        if misses > _MOST_MISSES:
            skipped = _SKIPPED_BLOCKS
    return position


def _walk_to(walk: RecordWalk, data: bytes, position: int, stop_index: int) -> int:
    """Call `_walk`; return -1 and restore the state if a record is malformed.

    The caller's `_walk` reports the error later.
    """
    index = walk.index
    state = walk.offset_delta, walk.min_timestamp_delta, walk.max_timestamp_delta, walk.null_keys
    try:
        position = walk._walk(data, position, stop_index)
        if not walk._problem:
            return position
    except IndexError:
        pass
    walk._problem = 0
    walk.index = index
    walk.offset_delta, walk.min_timestamp_delta, walk.max_timestamp_delta, walk.null_keys = state
    return -1


def _check_block(walk: RecordWalk, data: bytes, position: int, end_index: int) -> tuple[int, int]:
    """Parse records before `end_index`; return the position after them and the number of misses.

    A miss is a record that `_walk` parsed by itself. -1 misses: the next record is incomplete or
    malformed.
    """
    misses = 0
    while walk.index < end_index:
        spans: list[Span] = []
        walk._spans = spans
        end = _walk_to(walk, data, position, walk.index + 1)
        walk._spans = None
        if end < 0 or not spans:
            return position, -1
        position = end
        sample = spans[0]
        misses += 1
        if misses > _MOST_MISSES:
            end = _walk_to(walk, data, position, end_index)
            if end < 0 or walk.index < end_index:
                return max(position, end), -1
            return end, misses
        if end_index - walk.index >= _LEAST:
            if misses == 1 and (end := _check_columns(walk, data, sample, end_index)):
                return end, misses
            position = _check_shape(walk, data, sample, end_index)
    return position, misses


def _seen(walk: RecordWalk, end_index: int, low: int, high: int, null_keys: int) -> None:
    """Record that all records before `end_index` are valid, with these extreme timestamp deltas."""
    walk.index = end_index
    walk.offset_delta = end_index - 1
    walk.null_keys += null_keys
    if low < walk.min_timestamp_delta:
        walk.min_timestamp_delta = low
    if high > walk.max_timestamp_delta:
        walk.max_timestamp_delta = high


def _offset_bytes(index: int) -> int:
    """Return the size of the varint of this offset delta, which is equal throughout a block."""
    return 1 + (index >= 1 << 6) + (index >= 1 << 13) + (index >= 1 << 20) + (index >= 1 << 27)


def _varint_bytes(data: bytes, at: int) -> int:
    end = at
    while data[end] > 0x7F:
        end += 1
    return end + 1 - at


def _header_columns(data: bytes, at: int, headers: int) -> list[int]:
    """Return the positions of the header lengths of a valid record whose headers begin at `at`."""
    columns = []
    for _ in range(2 * headers):
        raw = shift = 0
        while True:
            columns.append(at)
            byte = data[at]
            at += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if not raw & 1:
            at += raw >> 1
    return columns


def _check_columns(walk: RecordWalk, data: bytes, sample: Span, end_index: int) -> int:
    """Check all records before `end_index` if they have the size and structure of the sample.

    Returns the position after them; 0 if a record differs.
    """
    start, first, rest, _, _, key_at, key_length, value_at, value_length, headers_at, headers = (
        sample
    )
    size = first - start
    index = walk.index
    records = end_index - index
    end = first + records * size
    # If lengths differ, the first byte of the last record usually differs.
    if end > len(data) or data[end - size] != data[start] or headers > _MOST_HEADERS:
        return 0
    body = start + _varint_bytes(data, start)
    if _varint_bytes(data, rest) != _offset_bytes(index):
        return 0
    columns = [
        *range(start, body),
        *range(rest + 1, key_at),
        *range(key_at + max(0, key_length), value_at),
        *range(value_at + max(0, value_length), headers_at),
    ]
    if headers:
        columns += _header_columns(data, headers_at, headers)
    for column in columns:
        if data[column + size : end : size] != _REPEATED[data[column]][:records]:
            return 0
    place = index & _BLOCK - 1
    lows = _FIRST_LOWS if index < _BLOCK else _LOWS
    if data[rest + size : end : size] != lows[place : place + records]:
        return 0
    time_columns = [data[at + size : end : size] for at in range(body + 1, rest)]
    times = _column_times(time_columns)
    if times is None:
        return 0
    if walk._fields is not None:
        places = [
            range(at + size, at + size + records * size, size)
            for at in (key_at, value_at, headers_at)
        ]
        deltas = times[0] if times[0] == times[1] else _all_times(time_columns)
        _fill(
            walk,
            records,
            deltas,
            places[0],
            key_length,
            places[1],
            value_length,
            places[2],
            headers,
        )
    _seen(walk, end_index, times[0], times[1], records if key_length < 0 else 0)
    return end


def _column_times(columns: list[bytes]) -> tuple[int, int] | None:
    """Return the least and the largest of these timestamp deltas.

    None if a delta is negative, very large, or of another size.
    """
    *others, last = columns
    first = columns[0]
    if not (last.isascii() and first.translate(_PARITY).isascii()) or len(others) > 7:
        return None
    for column in others:
        if not column.translate(_TOP_BIT_FLIPPED).isascii():
            return None
    records = len(last)
    if all(column == _REPEATED[column[0]][:records] for column in columns):
        digits = bytes([column[0] & 0x7F for column in columns])
        value = _time_of(digits)
        return value, value
    if not others:
        return min(last) >> 1, max(last) >> 1
    # The seven-bit bytes of each delta become a number with the same order.
    gathered = bytearray(8 * records)
    for place, column in enumerate(columns):
        gathered[place::8] = column.translate(_SEVEN_BITS)
    numbers = Struct(f"<{records}Q").unpack(gathered)
    return (
        _time_of(min(numbers).to_bytes(8, "little")),
        _time_of(max(numbers).to_bytes(8, "little")),
    )


def _all_times(columns: list[bytes]) -> list[int]:
    """Return all timestamp deltas of the columns of `_column_times`."""
    raws = list(columns[0].translate(_SEVEN_BITS))
    for place, column in enumerate(columns[1:], 1):
        shift = 7 * place
        raws = [raw | (byte & 0x7F) << shift for raw, byte in zip(raws, column, strict=True)]
    return [raw >> 1 for raw in raws]


def _fill(walk: RecordWalk, records: int, *columns: Sequence[int] | int) -> None:
    """Store the next records in `_fields`: the offset deltas, then these columns.

    A single number applies to all records.
    """
    if not _ascending:
        _ascending.extend(range(_MOST_ASCENDING))
    first = (walk.index - walk._first) * RECORD_FIELDS
    end = first + records * RECORD_FIELDS
    form = f"{records}q"
    deltas = range(walk.index, walk.index + records)
    for place, column in enumerate((deltas, *columns), first):
        if isinstance(column, int):
            numbers = array("q", (column,)) * records
        elif isinstance(column, range) and column.stop <= _MOST_ASCENDING:
            numbers = _ascending[column.start : column.stop : column.step]
        else:
            numbers = array("q", pack(form, *column))
        walk._fields[place:end:RECORD_FIELDS] = numbers


def _time_of(digits: bytes) -> int:
    raw = 0
    for digit in reversed(digits):
        raw = raw << 7 | digit
    return raw >> 1


def _check_shape(walk: RecordWalk, data: bytes, sample: Span, end_index: int) -> int:
    """Check the records before `end_index` that have the shape of the sample before them.

    Returns the position of the first record with another shape.
    """
    start, position, rest, _, _, key_at, key_length, value_at, value_length, headers_at, headers = (
        sample
    )
    index = walk.index
    body = start + 1 if data[start] < 0x80 else start + 2
    time_bytes, offset_bytes = rest - body - 1, _offset_bytes(index)
    value_end = value_at + max(0, value_length)
    if (
        data[body - 1] > 0x7F
        or time_bytes > 2
        or key_at - rest - offset_bytes != 1
        or headers_at - value_end != 1
        or headers > _MOST_HEADERS
    ):
        return position
    tail_bytes = position - value_end
    tail_unpack = None
    tail: tuple[int, ...] = ()
    if headers:
        at = value_end
        form = "B"
        for column in _header_columns(data, headers_at, headers):
            form += f"{column - at - 1}xB"
            at = column
        form += f"{position - at - 1}x"  # ends where the record ends
        tail_unpack = Struct(form).unpack_from
        tail = tail_unpack(data, value_end)
    if not _sizes:
        _sizes.extend(_two_byte_sizes())
    keys_vary = walk._key_length not in (-2, key_length)
    walk._key_length = -3 if keys_vary else key_length
    key_bytes = -1 if keys_vary else max(0, key_length)
    key = data[key_at - 1]
    # Size without the value and its length; one more if the record's length has two bytes.
    others = 1 + 1 + time_bytes + offset_bytes + 1 + max(0, key_bytes) + tail_bytes
    variants = (
        (_shape(1, time_bytes, offset_bytes, key_bytes), others),
        (_shape(2, time_bytes, offset_bytes, key_bytes), others + 1),
    )
    place = index & _BLOCK - 1
    lows = (_LOWS if index >= _BLOCK else _FIRST_LOWS)[place : place + end_index - index]
    suffix: int | bytes = data[rest + 1 : rest + offset_bytes]
    if offset_bytes == 2:
        suffix = data[rest + 1]
    sizes = _sizes
    last_time = -1  # stays -1 when fields are stored: then `times` has one entry per record
    times: list[int] = []
    null_keys = 0
    first_position = position
    fills = walk._fields is not None
    found: list[tuple[int, int, int]] = []
    try:
        if not keys_vary:
            for low in lows:
                unpack, others = variants[data[position] >> 7]
                size, time, offset_low, offset_rest, key_raw, value = unpack(data, position)
                size = sizes[size]
                if (
                    offset_low != low
                    or offset_rest != suffix
                    or key_raw != key
                    or sizes[value] != size - others
                ):
                    break
                end = position + size
                if tail_unpack is None:
                    if data[end - 1]:
                        break
                elif tail_unpack(data, end - tail_bytes) != tail:
                    break
                if time != last_time:
                    times.append(time)
                    if fills:
                        found.append((end, key_length, value))
                    else:
                        last_time = time
                position = end
                index += 1
        else:
            before = others - tail_bytes - 1
            for low in lows:
                long_size = data[position] >> 7
                unpack, others = variants[long_size]
                size, time, offset_low, offset_rest, key_raw = unpack(data, position)
                size = sizes[size]
                key_bytes = _KEY_BYTES[key_raw]
                at = position + before + long_size + 1 + key_bytes
                value = data[at] | data[at + 1] << 8
                if (
                    offset_low != low
                    or offset_rest != suffix
                    or sizes[value] != size - others - key_bytes
                ):
                    break
                end = position + size
                if tail_unpack is None:
                    if data[end - 1]:
                        break
                elif tail_unpack(data, end - tail_bytes) != tail:
                    break
                if time != last_time:
                    times.append(time)
                    if fills:
                        found.append((end, -1 if key_raw == 1 else key_bytes, value))
                    else:
                        last_time = time
                null_keys += key_raw == 1
                position = end
                index += 1
    except (IndexError, struct_error):
        pass  # the data ends inside a record
    if not times:
        return first_position
    if key_length < 0 and not keys_vary:
        null_keys = index - walk.index
    # All bytes of a varint except the last have the top bit.
    top_bits, wanted = (0x80, 0) if time_bytes == 1 else (0x8080, 0x80)
    if any(time & top_bits != wanted for time in times):
        return first_position
    if time_bytes == 2:
        times = [time & 0x7F | time >> 8 << 7 for time in times]
    deltas = [(time >> 1) ^ -(time & 1) for time in times]
    if fills:
        _fill_shape(walk, found, deltas, tail_bytes, headers)
    _seen(walk, index, min(deltas), max(deltas), null_keys)
    return position


def _fill_shape(
    walk: RecordWalk, found: list[tuple[int, int, int]], deltas: list[int], tail_bytes: int,
    headers: int,
) -> None:  # fmt: skip
    """Store the next records in `_fields`.

    `found` has for each record its end, its key length, and two bytes that begin with the varint of
    its value length; `deltas` are the timestamp deltas.
    """
    ends, key_lengths, values = zip(*found, strict=True)
    sizes = _sizes
    # Size of the length's varint, 1 or 2 bytes; 1 for null and for an empty value
    prefixes = [2 if value & 0x80 else 1 for value in values]
    value_lengths = [sizes[value] - prefix for value, prefix in zip(values, prefixes, strict=True)]
    value_ats = [end - tail_bytes - size for end, size in zip(ends, value_lengths, strict=True)]
    if 0 in value_lengths:
        value_lengths = [
            -1 if value & 0xFF == 1 else size
            for value, size in zip(values, value_lengths, strict=True)
        ]
    key_ats: Sequence[int] | int = 0
    if max(key_lengths) > 0:
        key_ats = [
            at - prefix - (size if size > 0 else 0)
            for at, prefix, size in zip(value_ats, prefixes, key_lengths, strict=True)
        ]
    header_ats = [end - tail_bytes + 1 for end in ends] if headers else 0
    _fill(
        walk, len(found), deltas, key_ats, key_lengths, value_ats, value_lengths, header_ats,
        headers,
    )  # fmt: skip


def _shape(
    length_bytes: int, time_bytes: int, offset_bytes: int, key_bytes: int
) -> Callable[[bytes, int], tuple[Any, ...]]:
    """Return a function that reads the fields of a record of this shape.

    Fields: length, timestamp delta, first byte of the offset delta, its other bytes, key length,
    and two bytes that begin with the value's length; without the last if `key_bytes` is -1 (it
    varies).
    """
    shape = length_bytes, time_bytes, offset_bytes, key_bytes
    if (unpack := _shapes.get(shape)) is None:
        number = ("", "B", "H")
        rest = "B" if offset_bytes == 2 else f"{offset_bytes - 1}s"
        form = f"<{number[length_bytes]}x{number[time_bytes]}B{rest}B"
        if key_bytes >= 0:
            form += f"{key_bytes}xH"
        if len(_shapes) >= _MOST_SHAPES:
            _shapes.clear()
        unpack = _shapes[shape] = Struct(form).unpack_from
    return unpack
