"""Bound of the memory that the protobuf library allocates for the bytes of a message.

The library makes each message with room for all its fields, of which none needs to be in the bytes:
two bytes are an element of a repeated field, and may take as much memory as a message has fields.
`charge_parsed` counts the messages in the bytes before they are parsed. It accepts what the library
refuses; of malformed bytes it counts those before the damage. Source: "Encoding" of the
documentation of Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

_MESSAGE_BYTES: Final = 48  # without fields; with the object of Python, while it is read
_TEXT_BYTES: Final = 16
_WIDE_BYTES: Final = 8
_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = range(6)
_MAX_NESTING: Final = 1000  # more than the library's limit
_LEAST_MESSAGE: Final = 2  # bytes: a tag and a length of 0


class Shape:
    """Size of a parsed message without its elements, and fields with more, by their numbers."""

    __slots__ = ("messages", "own_bytes", "packed")

    def __init__(self, own_bytes: int) -> None:
        self.own_bytes = own_bytes
        self.messages: dict[int, Shape] = {}
        self.packed: set[int] = set()  # repeated numbers, of one byte or more each

    @property
    def most_per_byte(self) -> int:
        """The most memory that one byte of a submessage can take."""
        found, waiting = {id(self): self}, [self]
        while waiting:
            for each in waiting.pop().messages.values():
                if id(each) not in found:
                    found[id(each)] = each
                    waiting.append(each)
        most = max(each.own_bytes for each in found.values())
        return max(_TEXT_BYTES, -(-most // _LEAST_MESSAGE))


def shape_of(descriptor: Any, known: dict[str, Shape] | None = None) -> Shape:
    """Return the shape of a message, which may be recursive."""
    known = {} if known is None else known
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    size, alternatives = _MESSAGE_BYTES, dict[str, int]()
    for field in descriptor.fields:
        if field.containing_oneof is None:
            size += _slot_bytes(field)
        else:
            name = field.containing_oneof.name
            alternatives[name] = max(alternatives.get(name, 0), _slot_bytes(field))
    shape = known[descriptor.full_name] = Shape(size + sum(alternatives.values()))
    for field in descriptor.fields:
        if field.message_type is not None:
            shape.messages[field.number] = shape_of(field.message_type, known)
        elif field.is_repeated and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
            shape.packed.add(field.number)
    return shape


def _slot_bytes(field: Any) -> int:
    is_text = field.cpp_type == FieldDescriptor.CPPTYPE_STRING and not field.is_repeated
    return _TEXT_BYTES if is_text else _WIDE_BYTES


def charge_parsed(data: bytes, shape: Shape, charge: Callable[[int], None]) -> None:
    """Call `charge` with the memory of each message and element in `data`, which it may refuse."""
    charge(shape.own_bytes)
    known: Shape | None = shape
    at, end = 0, len(data)
    outer: list[tuple[Shape | None, int]] = []  # enclosing messages and their ends
    while True:
        while at >= end:
            if not outer:
                return
            known, end = outer.pop()
        tag, at = _varint(data, at)
        kind = tag & 7
        inner = None if known is None else known.messages.get(tag >> 3)
        if kind == _VARINT:
            charge(_WIDE_BYTES)
            _, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            charge(_WIDE_BYTES)
            at += 8 if kind == _FIXED64 else 4
        elif kind == _LENGTH:
            size, at = _varint(data, at)
            if at + size > end:
                return
            if inner is not None:
                charge(inner.own_bytes)
                outer.append((known, end))
                known, end = inner, at + size
            else:
                is_packed = known is not None and tag >> 3 in known.packed
                charge(_TEXT_BYTES + size * (_WIDE_BYTES if is_packed else 1))
                at += size
        elif kind == _START:
            charge(_MESSAGE_BYTES if inner is None else inner.own_bytes)
            outer.append((known, end))
            known = inner
        elif kind == _END and outer:
            known, _ = outer.pop()
        else:
            return
        if len(outer) > _MAX_NESTING:
            return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it; it is malformed if that is beyond the data."""
    result = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 63:
            break
    return 0, len(data) + 1
