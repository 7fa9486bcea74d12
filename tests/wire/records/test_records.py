"""Records: round trips, detection of malformed records, lookups by timestamp."""

import random
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.wire.primitives.errors import KafkaError, WireError
from metaquorum.wire.primitives.varint import read_varint, read_varlong, write_varint
from metaquorum.wire.records.batches import CONTROL, HEADER_BYTES, PREFIX_BYTES, TRANSACTIONAL
from metaquorum.wire.records.compression import PIECE_BYTES, compress
from metaquorum.wire.records.records import (
    BatchState,
    Codec,
    ControlType,
    EndTransactionMarker,
    Record,
    TimestampType,
    assign,
    batches,
    check_records,
    decode_marker,
    decode_records,
    encode_batch,
    encode_marker,
    encode_pairs,
    find_max_timestamp,
    find_timestamp,
    new_walk,
    pack_batch,
    parse_header,
    produced_batch,
    record_spans,
    scan,
)
from tests.examples import examples
from tests.wire.records.sample_batches import NOW, rewritten, sample

quick = examples(150)

data = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), data), max_size=3).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, min_size: int = 1) -> list[Record]:
    """Generate records with increasing offsets (with gaps, as after compaction), any timestamps."""
    size = draw(st.integers(min_size, 12))
    offset = draw(st.integers(0, 1 << 60))
    records = []
    for _ in range(size):
        timestamp = draw(st.integers(-1, 1 << 53))
        records.append(Record(offset, timestamp, draw(data), draw(data), draw(headers)))
        offset += draw(st.integers(1, 300))
    return records


# Varints


@given(st.integers(-(1 << 63), (1 << 63) - 1))
@quick
def test_a_varint_is_read_as_it_was_written(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    assert read_varlong(bytes(out), 0) == (value, len(out))
    if -(1 << 31) <= value < 1 << 31:
        assert read_varint(bytes(out), 0) == (value, len(out))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (300, "d804"),
     (-(1 << 31), "ffffffff0f"), ((1 << 31) - 1, "feffffff0f")],
)  # fmt: skip
def test_varints_are_zigzag_and_little_endian(value: int, encoded: str) -> None:
    out = bytearray()
    write_varint(out, value)
    assert out.hex() == encoded
    assert read_varint(bytes(out), 0) == (value, len(out))


def test_varints_that_are_too_long_or_too_large_are_wire_errors() -> None:
    with pytest.raises(WireError, match="longer than 5 bytes"):
        read_varint(b"\x80" * 5 + b"\0", 0)
    with pytest.raises(WireError, match="exceeds 32 bits"):
        read_varint(b"\xff" * 4 + b"\x10", 0)
    with pytest.raises(WireError, match="longer than 10 bytes"):
        read_varlong(b"\x80" * 10 + b"\0", 0)
    with pytest.raises(WireError, match="exceeds 64 bits"):
        read_varlong(b"\xff" * 9 + b"\x02", 0)


# Round trips


@given(record_lists(), st.sampled_from(Codec))
@quick
def test_records_come_back_from_a_batch(records: list[Record], codec: Codec) -> None:
    batch = encode_batch(records, codec=codec)
    header = parse_header(batch)
    assert decode_records(batch) == records
    assert header.batch_bytes == len(batch)
    assert header.codec is codec
    assert header.record_count == len(records)
    assert header.max_timestamp == max(record.timestamp_ms for record in records)
    assert (header.base_offset, header.last_offset) == (records[0].offset, records[-1].offset)
    assert scan(batch) == (BatchState.WHOLE, header, "")


@given(st.lists(st.tuples(data, data), min_size=1, max_size=300), st.integers(-1, 1 << 53))
@quick
def test_pairs_are_encoded_as_records_are(
    pairs: list[tuple[bytes | None, bytes | None]], timestamp_ms: int
) -> None:
    records = [Record(offset, timestamp_ms, *pair) for offset, pair in enumerate(pairs)]
    assert encode_pairs(pairs, timestamp_ms) == encode_batch(records)


@given(
    record_lists(min_size=0),
    st.integers(-1, 1 << 30),
    st.integers(-1, 1 << 60),
    st.integers(-1, 32767),
    st.integers(-1, (1 << 31) - 1),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 1 << 53),
    st.none() | st.integers(0, 1 << 53),
)
@quick
def test_every_attribute_comes_back(
    records: list[Record],
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool,
    control: bool,
    append_time: int | None,
    horizon: int | None,
) -> None:
    base_offset = records[0].offset - 1 if records else 7
    last_offset = records[-1].offset + 5 if records else 9
    batch = encode_batch(
        records,
        base_offset=base_offset,
        last_offset=last_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        log_append_time_ms=append_time,
        delete_horizon_ms=horizon,
    )
    header = parse_header(batch)
    assert header.leader_epoch == leader_epoch
    assert (header.base_offset, header.last_offset) == (base_offset, last_offset)
    assert header.next_offset == last_offset + 1
    assert (header.producer_id, header.producer_epoch) == (producer_id, producer_epoch)
    assert header.base_sequence == base_sequence
    assert (header.is_transactional, header.is_control) == (transactional, control)
    assert header.delete_horizon_ms == horizon
    stamped = append_time is not None
    assert (header.timestamp_type is TimestampType.LOG_APPEND_TIME) == stamped
    expected = (
        [replace(record, timestamp_ms=append_time) for record in records] if stamped else records
    )
    assert decode_records(batch) == expected


