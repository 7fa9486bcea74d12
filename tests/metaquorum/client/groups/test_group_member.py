"""States of a member, without a cluster."""

from typing import Any

import pytest

from metaquorum.client import BrokerError, TopicPartition
from metaquorum.client.groups.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from metaquorum.client.groups.group_config import GroupConfig
from metaquorum.client.groups.group_member import (
    NO_IDENTITY,
    RETRY_PAUSE_S,
    GroupMember,
    Identity,
    Reaction,
    State,
)
from metaquorum.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from metaquorum.wire.messages.sync_group import SyncGroupResponse
from metaquorum.wire.primitives.errors import ErrorCode

P0, P1 = (TopicPartition("orders", index) for index in range(2))


def member(**config: Any) -> GroupMember:
    return GroupMember(GroupConfig("g", **config))


def joined(one: GroupMember, generation: int = 5, leader: str = "m-1", **fields: Any) -> None:
    one.join_request(["orders"], [])
    assert one.on_join(joining(generation, leader=leader, **fields), 0.0) is None


def joining(generation: int, **fields: Any) -> JoinGroupResponse:
    given = {"leader": "m-1", "member_id": "m-1", "protocol_name": "range"} | fields
    return JoinGroupResponse(generation_id=generation, **given)


def stable(one: GroupMember, *partitions: TopicPartition, generation: int = 5) -> None:
    joined(one, generation, leader="m-9")
    one.sync_request({})
    data = encode_assignment(Assignment(partitions, b""))
    assert one.on_sync(SyncGroupResponse(assignment=data), 0.0) is None
    assert one.take_assignment() == partitions


def test_a_member_joins_syncs_and_has_its_partitions() -> None:
    one = member(instance_id="i-1", rack="r")
    assert one.is_join_due(0.0)
    request = one.join_request(["orders", "bills"], [P1])
    assert (request.member_id, request.group_instance_id) == ("", "i-1")
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (45_000, 300_000)
    assert [protocol.name for protocol in request.protocols] == ["range", "cooperative-sticky"]
    assert decode_subscription(request.protocols[0].metadata) == Subscription(
        ("bills", "orders"), b"", (P1,), -1, "r"
    )
    assert one.state is State.JOINING
    assert not one.is_join_due(9.0)
    metadata = encode_subscription(Subscription(("orders",), b""))
    members = [
        JoinGroupResponseMember(member_id="m-1", group_instance_id="i-1", metadata=metadata),
        JoinGroupResponseMember(member_id="m-2", metadata=b"malformed"),
    ]
    assert one.on_join(joining(5, members=members), 0.0) is None
    assert one.is_leader
    assert [(each.member_id, each.subscription.topics) for each in one.members] == [
        ("m-1", ("orders",)),
        ("m-2", ()),
    ]
    sync = one.sync_request({"m-1": [P0], "m-2": []})
    assert (sync.generation_id, sync.member_id, sync.protocol_name) == (5, "m-1", "range")
    assert [decode_assignment(each.assignment) for each in sync.assignments] == [
        Assignment((P0,), b""),
        Assignment((), b""),
    ]
    assert not one.is_stable
    assert one.on_sync(SyncGroupResponse(assignment=sync.assignments[0].assignment), 0.0) is None
    assert one.take_assignment() == (P0,)
    assert one.is_stable
    assert not one.is_join_due(9.0)


def test_a_follower_sees_no_members() -> None:
    one = member()
    joined(one, leader="m-9")
    assert not one.is_leader
    assert one.members == []


def test_a_new_member_joins_again_with_the_id_it_is_given() -> None:
    one = member()
    one.join_request(["orders"], [])
    refusal = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m-1")
    assert one.on_join(refusal, 1.0) is Reaction.ADOPT_MEMBER_ID
    assert one.is_join_due(1.0)
    assert one.join_request(["orders"], []).member_id == "m-1"
    assert not one.has_lost


@pytest.mark.parametrize(
    ("code", "reaction", "identity", "has_lost"),
    [
        ("COORDINATOR_LOAD_IN_PROGRESS", Reaction.RETRY, Identity(5, "m-1"), False),
        ("NOT_COORDINATOR", Reaction.FIND_COORDINATOR, Identity(5, "m-1"), False),
        ("COORDINATOR_NOT_AVAILABLE", Reaction.FIND_COORDINATOR, Identity(5, "m-1"), False),
        ("REBALANCE_IN_PROGRESS", Reaction.REJOIN, Identity(5, "m-1"), False),
        ("ILLEGAL_GENERATION", Reaction.LOSE_GENERATION, Identity(-1, "m-1"), True),
        ("UNKNOWN_MEMBER_ID", Reaction.LOSE_MEMBER_ID, NO_IDENTITY, True),
        ("FENCED_INSTANCE_ID", Reaction.FAIL, NO_IDENTITY, True),
        ("GROUP_AUTHORIZATION_FAILED", Reaction.FAIL, NO_IDENTITY, True),
    ],
)
def test_a_refused_sync_has_the_effect_of_the_table(
    code: str, reaction: Reaction, identity: Identity, has_lost: bool
) -> None:
    one = member()
    joined(one)
    one.sync_request({})
    assert one.on_sync(SyncGroupResponse(error_code=ErrorCode[code]), 7.0) is reaction
    assert (one.state, one.identity, one.has_lost) == (State.UNJOINED, identity, has_lost)
    is_paused = reaction in (Reaction.RETRY, Reaction.FIND_COORDINATOR)
    assert one.is_join_due(7.0) is not is_paused
    assert one.is_join_due(7.0 + RETRY_PAUSE_S)
    assert (one.failure is not None) is (reaction is Reaction.FAIL)


