import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.spark.value_schemas import Decoded, ValueSchemaSpec, open_decoder, split
from metaquorum.spark.value_schemas.decoded import MAX_REASON_CHARACTERS
from tests.metaquorum.spark.value_schemas.pieces import decode_all

USER = "id BIGINT NOT NULL, name STRING, user STRUCT<id: BIGINT, tags: ARRAY<STRING>>"
MAX = 2**63 - 1


def decode(schema: str, *values: bytes | str | None) -> Decoded:
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return decode_all(open_decoder(ValueSchemaSpec("json", schema)), encoded)


def rows(schema: str, *values: bytes | str | None) -> list[dict[str, Any]]:
    decoded = decode(schema, *values)
    assert decoded.reasons.to_pylist() == []
    found: list[dict[str, Any]] = decoded.columns.to_pylist()
    return found


def reason(schema: str, value: bytes | str | None) -> str:
    decoded = decode(schema, value)
    (said,) = decoded.reasons.to_pylist()
    return str(said)


def test_values_become_columns_and_the_rest_keeps_its_index() -> None:
    decoded = decode(
        USER,
        '{"id": 1, "name": "a", "user": {"id": 2, "tags": ["x", null]}, "more": [{}]}',
        None,
        '{"id": "x"}',
        ' {"name": null, "id": -9223372036854775808}\n',
    )
    assert decoded.columns.to_pylist() == [
        {"id": 1, "name": "a", "user": {"id": 2, "tags": ["x", None]}},
        {"id": -MAX - 1, "name": None, "user": None},
    ]
    assert decoded.kept.to_pylist() == [0, 3]
    assert decoded.rejected.to_pylist() == [1, 2]
    assert decoded.reasons.to_pylist() == [
        "the value is null (a tombstone)",
        "$.id: 'x' is not a valid int64",
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('{"id": 1, "user": {"id": "x"}}', "$.user.id: 'x' is not a valid int64"),
        ('{"id": 1, "user": {"tags": ["a", 7]}}', "$.user.tags[1]: 7 is not a valid string"),
        ('{"id": 1, "user": [1]}', "$.user: an array is not a valid object"),
        ('{"id": 1, "user": {"tags": {}}}', "$.user.tags: an object is not a valid array"),
        ("{}", "$.id: is missing, but NOT NULL in the schema"),
        ('{"ID": 1}', "$.id: is missing, but NOT NULL in the schema"),
        ('{"id": null}', "$.id: is null, but NOT NULL in the schema"),
        ('{"id": 9223372036854775808}', "$.id: 9223372036854775808 is not a valid int64"),
        ('{"id": 1.0}', "$.id: 1.0 is not a valid int64"),
        ('{"id": 1e0}', "$.id: 1e0 is not a valid int64"),
        ('{"id": true}', "$.id: true is not a valid int64"),
        ('{"id": ' + "9" * 10_000 + "}", "$.id: " + "9" * 57 + "... is not a valid int64"),
        ('{"id": 1, "id": 1}', "$: the object has the key 'id' twice"),
        ('{"id": 1, "z": [0, {"a b": {"k": 1, "k": 2}}]}', "$.z[1]['a b']: the object has the key"),
        ('{"id": 1} x', "$: not JSON: Extra data at character 11"),
        ('{"id": 1}{"id": 2}', "$: not JSON: Extra data"),
        ('{"id": 1', "$: not JSON: Expecting ',' delimiter"),
        ('{"id": 01}', "$: not JSON"),
        ("{'id': 1}", "$: not JSON"),
        ('{"id": 1, "z": NaN}', "$: NaN is not JSON"),
        ('{"id": 1, "z": -Infinity}', "$: -Infinity is not JSON"),
        ('{"id": 1, "name": "\\ud800"}', "has a lone surrogate"),
        ('{"id": 1, "name": "a\nb"}', "$: not JSON: Invalid control character"),
        (b'{"id": 1, "name": "\xff"}', "$: byte 20 is not UTF-8"),
        (b'{"id": 1, "name": "\xed\xa0\x80"}', "$: byte 20 is not UTF-8"),
        (b'\xef\xbb\xbf{"id": 1}', "$: not JSON"),
        ('{"id": 1}'.encode("utf-16"), "is not UTF-8"),
        ("", "$: the value is empty"),
        (" \n", "$: the value is empty"),
        ("null", "$: null is not a valid object"),
        ("[]", "$: an array is not a valid object"),
        ("7", "$: 7 is not a valid object"),
        ('{"id": 1, "z": ' + "[" * 128 + "]" * 128 + "}", "$: nested more than 128 deep"),
        ('{"id": 1, "z": ' + "[" * 1_000_000, "$: nested more than 128 deep"),
    ],
)
def test_what_is_wrong_is_rejected_with_its_path(value: str | bytes, said: str) -> None:
    found = reason(USER, value)
    assert said in found
    assert len(found) <= MAX_REASON_CHARACTERS


