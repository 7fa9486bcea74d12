"""The state machine of one group, by transcripts of its members."""

from collections import Counter
from math import inf

import pytest

from metaquorum.dataplane.coordinators.group import classic_group, members
from metaquorum.dataplane.coordinators.group.group_shard import GroupConfigs
from metaquorum.dataplane.coordinators.group.rebalance_history import KEPT
from metaquorum.dataplane.coordinators.group.rebalancing import (
    ANSWERED_AT_ONCE,
    LEAST_DELAY_S,
    Awaited,
    GroupLimits,
)
from metaquorum.dataplane.coordinators.group.requests import JoinAnswer, LeavingMember, SyncAnswer
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, at_once
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.coordinators.group.coordinator import GROUP, Answers, Coordinator


def test_the_first_members_share_the_first_generation() -> None:
    coordinator = Coordinator()
    first, second = coordinator.join(), coordinator.join()
    assert coordinator.state == "PreparingRebalance"
    coordinator.wait(2.9)
    assert not first
    coordinator.wait(3.1)
    assert first.one.generation == second.one.generation == 1
    assert first.one.leader == second.one.leader == first.one.member_id
    assert [each.member_id for each in first.one.members] == [
        first.one.member_id,
        second.one.member_id,
    ]
    assert second.one.members == []
    assert coordinator.state == "CompletingRebalance"
    assignments = {first.one.member_id: b"a", second.one.member_id: b"b"}
    follower = coordinator.sync(second.one)
    assert not follower
    leader = coordinator.sync(first.one, assignments)
    assert (leader.one.assignment, follower.one.assignment) == (b"a", b"b")
    assert (leader.one.protocol_type, leader.one.protocol) == ("consumer", "range")
    assert coordinator.state == "Stable"


def test_the_initial_delay_is_extended_while_members_arrive_up_to_the_rebalance_timeout() -> None:
    coordinator = Coordinator()
    members = [coordinator.join(rebalance_s=8)]
    for _ in range(3):
        coordinator.wait(2)
        members.append(coordinator.join(rebalance_s=8))
    coordinator.wait(1.5)
    assert not any(members)
    coordinator.wait(0.6)  # 8.1 s after the first
    assert {answers.one.generation for answers in members} == {1}


def test_without_a_delay_members_that_arrive_together_share_the_first_generation() -> None:
    coordinator = Coordinator(GroupConfigs(GroupLimits(initial_rebalance_delay_s=0)))
    joins = [coordinator.join() for _ in range(3)]
    assert joins == [[], [], []]
    coordinator.wait(2 * LEAST_DELAY_S)  # the second time because of the members after the first
    assert [join.one.generation for join in joins] == [1, 1, 1]


@pytest.mark.parametrize("delay_s", [0, 3])
def test_the_first_generation_does_not_wait_for_pending_members(delay_s: int) -> None:
    coordinator = Coordinator(GroupConfigs(GroupLimits(initial_rebalance_delay_s=delay_s)))
    pending = coordinator.join(needs_member_id=True, session_s=30)
    assert pending.one.code is ErrorCode.MEMBER_ID_REQUIRED
    first = coordinator.join()
    coordinator.wait(max(delay_s, LEAST_DELAY_S))
    assert first.one.generation == 1
    second = coordinator.join(pending.one.member_id)
    coordinator.join(first.one.member_id)
    assert second.one.generation == 2


def test_an_assignment_is_not_shown_before_its_record_is_committed() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.join(), coordinator.join()
    coordinator.wait(6)
    coordinator.commits_at_once = False
    follower_sync = coordinator.sync(follower.one)
    leader_sync = coordinator.sync(leader.one, {follower.one.member_id: b"x"})
    again = coordinator.sync(follower.one)
    assert follower_sync.one.code is ErrorCode.REBALANCE_IN_PROGRESS  # sent again
    assert not leader_sync
    assert not again
    assert coordinator.state == "CompletingRebalance"
    coordinator.commit_all()
    assert again.one.assignment == b"x"
    assert leader_sync.one.assignment == b""
    assert coordinator.state == "Stable"


def test_an_assignment_that_was_not_recorded_begins_another_rebalance() -> None:
    coordinator = Coordinator()
    (member,) = [coordinator.join()]
    coordinator.wait(3)
    coordinator.commits_at_once = False
    sync = coordinator.sync(member.one, {member.one.member_id: b"x"})
    coordinator.uncommitted.clear()
    coordinator.group.rebalancing._assignment_failed(
        1, ErrorCode.COORDINATOR_NOT_AVAILABLE, coordinator.now
    )
    assert sync.one.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinator.wait(0)
    assert coordinator.state == "PreparingRebalance"
    assert coordinator.heartbeat(member.one) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_generation_has_one_assignment_even_if_its_record_was_late() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.join(), coordinator.join()
    coordinator.wait(6)
    coordinator.commits_at_once = False
    ids = leader.one.member_id, follower.one.member_id
    first = coordinator.sync(leader.one, {ids[0]: b"all"})
    coordinator.group.rebalancing._assignment_failed(
        1, ErrorCode.COORDINATOR_NOT_AVAILABLE, coordinator.now
    )
    assert first.one.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = coordinator.sync(leader.one, {ids[1]: b"all"})  # before the next rebalance has begun
    assert len(coordinator.uncommitted) == 1
    coordinator.commit_all()
    assert again.one.assignment == b"all"
    coordinator.fail_over()
    members = coordinator.group.members.by_id
    assert [members[each].assignment for each in ids] == [b"all", b""]


