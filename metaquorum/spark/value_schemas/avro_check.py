"""Check that bytes are exactly one value of an Avro schema, before fastavro decodes them.

fastavro trusts its input: lengths and counts may be false, the index of a union may be negative, a
recursive schema may nest as deep as the bytes allow. This module checks, by the specification's
"Binary Encoding": integers have at most 10 bytes, lengths and counts fit into the remaining bytes,
branches and symbols exist, booleans are 0 or 1, strings are UTF-8, nesting is at most MAX_NESTING,
and no bytes remain. Only strings are copied, to check them. A check takes (value, position, depth)
and returns the position after the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from metaquorum.spark.value_schemas.decoded import (
    RejectedValueError,
    field_step,
    item_step,
)

MAX_NESTING: Final = 128
# Nulls and records without fields take no bytes, so their number in one value is limited.
MAX_EMPTY: Final = 10_000


class Body:
    """The bytes of one value, and the remaining allowance of parts without bytes."""

    __slots__ = ("data", "empty_left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.empty_left = MAX_EMPTY

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


def check_value(check: Check, data: bytes) -> None:
    """Raise RejectedValueError unless `data` is exactly one value."""
    at = check(Body(data), 0, 0)
    if at != len(data):
        raise RejectedValueError(f"{len(data) - at} bytes follow the value")


def compile_check(schema: Any, named: Mapping[str, Any]) -> Check:
    """Return the check of a schema parsed by fastavro, with the named types it refers to."""
    return _Compiler(named).compile(schema)


class _Compiler:
    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._checks: dict[str, Check] = {}

    def compile(self, schema: Any) -> Check:
        if isinstance(schema, list):
            return _union([self.compile(branch) for branch in schema])
        if isinstance(schema, str):
            return _PRIMITIVES[schema] if schema in _PRIMITIVES else self._reference(schema)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "array":
            return _blocks(self.compile(schema["items"]), keyed=False)
        if kind == "map":
            return _blocks(self.compile(schema["values"]), keyed=True)
        if kind == "enum":
            return _enum(len(schema["symbols"]))
        if kind == "fixed":
            return _fixed(schema["size"])
        return self.compile(kind)

    def _reference(self, name: str) -> Check:
        """Return the check of a named type; its first use compiles it, since types may recur."""

        def check(body: Body, at: int, depth: int) -> int:
            found = self._checks.get(name)
            if found is None:
                found = self._checks[name] = self.compile(self._named[name])
            return found(body, at, depth)

        return check

    def _record(self, schema: Any) -> Check:
        fields = [(field["name"], self.compile(field["type"])) for field in schema["fields"]]

        def check(body: Body, at: int, depth: int) -> int:
            if depth > MAX_NESTING:
                raise RejectedValueError(f"nested more than {MAX_NESTING} deep")
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


def _blocks(item: Check, *, keyed: bool) -> Check:
    """Return the check of blocks of items; a negative count is followed by the block's size."""

    def check(body: Body, at: int, depth: int) -> int:
        if depth > MAX_NESTING:
            raise RejectedValueError(f"nested more than {MAX_NESTING} deep")
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
