"""Decode record values to a given schema; what cannot be decoded keeps its offset and a reason.

    decoder = open_decoder(ValueSchemaSpec("json", "id BIGINT NOT NULL, name STRING"))
    rows, rejected = split(batch, decoder)

JSON has its rules in `json_values`. A value is decoded whole or rejected whole. A null value (a
tombstone) is rejected: the side table keeps its key and offset.

Imports pyarrow, `metaquorum.spark.errors` and `wire.primitives`. No I/O. Start with `decoded`.
"""

from __future__ import annotations

from metaquorum.spark.value_schemas.decoded import (
    Decoded,
    SchemaError,
    ValueDecoder,
)
from metaquorum.spark.value_schemas.json_values import JsonDecoder
from metaquorum.spark.value_schemas.spec import ValueSchemaSpec
from metaquorum.spark.value_schemas.splitting import decoded_schema, rejected_schema, split

__all__ = [
    "Decoded",
    "SchemaError",
    "ValueDecoder",
    "ValueSchemaSpec",
    "decoded_schema",
    "open_decoder",
    "rejected_schema",
    "split",
]


def open_decoder(spec: ValueSchemaSpec) -> ValueDecoder:
    """A decoder of values to the schema. SchemaError says what is wrong with it."""
    if spec.kind == "json":
        assert isinstance(spec.schema, str)
        return JsonDecoder(spec.schema, framed=spec.is_framed)
    raise SchemaError(f"values of kind {spec.kind} cannot be decoded")
