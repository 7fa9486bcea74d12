"""Decoder of Protobuf messages, by the protobuf library and a compiled descriptor set.

    protoc --include_imports --descriptor_set_out=orders.desc orders.proto

A missing field is null if it has presence (a message, `optional`, in a oneof, proto2); any other
field has its default, because its encoding does not distinguish the two. An enum becomes the name
of its value, unsigned numbers stay unsigned, `google.protobuf.Timestamp` becomes a timestamp in
whole microseconds. Unknown fields are ignored. With framing, a schema id and Confluent's message
indexes precede the message; the indexes must name the message that is decoded.

The library limits the nesting of messages, and does not allocate memory for a false length.
Deliberately absent, and refused: recursive messages; a registry's schemas in text form, which
would need protoc; extensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

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
    SLOT_BYTES,
    Meter,
    dict_bytes,
    entry_bytes,
    item_bytes,
    scalar_bytes,
)
from metaquorum.spark.value_schemas.decoding import decode_each
from metaquorum.spark.value_schemas.framing import split_header
from metaquorum.spark.value_schemas.protobuf_check import charge_parsed, shape_of
from metaquorum.spark.value_schemas.spark_types import MAX_FIELDS, MAX_NESTING, check_columns

MAX_INDEXES: Final = 32
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_MIN_SECONDS: Final = -62_135_596_800  # 0001-01-01, of timestamp.proto
_MAX_SECONDS: Final = 253_402_300_799  # 9999-12-31

Converter = Callable[[Any], Any]


class ProtobufDecoder:
    """Decoder of values that are one message each, after schema id and indexes if `framed`."""

    def __init__(self, descriptor_set: bytes, message: str, *, framed: bool) -> None:
        self._framed = framed
        descriptor = _message(descriptor_set, message)
        self._class: Any = message_factory.GetMessageClass(descriptor)
        self._indexes = _indexes_of(descriptor)
        self._name = message
        self.meter = Meter()
        struct, self._row = _Columns(self.meter).message(descriptor, (), 0)
        check_columns(struct)
        self.arrow_schema: pa.Schema = pa.schema(list(struct))
        # The converter counts a row as a dict, but it is a list.
        count = struct.num_fields
        self._saved_bytes = dict_bytes(count) - LIST_BYTES - SLOT_BYTES * count
        self._shape = shape_of(descriptor)
        self._most_per_byte = self._shape.most_per_byte

    def decode(self, values: pa.BinaryArray) -> Iterator[Decoded]:
        return decode_each(values, self.arrow_schema, self.decode_one, self.meter)

    def decode_one(self, data: bytes) -> list[Any]:
        """Return the columns of one value, and charge `meter` with their size.

        Raises RejectedValueError if the value is not of the schema.
        """
        if self._framed:
            indexes, data = _split_indexes(split_header(data)[1])
            if indexes != self._indexes:
                raise RejectedValueError(
                    f"the message indexes are {indexes}, not {self._indexes} of {self._name}"
                )
        if len(data) * self._most_per_byte > MAX_VALUE_BYTES:
            charge_parsed(data, self._shape, Meter().charge)
        message = self._class()
        try:
            message.ParseFromString(data)
        except (DecodeError, ValueError) as error:
            raise RejectedValueError(f"not a message {self._name}: {error}") from None
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise RejectedValueError(f"required fields are missing: {missing}")
        self.meter.charge(len(data))
        row = list(self._row(message).values())
        self.meter.used -= self._saved_bytes
        return row


def _message(descriptor_set: bytes, name: str) -> Any:
    """Return the descriptor of the message. Raises SchemaError if the set does not have it."""
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(descriptor_set)
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
    except (DecodeError, TypeError, ValueError) as error:
        raise SchemaError(
            f"the Protobuf schema is not a complete FileDescriptorSet ({show(str(error))}): create"
            " it with protoc --include_imports --descriptor_set_out=FILE"
        ) from None
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        known = [f"{f.package}.{m.name}".lstrip(".") for f in files.file for m in f.message_type]
        raise SchemaError(
            f"the Protobuf schema has no message {show(name)}; it has:"
            f" {', '.join(known[:20])}{', ...' if len(known) > 20 else ''}"
        ) from None


def _indexes_of(descriptor: Any) -> list[int]:
    """Return the index of the message in its file, followed by those at each nested level."""
    indexes: list[int] = []
    while descriptor.containing_type is not None:
        names = [each.name for each in descriptor.containing_type.nested_types]
        indexes.insert(0, names.index(descriptor.name))
        descriptor = descriptor.containing_type
    top = list(descriptor.file.message_types_by_name)
    return [top.index(descriptor.name), *indexes]


def _split_indexes(data: bytes) -> tuple[list[int], bytes]:
    """Return Confluent's message indexes and the rest: a count and the indexes; 0 means [0]."""
    count, at = _zigzag(data, 0)
    if not 0 <= count <= MAX_INDEXES:
        raise RejectedValueError(f"{count} is not a valid count of message indexes")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        indexes.append(index)
    return indexes or [0], data[at:]


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    result = 0
    for shift in itertools.count(0, 7):
        if at >= len(data) or shift > 28:
            raise RejectedValueError("no message indexes follow the schema id")
        result |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            break
    return (result >> 1) ^ -(result & 1), at