def test_brackets_in_strings_are_no_nesting() -> None:
    name = '[{\\"' * 1000
    assert rows("name STRING", f'{{"name": "{name}"}}') == [{"name": '[{"' * 1000}]
    assert rows("name STRING", '{"z": ' + "[" * 127 + "]" * 127 + "}") == [{"name": None}]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("BOOLEAN", "true", True),
        ("TINYINT", "-128", -128),
        ("SMALLINT", "32767", 32767),
        ("INT", "-0", 0),
        ("DOUBLE", "1e-400", 0.0),
        ("DOUBLE", "12345678901234567890123", 1.2345678901234568e22),
        ("DOUBLE", "1" + "0" * 300, 1e300),
        ("DOUBLE", "0.1", 0.1),
        ("FLOAT", "0.5", 0.5),
        ("FLOAT", "0.1", 0.10000000149011612),
        ("DECIMAL(5,2)", "123.45", Decimal("123.45")),
        ("DECIMAL(5,2)", '"-1.5"', Decimal("-1.50")),
        ("DECIMAL(5,2)", "1.2300000", Decimal("1.23")),
        ("DECIMAL(5,2)", "1e2", Decimal("100.00")),
        ("DECIMAL(5,2)", "0e-999999999999", None),
        ("DECIMAL(5,2)", "0.000", Decimal("0.00")),
        ("DECIMAL(38,0)", "9" * 38, Decimal("9" * 38)),
        ("DECIMAL(38,38)", "0." + "9" * 38, Decimal("0." + "9" * 38)),
        ("STRING", '"\\ud83d\\ude00\\u0000"', "\U0001f600\0"),
        ("BINARY", '"AP8="', b"\0\xff"),
        ("DATE", '"0001-01-01"', date(1, 1, 1)),
        ("DATE", '"9999-12-31"', date(9999, 12, 31)),
        ("TIMESTAMP", '"2026-01-02T03:04:05Z"', datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (
            "TIMESTAMP",
            '"2026-01-02 03:04:05.123456789+05:30"',
            datetime(2026, 1, 1, 21, 34, 5, 123456, tzinfo=UTC),
        ),
        (
            "TIMESTAMP",
            '"1969-12-31T23:59:59.5-0100"',
            datetime(1970, 1, 1, 0, 59, 59, 500_000, UTC),
        ),
        ("TIMESTAMP_NTZ", '"2026-01-02T03:04:05.1"', datetime(2026, 1, 2, 3, 4, 5, 100_000)),
        ("MAP<STRING, INT>", '{"b": 1, "a b": null}', [("b", 1), ("a b", None)]),
        ("ARRAY<STRUCT<x: INT>>", '[{"x": 1}, null, {}]', [{"x": 1}, None, {"x": None}]),
    ],
)
def test_each_type_is_read(kind: str, value: str, expected: object) -> None:
    if expected is None:
        assert "is not a valid decimal(5,2)" in reason(f"v {kind}", f'{{"v": {value}}}')
        return
    assert rows(f"v {kind}", f'{{"v": {value}}}') == [{"v": expected}]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("BOOLEAN", "1", "1 is not a valid boolean"),
        ("TINYINT", "128", "128 is not a valid int8"),
        ("SMALLINT", "-32769", "-32769 is not a valid int16"),
        ("INT", "2147483648", "is not a valid int32"),
        ("DOUBLE", "1e999", "1e999 is not a valid double"),
        ("DOUBLE", "9" * 400, "is not a valid double"),
        ("DOUBLE", '"1.0"', "'1.0' is not a valid double"),
        ("DOUBLE", "true", "true is not a valid double"),
        ("FLOAT", "1e39", "1e39 is not a valid float"),
        ("FLOAT", "1e999", "1e999 is not a valid float"),
        ("DECIMAL(5,2)", "1000", "1000 is not a valid decimal(5,2)"),
        ("DECIMAL(5,2)", "1.234", "1.234 is not a valid decimal(5,2)"),
        ("DECIMAL(5,2)", "1e999999999", "is not a valid decimal"),
        ("DECIMAL(5,2)", "1" + "0" * 2000, "is not a valid decimal"),
        ("DECIMAL(5,2)", '"1 "', "is not a valid decimal"),
        ("DECIMAL(5,2)", '"NaN"', "is not a valid decimal"),
        ("DECIMAL(5,2)", "true", "is not a valid decimal"),
        ("DECIMAL(5,2)", '"\u0661"', "is not a valid decimal"),
        ("STRING", "1", "1 is not a valid string"),
        ("STRING", "1.5", "1.5 is not a valid string"),
        ("BINARY", '"AP8"', "'AP8' is not a valid base64"),
        ("BINARY", '"A P8="', "is not a valid base64"),
        ("BINARY", '"\u00e9"', "is not a valid base64"),
        ("DATE", '"2026-02-30"', "'2026-02-30' is not a valid date"),
        ("DATE", '"20260201"', "is not a valid date"),
        ("DATE", "19000", "19000 is not a valid date"),
        ("TIMESTAMP", '"2026-01-02T03:04:05"', "has no offset from UTC"),
        ("TIMESTAMP", "1767322800", "is not a valid timestamp"),
        ("TIMESTAMP", '"2026-01-02T24:00:00Z"', "is not a valid timestamp"),
        ("TIMESTAMP", '"2026-01-02T23:59:60Z"', "is not a valid timestamp"),
        ("TIMESTAMP", '"2026-01-02T03:04:05+19:00"', "is not a valid timestamp"),
        ("TIMESTAMP", '"2026-01-02T03:04:05+01:60"', "is not a valid timestamp"),
        ("TIMESTAMP", '"2026-01-02"', "is not a valid timestamp"),
        ("TIMESTAMP_NTZ", '"2026-01-02T03:04:05Z"', "has an offset from UTC"),
        ("MAP<STRING, INT>", '{"a b": "x"}', "$.v['a b']: 'x' is not a valid int32"),
        ("MAP<STRING, INT>", '{"\\udfff": 1}', "surrogate"),
        ("MAP<STRING, INT>", "[]", "an array is not a valid object"),
    ],
)
def test_each_type_refuses_what_it_cannot_hold(kind: str, value: str, said: str) -> None:
    found = reason(f"v {kind}", f'{{"v": {value}}}')
    assert found.startswith("$.v")
    assert said in found


