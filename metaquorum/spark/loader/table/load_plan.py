"""Plan of one load, stored in the output: the same ranges for every run of the load.

Deliberately absent: addresses, users, passwords. A re-run gets them from its own arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from metaquorum.spark.loader.table.json_fields import (
    check_format,
    check_names,
    decode,
    encode,
    flag,
    mapping,
    random_id,
    sequence,
    text,
    whole,
)
from metaquorum.spark.offset_ranges import ReadPlan
from metaquorum.spark.value_schemas.decoded import SchemaError
from metaquorum.spark.value_schemas.spec import ValueSchemaSpec
from metaquorum.wire.primitives.frozen import frozen

KIND: Final = "load plan"
FORMAT: Final = 1
MAX_PLAN_BYTES: Final = 256 << 20
# Ranges of one load: a manifest of them has at most MAX_MANIFEST_BYTES.
MAX_RANGES: Final = 100_000
_FIELDS: Final = (
    *("kind", "format", "version", "plan_id", "request", "settings", "client_id"),
    "read_plan",
)
FILE_COLUMNS: Final = ("key", "value", "offset", "timestamp", "timestampType")
PATH_COLUMNS: Final = ("topic", "partition")
HEADERS: Final = "headers"
SIDE_COLUMNS: Final = ("key", "value", "offset", "timestamp")
CODECS: Final = ("snappy", "zstd", "lz4", "gzip", "none")


@frozen
class TableSettings:
    """Columns, compression and value schema of the data files, the same for a whole load."""

    columns: tuple[str, ...] | None = None
    include_headers: bool = False
    compression: str = "snappy"
    value_schema: ValueSchemaSpec | None = None  # None: values stay binary

    @property
    def file_columns(self) -> tuple[str, ...]:
        """Columns in the data files; topic and partition are in their paths."""
        chosen = FILE_COLUMNS if self.columns is None else self.columns
        if self.include_headers and self.columns is None:
            chosen = (*chosen, HEADERS)
        return tuple(name for name in chosen if name not in PATH_COLUMNS)

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Columns to read: with a value schema also the columns of rejected records."""
        if self.value_schema is None:
            return self.file_columns
        more = (name for name in SIDE_COLUMNS if name not in self.file_columns)
        return (*self.file_columns, *more)

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": None if self.columns is None else list(self.columns),
            "include_headers": self.include_headers,
            "compression": self.compression,
            "value_schema": None if self.value_schema is None else self.value_schema.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableSettings:
        names = "columns", "include_headers", "compression", "value_schema"
        check_names(data, "settings", *names)
        columns = None
        if data.get("columns") is not None:
            columns = tuple(sequence(data, "columns"))
            if not all(isinstance(name, str) for name in columns):
                raise ValueError("columns are not strings")
        compression = text(data, "compression")
        if compression not in CODECS:
            raise ValueError(f"compression is not one of {', '.join(CODECS)}")
        return cls(columns, flag(data, "include_headers"), compression, _value_schema(data))


def _value_schema(data: Mapping[str, Any]) -> ValueSchemaSpec | None:
    found = data.get("value_schema")
    if found is None:
        return None
    try:
        return ValueSchemaSpec.from_json(mapping(found, "value_schema"))
    except SchemaError as error:
        raise ValueError(str(error)) from None


@frozen
class LoadPlan:
    """Plan of one load. `plan_id` distinguishes plans of the same version.

    `request` has the arguments of the load, which are the same for the same command.
    """

    version: int
    plan_id: str
    request: Mapping[str, Any]
    settings: TableSettings
    read_plan: ReadPlan
    client_id: str

    def to_bytes(self) -> bytes:
        return encode(
            {
                "kind": KIND,
                "format": FORMAT,
                "version": self.version,
                "plan_id": self.plan_id,
                "request": dict(self.request),
                "settings": self.settings.to_json(),
                "client_id": self.client_id,
                "read_plan": self.read_plan.to_json(),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> LoadPlan:
        """Return the plan of a file's content. Raises ValueError if it is invalid."""
        found = decode(data)
        check_format(found, KIND, FORMAT)
        check_names(found, "it", *_FIELDS)
        plan = cls(
            whole(found, "version", least=1),
            random_id(found, "plan_id"),
            mapping(found.get("request"), "request"),
            TableSettings.from_json(mapping(found.get("settings"), "settings")),
            ReadPlan.from_json(found.get("read_plan")),
            text(found, "client_id"),
        )
        if not plan.read_plan.ranges:
            raise ValueError("it has no ranges")
        if len(plan.read_plan.ranges) > MAX_RANGES:
            raise ValueError(f"it has more than {MAX_RANGES} ranges")
        return plan
