import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.records.batches import HEADER_BYTES, parse_header
from metaquorum.wire.records.records import (
    Record,
    decode_records,
    encode_batch,
    pack_batch,
    record_spans,
    with_timestamp_delta,
)

_bytes = st.none() | st.binary(max_size=200)
_headers = st.lists(st.tuples(st.text(max_size=5), _bytes), max_size=2).map(tuple)
_rest = st.lists(st.tuples(st.integers(0, 1 << 41), _bytes, _bytes, _headers), min_size=1)


def _batch(rest: list[tuple]) -> bytearray:  # type: ignore[type-arg]
    return encode_batch([Record(5 + i, *each) for i, each in enumerate(rest)])


@given(_rest, st.integers(-(1 << 41), 1 << 41))
def test_a_record_can_be_given_another_timestamp_delta(rest: list[tuple], shift: int) -> None:  # type: ignore[type-arg]
    batch = _batch(rest)
    header = parse_header(batch)
    body = b"".join(
        with_timestamp_delta(data, span, span[4] + shift)
        for data, spans in record_spans(batch, 0, header)
        for span in spans
    )
    moved = pack_batch(header._replace(base_timestamp=header.base_timestamp - shift), body)
    assert decode_records(moved) == decode_records(batch)


@given(_rest, st.data())
def test_damaged_records_are_a_wire_error_or_nothing(
    rest: list[tuple], draw: st.DataObject
) -> None:  # type: ignore[type-arg]
    batch = _batch(rest)
    at = draw.draw(st.integers(HEADER_BYTES, len(batch) - 1))
    batch[at] ^= draw.draw(st.integers(1, 255))
    try:
        decode_records(batch)
    except WireError:
        pass


@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_count_that_lies_is_a_wire_error(count: int) -> None:
    batch = encode_batch([Record(0, 0, b"k", b"v"), Record(1, 0, b"k", b"v")])
    header = parse_header(batch)._replace(record_count=count, last_offset_delta=100)
    with pytest.raises(WireError):
        list(record_spans(batch, 0, header))
