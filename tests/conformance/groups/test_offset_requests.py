"""Requests for committed offsets and for groups: OffsetCommit, OffsetFetch, OffsetDelete,
ListGroups, DescribeGroups and DeleteGroups, in each version.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from metaquorum.wire.messages.delete_groups import DeleteGroupsRequest
from metaquorum.wire.messages.describe_groups import DescribeGroupsRequest
from metaquorum.wire.messages.list_groups import ListGroupsRequest
from metaquorum.wire.messages.offset_commit import OffsetCommitRequest
from metaquorum.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from metaquorum.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from metaquorum.wire.primitives.errors import ErrorCode as E
from tests.conformance.clients import admin, create
from tests.conformance.groups.raw import LIMIT_S, commit, join, leave, subscription, sync
from tests.conformance.groups.setups import GroupSetup, new_setup
from tests.nodes import Peer, unique, wait_until

NewSetup = Callable[[str], GroupSetup]
METADATA_MAX_BYTES = 4096
NO_OFFSET = -1
FETCHES_GROUPS_FROM = 8

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def topic(peer: Peer) -> str:
    return create(peer.bootstrap, unique("raw"), 2)


@pytest.fixture
def new(peer: Peer, topic: str) -> Iterator[NewSetup]:
    with ExitStack() as opened:
        yield lambda state: new_setup(peer.bootstrap, topic, state, opened)


def group_of(group: str, topics: Mapping[str, list[int]] | None) -> OffsetFetchRequestGroup:
    named = None
    if topics is not None:
        named = [
            OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ]
    return OffsetFetchRequestGroup(group_id=group, topics=named)


def offsets_in(topics: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, row.partition_index): row.committed_offset
        for topic in topics
        for row in topic.partitions
    }


def fetched(
    setup: GroupSetup, topics: Mapping[str, list[int]] | None = None, version: int = 9
) -> dict[tuple[str, int], int]:
    """Return the committed offsets of these partitions; of all that have one if None."""
    if version >= FETCHES_GROUPS_FROM:
        request = OffsetFetchRequest(groups=[group_of(setup.group, topics)])
        (row,) = setup.call(request, version).groups
        assert row.error_code == E.NONE
        return offsets_in(row.topics)
    named = None
    if topics is not None:
        named = [
            OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ]
    request = OffsetFetchRequest(group_id=setup.group, topics=named)
    return offsets_in(setup.call(request, version).topics)


def deleted(setup: GroupSetup, topic: str, *indexes: int) -> Any:
    rows = [OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
    named = [OffsetDeleteRequestTopic(name=topic, partitions=rows)]
    return setup.call(OffsetDeleteRequest(group_id=setup.group, topics=named))


def partition_codes(response: Any) -> list[E]:
    return [E(row.error_code) for topic in response.topics for row in topic.partitions]


@pytest.mark.parametrize(
    "version", range(OffsetCommitRequest.VERSIONS.first, OffsetCommitRequest.VERSIONS.last)
)
def test_commit_in_each_version_that_names_topics(new: NewSetup, version: int) -> None:
    setup = new("absent")
    request = commit(setup.group, -1, "", setup.topic, {0: 7, 1: 8})
    assert partition_codes(setup.call(request, version)) == [E.NONE] * 2
    assert fetched(setup) == {(setup.topic, 0): 7, (setup.topic, 1): 8}


@pytest.mark.parametrize("version", range(1, 10))
def test_fetch_in_each_version_that_names_topics(new: NewSetup, version: int) -> None:
    setup = new("offsets")
    found = fetched(setup, {setup.topic: [0, 1]}, version)
    assert found == {(setup.topic, 0): 3, (setup.topic, 1): NO_OFFSET}


@pytest.mark.parametrize("version", [2, 7, 9])
def test_fetch_of_all_topics_has_only_committed_offsets(new: NewSetup, version: int) -> None:
    assert fetched(setup := new("offsets"), None, version) == {(setup.topic, 0): 3}
    assert fetched(new("absent"), None, version) == {}


def test_fetch_of_many_groups_answers_each(new: NewSetup) -> None:
    """The groups may have coordinators of different nodes; the peer of this test has one node."""
    first, second, absent = new("offsets"), new("offsets"), new("absent")
    second.call(commit(second.group, -1, "", second.topic, {1: 11}))
    setups = first, second, absent
    asked = [group_of(setup.group, {setup.topic: [0, 1]}) for setup in setups]
    rows = first.call(OffsetFetchRequest(groups=asked)).groups
    assert [row.error_code for row in rows] == [E.NONE] * 3
    assert {row.group_id: sorted(offsets_in(row.topics).values()) for row in rows} == {
        first.group: [NO_OFFSET, 3],
        second.group: [3, 11],
        absent.group: [NO_OFFSET, NO_OFFSET],
    }


def test_metadata_is_kept_up_to_its_limit(new: NewSetup) -> None:
    setup = new("absent")
    for size, expected in (
        (METADATA_MAX_BYTES, E.NONE),
        (METADATA_MAX_BYTES + 1, E.OFFSET_METADATA_TOO_LARGE),
    ):
        request = commit(setup.group, -1, "", setup.topic, {0: size}, metadata="m" * size)
        assert partition_codes(setup.call(request)) == [expected]
    asked = OffsetFetchRequest(groups=[group_of(setup.group, {setup.topic: [0]})])
    row = setup.call(asked).groups[0].topics[0].partitions[0]
    assert (row.committed_offset, row.metadata) == (4096, "m" * METADATA_MAX_BYTES)


def test_a_commit_is_refused_only_for_partitions_that_do_not_exist(new: NewSetup) -> None:
    setup = new("absent")
    request = commit(setup.group, -1, "", setup.topic, {0: 1, 9: 1})
    rows = setup.call(request).topics[0].partitions  # in any order
    codes = {row.partition_index: row.error_code for row in rows}
    assert codes == {0: E.NONE, 9: E.UNKNOWN_TOPIC_OR_PARTITION}
    request = commit(setup.group, -1, "", unique("missing"), {0: 1})
    assert partition_codes(setup.call(request)) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    assert fetched(setup) == {(setup.topic, 0): 1}


def test_offsets_of_a_subscribed_topic_are_not_deleted(new: NewSetup) -> None:
    setup = new("absent")
    protocols = {"range": subscription(setup.topic)}
    setup.member = setup.new_member_id(protocols=protocols)
    generation = setup.call(join(setup.group, setup.member, protocols=protocols)).generation_id
    setup.call(sync(setup.group, generation, setup.member, {setup.member: b""}))
    setup.call(commit(setup.group, generation, setup.member, setup.topic, {0: 5, 1: 6}))
    refused = deleted(setup, setup.topic, 0)
    assert refused.error_code == E.NONE
    assert partition_codes(refused) == [E.GROUP_SUBSCRIBED_TO_TOPIC]
    setup.call(leave(setup.group, (setup.member, None)))
    assert partition_codes(deleted(setup, setup.topic, 0)) == [E.NONE]
    assert fetched(setup) == {(setup.topic, 1): 6}


def test_offsets_of_a_topic_that_a_live_group_does_not_subscribe_to_are_deleted(
    new: NewSetup,
) -> None:
    setup = new("stable")
    setup.call(commit(setup.group, setup.generation, setup.member, setup.topic, {0: 5}))
    assert partition_codes(deleted(setup, setup.topic, 0)) == [E.NONE]
    assert fetched(setup) == {}


def test_offsets_of_an_absent_group_cannot_be_deleted(new: NewSetup) -> None:
    setup = new("absent")
    assert deleted(setup, setup.topic, 0).error_code == E.GROUP_ID_NOT_FOUND
    assert deleted(setup, "absent", 0).error_code == E.GROUP_ID_NOT_FOUND


def test_delete_groups_removes_only_groups_without_members(new: NewSetup) -> None:
    setups = [new(state) for state in ("absent", "offsets", "emptied", "stable", "pending")]
    request = DeleteGroupsRequest(groups_names=[setup.group for setup in setups])
    rows = {row.group_id: row.error_code for row in setups[0].call(request).results}
    assert [E(rows[setup.group]) for setup in setups] == [
        E.GROUP_ID_NOT_FOUND,
        E.NONE,
        E.NONE,
        E.NON_EMPTY_GROUP,
        E.NONE,
    ]
    assert fetched(setups[1]) == {}
    assert setups[3].state() == "Stable"


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("absent", "Dead"),
        ("offsets", "Empty"),
        ("emptied", "Empty"),
        ("pending", "Empty"),
        ("completing", "CompletingRebalance"),
        ("stable", "Stable"),
        ("static", "Stable"),
        ("preparing", "PreparingRebalance"),
    ],
)
@pytest.mark.parametrize("version", [0, 4, 5, 6])
def test_describe_shows_the_state(new: NewSetup, state: str, shown: str, version: int) -> None:
    setup = new(state)
    request = DescribeGroupsRequest(groups=[setup.group])
    row = setup.call(request, version).groups[0]
    missing = state == "absent" and version >= 6
    assert (row.error_code, row.group_state) == (
        E.GROUP_ID_NOT_FOUND if missing else E.NONE,
        shown,
    )
    members = {(one.member_id, one.client_id, one.client_host) for one in row.members}
    live = shown in ("Stable", "CompletingRebalance", "PreparingRebalance")
    names = {setup.member, setup.other} - {""} if live else set()
    assert members == {(name, "raw", "/127.0.0.1") for name in names}


def test_describe_shows_assignments_of_a_stable_group(new: NewSetup) -> None:
    setup = new("pair")
    row = setup.call(DescribeGroupsRequest(groups=[setup.group])).groups[0]
    assert (row.protocol_type, row.protocol_data) == ("consumer", "range")
    assert {one.member_id: one.member_assignment for one in row.members} == {
        setup.member: b"assignment",
        setup.other: b"assignment",
    }
    assert {one.member_metadata for one in row.members} == {subscription("subscribed")}


def test_list_groups_filters_states_and_types(new: NewSetup) -> None:
    setups = {state: new(state) for state in ("offsets", "emptied", "stable", "preparing")}
    names = {setup.group: state for state, setup in setups.items()}
    one = setups["stable"]

    def listed(states: list[str], types: list[str] | None = None) -> dict[str, tuple[str, str]]:
        request = ListGroupsRequest(states_filter=states, types_filter=types or [])
        rows = one.call(request).groups
        return {
            names[row.group_id]: (row.group_state, row.protocol_type)
            for row in rows
            if row.group_id in names
        }

    assert listed([]) == {
        "offsets": ("Empty", ""),
        "emptied": ("Empty", "consumer"),
        "stable": ("Stable", "consumer"),
        "preparing": ("PreparingRebalance", "consumer"),
    }
    assert set(listed(["Empty"])) == {"offsets", "emptied"}
    assert set(listed(["Stable", "PreparingRebalance"])) == {"stable", "preparing"}
    assert set(listed(["stable"])) == {"stable"}  # names of states in any case
    assert listed([], ["consumer"]) == {}
    assert set(listed([], ["classic"])) == set(setups)
    assert set(listed(["Stable"], ["Classic"])) == {"stable"}


def test_offsets_vanish_with_their_topic(peer: Peer, new: NewSetup) -> None:
    setup = new("absent")
    name = create(peer.bootstrap, unique("vanishing"), 2)
    kept = {(setup.topic, 0): 1}
    setup.call(commit(setup.group, -1, "", setup.topic, {0: 1}))
    setup.call(commit(setup.group, -1, "", name, {0: 5, 1: 6}))
    assert fetched(setup) == kept | {(name, 0): 5, (name, 1): 6}
    admin(peer.bootstrap).delete_topics([name])[name].result(LIMIT_S)
    wait_until(lambda: fetched(setup) == kept, LIMIT_S)
    create(peer.bootstrap, name, 2)
    assert fetched(setup, {name: [0, 1]}) == {(name, 0): NO_OFFSET, (name, 1): NO_OFFSET}
