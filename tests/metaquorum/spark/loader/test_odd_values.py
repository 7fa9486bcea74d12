"""Any value of a topic is loaded or rejected, with a reason, down to the Parquet files."""

import io
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.spark.loader.storage.local_storage import LocalStorage
from metaquorum.spark.loader.table.load_plan import TableSettings
from metaquorum.spark.loader.table.range_result import StagedFile
from metaquorum.spark.loader.tasks.range_files import write_range
from metaquorum.spark.loader.tasks.task_spec import RangeTask, TaskContext
from metaquorum.spark.offset_ranges import OffsetRange
from metaquorum.spark.options import Connecting, FetchOptions
from metaquorum.spark.value_schemas import SchemaError, ValueSchemaSpec, open_decoder
from metaquorum.spark.value_schemas.decoded_size import Meter
from metaquorum.spark.value_schemas.decoding import decode_each
from tests.metaquorum.spark.value_schemas.registry_server import Registry, running_registry
from tests.metaquorum.spark.value_schemas.test_protobuf_values import (
    TIMESTAMP,
    F,
    add,
    class_of,
    order_file,
    set_of,
)

BATCH = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64())])


def written(spec: ValueSchemaSpec, batches: Sequence[Sequence[bytes | None]]) -> None:
    """Write the values as one range, and check that each is in one file, in its place."""
    offsets = itertools.count()
    made = [
        pa.record_batch(
            [pa.nulls(len(values), pa.binary()), pa.array(values), [next(offsets) for _ in values]],
            schema=BATCH,
        )
        for values in batches
    ]
    count = next(offsets)
    with tempfile.TemporaryDirectory() as folder:
        context = TaskContext(
            folder,
            "_loading",
            FetchOptions(Connecting("nowhere:1")),
            TableSettings(columns=("value", "offset"), value_schema=spec),
        )
        task = RangeTask(0, OffsetRange("t", 0, 0, count))
        files = write_range(LocalStorage(folder), context, task, made)
        rows, side = (_table(folder, file) for file in files)
    values = [value for batch in batches for value in batch]
    kept = [] if rows is None else rows.column("offset").to_pylist()
    rejected = [] if side is None else side.column("offset").to_pylist()
    assert kept == sorted(kept)
    assert rejected == sorted(rejected)
    assert sorted([*kept, *rejected]) == list(range(count))
    if side is not None:
        assert side.column("value").to_pylist() == [values[offset] for offset in rejected]
        assert all(side.column("reason").to_pylist())


def _table(folder: str, file: StagedFile | None) -> pa.Table | None:
    if file is None:
        return None
    found = pq.ParquetFile(Path(folder) / file.path).read()
    assert found.num_rows == file.rows
    return found


