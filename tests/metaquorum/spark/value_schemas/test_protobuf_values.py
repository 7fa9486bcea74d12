import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
)
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.spark.value_schemas import Decoded, SchemaError, ValueSchemaSpec, open_decoder
from tests.metaquorum.spark.value_schemas.pieces import decode_all
from tests.metaquorum.spark.value_schemas.registry_server import running_registry

F = descriptor_pb2.FieldDescriptorProto


def add(message: Any, name: str, kind: int, *, repeated: bool = False, of: str = "") -> Any:
    label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
    number = len(message.field) + 1
    return message.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)


def order_file(name: str = "order.proto") -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3")
    file.message_type.add(name="First")
    order = file.message_type.add(name="Order")
    colour = file.enum_type.add(name="Colour")
    for number, value in enumerate(["NONE", "RED"]):
        colour.value.add(name=value, number=number)
    line = order.nested_type.add(name="Line")
    add(line, "sku", F.TYPE_STRING)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    add(entry, "key", F.TYPE_STRING)
    add(entry, "value", F.TYPE_SINT64)
    add(order, "id", F.TYPE_UINT64)
    add(order, "name", F.TYPE_STRING)
    add(order, "lines", F.TYPE_MESSAGE, repeated=True, of=".shop.Order.Line")
    add(order, "counts", F.TYPE_MESSAGE, repeated=True, of=".shop.Order.CountsEntry")
    add(order, "colour", F.TYPE_ENUM, of=".shop.Colour")
    add(order, "one", F.TYPE_MESSAGE, of=".shop.Order.Line")
    optional = add(order, "ratio", F.TYPE_FLOAT)
    optional.proto3_optional = True
    optional.oneof_index = 0
    order.oneof_decl.add(name="_ratio")
    add(order, "data", F.TYPE_BYTES)
    return file


def stamped_file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    add(file.message_type.add(name="S"), "at", F.TYPE_MESSAGE, of=".google.protobuf.Timestamp")
    return file


TIMESTAMP = descriptor_pb2.FileDescriptorProto()
timestamp_pb2.DESCRIPTOR.CopyToProto(TIMESTAMP)


def set_of(*files: Any) -> bytes:
    data: bytes = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    return data


def class_of(name: str, *files: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


ORDER = set_of(order_file())
Order = class_of("shop.Order", order_file())


def decode(decoder: Any, *values: bytes | None) -> Decoded:
    return decode_all(decoder, values)


def opened(schema: bytes = ORDER, message: str = "shop.Order", framing: str = "") -> Any:
    spec = ValueSchemaSpec("protobuf", schema, message, framing=framing)
    assert ValueSchemaSpec.from_json(spec.to_json()) == spec
    return open_decoder(spec)


def reason(value: bytes) -> str:
    (said,) = decode(opened(), value).reasons.to_pylist()
    return str(said)


def test_a_message_is_a_row_and_what_it_lacks_is_null_or_a_default() -> None:
    full = Order(
        id=2**64 - 1,
        name="é",
        lines=[{"sku": "a"}, {}],
        counts={"y": -1, "x": 2},
        colour=1,
        one={"sku": "z"},
        ratio=0.0,
        data=b"\xff",
    )
    decoded = decode(opened(), full.SerializeToString(), b"", None)
    assert decoded.columns.to_pylist() == [
        {
            "id": 2**64 - 1,
            "name": "é",
            "lines": [{"sku": "a"}, {"sku": ""}],
            "counts": [("x", 2), ("y", -1)],
            "colour": "RED",
            "one": {"sku": "z"},
            "ratio": 0.0,
            "data": b"\xff",
        },
        {
            "id": 0,
            "name": "",
            "lines": [],
            "counts": [],
            "colour": "NONE",
            "one": None,
            "ratio": None,
            "data": b"",
        },
    ]
    assert decoded.reasons.to_pylist() == ["the value is null (a tombstone)"]


def test_a_timestamp_has_its_column() -> None:
    decoder = opened(set_of(TIMESTAMP, stamped_file()), "shop.S")
    stamped = class_of("shop.S", TIMESTAMP, stamped_file())
    good = stamped(at={"seconds": -1, "nanos": 999_999_999})
    bad = stamped(at={"seconds": 2**62})
    decoded = decode(decoder, good.SerializeToString(), bad.SerializeToString(), b"")
    moment = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert decoded.columns.to_pylist() == [{"at": moment}, {"at": None}]
    assert decoded.reasons.to_pylist() == [f"$.at: {2**62} s and 0 ns: not a valid timestamp"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\x08", "not a message shop.Order"),
        (b"\x12\xff\xff\xff\xff\x07x", "not a message shop.Order"),
        (b"\x12\x01\xff", "not a message shop.Order"),
        (b"\x28\x07", "$.colour: the enum shop.Colour has no value 7"),
        (b"\x03" * 100_000, "not a message shop.Order"),
    ],
)
def test_what_is_no_message_is_rejected(value: bytes, said: str) -> None:
    assert said in reason(value)


