"""Parser of Spark's notation for schemas, with Arrow schemas as its result.

It accepts both forms of `from_json`: DDL, `id BIGINT NOT NULL, tags ARRAY<STRING>`, and the JSON of
`StructType.json()`. Type names are those of Spark's SQL reference; a field is nullable unless it is
declared NOT NULL.

Deliberately absent, and refused: intervals, VARIANT, CHAR and VARCHAR (their lengths), collations,
user-defined types, maps with keys other than strings.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa

from metaquorum.spark.value_schemas.decoded import SchemaError, show

MAX_SCHEMA_CHARACTERS: Final = 1 << 20
MAX_NESTING: Final = 32
MAX_FIELDS: Final = 10_000
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
_MAX_PRECISION: Final = 38
_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_DECIMAL: Final = re.compile(r"(?:decimal|dec|numeric)\s*\(\s*(\d{1,3})\s*(?:,\s*(\d{1,3})\s*)?\)")
_TOKEN: Final = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<word>\w+)"
    r"|`(?P<quoted>(?:[^`]|``)+)`"
    r"|(?P<mark>[<>(),:])"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")",
    re.DOTALL,
)


def arrow_schema(text: str) -> pa.Schema:
    """Return the columns that the text describes. Raises SchemaError if it is invalid."""
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise SchemaError(f"the schema has more than {MAX_SCHEMA_CHARACTERS} characters")
    parsed = _from_json(text) if text.lstrip().startswith("{") else _Ddl(text).parse()
    check_columns(parsed)
    return pa.schema(list(parsed))


def check_columns(struct: pa.StructType) -> None:
    """Raise SchemaError unless the struct can be the columns of a Parquet file.

    It cannot for no or too many fields, names that differ in case only, and empty types.
    """
    if struct.num_fields == 0:
        raise SchemaError("the schema has no fields")
    seen: dict[str, str] = {}
    for field in struct:
        name = field.name
        if name.lower() in seen:
            raise SchemaError(
                f"the schema has the columns {show(seen[name.lower()])} and {show(name)}, which"
                " Spark does not distinguish: leave one of them out"
            )
        seen[name.lower()] = name
        _check_stored(field)
    _count_fields(struct, 0)


def _check_stored(field: pa.Field) -> None:
    """Raise SchemaError for a type that a Parquet file does not have."""
    kind = field.type
    if (pa.types.is_struct(kind) and not kind.num_fields) or kind == pa.binary(0):
        empty = "record without fields" if pa.types.is_struct(kind) else "fixed of 0 bytes"
        raise SchemaError(
            f"the schema has the field {show(field.name)}, a {empty}, which Parquet cannot store:"
            " leave it out of the schema"
        )
    for at in range(kind.num_fields):
        _check_stored(kind.field(at))


def _count_fields(kind: pa.DataType, before: int) -> int:
    count = before + 1
    if count > MAX_FIELDS:
        raise SchemaError(f"the schema has more than {MAX_FIELDS} fields")
    for at in range(kind.num_fields):
        count = _count_fields(kind.field(at).type, count)
    return count


def _struct(fields: list[pa.Field]) -> pa.DataType:
    counts = Counter(field.name for field in fields)
    for name, count in counts.items():
        if count > 1:
            raise SchemaError(f"the schema has the field {show(name)} twice")
    return pa.struct(fields)


def _decimal(precision: int, scale: int) -> pa.DataType:
    if not 1 <= precision <= _MAX_PRECISION or scale > precision:
        raise SchemaError(
            f"DECIMAL({precision},{scale}): the precision must be 1 to {_MAX_PRECISION}, the scale"
            " at most the precision"
        )
    return pa.decimal128(precision, scale)


def _map(keys: pa.DataType, items: pa.DataType, nullable: bool) -> pa.DataType:
    if keys != pa.string():
        raise SchemaError("the keys of a MAP must be STRING, like the keys of JSON objects")
    return pa.map_(keys, pa.field("value", items, nullable=nullable))


def _array(items: pa.DataType, nullable: bool) -> pa.DataType:
    return pa.list_(pa.field("element", items, nullable=nullable))


def _unknown(name: str) -> NoReturn:
    raise SchemaError(
        f"the schema has the type {show(name)}; the supported types are BOOLEAN, TINYINT, SMALLINT,"
        " INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ,"
        " ARRAY<...>, MAP<STRING, ...>, STRUCT<...>"
    )


class _Token(NamedTuple):
    kind: str  # "word", "quoted", "mark", "text", "end"
    text: str
    at: int


class _Ddl:
    """Recursive descent parser of DDL, at most MAX_NESTING deep."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0

    def parse(self) -> pa.DataType:
        first, second = self._tokens[0], self._tokens[min(1, len(self._tokens) - 1)]
        if first.text.lower() == "struct" and second.text == "<":
            parsed = self._type(0)
        else:
            parsed = _struct(self._fields(0))
        if self._next.kind != "end":
            self._unexpected("the end")
        return parsed

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _unexpected(self, expected: str) -> NoReturn:
        token = self._next
        found = "the end" if token.kind == "end" else show(token.text)
        raise SchemaError(
            f"the schema has {found} at character {token.at + 1} where {expected} is expected, as"
            " in: id BIGINT NOT NULL, name STRING, tags ARRAY<STRING>"
        )

    def _take(self, mark: str) -> bool:
        token = self._next
        found = token.kind in ("mark", "word") and token.text.lower() == mark
        self._at += found
        return found

    def _require(self, mark: str) -> None:
        if not self._take(mark):
            self._unexpected(show(mark))

    def _fields(self, depth: int) -> list[pa.Field]:
        fields = [self._field(depth)]
        while self._take(","):
            fields.append(self._field(depth))
        return fields

    def _field(self, depth: int) -> pa.Field:
        if self._next.kind not in ("word", "quoted"):
            self._unexpected("the name of a field")
        name = self._next.text
        self._at += 1
        self._take(":")
        kind = self._type(depth)
        nullable = True
        if self._take("not"):
            self._require("null")
            nullable = False
        if self._take("comment"):
            if self._next.kind != "text":
                self._unexpected("the text of a comment")
            self._at += 1
        return pa.field(name, kind, nullable=nullable)

    def _type(self, depth: int) -> pa.DataType:
        if depth > MAX_NESTING:
            raise SchemaError(f"the schema is nested more than {MAX_NESTING} deep")
        if self._next.kind != "word":
            self._unexpected("a type")
        name = self._next.text.lower()
        self._at += 1
        if name == "array":
            self._require("<")
            items = self._type(depth + 1)
            self._require(">")
            return _array(items, nullable=True)
        if name == "map":
            self._require("<")
            keys = self._type(depth + 1)
            self._require(",")
            items = self._type(depth + 1)
            self._require(">")
            return _map(keys, items, nullable=True)
        if name == "struct":
            self._require("<")
            fields = self._fields(depth + 1)
            self._require(">")
            return _struct(fields)
        if name in _DECIMALS:
            return self._decimal()
        return _PRIMITIVES[name] if name in _PRIMITIVES else _unknown(name)

    def _decimal(self) -> pa.DataType:
        if not self._take("("):
            return _decimal(10, 0)
        precision = self._number()
        scale = self._number() if self._take(",") else 0
        self._require(")")
        return _decimal(precision, scale)

    def _number(self) -> int:
        text = self._next.text
        if not re.fullmatch("[0-9]{1,3}", text):
            self._unexpected("a number")
        self._at += 1
        return int(text)


