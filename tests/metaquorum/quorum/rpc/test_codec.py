"""Values survive encoding and decoding; the decoder refuses random bytes and names the field."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.quorum.rpc.codec import Codec
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError

T = TypeVar("T")


class Colour(IntEnum):
    RED = 1
    BLUE = 7


class Place(NamedTuple):
    host: str
    port: int = 9092


@dataclass(frozen=True, slots=True)
class Inner:
    data: bytes
    colour: Colour = Colour.RED
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Outer(Generic[T]):
    number: int
    names: Sequence[str]
    inner: Inner
    pair: tuple[int, str | None]
    table: Mapping[int, tuple[int, ...]]
    maybe: Inner | None
    answer: T
    wanted: bool = False
    options: Mapping[str, str | None] | None = None
    more: list[int] = field(default_factory=list)


INT = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(alphabet=st.characters(), max_size=8)  # including lone surrogates
PLACE = st.builds(Place, TEXT, INT)
INNER = st.builds(
    Inner, st.binary(max_size=8), st.sampled_from(Colour), st.lists(PLACE, max_size=2).map(tuple)
)
OUTER = st.builds(
    Outer,
    number=INT,
    names=st.lists(TEXT, max_size=3).map(tuple),
    inner=INNER,
    pair=st.tuples(INT, st.none() | TEXT),
    table=st.dictionaries(INT, st.lists(INT, max_size=2).map(tuple), max_size=3),
    maybe=st.none() | INNER,
    answer=st.lists(st.booleans(), max_size=3).map(tuple),
    wanted=st.booleans(),
    options=st.none() | st.dictionaries(TEXT, st.none() | TEXT, max_size=2),
    more=st.lists(INT, max_size=2),
)
CODEC: Codec[Outer[tuple[bool, ...]]] = Codec(Outer[tuple[bool, ...]], "Outer")


@given(OUTER)
def test_what_is_written_is_read(value: Outer[tuple[bool, ...]]) -> None:
    assert CODEC.decode(CODEC.encode(value)) == value


@given(OUTER, st.data())
def test_a_cut_message_is_refused(value: Outer[tuple[bool, ...]], data: st.DataObject) -> None:
    encoded = CODEC.encode(value)
    end = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(WireError, match=r"^Outer"):
        CODEC.decode(encoded[:end])


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_a_wire_error(data: bytes) -> None:
    for codec in (CODEC, Codec(Inner), Codec(Place), Codec(tuple[int, ...])):
        with suppress(WireError):
            codec.encode(codec.decode(data))


@given(OUTER, st.data())
def test_a_changed_byte_does_no_harm(value: Outer[tuple[bool, ...]], data: st.DataObject) -> None:
    encoded = bytearray(CODEC.encode(value))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with suppress(WireError):
        CODEC.encode(CODEC.decode(bytes(encoded)))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([], "Inner: has 0 items, expected 1 to 3"),
        (["text"], "Inner.data: is not bytes"),
        ([b"", 2], "Inner.colour: is not a Colour"),
        ([b"", [1]], "Inner: not msgpack"),
        ([b"", True], "Inner.colour: is not a Colour"),
        ([b"", 1, [["h"], [5]]], "Inner.places.1.host: is not a string"),
        ([b"", 1, [["h", 2**63]]], "Inner.places.0.port: is not an integer of 64 bits"),
        ([b"", 1, [["h", True]]], "Inner.places.0.port: is not an integer of 64 bits"),
        ([b"", 1, 5], "Inner.places: is not an array"),
        ([b"", 1, [], 4], "Inner: has 4 items, expected 1 to 3"),
        ({b"": 1}, "Inner: is not an array"),
    ],
)
def test_an_error_names_the_field(row: Any, words: str) -> None:
    with pytest.raises(WireError) as caught:
        Codec(Inner).decode(msgpack.packb(row))
    assert str(caught.value).startswith(words)


def test_counts_are_bounded_by_the_bytes_there_are() -> None:
    with pytest.raises(WireError, match="has 4294967295 items in 0 bytes"):
        Codec(tuple[int, ...]).decode(b"\xdd\xff\xff\xff\xff")
    with pytest.raises(WireError, match="has 4294967295 entries in 0 bytes"):
        Codec(Mapping[int, int]).decode(b"\xdf\xff\xff\xff\xff")


def test_a_key_twice_is_refused() -> None:
    with pytest.raises(WireError, match=r"Mapping.1: is a duplicate key"):
        Codec(Mapping[int, int], "Mapping").decode(b"\x82\x01\x01\x01\x02")


def test_bytes_behind_a_value_are_refused() -> None:
    with pytest.raises(WireError, match="1 bytes left after the value"):
        Codec(Place).decode(Codec(Place).encode(Place("h", 1)) + b"\xc0")


def test_defaults_at_the_end_are_not_written_so_that_older_readers_know_all_fields() -> None:
    assert msgpack.unpackb(Codec(Inner).encode(Inner(b"x"))) == [b"x"]
    assert Codec(Inner).decode(msgpack.packb([b"x"])) == Inner(b"x")
    later = Inner(b"x", Colour.RED, (Place("h"),))
    assert msgpack.unpackb(Codec(Inner).encode(later)) == [b"x", 1, [["h"]]]


@pytest.mark.parametrize("error", [None, KafkaError(ErrorCode.INVALID_CONFIG, "words")])
def test_an_error_is_a_value_with_code_and_message(error: KafkaError | None) -> None:
    codec: Codec[tuple[KafkaError | None, ...]] = Codec(tuple[KafkaError | None, ...])
    (read,) = codec.decode(codec.encode((error,)))
    assert repr(read) == repr(error)
    assert read is None or (read.code, read.message) == (ErrorCode.INVALID_CONFIG, "words")


@pytest.mark.parametrize(
    ("kind", "value"),
    [(int, True), (int, "1"), (str, b""), (bytes, ""), (Inner, Place("h")), (bool, 1)],
)
def test_what_is_not_of_the_type_is_not_written(kind: type, value: object) -> None:
    with pytest.raises(TypeError):
        Codec(kind).encode(value)


@pytest.mark.parametrize("kind", [object, complex, int | str, set[int], Mapping[Place, int]])
def test_hints_that_cannot_be_sent_are_told_at_once(kind: Any) -> None:
    with pytest.raises(TypeError):
        Codec(kind)