def recursive_file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="shop", syntax="proto3")
    add(file.message_type.add(name="R"), "r", F.TYPE_MESSAGE, of=".shop.R")
    return file


@pytest.mark.parametrize(
    ("schema", "message", "said"),
    [
        (b"\xff", "shop.Order", "is not a complete FileDescriptorSet"),
        (set_of(stamped_file()), "shop.S", "protoc --include_imports"),
        (ORDER, "Order", "no message 'Order'; it has: shop.First, shop.Order"),
        (set_of(recursive_file()), "shop.R", "the recursive message shop.R"),
        (ORDER, "shop.First", "has no fields"),
    ],
)
def test_a_schema_without_columns_is_refused(schema: bytes, message: str, said: str) -> None:
    with pytest.raises(SchemaError) as raised:
        opened(schema, message)
    assert said in str(raised.value)


def test_values_of_confluents_serializer_are_decoded() -> None:
    context = SerializationContext("t", MessageField.VALUE)
    values = []
    with running_registry() as registry:
        for name, more in (("shop.First", {}), ("shop.Order", {"id": 7}), ("shop.Order.Line", {})):
            with SchemaRegistryClient({"url": registry.url}) as client:
                message_class = class_of(name, order_file())
                config = {"use.deprecated.format": False}
                serializer = ProtobufSerializer(message_class, client, config)
                values.append(serializer(message_class(**more), context))
    decoded = decode(opened(framing="confluent"), *values, b"\0\0\0\0\1", b"\0\0\0\0\1\x7f")
    assert decoded.columns.column("id").to_pylist() == [7]
    assert decoded.kept.to_pylist() == [1]
    assert decoded.reasons.to_pylist() == [
        "$: the message indexes are [0], not [1] of shop.Order",
        "$: the message indexes are [1, 0], not [1] of shop.Order",
        "$: no message indexes follow the schema id",
        "$: -64 is not a valid count of message indexes",
    ]


@given(
    st.builds(
        dict,
        id=st.integers(0, 2**64 - 1),
        name=st.text(),
        counts=st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1), max_size=3),
        ratio=st.none() | st.floats(width=32, allow_nan=False),
        data=st.binary(),
    )
)
def test_what_was_written_is_decoded_exactly(value: dict[str, Any]) -> None:
    (row,) = decode(opened(), Order(**value).SerializeToString()).columns.to_pylist()
    expected = {**value, "counts": sorted(value["counts"].items())}
    assert {name: row[name] for name in value} == expected


@given(st.binary(), st.sampled_from(["", "confluent"]))
def test_any_bytes_are_decoded_or_rejected(value: bytes, framing: str) -> None:
    decode(opened(framing=framing), value, b"\0\0\0\0\1" + value)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    opened()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    monkeypatch.delitem(sys.modules, "metaquorum.spark.value_schemas.protobuf_values")
    with pytest.raises(SchemaError, match=r"pip install 'metaquorum\[protobuf\]'"):
        opened()