def _tokens(text: str) -> list[_Token]:
    found = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SchemaError(
                f"the schema has {show(text[at])} at character {at + 1}, which is allowed only in a"
                " name in `backquotes`"
            )
        kind = str(match.lastgroup)
        if kind == "quoted":
            found.append(_Token(kind, match["quoted"].replace("``", "`"), at))
        elif kind != "space":
            found.append(_Token(kind, match[kind], at))
        at = match.end()
    return [*found, _Token("end", "", len(text))]


def _from_json(text: str) -> pa.DataType:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(
            f"the schema begins like JSON but is not JSON: {error}; give the result of"
            " StructType.json(), or DDL"
        ) from None
    if not isinstance(parsed, dict) or parsed.get("type") != "struct":
        raise SchemaError(
            'the schema is JSON but not a struct of Spark ({"type": "struct", "fields": [...]}):'
            " give the result of StructType.json(), or DDL"
        )
    return _type_of_json(parsed, 0)


def _type_of_json(parsed: Any, depth: int) -> pa.DataType:
    if depth > MAX_NESTING:
        raise SchemaError(f"the schema is nested more than {MAX_NESTING} deep")
    if isinstance(parsed, str):
        if found := _DECIMAL.fullmatch(parsed):
            return _decimal(int(found[1]), int(found[2] or 0))
        if parsed in _DECIMALS:
            return _decimal(10, 0)
        return _PRIMITIVES[parsed] if parsed in _PRIMITIVES else _unknown(parsed)
    match parsed:
        case {"type": "struct", "fields": list(fields)}:
            return _struct([_field_of_json(field, depth + 1) for field in fields])
        case {"type": "array", "elementType": element}:
            return _array(_type_of_json(element, depth + 1), _flag(parsed, "containsNull"))
        case {"type": "map", "keyType": key, "valueType": value}:
            keys = _type_of_json(key, depth + 1)
            items = _type_of_json(value, depth + 1)
            return _map(keys, items, _flag(parsed, "valueContainsNull"))
    _unknown(str(parsed.get("type")) if isinstance(parsed, dict) else str(type(parsed).__name__))


def _field_of_json(parsed: Any, depth: int) -> pa.Field:
    match parsed:
        case {"name": str(name), "type": kind}:
            return pa.field(name, _type_of_json(kind, depth), nullable=_flag(parsed, "nullable"))
    raise SchemaError("the schema has a field without a name or a type")


def _flag(parsed: dict[str, Any], name: str) -> bool:
    value = parsed.get(name, True)
    if not isinstance(value, bool):
        raise SchemaError(f"the schema has {name}={show(value)}, which is neither true nor false")
    return value
