import io
import json
import ssl
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import trustme
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.spark.value_schemas import (
    Decoded,
    RegistryAuth,
    RegistryError,
    SchemaError,
    ValueSchemaSpec,
    open_decoder,
)
from metaquorum.spark.value_schemas.registry import MAX_RESPONSE_BYTES
from tests.metaquorum.spark.value_schemas.pieces import decode_all
from tests.metaquorum.spark.value_schemas.registry_server import Registry, running_registry

ID = {"name": "id", "type": "long"}


def record(*fields: dict[str, Any], name: str = "R") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


def field(kind: Any, **more: Any) -> str:
    return record({"name": "v", "type": kind, **more})


def written(schema: str, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), value)
    return out.getvalue()


def decode(schema: str, *values: bytes | None) -> Decoded:
    return checked(open_decoder(ValueSchemaSpec("avro", schema)), *values)


def checked(decoder: Any, *values: bytes | None) -> Decoded:
    return decode_all(decoder, values)


def reason(schema: str, value: bytes) -> str:
    (said,) = decode(schema, value).reasons.to_pylist()
    return str(said)


def logical(kind: str, meaning: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": meaning, **more}


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
FIXED_DECIMAL = logical("fixed", "decimal", name="F", size=4, precision=9, scale=2)


@pytest.mark.parametrize(
    ("kind", "value", "arrow", "expected"),
    [
        ("int", -1, pa.int32(), -1),
        ("float", 0.5, pa.float32(), 0.5),
        ("double", float("inf"), pa.float64(), float("inf")),
        ("boolean", True, pa.bool_(), True),
        ("bytes", b"\0", pa.binary(), b"\0"),
        ("string", "é", pa.string(), "é"),
        ("null", None, pa.null(), None),
        (["null", "long"], None, pa.int64(), None),
        (["string", "null"], "x", pa.string(), "x"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(2), b"ab"),
        (logical("int", "date"), date(1, 1, 1), pa.date32(), date(1, 1, 1)),
        (logical("int", "time-millis"), time(1, 2, 3), pa.time32("ms"), time(1, 2, 3)),
        (logical("long", "timestamp-millis"), MOMENT, pa.timestamp("ms", tz="UTC"), MOMENT),
        (logical("long", "timestamp-micros"), MOMENT, pa.timestamp("us", tz="UTC"), MOMENT),
        (
            logical("bytes", "decimal", precision=5, scale=2),
            Decimal("-1.23"),
            pa.decimal128(5, 2),
            Decimal("-1.23"),
        ),
        (FIXED_DECIMAL, Decimal("1234567.89"), pa.decimal128(9, 2), Decimal("1234567.89")),
        (
            logical("string", "uuid"),
            uuid.UUID(int=7),
            pa.string(),
            "00000000-0000-0000-0000-000000000007",
        ),
        (logical("long", "unheard-of"), 7, pa.int64(), 7),
    ],
)
def test_each_type_has_its_column(kind: Any, value: Any, arrow: pa.DataType, expected: Any) -> None:
    decoded = decode(field(kind), written(field(kind), {"v": value}))
    assert decoded.columns.schema.field("v").type == arrow
    assert decoded.columns.to_pylist() == [{"v": expected}]


def test_nested_types_are_columns_of_structs_lists_and_maps() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "int"]}]}
    schema = record(
        {"name": "items", "type": {"type": "array", "items": inner}},
        {"name": "m", "type": {"type": "map", "values": "I"}},
    )
    value = {"items": [{"x": 1}, {"x": None}], "m": {"k": {"x": 2}}}
    assert decode(schema, written(schema, value)).columns.to_pylist() == [
        {"items": [{"x": 1}, {"x": None}], "m": [("k", {"x": 2})]}
    ]


NULLS = field({"type": "array", "items": "null"})
LIST = field(["null", {"type": "array", "items": "long"}])


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        (record(ID), b"", "$.id: the value ends too early"),
        (record(ID), b"\x02x", "$: 1 bytes follow the value"),
        (record(ID), b"\xff" * 9 + b"\x02", "$.id: a number has more than 64 bits"),
        (record(ID), b"\xff" * 20, "$.id: a number has more than 10 bytes"),
        (field("int"), b"\x80\x80\x80\x80\x10", "$.v: 2147483648 is not a valid int"),
        (field("boolean"), b"\x02", "$.v: byte 2 is not a valid boolean"),
        (field("string"), b"\x02\xff", "$.v: a string is not UTF-8"),
        (field("bytes"), b"\x01x", "$.v: the length is -1"),
        (field("bytes"), b"\xfe\xff\xff\xff\x0fx", "but 1 bytes remain"),
        (LIST, b"\x01", "$.v: the union has no branch -1"),
        (LIST, b"\x04", "$.v: the union has no branch 2"),
        (LIST, b"\x02\xfe\xff\xff\xff\x0f", "items exceeds the value"),
        (LIST, b"\x02\x01\x04\x02\x00", "$.v: the size of a block is not the size of its items"),
        (NULLS, b"\xfe\xff\xff\xff\xff\xff\x0f", "items exceeds the value"),
        (NULLS, b"\xd0\x0f\x02\x00", "there are more than 1000 parts without bytes"),
        (field({"type": "enum", "name": "E", "symbols": ["A"]}), b"\x01", "no symbol -1"),
        (
            field(logical("bytes", "decimal", precision=2)),
            b"\x02\x7f",
            "is not a valid decimal(2,0)",
        ),
        (field(logical("int", "time-millis")), b"\x01", "$.v: -1 is not a valid time32[ms]"),
    ],
)
def test_bytes_that_lie_are_rejected(schema: str, value: bytes, said: str) -> None:
    assert said in reason(schema, value)