def test_sequences_wrap_behind_the_largest() -> None:
    batch = sample(3, producer_id=1, producer_epoch=0, base_sequence=(1 << 31) - 2)
    assert parse_header(batch).last_sequence == 0
    assert parse_header(sample()).last_sequence == -1


def test_header_keys_that_are_not_utf8_survive() -> None:
    batch = encode_batch([Record(0, NOW, None, None, (("k\udcff", b"v"),))])
    assert b"k\xff" in batch
    (record,) = decode_records(batch)
    assert encode_batch([record]) == batch


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_batches_are_found_one_after_the_other_and_a_part_is_left_out(kind: type) -> None:
    first, second = sample(2), sample(1)
    assign(second, 0, 2, len(second) - PREFIX_BYTES, 0)
    whole = [(0, parse_header(first)), (len(first), parse_header(second))]
    assert list(batches(kind(first + second))) == whole
    for cut in range(1, len(second)):
        assert list(batches(kind(first + second[:-cut]))) == whole[:1]
    assert decode_records(kind(first + second), len(first))[0].offset == 2


# Malformed records


def packed(records: bytes, count: int = 1, last: int = 0) -> bytearray:
    header = parse_header(sample(1))._replace(record_count=count, last_offset_delta=last)
    return pack_batch(header, records)


# length 7, attributes, timestamp, offset, key null, value 1 byte, no headers
PLAIN = bytes([14, 0, 0, 0, 1, 2, 65, 0])


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        pytest.param(packed(PLAIN, 2), "record_count 2 for 8 bytes", id="more_than_fit"),
        pytest.param(packed(PLAIN, -1), "record_count -1", id="negative"),
        pytest.param(packed(PLAIN * 2), "8 bytes after the last of 1", id="fewer"),
        pytest.param(packed(PLAIN * 2, 2), "record 1: offset delta 0 after 0", id="offset_twice"),
        pytest.param(packed(bytes([14, 0, 0, 2, 1, 2, 65, 0])), "exceeds 0", id="offset_beyond"),
        pytest.param(packed(bytes([16]) + PLAIN[1:]), "ends inside", id="length"),
        pytest.param(packed(bytes([12]) + PLAIN[1:]), "value of 1 bytes", id="short_length"),
        pytest.param(packed(bytes([1]) + PLAIN[1:]), "a length of -1", id="length_-1"),
        pytest.param(packed(bytes([14, 0, 0, 0, 40, 2, 65, 0])), "a key of 20", id="key"),
        pytest.param(packed(bytes([14, 0, 0, 0, 1, 40, 65, 0])), "a value of 20", id="value"),
        pytest.param(packed(bytes([14, 0, 0, 0, 1, 2, 65, 1])), "-1 headers", id="headers_-1"),
        pytest.param(packed(bytes([14, 0, 0, 0, 1, 2, 65, 8])), "4 headers, but 0", id="headers"),
        pytest.param(
            packed(bytes([18, 0, 0, 0, 1, 1, 2, 8, 65, 1])), "header key of 4", id="header_key"
        ),
        pytest.param(
            packed(bytes([18, 0, 0, 0, 1, 1, 2, 2, 65, 8])), "header value of 4", id="header_value"
        ),
        pytest.param(packed(b"\x80" * 10), "longer than 5 bytes", id="overlong"),
    ],
)
def test_records_that_lie_are_named(batch: bytearray, words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode_records(batch)


def test_records_in_an_unknown_codec_or_beyond_the_bound_are_wire_errors() -> None:
    with pytest.raises(WireError, match="codec 6"):
        decode_records(rewritten(sample(), attributes=6))
    with pytest.raises(WireError, match="truncated"):
        decode_records(sample()[:-1])
    for codec in Codec:
        with pytest.raises(WireError, match="more than 50 bytes"):
            decode_records(sample(9, codec=codec), 0, 50)


@pytest.mark.slow
@given(record_lists(), st.sampled_from(Codec), st.randoms(use_true_random=False))
@examples(200)
def test_mutated_batches_give_records_or_our_errors(
    records: list[Record], codec: Codec, dice: random.Random
) -> None:
    batch = encode_batch(records, codec=codec)
    for _ in range(10):
        mutated = bytearray(batch)
        for _ in range(dice.randint(1, 4)):
            mutated[dice.randrange(len(mutated))] = dice.randrange(256)
        mutated = mutated[: dice.randint(0, 2 * len(mutated))]
        for read in (
            decode_records,
            find_max_timestamp_at_0,
            scan,
            lambda buffer: produced_batch(buffer, 9),
            lambda buffer: list(batches(buffer)),
            lambda buffer: find_timestamp(buffer, 0, 5),
        ):
            try:
                read(mutated)
            except (WireError, KafkaError):
                pass


def find_max_timestamp_at_0(buffer: bytearray) -> object:
    return find_max_timestamp(buffer, 0)


# Timestamps


@pytest.mark.slow
@given(record_lists(), st.sampled_from(Codec), st.data())
@quick
def test_the_first_record_of_a_time_is_the_one_a_walk_finds(
    records: list[Record], codec: Codec, draw: st.DataObject
) -> None:
    batch = encode_batch(records, codec=codec)
    timestamp = draw.draw(st.sampled_from(records)).timestamp_ms + draw.draw(st.integers(-1, 1))
    start = draw.draw(st.integers(records[0].offset - 1, records[-1].offset + 1))
    for start_offset in (0, start):
        found = [
            (record.offset, record.timestamp_ms)
            for record in records
            if record.timestamp_ms >= timestamp and record.offset >= start_offset
        ]
        expected = found[0] if found else None
        assert find_timestamp(batch, 0, timestamp, start_offset) == expected
    youngest = max(record.timestamp_ms for record in records)
    first = next(record.offset for record in records if record.timestamp_ms == youngest)
    assert find_max_timestamp(batch, 0) == (first, youngest)


def test_under_log_append_time_all_records_have_that_time() -> None:
    batch = sample(3, log_append_time_ms=NOW + 50)
    assert find_timestamp(batch, 0, NOW + 50) == (0, NOW + 50)
    assert find_timestamp(batch, 0, NOW + 50, start_offset=2) == (2, NOW + 50)
    assert find_timestamp(batch, 0, NOW + 51) is None
    assert find_max_timestamp(batch, 0) == (0, NOW + 50)


def test_an_empty_batch_has_no_times() -> None:
    batch = encode_batch([], base_offset=4, last_offset=9)
    assert find_timestamp(batch, 0, -1) is None
    assert find_max_timestamp(batch, 0) is None
    assert decode_records(batch) == []


# Control records


@pytest.mark.parametrize("kind", list(ControlType))
def test_a_marker_comes_back(kind: ControlType) -> None:
    marker = EndTransactionMarker(kind, 12)
    batch = encode_marker(marker, producer_id=9, producer_epoch=3, timestamp_ms=NOW, offset=40)
    header = parse_header(batch)
    assert header.attributes == TRANSACTIONAL | CONTROL
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, -1)
    (record,) = decode_records(batch)
    assert record.offset == 40
    assert decode_marker(record) == marker


