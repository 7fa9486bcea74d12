"""Decode record values to a given schema; what cannot be decoded keeps its offset and a reason.

    decoder = open_decoder(ValueSchemaSpec("json", "id BIGINT NOT NULL, name STRING"))
    rows, rejected = split(batch, decoder)

JSON (`json_values`), Avro (`avro_values`, by fastavro: `pip install 'metaquorum[avro]'`) and
Protobuf (`protobuf_values`, by protobuf: `pip install 'metaquorum[protobuf]'`) have their rules in
a module each. A value is decoded whole or rejected whole. A null value (a tombstone) is rejected:
the side table keeps its key and offset. A registry that does not answer raises LoadError instead,
so that the task is run again: it is no fault of the record.

Imports pyarrow, `metaquorum.spark.errors` and `wire.primitives`; fastavro in `avro_values` only,
google.protobuf in `protobuf_values` only. Network I/O in `registry` only. Start with `decoded`.
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
    """A decoder of values to the schema; `auth` is for the spec's registry.

    SchemaError says what is wrong with the schema, or which extra is not installed.
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