def test_a_block_that_says_its_size_is_read() -> None:
    decoded = decode(LIST, b"\x02\x03\x04\x02\x04\x02\x06\x00")
    assert decoded.columns.to_pylist() == [{"v": [1, 2, 3]}]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("x", "the Avro schema cannot be used: JSONDecodeError"),
        ('"long"', "is not a record"),
        ("{}", "the Avro schema cannot be used"),
        (field("nothing"), "cannot be used: UnknownType"),
        (field(["null", "R"]), "the recursive type R"),
        (field(["int", "string"]), "a union of several types"),
        (record(ID, {"name": "ID", "type": "int"}), "Spark does not distinguish"),
        (record(), "has no fields"),
        (field(logical("bytes", "decimal", precision=39)), "more than 38 digits"),
        ("[" * 100_000, "cannot be used: RecursionError"),
    ],
)
def test_a_schema_without_columns_is_refused(schema: str, said: str) -> None:
    with pytest.raises(SchemaError) as raised:
        open_decoder(ValueSchemaSpec("avro", schema))
    assert said in str(raised.value)


WIDE = record(
    ID,
    {"name": "items", "type": {"type": "array", "items": ["null", "string"]}},
    {"name": "m", "type": {"type": "map", "values": "double"}},
    {"name": "e", "type": ["null", {"type": "enum", "name": "E", "symbols": ["A", "B"]}]},
    {"name": "d", "type": logical("bytes", "decimal", precision=9, scale=2)},
    {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}},
)
WIDE_VALUES = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "items": st.lists(st.none() | st.text(max_size=5), max_size=3),
        "m": st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=3),
        "e": st.sampled_from([None, "A", "B"]),
        "d": st.decimals(-(10**6), 10**6, places=2),
        "f": st.binary(min_size=3, max_size=3),
    }
)


@given(st.lists(WIDE_VALUES, max_size=3))
def test_what_was_written_is_decoded_exactly(values: list[dict[str, Any]]) -> None:
    decoded = decode(WIDE, *(written(WIDE, value) for value in values))
    assert decoded.columns.to_pylist() == [{**v, "m": list(v["m"].items())} for v in values]


