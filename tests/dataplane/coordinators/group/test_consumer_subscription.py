"""The topics of subscriptions, compared with those of each subscription alone."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.coordinators.group import consumer_subscription
from metaquorum.dataplane.coordinators.group.consumer_subscription import subscribed_topics

NAMES = st.sampled_from(["", "t", "topic", "é"])


def subscription(topics: list[str], version: int = 1, rest: bytes = b"") -> bytes:
    names = b"".join(struct.pack(">h", len(each.encode())) + each.encode() for each in topics)
    return struct.pack(">hi", version, len(topics)) + names + rest


VALID = st.builds(
    subscription, st.lists(NAMES, max_size=3), st.sampled_from([-1, 0, 3]), st.binary(max_size=4)
)
ANY = VALID | st.builds(bytes.__getitem__, VALID, st.slices(12)) | st.binary(max_size=12)


@given(st.lists(ANY, max_size=6))
def test_topics_of_several_subscriptions_are_those_of_each(metadata: list[bytes]) -> None:
    each = [subscribed_topics([one]) for one in metadata]
    expected = None if None in each else frozenset().union(*(one or () for one in each))
    assert subscribed_topics(metadata) == expected


def test_equal_topics_of_many_members_are_decoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group of 1,000 members with 50 topics each would take longer than a time slice."""
    decoded = 0
    decode = consumer_subscription._decode

    def counted(metadata: bytes, count: int, topics: set[str]) -> int:
        nonlocal decoded
        decoded += 1
        return decode(metadata, count, topics)

    monkeypatch.setattr(consumer_subscription, "_decode", counted)
    topics = [f"t{number}" for number in range(50)]
    owned = [struct.pack(">ii", -1, number) for number in range(1000)]
    found = subscribed_topics(subscription(topics, rest=rest) for rest in owned)
    assert (found, decoded) == (frozenset(topics), 1)