def test_members_that_leave_together_begin_one_rebalance() -> None:
    coordinator = Coordinator()
    first, second, third = coordinator.stable(3)
    for each in (first, third):
        coordinator.join(each.member_id)  # waits for the second
    leaving = [LeavingMember(each.member_id, None) for each in (second, third)]
    codes = coordinator.do(coordinator.shard.leave(coordinator.now, "g", leaving)).one
    assert codes == [ErrorCode.NONE] * 2
    assert coordinator.group.generation == 2
    assert len(coordinator.group.history.rebalances) == 2


def joined_in_a_large_group(coordinator: Coordinator) -> list[Answers]:
    """Let more members join than are answered in one step, and the first of them be answered."""
    coordinator.budget.limit_bytes = lambda: 1 << 24
    joins = [coordinator.join() for _ in range(2 * ANSWERED_AT_ONCE)]
    while not joins[0]:
        assert coordinator.shard.next_due < coordinator.now + 60
        coordinator.now = max(coordinator.now, coordinator.shard.next_due)
        coordinator.shard.due(coordinator.now, coordinator.now_ms)
    assert [bool(each) for each in joins] == [True] * ANSWERED_AT_ONCE + [False] * ANSWERED_AT_ONCE
    return joins


def test_a_large_group_is_answered_in_pieces() -> None:
    coordinator = Coordinator()
    joins = joined_in_a_large_group(coordinator)
    coordinator.wait(0)
    joined = [each.one for each in joins]
    assert {each.generation for each in joined} == {1}
    leader, *followers = joined
    syncs = [coordinator.sync(each) for each in followers]
    assigned = {each.member_id: each.member_id.encode() for each in joined}
    first = coordinator.sync(leader, assigned)
    assert [bool(each) for each in syncs].count(False) == ANSWERED_AT_ONCE
    coordinator.wait(0)
    answers = [first.one, *[each.one for each in syncs]]
    assert [each.assignment for each in answers] == [each.member_id.encode() for each in joined]


def test_members_of_a_large_group_take_part_in_a_rebalance_that_begins_before_their_answer() -> (
    None
):
    coordinator = Coordinator()
    joins = joined_in_a_large_group(coordinator)
    late = coordinator.join()
    coordinator.wait(0)
    assert not joins[-1]
    again = [coordinator.join(each.one.member_id) for each in joins[:ANSWERED_AT_ONCE]]
    coordinator.wait(0)
    everyone = [each.one for each in [*again, *joins[ANSWERED_AT_ONCE:], late]]
    assert {each.generation for each in everyone} == {2}
    coordinator.assign(everyone[:1])


def test_syncs_of_a_large_group_are_refused_if_a_rebalance_begins_before_their_answer() -> None:
    coordinator = Coordinator()
    joins = joined_in_a_large_group(coordinator)
    coordinator.wait(0)
    syncs = [coordinator.sync(each.one) for each in joins[1:]]
    coordinator.sync(joins[0].one, {each.one.member_id: b"all" for each in joins})
    coordinator.join()
    codes = Counter(each.one.code for each in syncs)
    assert codes == {
        ErrorCode.NONE: ANSWERED_AT_ONCE - 1,
        ErrorCode.REBALANCE_IN_PROGRESS: ANSWERED_AT_ONCE,
    }


def test_syncs_of_a_large_group_are_refused_in_pieces() -> None:
    coordinator = Coordinator()
    joins = joined_in_a_large_group(coordinator)
    coordinator.wait(0)
    syncs = [coordinator.sync(each.one) for each in joins[1:]]
    again = coordinator.sync(joins[-1].one)  # the one before is answered at once
    late = coordinator.join()
    assert [bool(each) for each in syncs].count(True) == ANSWERED_AT_ONCE + 1
    assert not again
    coordinator.wait(0)
    refused = [*syncs, again]
    assert {each.one.code for each in refused} == {ErrorCode.REBALANCE_IN_PROGRESS}
    assert not late


def test_a_sync_that_waits_is_refused_before_its_member_takes_part_in_the_next_generation() -> None:
    coordinator = Coordinator()
    joins = joined_in_a_large_group(coordinator)
    coordinator.wait(0)
    early = [coordinator.sync(each.one) for each in joins[1:]]
    coordinator.join()  # begins a rebalance; all have joined before the last syncs are refused
    again = [coordinator.join(each.one.member_id) for each in joins[:-1]]
    assert not early[-1]
    again.append(coordinator.join(joins[-1].one.member_id))
    assert early[-1].one.code is ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.sync(again[0].one, {})
    next_sync = coordinator.sync(again[1].one)
    coordinator.wait(0)
    assert next_sync.one.code is ErrorCode.NONE
    assert {each.one.code for each in early} == {ErrorCode.REBALANCE_IN_PROGRESS}


def test_a_member_that_joins_later_begins_a_rebalance() -> None:
    coordinator = Coordinator()
    (first,) = coordinator.stable()
    second = coordinator.join()
    assert coordinator.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert not second
    again = coordinator.join(first.member_id)
    assert again.one.generation == second.one.generation == 2
    coordinator.assign([again.one, second.one])
    assert coordinator.heartbeat(again.one) is ErrorCode.NONE


