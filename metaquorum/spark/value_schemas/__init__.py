"""Decoders of record values to a given schema; other values are rejected with a reason.

    decoder = open_decoder(ValueSchemaSpec("json", "id BIGINT NOT NULL, name STRING"))
    for rows, rejected in split(batch, decoder): ...

JSON (`json_values`), Avro (`avro_values`, by fastavro: `pip install 'metaquorum[avro]'`) and
Protobuf (`protobuf_values`, by protobuf: `pip install 'metaquorum[protobuf]'`) have one module
each, with its rules. A value is decoded or rejected as a whole. A null value (a tombstone) is
rejected: the side table keeps its key and offset. If the schema registry does not answer, the
decoder raises LoadError instead, so that the task is repeated.

Imports pyarrow, `metaquorum.spark.errors` and `metaquorum.wire.primitives`; fastavro in
`avro_values` only, google.protobuf in `protobuf_values` only. Network I/O in `registry` only. Start
with `decoded`.
"""

from __future__ import annotations

from metaquorum.spark.value_schemas.decoded import (
    Decoded,
    SchemaError,
    ValueDecoder,
)
from metaquorum.spark.value_schemas.json_values import JsonDecoder
from metaquorum.spark.value_schemas.registry import RegistryAuth, RegistryClient, RegistryError
from metaquorum.spark.value_schemas.spec import ValueSchemaSpec
from metaquorum.spark.value_schemas.splitting import decoded_schema, rejected_schema, split

__all__ = [
    "Decoded",
    "RegistryAuth",
    "RegistryError",
    "SchemaError",
    "ValueDecoder",
    "ValueSchemaSpec",
    "decoded_schema",
    "open_decoder",
    "rejected_schema",
    "split",
]


def open_decoder(spec: ValueSchemaSpec, auth: RegistryAuth | None = None) -> ValueDecoder:
    """Return a decoder for the schema; `auth` is for the spec's schema registry.

    Raises SchemaError if the schema is invalid or an extra is not installed, and RegistryError if
    the registry does not answer.
    """
    if spec.kind == "json":
        assert isinstance(spec.schema, str)
        return JsonDecoder(spec.schema, framed=spec.is_framed)
    if spec.kind == "avro":
        try:
            from metaquorum.spark.value_schemas.avro_values import AvroDecoder
        except ModuleNotFoundError as error:
            if error.name != "fastavro":
                raise
            raise SchemaError(
                "Avro values need fastavro, which is not installed: pip install 'metaquorum[avro]'"
            ) from None
        assert isinstance(spec.schema, str)
        registry = None if spec.registry is None else RegistryClient(spec.registry, auth)
        return AvroDecoder(spec.schema or None, spec.schema_id, registry, framed=spec.is_framed)
    try:
        from metaquorum.spark.value_schemas.protobuf_values import ProtobufDecoder
    except ModuleNotFoundError as error:
        if error.name not in ("google", "google.protobuf"):
            raise
        raise SchemaError(
            "Protobuf values need the library protobuf, which is not installed: pip install"
            " 'metaquorum[protobuf]'"
        ) from None
    assert isinstance(spec.schema, bytes)
    return ProtobufDecoder(spec.schema, spec.message, framed=spec.is_framed)
