"""Sequences of requests of group members, in each version: what the next request then sees."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from metaquorum.wire.messages.heartbeat import HeartbeatRequest
from metaquorum.wire.messages.join_group import JoinGroupRequest
from metaquorum.wire.messages.leave_group import LeaveGroupRequest
from metaquorum.wire.messages.sync_group import SyncGroupRequest
from metaquorum.wire.primitives.errors import ErrorCode as E
from tests.conformance.clients import create
from tests.conformance.groups.raw import (
    LIMIT_S,
    commit,
    heartbeat,
    join,
    leave,
    subscription,
    sync,
)
from tests.conformance.groups.setups import ASSIGNMENT, INSTANCE, GroupSetup, new_setup
from tests.nodes import Peer, unique, wait_until

NewSetup = Callable[[str], GroupSetup]
SHORT_MS = 1000
MEMBER_ID_REQUIRED_FROM = 4

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def topic(peer: Peer) -> str:
    return create(peer.bootstrap, unique("raw"), 2)


@pytest.fixture
def new(peer: Peer, topic: str) -> Iterator[NewSetup]:
    with ExitStack() as opened:
        yield lambda state: new_setup(peer.bootstrap, topic, state, opened)


def codes(left: Any) -> list[E]:
    """Return the error codes of the members that a LeaveGroup names."""
    return [E(row.error_code) for row in left.members]


@pytest.mark.parametrize("version", range(JoinGroupRequest.VERSIONS.last + 1))
def test_join_asks_for_a_member_id_from_version_4_on(new: NewSetup, version: int) -> None:
    setup = new("absent")
    given = setup.call(join(setup.group), version)
    if version >= MEMBER_ID_REQUIRED_FROM:
        assert (given.error_code, given.generation_id) == (E.MEMBER_ID_REQUIRED, -1)
        joined = setup.call(join(setup.group, given.member_id), version)
    else:
        joined = given
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("raw-")
    assert [(row.member_id, row.metadata) for row in joined.members] == [
        (joined.member_id, subscription("subscribed"))
    ]


@pytest.mark.parametrize("version", range(SyncGroupRequest.VERSIONS.last + 1))
def test_sync_in_each_version(new: NewSetup, version: int) -> None:
    setup = new("completing")
    request = sync(setup.group, setup.generation, setup.member, {setup.member: b"mine"})
    done = setup.call(request, version)
    assert (done.error_code, done.assignment) == (0, b"mine")
    assert setup.state() == "Stable"


def test_sync_without_a_protocol_is_accepted_below_version_5(new: NewSetup) -> None:
    setup = new("completing")
    request = sync(setup.group, setup.generation, setup.member, protocol_type=None, protocol=None)
    assert setup.call(request, 4).error_code == 0


@pytest.mark.parametrize("version", range(HeartbeatRequest.VERSIONS.last + 1))
def test_heartbeat_in_each_version(new: NewSetup, version: int) -> None:
    setup = new("stable")
    request = heartbeat(setup.group, setup.generation, setup.member)
    assert setup.call(request, version).error_code == 0


@pytest.mark.parametrize("version", range(LeaveGroupRequest.VERSIONS.last + 1))
def test_leave_in_each_version(new: NewSetup, version: int) -> None:
    setup = new("stable")
    names = [setup.member, "unknown"]
    for name, expected in zip(names, (E.NONE, E.UNKNOWN_MEMBER_ID), strict=True):
        if version < 3:
            request = LeaveGroupRequest(group_id=setup.group, member_id=name)
            assert setup.call(request, version).error_code == expected
        else:
            left = setup.call(leave(setup.group, (name, None)), version)
            assert left.error_code == 0
            assert [row.error_code for row in left.members] == [expected]
    assert setup.state() == "Empty"


@pytest.mark.parametrize("version", [2, 5, 8, 9])
def test_commit_of_a_generation_to_no_group(new: NewSetup, version: int) -> None:
    setup = new("absent")
    done = setup.call(commit(setup.group, 1, "unknown", setup.topic, {0: 1}), version)
    expected = E.GROUP_ID_NOT_FOUND if version >= 9 else E.ILLEGAL_GENERATION
    assert done.topics[0].partitions[0].error_code == expected


def test_only_the_leader_sees_the_members(new: NewSetup) -> None:
    setup = new("preparing")
    assert setup.waiting is not None
    leader = setup.call(join(setup.group, setup.member))
    follower = setup.waiting.answer()
    assert follower.members == []
    assert follower.leader == leader.member_id == setup.member
    assert follower.generation_id == leader.generation_id == setup.generation + 1
    assert {row.member_id for row in leader.members} == {setup.member, setup.other}


def test_followers_wait_for_the_assignments_of_the_leader(new: NewSetup) -> None:
    setup = new("preparing")
    assert setup.waiting is not None
    generation = setup.call(join(setup.group, setup.member)).generation_id
    assert setup.waiting.answer().error_code == 0
    waiting = setup.send(sync(setup.group, generation, setup.other))
    given = {setup.member: b"one", setup.other: b"two"}
    assert setup.call(sync(setup.group, generation, setup.member, given)).assignment == b"one"
    assert waiting.answer().assignment == b"two"


def test_a_member_that_the_leader_forgets_gets_an_empty_assignment(new: NewSetup) -> None:
    setup = new("preparing")
    assert setup.waiting is not None
    generation = setup.call(join(setup.group, setup.member)).generation_id
    assert setup.waiting.answer().error_code == 0
    assert setup.call(sync(setup.group, generation, setup.member, {})).error_code == 0
    done = setup.call(sync(setup.group, generation, setup.other))
    assert (done.error_code, done.assignment) == (0, b"")


def test_a_waiting_sync_ends_with_the_next_rebalance(new: NewSetup) -> None:
    setup = new("preparing")
    assert setup.waiting is not None
    generation = setup.call(join(setup.group, setup.member)).generation_id
    assert setup.waiting.answer().error_code == 0
    waiting = setup.send(sync(setup.group, generation, setup.other))
    setup.call(leave(setup.group, (setup.member, None)))
    assert waiting.answer().error_code == E.REBALANCE_IN_PROGRESS


def test_a_waiting_join_ends_when_its_member_leaves(new: NewSetup) -> None:
    setup = new("preparing")
    assert setup.waiting is not None
    assert codes(setup.call(leave(setup.group, (setup.other, None)))) == [E.NONE]
    ended = setup.waiting.answer()
    assert (ended.error_code, ended.member_id) == (E.UNKNOWN_MEMBER_ID, "")
    assert setup.call(join(setup.group, setup.member)).generation_id == setup.generation + 1


def test_a_rebalance_that_lost_its_members_keeps_its_protocol_type(new: NewSetup) -> None:
    setup = new("stable")
    setup.other = setup.new_member_id()  # awaited
    waiting = setup.send(join(setup.group, setup.member))
    setup.wait_rebalance()
    assert codes(setup.call(leave(setup.group, (setup.member, None)))) == [E.NONE]
    assert waiting.answer().error_code == E.UNKNOWN_MEMBER_ID
    assert setup.state() == "PreparingRebalance"
    refused = setup.call(join(setup.group, protocol_type="connect"))
    assert refused.error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert setup.call(join(setup.group, setup.other)).generation_id == setup.generation + 1


def test_a_follower_that_joins_again_unchanged_stays_in_the_generation(new: NewSetup) -> None:
    setup = new("pair")
    again = setup.call(join(setup.group, setup.other))
    assert (again.error_code, again.generation_id) == (0, setup.generation)
    assert setup.state() == "Stable"


def test_a_follower_with_other_metadata_begins_a_rebalance(new: NewSetup) -> None:
    setup = new("pair")
    changed = {"range": subscription("another")}
    waiting = setup.send(join(setup.group, setup.other, protocols=changed))
    setup.wait_rebalance()
    assert setup.call(join(setup.group, setup.member)).generation_id == setup.generation + 1
    assert waiting.answer().generation_id == setup.generation + 1


def test_a_leader_that_joins_again_begins_a_rebalance(new: NewSetup) -> None:
    setup = new("pair")
    waiting = setup.send(join(setup.group, setup.member))
    request = heartbeat(setup.group, setup.generation, setup.other)
    wait_until(lambda: setup.call(request).error_code == E.REBALANCE_IN_PROGRESS, LIMIT_S)
    assert setup.call(join(setup.group, setup.other)).generation_id == setup.generation + 1
    assert waiting.answer().generation_id == setup.generation + 1


def test_the_members_vote_for_a_protocol_that_all_have(new: NewSetup) -> None:
    setup = new("absent")
    names = ("sticky", "range", "roundrobin")
    first = {name: subscription() for name in names}
    second = {name: subscription() for name in ("roundrobin", "range")}
    setup.member = setup.new_member_id(protocols=first)
    joined = setup.call(join(setup.group, setup.member, protocols=first))
    assert joined.protocol_name == "sticky"
    setup.generation = joined.generation_id
    setup.other = setup.new_member_id(protocols=second)
    waiting = setup.send(join(setup.group, setup.other, protocols=second))
    setup.wait_rebalance()
    leader = setup.call(join(setup.group, setup.member, protocols=first))
    assert leader.protocol_name == waiting.answer().protocol_name
    assert leader.protocol_name in ("range", "roundrobin")


def test_a_member_without_heartbeats_is_removed(new: NewSetup) -> None:
    setup = new("absent")
    setup.member = setup.new_member_id()
    joined = setup.call(join(setup.group, setup.member, session_ms=SHORT_MS))
    assert joined.error_code == E.NONE
    setup.call(sync(setup.group, joined.generation_id, setup.member, {setup.member: ASSIGNMENT}))
    wait_until(lambda: setup.state() == "Empty", LIMIT_S)
    beat = setup.call(heartbeat(setup.group, joined.generation_id, setup.member))
    assert beat.error_code == E.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_join_again_in_time_is_removed(new: NewSetup) -> None:
    """The rebalance waits for the largest rebalance timeout of its members."""
    setup = new("absent")
    setup.member = setup.new_member_id()
    joined = setup.call(join(setup.group, setup.member, rebalance_ms=SHORT_MS))
    setup.generation = joined.generation_id
    synced = setup.call(sync(setup.group, setup.generation, setup.member))
    setup.other = setup.new_member_id()
    began_s = time.monotonic()
    alone = setup.send(join(setup.group, setup.other, rebalance_ms=SHORT_MS)).answer()
    lasted_ms = (time.monotonic() - began_s) * 1000
    # The first member is removed earlier if its SyncGroup came too late, on a very busy machine.
    assert lasted_ms >= SHORT_MS or synced.error_code == E.UNKNOWN_MEMBER_ID
    assert (alone.leader, len(alone.members)) == (setup.other, 1)
    beat = setup.call(heartbeat(setup.group, setup.generation, setup.member))
    assert beat.error_code == E.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_sync_in_time_is_removed(new: NewSetup) -> None:
    setup = new("absent")
    setup.member = setup.new_member_id()
    joined = setup.call(join(setup.group, setup.member, rebalance_ms=SHORT_MS))
    assert joined.error_code == E.NONE
    request = heartbeat(setup.group, joined.generation_id, setup.member)
    wait_until(lambda: setup.call(request).error_code == E.UNKNOWN_MEMBER_ID, LIMIT_S)


def test_a_rebalance_waits_for_a_new_member_id_until_it_expires(new: NewSetup) -> None:
    setup = new("stable")
    unused = setup.new_member_id(session_ms=SHORT_MS)
    joined = setup.call(join(setup.group, setup.member))  # a leader that joins again: a rebalance
    assert (joined.error_code, joined.generation_id) == (0, setup.generation + 1)
    assert [row.member_id for row in joined.members] == [setup.member]
    late = setup.call(join(setup.group, unused, session_ms=SHORT_MS))
    assert late.error_code == E.UNKNOWN_MEMBER_ID


def test_a_rebalance_includes_a_new_member_id_that_joins(new: NewSetup) -> None:
    setup = new("stable")
    setup.other = setup.new_member_id()
    waiting = setup.send(join(setup.group, setup.member))
    setup.wait_rebalance()
    late = setup.call(join(setup.group, setup.other))
    assert late.generation_id == setup.generation + 1
    assert {row.member_id for row in waiting.answer().members} == {setup.member, setup.other}


def test_a_static_member_returns_to_its_generation(new: NewSetup) -> None:
    setup = new("static")
    again = setup.call(join(setup.group, instance=INSTANCE))
    assert (again.error_code, again.generation_id) == (0, setup.generation)
    assert again.member_id != setup.member
    assert again.skip_assignment
    assert setup.state() == "Stable"
    done = setup.call(sync(setup.group, setup.generation, again.member_id, instance=INSTANCE))
    assert (done.error_code, done.assignment) == (0, ASSIGNMENT)


def test_a_replaced_static_member_is_fenced(new: NewSetup) -> None:
    setup = new("static")
    assert setup.call(join(setup.group, instance=INSTANCE)).error_code == 0
    at = setup.group, setup.generation, setup.member
    assert setup.call(heartbeat(*at, INSTANCE)).error_code == E.FENCED_INSTANCE_ID
    assert setup.call(sync(*at, instance=INSTANCE)).error_code == E.FENCED_INSTANCE_ID
    done = setup.call(commit(*at, setup.topic, {0: 1}, instance=INSTANCE))
    assert done.topics[0].partitions[0].error_code == E.FENCED_INSTANCE_ID
    left = setup.call(leave(setup.group, (setup.member, INSTANCE)))
    assert left.members[0].error_code == E.FENCED_INSTANCE_ID
    rejoined = setup.call(join(setup.group, setup.member, instance=INSTANCE))
    assert rejoined.error_code == E.FENCED_INSTANCE_ID


def test_a_waiting_join_of_a_replaced_static_member_is_fenced(new: NewSetup) -> None:
    setup = new("stable")
    waiting = setup.send(join(setup.group, instance=INSTANCE))
    setup.wait_rebalance()
    replacement = setup.send(join(setup.group, instance=INSTANCE))
    assert waiting.answer().error_code == E.FENCED_INSTANCE_ID
    assert setup.call(join(setup.group, setup.member)).error_code == 0
    assert replacement.answer().error_code == 0


def test_a_static_member_with_other_protocols_begins_a_rebalance(new: NewSetup) -> None:
    setup = new("static")
    changed = {"range": subscription("another")}
    again = setup.call(join(setup.group, instance=INSTANCE, protocols=changed))
    assert (again.error_code, again.generation_id) == (0, setup.generation)
    other = {"sticky": subscription(), "range": subscription()}
    chosen = setup.call(join(setup.group, instance=INSTANCE, protocols=other))
    assert (chosen.error_code, chosen.generation_id) == (0, setup.generation + 1)
    assert chosen.protocol_name == "sticky"