def test_members_that_do_not_join_again_are_removed_after_the_rebalance_timeout() -> None:
    coordinator = Coordinator()
    first, second = coordinator.stable(2, session_s=100, rebalance_s=20)
    third = coordinator.join(session_s=100, rebalance_s=20)
    again = coordinator.join(second.member_id, session_s=100, rebalance_s=20)
    coordinator.wait(19)
    assert not again
    coordinator.wait(2)
    assert again.one.generation == third.one.generation == 2
    assert again.one.leader == again.one.member_id  # the first member was the leader
    assert coordinator.heartbeat(first) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("age_s", [0, 5, 9])
def test_a_session_ends_its_timeout_after_the_last_heartbeat(age_s: float) -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable(session_s=10)
    coordinator.wait(age_s)
    assert coordinator.heartbeat(member) is ErrorCode.NONE
    coordinator.wait(9.9)
    assert coordinator.state == "Stable"
    coordinator.wait(0.2)
    assert coordinator.state == "Empty"
    assert coordinator.heartbeat(member) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_waiting_join_keeps_the_session_and_a_dropped_one_does_not() -> None:
    coordinator = Coordinator()
    first, second = coordinator.stable(2, session_s=10, rebalance_s=300)
    third = coordinator.join(session_s=10, rebalance_s=300)
    for _ in range(6):
        coordinator.wait(9)
        assert coordinator.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID
    assert not third
    coordinator.shard.drop_join(coordinator.now, "g", list(coordinator.group.members.by_id)[-1])
    coordinator.wait(9)
    again = coordinator.join(first.member_id, rebalance_s=300)
    assert not again  # the third member has to join again, or to end
    coordinator.wait(2)
    assert [each.member_id for each in again.one.members] == [first.member_id]
    assert not third


def test_a_waiting_sync_keeps_the_session() -> None:
    """The leader may compute the assignment for longer than the session timeout of the others."""
    coordinator = Coordinator()
    waiting = [coordinator.join(session_s=10, rebalance_s=300) for _ in range(2)]
    coordinator.wait(6)
    joined: list[JoinAnswer] = [answers.one for answers in waiting]
    leader, follower = sorted(joined, key=lambda each: each.member_id != each.leader)
    synced = coordinator.sync(follower)
    for _ in range(4):
        coordinator.wait(9)
        assert coordinator.heartbeat(leader) is ErrorCode.NONE
    assert not synced
    coordinator.sync(leader, {follower.member_id: b"a"})
    assert synced.one == SyncAnswer(ErrorCode.NONE, "consumer", "range", b"a")
    # From then on the session ends as any other.
    coordinator.wait(9.9)
    assert coordinator.heartbeat(leader) is ErrorCode.NONE
    coordinator.wait(0.2)
    assert coordinator.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("cause", ["a rebalance begins", "the assignment is not recorded"])
def test_the_session_begins_again_with_the_refusal_of_a_sync_that_waited(cause: str) -> None:
    """The member has as much time for its next request as after any other answer."""
    coordinator = Coordinator()
    waiting = [coordinator.join(session_s=10, rebalance_s=300) for _ in range(2)]
    coordinator.wait(6)
    joined: list[JoinAnswer] = [answers.one for answers in waiting]
    leader, follower = sorted(joined, key=lambda each: each.member_id != each.leader)
    synced = coordinator.sync(follower)
    for _ in range(2):
        coordinator.wait(9.5)
        assert coordinator.heartbeat(leader) is ErrorCode.NONE
    if cause == "a rebalance begins":
        coordinator.join(session_s=10, rebalance_s=300)
        assert synced.one.code is ErrorCode.REBALANCE_IN_PROGRESS
    else:
        coordinator.commits_at_once = False
        coordinator.sync(leader, {follower.member_id: b"a"})
        coordinator.group.rebalancing._assignment_failed(
            1, ErrorCode.COORDINATOR_NOT_AVAILABLE, coordinator.now
        )
        assert synced.one.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinator.wait(9.9)
    assert follower.member_id in coordinator.group.members
    coordinator.wait(0.2)
    assert follower.member_id not in coordinator.group.members


def test_a_shorter_session_timeout_applies_at_once() -> None:
    coordinator = Coordinator()
    first, second = coordinator.stable(2, session_s=1800)
    again = [coordinator.join(each.member_id, session_s=10) for each in (first, second)]
    coordinator.assign([each.one for each in again])
    coordinator.wait(11)
    assert coordinator.heartbeat(first) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_shorter_session_timeout_of_a_restarted_static_member_applies_at_once() -> None:
    coordinator = Coordinator()
    coordinator.stable(instance_id="i", session_s=1800)
    restarted = coordinator.join(instance_id="i", session_s=10).one
    assert coordinator.heartbeat(restarted) is ErrorCode.NONE
    coordinator.wait(11)
    assert coordinator.heartbeat(restarted) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_muted_member_keeps_its_session() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable(session_s=10)
    coordinator.group.members.by_id[member.member_id].muted_until = lambda _: 200.0
    coordinator.wait(205 - coordinator.now)
    assert coordinator.state == "Stable"
    coordinator.wait(6)
    assert coordinator.state == "Empty"


def test_a_new_member_is_told_its_id_and_is_pending_until_it_joins() -> None:
    coordinator = Coordinator()
    told = coordinator.join(needs_member_id=True)
    assert told.one.code is ErrorCode.MEMBER_ID_REQUIRED
    assert told.one.member_id
    assert coordinator.state == "Empty"
    joined = coordinator.join(told.one.member_id, needs_member_id=True)
    coordinator.wait(3)
    assert joined.one.member_id == told.one.member_id
    assert joined.one.generation == 1


