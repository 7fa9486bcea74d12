"""Decoder of JSON objects (RFC 8259) to a schema in Spark's notation; stricter than Spark.

    BOOLEAN                    true, false
    TINYINT to BIGINT          a number without fraction and exponent, in range
    FLOAT, DOUBLE              any number, rounded to the type; rejected beyond its range
    DECIMAL(p,s)               a number, or a string of one; rejected if it does not fit exactly
    STRING                     a string without lone surrogates
    BINARY                     a string of base64 (RFC 4648, with padding)
    DATE                       "YYYY-MM-DD"
    TIMESTAMP                  "YYYY-MM-DDThh:mm:ss", a fraction of up to 9 digits, of which 6 count
                               (as in Spark), and Z or an offset; T may be a space
    TIMESTAMP_NTZ              the same without Z or offset
    ARRAY, MAP, STRUCT         an array, an object, an object

A missing field is null; null for a NOT NULL field is rejected. Fields that are not in the schema
are ignored, as in Spark's `from_json`, but must be valid JSON. The whole value is rejected for one
invalid part, a duplicate key in an object, NaN and Infinity, bytes that are not UTF-8, a byte order
mark, anything after the object, and nesting deeper than MAX_NESTING. Field names are compared with
case.

Deliberately absent: a fast path through `pyarrow.json`, which keeps the last of two equal keys and
has other rules for timestamps and numbers.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NoReturn

import pyarrow as pa

from metaquorum.spark.value_schemas.decoded import (
    Decoded,
    RejectedValueError,
    SchemaError,
    field_step,
    item_step,
    show,
)
from metaquorum.spark.value_schemas.decoded_size import (
    LIST_BYTES,
    MAX_VALUE_BYTES,
    Meter,
    dict_bytes,
    entry_bytes,
    item_bytes,
    row_bytes,
    struct_bytes,
)
from metaquorum.spark.value_schemas.decoding import decode_each
from metaquorum.spark.value_schemas.framing import split_header
from metaquorum.spark.value_schemas.spark_types import arrow_schema

# Nesting of a value. A fixed limit, because the limit of the interpreter's stack varies.
MAX_NESTING: Final = 128
# Longer numbers stay text: Python parses integers in quadratic time (CVE-2020-10735).
_MAX_INTEGER_CHARACTERS: Final = 64
_MAX_DECIMAL_CHARACTERS: Final = 1000

_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BRACKETS: Final = re.compile(rb"[\[\]{}]")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
# A dict of one key, the list of pairs that it is made of; a list; a key with its pair; an item.
_OBJECT_BYTES: Final = sys.getsizeof({"": 0}) + 2 * sys.getsizeof([])
_ARRAY_BYTES: Final = 2 * sys.getsizeof([])
_KEY_BYTES: Final = 2 * sys.getsizeof("") + sys.getsizeof((0, 0))
_ITEM_BYTES: Final = 2 * sys.getsizeof("")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?"
    r"(?P<zone>Z|(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d))?",
    re.ASCII,
)
_FLOAT: Final = struct.Struct("<f")  # native order would not raise for a number out of range
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MAX_OFFSET_MINUTES: Final = 18 * 60  # limit of java.time.ZoneOffset

Converter = Callable[[Any], Any]


class _NumberText(str):
    """The text of a number; strings of the value are plain `str`."""

    __slots__ = ()


class _RepeatedKey(dict[str, Any]):
    """An object with a duplicate key, the first of which is `repeated`."""

    repeated = ""


def _parse_int(text: str) -> int | _NumberText:
    return int(text) if len(text) <= _MAX_INTEGER_CHARACTERS else _NumberText(text)


def _parse_constant(text: str) -> NoReturn:
    raise RejectedValueError(f"{text} is not JSON")


class JsonDecoder:
    """Decoder of values that are one JSON object each, after a schema id if `framed`."""

    def __init__(self, schema_text: str, *, framed: bool = False) -> None:
        self._framed = framed
        self.arrow_schema: pa.Schema = arrow_schema(schema_text)
        self.meter = Meter()
        self._fields = _Converters(self.meter).of_fields(self.arrow_schema)
        self._row_bytes = row_bytes(pa.struct(list(self.arrow_schema)))
        self._repeated = False
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_float=_NumberText,
            parse_int=_parse_int,
            parse_constant=_parse_constant,
        )

    def decode(self, values: pa.BinaryArray) -> Iterator[Decoded]:
        return decode_each(values, self.arrow_schema, self.decode_one, self.meter)

    def decode_one(self, data: bytes) -> list[Any]:
        """Return the columns of one value, and charge `meter` with their size.

        Raises RejectedValueError if the value is not of the schema.
        """
        value = self._parse(split_header(data)[1] if self._framed else data)
        if not isinstance(value, dict):
            raise RejectedValueError(f"{_shown(value)} is not a valid object")
        self.meter.charge(self._row_bytes + len(data))
        return [_convert_field(value, *field) for field in self._fields]

    def _parse(self, data: bytes) -> Any:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise RejectedValueError(f"byte {error.start + 1} is not UTF-8") from None
        if not text.strip(" \t\r\n"):
            raise RejectedValueError("the value is empty")
        if _is_too_deep(data):
            raise RejectedValueError(f"nested more than {MAX_NESTING} deep")
        if _parsed_bytes(data) > MAX_VALUE_BYTES and _parsed_bytes(
            _STRINGS.sub(b'""', data)
        ) > MAX_VALUE_BYTES - len(data):
            raise RejectedValueError(
                f"the parsed JSON would take more than {MAX_VALUE_BYTES >> 20} MiB of memory"
            )
        self._repeated = False
        try:
            value = self._json.decode(text)
        except json.JSONDecodeError as error:
            raise RejectedValueError(
                f"not JSON: {error.msg} at character {error.pos + 1}"
            ) from None
        if self._repeated:
            _reject_repeated(value)
        return value

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) == len(pairs):
            return value
        self._repeated = True
        seen = set()
        marked = _RepeatedKey(value)
        for name, _ in pairs:
            if name in seen:
                marked.repeated = name
                break
            seen.add(name)
        return marked


def _is_too_deep(data: bytes) -> bool:
    if data.count(b"{") + data.count(b"[") <= MAX_NESTING:
        return False
    depth = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub(b"", data)):
        if bracket[0] in b"[{":
            depth += 1
            if depth > MAX_NESTING:
                return True
        else:
            depth -= 1
    return False


def _parsed_bytes(data: bytes) -> int:
    """Return an upper bound of the memory of the parsed containers, keys and numbers in `data`."""
    return (
        _OBJECT_BYTES * data.count(b"{")
        + _ARRAY_BYTES * data.count(b"[")
        + _KEY_BYTES * data.count(b":")
        + _ITEM_BYTES * data.count(b",")
    )


def _reject_repeated(value: Any) -> None:
    """Raise RejectedValueError for the first object in `value` with a duplicate key."""
    if isinstance(value, _RepeatedKey):
        raise RejectedValueError(f"the object has the key {show(value.repeated)} twice")
    steps = (
        [(field_step(name), part) for name, part in value.items()]
        if isinstance(value, dict)
        else [(item_step(index), part) for index, part in enumerate(value)]
        if isinstance(value, list)
        else []
    )
    for step, part in steps:
        try:
            _reject_repeated(part)
        except RejectedValueError as error:
            raise error.under(step) from None


def _shown(value: Any) -> str:
    if isinstance(value, _NumberText):
        return str(value) if len(value) <= _MAX_INTEGER_CHARACTERS else f"{value[:57]}..."
    return show(value)


def _convert_field(value: Mapping[str, Any], name: str, nullable: bool, convert: Converter) -> Any:
    part = value.get(name)
    if part is None:
        if nullable:
            return None
        wrong = "is null" if name in value else "is missing"
        raise RejectedValueError(f"{wrong}, but NOT NULL in the schema").under(field_step(name))
    try:
        return convert(part)
    except RejectedValueError as error:
        raise error.under(field_step(name)) from None


def _wrong(value: Any, kind: object) -> NoReturn:
    raise RejectedValueError(f"{_shown(value)} is not a valid {kind}") from None


class _Converters:
    """Converters from JSON values, not null, to items for `pa.array`.

    Each charges the meter for a container before it converts the parts.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def of_fields(self, fields: Any) -> list[tuple[str, bool, Converter]]:
        return [(field.name, field.nullable, self.of(field.type)) for field in fields]

    def of(self, kind: pa.DataType) -> Converter:
        types = pa.types
        if types.is_struct(kind):
            return self._struct(kind)
        if types.is_map(kind):
            return self._map(kind)
        if types.is_list(kind):
            return self._array(kind)
        if types.is_integer(kind):
            return _integer_converter(kind)
        if types.is_decimal(kind):
            return _decimal_converter(kind)
        if types.is_timestamp(kind):
            return _timestamp_converter(zoned=kind.tz is not None)
        simple: dict[pa.DataType, Converter] = {
            pa.bool_(): _boolean,
            pa.float32(): _float,
            pa.float64(): _double,
            pa.string(): _string,
            pa.binary(): _binary,
            pa.date32(): _date,
        }
        if kind not in simple:
            raise SchemaError(
                f"the schema has the type {kind}, which is not supported for JSON values"
            )
        return simple[kind]

    def _struct(self, kind: pa.StructType) -> Converter:
        fields = self.of_fields(kind)
        charge, count = self._meter.charge, len(fields)
        empty = dict_bytes(count)
        each = (struct_bytes(kind) - empty) // max(1, count)  # bytes of a present field

        def convert(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                _wrong(value, "object")
            charge(empty + each * min(len(value), count))
            return {field[0]: _convert_field(value, *field) for field in fields}

        return convert

    def _array(self, kind: pa.ListType) -> Converter:
        nullable = kind.value_field.nullable
        item = self.of(kind.value_type)
        charge, each = self._meter.charge, item_bytes(kind.value_type)

        def convert(value: Any) -> list[Any]:
            if not isinstance(value, list):
                _wrong(value, "array")
            charge(LIST_BYTES + each * len(value))
            index = 0
            try:
                converted = []
                for index, part in enumerate(value):  # noqa: B007
                    converted.append(_convert_item(part, nullable, item))
            except RejectedValueError as error:
                raise error.under(item_step(index)) from None
            return converted

        return convert

    def _map(self, kind: pa.MapType) -> Converter:
        nullable = kind.item_field.nullable
        item = self.of(kind.item_type)
        charge, each = self._meter.charge, entry_bytes(pa.string(), kind.item_type)

        def convert(value: Any) -> list[tuple[str, Any]]:
            if not isinstance(value, dict):
                _wrong(value, "object")
            charge(LIST_BYTES + each * len(value))
            entries = []
            for name, part in value.items():
                try:
                    entries.append((_string(name), _convert_item(part, nullable, item)))
                except RejectedValueError as error:
                    raise error.under(field_step(name)) from None
            return entries

        return convert


def _convert_item(part: Any, nullable: bool, convert: Converter) -> Any:
    if part is not None:
        return convert(part)
    if nullable:
        return None
    raise RejectedValueError("is null, but NOT NULL in the schema")


def _integer_converter(kind: pa.DataType) -> Converter:
    limit = 1 << (kind.bit_width - 1)

    def convert(value: Any) -> int:
        if type(value) is int and -limit <= value < limit:
            return value
        _wrong(value, kind)

    return convert


def _decimal_converter(kind: pa.Decimal128Type) -> Converter:
    precision, scale = kind.precision, kind.scale

    def convert(value: Any) -> Decimal:
        text = str(value)
        if (
            isinstance(value, bool | dict | list)
            or len(text) > _MAX_DECIMAL_CHARACTERS
            or not _NUMBER.fullmatch(text)
        ):
            _wrong(value, f"decimal({precision},{scale})")
        if not _is_exponent_small(text):
            _wrong(value, f"decimal({precision},{scale})")
        found = Decimal(text)
        if not found:
            return Decimal(0)
        _, digits, exponent = found.as_tuple()
        assert isinstance(exponent, int)
        written = "".join(map(str, digits)).rstrip("0")
        last = exponent + len(digits) - len(written)  # power of ten of the last nonzero digit
        if last < -scale or exponent + len(digits) > precision - scale:
            _wrong(value, f"decimal({precision},{scale})")
        return found

    return convert


def _is_exponent_small(text: str) -> bool:
    _, _, exponent = text.lower().partition("e")
    return len(exponent.lstrip("+-0")) <= 6


def _timestamp_converter(*, zoned: bool) -> Converter:
    """Return the converter to microseconds since 1970."""

    def convert(value: Any) -> int:
        found = _TIMESTAMP.fullmatch(value) if type(value) is str else None
        if found is None:
            _wrong(value, "timestamp")
        if zoned and not found["zone"]:
            raise RejectedValueError(
                f"{show(value)} has no offset from UTC, which TIMESTAMP needs (TIMESTAMP_NTZ does"
                " not)"
            )
        if not zoned and found["zone"]:
            raise RejectedValueError(
                f"{show(value)} has an offset from UTC, which TIMESTAMP_NTZ cannot store"
            )
        offset_minutes = int(found["hours"] or 0) * 60 + int(found["minutes"] or 0)
        if int(found["minutes"] or 0) > 59 or offset_minutes > _MAX_OFFSET_MINUTES:
            _wrong(value, "timestamp")
        try:
            moment = datetime.fromisoformat(f"{found[1]}T{found[2]}")
        except ValueError:
            _wrong(value, "timestamp")
        micros = int((found[3] or "").ljust(6, "0")[:6])
        if found["sign"] == "-":
            offset_minutes = -offset_minutes
        whole = (moment - _EPOCH) // timedelta(seconds=1) - offset_minutes * 60
        return whole * 1_000_000 + micros

    return convert


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    _wrong(value, "boolean")


def _double(value: Any) -> float:
    if not isinstance(value, int | _NumberText) or isinstance(value, bool):
        _wrong(value, "double")
    found = float(value)
    if math.isinf(found):
        _wrong(value, "double")
    return found


def _float(value: Any) -> float:
    if not isinstance(value, int | _NumberText) or isinstance(value, bool):
        _wrong(value, "float")
    found = float(value)
    if math.isinf(found):
        _wrong(value, "float")
    try:
        return float(_FLOAT.unpack(_FLOAT.pack(found))[0])
    except OverflowError:
        _wrong(value, "float")


def _string(value: Any) -> str:
    if type(value) is not str:
        _wrong(value, "string")
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RejectedValueError(f"{show(value)} has a lone surrogate") from None
    return value


def _binary(value: Any) -> bytes:
    if type(value) is not str:
        _wrong(value, "string of base64")
    try:
        return base64.b64decode(value.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        _wrong(value, "base64")


def _date(value: Any) -> int:
    """Return the days since 1970."""
    if type(value) is not str or not _DATE.fullmatch(value):
        _wrong(value, "date")
    try:
        return date.fromisoformat(value).toordinal() - _EPOCH_DAY
    except ValueError:
        _wrong(value, "date")
