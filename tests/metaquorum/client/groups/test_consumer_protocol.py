"""Subscriptions and assignments, in bytes of real clients and in malformed ones."""

import importlib
import io
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_writer

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.groups.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
)

TOPICS = st.lists(st.text(max_size=5), max_size=4)
INDEXES = st.integers(0, 2**31 - 1)
OWNED = st.dictionaries(st.text(max_size=5), st.lists(INDEXES, max_size=3), max_size=3)
USER_DATA = st.none() | st.binary(max_size=9)


def string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(text.encode())) + text.encode()


def blob(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def strings(texts: list[str]) -> bytes:
    return struct.pack(">i", len(texts)) + b"".join(map(string, texts))


def partitions(owned: dict[str, list[int]]) -> bytes:
    rows = (
        string(topic) + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
        for topic, indexes in owned.items()
    )
    return struct.pack(">i", len(owned)) + b"".join(rows)


def places(owned: dict[str, list[int]]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, index) for topic in owned for index in owned[topic])


@given(st.integers(0, 5), TOPICS, USER_DATA, OWNED, st.none() | st.text(max_size=4))
def test_a_subscription_has_the_fields_of_its_version(
    version: int, topics: list[str], user_data: bytes | None, owned: dict[str, list[int]], rack: str
) -> None:
    data = struct.pack(">h", version) + strings(topics) + blob(user_data)
    for since, more in ((1, partitions(owned)), (2, struct.pack(">i", 7)), (3, string(rack))):
        data += more if version >= since else b""
    data += b"fields of a later version" if version > 3 else b""
    assert decode_subscription(data) == Subscription(
        tuple(topics),
        user_data or b"",
        places(owned) if version >= 1 else None,
        7 if version >= 2 else None,
        rack if version >= 3 else None,
    )


@given(st.integers(0, 5), OWNED, USER_DATA)
def test_an_assignment_names_its_partitions(
    version: int, owned: dict[str, list[int]], user_data: bytes | None
) -> None:
    data = struct.pack(">h", version) + partitions(owned) + blob(user_data)
    assert decode_assignment(data) == Assignment(places(owned), user_data or b"")
    assert all(decode_assignment(data[:end]) is None for end in range(1, len(data)))


def test_a_member_without_assignment_owns_nothing() -> None:
    assert decode_assignment(b"") == Assignment((), b"")
    assert decode_subscription(b"") is None


@given(st.binary(max_size=60))
def test_malformed_bytes_are_never_an_error(data: bytes) -> None:
    assert isinstance(decode_subscription(data), Subscription | None)
    assert isinstance(decode_assignment(data), Assignment | None)


def test_a_count_above_the_data_is_refused_before_an_allocation() -> None:
    for count in (2**31 - 1, -1, -(2**31)):
        assert decode_subscription(struct.pack(">hi", 0, count) + bytes(20)) is None
        assert decode_assignment(struct.pack(">hi", 0, count) + bytes(20)) is None
        inner = struct.pack(">hi", 0, 1) + string("t") + struct.pack(">i", count) + bytes(20)
        assert decode_assignment(inner) is None


def test_a_negative_version_and_text_that_is_not_utf_8_are_malformed() -> None:
    assert decode_assignment(struct.pack(">h", -1) + partitions({}) + blob(None)) is None
    data = struct.pack(">hi", 0, 1) + struct.pack(">h", 2) + b"\xff\xff" + blob(None)
    assert decode_subscription(data) is None


def test_bytes_of_an_independent_encoder_are_decoded() -> None:
    theirs = importlib.import_module("kio.schema.consumer_protocol_subscription.v3.data")
    owned = theirs.TopicPartition(topic="b", partitions=(4, 2))
    message = theirs.ConsumerProtocolSubscription(
        topics=("a", "b"), user_data=b"x", owned_partitions=(owned,), generation_id=9, rack_id="r"
    )
    data = b"\0\3" + kio_bytes(message)
    places = (TopicPartition("b", 4), TopicPartition("b", 2))
    assert decode_subscription(data) == Subscription(("a", "b"), b"x", places, 9, "r")
    theirs = importlib.import_module("kio.schema.consumer_protocol_assignment.v3.data")
    owned = theirs.TopicPartition(topic="b", partitions=(4, 2))
    message = theirs.ConsumerProtocolAssignment(assigned_partitions=(owned,), user_data=None)
    assert decode_assignment(b"\0\3" + kio_bytes(message)) == Assignment(places, b"")


def kio_bytes(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()