def test_nulls_that_the_schema_excludes_are_rejected() -> None:
    for kind, value in (
        ({"type": "array", "elementType": "long", "containsNull": False}, "[1, null]"),
        (
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False},
            '{"k": null}',
        ),
    ):
        schema = json.dumps({"type": "struct", "fields": [{"name": "v", "type": kind}]})
        assert "is null, but NOT NULL in the schema" in reason(schema, f'{{"v": {value}}}')


def test_values_of_confluents_serializer_have_a_schema_id_in_front() -> None:
    decoder = open_decoder(ValueSchemaSpec("json", "id INT", framing="confluent"))
    values = [b'\0\0\0\0\x07{"id": 1}', b'{"id": 1}', b"\0\0"]
    decoded = decode_all(decoder, values)
    assert decoded.columns.to_pylist() == [{"id": 1}]
    assert decoded.reasons.to_pylist() == [
        "$: the magic byte is 123, not 0: no schema id follows it",
        "$: 2 bytes are too few for a schema id",
    ]


def test_no_values_are_no_rows() -> None:
    assert decode(USER).columns.num_rows == 0


# Schemas and matching values: (type in DDL, strategy of pairs (JSON value, value from Arrow)).
Typed = tuple[str, st.SearchStrategy[tuple[Any, Any]]]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
ZONES = st.integers(-18 * 60, 18 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def same(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return values.map(lambda value: (value, value))


def zoned(moment: datetime, zone: timezone) -> tuple[str, datetime]:
    here = moment.replace(tzinfo=zone)
    return here.isoformat(), here.astimezone(UTC)


PRIMITIVES: list[Typed] = [
    ("BOOLEAN", same(st.booleans())),
    ("TINYINT", same(st.integers(-128, 127))),
    ("INT", same(st.integers(-(2**31), 2**31 - 1))),
    ("BIGINT", same(st.integers(-(2**63), MAX))),
    ("FLOAT", same(st.floats(width=32, allow_nan=False, allow_infinity=False))),
    ("DOUBLE", same(st.floats(allow_nan=False, allow_infinity=False))),
    ("STRING", same(TEXT)),
    (
        "DECIMAL(20,3)",
        st.decimals(-(10**16), 10**16, places=3, allow_nan=False).map(lambda d: (str(d), d)),
    ),
    ("DATE", st.dates().map(lambda day: (day.isoformat(), day))),
    ("TIMESTAMP_NTZ", MOMENTS.map(lambda moment: (moment.isoformat(), moment))),
    ("TIMESTAMP", st.builds(zoned, MOMENTS, ZONES)),
]


def nullable(values: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    return st.one_of(st.just((None, None)), values)


def array_of(item: Typed) -> Typed:
    values = st.lists(nullable(item[1]), max_size=3)
    return f"ARRAY<{item[0]}>", values.map(lambda v: ([a for a, _ in v], [b for _, b in v]))


def map_of(item: Typed) -> Typed:
    values = st.dictionaries(TEXT, nullable(item[1]), max_size=3)
    return f"MAP<STRING, {item[0]}>", values.map(
        lambda v: ({k: a for k, (a, _) in v.items()}, [(k, b) for k, (_, b) in v.items()])
    )


def struct_of(fields: dict[str, Typed], form: str = "STRUCT<{}>") -> Typed:
    quoted = {name: name.replace("`", "``") for name in fields}
    ddl = ", ".join(f"`{quoted[name]}` {kind}" for name, (kind, _) in fields.items())
    values = st.fixed_dictionaries({name: nullable(v) for name, (_, v) in fields.items()})
    return form.format(ddl), values.map(
        lambda v: ({k: a for k, (a, _) in v.items()}, {k: b for k, (_, b) in v.items()})
    )


def names_for(typed: st.SearchStrategy[Typed]) -> st.SearchStrategy[dict[str, Typed]]:
    names = st.text(st.sampled_from("abz_09 `'é<"), min_size=1, max_size=4)
    return st.dictionaries(names, typed, min_size=1, max_size=4)


TYPED = st.recursive(
    st.sampled_from(PRIMITIVES),
    lambda inner: st.one_of(
        inner.map(array_of), inner.map(map_of), names_for(inner).map(struct_of)
    ),
    max_leaves=6,
)
SCHEMAS = names_for(TYPED).map(lambda fields: struct_of(fields, "{}"))


@given(st.data())
def test_what_was_encoded_is_decoded_exactly(data: st.DataObject) -> None:
    ddl, values = data.draw(SCHEMAS)
    pairs = data.draw(st.lists(values, max_size=3))
    encoded = [json.dumps(a, ensure_ascii=data.draw(st.booleans())) for a, _ in pairs]
    assert rows(ddl, *encoded) == [expected for _, expected in pairs]


@given(st.data())
def test_damaged_values_are_decoded_or_rejected(data: st.DataObject) -> None:
    ddl, values = data.draw(SCHEMAS)
    encoded = bytearray(json.dumps(data.draw(values)[0]).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded)))
        encoded[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.one_of(
                st.binary(max_size=2), st.sampled_from([b'"', b"{", b"]", b"\\u", b"1e9", b","])
            )
        )
    decode(ddl, bytes(encoded))


@given(st.sampled_from([USER, "v DECIMAL(9,2), d DATE, m MAP<STRING, DOUBLE>"]), st.binary())
def test_any_bytes_are_decoded_or_rejected(schema: str, value: bytes) -> None:
    decode(schema, value)


def test_a_batch_is_split_into_rows_and_a_side_table() -> None:
    values = [b'{"id": 1, "key": "k"}', b"x", None]
    batch = pa.record_batch(
        {
            "key": pa.array([b"a", b"b", b"c"], pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": ["t"] * 3,
            "partition": pa.array([4] * 3, pa.int32()),
            "offset": pa.array([7, 8, 9], pa.int64()),
            "timestamp": pa.array([0, 1, 2], pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array([0] * 3, pa.int32()),
        }
    )
    ((decoded, rejected),) = split(
        batch, open_decoder(ValueSchemaSpec("json", "id INT, key STRING"))
    )
    decoded.validate(full=True)
    rejected.validate(full=True)
    names = ["key", "id", "value_key", *batch.schema.names[2:]]
    assert decoded.schema.names == names
    assert [decoded.column(name)[0].as_py() for name in names[:5]] == [b"a", 1, "k", "t", 4]
    assert decoded.column("offset").to_pylist() == [7]
    assert rejected.schema.names == [
        *("topic", "partition", "offset", "timestamp", "key", "value", "reason")
    ]
    assert rejected.column("offset").to_pylist() == [8, 9]
    assert rejected.column("value").to_pylist() == [b"x", None]
    assert rejected.column("reason").to_pylist() == [
        "$: not JSON: Expecting value at character 1",
        "the value is null (a tombstone)",
    ]