def test_unknown_control_records_are_none_and_short_ones_wire_errors() -> None:
    assert decode_marker(Record(0, NOW, struct.pack(">hh", 0, 2), b"leader change")) is None
    newer = Record(0, NOW, struct.pack(">hhq", 1, 1, 0), struct.pack(">hiq", 1, 5, 0))
    assert decode_marker(newer) == EndTransactionMarker(ControlType.COMMIT, 5)
    for key, value in (
        (b"\0\0\0", b""),
        (None, None),
        (bytes(4), b"\0\0\0\0\0"),
        (b"\xff" * 4, b""),
    ):
        with pytest.raises(WireError):
            decode_marker(Record(0, NOW, key, value))


@pytest.mark.parametrize("cut", [1, 3, 5, 6])
@pytest.mark.parametrize("checks", [False, True])
def test_a_claimed_length_at_the_end_of_a_piece_is_refused_before_more_is_held(
    cut: int, checks: bool
) -> None:
    claimed = bytearray()
    write_varint(claimed, (1 << 31) - 1)
    record = bytes(claimed) + bytes(100)
    # Each frame becomes a piece; the last one is damaged, so an error means that it was
    # decompressed.
    frames = [compress(Codec.ZSTD, part) for part in (record[:cut], record[cut:], bytes(1000))]
    batch = encode_batch([Record(0, 0, b"k", b"v")], codec=Codec.ZSTD)
    header = parse_header(batch)
    batch = pack_batch(header, b"".join(frames) + b"damaged")
    header = parse_header(batch)
    steps: Iterator[object] = record_spans(batch, 0, header)
    if checks:
        steps = check_records(batch, 0, header, new_walk(1, 0, True))
    with pytest.raises(WireError, match="record 0: a length of 2147483647 bytes"):
        list(steps)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_each_step_of_a_check_opens_one_piece_of_a_large_record(codec: Codec) -> None:
    records = [Record(0, 0, b"k", b"small"), Record(1, 0, b"k", bytes(20 * PIECE_BYTES))]
    batch = encode_batch(records, codec=codec)
    header = parse_header(batch)
    steps = list(check_records(batch, 0, header, new_walk(2, 1, True)))
    assert max(steps) <= PIECE_BYTES
    assert sum(steps) == len(encode_batch(records)) - HEADER_BYTES
