"""Assignors: every partition has one owner, and owners keep what they can."""

import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.groups.assignors import (
    ASSIGNORS,
    AssignedMember,
    Assignments,
    cooperative_sticky_assignment,
    range_assignment,
    round_robin_assignment,
    sticky_assignment,
)
from metaquorum.client.groups.consumer_protocol import Subscription

TOPICS = ("a", "b", "c")
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7))
SUBSCRIPTIONS = st.lists(st.sets(st.sampled_from(TOPICS)), min_size=1, max_size=5)
OWNED = st.lists(
    st.sets(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 7))), min_size=5
)
GENERATIONS = st.lists(st.integers(-1, 3), min_size=5, max_size=5)


def member(
    name: str,
    *topics: str,
    owned: tuple[TopicPartition, ...] = (),
    generation: int | None = 1,
    instance_id: str | None = None,
    user_data: bytes = b"",
) -> AssignedMember:
    return AssignedMember(
        name, instance_id, Subscription(topics, user_data, tuple(owned), generation)
    )


def places(text: str) -> list[TopicPartition]:
    """Return partitions written as "a0 b3"."""
    return [TopicPartition(word[0], int(word[1:])) for word in text.split()]


def texts(assigned: Assignments) -> dict[str, str]:
    return {
        name: " ".join(f"{where.topic}{where.partition}" for where in own)
        for name, own in assigned.items()
    }


# The examples of the documentation of Kafka's RangeAssignor and RoundRobinAssignor


def test_range_gives_contiguous_partitions_of_each_topic() -> None:
    members = [member("c0", "a", "b"), member("c1", "a", "b")]
    found = range_assignment(members, {"a": 3, "b": 3})
    assert texts(found) == {"c0": "a0 a1 b0 b1", "c1": "a2 b2"}


def test_round_robin_gives_all_partitions_in_turn() -> None:
    members = [member("c0", "a", "b"), member("c1", "a", "b")]
    found = round_robin_assignment(members, {"a": 3, "b": 3})
    assert texts(found) == {"c0": "a0 a2 b1", "c1": "a1 b0 b2"}
    members = [member("c0", "a"), member("c1", "a", "b"), member("c2", "a", "b", "c")]
    found = round_robin_assignment(members, {"a": 1, "b": 2, "c": 3})
    assert texts(found) == {"c0": "a0", "c1": "b0", "c2": "b1 c0 c1 c2"}


def test_static_members_come_first_by_their_instance_id() -> None:
    members = [
        member("m1", "a"),
        member("m3", "a", instance_id="x"),
        member("m2", "a", instance_id="y"),
    ]
    assert texts(range_assignment(members, {"a": 4})) == {"m3": "a0 a1", "m2": "a2", "m1": "a3"}


@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(SUBSCRIPTIONS, COUNTS)
def test_each_partition_has_one_owner_that_subscribes(
    assignor: str, subscriptions: list[set[str]], counts: dict[str, int]
) -> None:
    members = [member(f"m{n}", *topics) for n, topics in enumerate(subscriptions)]
    assigned = ASSIGNORS[assignor].assign(members, counts)
    assert set(assigned) == {each.member_id for each in members}
    owners = Counter(where for own in assigned.values() for where in own)
    wanted = set().union(*subscriptions)
    assert owners == Counter(
        TopicPartition(topic, index)
        for topic in counts.keys() & wanted
        for index in range(counts[topic])
    )
    for each in members:
        assert {where.topic for where in assigned[each.member_id]} <= set(each.subscription.topics)


# Sticky


@given(SUBSCRIPTIONS, COUNTS, OWNED, GENERATIONS)
def test_a_sticky_assignment_is_balanced(
    subscriptions: list[set[str]],
    counts: dict[str, int],
    owned: list[set[TopicPartition]],
    generations: list[int],
) -> None:
    members = [
        member(f"m{n}", *topics, owned=tuple(owned[n]), generation=generations[n])
        for n, topics in enumerate(subscriptions)
    ]
    assigned = sticky_assignment(members, counts)
    for each in members:
        for where in assigned[each.member_id]:
            for other in members:
                if where.topic in other.subscription.topics:
                    assert len(assigned[each.member_id]) <= len(assigned[other.member_id]) + 1


