"""Values that are small in the log, and large when they are decoded: memory is bounded."""

import gc
import io
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from metaquorum.spark.loader.tasks.parquet_file import ROW_GROUP_BYTES, held_bytes
from metaquorum.spark.value_schemas import ValueSchemaSpec, open_decoder
from metaquorum.spark.value_schemas.avro_values import (
    MAX_HELD_CHARACTERS,
    AvroDecoder,
)
from metaquorum.spark.value_schemas.decoded import RejectedValueError
from metaquorum.spark.value_schemas.decoded_size import MAX_VALUE_BYTES
from metaquorum.spark.value_schemas.decoding import PIECE_BYTES
from metaquorum.spark.value_schemas.spark_types import MAX_SCHEMA_CHARACTERS
from tests.metaquorum.spark.value_schemas.pieces import decode_all
from tests.metaquorum.spark.value_schemas.registry_server import Registry, running_registry
from tests.metaquorum.spark.value_schemas.test_protobuf_values import F, add, class_of, set_of


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


def avro_record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def avro_items(*fields: dict[str, Any]) -> dict[str, Any]:
    inner = avro_record(*fields, name="I")
    return avro_record({"name": "items", "type": {"type": "array", "items": inner}})


def avro_value(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def resolving(registry: Registry, writer: dict[str, Any], reader: dict[str, Any]) -> Any:
    """Return a decoder to the reader's schema, and the header of values of the writer's."""
    schema_id = registry.register("s", {"schema": json.dumps(writer)})
    decoder = open_decoder(ValueSchemaSpec("avro", json.dumps(reader), registry=registry.url))
    return decoder, b"\0" + schema_id.to_bytes(4, "big")


def wide_file(fields: int) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="w.proto", package="w", syntax="proto3")
    item = file.message_type.add(name="I")
    for number in range(fields):
        add(item, f"f{number}", F.TYPE_STRING)
    outer = file.message_type.add(name="R")
    add(outer, "items", F.TYPE_MESSAGE, repeated=True, of=".w.I")
    add(outer, "numbers", F.TYPE_INT64, repeated=True)
    add(outer, "flags", F.TYPE_BOOL, repeated=True)
    return file


def protobuf(fields: int) -> Any:
    return open_decoder(ValueSchemaSpec("protobuf", set_of(wide_file(fields)), "w.R"))


