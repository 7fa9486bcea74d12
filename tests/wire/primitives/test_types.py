"""UUIDs and their text form."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.wire.primitives.types import (
    RESERVED_UUIDS,
    ZERO_UUID,
    random_uuid,
    uuid_from_text,
    uuid_to_text,
)


@given(st.binary(min_size=16, max_size=16))
def test_ids_round_trip_through_text(value: bytes) -> None:
    assert len(uuid_to_text(value)) == 22
    assert uuid_from_text(uuid_to_text(value)) == value


def test_texts_are_kafka_s() -> None:
    assert uuid_to_text(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_to_text(b"\xfb\xff" + bytes(14)) == "-_8AAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize(
    "text", ["", "short", "A" * 21, "A" * 23, "A" * 24, "é" * 22, "/+" + "A" * 20, "A" * 20 + "=="]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="22 base64url characters"):
        uuid_from_text(text)


def test_random_ids_are_neither_reserved_nor_options() -> None:
    source = random.Random(1)
    made = [random_uuid(source) for _ in range(2000)]
    assert len(set(made)) == 2000
    assert not RESERVED_UUIDS.intersection(made)
    assert not any(uuid_to_text(value).startswith("-") for value in made)
    assert {value[6] >> 4 for value in made} == {4}
    assert {value[8] >> 6 for value in made} == {2}
    assert random_uuid(random.Random(7)) == random_uuid(random.Random(7))
