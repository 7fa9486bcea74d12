"""Splitting of record batches into rows with decoded values and rejected records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from metaquorum.spark.value_schemas.decoded import SchemaError, ValueDecoder, show

VALUE: Final = "value"
REASON: Final = "reason"
_SIDE_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", VALUE)


def decoded_schema(batch_schema: pa.Schema, value_schema: pa.Schema) -> pa.Schema:
    """Return the columns of a batch, with the fields of the value in the place of `value`.

    A field with the name of a record's column (`key`, `offset`; without case, as in Spark) is
    renamed to `value_key`. Raises SchemaError if this name is also taken.
    """
    at = _value_index(batch_schema)
    own = [field for field in batch_schema if field.name != VALUE]
    taken = {field.name.lower() for field in own}
    columns = [
        field.with_name(f"value_{field.name}") if field.name.lower() in taken else field
        for field in value_schema
    ]
    for field in columns:
        count = len(taken)
        taken.add(field.name.lower())
        if len(taken) == count:
            raise SchemaError(
                f"two columns of the table would be named {show(field.name)}: leave one out of the"
                " schema"
            )
    return pa.schema([*own[:at], *columns, *own[at:]])


def rejected_schema(batch_schema: pa.Schema) -> pa.Schema:
    """Return the columns of rejected records.

    These are the columns topic, partition, offset, timestamp, key and value as far as the batch
    has them, and reason.
    """
    _value_index(batch_schema)
    fields = [batch_schema.field(name) for name in _SIDE_COLUMNS if name in batch_schema.names]
    return pa.schema([*fields, pa.field(REASON, pa.string(), nullable=False)])


def split(
    batch: pa.RecordBatch, decoder: ValueDecoder
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield the records with decoded values (`decoded_schema`) and the rejected ones, in pieces.

    The second batch of a piece has the columns of `rejected_schema`. Each row of `batch` is in
    exactly one of the batches, in the same order; pieces are as large as `decoder` makes them.
    """
    at = _value_index(batch.schema)
    schema = decoded_schema(batch.schema, decoder.arrow_schema)
    side_schema = rejected_schema(batch.schema)
    for decoded in decoder.decode(batch.column(at)):
        rows = batch.take(decoded.kept)
        own = [rows.column(index) for index in range(rows.num_columns) if index != at]
        arrays = [*own[:at], *decoded.columns.columns, *own[at:]]
        side = batch.take(decoded.rejected)
        side_arrays = [side.column(name) for name in side_schema.names[:-1]]
        yield (
            pa.RecordBatch.from_arrays(arrays, schema=schema),
            pa.RecordBatch.from_arrays([*side_arrays, decoded.reasons], schema=side_schema),
        )


def _value_index(schema: pa.Schema) -> int:
    at = schema.get_field_index(VALUE)
    if at < 0:
        raise SchemaError("values can be decoded only if the column value is loaded")
    return int(at)
