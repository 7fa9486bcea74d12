"""Columns of records: in both forms of the walk, they hold what `decode_records` gives."""

import random
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.spark import columns
from metaquorum.spark.columns import BatchBuilder, schema
from metaquorum.wire.primitives.errors import KafkaError, WireError
from metaquorum.wire.records import walk_form
from metaquorum.wire.records.record_walk import RecordWalk
from metaquorum.wire.records.records import (
    HEADER_BYTES,
    Codec,
    Record,
    decode_pieces,
    decode_records,
    encode_batch,
    pack_batch,
    parse_header,
)
from tests.examples import examples
from tests.wire.records.sample_batches import NOW, rewritten, sample

COMPILED = walk_form.compiled_walk()
FORMS = [
    pytest.param(RecordWalk, id="interpreted"),
    pytest.param(
        COMPILED,
        id="compiled",
        marks=pytest.mark.skipif(COMPILED is None, reason="the record walk is not compiled here"),
    ),
]
FOREVER = 1 << 62
NAMES = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[Any, ...]


@contextmanager
def in_form(form: type[RecordWalk]) -> Iterator[None]:
    before = walk_form.walk_class
    walk_form.walk_class = form
    try:
        yield
    finally:
        walk_form.walk_class = before


def forms() -> list[type[RecordWalk]]:
    return [RecordWalk] if COMPILED is None else [RecordWalk, COMPILED]


class Built(NamedTuple):
    batches: list[pa.RecordBatch]
    runs: list[list[tuple[int, int]]]  # runs of each added batch
    facts: tuple[Any, ...]
    error: str


def build(
    batches: Sequence[bytes],
    start: int = 0,
    end: int = FOREVER,
    names: Sequence[str] | None = None,
    take_every: int = 1 << 60,
) -> Built:
    """Return the rows of a builder for these batches, taken after `take_every` steps."""
    builder = BatchBuilder(schema(True, names), "letters", 7)
    made, runs, error, steps = [], [], "", 0
    try:
        for batch in batches:
            for _ in builder.add(batch, 0, parse_header(batch), start, end):
                steps += 1
                if steps % take_every == 0 and builder.rows:
                    made.append(builder.take())
            runs.append(list(builder.missing_runs()))
    except (WireError, KafkaError) as problem:
        error = str(problem)
    rows = builder.rows
    made.append(builder.take())
    assert made[-1].num_rows == rows
    assert (builder.rows, builder.data_bytes) == (0, 0)
    for one in made:
        one.validate(full=True)
    facts = (
        builder.records, builder.bytes, builder.first_offset, builder.last_offset,
        builder.min_timestamp_ms, builder.max_timestamp_ms,
    )  # fmt: skip
    return Built(made, runs, facts, error)


def build_in_all_forms(batches: Sequence[bytes], *args: Any, **options: Any) -> Built:
    """Assert that the batches are equal, including bytes outside the columns' bounds."""
    with in_form(RecordWalk):
        interpreted = build(batches, *args, **options)
    if COMPILED is not None:
        with in_form(COMPILED):
            compiled = build(batches, *args, **options)
        assert compiled.batches == interpreted.batches
        assert compiled[1:] == interpreted[1:]
    return interpreted


def rows_of(built: Built) -> list[Row]:
    return [tuple(row.values()) for batch in built.batches for row in batch.to_pylist()]


def expected_rows(batch: bytes, start: int = 0, end: int = FOREVER) -> list[Row]:
    header = parse_header(batch)
    return [
        row_of(record, header.timestamp_type.value)
        for record in decode_records(batch)
        if start <= record.offset < end
    ]


def row_of(record: Record, timestamp_type: int) -> Row:
    headers = [
        {"key": key.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
        for key, value in record.headers
    ]
    timestamp = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=record.timestamp_ms)
    return (
        record.key, record.value, "letters", 7, record.offset, timestamp, timestamp_type,
        headers or None,
    )  # fmt: skip


def facts_of(rows: Sequence[Row], times: Sequence[int]) -> tuple[Any, ...]:
    size = sum(len(row[0] or b"") + len(row[1] or b"") for row in rows)
    if not rows:
        return 0, 0, None, None, None, None
    return len(rows), size, rows[0][4], rows[-1][4], min(times), max(times)


