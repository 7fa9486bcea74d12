"""Fields located by the walk, and columns of them: both forms agree with spans."""

import random
from array import array
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.records import record_columns
from metaquorum.wire.records.batches import HEADER_BYTES
from metaquorum.wire.records.record_columns import KEY, VALUE
from metaquorum.wire.records.record_walk import RECORD_FIELDS, RecordWalk, Span
from metaquorum.wire.records.records import Record, encode_batch
from metaquorum.wire.records.walk_form import compiled_columns
from tests.wire.records.test_record_walk import FORMS, mutated, some_records

COLUMN_FORMS = [
    pytest.param(record_columns, id="interpreted"),
    pytest.param(
        compiled_columns(),
        id="compiled",
        marks=pytest.mark.skipif(compiled_columns() is None, reason="not compiled here"),
    ),
]

Located = tuple[int, int, tuple[int, int], tuple[int, int], tuple[int, int]]


def _place(at: int, length: int) -> tuple[int, int]:
    """Return the position, or 0 for an empty field, whose position is arbitrary."""
    return (at, length) if length > 0 else (0, length)


def located(form: type[RecordWalk], data: bytes, count: int, dense: bool, room: int) -> Any:
    """Return the fields of each record, with `room` records in the array, and the error."""
    walk = form(count, count - 1, dense)
    fields = array("q", bytes(8 * RECORD_FIELDS * room))
    found: list[Located] = []
    at = 0
    while True:
        before = walk.index
        said = ""
        try:
            at = walk.fields(data, at, fields)
        except WireError as error:
            said = str(error)
        assert walk.filled == walk.index - before
        for row in range(walk.filled):
            delta, time, key_at, key, value_at, value, header_at, headers = fields[
                row * RECORD_FIELDS : (row + 1) * RECORD_FIELDS
            ]
            found.append(
                (delta, time, _place(key_at, key), _place(value_at, value),
                 _place(header_at, headers))
            )  # fmt: skip
        if said or walk.filled < room:
            return found, said, at if not said else -1


def spanned(data: bytes, count: int, dense: bool) -> Any:
    """Return the same fields from the walk that collects spans."""
    walk = RecordWalk(count, count - 1, dense)
    spans: list[Span] = []
    said, at = "", -1
    try:
        at = walk.spans(data, spans)
    except WireError as error:
        said = str(error)
    found = [
        (span[3], span[4], _place(span[5], span[6]), _place(span[7], span[8]),
         _place(span[9], span[10]))
        for span in spans
    ]  # fmt: skip
    return found, said, at


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_fields_are_where_spans_are(form: type[RecordWalk]) -> None:
    """The fast paths agree, too, and for damaged records up to the first malformed one."""
    dice = random.Random(40)
    sound = 0
    for _ in range(1000):
        count = dice.choice((1, 2, 5, 64, 65, 130, 300))
        data = some_records(dice, count)
        if dice.random() < 0.6:
            data = mutated(dice, data)
        dense = dice.random() < 0.9
        expected = spanned(data, count, dense)
        room = dice.choice((1, 3, 64, 100, 4096))
        assert located(form, data, count, dense, room) == expected
        sound += not expected[1]
    assert 200 < sound < 900


def _walked(values: list[bytes | None]) -> tuple[bytes, "array[int]"]:
    records = [Record(i, 0, None, value) for i, value in enumerate(values)]
    data = bytes(encode_batch(records))[HEADER_BYTES:]
    fields = array("q", bytes(8 * RECORD_FIELDS * len(values)))
    RecordWalk(len(values), len(values) - 1, True).fields(data, 0, fields)
    return data, fields


@pytest.mark.parametrize("form", COLUMN_FORMS)
@pytest.mark.parametrize(
    "values",
    [
        [None] * 9, [b""] * 17, [b"abc"] * 8, [None, b"", b"x"], [b"x", None],
        [b"y" * 70_000, b"", b"z" * 3], [bytes([i % 256]) * (i % 5) for i in range(5000)],
        [None if i % 3 else b"v" for i in range(5000)],
    ],
)  # fmt: skip
def test_the_buffers_are_those_of_arrow(form: ModuleType, values: list[bytes | None]) -> None:
    data, fields = _walked(values)
    column = form.BinaryColumn(VALUE)
    half = len(values) // 2
    column.append(data, fields, 0, half)
    column.append(data, fields, half, len(values) - half)
    taken = column.take()
    assert (taken.rows, taken.nulls) == (len(values), values.count(None))
    ends = memoryview(taken.offsets).cast("i").tolist()
    held = [bytes(taken.data[a:b]) for a, b in pairwise(ends)]
    assert held == [value or b"" for value in values]
    if taken.nulls:
        bits = int.from_bytes(taken.validity, "little")
        assert [bits >> row & 1 for row in range(len(values))] == [v is not None for v in values]
        assert bits >> len(values) == 0
    else:
        assert taken.validity is None
    assert column.take().rows == 0


@pytest.mark.parametrize("form", COLUMN_FORMS)
@pytest.mark.parametrize("field", [KEY, VALUE])
def test_a_column_does_not_reach_beyond_its_int32_offsets(form: ModuleType, field: int) -> None:
    column = form.BinaryColumn(field)
    with pytest.raises(OverflowError, match="int32"):
        column.reserve(1, 1 << 31)
    assert column.take().rows == 0


@pytest.mark.parametrize(("at", "length"), [(0, 1 << 20), (1 << 20, 1), (-1, 1), (5, 96)])
def test_compiled_columns_copy_nothing_from_outside_the_data(at: int, length: int) -> None:
    """Checks bounds for any positions in `fields`, such as those of a walk over other data."""
    form = compiled_columns()
    if form is None:
        pytest.skip("not compiled here")
    fields = array("q", [0, 0, 0, -1, at, length, 0, 0])
    with pytest.raises(IndexError):
        form.BinaryColumn(VALUE).append(bytes(100), fields, 0, 1)
