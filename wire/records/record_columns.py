# cython: language_level=3, annotation_typing=False, boundscheck=True, wraparound=False
# cython: initializedcheck=False, show_performance_hints=False
"""Growing columns of records in the memory layout of Arrow arrays.

`RecordWalk.fields` gives the positions of the fields in a piece of a batch; the columns copy the
fields: concatenated bytes, an int32 offset and a validity bit for each row. `take` returns the
buffers, which `pyarrow.py_buffer` can wrap, and starts new ones. `wire` does not import pyarrow.

The form compiled by Cython, `metaquorum.wire.records._record_columns`, makes no Python object per
record. The interpreted form uses slices and has the same results;
tests/wire/records/test_record_columns.py compares both. C types are in `_record_columns.pxd`.
Source: the Arrow columnar format, "Variable-size Binary Layout", "Variable-size List Layout".
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from struct import pack_into
from typing import Any, Final, NamedTuple

from metaquorum.wire.records.record_walk import RECORD_FIELDS

if __name__.rpartition(".")[2].startswith("_"):  # compiled
    import cython
else:
    from metaquorum.wire.records import interpreted as cython

# Index of a field in the RECORD_FIELDS of each record, in an array of `RecordWalk.fields`
DELTA = 0  # offset delta
TIMESTAMP = 1  # timestamp delta
KEY = 2  # position; the next field is the length (-1: null)
VALUE = 4  # position; the next field is the length (-1: null)
_HEADERS_AT = 6
_HEADERS = 7  # number of headers

_FIRST_ROWS: Final = 4096
_FIRST_BYTES: Final = 1 << 16
_INT32_BYTES: Final = 4
_INT64_BYTES: Final = 8


class BinaryBuffers(NamedTuple):
    """Buffers of `rows` values: validity bits (None: no value is null), int32 offsets, bytes."""

    rows: int
    nulls: int
    validity: memoryview | None
    offsets: memoryview
    data: memoryview


class ListBuffers(NamedTuple):
    """Buffers of `rows` lists of pairs, whose items are in `keys` and `values`."""

    rows: int
    nulls: int
    validity: memoryview | None
    offsets: memoryview
    keys: BinaryBuffers
    values: BinaryBuffers


class BinaryColumn:
    """Column of keys or values: `rows` of them, `nulls` of them null, with `data_bytes` bytes."""

    def __init__(self, field: int) -> None:
        """`field`: KEY or VALUE."""
        self._field = field
        self._begin(_FIRST_ROWS, _FIRST_BYTES)

    def _begin(self, rows: int, size: int) -> None:
        self.rows = self.nulls = self.data_bytes = 0
        self._blocks = (
            bytearray(size),
            bytearray((rows + 1) * _INT32_BYTES),
            bytearray(rows // 8 + 1),
        )
        self._map()

    def _map(self) -> None:
        data, offsets, validity = self._blocks
        self._data = memoryview(data)
        self._offsets = memoryview(offsets).cast("i")
        self._validity = memoryview(validity)

    def reserve(self, rows: int, size: int) -> None:
        """Make room for `rows` more rows with `size` more bytes. Raises OverflowError at 2 GiB."""
        data, offsets, validity = self._blocks
        rows += self.rows
        size += self.data_bytes
        if size > _MAX_BYTES:
            raise OverflowError(
                f"a column of {size} bytes exceeds the limit of int32 offsets, {_MAX_BYTES}"
            )
        if size <= len(data) and (rows + 1) * _INT32_BYTES <= len(offsets):
            return
        if size > len(data):
            data = _grown(data, size)
        if (rows + 1) * _INT32_BYTES > len(offsets):
            offsets = _grown(offsets, (rows + 1) * _INT32_BYTES)
            validity = _grown(validity, len(offsets) // _INT32_BYTES // 8 + 1)
        self._blocks = data, offsets, validity
        self._map()

    def append(self, data: Any, fields: "array[int]", first: int, count: int) -> None:
        """Append the keys or values of `count` records from index `first` of `fields` on."""
        if cython.compiled:
            self.reserve(count, self._measure(fields, first, count))
            self._copy(data, fields, first, count)
            return
        begin, end = first * RECORD_FIELDS + self._field, (first + count) * RECORD_FIELDS
        starts = fields[begin:end:RECORD_FIELDS]
        lengths = fields[begin + 1 : end : RECORD_FIELDS]
        if _is_same(lengths):
            size = lengths[0]
            values = [data[at : at + size] for at in starts] if size > 0 else []
        else:
            pairs = zip(starts, lengths, strict=True)
            values = [data[at : at + size] for at, size in pairs if size > 0]
        self._extend(values, lengths)

    def _extend(self, values: "list[bytes]", lengths: "array[int]") -> None:
        """Append rows of these lengths (-1: null); `values` holds the non-empty ones.

        Interpreted form only.
        """
        joined = b"".join(values)
        count = len(lengths)
        self.reserve(count, len(joined))
        at, row = self.data_bytes, self.rows
        self._data[at : at + len(joined)] = joined
        ends: Iterable[int]
        if _is_same(lengths):
            size = lengths[0]
            if size >= 0:
                _set_bits(self._validity, row, count)
            else:
                self.nulls += count
            ends = range(at, at + size * count + 1, size) if size > 0 else repeat(at, count + 1)
        elif -1 in lengths:
            for number, length in enumerate(lengths, row):
                if length >= 0:
                    self._validity[number >> 3] |= 1 << (number & 7)
                else:
                    self.nulls += 1
            some = [length if length > 0 else 0 for length in lengths]
            ends = accumulate(some, initial=at)
        else:
            _set_bits(self._validity, row, count)
            ends = accumulate(lengths, initial=at)
        pack_into(f"{count + 1}i", self._blocks[1], row * _INT32_BYTES, *ends)
        self.rows = row + count
        self.data_bytes = at + len(joined)

    def _measure(self, fields: Any, first: int, count: int) -> int:
        total = 0
        index = first * RECORD_FIELDS + self._field + 1
        while count > 0:
            length = fields[index]
            if length > 0:
                total += length
            index += RECORD_FIELDS
            count -= 1
        return total

    def _copy(self, data: Any, fields: Any, first: int, count: int) -> int:
        size = len(data)
        at = self.data_bytes
        row = self.rows
        index = first * RECORD_FIELDS + self._field
        number = 0
        while number < count:
            length = fields[index + 1]
            if length >= 0:
                self._validity[row >> 3] |= 1 << (row & 7)
                if length > 0:
                    start = fields[index]
                    if length > size - start:
                        raise IndexError
                    memcpy(  # type: ignore[name-defined]  # noqa: F821 - from the .pxd
                        cython.address(self._data[at]), cython.address(data[start]), length
                    )
                    at += length
            else:
                self.nulls += 1
            row += 1
            self._offsets[row] = at
            index += RECORD_FIELDS
            number += 1
        self.rows = row
        self.data_bytes = at
        return 0

    def _put(self, data: Any, start: int, length: int) -> int:
        """Append one row; a length of -1 means null."""
        self.reserve(1, max(0, length))
        at, row = self.data_bytes, self.rows
        if length >= 0:
            self._validity[row >> 3] |= 1 << (row & 7)
            if length > 0:
                if cython.compiled:
                    if length > len(data) - start:
                        raise IndexError
                    memcpy(  # type: ignore[name-defined]  # noqa: F821 - from the .pxd
                        cython.address(self._data[at]), cython.address(data[start]), length
                    )
                else:
                    self._data[at : at + length] = data[start : start + length]
                at += length
        else:
            self.nulls += 1
        self.rows = row + 1
        self.data_bytes = at
        self._offsets[row + 1] = at
        return 0

    def take(self) -> BinaryBuffers:
        """Return all rows and empty the column."""
        data, offsets, validity = self._blocks
        rows, nulls, size = self.rows, self.nulls, self.data_bytes
        self._begin(max(_FIRST_ROWS, rows + rows // 4), max(_FIRST_BYTES, size + size // 4))
        return BinaryBuffers(
            rows,
            nulls,
            memoryview(validity)[: (rows + 7) // 8] if nulls else None,
            memoryview(offsets)[: (rows + 1) * _INT32_BYTES],
            memoryview(data)[:size],
        )


class Int64Column:
    """Column of offsets or timestamps."""

    def __init__(self) -> None:
        self._begin(_FIRST_ROWS)

    def _begin(self, rows: int) -> None:
        self.rows = 0
        self._block = bytearray(rows * _INT64_BYTES)
        self._values = memoryview(self._block).cast("q")

    def _reserve(self, rows: int) -> None:
        if (self.rows + rows) * _INT64_BYTES > len(self._block):
            self._block = _grown(self._block, (self.rows + rows) * _INT64_BYTES)
            self._values = memoryview(self._block).cast("q")

    def append_offsets(
        self, fields: "array[int]", first: int, count: int, base_offset: int
    ) -> None:
        """Append the offsets of `count` records from index `first` of `fields` on."""
        self._append(fields, first, count, DELTA, base_offset, 1)

    def append_timestamps(
        self, fields: "array[int]", first: int, count: int, base_timestamp_ms: int
    ) -> None:
        """Append the timestamps in microseconds; the caller checked that they fit 64 bits."""
        self._append(fields, first, count, TIMESTAMP, base_timestamp_ms, 1000)

    def append_constant(self, value: int, count: int) -> None:
        """Append `value` `count` times."""
        self._reserve(count)
        repeated = memoryview(array("q", (value,)) * count)
        row = self.rows
        if cython.compiled:
            memoryview(self._block).cast("q")[row : row + count] = repeated
        else:
            self._values[row : row + count] = repeated
        self.rows = row + count

    def _append(
        self, fields: "array[int]", first: int, count: int, field: int, base: int, factor: int
    ) -> None:
        self._reserve(count)
        if cython.compiled:
            self._add(fields, first, count, field, base, factor)
            return
        some = fields[
            first * RECORD_FIELDS + field : (first + count) * RECORD_FIELDS : RECORD_FIELDS
        ]
        values: Sequence[int] = range(base + some[0], base + some[-1] + 1)  # right for most offsets
        if factor > 1 or len(values) != count:
            values = [(base + value) * factor for value in some]
        pack_into(f"{count}q", self._block, self.rows * _INT64_BYTES, *values)
        self.rows += count

    def _add(self, fields: Any, first: int, count: int, field: int, base: int, factor: int) -> int:
        row = self.rows
        index = first * RECORD_FIELDS + field
        number = 0
        while number < count:
            self._values[row] = (base + fields[index]) * factor
            row += 1
            index += RECORD_FIELDS
            number += 1
        self.rows = row
        return 0

    def take(self) -> memoryview:
        """Return all values as int64 and empty the column."""
        block, rows = self._block, self.rows
        self._begin(max(_FIRST_ROWS, rows + rows // 4))
        return memoryview(block)[: rows * _INT64_BYTES]


class HeadersColumn:
    """Column of headers: a list of (key, value) per record, null for a record without headers."""

    def __init__(self) -> None:
        self.keys = BinaryColumn(KEY)
        self.values = BinaryColumn(VALUE)
        self._at = 0
        self._begin(_FIRST_ROWS)

    def _begin(self, rows: int) -> None:
        self.rows = self.nulls = 0
        self._blocks = bytearray((rows + 1) * _INT32_BYTES), bytearray(rows // 8 + 1)
        self._map()

    def _map(self) -> None:
        offsets, validity = self._blocks
        self._offsets = memoryview(offsets).cast("i")
        self._validity = memoryview(validity)

    @property
    def data_bytes(self) -> int:
        """Bytes of all keys, values and their offsets; an empty header takes memory, too."""
        offsets = 2 * _INT32_BYTES * self.keys.rows
        return self.keys.data_bytes + self.values.data_bytes + offsets

    def append(self, data: Any, fields: "array[int]", first: int, count: int) -> None:
        """Append the headers of `count` records from index `first` on, which a walk checked."""
        offsets, validity = self._blocks
        if (self.rows + count + 1) * _INT32_BYTES > len(offsets):
            offsets = _grown(offsets, (self.rows + count + 1) * _INT32_BYTES)
            self._blocks = offsets, _grown(validity, len(offsets) // _INT32_BYTES // 8 + 1)
            self._map()
        self._copy(data, fields, first, count)

    def _copy(self, data: Any, fields: Any, first: int, count: int) -> int:
        row = self.rows
        index = first * RECORD_FIELDS
        number = 0
        while number < count:
            headers = fields[index + _HEADERS]
            if headers:
                self._validity[row >> 3] |= 1 << (row & 7)
                at = fields[index + _HEADERS_AT]
                left = headers
                while left > 0:
                    length = self._varint(data, at)
                    self.keys._put(data, self._at, length)
                    at = self._at + length
                    length = self._varint(data, at)
                    self.values._put(data, self._at, length)
                    at = self._at
                    if length > 0:
                        at += length
                    left -= 1
            else:
                self.nulls += 1
            row += 1
            self._offsets[row] = self.keys.rows
            index += RECORD_FIELDS
            number += 1
        self.rows = row
        return 0

    def _varint(self, data: Any, at: int) -> int:
        """Return the varint at `at` and set `_at` to the position after it."""
        raw = shift = 0
        while True:
            byte = data[at]
            at += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        self._at = at
        value: int = (raw >> 1) ^ -(raw & 1)
        return value

    def take(self) -> ListBuffers:
        """Return all rows and empty the column."""
        offsets, validity = self._blocks
        rows, nulls = self.rows, self.nulls
        self._begin(max(_FIRST_ROWS, rows + rows // 4))
        return ListBuffers(
            rows,
            nulls,
            memoryview(validity)[: (rows + 7) // 8] if nulls else None,
            memoryview(offsets)[: (rows + 1) * _INT32_BYTES],
            self.keys.take(),
            self.values.take(),
        )


_MAX_BYTES = (1 << 31) - 1


def summary(fields: Any, first: int, count: int) -> tuple[int, int, int]:
    """Return the least and largest timestamp delta, and the bytes of all keys and values.

    Covers `count` records from index `first` of `fields` on.
    """
    index = first * RECORD_FIELDS
    if not cython.compiled:
        end = (first + count) * RECORD_FIELDS
        times = fields[index + TIMESTAMP : end : RECORD_FIELDS]
        size = 0
        for field in (KEY, VALUE):
            lengths = fields[index + field + 1 : end : RECORD_FIELDS]
            if _is_same(lengths):
                size += max(0, lengths[0]) * count
            else:
                size += sum(lengths) + lengths.count(-1)
        if _is_same(times):
            return times[0], times[0], size
        return min(times), max(times), size
    low = high = fields[index + TIMESTAMP]
    size = 0
    while count > 0:
        time = fields[index + TIMESTAMP]
        if time < low:
            low = time
        elif time > high:
            high = time
        length = fields[index + KEY + 1]
        if length > 0:
            size += length
        length = fields[index + VALUE + 1]
        if length > 0:
            size += length
        index += RECORD_FIELDS
        count -= 1
    return low, high, size


def _is_same(numbers: "array[int]") -> bool:
    """Return whether all numbers are equal; comparing arrays makes no object per number."""
    return numbers == numbers[:1] * len(numbers)


def _grown(block: bytearray, size: int) -> bytearray:
    """Return a block of at least `size` bytes that starts with the bytes of `block`."""
    larger = bytearray(max(size, 2 * len(block)))
    larger[: len(block)] = block
    return larger


def _set_bits(bits: memoryview, first: int, count: int) -> None:
    """Set the bits `first` to `first` + `count` - 1."""
    end = first + count
    while first < end and first & 7:
        bits[first >> 3] |= 1 << (first & 7)
        first += 1
    whole = (end - first) >> 3
    if whole > 0:
        bits[first >> 3 : (first >> 3) + whole] = b"\xff" * whole
        first += whole << 3
    while first < end:
        bits[first >> 3] |= 1 << (first & 7)
        first += 1
