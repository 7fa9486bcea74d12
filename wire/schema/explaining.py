"""Errors for messages that a generated decoder rejected: which field is malformed, and why.

`read_message` is a simple interpreter of the tables, not written for speed: it decodes the message
again field by field and raises at the first malformed field. Tests use it as the model of the
generated decoders, which must agree with it on every input.
"""

import struct
from typing import Any

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.schema.compiling import (
    FIXED,
    REQUEST_MAX_ELEMENTS,
    RESPONSE_MAX_ELEMENTS,
    STRING_MAX_BYTES,
    WIDTH,
    fields_at,
    item_struct,
    min_item_width,
)
from metaquorum.wire.schema.message import Field, Message, Struct


def explain(cls: type[Message], version: int, data: memoryview, position: int) -> WireError:
    """Return the error that names the message, its version and the malformed field."""
    try:
        read_message(cls, version, data, position)
    except WireError as error:
        return error
    return WireError(f"{cls.__name__} v{version}: malformed")


def read_message(
    cls: type[Message], version: int, data: memoryview, position: int
) -> tuple[Any, int]:
    """Return the message at `position` and the position after it, as a generated decoder does."""
    reader = _Reader(cls, version, data, position)
    return reader.struct(cls), reader.position


class _Reader:
    def __init__(self, cls: type[Message], version: int, data: memoryview, position: int) -> None:
        self.version = version
        self.flexible = version in cls.FLEXIBLE
        self.data = data
        self.position = position
        self.path = [f"{cls.__name__} v{version}"]
        is_request = cls.__name__.endswith("Request")
        self.budget = REQUEST_MAX_ELEMENTS if is_request else RESPONSE_MAX_ELEMENTS

    def wrong(self, what: str) -> WireError:
        path = self.path[0] + (", " if len(self.path) > 1 else "") + ".".join(self.path[1:])
        return WireError(f"{path}: {what} (byte {self.position})")

    def take(self, size: int) -> memoryview:
        left = len(self.data) - self.position
        if size > left:
            raise self.wrong(f"{size} bytes expected, {left} left")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, code: str) -> Any:
        return struct.unpack(">" + code, self.take(WIDTH[code]))[0]

    def uvarint(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21, 28):
            byte = int(self.number("B"))
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0x7FFFFFFF:
                    raise self.wrong(f"invalid length {value}")
                return value
        raise self.wrong("the length is a varint of more than 5 bytes")

    def length(self, kind: str, nullable: bool) -> int | None:
        if self.flexible:
            length = self.uvarint() - 1
        else:
            length = int(self.number("h" if kind == "string" else "i"))
        if length < -1:
            raise self.wrong(f"invalid length {length}")
        if length >= 0:
            return length
        if not nullable:
            raise self.wrong("null is not allowed")
        return None

    def struct(self, cls: type[Struct]) -> Any:
        target = cls()
        body, tagged = fields_at(cls, self.version)
        for field in body:
            self.field(target, field)
        if self.flexible:
            self.tags(target, {field.tag: field for field in tagged})
        return target

    def field(self, target: Struct, field: Field) -> None:
        self.path.append(field.name)
        setattr(target, field.name, self.value(field))
        self.path.pop()

    def tags(self, target: Struct, known: dict[int | None, Field]) -> None:
        self.path.append("tagged fields")
        last_tag = -1
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            if tag <= last_tag:
                raise self.wrong(f"tag {tag} after tag {last_tag}")
            last_tag = tag
            end = self.position + size
            if tag in known and end <= len(self.data):
                self.field(target, known[tag])
            else:
                self.take(size)
            if self.position != end:
                raise self.wrong(f"tag {tag} does not have the claimed size of {size} bytes")
        self.path.pop()

    def value(self, field: Field) -> Any:
        nullable = self.version in field.nullable
        if field.kind == "array":
            return self.array(field, nullable)
        if field.kind == "struct":
            if nullable and self.number("b") < 0:
                return None
            return self.struct(item_struct(field))
        return self.scalar(field.kind, nullable)

    def scalar(self, kind: str, nullable: bool) -> Any:
        if kind in FIXED:
            return self.number(FIXED[kind])
        length = self.length(kind, nullable)
        if length is None:
            return None
        if kind == "string" and length > STRING_MAX_BYTES:
            raise self.wrong(f"a string of {length} bytes is too long")
        content = self.take(length)
        if kind == "records":
            return content
        if kind == "bytes":
            return bytes(content)
        return str(content, "utf-8", "replace")

    def array(self, field: Field, nullable: bool) -> list[Any] | None:
        count = self.length("array", nullable)
        if count is None:
            return None
        left = len(self.data) - self.position
        if count * min_item_width(field, self.version, self.flexible) > left:
            raise self.wrong(f"{count} elements in {left} bytes")
        if count > self.budget:
            raise self.wrong(f"{count} elements exceed the limit of one message")
        self.budget -= count
        if isinstance(field.item, type):
            return [self.struct(field.item) for _ in range(count)]
        return [self.scalar(str(field.item), nullable=False) for _ in range(count)]
