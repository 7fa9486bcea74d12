"""Arrow record batches of the records in fetched record batches.

The columns are those of Spark's Kafka connector, with its types; see `schema`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from wire.primitives.types import Buffer
from wire.records.records import BatchHeader, Record, decode_pieces

_COLUMNS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
}
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def schema(include_headers: bool, columns: Sequence[str] | None) -> pa.Schema:
    """The columns in their order; of these, `columns` chooses. ValueError for unknown ones."""
    fields = dict(_COLUMNS)
    if include_headers:
        fields["headers"] = _HEADERS
    chosen = list(fields) if columns is None else list(columns)
    if unknown := [name for name in chosen if name not in fields]:
        raise ValueError(f"no column {unknown[0]}; there are: {', '.join(fields)}")
    if len(set(chosen)) < len(chosen):
        raise ValueError("a column is named twice")
    return pa.schema([(name, fields[name]) for name in fields if name in chosen])


class BatchBuilder:
    """Holds decoded records until `take`; counts all that were ever added."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int) -> None:
        self.rows = 0
        self.data_bytes = 0
        self.records = 0
        self.bytes = 0
        self.first_offset: int | None = None
        self.last_offset: int | None = None
        self.min_timestamp_ms: int | None = None
        self.max_timestamp_ms: int | None = None
        self._schema = schema
        self._topic = topic
        self._partition = partition
        self._held: list[tuple[Record, int]] = []
        self._runs: list[tuple[int, int]] = []

    def add(
        self, buffer: Buffer, position: int, header: BatchHeader, start: int, end: int
    ) -> Iterator[None]:
        """Records of the batch at `position` with start <= offset < end, a piece a step."""
        expected = max(start, header.base_offset)
        stop = min(end, header.next_offset)
        self._runs = []
        kind = header.timestamp_type.value
        for records in decode_pieces(buffer, position):
            for record in records:
                if not start <= record.offset < end:
                    continue
                if record.offset > expected:
                    self._runs.append((expected, record.offset))
                expected = record.offset + 1
                self._take_in(record, kind)
            yield
        if expected < stop:
            self._runs.append((expected, stop))

    def _take_in(self, record: Record, kind: int) -> None:
        self._held.append((record, kind))
        size = len(record.key or b"") + len(record.value or b"")
        self.rows += 1
        self.records += 1
        self.data_bytes += size
        self.bytes += size
        if self.first_offset is None:
            self.first_offset = record.offset
        self.last_offset = record.offset
        low, high, stamp = self.min_timestamp_ms, self.max_timestamp_ms, record.timestamp_ms
        self.min_timestamp_ms = stamp if low is None else min(low, stamp)
        self.max_timestamp_ms = stamp if high is None else max(high, stamp)

    def missing_runs(self) -> Iterator[tuple[int, int]]:
        """Runs of offsets that the batch added last has no records for, between start and end."""
        return iter(self._runs)

    def take(self) -> pa.RecordBatch:
        """What is held; nothing is, afterwards."""
        held, self._held = self._held, []
        self.rows = self.data_bytes = 0
        values: dict[str, Any] = {
            "key": [record.key for record, _ in held],
            "value": [record.value for record, _ in held],
            "topic": [self._topic] * len(held),
            "partition": [self._partition] * len(held),
            "offset": [record.offset for record, _ in held],
            "timestamp": [record.timestamp_ms * 1000 for record, _ in held],
            "timestampType": [kind for _, kind in held],
            "headers": [
                [{"key": key, "value": value} for key, value in record.headers] or None
                for record, _ in held
            ],
        }
        arrays = [pa.array(values[field.name], field.type) for field in self._schema]
        return pa.record_batch(arrays, schema=self._schema)
