import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.spark.value_schemas import SchemaError
from metaquorum.spark.value_schemas.spark_types import (
    MAX_FIELDS,
    MAX_SCHEMA_CHARACTERS,
    arrow_schema,
)

UTC = pa.timestamp("us", tz="UTC")


def array(kind: pa.DataType, nullable: bool = True) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=nullable))


def test_ddl_becomes_columns() -> None:
    text = """
        id BIGINT NOT NULL COMMENT 'who, it''s', `odd ``name` string, at: Timestamp,
        price decimal(10, 2), tags ARRAY<STRING>, m MAP<STRING, ARRAY<INT>>,
        user STRUCT<id: INT NOT NULL, born: DATE, at TIMESTAMP_NTZ>
    """.replace("it''s", "its")
    assert arrow_schema(text) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("odd `name", pa.string()),
            ("at", UTC),
            ("price", pa.decimal128(10, 2)),
            ("tags", array(pa.string())),
            ("m", pa.map_(pa.string(), array(pa.int32()))),
            (
                "user",
                pa.struct(
                    [
                        pa.field("id", pa.int32(), nullable=False),
                        ("born", pa.date32()),
                        ("at", pa.timestamp("us")),
                    ]
                ),
            ),
        ]
    )


def test_a_struct_as_a_whole_is_its_fields() -> None:
    assert arrow_schema("STRUCT<a: INT, b: FLOAT>") == arrow_schema("a INT, b REAL")


def test_the_json_of_a_struct_type_becomes_columns() -> None:
    fields = [
        {"name": "id", "type": "long", "nullable": False, "metadata": {"comment": "c"}},
        {"name": "price", "type": "decimal(10,2)", "nullable": True, "metadata": {}},
        {"name": "at", "type": "timestamp_ntz", "nullable": True, "metadata": {}},
        {
            "name": "tags",
            "type": {"type": "array", "elementType": "string", "containsNull": False},
            "nullable": True,
        },
        {
            "name": "m",
            "type": {
                "type": "map",
                "keyType": "string",
                "valueType": {"type": "struct", "fields": [{"name": "x", "type": "byte"}]},
                "valueContainsNull": False,
            },
        },
    ]
    entry = pa.field("value", pa.struct([("x", pa.int8())]), nullable=False)
    assert arrow_schema(json.dumps({"type": "struct", "fields": fields})) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("price", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us")),
            ("tags", array(pa.string(), nullable=False)),
            ("m", pa.map_(pa.string(), entry)),
        ]
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has the end at character 1 where the name of a field is expected"),
        ("id", "has the end at character 3 where a type is expected"),
        ("id BIGINT,", "has the end at character 11"),
        ("id BIGINT name STRING", "has 'name' at character 11 where the end is expected"),
        ("id VARCHAR(10)", "has the type 'varchar'; the supported types are BOOLEAN"),
        ("id INTERVAL", "has the type 'interval'"),
        ("id ARRAY<INT", "has the end at character 13 where '>' is expected"),
        ("m MAP<INT, INT>", "the keys of a MAP must be STRING"),
        ("a INT, a INT", "has the field 'a' twice"),
        ("a INT, A INT", "'a' and 'A', which Spark does not distinguish"),
        ("x STRUCT<a: INT, a: INT>", "has the field 'a' twice"),
        ("d DECIMAL(39, 2)", "DECIMAL(39,2): the precision must be 1 to 38"),
        ("d DECIMAL(3, 4)", "the scale at most the precision"),
        ("d DECIMAL(x)", "has 'x' at character 11 where a number is expected"),
        ("a; INT", "has ';' at character 2"),
        ("a INT NOT", "where 'null' is expected"),
        ("a INT COMMENT b", "where the text of a comment is expected"),
        ("a " + "ARRAY<" * 40 + "INT" + ">" * 40, "nested more than 32 deep"),
        ("a " * (MAX_SCHEMA_CHARACTERS // 2 + 1), "more than 1048576 characters"),
        (", ".join(f"a{i} INT" for i in range(MAX_FIELDS + 1)), "more than 10000 fields"),
        ("{", "begins like JSON but is not JSON"),
        ('{"properties": {}}', "is JSON but not a struct of Spark"),
        ('{"type": "struct", "fields": []}', "has no fields"),
        ('{"type": "struct", "fields": [{"name": "a"}]}', "a field without a name or a type"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "x"}]}', "has the type 'x'"),
        ('{"type": "struct", "fields": [{"name": "a", "type": {}}]}', "has the type 'None'"),
        (
            '{"type": "struct", "fields": [{"name": "a", "type": "int", "nullable": 1}]}',
            "nullable=1",
        ),
        ('{"a": ' + "[" * 100_000, "begins like JSON but is not JSON"),
    ],
)
def test_what_is_no_schema_is_refused_with_a_sentence(text: str, said: str) -> None:
    with pytest.raises(SchemaError) as raised:
        arrow_schema(text)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 400


WORDS = [" ", "a", "b", "INT", "ARRAY", "MAP", "STRUCT", "DECIMAL", "STRING", "NOT", "NULL"]
MARKS = ["(", ")", "<", ">", ",", ":", "{", "1", "COMMENT", "'x'", "`q`", '"type"']
TOKENS = st.sampled_from([*WORDS, *MARKS])


@given(st.one_of(st.text(), st.lists(TOKENS).map(" ".join), st.lists(TOKENS).map("".join)))
def test_any_text_is_a_schema_or_is_refused(text: str) -> None:
    try:
        assert len(arrow_schema(text)) > 0
    except SchemaError:
        pass