class _Columns:
    """Arrow types of messages, each with a converter from the library's values."""

    def __init__(self, meter: Meter) -> None:
        self._charge = meter.charge
        self._count = 0

    def message(
        self, descriptor: Any, within: tuple[str, ...], depth: int
    ) -> tuple[pa.DataType, Converter]:
        name = descriptor.full_name
        if name in within:
            raise SchemaError(f"the Protobuf schema has the recursive message {name}")
        if depth > MAX_NESTING:
            raise SchemaError(f"the Protobuf schema is nested more than {MAX_NESTING} deep")
        columns = []
        fields: list[tuple[str, bool, int, Converter]] = []
        for each in descriptor.fields:
            self._count += 1
            if self._count > MAX_FIELDS:
                raise SchemaError(f"the Protobuf schema has more than {MAX_FIELDS} fields")
            kind, convert = self._field(each, (*within, name), depth + 1)
            presence = each.has_presence and not each.is_required
            columns.append(pa.field(each.name, kind, nullable=presence))
            fields.append((each.name, presence, scalar_bytes(kind), convert))

        struct = pa.struct(columns)
        charge = self._charge
        # Text that is not in the message, but has a default, is copied by Arrow.
        empty = dict_bytes(len(columns)) + sum(map(_default_bytes, descriptor.fields))

        def convert_message(message: Any) -> dict[str, Any]:
            charge(empty)
            scalars = 0
            row: dict[str, Any] = {}
            for name, presence, size_bytes, convert in fields:
                if presence and not message.HasField(name):
                    row[name] = None
                    continue
                try:
                    value = row[name] = convert(getattr(message, name))
                except RejectedValueError as error:
                    raise error.under(field_step(name)) from None
                except UnicodeDecodeError:  # proto2 does not check its strings
                    raise RejectedValueError("a string is not UTF-8").under(
                        field_step(name)
                    ) from None
                if value:  # zeros and empty texts are shared objects
                    scalars += size_bytes
            charge(scalars)
            return row

        return struct, convert_message

    def _field(
        self, field: Any, within: tuple[str, ...], depth: int
    ) -> tuple[pa.DataType, Converter]:
        if not field.is_repeated:
            return self._one(field, within, depth)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            keys, key = self._one(field.message_type.fields_by_name["key"], within, depth)
            values, value = self._one(field.message_type.fields_by_name["value"], within, depth)
            entry = pa.field("value", values, nullable=False)
            each = entry_bytes(keys, values) + _default_bytes(
                field.message_type.fields_by_name["value"]
            )
            return pa.map_(keys, entry), self._map(key, value, each)
        item, convert = self._one(field, within, depth)
        kind = pa.list_(pa.field("element", item, nullable=False))
        return kind, self._list(convert, item_bytes(item) + _default_bytes(field))

    def _one(
        self, field: Any, within: tuple[str, ...], depth: int
    ) -> tuple[pa.DataType, Converter]:
        if field.message_type is not None:
            if field.message_type.full_name == _TIMESTAMP:
                return pa.timestamp("us", tz="UTC"), _timestamp
            return self.message(field.message_type, within, depth)
        if field.enum_type is not None:
            names = {value.number: value.name for value in reversed(field.enum_type.values)}
            return pa.string(), _enum(names, field.enum_type.full_name)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return pa.binary(), bytes
        return _PRIMITIVES[field.cpp_type]

    def _list(self, item: Converter, item_bytes: int) -> Converter:
        charge = self._charge

        def convert(values: Any) -> list[Any]:
            charge(LIST_BYTES + item_bytes * len(values))
            converted = []
            for index, value in enumerate(values):
                try:
                    converted.append(item(value))
                except RejectedValueError as error:
                    raise error.under(item_step(index)) from None
            return converted

        return convert

    def _map(self, key: Converter, item: Converter, entry_bytes: int) -> Converter:
        charge = self._charge

        def convert(values: Any) -> list[tuple[Any, Any]]:
            charge(LIST_BYTES + entry_bytes * len(values))
            try:
                # Sorted by key, because the library's order differs between runs.
                return [(key(name), item(values[name])) for name in sorted(values)]
            except RejectedValueError as error:
                raise error.under("[]") from None

        return convert


def _default_bytes(field: Any) -> int:
    """Return the size of the longest text that a field of a message has without its bytes."""
    if field.enum_type is not None:
        return max(len(value.name) for value in field.enum_type.values)
    found = None if field.is_repeated else field.default_value
    return len(found) if isinstance(found, str | bytes) else 0


def _same(value: Any) -> Any:
    return value


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


_PRIMITIVES: Final[dict[int, tuple[pa.DataType, Converter]]] = {
    FieldDescriptor.CPPTYPE_BOOL: (pa.bool_(), _same),
    FieldDescriptor.CPPTYPE_INT32: (pa.int32(), _same),
    FieldDescriptor.CPPTYPE_INT64: (pa.int64(), _same),
    FieldDescriptor.CPPTYPE_UINT32: (pa.uint32(), _same),
    FieldDescriptor.CPPTYPE_UINT64: (pa.uint64(), _same),
    FieldDescriptor.CPPTYPE_FLOAT: (pa.float32(), _same),
    FieldDescriptor.CPPTYPE_DOUBLE: (pa.float64(), _same),
    FieldDescriptor.CPPTYPE_STRING: (pa.string(), _text),
}


def _enum(names: dict[int, str], enum: str) -> Converter:
    def convert(number: int) -> str:
        if number not in names:
            raise RejectedValueError(f"the enum {enum} has no value {number}")
        return names[number]

    return convert


def _timestamp(value: Any) -> int:
    if not _MIN_SECONDS <= value.seconds <= _MAX_SECONDS or not 0 <= value.nanos < 1_000_000_000:
        raise RejectedValueError(f"{value.seconds} s and {value.nanos} ns: not a valid timestamp")
    return int(value.seconds) * 1_000_000 + int(value.nanos) // 1000
