"""Check that bytes are exactly one value of an Avro schema, before fastavro decodes them.

fastavro trusts its input: lengths and counts may be false, the index of a union may be negative, a
recursive schema may nest as deep as the bytes allow, and a record without bytes becomes one of all
defaults of the reader's schema. This module checks, by the specification's "Binary Encoding":
integers have at most 10 bytes, lengths and counts fit into the remaining bytes, branches and
symbols exist, booleans are 0 or 1, strings are UTF-8, nesting is at most MAX_NESTING, and no bytes
remain. It charges the size of each part, resolved to the reader's schema, to the decoder's meter;
parts that the reader's schema does not have are not decoded, and cost nothing. Only strings are
copied, to check them. A check takes (value, position, depth) and returns the position after the
value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import pyarrow as pa

from metaquorum.spark.value_schemas.decoded import (
    RejectedValueError,
    field_step,
    item_step,
)
from metaquorum.spark.value_schemas.decoded_size import (
    LIST_BYTES,
    PAIR_BYTES,
    SLOT_BYTES,
    TEXT_BYTES,
    Meter,
    default_bytes,
    dict_bytes,
    scalar_bytes,
)

MAX_NESTING: Final = 128
# Nulls and records without fields take no bytes, so their number in one value is limited.
MAX_EMPTY: Final = 1000


class Body:
    """The bytes of one value, and the remaining allowance of parts without bytes."""

    __slots__ = ("data", "empty_left", "meter")

    def __init__(self, data: bytes, meter: Meter) -> None:
        self.data = data
        self.empty_left = MAX_EMPTY
        self.meter = meter

    def take(self, at: int, count: int) -> int:
        if not 0 <= count <= len(self.data) - at:
            raise RejectedValueError(
                f"the length is {count}, but {len(self.data) - at} bytes remain"
            )
        return at + count

    def long(self, at: int) -> tuple[int, int]:
        """Return the number at the position, and the position after it."""
        data, result, shift = self.data, 0, 0
        while True:
            if at >= len(data):
                raise RejectedValueError("the value ends too early")
            byte = data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise RejectedValueError("a number has more than 10 bytes")
        if result >> 64:
            raise RejectedValueError("a number has more than 64 bits")
        return (result >> 1) ^ -(result & 1), at

    def empty(self) -> None:
        self.empty_left -= 1
        if self.empty_left < 0:
            raise RejectedValueError(f"there are more than {MAX_EMPTY} parts without bytes")


Check = Callable[[Body, int, int], int]


def check_value(check: Check, data: bytes, meter: Meter) -> None:
    """Charge `meter`, and raise RejectedValueError unless `data` is exactly one value.

    The size of the decoded value is what its schema adds, and the bytes of its strings.
    """
    meter.charge(len(data))
    at = check(Body(data, meter), 0, 0)
    if at != len(data):
        raise RejectedValueError(f"{len(data) - at} bytes follow the value")


class Resolved(Protocol):
    """A schema parsed by fastavro, and the named types in it."""

    @property
    def schema(self) -> Any: ...

    @property
    def named(self) -> Mapping[str, Any]: ...


def compile_check(writer: Any, named: Mapping[str, Any], reader: Resolved) -> Check:
    """Return the check of a writer's schema, whose values are resolved to the reader's."""
    return _Compiler(named, reader.named).compile(writer, reader.schema)


class _Compiler:
    """Compiler of checks. A reader's schema of None: the value is skipped, and not decoded."""

    def __init__(self, named: Mapping[str, Any], reader_named: Mapping[str, Any]) -> None:
        self._named = named
        self._reader_named = reader_named
        self._checks: dict[tuple[str, int], Check] = {}

    def compile(self, schema: Any, reader: Any) -> Check:
        if isinstance(schema, list):
            return _union([self.compile(branch, reader) for branch in schema])
        if isinstance(schema, str):
            return _PRIMITIVES[schema] if schema in _PRIMITIVES else self._reference(schema, reader)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, self._part(reader, "fields"))
        if kind == "array":
            found = self._part(reader, "items")
            items = None if found is None else found["items"]
            cost = 0 if found is None else SLOT_BYTES + self._scalar(items)
            return _blocks(self.compile(schema["items"], items), cost, keyed=False)
        if kind == "map":
            found = self._part(reader, "values")
            items = None if found is None else found["values"]
            # fastavro's dict, and then a list of pairs.
            cost = (
                0 if found is None else SLOT_BYTES + PAIR_BYTES + TEXT_BYTES + self._scalar(items)
            )
            return _blocks(self.compile(schema["values"], items), cost, keyed=True)
        if kind == "enum":
            return _enum(len(schema["symbols"]))
        if kind == "fixed":
            return _fixed(schema["size"])
        return self.compile(kind, reader)

    def _reference(self, name: str, reader: Any) -> Check:
        """Return the check of a named type; its first use compiles it, since types may recur."""
        key = name, id(reader)  # schemas live as long as the check

        def check(body: Body, at: int, depth: int) -> int:
            found = self._checks.get(key)
            if found is None:
                found = self._checks[key] = self.compile(self._named[name], reader)
            return found(body, at, depth)

        return check

    def _record(self, schema: Any, reader: Any) -> Check:
        known, renamed = _fields_of(reader)
        fields = []
        for field in schema["fields"]:
            name = field["name"]
            resolved = known.get(name) or renamed.get(name)
            kind = None if resolved is None else resolved["type"]
            fields.append((name, self.compile(field["type"], kind)))
            if resolved is not None:
                known.pop(resolved["name"], None)
        cost = 0 if reader is None else self._record_bytes(reader, known.values())

        def check(body: Body, at: int, depth: int) -> int:
            if depth > MAX_NESTING:
                raise RejectedValueError(f"nested more than {MAX_NESTING} deep")
            body.meter.charge(cost)
            start = at
            for name, field in fields:
                try:
                    at = field(body, at, depth + 1)
                except RejectedValueError as error:
                    raise error.under(field_step(name)) from None
            if at == start:
                body.empty()
            return at

        return check

    # Sizes, by the reader's schema

    def _record_bytes(self, reader: Any, missing: Iterable[Any]) -> int:
        scalars = sum(self._scalar(field["type"]) for field in reader["fields"])
        defaults = sum(default_bytes(field.get("default")) for field in missing)
        return dict_bytes(len(reader["fields"])) + scalars + defaults

    def _scalar(self, schema: Any) -> int:
        """Return the size of one value of the type, without characters; 0 for a container."""
        schema = self._single(schema)
        if isinstance(schema, str):
            return _SCALARS.get(schema, 0)
        if schema["type"] == "enum":  # one string in Python, a copy for each value in Arrow
            return max((default_bytes(symbol) for symbol in schema["symbols"]), default=0)
        if schema.get("logicalType") == "decimal":
            return scalar_bytes(pa.decimal128(1))
        if schema["type"] == "fixed":
            return scalar_bytes(pa.binary())
        return self._scalar(schema["type"]) if isinstance(schema["type"], str | dict) else 0

    def _part(self, reader: Any, key: str) -> Any:
        """Return the reader's schema if it has the key, i.e. is of that kind; otherwise None."""
        found = None if reader is None else self._single(reader)
        return found if isinstance(found, dict) and key in found else None

    def _single(self, schema: Any) -> Any:
        """Return the schema, or that of a named type; of a union that of its other than null."""
        if isinstance(schema, list):
            schema = next((branch for branch in schema if branch != "null"), "null")
        if isinstance(schema, str):
            return self._reader_named.get(schema, schema)
        return schema