def missing(batch: bytes, start: int, end: int) -> list[tuple[int, int]]:
    header = parse_header(batch)
    there = {record.offset for record in decode_records(batch)}
    wanted = range(max(start, header.base_offset), min(end, header.next_offset))
    absent = [offset for offset in wanted if offset not in there]
    cuts = [0, *[n + 1 for n, (a, b) in enumerate(pairwise(absent)) if b > a + 1], len(absent)]
    return [(absent[a], absent[b - 1] + 1) for a, b in pairwise(cuts) if a < b]


# Records of all kinds

_bytes = st.none() | st.binary(max_size=80) | st.integers(0, 300).map(lambda n: b"v" * n)
_header_keys = st.text(max_size=5) | st.binary(max_size=5).map(
    lambda key: key.decode("utf-8", "surrogateescape")
)
_headers = st.just(()) | st.lists(st.tuples(_header_keys, _bytes), max_size=4).map(tuple)
_times = st.integers(0, 5) | st.sampled_from([-1, 0, NOW, NOW + 10**8]) | st.integers(0, 10**13)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Draw a batch: dense or compacted, with records that are similar or all different."""
    count = draw(st.integers(1, 8))
    step = draw(st.sampled_from([1, 1, 3]))
    offset = base = draw(st.sampled_from([0, 1, 1000, 1 << 40]))
    alike = draw(st.sampled_from([0, 0, 0, 1, 30, 130]))
    records: list[Record] = []
    for _ in range(count):
        offset += draw(st.integers(0, step - 1))
        record = Record(offset, draw(_times), draw(_bytes), draw(_bytes), draw(_headers))
        records.append(record)
        offset += 1
        for number in range(alike):
            later = record.timestamp_ms + number // 7
            records.append(Record(offset, later, record.key, record.value, record.headers))
            offset += 1
    return bytes(
        encode_batch(
            records,
            codec=draw(st.sampled_from(list(Codec))),
            base_offset=base,
            last_offset=records[-1].offset + draw(st.integers(0, step - 1)),
            log_append_time_ms=draw(st.none() | st.just(NOW)),
        )
    )


@given(batch=batches(), data=st.data())
@examples(60)
def test_the_rows_are_what_decode_records_gives(batch: bytes, data: st.DataObject) -> None:
    header = parse_header(batch)
    edges = st.integers(header.base_offset - 1, header.next_offset + 1)
    start = data.draw(st.just(0) | edges)
    end = data.draw(st.just(FOREVER) | edges)
    built = build_in_all_forms([batch], start, end)
    expected = expected_rows(batch, start, end)
    assert rows_of(built) == expected
    times = [
        record.timestamp_ms for record in decode_records(batch) if start <= record.offset < end
    ]
    assert (built.error, built.facts) == ("", facts_of(expected, times))
    assert built.runs == [missing(batch, start, end)]
    assert built.batches[0].schema == schema(True, None)


@given(some=st.lists(batches(), min_size=1, max_size=4), take_every=st.integers(1, 3))
@examples(20)
def test_batches_are_added_before_and_behind_a_take(some: list[bytes], take_every: int) -> None:
    """The rows are in the order of the adds, without duplicates, whenever they are taken."""
    expected = [row for batch in some for row in expected_rows(batch)]
    assert rows_of(build_in_all_forms(some)) == expected
    assert rows_of(build_in_all_forms(some, take_every=take_every)) == expected


@pytest.mark.parametrize("names", [["value"], ["headers", "key"], [], ["offset", "topic"], NAMES])
def test_the_columns_are_those_that_were_chosen(names: list[str]) -> None:
    batch = bytes(sample(100))
    built = build_in_all_forms([batch], names=names)
    kept = [place for place, name in enumerate(NAMES) if name in names]
    assert built.batches[0].schema.names == [NAMES[place] for place in kept]
    assert built.batches[0].num_rows == 100
    if names:
        assert rows_of(built) == [tuple(row[at] for at in kept) for row in expected_rows(batch)]
    assert built.facts == build([batch]).facts


def _random_batch(dice: random.Random, count: int, codec: Codec) -> bytes:
    """Return a batch so large that columns grow and pieces end inside records."""
    sizes = dice.choice([(0, 0), (100, 100), (50, 150), (-1, 30), (900, 1100), (8100, 8300)])
    keys = dice.choice([(-1, -1), (8, 8), (0, 0), (-1, 20)])

    def some(limits: tuple[int, int]) -> bytes | None:
        size = dice.randint(*limits)
        return None if size < 0 else dice.randbytes(size)

    has_headers = dice.random() < 0.3
    headers: list[Headers] = [(), (("a", b"1"),), (("trace", None), ("", b""))]
    records = [
        Record(
            5 + i, NOW + i // 3, some(keys), some(sizes),
            dice.choice(headers) if has_headers else (),
        )
        for i in range(count)
    ]  # fmt: skip
    return bytes(encode_batch(records, codec=codec))


@pytest.mark.parametrize("codec", list(Codec))
def test_columns_grow_and_pieces_cut_records(codec: Codec) -> None:
    dice = random.Random(codec)
    for count in (300, 4096, 4097, 9000):
        batch = _random_batch(dice, count, codec)
        built = build_in_all_forms([batch, batch], take_every=dice.choice([1, 2, 1 << 60]))
        assert rows_of(built) == 2 * expected_rows(batch)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_record_of_megabytes_lies_between_small_ones(codec: Codec) -> None:
    sizes = [10] * 5000 + [3 << 20] + [10] * 5000
    records = [Record(i, NOW, None, b"x" * size) for i, size in enumerate(sizes)]
    batch = bytes(encode_batch(records, codec=codec))
    [value] = build_in_all_forms([batch], names=["value"]).batches
    assert [len(one) for one in value["value"].to_pylist()] == sizes


def test_a_batch_without_records_is_missing_as_a_whole() -> None:
    batch = bytes(encode_batch([], base_offset=10, last_offset=19))
    assert build_in_all_forms([batch]).runs == [[(10, 20)]]
    assert build_in_all_forms([batch], 12, 15).runs == [[(12, 15)]]
    assert build_in_all_forms([batch], 20, 25).runs == [[]]


def test_a_buffer_may_be_of_any_kind_and_hold_other_batches() -> None:
    one, other = bytes(sample(5)), bytes(sample(3, codec=Codec.ZSTD))
    for kind in (bytes, bytearray, memoryview):
        for form in forms():
            with in_form(form):
                builder = BatchBuilder(schema(True, None), "letters", 7)
                buffer = kind(one + other)
                for _ in builder.add(buffer, len(one), parse_header(other), 0, FOREVER):
                    pass
                taken = builder.take()
                assert [tuple(row.values()) for row in taken.to_pylist()] == expected_rows(other)


# Timestamps

_MOST_MS = ((1 << 63) - 1) // 1000


def _microseconds(built: Built) -> list[int | None]:
    return [
        time for batch in built.batches for time in batch["timestamp"].cast(pa.int64()).to_pylist()
    ]


def test_the_largest_timestamps_of_64_bits_of_microseconds_are_kept() -> None:
    times = [0, -1, _MOST_MS, -_MOST_MS]
    batch = bytes(encode_batch([Record(i, time, None, b"") for i, time in enumerate(times)]))
    built = build_in_all_forms([batch])
    assert _microseconds(built) == [1000 * time for time in times]
    assert built.facts[4:] == (-_MOST_MS, _MOST_MS)


@pytest.mark.parametrize("time", [_MOST_MS + 1, -_MOST_MS - 1, (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("at", [0, 1, 70, 199])
def test_a_timestamp_out_of_range_is_null_in_its_row_alone(time: int, at: int) -> None:
    """Any producer can send one: a broker's default limits are 292 million years in the past."""
    times = [time if i == at else time // 2000 + i for i in range(200)]
    batch = bytes(encode_batch([Record(i, t, None, b"v%d" % i) for i, t in enumerate(times)]))
    built = build_in_all_forms([bytes(sample(2)), batch])
    assert built.error == ""
    assert built.facts[0] == 202
    assert built.batches[0]["value"].to_pylist()[2:] == [b"v%d" % i for i in range(200)]
    sound = [1000 * t for t in times]
    assert _microseconds(built)[2:] == [*sound[:at], None, *sound[at + 1 :]]
    others = [*times[:at], *times[at + 1 :], NOW, NOW + 1]
    assert built.facts[4:] == (min(others), max(others))


def test_nulls_of_timestamps_are_those_of_the_batch_that_is_taken() -> None:
    offsets_times = [(0, 0), (3, 1), (5, _MOST_MS + 1), (9, 2)]
    batch = bytes(encode_batch([Record(o, t, None, b"v") for o, t in offsets_times]))
    built = build_in_all_forms([batch, bytes(sample(2)), batch], take_every=1)
    times = [one["timestamp"].cast(pa.int64()).to_pylist() for one in built.batches]
    assert times[0] == times[2] == [0, 1000, None, 2000]
    assert None not in times[1]
    assert built.runs[0] == [(1, 3), (4, 5), (6, 9)]


def test_a_timestamp_out_of_range_outside_the_range_of_offsets_does_no_harm() -> None:
    times = [0, _MOST_MS + 1, 1, 2]
    batch = bytes(encode_batch([Record(i, t, None, b"v") for i, t in enumerate(times)]))
    assert build_in_all_forms([batch], 2).batches[0]["offset"].to_pylist() == [2, 3]
    assert build_in_all_forms([batch], 0, 1).batches[0]["offset"].to_pylist() == [0]


@pytest.mark.parametrize("delta", [(1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("names", [None, ["value"]])
def test_a_timestamp_beyond_64_bits_is_null(delta: int, names: list[str] | None) -> None:
    batch = encode_batch([Record(0, 0, None, b""), Record(1, delta, None, b"")])
    base = _MOST_MS if delta > 0 else -_MOST_MS
    built = build_in_all_forms([bytes(rewritten(batch, base_timestamp=base))], names=names)
    assert built.error == ""
    assert built.facts == (2, 0, 0, 1, base, base)
    assert names or _microseconds(built) == [1000 * base, None]


def test_the_time_of_an_append_stands_for_those_of_the_records() -> None:
    records = [Record(i, (1 << 62) * (i % 2), None, b"") for i in range(9)]
    batch = bytes(encode_batch(records, log_append_time_ms=NOW))
    built = build_in_all_forms([batch, bytes(sample(2))])
    assert _microseconds(built) == [1000 * NOW] * 9 + [1000 * NOW, 1000 * (NOW + 1)]
    assert built.batches[0]["timestampType"].to_pylist() == [1] * 9 + [0, 0]
    late = bytes(encode_batch(records, log_append_time_ms=_MOST_MS + 1))
    assert build_in_all_forms([late]).facts == (9, 0, 0, 8, None, None)
    assert _microseconds(build_in_all_forms([late])) == [None] * 9


@pytest.mark.parametrize("end", [(1 << 63) - 1, 1 << 63, 1 << 70])
def test_offsets_beyond_64_bits_are_outside_of_every_range(end: int) -> None:
    base = (1 << 63) - 3
    batch = rewritten(sample(200), base_offset=base)
    built = build_in_all_forms([bytes(batch)], 0, end)
    assert built.batches[0]["offset"].to_pylist() == list(range(base, min(end, 1 << 63)))
    assert built.error == ""


# Damage


def _decodable(batch: bytes) -> tuple[list[Record], bool]:
    """Return the records before the first malformed one, and whether all are well-formed.

    Read one by one from ever shorter claims, as `decode_pieces` gives no part of a piece.
    """
    try:
        return [record for piece in decode_pieces(batch) for record in piece], True
    except (WireError, KafkaError):
        return [], False


def _mutated(dice: random.Random, batch: bytes) -> bytes:
    """Malformed records with a correct checksum, or a header with false counts."""
    header = parse_header(batch)
    body = bytearray(batch[HEADER_BYTES:])
    for _ in range(dice.choice((1, 1, 2, 4))):
        at = dice.randrange(len(body) + 1)
        match dice.randrange(8):
            case 0 | 1 if at < len(body):
                body[at] ^= 1 << dice.randrange(8)
            case 2 if at < len(body):
                body[at] = dice.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 3:
                body.insert(at, dice.randrange(256))
            case 4:
                del body[at : at + dice.choice((1, 7, 200))]
            case 5:
                del body[at:]
            case 6:
                body += dice.randbytes(dice.choice((1, 7, 100)))
            case _:
                name = dice.choice(
                    ("record_count", "last_offset_delta", "attributes", "base_timestamp")
                )
                header = header._replace(
                    **{name: dice.choice((-1, 0, 1, 4, 8, 500, 32767, getattr(header, name) + 1))}
                )
    return bytes(pack_batch(header, bytes(body)))


@pytest.mark.slow
@pytest.mark.parametrize("codec", list(Codec))
def test_damaged_batches_are_errors_behind_whole_rows(codec: Codec) -> None:
    dice = random.Random(100 + codec)
    seen: set[bool] = set()
    for _ in range(300):
        before = _random_batch(dice, dice.choice((1, 5)), Codec.NONE)
        whole = _random_batch(dice, dice.choice((1, 3, 70, 200)), codec)
        batch = _mutated(dice, whole)
        built = build_in_all_forms([before, batch])
        rows = rows_of(built)
        first = expected_rows(before)
        assert rows[: len(first)] == first
        assert built.facts[0] == len(rows)
        assert built.facts[3] == rows[-1][4]
        offsets = [row[4] for row in rows[len(first) :]]
        assert offsets == sorted(set(offsets))
        records, is_sound = _decodable(batch)
        if not built.error:
            assert is_sound
            assert offsets == [record.offset for record in records]
        else:
            assert not is_sound
        seen.add(is_sound)
    assert seen == {True, False}


@pytest.mark.parametrize("count", [5, 64, 130, 5000])
def test_the_records_before_the_first_unsound_one_are_there(count: int) -> None:
    records = [Record(i, NOW, b"key", b"v" * 30) for i in range(count)]
    data = bytearray(encode_batch(records)[HEADER_BYTES:])
    plain = encode_batch(records)
    for broken in (0, 1, count // 2, count - 1):
        size = len(encode_batch(records[:broken])[HEADER_BYTES:]) if broken else 0
        bad = bytearray(data)
        bad[size] = 1  # the varint of -1 in place of its length
        batch = bytes(pack_batch(parse_header(plain), bytes(bad)))
        built = build_in_all_forms([batch])
        assert built.error.startswith(f"record {broken}: a length of -1 bytes")
        assert [row[4] for row in rows_of(built)] == list(range(broken))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY])
def test_a_claim_of_many_records_takes_no_memory(form: type[RecordWalk], codec: Codec) -> None:
    most = (1 << 31) - 1
    batch = bytes(rewritten(sample(3, codec=codec), record_count=most, last_offset_delta=most - 1))
    with in_form(form):
        builder = BatchBuilder(schema(True, None), "letters", 7)
        tracemalloc.start()
        try:
            with pytest.raises(WireError):
                for _ in builder.add(batch, 0, parse_header(batch), 0, FOREVER):
                    pass
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
        assert builder.take().num_rows == (0 if codec is Codec.NONE else 3)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_what_decompresses_to_much_is_held_a_piece_at_a_time(
    form: type[RecordWalk], codec: Codec
) -> None:
    records = [Record(i, NOW, None, bytes(100_000)) for i in range(600)]
    batch = bytes(encode_batch(records, codec=codec))
    assert len(batch) < 1 << 20
    with in_form(form):
        builder = BatchBuilder(schema(True, None), "letters", 7)
        rows = 0
        tracemalloc.start()
        try:
            for _ in builder.add(batch, 0, parse_header(batch), 0, FOREVER):
                if builder.data_bytes > 1 << 20:
                    rows += builder.take().num_rows
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()
        assert rows + builder.take().num_rows == 600


@pytest.mark.parametrize("form", FORMS)
def test_more_bytes_than_the_offsets_of_a_column_reach_are_refused_before_a_row_is_added(
    form: type[RecordWalk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MAX_HELD_BYTES", 3000)
    batch = bytes(sample(100))
    with in_form(form):
        builder = BatchBuilder(schema(True, None), "letters", 7)
        for _ in builder.add(batch, 0, parse_header(batch), 0, FOREVER):
            pass
        held = builder.rows, builder.data_bytes
        with pytest.raises(WireError, match="bytes held"):
            list(builder.add(batch, 0, parse_header(batch), 0, FOREVER))
        assert (builder.rows, builder.data_bytes) == held
        assert builder.take().num_rows == 100
        list(builder.add(batch, 0, parse_header(batch), 0, FOREVER))
        taken = builder.take()
        taken.validate(full=True)
        assert taken.num_rows == 100


@pytest.mark.parametrize("form", FORMS)
def test_headers_without_a_byte_are_held_bytes(form: type[RecordWalk]) -> None:
    """A record with many headers decompresses to gigabytes: the caller sees the size grow."""
    headers = (("", None),) * 1000
    records = [Record(i, NOW, None, None, headers) for i in range(50)]
    batch = bytes(encode_batch(records, codec=Codec.ZSTD))
    with in_form(form):
        builder = BatchBuilder(schema(True, None), "letters", 7)
        list(builder.add(batch, 0, parse_header(batch), 0, FOREVER))
        assert builder.data_bytes >= 8 * 1000 * 50
        assert builder.take().num_rows == 50
        assert builder.data_bytes == 0
