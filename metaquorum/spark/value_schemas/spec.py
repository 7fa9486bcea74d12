"""Specification of the schema for values: plain values without secrets, stored in plans."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from metaquorum.spark.value_schemas.decoded import SchemaError, show
from metaquorum.wire.primitives.frozen import frozen

KINDS: Final = ("json", "avro", "protobuf")
NO_FRAMING: Final = "none"
CONFLUENT: Final = "confluent"
_FRAMINGS: Final = ("", NO_FRAMING, CONFLUENT)
_FIELDS: Final = ("kind", "schema", "message", "registry", "schemaId", "framing")


@frozen
class ValueSchemaSpec:
    """Kind, schema and framing of record values.

    Raises SchemaError if the fields contradict each other. Credentials for the registry are not
    part of it; `open_decoder` takes them as an argument.
    """

    kind: str  # one of KINDS
    # For json, Spark's DDL or JSON of a schema; for avro, an Avro schema; for protobuf, the bytes
    # of a FileDescriptorSet (protoc --descriptor_set_out --include_imports).
    schema: str | bytes = ""
    message: str = ""  # full name of the Protobuf message
    registry: str | None = None  # URL of a schema registry with the writers' Avro schemas
    schema_id: int | None = None  # id of the reader's Avro schema, instead of `schema`
    # "confluent": values begin with a magic byte and a schema id; "none": they do not; "": means
    # "confluent" with a registry, otherwise "none".
    framing: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SchemaError(f"unknown kind of schema {show(self.kind)}; use {', '.join(KINDS)}")
        if self.framing not in _FRAMINGS:
            raise SchemaError(f"unknown framing {show(self.framing)}; use none, confluent")
        if isinstance(self.schema, bytes) != (self.kind == "protobuf"):
            raise SchemaError(
                "a schema of kind protobuf is the bytes of a FileDescriptorSet (protoc"
                " --descriptor_set_out=FILE --include_imports), any other is text"
            )
        if self.kind != "avro" and (self.registry is not None or self.schema_id is not None):
            raise SchemaError(
                f"only Avro schemas come from a registry: give the {self.kind} schema itself"
                " (framing confluent skips the schema id of each value)"
            )
        if bool(self.message) != (self.kind == "protobuf"):
            raise SchemaError("give the name of a message for kind protobuf, and only for it")
        if self.kind == "avro":
            self._check_avro()
        elif not self.schema:
            raise SchemaError(f"the schema of kind {self.kind} is empty")

    def _check_avro(self) -> None:
        if bool(self.schema) == (self.schema_id is not None):
            raise SchemaError(
                "give either the reader's Avro schema, or its id in the schema registry"
            )
        if self.registry is None:
            if self.schema_id is not None or self.framing == CONFLUENT:
                raise SchemaError("the id of an Avro schema needs the URL of a schema registry")
            return
        if self.framing == NO_FRAMING and self.schema_id is None:
            raise SchemaError("a schema registry cannot be used if values have no schema id")
        url = urlsplit(self.registry)
        if url.username is not None or url.password is not None:
            raise SchemaError("the URL of the registry has credentials: give them separately")
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise SchemaError("the URL of the registry must be like https://host:8081")

    @property
    def is_framed(self) -> bool:
        """Whether each value begins with a magic byte and a schema id."""
        return self.framing == CONFLUENT or (not self.framing and self.registry is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as an object for `json.dumps`, which `from_json` reads."""
        schema = self.schema
        text = base64.b64encode(schema).decode() if isinstance(schema, bytes) else schema
        values = (self.kind, text, self.message, self.registry, self.schema_id, self.framing)
        return dict(zip(_FIELDS, values, strict=True))

    @classmethod
    def from_json(cls, parsed: Mapping[str, Any]) -> ValueSchemaSpec:
        """Return the spec of a result of `to_json`. Raises SchemaError for any other object."""
        kind, schema, message, registry, schema_id, framing = map(parsed.get, _FIELDS)
        if (
            set(parsed) != set(_FIELDS)
            or not all(isinstance(each, str) for each in (kind, schema, message, framing))
            or not isinstance(registry, str | None)
            or not isinstance(schema_id, int | None)
        ):
            raise SchemaError("the plan's value schema has other fields than expected")
        assert isinstance(schema, str)
        decoded: str | bytes = schema
        if kind == "protobuf":
            try:
                decoded = base64.b64decode(schema, validate=True)
            except (binascii.Error, ValueError):
                raise SchemaError("the plan's value schema is not base64") from None
        return cls(str(kind), decoded, str(message), registry, schema_id, str(framing))
