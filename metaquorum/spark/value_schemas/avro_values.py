"""Decoder of Avro records, by fastavro: single values, with or without a registry's schema id.

The reader's schema defines the columns; values are resolved to it from the schema that they were
written with (Avro's "Schema Resolution": promotions, aliases, defaults). A logical type becomes the
Arrow type of its name. Values are rejected if writer and reader give a number different logical
types, because the resolution would not convert it. A union of null and one type is a nullable
column.

`avro_check` checks the bytes first, so that fastavro never reads a false length or count.
Deliberately absent, and refused: unions of several types, recursive types, decimals of more than 38
digits in the reader's schema.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from typing import Any, Final, NoReturn

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError

from metaquorum.spark.value_schemas.avro_check import Check, check_value, compile_check
from metaquorum.spark.value_schemas.decoded import (
    Decoded,
    RejectedValueError,
    SchemaError,
    field_step,
    show,
)
from metaquorum.spark.value_schemas.decoded_size import Meter, row_bytes, struct_bytes
from metaquorum.spark.value_schemas.decoding import decode_each
from metaquorum.spark.value_schemas.framing import split_header
from metaquorum.spark.value_schemas.registry import RegistryClient, UnknownSchemaError
from metaquorum.spark.value_schemas.spark_types import (
    MAX_FIELDS,
    MAX_SCHEMA_CHARACTERS,
    check_columns,
)
from metaquorum.spark.value_schemas.spark_types import MAX_NESTING as MAX_COLUMN_NESTING

MAX_SCHEMA_NESTING: Final = 64
MAX_SCHEMA_ID: Final = (1 << 31) - 1
MAX_WRITERS: Final = 1000  # cached schemas of writers, by schema id
MAX_HELD_CHARACTERS: Final = 4 << 20  # texts of cached schemas; parsed: up to 100 times
_EXACT: Final = Context(prec=100)
_MAX_PRECISION: Final = 38

Converter = Callable[[Any], Any]


class _Parsed:
    """A record schema parsed by fastavro, with (`schema`) and without (`plain`) logical types.

    `check` is that of its values, which are resolved to the reader's schema; None: to itself.
    """

    def __init__(self, texts: tuple[str, ...], reader: _Parsed | None = None) -> None:
        """Parse the last of `texts`, which refers to the ones before it.

        Raises SchemaError if fastavro cannot use it, or its logical types are not the reader's.
        """
        self.named: dict[str, Any] = {}
        self.characters = sum(map(len, texts))
        plain_named: dict[str, Any] = {}
        try:
            for text in texts:
                raw = json.loads(text)
                plain = _without_logical_types(raw, 0)
                self.schema: Any = fastavro.parse_schema(raw, self.named)
                self.plain: Any = fastavro.parse_schema(plain, plain_named)
            if not isinstance(self.schema, dict) or self.schema.get("type") != "record":
                raise SchemaError(
                    "the Avro schema is not a record: columns are the fields of a record"
                )
            self.check: Check = compile_check(self.plain, plain_named, reader or self)
            clash = "" if reader is None else _clash(self, reader)
        except (SchemaError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - fastavro accepts parts that it cannot use
            said = f"{type(error).__name__}: {error}"[:200]
            raise SchemaError(f"the Avro schema cannot be used: {said}") from None
        if clash:
            raise SchemaError(f"the Avro schema has {clash}")


class AvroDecoder:
    """Decoder to the reader's schema; with framing, each value names its writer's schema."""

    def __init__(
        self,
        schema: str | None,
        schema_id: int | None,
        registry: RegistryClient | None,
        *,
        framed: bool,
    ) -> None:
        self._registry = registry
        self._framed = framed
        self.meter = Meter()
        self._reader: _Parsed | None = None
        self._writers: dict[int, _Parsed | str] = {}
        self.held_characters = 0
        if schema is not None:
            self._reader = _Parsed((schema,))
        else:
            assert schema_id is not None
            found = self._writer(schema_id)
            if isinstance(found, str):
                raise SchemaError(f"the reader's schema: {found}")
            self._reader = found
        struct, self._row = _Columns(self._reader.named).record(self._reader.schema, (), 0)
        check_columns(struct)
        self.arrow_schema: pa.Schema = pa.schema(list(struct))
        # The check counts a row as a record, but the row is a list.
        self._saved_bytes = struct_bytes(struct) - row_bytes(struct)

    def decode(self, values: pa.BinaryArray) -> Iterator[Decoded]:
        return decode_each(values, self.arrow_schema, self.decode_one, self.meter)

    def decode_one(self, data: bytes) -> list[Any]:
        """Return the columns of one value, and charge `meter` with their size.

        Raises RejectedValueError if the value is not of the schema.
        """
        reader = self._reader
        assert reader is not None
        writer = reader
        if self._framed:
            schema_id, data = split_header(data)
            found = self._writer(schema_id)
            if isinstance(found, str):
                raise RejectedValueError(found)
            writer = found
        check_value(writer.check, data, self.meter)
        resolved_to = None if writer is reader else reader.plain
        try:
            value = fastavro.schemaless_reader(io.BytesIO(data), writer.plain, resolved_to)
        except SchemaResolutionError as error:
            raise RejectedValueError(str(error)) from None
        except (ValueError, TypeError, LookupError, EOFError, ArithmeticError) as error:
            raise RejectedValueError(f"fastavro: {type(error).__name__}: {error}") from None
        row = list(self._row(value).values())
        self.meter.used -= self._saved_bytes
        return row

    def _writer(self, schema_id: int) -> _Parsed | str:
        """Return the schema of the id, or the reason why it cannot be used."""
        found = self._writers.get(schema_id)
        if found is None:
            found = self._fetch(schema_id)
            self.held_characters += _characters(found)
            while self._writers and (
                len(self._writers) >= MAX_WRITERS or self.held_characters > MAX_HELD_CHARACTERS
            ):
                oldest = self._writers.pop(next(iter(self._writers)))
                self.held_characters -= _characters(oldest)
            self._writers[schema_id] = found
        return found

    def _fetch(self, schema_id: int) -> _Parsed | str:
        assert self._registry is not None
        where = f"the schema with id {schema_id}"
        if schema_id > MAX_SCHEMA_ID:  # a registry answers as a server that it is not
            return f"{where} does not exist: ids have 31 bits"
        try:
            registered = self._registry.schema(schema_id)
        except UnknownSchemaError as error:
            return f"{where} {error}"
        if registered.kind != "AVRO":
            return f"{where} is not an Avro schema but {show(registered.kind)}"
        if sum(map(len, registered.texts)) > MAX_SCHEMA_CHARACTERS:
            return f"{where} has more than {MAX_SCHEMA_CHARACTERS} characters"
        try:
            return _Parsed(registered.texts, self._reader)
        except SchemaError as error:
            return f"{where}: {error}"


def _characters(writer: _Parsed | str) -> int:
    return 0 if isinstance(writer, str) else writer.characters


def _without_logical_types(schema: Any, depth: int) -> Any:
    """Return the schema without logical types: fastavro rounds their values, or raises an error."""
    if depth > MAX_SCHEMA_NESTING:
        raise SchemaError(f"the Avro schema is nested more than {MAX_SCHEMA_NESTING} deep")
    if isinstance(schema, list):
        return [_without_logical_types(branch, depth + 1) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in schema.items() if key not in _LOGICAL_KEYS}
    for key in ("type", "items", "values"):
        if key in plain:
            plain[key] = _without_logical_types(plain[key], depth + 1)
    if isinstance(plain.get("fields"), list):
        plain["fields"] = [
            {**each, "type": _without_logical_types(each["type"], depth + 1)}
            for each in plain["fields"]
        ]
    return plain


_LOGICAL_KEYS: Final = ("logicalType", "precision", "scale")


def _clash(writer: _Parsed, reader: _Parsed) -> str:
    """Return a phrase for the first place where the logical types differ; "" if there is none."""
    seen: set[tuple[int, int]] = set()

    def visit(a: Any, b: Any, path: str) -> str:
        a, b = _resolve(a, writer), _resolve(b, reader)
        if (id(a), id(b)) in seen:
            return ""
        if isinstance(a, list) or isinstance(b, list):
            ones = a if isinstance(a, list) else [a]
            others = b if isinstance(b, list) else [b]
            pairs = [(_resolve(x, writer), _resolve(y, reader)) for x in ones for y in others]
            found = (visit(x, y, path) for x, y in pairs if _kind(x) == _kind(y))
            return next(filter(None, found), "")
        if not isinstance(a, dict) or not isinstance(b, dict):
            return ""
        seen.add((id(a), id(b)))
        meanings = [(s.get("logicalType"), s.get("scale", 0)) for s in (a, b)]
        if meanings[0] != meanings[1] and meanings[0][0] and meanings[1][0]:
            names = [f"{name}, scale {scale}" if scale else name for name, scale in meanings]
            return f"{names[0]} at {path} where the reader's schema has {names[1]}"
        if "fields" in a and "fields" in b:
            fields = {name: f for f in b["fields"] for name in (*f.get("aliases", ()), f["name"])}
            for each in a["fields"]:
                if each["name"] in fields:
                    step = field_step(each["name"])
                    if said := visit(each["type"], fields[each["name"]]["type"], path + step):
                        return said
        for key in ("items", "values"):
            if key in a and key in b and (said := visit(a[key], b[key], f"{path}[]")):
                return said
        return ""

    return visit(writer.schema, reader.schema, "$")


def _kind(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema


def _resolve(schema: Any, parsed: _Parsed) -> Any:
    return parsed.named.get(schema, schema) if isinstance(schema, str) else schema


class _Columns:
    """Arrow types of a reader's schema, each with a converter from fastavro's values."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._count = 0

    def of(self, schema: Any, within: tuple[str, ...], depth: int) -> tuple[pa.DataType, Converter]:
        self._count += 1
        if self._count > MAX_FIELDS or depth > MAX_COLUMN_NESTING:
            raise SchemaError(
                f"the Avro schema has more than {MAX_FIELDS} fields, or is nested more than"
                f" {MAX_COLUMN_NESTING} deep"
            )
        if isinstance(schema, list):
            raise SchemaError(
                "the Avro schema has a union of several types, which is not supported: leave the"
                " field out of the reader's schema"
            )
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, str):
            return _PRIMITIVES[schema]
        kind = schema["type"]
        if kind == "record":
            return self.record(schema, within, depth)
        if kind in ("array", "map"):
            item, nullable, convert = self._nullable(
                schema["items" if kind == "array" else "values"], within, depth
            )
            if kind == "array":
                return pa.list_(pa.field("element", item, nullable=nullable)), _array(convert)
            return pa.map_(pa.string(), pa.field("value", item, nullable=nullable)), _map(convert)
        if kind == "enum":
            return _PRIMITIVES["string"]
        if kind == "fixed" and schema.get("logicalType") not in ("decimal", "uuid"):
            return pa.binary(schema["size"]), _sized(schema["size"])
        return _logical(schema) or self.of(kind, within, depth + 1)

    def record(
        self, schema: Any, within: tuple[str, ...], depth: int
    ) -> tuple[pa.DataType, Converter]:
        name = schema["name"]
        if name in within:
            raise SchemaError(f"the Avro schema has the recursive type {name}: not supported")
        fields = []
        converters: list[tuple[str, Converter]] = []
        for each in schema["fields"]:
            kind, nullable, convert = self._nullable(each["type"], (*within, name), depth + 1)
            fields.append(pa.field(each["name"], kind, nullable=nullable))
            converters.append((each["name"], convert))

        def convert_record(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                _wrong(value, "record")
            row = {}
            for name, convert in converters:
                try:
                    row[name] = convert(value.get(name))
                except RejectedValueError as error:
                    raise error.under(field_step(name)) from None
            return row

        return pa.struct(fields), convert_record

    def _nullable(
        self, schema: Any, within: tuple[str, ...], depth: int
    ) -> tuple[pa.DataType, bool, Converter]:
        if schema == "null":
            return pa.null(), True, _null
        if not isinstance(schema, list) or "null" not in schema:
            only = schema[0] if isinstance(schema, list) and len(schema) == 1 else schema
            kind, convert = self.of(only, within, depth + 1)
            return kind, False, convert
        others = [branch for branch in schema if branch != "null"]
        if not others:
            return pa.null(), True, _null
        only = others[0] if len(others) == 1 else others
        kind, convert = self.of(only, within, depth + 1)
        return kind, True, lambda value: None if value is None else convert(value)


def _wrong(value: Any, kind: object) -> NoReturn:
    raise RejectedValueError(f"{show(value)} is not a valid {kind}")


def _null(value: Any) -> None:
    if value is not None:
        _wrong(value, "null")


def _whole(kind: pa.DataType, low: int, high: int) -> Converter:
    def convert(value: Any) -> int:
        if type(value) is int and low <= value <= high:
            return value
        _wrong(value, kind)

    return convert


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _wrong(value, "number")
    return float(value)


def _single(value: Any) -> float:
    found = _real(value)
    # A decoded float is in range, but a default of the reader's schema may not be.
    if found - found == 0 and abs(found) > 3.4028235677973366e38:
        _wrong(value, "float")
    return found


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    _wrong(value, "boolean")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        _wrong(value, "string")
    try:
        value.encode()
    except UnicodeEncodeError:
        _wrong(value, "string")
    return value


def _octets(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str):  # a default, with one character per byte
            return value.encode("latin-1")
    except UnicodeEncodeError:
        pass
    _wrong(value, "bytes")


def _sized(size: int) -> Converter:
    def convert(value: Any) -> bytes:
        data = _octets(value)
        if len(data) != size:
            _wrong(value, f"fixed of {size} bytes")
        return data

    return convert


def _array(item: Converter) -> Converter:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            _wrong(value, "array")
        return [item(part) for part in value]

    return convert


def _map(item: Converter) -> Converter:
    def convert(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            _wrong(value, "map")
        return [(_text(name), item(part)) for name, part in value.items()]

    return convert


def _uuid(value: Any) -> str:
    data = _octets(value)
    if len(data) != 16:
        _wrong(value, "uuid")
    return str(uuid.UUID(bytes=data))


def _decimal(schema: Any) -> tuple[pa.DataType, Converter]:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        raise SchemaError("the Avro schema has a decimal with an invalid precision or scale")
    if not 1 <= precision <= _MAX_PRECISION:
        raise SchemaError(f"the Avro schema has a decimal of more than {_MAX_PRECISION} digits")
    limit = 10**precision

    def convert(value: Any) -> Decimal:
        data = _octets(value)
        unscaled = int.from_bytes(data, "big", signed=True)
        if not data or abs(unscaled) >= limit:
            _wrong(data, f"decimal({precision},{scale})")
        return Decimal(unscaled).scaleb(-scale, _EXACT)

    return pa.decimal128(precision, scale), convert


_INT: Final = (-(1 << 31), (1 << 31) - 1)
_LONG: Final = (-(1 << 63), (1 << 63) - 1)
_DAY_S: Final = 24 * 60 * 60
_PRIMITIVES: Final[dict[str, tuple[pa.DataType, Converter]]] = {
    "null": (pa.null(), _null),
    "boolean": (pa.bool_(), _boolean),
    "int": (pa.int32(), _whole(pa.int32(), *_INT)),
    "long": (pa.int64(), _whole(pa.int64(), *_LONG)),
    "float": (pa.float32(), _single),
    "double": (pa.float64(), _real),
    "bytes": (pa.binary(), _octets),
    "string": (pa.string(), _text),
}
_LOGICAL: Final = {
    ("int", "date"): (pa.date32(), _INT),
    ("int", "time-millis"): (pa.time32("ms"), (0, _DAY_S * 1000 - 1)),
    ("long", "time-micros"): (pa.time64("us"), (0, _DAY_S * 1_000_000 - 1)),
    ("long", "timestamp-millis"): (pa.timestamp("ms", tz="UTC"), _LONG),
    ("long", "timestamp-micros"): (pa.timestamp("us", tz="UTC"), _LONG),
    ("long", "timestamp-nanos"): (pa.timestamp("ns", tz="UTC"), _LONG),
    ("long", "local-timestamp-millis"): (pa.timestamp("ms"), _LONG),
    ("long", "local-timestamp-micros"): (pa.timestamp("us"), _LONG),
    ("long", "local-timestamp-nanos"): (pa.timestamp("ns"), _LONG),
}


def _logical(schema: Any) -> tuple[pa.DataType, Converter] | None:
    """Return the column of a logical type; None if it is unknown: Avro then ignores it."""
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema)
    if logical == "uuid" and kind == "fixed":
        if schema["size"] != 16:
            raise SchemaError("the Avro schema has a uuid of another size than 16 bytes")
        return pa.string(), _uuid
    if (kind, logical) in _LOGICAL:
        arrow, limits = _LOGICAL[kind, logical]
        return arrow, _whole(arrow, *limits)
    return None