@pytest.mark.parametrize(
    ("code", "state", "joins", "has_lost"),
    [
        ("REBALANCE_IN_PROGRESS", State.STABLE, True, False),
        ("NOT_COORDINATOR", State.STABLE, False, False),
        ("COORDINATOR_LOAD_IN_PROGRESS", State.STABLE, False, False),
        ("ILLEGAL_GENERATION", State.UNJOINED, True, True),
        ("UNKNOWN_MEMBER_ID", State.UNJOINED, True, True),
        ("FENCED_INSTANCE_ID", State.UNJOINED, True, True),
        ("GROUP_AUTHORIZATION_FAILED", State.STABLE, False, False),
    ],
)
def test_a_refused_heartbeat_has_the_effect_of_the_table(
    code: str, state: State, joins: bool, has_lost: bool
) -> None:
    one = member()
    stable(one, P0)
    one.on_error(Identity(5, "m-1"), ErrorCode[code], 0.0)
    assert (one.state, one.is_join_due(0.0), one.has_lost) == (state, joins, has_lost)
    is_raised = code in ("FENCED_INSTANCE_ID", "GROUP_AUTHORIZATION_FAILED")
    assert (one.failure is not None) is is_raised


def test_an_error_of_an_earlier_generation_has_no_effect() -> None:
    one = member()
    stable(one, P0)
    stale = Identity(4, "m-1")
    assert one.on_error(stale, ErrorCode.UNKNOWN_MEMBER_ID, 0.0) is None
    one.on_poll_timeout(stale)
    assert one.is_stable
    one.request_rejoin("test")
    one.join_request(["orders"], [P0])
    assert one.on_error(one.identity, ErrorCode.UNKNOWN_MEMBER_ID, 0.0) is None
    assert one.state is State.JOINING


def test_fencing_is_final_and_other_errors_are_raised_once() -> None:
    one = member(instance_id="i")
    stable(one, P0)
    one.on_error(one.identity, ErrorCode.FENCED_INSTANCE_ID, 0.0)
    for _ in range(2):
        with pytest.raises(BrokerError, match="another consumer has joined with the same instance"):
            one.raise_failure()
    other = member()
    other.join_request(["orders"], [])
    refusal = JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED)
    other.on_join(refusal, 0.0)
    with pytest.raises(BrokerError, match="as many members as the broker allows"):
        other.raise_failure()
    other.raise_failure()
    assert other.is_join_due(0.0)


def test_a_subscription_has_the_generation_of_its_partitions() -> None:
    one = member(assignors=("cooperative-sticky",))
    stable(one, P0, generation=5)

    def claimed() -> int | None:
        request = one.join_request(["orders"], [P0])
        subscription = decode_subscription(request.protocols[0].metadata)
        assert subscription is not None
        assert subscription.user_data == (subscription.generation or 0).to_bytes(4, signed=True)
        return subscription.generation

    one.request_rejoin("test")
    assert claimed() == 5
    # The group began another rebalance before the assignment of generation 6.
    one.on_join(joining(6, leader="m-9"), 0.0)
    one.sync_request({})
    one.on_sync(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0.0)
    assert claimed() == 5
    one.on_join(JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 0.0)
    assert claimed() == -1


def test_a_lost_request_is_sent_again_after_a_pause() -> None:
    one = member()
    joined(one)
    one.sync_request({})
    one.on_disconnect(3.0)
    assert (one.state, one.identity) == (State.UNJOINED, Identity(5, "m-1"))
    assert not one.is_join_due(3.0)
    assert one.is_join_due(3.0 + RETRY_PAUSE_S)
    assert one.on_sync(SyncGroupResponse(), 3.0) is None  # from the earlier connection
    assert one.state is State.UNJOINED


def test_only_dynamic_members_leave() -> None:
    one = member()
    assert one.leave_request("test", 5) is None
    stable(one)
    request = one.leave_request("test", 5)
    assert request is not None
    assert [each.member_id for each in request.members] == ["m-1"]
    request = one.leave_request("test", 2)
    assert request is not None
    assert (request.member_id, request.members) == ("m-1", [])
    static = member(instance_id="i")
    stable(static)
    assert static.leave_request("test", 5) is None


def test_a_malformed_assignment_is_an_error_after_which_it_joins_again() -> None:
    one = member()
    joined(one)
    one.sync_request({})
    one.on_sync(SyncGroupResponse(assignment=b"malformed"), 0.0)
    with pytest.raises(BrokerError, match="the leader of the group sent a malformed assignment"):
        one.take_assignment()
    assert one.is_join_due(0.0)


def test_a_group_is_cooperative_if_all_assignors_are() -> None:
    assert not member().is_cooperative
    assert member(assignors=("cooperative-sticky",)).is_cooperative


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"assignors": ("range", "best")}, "not best"),
        ({"assignors": ()}, "not none"),
        ({"heartbeat_interval_s": 50.0}, "below the session timeout"),
        ({"instance_id": ""}, "the instance id is empty"),
        ({"max_poll_records": 0}, "must be positive"),
    ],
)
def test_contradicting_settings_are_refused(config: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        member(**config)