@given(SUBSCRIPTIONS, COUNTS)
def test_an_unchanged_group_keeps_its_sticky_assignment(
    subscriptions: list[set[str]], counts: dict[str, int]
) -> None:
    members = [member(f"m{n}", *topics) for n, topics in enumerate(subscriptions)]
    first = sticky_assignment(members, counts)
    again = [
        member(m.member_id, *m.subscription.topics, owned=tuple(first[m.member_id]))
        for m in members
    ]
    assert sticky_assignment(again, counts) == first


@given(st.integers(1, 20), st.integers(1, 5))
def test_a_new_member_moves_no_more_partitions_than_its_share(partitions: int, count: int) -> None:
    counts = {"a": partitions}
    first = sticky_assignment([member(f"m{n}", "a") for n in range(count)], counts)
    grown = [member(name, "a", owned=tuple(own)) for name, own in first.items()]
    second = sticky_assignment([*grown, member("new", "a")], counts)
    moved = sum(len(set(first[name]) - set(second[name])) for name in first)
    assert moved == len(second["new"]) == partitions // (count + 1)


@given(SUBSCRIPTIONS, COUNTS, OWNED, GENERATIONS)
def test_no_partition_is_given_to_a_member_while_another_owns_it(
    subscriptions: list[set[str]],
    counts: dict[str, int],
    owned: list[set[TopicPartition]],
    generations: list[int],
) -> None:
    members = [
        member(f"m{n}", *topics, owned=tuple(owned[n]), generation=generations[n])
        for n, topics in enumerate(subscriptions)
    ]
    assigned = cooperative_sticky_assignment(members, counts)
    for n, each in enumerate(members):
        added = set(assigned[each.member_id]) - owned[n]
        for m, other in enumerate(members):
            if m != n:
                revoked = owned[m] - set(assigned[other.member_id])
                assert not added & revoked
    # Members that revoke partitions join again, until all partitions have an owner.
    for _ in range(4):
        members = [
            member(m.member_id, *m.subscription.topics, owned=tuple(assigned[m.member_id]))
            for m in members
        ]
        assigned, before = cooperative_sticky_assignment(members, counts), assigned
        if assigned == before:
            break
    assert assigned == before == sticky_assignment(members, counts)


def test_of_two_claims_the_newer_generation_wins_and_of_equal_ones_neither() -> None:
    counts = {"a": 2}
    old = member("old", "a", owned=tuple(places("a0 a1")), generation=3)
    new = member("new", "a", owned=tuple(places("a1")), generation=4)
    assert texts(sticky_assignment([old, new], counts)) == {"old": "a0", "new": "a1"}
    twin = member("twin", "a", owned=tuple(places("a0 a1")), generation=3)
    assert texts(sticky_assignment([old, twin], counts)) == {"old": "a0", "twin": "a1"}
    equal = [member(name, "a", owned=tuple(places("a1")), generation=3) for name in ("m1", "m2")]
    assert texts(sticky_assignment(equal, counts)) == {"m1": "a0", "m2": "a1"}


def test_the_generation_of_older_members_is_in_their_user_data() -> None:
    claims = [
        member("v1", "a", owned=tuple(places("a0")), generation=None, user_data=data)
        for data in (struct.pack(">i", 9), b"")
    ]
    other = member("v3", "a", owned=tuple(places("a0")), generation=8)
    spare = {"a": 1}
    assert texts(sticky_assignment([claims[0], other], spare)) == {"v1": "a0", "v3": ""}
    assert texts(sticky_assignment([claims[1], other], spare)) == {"v1": "", "v3": "a0"}