class Memory:
    """Memory of Python objects: the most, and that held at the end."""

    def __enter__(self) -> "Memory":
        gc.collect()
        tracemalloc.start()
        self._before = tracemalloc.get_traced_memory()[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.held, self.most = (n - self._before for n in tracemalloc.get_traced_memory())
        tracemalloc.stop()


def small_items(count: int) -> list[dict[str, int]]:
    return [{"a": 1000 + number, "b": -number * 10**6} for number in range(count)]


DDL = "id BIGINT, name STRING, tags ARRAY<STRING>, m MAP<STRING, DOUBLE>, price DECIMAL(9,2)"
ROW = {"id": 10**12, "name": "é" * 30, "tags": ["x" * 9] * 5, "m": {"k": 0.5}, "price": 1.5}
TWO = [{"name": "a", "type": "int"}, {"name": "b", "type": "long"}]
AVRO_ROW = avro_record(
    {"name": "id", "type": "long"},
    {"name": "name", "type": ["null", "string"]},
    {"name": "m", "type": {"type": "map", "values": "double"}},
    {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
)


def json_cases() -> Iterator[tuple[str, Any, list[bytes]]]:
    row = json.dumps(ROW).encode()
    yield "a row", open_decoder(ValueSchemaSpec("json", DDL)), [row] * 2000
    flat = "id BIGINT, a DOUBLE, b STRING"
    yield (
        "a flat row",
        open_decoder(ValueSchemaSpec("json", flat)),
        [b'{"id": %d, "a": 1.25, "b": "some text"}' % (10**6 + number) for number in range(5000)],
    )
    structs = open_decoder(ValueSchemaSpec("json", "items ARRAY<STRUCT<a: INT, b: BIGINT>>"))
    yield "structs", structs, [json.dumps({"items": small_items(3000)}).encode()]
    numbers = open_decoder(ValueSchemaSpec("json", "items ARRAY<BIGINT>"))
    yield "numbers", numbers, [json.dumps({"items": list(range(1000, 50_000))}).encode()]
    fields = ", ".join(f"f{number}: BIGINT" for number in range(500))
    wide = open_decoder(ValueSchemaSpec("json", f"items ARRAY<STRUCT<{fields}>>"))
    yield "missing fields", wide, [b'{"items": [%s]}' % b",".join([b"{}"] * 200)]


def avro_cases() -> Iterator[tuple[str, Any, list[bytes]]]:
    value = {"id": 10**12, "name": "n" * 20, "m": {"a": 0.5, "b": 1.5}, "d": 1}
    row = open_decoder(ValueSchemaSpec("avro", json.dumps(AVRO_ROW)))
    plain = {**AVRO_ROW, "fields": [*AVRO_ROW["fields"][:3], {"name": "d", "type": "bytes"}]}
    yield "a row", row, [avro_value(plain, value | {"d": b"\1\2"})] * 2000
    items = open_decoder(ValueSchemaSpec("avro", json.dumps(avro_items(*TWO))))
    yield "records", items, [avro_value(avro_items(*TWO), {"items": small_items(3000)})]
    null = avro_items({"name": "x", "type": "null"})
    empty = open_decoder(ValueSchemaSpec("avro", json.dumps(null)))
    yield "no bytes", empty, [avro_value(null, {"items": [{"x": None}] * 500})] * 20


def protobuf_cases() -> Iterator[tuple[str, Any, list[bytes]]]:
    made = class_of("w.R", wide_file(20))
    numbers = made(numbers=range(1000, 50_000))
    yield "packed", protobuf(20), [numbers.SerializeToString()]
    yield "flags", protobuf(20), [made(flags=[True] * 50_000).SerializeToString()]
    yield "messages", protobuf(20), [made(items=[{"f3": "x" * 10}] * 3000).SerializeToString()]
    yield "defaults", protobuf(500), [b"\x0a\x00" * 500]


CASES: list[Callable[[], Iterator[tuple[str, Any, list[bytes]]]]] = [
    json_cases,
    avro_cases,
    protobuf_cases,
]


@pytest.mark.parametrize("cases", CASES)
def test_the_estimate_is_within_a_factor_of_two_of_the_memory(cases: Any) -> None:
    for name, decoder, values in cases():
        decoder.decode_one(values[0])
        estimate = 0
        rows: list[Any] = [None] * len(values)
        with Memory() as memory:
            for index, value in enumerate(values):
                decoder.meter.used = 0
                rows[index] = decoder.decode_one(value)
                estimate += decoder.meter.used
        assert memory.held / 2 < estimate < memory.held * 2.2, (name, memory.held, estimate)


def test_the_estimate_has_defaults_of_the_readers_schema(registry: Registry) -> None:
    """A default is one object in Python, but Arrow copies it for each row."""
    defaults = [
        {"name": "text", "type": "string", "default": "x" * 1000},
        {"name": "numbers", "type": {"type": "array", "items": "long"}, "default": [7] * 50},
    ]
    decoder, header = resolving(registry, avro_items(*TWO), avro_items(*TWO, *defaults))
    value = header + avro_value(avro_items(*TWO), {"items": small_items(500)})
    decoder.decode_one(value)
    before = pa.total_allocated_bytes()
    decoder.meter.used = 0
    with Memory() as memory:
        row = decoder.decode_one(value)
    estimate = decoder.meter.used
    columns = pa.array([row[0]], decoder.arrow_schema.field(0).type)
    arrow = pa.total_allocated_bytes() - before
    assert len(columns.values) == 500
    assert max(memory.held, arrow) / 2 < estimate < 2.2 * (memory.held + arrow)


def bombs(registry: Registry) -> Iterator[tuple[str, Any, bytes]]:
    """Yield decoders, and values that would take gigabytes each."""
    fields = [{"name": f"f{number}", "type": "int", "default": 0} for number in range(1000)]
    byte = {"name": "b", "type": "boolean"}
    wide, header = resolving(registry, avro_items(byte), avro_items(byte, *fields))
    yield "defaults", wide, header + avro_value(avro_items(byte), {"items": [{"b": True}] * 10**5})
    long_text = {"name": "t", "type": "string", "default": "x" * 10**5}
    text, header = resolving(registry, avro_items(byte), avro_items(byte, long_text))
    yield "text", text, header + avro_value(avro_items(byte), {"items": [{"b": True}] * 10**5})
    names = ", ".join(f"f{number}: STRING" for number in range(1000))
    structs = open_decoder(ValueSchemaSpec("json", f"items ARRAY<STRUCT<{names}>>"))
    yield "structs", structs, b'{"items": [%s]}' % b",".join([b"{}"] * 10**5)
    any_json = open_decoder(ValueSchemaSpec("json", "id INT"))
    yield "JSON that is ignored", any_json, b'{"x": [%s]}' % b",".join([b'{"":0}'] * 4 * 10**5)
    yield "messages", protobuf(1000), b"\x0a\x00" * 10**5
    yield "packed", protobuf(400), b"\x0a\x00" * 10**5 + b"\x12\xc0\x84\x3d" + b"\1" * 10**6


@pytest.mark.slow
def test_a_value_that_expands_without_bound_is_rejected_before_it_does(
    registry: Registry,
) -> None:
    for name, decoder, value in bombs(registry):
        with Memory() as memory:
            (said,) = decode_all(decoder, [value]).reasons.to_pylist()
        assert f"more than {MAX_VALUE_BYTES >> 20} MiB of memory" in said, name
        assert memory.most < 2 * MAX_VALUE_BYTES, name


@pytest.mark.slow
def test_values_that_expand_are_decoded_in_pieces(registry: Registry) -> None:
    """The attack that this is about: 9 bytes of a value are a thousand records."""
    field = {"name": "x", "type": "int", "default": 0}
    decoder, header = resolving(registry, avro_items(), avro_items(field))
    bomb = header + avro_value(avro_items(), {"items": [{}] * 1000})
    honest = header + avro_value(avro_items(), {"items": [{}]})
    values = [honest, *[bomb] * 200, honest]
    sizes, kept = [], 0
    with Memory() as memory:
        for piece in decoder.decode(pa.array(values, pa.binary())):
            sizes.append(piece.columns.num_rows)
            kept += piece.columns.num_rows
            assert piece.columns.nbytes < PIECE_BYTES
            del piece
    assert kept == len(values)
    assert max(sizes) < 100
    assert memory.most < 3 * PIECE_BYTES


@pytest.mark.slow
def test_reasons_of_rejected_values_are_in_pieces_too() -> None:
    decoder = open_decoder(ValueSchemaSpec("json", "id INT"))
    with Memory() as memory:
        pieces = [
            len(piece.rejected)
            for piece in decoder.decode(pa.array([b'{"id": "%s"}' % (b"x" * 70)] * 60_000))
        ]
    assert sum(pieces) == 60_000
    assert len(pieces) > 1
    assert memory.most < 5 * PIECE_BYTES


@pytest.mark.slow
def test_the_pieces_of_a_batch_do_not_change_its_rows() -> None:
    """A retry decodes other batches, because fetches differ, but the same rows in their order."""
    decoder = open_decoder(ValueSchemaSpec("json", "items ARRAY<BIGINT>"))
    values: list[bytes | None] = [
        json.dumps({"items": list(range(number % 30_000))}).encode() if number % 7 else b"no JSON"
        for number in range(0, 300_000, 2999)
    ]
    whole = decode_all(decoder, values)
    halves = [decode_all(decoder, values[:40]), decode_all(decoder, values[40:])]
    assert len(list(decoder.decode(pa.array(values)))) > 1
    assert whole.columns.to_pylist() == [row for half in halves for row in half.columns.to_pylist()]
    assert len(whole.reasons) == sum(len(half.reasons) for half in halves)


def test_row_groups_count_what_has_no_bytes() -> None:
    """Nulls take no bytes in Arrow, and flags a bit, but each takes 4 bytes in the writer."""
    count = 1_000_000
    for items in (pa.nulls(count), pa.array([True]).take(pa.array([0] * count))):
        column = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), items)
        assert held_bytes(pa.record_batch([column], ["items"])) >= 4 * count
    nulls = pa.record_batch([pa.nulls(1)] * 1000, [f"f{number}" for number in range(1000)])
    assert ROW_GROUP_BYTES / held_bytes(nulls) < 1000