def mutated(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Return values of which up to three places were changed."""

    @st.composite
    def change(draw: st.DrawFn) -> bytes:
        data = bytearray(draw(values))
        for _ in range(draw(st.integers(0, 3))):
            at = draw(st.integers(0, len(data)))
            data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
        return bytes(data)

    return change()


def batches_of(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[list[bytes | None]]]:
    odd = st.none() | values | values | mutated(values) | st.binary(max_size=40)
    return st.lists(st.lists(odd, min_size=1, max_size=12), min_size=1, max_size=2)


# JSON

DDL = """
    i BIGINT, t TINYINT, f FLOAT, d DOUBLE, n DECIMAL(38,10), s STRING, b BINARY, day DATE,
    at TIMESTAMP, ntz TIMESTAMP_NTZ, o BOOLEAN, a ARRAY<STRING>, m MAP<STRING, DECIMAL(5,2)>,
    r STRUCT<x: INT, y: ARRAY<STRUCT<z: DATE>>>
"""
NAMES = st.sampled_from(
    ["i", "t", "f", "d", "n", "s", "b", "day", "at", "ntz", "o", "a", "m", "r", "x", "y", "z", ""]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.sampled_from(
        [
            *("1e400", "-1e-400", "1" * 500, "1e999999999", "-0", "0.1" + "0" * 90, "1E+37"),
            *('"0001-01-01"', '"9999-12-31"', '"0000-01-01"', '"2026-02-30"', '"1e5"'),
            *('"9999-12-31T23:59:59.999999999-18:00"', '"0001-01-01 00:00:00+18:00"'),
            *('"\\ud800"', '"\\u0000"', '"\\u202e"', '"AA=="', '"AA"', '"2026-01-01T24:00:00Z"'),
        ]
    ),
    st.text(max_size=5).map(json.dumps),
)


def json_text(part: Any) -> str:
    """Return the text of a drawn value, whose scalars are texts, and objects lists of pairs."""
    if isinstance(part, tuple):
        pairs = (f"{json.dumps(name)}: {json_text(value)}" for name, value in part)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(part, list):
        return "[" + ", ".join(map(json_text, part)) + "]"
    return part if isinstance(part, str) else json.dumps(part)


JSON_VALUES = (
    st.lists(
        st.tuples(
            NAMES,
            st.recursive(
                SCALARS,
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.lists(st.tuples(NAMES, inner), max_size=3).map(tuple)
                ),
                max_leaves=6,
            ),
        ),
        max_size=6,
    )
    .map(tuple)
    .map(json_text)
    .map(lambda text: text.encode("utf-8", "surrogatepass"))
)


@given(batches_of(JSON_VALUES))
def test_any_json_is_loaded_or_rejected(batches: list[list[bytes | None]]) -> None:
    written(ValueSchemaSpec("json", DDL), batches)


# Avro


def logical(kind: str, meaning: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": meaning, **more}


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields],
    }


ITEM = record("I", ("x", ["null", "int"]), ("y", "float"))
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}
READER = record(
    "R",
    ("i", "int"),
    ("l", ["null", "long"]),
    ("d", logical("bytes", "decimal", precision=38, scale=9)),
    ("f", {"type": "fixed", "name": "F", "size": 3}),
    ("e", ENUM),
    ("u", logical("string", "uuid")),
    ("day", logical("int", "date")),
    ("time", logical("long", "time-micros")),
    ("at", logical("long", "timestamp-nanos")),
    ("s", "string"),
    ("items", {"type": "array", "items": ITEM}),
    ("m", {"type": "map", "values": ["null", "double"]}),
    ("n", {"type": "array", "items": "null"}),
)
WRITERS = [
    READER,
    # Other orders, promotions, symbols, unions and a recursive field, which the reader skips.
    record(
        "R",
        ("skipped", record("Tree", ("left", ["null", "Tree"]), ("right", ["null", "Tree"]))),
        *((field["name"], field["type"]) for field in READER["fields"][:4]),
        ("e", {"type": "enum", "name": "E", "symbols": ["B", "C", "\u0041"]}),
        *((field["name"], ["null", field["type"]]) for field in READER["fields"][5:]),
    ),
    record("R", ("i", ["string", "int", "double"]), ("l", "int"), ("s", ["bytes", "string"])),
]
# Other texts that a registry may have under an id.
ODD_SCHEMAS = [
    "{}",
    "[]",
    '"string"',
    '{"type": "record", "name": "R", "fields": 7}',
    '{"type": "record", "name": "R", "fields": [{"name": "i", "type": "int", "aliases": 7}]}',
    '{"type": "record", "name": "R", "fields": [{"name": "i", "type": "E"}]}',
    '{"type": "record", "name": "R", "fields": [{"name": "f", "type": {"type": "fixed", '
    '"name": "F", "size": -1}}]}',
    '{"type": "record", "name": "R", "fields": [{"name": "e", "type": {"type": "enum", '
    '"name": "E", "symbols": 7}}]}',
    '{"type": "record", "name": "R", "fields": [{"name": "u", "type": [["null"], "int"]}]}',
    '{"type": {"type": "record", "name": "R", "fields": []}}',
]
AVRO_VALUES = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": st.none() | st.integers(-(2**31), 2**31 - 1),
        "d": st.binary(max_size=20),
        "f": st.binary(min_size=3, max_size=3),
        "e": st.sampled_from("AB"),
        "u": st.text(max_size=3),
        "day": st.integers(-(2**31), 2**31 - 1),
        "time": st.integers(-1, 2**40),
        "at": st.sampled_from([-(2**63), 2**63 - 1, 0]),
        "s": st.text(max_size=5),
        "items": st.lists(
            st.fixed_dictionaries({"x": st.none() | st.integers(0, 9), "y": st.floats(width=32)}),
            max_size=3,
        ),
        "m": st.dictionaries(st.text(max_size=3), st.none() | st.floats(), max_size=3),
        "n": st.lists(st.none(), max_size=3),
    }
)


@cache
def plain(index: int) -> Any:
    """Return a writer's schema without logical types: values are written as they are stored."""

    def without(schema: Any) -> Any:
        if isinstance(schema, list):
            return [without(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        kept = {k: v for k, v in schema.items() if k not in ("logicalType", "precision", "scale")}
        if "fields" in kept:
            kept["fields"] = [{**f, "type": without(f["type"])} for f in kept["fields"]]
        return kept | {k: without(kept[k]) for k in ("type", "items", "values") if k in kept}

    return fastavro.parse_schema(without(WRITERS[index]))


@st.composite
def avro_values(draw: st.DrawFn) -> bytes:
    index = draw(st.integers(0, len(WRITERS) - 1))
    value = draw(AVRO_VALUES) | {"skipped": {"left": {"left": None, "right": None}, "right": None}}
    if index == 2:
        value["l"] = value["l"] or 0
    if index == 1:
        value["e"] = draw(st.sampled_from("BC"))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, plain(index), value)
    schema_id = (
        draw(st.integers(0, 3 + len(WRITERS) + len(ODD_SCHEMAS)))
        if draw(st.integers(0, 4)) == 0
        else index + 1
    )
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        for writer in WRITERS:
            running.register("s", {"schema": json.dumps(writer)})
        for text in ODD_SCHEMAS:
            running.register("s", {"schema": text})
        yield running


@given(data=st.data())
def test_any_avro_is_loaded_or_rejected(registry: Registry, data: st.DataObject) -> None:
    spec = ValueSchemaSpec("avro", json.dumps(READER), registry=registry.url)
    written(spec, data.draw(batches_of(avro_values())))


PARTS = st.recursive(
    st.sampled_from(
        ["null", "int", "E", "R", "record", "", "x.y", 0, -1, 2**70, True, None, "\ud800"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("type", "name", "fields", "items", "values", "symbols", "size", "default"),
                    *("aliases", "namespace", "logicalType", "precision", "scale"),
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=10,
)


@given(data=st.data())
def test_any_schema_of_a_writer_rejects_its_values_at_worst(
    registry: Registry, data: st.DataObject
) -> None:
    """Schemas come from a registry, in which any producer may register them."""
    schema = json.loads(json.dumps(READER))
    fields = schema["fields"]
    for _ in range(data.draw(st.integers(1, 3))):
        field = data.draw(st.sampled_from(fields))
        where = data.draw(st.sampled_from(["type", "name", "default", "aliases"]))
        field[where] = data.draw(PARTS)
    schema_id = 1000
    registry.schemas[schema_id] = {"schema": json.dumps(schema)}
    decoder = open_decoder(ValueSchemaSpec("avro", json.dumps(READER), registry=registry.url))
    bodies = data.draw(st.lists(st.binary(max_size=30), min_size=1, max_size=3))
    values = [b"\0" + schema_id.to_bytes(4, "big") + body for body in bodies]
    pieces = list(decoder.decode(pa.array(values, pa.binary())))
    assert sum(len(piece.kept) + len(piece.rejected) for piece in pieces) == len(values)


# Protobuf


def two_file() -> Any:
    """Return a file of proto2: required fields, a closed enum, a group, text that is unchecked."""
    file = descriptor_pb2.FileDescriptorProto(name="two.proto", package="two", syntax="proto2")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="ONE", number=1)
    message = file.message_type.add(name="M")
    group = message.nested_type.add(name="G")
    add(group, "g", F.TYPE_STRING)
    entry = message.nested_type.add(name="NamesEntry")
    entry.options.map_entry = True
    add(entry, "key", F.TYPE_STRING)
    add(entry, "value", F.TYPE_MESSAGE, of=".two.M.G")
    add(message, "id", F.TYPE_FIXED64).label = F.LABEL_REQUIRED
    add(message, "kind", F.TYPE_ENUM, of=".two.Kind")
    add(message, "text", F.TYPE_STRING)
    add(message, "texts", F.TYPE_STRING, repeated=True)
    add(message, "at", F.TYPE_MESSAGE, repeated=True, of=".google.protobuf.Timestamp")
    add(message, "g", F.TYPE_GROUP, repeated=True, of=".two.M.G")
    add(message, "names", F.TYPE_MESSAGE, repeated=True, of=".two.M.NamesEntry")
    add(message, "numbers", F.TYPE_SINT64, repeated=True).options.packed = True
    add(message, "real", F.TYPE_FLOAT)
    return file


PROTO2 = ValueSchemaSpec("protobuf", set_of(TIMESTAMP, two_file()), "two.M")
PROTO3 = ValueSchemaSpec("protobuf", set_of(order_file()), "shop.Order")


@st.composite
def wire_values(draw: st.DrawFn, depth: int = 0) -> bytes:
    """Return fields of the wire format, with numbers and kinds that a message may have."""
    out = bytearray()
    for _ in range(draw(st.integers(0, 5))):
        number, kind = draw(st.integers(1, 10)), draw(st.sampled_from([0, 1, 2, 2, 2, 3, 5]))
        out.append(number << 3 | kind)
        if kind == 0:
            out += draw(st.sampled_from([b"\0", b"\1", b"\2", b"\xff" * 9 + b"\1"]))
        elif kind in (1, 5):
            out += draw(st.binary(min_size=8 if kind == 1 else 4, max_size=8 if kind == 1 else 4))
        elif kind == 2:
            inner = wire_values(depth + 1) if depth < 2 else st.binary(max_size=9)
            body = draw(inner | st.binary(max_size=9))[:100]
            out += bytes([len(body)]) + body
        else:
            out += draw(st.binary(max_size=2)) + bytes([number << 3 | 4])
    return bytes(out)


@cache
def required() -> bytes:
    data: bytes = class_of("two.M", TIMESTAMP, two_file())(id=7).SerializeToString()
    return data


@given(batches_of(wire_values().map(lambda data: required() + data)))
def test_any_message_of_proto2_is_loaded_or_rejected(batches: list[list[bytes | None]]) -> None:
    written(PROTO2, batches)


@given(batches_of(wire_values()))
def test_any_message_of_proto3_is_loaded_or_rejected(batches: list[list[bytes | None]]) -> None:
    written(PROTO3, batches)


# Errors of libraries


class OddError(Exception):
    pass


@pytest.mark.parametrize("error", [OddError("of a library"), RecursionError(), OverflowError("x")])
def test_an_error_of_a_library_rejects_the_value_alone(error: Exception) -> None:
    def decode_one(data: bytes) -> list[Any]:
        if data == b"odd":
            raise error
        return [data]

    schema = pa.schema([("v", pa.binary())])
    values = pa.array([b"a", b"odd", b"b"])
    (piece,) = decode_each(values, schema, decode_one, Meter())
    assert piece.columns.to_pylist() == [{"v": b"a"}, {"v": b"b"}]
    assert piece.rejected.to_pylist() == [1]
    assert piece.reasons[0].as_py().startswith(f"$: {type(error).__name__}: {error}")


def test_an_item_that_arrow_refuses_rejects_its_value_alone() -> None:
    schema = pa.schema([("v", pa.int8()), ("w", pa.string())])
    rows = {b"a": [1, "x"], b"b": [2**70, "x"], b"c": [2, "\ud800"], b"d": [3, None]}
    values = pa.array([*rows])
    (piece,) = decode_each(values, schema, lambda data: rows[data], Meter())
    assert piece.columns.to_pylist() == [{"v": 1, "w": "x"}, {"v": 3, "w": None}]
    assert piece.kept.to_pylist() == [0, 3]
    assert piece.rejected.to_pylist() == [1, 2]
    assert "OverflowError" in piece.reasons[0].as_py()
    assert "UnicodeEncodeError" in piece.reasons[1].as_py()


def test_reasons_have_no_characters_that_a_terminal_interprets() -> None:
    def decode_one(data: bytes) -> list[Any]:
        raise OddError("a\n\x1b[31m\u202e" + "x" * 10**6)

    schema = pa.schema([("v", pa.binary())])
    (piece,) = decode_each(pa.array([b"a"]), schema, decode_one, Meter())
    assert piece.reasons[0].as_py().startswith("$: OddError: a\\n\\x1b[31m\\u202ex")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (record("Empty"), "the field 'v', a record without fields"),
        ({"type": "array", "items": record("Empty")}, "a record without fields"),
        ({"type": "fixed", "name": "F", "size": 0}, "the field 'v', a fixed of 0 bytes"),
    ],
)
def test_a_schema_that_parquet_cannot_store_is_refused_at_once(kind: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        open_decoder(ValueSchemaSpec("avro", json.dumps(record("R", ("i", "int"), ("v", kind)))))