def _fields_of(reader: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a reader's record by name, and by alias."""
    fields = [] if reader is None else reader["fields"]
    renamed = {alias: field for field in fields for alias in field.get("aliases", ())}
    return {field["name"]: field for field in fields}, renamed


def _union(branches: list[Check]) -> Check:
    def check(body: Body, at: int, depth: int) -> int:
        index, at = body.long(at)
        if not 0 <= index < len(branches):
            raise RejectedValueError(f"the union has no branch {index}")
        if branches[index] is _null:  # its only byte is the index
            return at
        return branches[index](body, at, depth + 1)

    return check


def _enum(count: int) -> Check:
    def check(body: Body, at: int, _depth: int) -> int:
        index, at = body.long(at)
        if not 0 <= index < count:
            raise RejectedValueError(f"the enum has no symbol {index}")
        return at

    return check


def _fixed(size: int) -> Check:
    def check(body: Body, at: int, _depth: int) -> int:
        if size == 0:
            body.empty()
        return body.take(at, size)

    return check


def _blocks(item: Check, cost: int, *, keyed: bool) -> Check:
    """Return the check of blocks of items, each of `cost` bytes and its own.

    A negative count is followed by the block's size in bytes.
    """
    own = LIST_BYTES if cost else 0

    def check(body: Body, at: int, depth: int) -> int:
        if depth > MAX_NESTING:
            raise RejectedValueError(f"nested more than {MAX_NESTING} deep")
        body.meter.charge(own)
        index = 0
        while True:
            count, at = body.long(at)
            if count == 0:
                return at
            end = -1
            if count < 0:
                size, at = body.long(at)
                end = body.take(at, size)
            if abs(count) > len(body.data) - at + body.empty_left:
                raise RejectedValueError(f"the count of {abs(count)} items exceeds the value")
            body.meter.charge(cost * abs(count))
            for _ in range(abs(count)):
                try:
                    at = item(body, _string(body, at, depth) if keyed else at, depth + 1)
                except RejectedValueError as error:
                    raise error.under(item_step(index)) from None
                index += 1
            if end not in (-1, at):
                raise RejectedValueError("the size of a block is not the size of its items")

    return check


def _null(body: Body, at: int, _depth: int) -> int:
    body.empty()
    return at


def _boolean(body: Body, at: int, _depth: int) -> int:
    after = body.take(at, 1)
    if body.data[at] > 1:
        raise RejectedValueError(f"byte {body.data[at]} is not a valid boolean")
    return after


def _int(body: Body, at: int, _depth: int) -> int:
    value, at = body.long(at)
    if not -(1 << 31) <= value < 1 << 31:
        raise RejectedValueError(f"{value} is not a valid int")
    return at


def _long(body: Body, at: int, _depth: int) -> int:
    return body.long(at)[1]


def _float(body: Body, at: int, _depth: int) -> int:
    return body.take(at, 4)


def _double(body: Body, at: int, _depth: int) -> int:
    return body.take(at, 8)


def _bytes(body: Body, at: int, _depth: int) -> int:
    size, at = body.long(at)
    return body.take(at, size)


def _string(body: Body, at: int, _depth: int) -> int:
    size, at = body.long(at)
    end = body.take(at, size)
    try:
        str(body.data[at:end], "utf-8")
    except UnicodeDecodeError:
        raise RejectedValueError("a string is not UTF-8") from None
    return end


_PRIMITIVES: Final[dict[str, Check]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}
_SCALARS: Final = {
    "int": scalar_bytes(pa.int32()),
    "long": scalar_bytes(pa.int64()),
    "float": scalar_bytes(pa.float32()),
    "double": scalar_bytes(pa.float64()),
    "bytes": scalar_bytes(pa.binary()),
    "string": scalar_bytes(pa.string()),
}