# Schemas of writers, which any producer may register


def test_schemas_of_writers_are_bounded_by_their_size_together(registry: Registry) -> None:
    reader = avro_record({"name": "id", "type": "long"})
    decoder, _ = resolving(registry, reader, reader)
    assert isinstance(decoder, AvroDecoder)
    doc = "x" * (MAX_SCHEMA_CHARACTERS - 1000)
    ids = [
        registry.register("s", {"schema": json.dumps({**reader, "doc": f"{number} {doc}"})})
        for number in range(10)
    ]
    values = [b"\0" + each.to_bytes(4, "big") + b"\x0e" for each in ids]
    assert decode_all(decoder, values).columns.to_pylist() == [{"id": 7}] * 10
    assert decoder.held_characters <= MAX_HELD_CHARACTERS
    larger = registry.register("s", {"schema": json.dumps({**reader, "doc": doc * 2})})
    huge = registry.register("s", {"schema": json.dumps({**reader, "doc": doc * 5})})
    odd = [b"\0" + each.to_bytes(4, "big") + b"\x0e" for each in (larger, huge)]
    reasons = decode_all(decoder, odd).reasons.to_pylist()
    assert f"has more than {MAX_SCHEMA_CHARACTERS} characters" in reasons[0]
    assert "has more than 4194304 bytes" in reasons[1]


def test_an_id_that_no_registry_has_rejects_its_value(registry: Registry) -> None:
    reader = avro_record({"name": "id", "type": "long"})
    decoder, header = resolving(registry, reader, reader)
    decoded = decode_all(decoder, [b"\0\xff\xff\xff\xff\x0e", header + b"\x0e"])
    assert decoded.columns.to_pylist() == [{"id": 7}]
    assert "the schema with id 4294967295 does not exist" in decoded.reasons[0].as_py()


def test_meters_raise_beyond_the_bound() -> None:
    decoder = open_decoder(ValueSchemaSpec("json", "id INT"))
    assert decoder.meter.used == 0  # type: ignore[attr-defined]
    with pytest.raises(RejectedValueError, match="more than 128 MiB"):
        decoder.meter.charge(MAX_VALUE_BYTES + 1)  # type: ignore[attr-defined]