def test_a_pending_member_holds_a_rebalance_up_until_its_session_would_end() -> None:
    coordinator = Coordinator()
    (first,) = coordinator.stable(session_s=100)
    coordinator.join(needs_member_id=True, session_s=10)
    second = coordinator.join()
    again = coordinator.join(first.member_id)
    coordinator.wait(9)
    assert not again
    coordinator.wait(2)
    assert again.one.generation == second.one.generation == 2


def test_pending_members_are_bounded() -> None:
    coordinator = Coordinator(GroupConfigs(GroupLimits(max_pending=4)))
    codes = [coordinator.join(needs_member_id=True).one.code for _ in range(3)]
    # An error that clients retry: the group may have room for more members soon.
    assert codes == [ErrorCode.MEMBER_ID_REQUIRED] * 2 + [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_a_client_does_not_keep_others_from_joining_by_pending_members() -> None:
    coordinator = Coordinator(GroupConfigs(GroupLimits(max_pending=100)))
    for client, count in (("a", 50), ("b", 25), ("c", 12)):
        codes = [
            coordinator.join(needs_member_id=True, client=client, session_s=10).one.code
            for _ in range(100)
        ]
        assert codes.count(ErrorCode.MEMBER_ID_REQUIRED) == count
    new = coordinator.join(needs_member_id=True, client="d").one
    assert new.code is ErrorCode.MEMBER_ID_REQUIRED
    coordinator.wait(11)
    for _ in range(49):
        new = coordinator.join(needs_member_id=True, client="a").one
        assert new.code is ErrorCode.MEMBER_ID_REQUIRED


def test_a_rebalance_without_members_keeps_its_protocol_type() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable()
    pending = coordinator.join(needs_member_id=True).one
    waiting = coordinator.join(member.member_id)
    coordinator.leave(member.member_id)
    assert (waiting.one.code, coordinator.state) == (
        ErrorCode.UNKNOWN_MEMBER_ID,
        "PreparingRebalance",
    )
    refused = coordinator.join(protocol_type="connect").one
    assert refused.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    coordinator.join(pending.member_id)
    assert coordinator.state == "CompletingRebalance"


def test_a_group_takes_at_most_its_maximum_of_members() -> None:
    coordinator = Coordinator(GroupConfigs(GroupLimits(max_size=2)))
    coordinator.stable(2)
    assert coordinator.join().one.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert coordinator.state == "Stable"


def test_a_pending_member_that_finds_the_group_full_is_not_awaited() -> None:
    coordinator = Coordinator(GroupConfigs(GroupLimits(max_size=2)))
    (first,) = coordinator.stable()
    late = coordinator.join(needs_member_id=True, session_s=1800).one
    second = coordinator.join()
    again = coordinator.join(first.member_id)
    assert not again  # the pending member is awaited
    refused = coordinator.join(late.member_id, session_s=1800).one
    assert (refused.code, refused.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert again.one.generation == second.one.generation == 2


def test_the_protocol_that_all_support_and_most_prefer_is_selected() -> None:
    coordinator = Coordinator()
    waiting = [
        coordinator.join(protocols=[("a", b"1"), ("b", b"1"), ("c", b"1")]),
        coordinator.join(protocols=[("c", b"2"), ("b", b"2")]),
        coordinator.join(protocols=[("c", b"3"), ("b", b"3"), ("d", b"3")]),
    ]
    coordinator.wait(10)
    assert {answers.one.protocol for answers in waiting} == {"c"}
    leader = next(each.one for each in waiting if each.one.leader == each.one.member_id)
    assert [each.metadata for each in leader.members] == [b"1", b"2", b"3"]


def test_a_protocol_that_most_prefer_is_not_selected_if_one_member_does_not_support_it() -> None:
    coordinator = Coordinator()
    both, one = [("a", b"s"), ("b", b"s")], [("b", b"s")]
    waiting = [coordinator.join(protocols=each) for each in (both, both, one)]
    coordinator.wait(10)
    assert {answers.one.protocol for answers in waiting} == {"b"}


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [
        ("connect", [("range", b"")]),
        ("consumer", [("other", b"")]),
        ("consumer", []),
        ("", [("range", b"")]),
    ],
)
def test_protocols_that_do_not_fit_are_refused(
    protocol_type: str, protocols: list[tuple[str, bytes]]
) -> None:
    coordinator = Coordinator()
    coordinator.stable()
    answers = coordinator.join(protocol_type=protocol_type, protocols=protocols)
    assert answers.one.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_follower_that_joins_again_unchanged_gets_the_same_generation() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.stable(2)
    assert coordinator.join(follower.member_id).one.generation == 1
    assert coordinator.state == "Stable"
    assert not coordinator.join(leader.member_id)  # a leader asks for another assignment
    assert coordinator.state == "PreparingRebalance"


def test_a_changed_subscription_begins_a_rebalance() -> None:
    coordinator = Coordinator()
    _, follower = coordinator.stable(2)
    assert not coordinator.join(follower.member_id, protocols=[("range", b"other")])
    assert coordinator.state == "PreparingRebalance"


def test_a_lost_answer_is_given_again_before_the_assignment() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.join(), coordinator.join()
    coordinator.wait(6)
    assert coordinator.join(leader.one.member_id).one.members == leader.one.members
    assert coordinator.join(follower.one.member_id).one.generation == 1
    assert coordinator.state == "CompletingRebalance"


def test_a_change_before_the_assignment_ends_the_waiting_syncs() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.join(), coordinator.join()
    coordinator.wait(6)
    waiting = coordinator.sync(follower.one)
    assert coordinator.leave(leader.one.member_id) is ErrorCode.NONE
    assert waiting.one.code is ErrorCode.REBALANCE_IN_PROGRESS
    again = coordinator.join(follower.one.member_id)
    assert again.one.generation == 2


def test_an_assignment_of_an_earlier_generation_is_not_applied() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.join(), coordinator.join()
    coordinator.wait(6)
    coordinator.commits_at_once = False
    coordinator.sync(leader.one, {follower.one.member_id: b"old"})
    coordinator.leave(leader.one.member_id)
    again = coordinator.join(follower.one.member_id)
    coordinator.commit_all()
    assert again.one.generation == 2
    assert coordinator.state == "CompletingRebalance"
    assert coordinator.sync(again.one, generation=1).one.code is ErrorCode.ILLEGAL_GENERATION


def test_a_late_record_of_an_earlier_generation_is_not_shown_in_place_of_a_pending_one() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.join(), coordinator.join()
    coordinator.wait(6)
    coordinator.commits_at_once = False
    coordinator.sync(leader.one, {follower.one.member_id: b"old"})
    coordinator.leave(leader.one.member_id)
    again = coordinator.join(follower.one.member_id).one
    syncing = coordinator.sync(again, {again.member_id: b"new"})
    coordinator.commit_one()
    assert not syncing
    assert coordinator.state == "CompletingRebalance"
    coordinator.commit_all()
    assert syncing.one.assignment == b"new"


def test_members_without_a_sync_are_removed_after_the_rebalance_timeout() -> None:
    coordinator = Coordinator()
    leader = coordinator.join(session_s=1000, rebalance_s=20)
    silent = coordinator.join(session_s=1000, rebalance_s=20)
    coordinator.wait(6)
    coordinator.sync(leader.one, {leader.one.member_id: b"x"})
    assert coordinator.state == "Stable"
    coordinator.wait(21)
    assert coordinator.heartbeat(leader.one) is ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.heartbeat(silent.one) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_late_assignment_does_not_extend_the_time_of_the_other_syncs() -> None:
    coordinator = Coordinator()
    leader = coordinator.join(session_s=1000, rebalance_s=20)
    silent = coordinator.join(session_s=1000, rebalance_s=20)
    coordinator.wait(6)
    coordinator.wait(15)
    coordinator.sync(leader.one, {leader.one.member_id: b"x"})
    coordinator.wait(4)
    assert coordinator.heartbeat(leader.one) is ErrorCode.NONE
    coordinator.wait(2)
    assert coordinator.heartbeat(leader.one) is ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.heartbeat(silent.one) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_without_a_sync_is_removed_after_the_rebalance_timeout() -> None:
    coordinator = Coordinator()
    leader = coordinator.join(session_s=1000, rebalance_s=20)
    follower = coordinator.join(session_s=1000, rebalance_s=20)
    coordinator.wait(6)
    waiting = coordinator.sync(follower.one)
    coordinator.wait(21)
    assert waiting.one.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.heartbeat(leader.one) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.join(follower.one.member_id).one.leader == follower.one.member_id


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"generation": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "roundrobin"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_wrong_sync_is_refused(change: dict[str, object], code: ErrorCode) -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable()
    instance_id = change.pop("instance_id", None)
    answers = coordinator.sync(member, instance_id=instance_id, **change)  # type: ignore[arg-type]
    assert answers.one.code is code


def test_a_sync_during_a_rebalance_is_refused() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable()
    coordinator.join()
    assert coordinator.sync(member).one.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_last_member_that_leaves_empties_the_group_on_record() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable()
    assert coordinator.leave(member.member_id) is ErrorCode.NONE
    assert coordinator.state == "Empty"
    coordinator.fail_over()
    assert coordinator.state == "Empty"
    assert coordinator.group.generation == 2
    assert coordinator.leave(member.member_id) is ErrorCode.UNKNOWN_MEMBER_ID


def test_another_coordinator_restores_members_generation_and_assignment() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.stable(2)
    coordinator.fail_over()
    assert coordinator.state == "Stable"
    assert coordinator.heartbeat(leader) is ErrorCode.NONE
    assert coordinator.sync(follower).one.assignment == follower.member_id.encode()
    assert coordinator.group.members.leader == leader.member_id
    coordinator.wait(11)
    assert coordinator.state == "Empty"  # sessions begin when the group is loaded


def test_another_coordinator_restores_timeouts_and_instance_ids() -> None:
    coordinator = Coordinator()
    waiting = [coordinator.join(instance_id=each, session_s=20, rebalance_s=40) for each in "ab"]
    coordinator.wait(6)
    first, second = (each.one for each in waiting)
    coordinator.sync(first, {}, instance_id="a")
    coordinator.fail_over()
    members = coordinator.group.members
    assert members.static_ids == {"a": first.member_id, "b": second.member_id}
    assert {each.session_timeout_ms for each in members} == {20_000}
    assert {each.rebalance_timeout_ms for each in members} == {40_000}
    assert coordinator.group.protocol == "range"
    assert coordinator.group.protocol_type == "consumer"


def test_a_generation_without_an_assignment_does_not_survive_its_coordinator() -> None:
    coordinator = Coordinator()
    joined = coordinator.join()
    coordinator.wait(3)
    coordinator.fail_over()
    assert coordinator.heartbeat(joined.one) is ErrorCode.UNKNOWN_MEMBER_ID


def test_unloading_answers_everything_that_waits() -> None:
    coordinator = Coordinator()
    joining = coordinator.join()
    coordinator.fail_over()
    assert joining.one.code is ErrorCode.NOT_COORDINATOR
    leader, follower = coordinator.join(), coordinator.join()
    coordinator.wait(6)
    syncing = coordinator.sync(follower.one)
    coordinator.fail_over()
    assert syncing.one.code is ErrorCode.NOT_COORDINATOR
    assert leader.one.generation == 1


# Static members (KIP-345)


def static_pair(coordinator: Coordinator) -> tuple[object, object]:
    waiting = [coordinator.join(instance_id="a"), coordinator.join(instance_id="b")]
    coordinator.wait(6)
    first, second = (each.one for each in waiting)
    coordinator.sync(second, instance_id="b")
    coordinator.sync(first, {first.member_id: b"1", second.member_id: b"2"}, instance_id="a")
    return first, second


def test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance() -> None:
    coordinator = Coordinator()
    _, second = static_pair(coordinator)
    restarted = coordinator.join(instance_id="b")
    assert restarted.one.generation == 1
    assert restarted.one.member_id != second.member_id  # type: ignore[attr-defined]
    assert coordinator.sync(restarted.one, instance_id="b").one.assignment == b"2"
    assert coordinator.state == "Stable"
    coordinator.fail_over()
    assert coordinator.heartbeat(restarted.one, instance_id="b") is ErrorCode.NONE
    assert coordinator.sync(restarted.one, instance_id="b").one.assignment == b"2"
    assert coordinator.join(instance_id="b").one.generation == 1
    assert coordinator.heartbeat(restarted.one, instance_id="b") is ErrorCode.FENCED_INSTANCE_ID


def test_the_process_that_was_replaced_is_fenced() -> None:
    coordinator = Coordinator()
    _, second = static_pair(coordinator)
    coordinator.join(instance_id="b")
    member = second
    assert coordinator.heartbeat(member, instance_id="b") is ErrorCode.FENCED_INSTANCE_ID  # type: ignore[arg-type]
    assert coordinator.sync(member, instance_id="b").one.code is ErrorCode.FENCED_INSTANCE_ID  # type: ignore[arg-type]
    fenced = coordinator.join(member.member_id, instance_id="b")  # type: ignore[attr-defined]
    assert fenced.one.code is ErrorCode.FENCED_INSTANCE_ID
    assert coordinator.leave(member.member_id, "b") is ErrorCode.FENCED_INSTANCE_ID  # type: ignore[attr-defined]


def test_a_waiting_join_of_the_replaced_process_is_fenced() -> None:
    coordinator = Coordinator()
    waiting = coordinator.join(instance_id="a")
    other = coordinator.join(instance_id="a")
    assert waiting.one.code is ErrorCode.FENCED_INSTANCE_ID
    coordinator.wait(6)
    assert other.one.generation == 1


def test_a_replaced_leader_may_keep_the_assignment() -> None:
    coordinator = Coordinator()
    static_pair(coordinator)
    restarted = coordinator.join(instance_id="a").one
    assert restarted.skip_assignment
    assert restarted.leader == restarted.member_id
    assert len(restarted.members) == 2
    coordinator.fail_over()
    assert coordinator.group.members.leader == restarted.member_id


def test_a_static_member_that_restarts_before_the_assignment_begins_a_rebalance() -> None:
    """An answer with this generation would record the assignments of an earlier one for it."""
    coordinator = Coordinator()
    first, second = (coordinator.join(instance_id=each) for each in "ab")
    coordinator.wait(6)
    coordinator.commits_at_once = False
    syncing = coordinator.sync(first.one, {second.one.member_id: b"all"}, instance_id="a")
    restarted = coordinator.join(instance_id="b")
    assert not restarted
    assert syncing.one.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.state == "PreparingRebalance"
    assert len(coordinator.uncommitted) == 1


def test_a_static_member_that_restarts_with_another_protocol_begins_a_rebalance() -> None:
    coordinator = Coordinator()
    waiting = coordinator.join(instance_id="a", protocols=[("range", b"s"), ("sticky", b"s")])
    coordinator.wait(3)
    coordinator.sync(waiting.one, {}, instance_id="a")
    assert coordinator.state == "Stable"
    restarted = coordinator.join(instance_id="a", protocols=[("sticky", b"s")])
    coordinator.wait(0)
    assert restarted.one.generation == 2
    assert restarted.one.protocol == "sticky"


def test_an_id_of_a_dynamic_member_is_not_that_of_a_static_one() -> None:
    coordinator = Coordinator()
    given = coordinator.join(needs_member_id=True).one.member_id
    refused = coordinator.join(given, instance_id="a").one
    assert refused.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_requests_of_a_member_that_is_removed_are_answered() -> None:
    coordinator = Coordinator()
    first, second = coordinator.stable(2)
    joining = coordinator.join(first.member_id, protocols=[("range", b"other")])
    assert not joining
    assert coordinator.leave(first.member_id) is ErrorCode.NONE
    assert joining.one.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(second) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_subscription_that_changes_before_the_assignment_begins_another_rebalance() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.join(), coordinator.join()
    coordinator.wait(6)
    assert leader.one.generation == 1
    syncing = coordinator.sync(follower.one)
    changed = coordinator.join(follower.one.member_id, protocols=[("range", b"other")])
    assert not changed
    assert coordinator.state == "PreparingRebalance"
    assert syncing.one.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_another_order_of_preference_is_another_subscription() -> None:
    coordinator = Coordinator()
    protocols = [("x", b"1"), ("y", b"2")]
    _, follower = coordinator.stable(2, protocols=protocols)
    assert coordinator.join(follower.member_id, protocols=protocols).one.generation == 1
    assert not coordinator.join(follower.member_id, protocols=protocols[::-1])
    assert coordinator.state == "PreparingRebalance"


def test_of_several_protocols_with_the_same_name_the_first_counts() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable(protocols=[("x", b"1"), ("x", b"2"), ("y", b"3")])
    assert (member.protocol, [each.metadata for each in member.members]) == ("x", [b"1"])
    coordinator.leave(member.member_id)
    assert not coordinator.group.members.metadata_bytes


def test_a_replaced_member_with_the_same_protocols_does_not_turn_a_tie() -> None:
    coordinator = Coordinator()
    orders = {"a": [("x", b""), ("y", b"")], "b": [("y", b""), ("x", b"")]}
    joining = [coordinator.join(instance_id=each, protocols=orders[each]) for each in "ab"]
    coordinator.wait(6)
    assert {each.one.protocol for each in joining} == {"x"}
    coordinator.assign([each.one for each in joining])
    again = coordinator.join(instance_id="a", protocols=orders["a"]).one
    assert (again.generation, again.protocol, coordinator.state) == (1, "x", "Stable")


@pytest.mark.parametrize("is_assigned", [True, False])
def test_many_members_that_are_late_are_all_removed(is_assigned: bool) -> None:
    coordinator = Coordinator()
    joining = [coordinator.join(session_s=300) for _ in range(3 * PIECE_ROWS)]
    coordinator.wait(6)
    joined = [each.one for each in joining]
    if is_assigned:
        coordinator.assign(joined)
        coordinator.leave(joined[0].member_id)
    coordinator.wait(70)
    assert (coordinator.state, len(coordinator.group.members)) == ("Empty", 0)
    assert coordinator.heartbeat(joined[-1]) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_older_replaced_leader_is_told_that_another_one_leads() -> None:
    coordinator = Coordinator()
    first, _ = static_pair(coordinator)
    restarted = coordinator.join(instance_id="a", may_skip_assignment=False).one
    assert restarted.leader == first.member_id  # type: ignore[attr-defined]
    assert restarted.leader != restarted.member_id
    assert restarted.members == []


def test_the_new_id_of_a_static_member_is_not_told_before_it_is_recorded() -> None:
    coordinator = Coordinator()
    static_pair(coordinator)
    coordinator.commits_at_once = False
    restarted = coordinator.join(instance_id="b")
    assert not restarted
    coordinator.commit_all()
    assert restarted.one.generation == 1


def test_a_static_member_leaves_by_its_instance_id_alone() -> None:
    coordinator = Coordinator()
    static_pair(coordinator)
    assert coordinator.leave("", "b") is ErrorCode.NONE
    assert coordinator.leave("", "b") is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.state == "PreparingRebalance"


def test_a_static_member_that_does_not_join_in_time_stays_until_its_session_ends() -> None:
    coordinator = Coordinator()
    waiting = [coordinator.join(instance_id=name, session_s=50, rebalance_s=10) for name in "ab"]
    coordinator.wait(6)
    first, second = (each.one for each in waiting)
    coordinator.sync(second, instance_id="b")
    coordinator.sync(first, {}, instance_id="a")
    third = coordinator.join(session_s=50, rebalance_s=10)
    again = coordinator.join(first.member_id, instance_id="a", session_s=50, rebalance_s=10)
    coordinator.wait(11)
    assert again.one.generation == third.one.generation == 2
    assert {each.instance_id for each in again.one.members} == {"a", "b", None}


def test_static_members_without_a_rebalance_timeout_do_not_keep_the_loop_busy() -> None:
    coordinator = Coordinator()
    static_pair(coordinator)
    restarted = [coordinator.join(instance_id=name, rebalance_s=0) for name in "ab"]
    assert [answers.one.code for answers in restarted] == [ErrorCode.NONE] * 2
    coordinator.leave("", "a")
    calls, end = 0, coordinator.now + 5
    while coordinator.shard.next_due <= end:
        calls += 1
        assert calls < 20
        coordinator.now = max(coordinator.now, coordinator.shard.next_due)
        coordinator.shard.due(coordinator.now, coordinator.now_ms)
    assert coordinator.state == "PreparingRebalance"  # until b joins, or its session ends
    coordinator.wait(6)
    assert coordinator.state == "Empty"


# History of rebalances


def test_the_history_names_cause_and_length() -> None:
    coordinator = Coordinator()
    first, second = coordinator.stable(2)
    coordinator.wait(1)
    coordinator.heartbeat(first)
    coordinator.heartbeat(second)
    coordinator.leave(second.member_id)
    coordinator.wait(2)
    again = coordinator.join(first.member_id)
    coordinator.assign([again.one])
    begin, leave = coordinator.group.history.rebalances
    assert (begin.cause, begin.generation) == ("a member has joined", 1)
    assert (leave.cause, leave.member_id) == ("a member has left", second.member_id)
    assert leave.ended - leave.began == pytest.approx(2)


def test_memory_of_members_is_counted_and_returned() -> None:
    coordinator = Coordinator()
    before = coordinator.budget.used_bytes
    first, second = coordinator.stable(2, protocols=[("range", bytes(10_000))])
    assert coordinator.budget.used_bytes - before > 20_000
    coordinator.leave(first.member_id)
    coordinator.leave(second.member_id)
    assert coordinator.budget.used_bytes - before < 4000
    at_once(coordinator.shard.unload())
    assert coordinator.budget.used_bytes == before


def test_names_count_with_the_memory_of_their_widest_character() -> None:
    coordinator = Coordinator()
    name = 20_000 * "a" + "\U0001f600"
    coordinator.join(needs_member_id=True, new_member_id=name)
    assert coordinator.budget.used_bytes > 80_000
    coordinator.wait(11)
    assert coordinator.budget.used_bytes < 4000


def test_the_history_of_a_group_is_counted_and_has_no_long_names() -> None:
    coordinator = Coordinator()
    for _ in range(2 * KEPT):
        joined = coordinator.join(instance_id="x" * 4000, reason="r" * 5000)
        coordinator.wait(5)
        before = coordinator.budget.used_bytes
        coordinator.leave(joined.one.member_id, "x" * 4000)
        history = coordinator.group.history.rebalances
        assert before > 300 * len(history)
    assert len(history) == KEPT
    assert max(each.size_bytes for each in history) < 2000
    at_once(coordinator.shard.unload())
    assert coordinator.budget.used_bytes == 0


def test_a_group_has_a_largest_size_without_a_limit_in_its_configs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of static members that closed their connections, which `group.max.size` allows."""
    monkeypatch.setattr(classic_group, "MAX_MEMBERS", 3)
    coordinator = Coordinator()
    for number in range(3):
        coordinator.join(instance_id=str(number))
    for member in coordinator.group.members:
        coordinator.shard.drop_join(coordinator.now, GROUP, member.member_id)
    refused = coordinator.join(instance_id="3")
    assert refused.one.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not coordinator.join(instance_id="2")  # takes the place of a member


def test_a_member_that_would_exceed_the_memory_of_groups_is_refused() -> None:
    coordinator = Coordinator()
    coordinator.stable()
    answers = coordinator.join(protocols=[("range", bytes(2 << 20))])
    assert answers.one.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert coordinator.state == "Stable"


def test_known_members_stay_when_the_memory_is_used_up() -> None:
    """As after a failover, when a worker gets the groups of another one, too."""
    coordinator = Coordinator()
    first, second = coordinator.stable(2, protocols=[("range", bytes(200_000))])
    coordinator.budget.limit_bytes = lambda: 450_000
    assert coordinator.join().one.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    both = [("range", bytes(200_000)), ("sticky", bytes(1000))]
    rejoins = [coordinator.join(each.member_id, protocols=both) for each in (first, second)]
    synced = coordinator.assign([each.one for each in rejoins])
    assert [each.code for each in synced] == [ErrorCode.NONE] * 2
    more = coordinator.join(first.member_id, protocols=[("range", bytes(700_000))])
    assert more.one.code is ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize(
    ("session_s", "ok"), [(5.9, False), (6, True), (1800, True), (1801, False)]
)
def test_session_timeouts_are_bounded(session_s: float, ok: bool) -> None:
    answers = Coordinator().join(session_s=session_s)
    assert ok == (not answers)
    assert ok or answers.one.code is ErrorCode.INVALID_SESSION_TIMEOUT


# Events that the group waits for


def test_a_group_waits_for_the_record_of_its_assignment_without_a_limit() -> None:
    coordinator = Coordinator()
    answers = coordinator.join()
    assert coordinator.group.rebalancing.awaited is Awaited.MORE_MEMBERS
    coordinator.wait(3)
    assert coordinator.group.rebalancing.awaited is Awaited.ASSIGNMENT
    assert coordinator.group.rebalancing.wait_ends_at == coordinator.now + 60
    coordinator.commits_at_once = False
    coordinator.sync(answers.one, {answers.one.member_id: b""})
    assert coordinator.group.rebalancing.awaited is Awaited.COMMIT
    assert coordinator.group.rebalancing.wait_ends_at == inf
    assert not any(map(coordinator.group.rebalancing.is_late, coordinator.group.members))
    coordinator.commit_all()
    assert coordinator.group.rebalancing.awaited is Awaited.NOTHING


def test_a_static_member_that_returns_in_the_first_rebalance_does_not_wait_for_its_timeout() -> (
    None
):
    """Its process was restarted before the initial delay was over: it is the only member."""
    coordinator = Coordinator()
    coordinator.join(instance_id="x", rebalance_s=300)
    (member_id,) = coordinator.shard.groups[GROUP].members.by_id
    coordinator.shard.drop_join(coordinator.now, GROUP, member_id)
    coordinator.wait(5)
    joined = coordinator.join(instance_id="x", rebalance_s=300)
    coordinator.wait(1)
    assert joined.one.code is ErrorCode.NONE
    assert joined.one.generation == 1


def test_the_metadata_of_all_members_of_a_group_has_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader receives it, as often as it asks for it."""
    monkeypatch.setattr(members, "MAX_METADATA_BYTES", 300)
    coordinator = Coordinator()
    first, second = (
        coordinator.join(instance_id=name, protocols=[("range", bytes(100))]) for name in "xy"
    )
    refused = coordinator.join(protocols=[("range", bytes(101))])
    assert refused.one.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    coordinator.wait(7)
    assert first.one.code is ErrorCode.NONE
    coordinator.join(instance_id="x", protocols=[("range", bytes(200))])
    assert coordinator.group.members.metadata_bytes == 300
    grown = coordinator.join(
        second.one.member_id, instance_id="y", protocols=[("range", bytes(101))]
    )
    assert grown.one.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert coordinator.group.members.metadata_bytes == 200  # that member was removed, as in Kafka
    coordinator.leave("", "x")
    assert coordinator.group.members.metadata_bytes == 0