@given(WIDE_VALUES, st.data())
def test_damaged_values_are_decoded_or_rejected(value: dict[str, Any], data: Any) -> None:
    encoded = bytearray(written(WIDE, value))
    at = data.draw(st.integers(0, len(encoded)))
    encoded[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    decode(WIDE, bytes(encoded))


@given(st.sampled_from([WIDE, NULLS, LIST]), st.binary())
def test_any_bytes_are_decoded_or_rejected(schema: str, value: bytes) -> None:
    decode(schema, value)


# By the id of a schema in a registry.


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def test_values_of_confluents_serializer_are_resolved_to_the_readers_schema(
    registry: Registry,
) -> None:
    reader = record(
        {"name": "amount", "type": "double"},
        {"name": "who", "type": "string", "aliases": ["name"]},
        {"name": "new", "type": "bytes", "default": "\u00ff"},
    )
    writers = [
        (record({"name": "amount", "type": "int"}, {"name": "name", "type": "string"}), 1),
        (record({"name": "who", "type": "string"}, {"name": "amount", "type": "float"}), 0.5),
    ]
    values = []
    for schema, amount in writers:
        with SchemaRegistryClient({"url": registry.url}) as client:
            serializer = AvroSerializer(client, schema)
            value = {"amount": amount, "name": "n", "who": "n"}
            names = [each["name"] for each in json.loads(schema)["fields"]]
            values.append(
                serializer(
                    {name: value[name] for name in names},
                    SerializationContext("t", MessageField.VALUE),
                )
            )
    decoder = open_decoder(ValueSchemaSpec("avro", reader, registry=registry.url))
    registry.asked.clear()
    decoded = checked(decoder, *values, *values, framed(77, b""), None, b"\1abcdef")
    assert decoded.columns.to_pylist() == 2 * [
        {"amount": 1.0, "who": "n", "new": b"\xff"},
        {"amount": 0.5, "who": "n", "new": b"\xff"},
    ]
    assert decoded.reasons.to_pylist() == [
        "$: the schema with id 77 is not in the schema registry",
        "the value is null (a tombstone)",
        "$: the magic byte is 1, not 0: no schema id follows it",
    ]
    assert registry.asked == ["/schemas/ids/1", "/schemas/ids/2", "/schemas/ids/77"]


def test_the_readers_schema_may_come_by_id_and_refer_to_others(registry: Registry) -> None:
    registry.register("inner value", {"schema": record(ID, name="n.Inner")})
    reference = {"name": "n.Inner", "subject": "inner value", "version": 1}
    schema = record({"name": "v", "type": "n.Inner"})
    outer = registry.register("outer", {"schema": schema, "references": [reference]})
    decoder = open_decoder(ValueSchemaSpec("avro", registry=registry.url, schema_id=outer))
    assert checked(decoder, framed(outer, b"\x0e")).columns.to_pylist() == [{"v": {"id": 7}}]
    assert registry.asked == [f"/schemas/ids/{outer}", "/subjects/inner%20value/versions/1"]


def test_writers_schemas_that_do_not_fit_reject_their_values(registry: Registry) -> None:
    nested = field(["null", "R"])
    schemas = [
        {"schema": record({"name": "other", "type": "long"})},
        {"schema": field(logical("long", "timestamp-micros"))},
        {"schema": "{}"},
        {"schema": "syntax", "schemaType": "PROTOBUF"},
        {"schema": nested},
    ]
    ids = [registry.register("s", each) for each in schemas]
    schema = field(logical("long", "timestamp-millis"))
    decoder = open_decoder(ValueSchemaSpec("avro", schema, registry=registry.url))
    bodies = [b"\x02", b"\x02", b"", b"", b"\x02" * 1_000_000 + b"\0"]
    decoded = checked(decoder, *(framed(i, b) for i, b in zip(ids, bodies, strict=True)))
    reasons = decoded.reasons.to_pylist()
    assert "No default value for field v" in reasons[0]
    assert "has timestamp-micros at $.v where the reader's schema has" in reasons[1]
    assert "the schema with id 3: the Avro schema cannot be used" in reasons[2]
    assert "is not an Avro schema but 'PROTOBUF'" in reasons[3]
    assert "nested more than 128 deep" in reasons[4]


def test_credentials_are_sent_and_shown_nowhere(registry: Registry) -> None:
    schema_id = registry.register("s", {"schema": record(ID)})
    spec = ValueSchemaSpec("avro", registry=registry.url, schema_id=schema_id)
    auth = RegistryAuth("user", "S3cret")
    open_decoder(spec, auth)
    open_decoder(spec, RegistryAuth(token="T0ken"))
    assert registry.authorizations == ["Basic dXNlcjpTM2NyZXQ=", "Bearer T0ken"]
    shown = f"{auth!r} {RegistryAuth(token='T0ken')!r} {spec!r} {spec.to_json()}"
    assert "S3cret" not in shown
    assert "T0ken" not in shown
    assert ValueSchemaSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    with pytest.raises(SchemaError, match="has credentials"):
        ValueSchemaSpec("avro", registry="http://u:p@localhost", schema_id=1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, b"{}", {}), "refuses the credentials"),
        ((404, b"<html>", {}), "is not a schema registry: check the URL"),
        ((200, b"[]", {}), "is not a schema registry"),
        ((200, b"[" * 100_000, {}), "is not a schema registry"),
        ((200, b'{"schema": 7}', {}), "sent a response without a schema"),
        ((302, b"", {"Location": "http://127.0.0.1:9/"}), "HTTP status 302"),
        ((200, b"x" * (MAX_RESPONSE_BYTES + 1), {}), "answered with more than"),
    ],
)
def test_a_registry_that_does_not_answer_as_one_is_no_fault_of_a_record(
    registry: Registry, answer: tuple[int, bytes, dict[str, str]], said: str
) -> None:
    decoder = open_decoder(ValueSchemaSpec("avro", record(ID), registry=registry.url))
    registry.answers.append(answer)
    with pytest.raises(RegistryError) as raised:
        checked(decoder, framed(1, b"\x02"))
    assert said in str(raised.value)
    registry.register("s", {"schema": record(ID)})
    assert checked(decoder, framed(1, b"\x02")).columns.to_pylist() == [{"id": 1}]


def test_a_registry_that_is_overloaded_is_asked_again(registry: Registry) -> None:
    registry.register("s", {"schema": record(ID)})
    registry.answers.append((503, b"", {}))
    decoder = open_decoder(ValueSchemaSpec("avro", record(ID), registry=registry.url))
    assert checked(decoder, framed(1, b"\x02")).columns.to_pylist() == [{"id": 1}]


def test_a_registry_with_tls_has_to_show_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with running_registry(context) as registry:
        schema_id = registry.register("s", {"schema": record(ID)})
        spec = ValueSchemaSpec("avro", registry=registry.url, schema_id=schema_id)
        with pytest.raises(RegistryError, match="certificate verify failed"):
            open_decoder(spec)
        auth = RegistryAuth("user", "S3cret", ca_file=str(tmp_path / "ca.pem"))
        assert open_decoder(spec, auth).arrow_schema.names == ["id"]
        assert registry.authorizations == ["Basic dXNlcjpTM2NyZXQ="]


def test_without_fastavro_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "metaquorum.spark.value_schemas.avro_values")
    with pytest.raises(SchemaError, match=r"pip install 'metaquorum\[avro\]'"):
        open_decoder(ValueSchemaSpec("avro", record(ID)))
