"""Conversion of fetched record batches to Arrow record batches, without a Python object per record.

The columns are those of Spark's Kafka connector, with its types:

    key, value      binary, null if the record has none
    topic           string
    partition       int32
    offset          int64
    timestamp       timestamp[us, UTC]; of the record, or of the append (LogAppendTime); null if
                    out of range
    timestampType   int32: 0 CreateTime, 1 LogAppendTime
    headers         list<struct<key: string, value: binary>>, null if there are none; optional

Bytes of a header key that are not UTF-8 become U+FFFD. A timestamp that does not fit 64-bit
microseconds is null; the connector fails, so that any producer could stop the readers of a topic.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.primitives.types import Buffer
from metaquorum.wire.records.record_columns import KEY, TIMESTAMP, VALUE, BinaryBuffers, ListBuffers
from metaquorum.wire.records.record_walk import RECORD_FIELDS
from metaquorum.wire.records.records import BatchHeader, TimestampType, record_fields
from metaquorum.wire.records.walk_form import columns_form

# Records located in one step: 64 bytes of memory each.
WALKED_RECORDS: Final = 4096
_MOST_MS: Final = ((1 << 63) - 1) // 1000
_OFFSETS_END: Final = 1 << 63
# Keys, values and headers together: the limit of the int32 offsets of one Arrow array.
MAX_HELD_BYTES: Final = (1 << 31) - 1

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_COLUMNS: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
}
_WITH_HEADERS: Final = {**_COLUMNS, "headers": pa.list_(_HEADER)}


def schema(include_headers: bool, columns: Sequence[str] | None) -> pa.Schema:
    """Return the Arrow schema of `columns` (None: all), in the order of the table above.

    Raises ValueError if a column does not exist or is named twice.
    """
    there = _WITH_HEADERS if include_headers else _COLUMNS
    chosen = list(there) if columns is None else list(columns)
    for name in chosen:
        if name not in there:
            hint = "; includeHeaders=true adds headers" if name == "headers" else ""
            raise ValueError(
                f"column {name!r} does not exist; the columns are {', '.join(there)}{hint}"
            )
        if chosen.count(name) > 1:
            raise ValueError(f"the column {name!r} is named twice")
    return pa.schema([(name, kind) for name, kind in there.items() if name in chosen])


class BatchBuilder:
    """Columns that `add` appends to, until `take` returns them as one Arrow record batch.

    `rows` and `data_bytes` (keys, values and headers, with the Arrow offsets of headers, because
    a header may have no bytes) count the held rows. `records`, `bytes` (keys and values), the
    first and last offset and the timestamps cover all records ever added, but for timestamps out
    of range.
    """

    def __init__(self, schema: pa.Schema, topic: str, partition: int) -> None:
        self.rows = 0
        self.records = 0
        self.bytes = 0
        self.first_offset: int | None = None
        self.last_offset: int | None = None
        self.min_timestamp_ms: int | None = None
        self.max_timestamp_ms: int | None = None
        self._schema = schema
        self._topic = topic
        self._partition = partition
        form: Any = columns_form()
        names = set(schema.names)
        self._key = form.BinaryColumn(KEY) if "key" in names else None
        self._value = form.BinaryColumn(VALUE) if "value" in names else None
        self._offset = form.Int64Column() if "offset" in names else None
        self._timestamp = form.Int64Column() if "timestamp" in names else None
        self._headers = form.HeadersColumn() if "headers" in names else None
        self._binary = [one for one in (self._key, self._value, self._headers) if one is not None]
        self._summary = form.summary
        self._fields = array("q", bytes(8 * RECORD_FIELDS * WALKED_RECORDS))
        self._types: list[tuple[int, int]] = []  # runs: (timestamp type, rows)
        self._odd_times = array("q")  # held rows with a timestamp out of range
        self._header: BatchHeader | None = None
        self._start = self._end = 0
        self._runs = array("Q")  # first offset and end offset (exclusive) of each run
        self._expected = 0

    @property
    def data_bytes(self) -> int:
        """Bytes of the columns of variable size, over the held rows."""
        return sum([column.data_bytes for column in self._binary])

    def add(
        self, buffer: Buffer, position: int, header: BatchHeader, start: int, end: int
    ) -> Iterator[None]:
        """Append the records with start <= offset < end of the batch at `position`, in steps.

        Yields after each piece of the batch. Raises WireError or KafkaError if the batch is
        malformed: the records before the damage stay, and `last_offset` is the last of them.
        """
        self._header = header
        self._start, self._end = start, min(end, _OFFSETS_END)
        self._expected = max(start, header.base_offset)
        self._runs = array("Q")
        is_dense = header.record_count == header.last_offset_delta + 1
        take_in = self._take_in if is_dense else self._take_in_sparse
        yield from record_fields(buffer, position, header, self._fields, take_in)
        behind = min(self._end, header.next_offset)
        if not is_dense and self._expected < behind:
            self._runs.extend((self._expected, behind))

    def missing_runs(self) -> Iterator[tuple[int, int]]:
        """Return the runs of offsets without a record in the last added batch, [start, end) only.

        Each run is (first offset, end offset), the end exclusive. After an error these are the
        runs before `last_offset`.
        """
        return zip(self._runs[::2], self._runs[1::2], strict=True)

    def _take_in_sparse(self, data: Buffer, count: int) -> None:
        """Append records as `_take_in` does, for a batch in which offsets are missing."""
        assert self._header is not None
        base, expected = self._header.base_offset, self._expected
        for delta in self._fields[0 : count * RECORD_FIELDS : RECORD_FIELDS]:
            offset = base + delta
            if offset >= self._end:
                break
            if offset >= expected:
                if offset > expected:
                    self._runs.extend((expected, offset))
                expected = offset + 1
        self._expected = expected
        try:
            self._take_in(data, count)
        except WireError:
            last = -1 if self.last_offset is None else self.last_offset
            while self._runs and self._runs[-1] > last:
                del self._runs[-2:]
            raise

    def _take_in(self, data: Buffer, count: int) -> None:
        """Append those of the `count` records located in `_fields` that belong to the range."""
        header, fields = self._header, self._fields
        assert header is not None
        if self.data_bytes + len(data) > MAX_HELD_BYTES:
            # Checked before any column grows. RangeReader calls `take` long before this limit:
            # data is at most a window of twice the largest record.
            raise WireError(
                f"{len(data)} bytes of records and {self.data_bytes} bytes held are more than "
                f"the {MAX_HELD_BYTES} bytes of one Arrow column"
            )
        base = header.base_offset
        first = 0
        if (
            base + fields[0] < self._start
            or base + fields[(count - 1) * RECORD_FIELDS] >= self._end
        ):
            offsets = [base + delta for delta in fields[0 : count * RECORD_FIELDS : RECORD_FIELDS]]
            first = sum([offset < self._start for offset in offsets])
            count = sum([offset < self._end for offset in offsets]) - first
            if count <= 0:
                return
        low, high, size = self._summary(fields, first, count)
        low += header.base_timestamp
        high += header.base_timestamp
        is_appended = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        if is_appended:
            low = high = header.max_timestamp
        for column in self._binary:
            column.append(data, fields, first, count)
        if self._offset is not None:
            self._offset.append_offsets(fields, first, count, base)
        if -_MOST_MS <= low <= high <= _MOST_MS:
            self._note_times(low, high)
            if self._timestamp is not None and is_appended:
                self._timestamp.append_constant(1000 * low, count)
            elif self._timestamp is not None:
                self._timestamp.append_timestamps(fields, first, count, header.base_timestamp)
        else:
            times = [low] * count if is_appended else self._times(first, count)
            self._append_odd_times(times)
        self.bytes += size
        self._note(first, count, int(is_appended))

    def _append_odd_times(self, times: Sequence[int]) -> None:
        """Append times of which some are out of range: these are null, and not in the summary."""
        for row, time in enumerate(times, self.rows):
            is_sound = -_MOST_MS <= time <= _MOST_MS
            if is_sound:
                self._note_times(time, time)
            else:
                self._odd_times.append(row)
            if self._timestamp is not None:
                self._timestamp.append_constant(1000 * time if is_sound else 0, 1)

    def _note_times(self, low: int, high: int) -> None:
        self.min_timestamp_ms = min(low, low if (t := self.min_timestamp_ms) is None else t)
        self.max_timestamp_ms = max(high, high if (t := self.max_timestamp_ms) is None else t)

    def _times(self, first: int, count: int) -> list[int]:
        assert self._header is not None
        base_timestamp = self._header.base_timestamp
        place = first * RECORD_FIELDS + TIMESTAMP
        some = self._fields[place : (first + count) * RECORD_FIELDS : RECORD_FIELDS]
        return [base_timestamp + delta for delta in some]

    def _note(self, first: int, count: int, kind: int) -> None:
        """Update the counters for `count` records added, beginning with record `first`."""
        assert self._header is not None
        fields, base = self._fields, self._header.base_offset
        self.rows += count
        self.records += count
        if self.first_offset is None:
            self.first_offset = base + fields[first * RECORD_FIELDS]
        self.last_offset = base + fields[(first + count - 1) * RECORD_FIELDS]
        if self._types and self._types[-1][0] == kind:
            self._types[-1] = kind, self._types[-1][1] + count
        else:
            self._types.append((kind, count))

    def take(self) -> pa.RecordBatch:
        """Return all held rows as one record batch, and hold none afterwards."""
        rows, self.rows = self.rows, 0
        types, self._types = self._types, []
        odd_times, self._odd_times = self._odd_times, array("q")
        if not self._schema.names:  # from_arrays would make a batch without rows
            return pa.RecordBatch.from_struct_array(
                pa.Array.from_buffers(pa.struct([]), rows, [None], null_count=0)
            )
        made: dict[str, pa.Array] = {}
        if self._key is not None:
            made["key"] = _binary_array(self._key.take(), pa.binary())
        if self._value is not None:
            made["value"] = _binary_array(self._value.take(), pa.binary())
        if self._offset is not None:
            made["offset"] = _int64_array(self._offset.take(), rows, pa.int64(), ())
        if self._timestamp is not None:
            kind = _COLUMNS["timestamp"]
            made["timestamp"] = _int64_array(self._timestamp.take(), rows, kind, odd_times)
        if self._headers is not None:
            made["headers"] = _headers_array(self._headers.take())
        made["topic"] = pa.repeat(self._topic, rows)
        made["partition"] = pa.repeat(pa.scalar(self._partition, pa.int32()), rows)
        kinds = [pa.repeat(pa.scalar(kind, pa.int32()), count) for kind, count in types]
        made["timestampType"] = pa.concat_arrays(kinds) if kinds else pa.array([], pa.int32())
        return pa.RecordBatch.from_arrays(
            [made[name] for name in self._schema.names], schema=self._schema
        )


def _binary_array(buffers: BinaryBuffers, kind: pa.DataType) -> pa.Array:
    validity = None if buffers.validity is None else pa.py_buffer(buffers.validity)
    parts = [validity, pa.py_buffer(buffers.offsets), pa.py_buffer(buffers.data)]
    return pa.Array.from_buffers(kind, buffers.rows, parts, null_count=buffers.nulls)


def _int64_array(
    values: memoryview, rows: int, kind: pa.DataType, nulls: Sequence[int]
) -> pa.Array:
    """Return the values as an array in which the rows of `nulls` are null."""
    validity = None
    if nulls:
        bits = bytearray(b"\xff" * (-(-rows // 8)))
        for row in nulls:
            bits[row >> 3] &= ~(1 << (row & 7))
        validity = pa.py_buffer(bytes(bits))
    return pa.Array.from_buffers(
        kind, rows, [validity, pa.py_buffer(values)], null_count=len(nulls)
    )


def _headers_array(buffers: ListBuffers) -> pa.Array:
    keys = _binary_array(buffers.keys, pa.binary())
    try:
        keys = keys.cast(pa.string())
    except pa.ArrowInvalid:
        keys = pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
    values = _binary_array(buffers.values, pa.binary())
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
    validity = None if buffers.validity is None else pa.py_buffer(buffers.validity)
    parts = [validity, pa.py_buffer(buffers.offsets)]
    return pa.Array.from_buffers(
        _WITH_HEADERS["headers"], buffers.rows, parts, null_count=buffers.nulls, children=[pairs]
    )
