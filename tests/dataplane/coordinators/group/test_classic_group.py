"""Transcripts of a classic group: one or several for each row of its tables."""

from collections.abc import Callable

import pytest

from dataplane.coordinators.group.classic_group import NEW_MEMBER_JOIN_TIMEOUT_S
from dataplane.coordinators.group.group_state import (
    COMPLETING,
    DEAD,
    EMPTY,
    PREPARING,
    STABLE,
    TRANSITIONS,
    State,
)
from dataplane.coordinators.group.membership import MOST_PENDING
from dataplane.coordinators.group.requests import (
    MOST_PROTOCOLS,
    GroupLimits,
    JoinRequest,
    LeaveMember,
    Protocol,
    check_join,
)
from tests.dataplane.coordinators.group.group_driver import (
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    WALL_MS,
    Driver,
)
from wire.primitives.errors import ErrorCode

OK = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
IN_PROGRESS = ErrorCode.REBALANCE_IN_PROGRESS
FENCED = ErrorCode.FENCED_INSTANCE_ID
OTHER = (Protocol("range", b"other"),)
BOTH = (Protocol("range", b"r"), Protocol("sticky", b"s"))


def in_state(state: State) -> tuple[Driver, str, str]:
    """Return a group of two members in this state, and the ids of leader and follower."""
    driver = Driver()
    leader, follower = driver.stable()
    if state is PREPARING:
        driver.join(leader)
    elif state is COMPLETING:
        driver.join(leader)
        driver.join(follower)
    assert driver.group.state is state
    return driver, leader, follower


# Joins of new members


def test_a_client_without_an_id_gets_one_and_joins_with_it() -> None:
    driver = Driver()
    answer = driver.join().answer
    assert (answer.error, answer.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "client-1")
    assert driver.group.state is EMPTY
    joined = driver.join(answer.member_id)
    assert joined.waits
    assert driver.group.state is PREPARING
    driver.advance(3)
    assert joined.answer.error is OK
    assert joined.answer.leader == joined.answer.member_id == "client-1"
    assert [row.member_id for row in joined.answer.members] == ["client-1"]
    assert (joined.answer.generation, joined.answer.protocol) == (1, "range")
    assert joined.answer.protocol_type == "consumer"


def test_a_client_of_an_old_version_joins_without_an_id() -> None:
    driver = Driver()
    joined = driver.join(version=3)
    driver.advance(3)
    assert joined.answer.member_id == "client-1"


def test_a_static_member_joins_without_an_id() -> None:
    driver = Driver()
    joined = driver.join(instance_id="i")
    driver.advance(3)
    assert joined.answer.member_id == "i-1"
    assert joined.answer.members[0].instance_id == "i"


@pytest.mark.parametrize("state", [PREPARING, COMPLETING, STABLE])
def test_a_new_member_causes_a_rebalance(state: State) -> None:
    driver, leader, follower = in_state(state)
    joined = driver.new()
    assert joined.waits
    assert driver.group.state is PREPARING
    assert driver.heartbeat(follower) is IN_PROGRESS
    driver.join(leader)
    driver.join(follower)
    assert joined.answer.generation == driver.group.generation
    assert joined.answer.leader == leader
    assert joined.answer.members == ()


def test_the_initial_rebalance_waits_for_more_members() -> None:
    driver = Driver()
    first = driver.new()
    driver.advance(2)
    second = driver.new()
    driver.advance(2)
    assert first.waits  # 3 s, and again 3 s because of the second member
    driver.advance(2)
    assert first.answer.generation == second.answer.generation == 1


def test_the_initial_rebalance_ends_with_the_rebalance_timeout_while_members_join() -> None:
    driver = Driver()
    first = driver.new(rebalance_ms=10_000)
    for _ in range(5):
        driver.advance(1.75)
        driver.new(rebalance_ms=10_000)
    driver.advance(1)
    assert first.waits
    driver.advance(0.25)
    assert first.answer.error is OK
    assert len(first.answer.members) == 6


def test_an_initial_rebalance_without_delay_ends_at_once() -> None:
    driver = Driver(initial_rebalance_delay_ms=0)
    joined = driver.new()
    driver.advance(0)
    assert joined.answer.error is OK


def test_a_member_id_that_is_not_used_expires_with_the_session_timeout() -> None:
    driver = Driver()
    driver.stable(1)
    member_id = driver.join().answer.member_id
    driver.advance(SESSION_MS / 1000 - 1)
    driver.heartbeat("client-1")
    driver.advance(1)
    assert driver.join(member_id).answer.error is UNKNOWN


def test_joins_wait_for_a_member_that_got_an_id() -> None:
    driver = Driver()
    leader, follower = driver.stable()
    pending = driver.join().answer.member_id
    joins = [driver.join(leader), driver.join(follower)]
    assert joins[0].waits
    last = driver.join(pending)
    assert {asked.answer.generation for asked in [*joins, last]} == {2}


def test_joins_do_not_wait_for_an_id_that_has_expired() -> None:
    driver = Driver()
    leader, follower = driver.stable()
    driver.join()
    joins = [driver.join(leader), driver.join(follower)]
    driver.advance(SESSION_MS / 1000)
    assert {asked.answer.generation for asked in joins} == {2}


def test_the_number_of_unused_member_ids_is_bounded() -> None:
    driver = Driver()
    first = driver.join().answer.member_id
    for _ in range(MOST_PENDING + 20):
        driver.join()
    assert driver.group.members.pending == MOST_PENDING
    assert driver.group.size_bytes < 300 * MOST_PENDING
    assert driver.join(first).answer.error is UNKNOWN


def test_a_static_member_with_an_unused_member_id_is_refused() -> None:
    driver = Driver()
    member_id = driver.join().answer.member_id
    refused = driver.join(member_id, instance_id="i").answer
    assert refused.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_new_member_that_waits_too_long_joins_again() -> None:
    driver = Driver()
    leader, _ = driver.stable(rebalance_ms=3_600_000)
    joined = driver.new()
    for _ in range(int(NEW_MEMBER_JOIN_TIMEOUT_S)):
        driver.advance(1)
        for name in driver.group.members:
            if name.joining is None:
                driver.heartbeat(name.member_id)
    assert joined.answer.error is UNKNOWN
    assert joined.answer.member_id == ""
    assert driver.heartbeat(leader) is IN_PROGRESS


# Protocols


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("", RANGE), ("consumer", ()), ("connect", RANGE), ("consumer", (Protocol("x", b""),))],
)
def test_a_member_without_a_common_protocol_is_refused(
    protocol_type: str, protocols: tuple[Protocol, ...]
) -> None:
    driver = Driver()
    if protocol_type == "connect" or (protocols and protocols[0].name == "x"):
        driver.stable(1)
    refused = driver.join(protocol_type=protocol_type, protocols=protocols).answer
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_that_drops_the_common_protocol_is_refused() -> None:
    driver = Driver()
    leader, follower = driver.stable()
    refused = driver.join(follower, protocols=(Protocol("sticky", b""),)).answer
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.group.state is STABLE
    assert driver.heartbeat(leader) is OK


def test_the_protocol_with_most_votes_is_selected() -> None:
    driver = Driver()
    reverse = tuple(reversed(BOTH))
    joins = [driver.new(protocols=each) for each in (BOTH, reverse, reverse)]
    driver.until_answered(*joins)
    assert {asked.answer.protocol for asked in joins} == {"sticky"}
    assert joins[0].answer.members[0].metadata == b"s"


def test_a_protocol_that_one_member_does_not_support_is_no_candidate() -> None:
    driver = Driver()
    reverse = tuple(reversed(BOTH))
    joins = [driver.new(protocols=each) for each in (reverse, reverse, RANGE)]
    driver.until_answered(*joins)
    assert {asked.answer.protocol for asked in joins} == {"range"}


def test_a_protocol_that_is_listed_twice_counts_once() -> None:
    driver = Driver()
    joins = [driver.new(protocols=RANGE + OTHER), driver.new()]
    driver.until_answered(*joins)
    assert joins[0].answer.protocol == "range"
    assert joins[0].answer.members[0].metadata == b"r"


def test_an_empty_group_may_change_its_protocol_type() -> None:
    driver = Driver()
    driver.leave(*driver.stable())
    joined = driver.new(protocol_type="connect")
    driver.advance(3)
    assert joined.answer.protocol_type == "connect"


# Joins of members


@pytest.mark.parametrize("state", [COMPLETING, STABLE])
def test_a_follower_that_joins_again_with_the_same_metadata_gets_the_generation(
    state: State,
) -> None:
    driver, leader, follower = in_state(state)
    answer = driver.join(follower).answer
    assert (answer.error, answer.generation) == (OK, driver.group.generation)
    assert (answer.leader, answer.members) == (leader, ())
    assert driver.group.state is state


def test_a_leader_that_joins_again_before_its_sync_gets_the_members() -> None:
    driver, leader, follower = in_state(COMPLETING)
    answer = driver.join(leader).answer
    assert {row.member_id for row in answer.members} == {leader, follower}
    assert driver.group.state is COMPLETING


def test_a_leader_that_joins_again_causes_a_rebalance() -> None:
    driver, leader, follower = in_state(STABLE)
    joined = driver.join(leader)
    assert joined.waits
    assert driver.group.state is PREPARING
    assert driver.join(follower).answer.generation == joined.answer.generation == 2


@pytest.mark.parametrize("state", [COMPLETING, STABLE])
def test_a_member_with_other_metadata_causes_a_rebalance(state: State) -> None:
    driver, leader, follower = in_state(state)
    joined = driver.join(follower, protocols=OTHER)
    assert joined.waits
    led = driver.join(leader)
    assert {row.member_id: row.metadata for row in led.answer.members}[follower] == b"other"


def test_a_member_that_joins_twice_in_a_rebalance_gets_one_generation() -> None:
    driver, leader, follower = in_state(PREPARING)
    first = driver.join(leader)
    second = driver.join(leader)
    assert first.answer.error is IN_PROGRESS
    driver.join(follower)
    assert second.answer.generation == 2


@pytest.mark.parametrize("state", [EMPTY, PREPARING, COMPLETING, STABLE])
def test_an_unknown_member_id_cannot_join(state: State) -> None:
    driver = Driver() if state is EMPTY else in_state(state)[0]
    assert driver.join("stranger").answer.error is UNKNOWN
    assert driver.group.state is state


def test_a_member_that_does_not_join_in_time_is_removed() -> None:
    driver, leader, follower = in_state(STABLE)
    joined = driver.join(leader)
    for _ in range(REBALANCE_MS // 1000):
        assert joined.waits
        assert driver.heartbeat(follower) is IN_PROGRESS
        driver.advance(1)
    assert [row.member_id for row in joined.answer.members] == [leader]
    assert driver.heartbeat(follower) is UNKNOWN


def test_a_static_member_that_does_not_join_in_time_stays() -> None:
    driver = Driver()
    leader, follower = driver.stable_static("a", "b", session_ms=1_800_000)
    joined = driver.join(leader, instance_id="a", session_ms=1_800_000)
    driver.advance(REBALANCE_MS / 1000)
    assert {row.member_id for row in joined.answer.members} == {leader, follower}


def test_the_rebalance_timeout_is_the_largest_of_all_members() -> None:
    driver = Driver()
    joins = [driver.new(rebalance_ms=each, session_ms=600_000) for each in (20_000, 40_000)]
    driver.until_answered(*joins)
    leader, _ = driver._synced([asked.answer.member_id for asked in joins])
    joined = driver.join(leader, rebalance_ms=20_000)
    driver.advance(39)
    assert joined.waits
    driver.advance(1)
    assert joined.answer.error is OK


def test_a_member_of_version_0_has_its_session_timeout_as_rebalance_timeout() -> None:
    driver = Driver()
    driver.join(version=0, rebalance_ms=-1, session_ms=7_000)
    assert driver.group.describe().members[0].rebalance_timeout_ms == 7_000


def test_a_leader_that_does_not_join_in_time_is_replaced() -> None:
    driver, leader, follower = in_state(STABLE)
    joined = driver.join(follower, protocols=OTHER)
    for _ in range(REBALANCE_MS // 1000):
        driver.heartbeat(leader)
        driver.advance(1)
    assert joined.answer.leader == follower
    assert [row.member_id for row in joined.answer.members] == [follower]


def test_a_static_leader_that_does_not_join_in_time_stays_and_does_not_lead() -> None:
    driver = Driver()
    leader, follower = driver.stable_static("a", "b", session_ms=600_000)
    joined = driver.join(follower, instance_id="b", session_ms=600_000, protocols=OTHER)
    driver.advance(REBALANCE_MS / 1000)
    assert joined.answer.leader == follower
    assert {row.member_id for row in joined.answer.members} == {leader, follower}


def test_a_rebalance_waits_for_a_static_member_if_none_has_joined() -> None:
    driver = Driver()
    leader, follower = driver.stable_static("a", "b", session_ms=600_000)
    driver.leave(leader)
    driver.advance(REBALANCE_MS / 1000 * 3.5)
    assert driver.group.state is PREPARING
    assert driver.group.generation == 1
    joined = driver.join(follower, instance_id="b", session_ms=600_000)
    assert (joined.answer.leader, joined.answer.generation) == (follower, 2)


def test_a_rebalance_timeout_of_zero_makes_no_timer_that_never_rests() -> None:
    driver = Driver()
    driver.stable_static("a", "b", session_ms=600_000)
    again = [
        driver.join(instance_id=name, rebalance_ms=0, session_ms=600_000).answer for name in "ab"
    ]
    driver.leave(again[0].member_id)
    driver.advance(0)
    assert driver.group.state is PREPARING
    assert driver.group.next_due == driver.now + 1
    assert driver.heartbeat(again[1].member_id) is IN_PROGRESS


# Limits


def test_a_full_group_refuses_new_members_and_keeps_its_own() -> None:
    driver = Driver(max_size=2)
    leader, follower = driver.stable()
    assert driver.join().answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.join(follower).answer.error is OK
    driver.join(leader)
    assert driver.join(follower).answer.error is OK


def test_a_group_that_is_too_large_refuses_those_that_join_last() -> None:
    driver = Driver()
    ids = driver.stable(3)
    driver.group.limits = GroupLimits(max_size=2)
    joins = [driver.join(name) for name in ids]
    assert joins[2].answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joins[2].answer.member_id == ""
    driver.advance(REBALANCE_MS / 1000)
    assert len(joins[0].answer.members) == 2


def test_a_loaded_group_that_is_too_large_rebalances() -> None:
    driver = Driver()
    driver.stable(3)
    driver.limits = GroupLimits(max_size=2)
    driver.failover()
    assert driver.group.state is PREPARING


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, OK),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 6_000}, OK),
        ({"session_timeout_ms": 1_800_000}, OK),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": RANGE * MOST_PROTOCOLS}, OK),
        ({"protocols": RANGE * (MOST_PROTOCOLS + 1)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_the_values_of_a_join_are_checked(changes: dict[str, object], error: ErrorCode) -> None:
    fields: dict[str, object] = {
        "group_id": "g",
        "member_id": "",
        "instance_id": None,
        "client_id": "c",
        "client_host": "h",
        "rebalance_timeout_ms": 1,
        "session_timeout_ms": SESSION_MS,
        "protocol_type": "consumer",
        "protocols": RANGE,
        "new_member_id": "n",
    }
    request = JoinRequest(**(fields | changes))  # type: ignore[arg-type]
    assert check_join(request, GroupLimits()) is error


# Syncs


def test_syncs_wait_until_the_assignment_is_committed() -> None:
    driver, leader, follower = in_state(COMPLETING)
    driver.commits = False
    followed = driver.sync(follower, 2)
    led = driver.sync(leader, 2, {leader: b"L", follower: b"F"})
    assert led.waits
    assert followed.waits
    assert driver.group.state is COMPLETING
    driver.commit()
    assert (led.answer.assignment, followed.answer.assignment) == (b"L", b"F")
    assert (led.answer.protocol_type, led.answer.protocol) == ("consumer", "range")
    assert driver.group.state is STABLE
    assert {row.member_id: row.assignment for row in driver.stored[-1].members} == {
        leader: b"L",
        follower: b"F",
    }
    assert driver.stored[-1].generation == 2


def test_a_sync_in_a_stable_group_gets_the_assignment() -> None:
    driver, _, follower = in_state(STABLE)
    assert driver.sync(follower, 1).answer.assignment == follower.encode()


def test_a_member_without_assignment_gets_an_empty_one_and_unknown_ids_are_ignored() -> None:
    driver, leader, follower = in_state(COMPLETING)
    followed = driver.sync(follower, 2)
    driver.sync(leader, 2, {"stranger": b"x", leader: b"L"})
    assert (followed.answer.error, followed.answer.assignment) == (OK, b"")


def test_the_assignment_of_an_interrupted_generation_is_not_given() -> None:
    driver, leader, follower = in_state(COMPLETING)
    driver.commits = False
    led = driver.sync(leader, 2, {leader: b"L", follower: b"F"})
    joined = driver.new()
    assert led.answer.error is IN_PROGRESS
    driver.commit()
    assert driver.group.state is PREPARING
    assert all(row.assignment == b"" for row in driver.group.describe().members)
    driver.join(leader)
    driver.join(follower)
    assert joined.answer.generation == 3


def test_an_assignment_that_is_not_stored_causes_a_rebalance() -> None:
    driver, leader, follower = in_state(COMPLETING)
    driver.commits = False
    led = driver.sync(leader, 2, {leader: b"L"})
    followed = driver.sync(follower, 2)
    driver.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert led.answer.error is followed.answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.group.state is PREPARING
    assert driver.group.describe().rebalances[-1].cause.value == "assignment-not-stored"


def test_a_leader_cannot_change_the_assignment_of_a_generation() -> None:
    driver, leader, follower = in_state(COMPLETING)
    driver.commits = False
    first = driver.sync(leader, 2, {leader: b"L"})
    second = driver.sync(leader, 2, {follower: b"L"})
    assert first.answer.error is IN_PROGRESS
    assert len(driver.in_flight) == 1
    driver.commit()
    assert second.answer.assignment == b"L"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": None, "protocol": None}, OK),
    ],
)
def test_the_protocol_of_a_sync_is_checked(changes: dict[str, None], error: ErrorCode) -> None:
    driver, _, follower = in_state(STABLE)
    assert driver.sync(follower, 1, **changes).answer.error is error


@pytest.mark.parametrize("state", [PREPARING, COMPLETING, STABLE])
def test_a_sync_of_another_generation_or_member_is_refused(state: State) -> None:
    driver, leader, _ = in_state(state)
    generation = driver.group.generation
    assert driver.sync(leader, generation - 1).answer.error is ErrorCode.ILLEGAL_GENERATION
    assert driver.sync("stranger", generation).answer.error is UNKNOWN


def test_a_sync_during_joins_must_join() -> None:
    driver, _, follower = in_state(PREPARING)
    assert driver.sync(follower, 1).answer.error is IN_PROGRESS


def test_members_that_do_not_sync_in_time_are_removed() -> None:
    driver, leader, follower = in_state(COMPLETING)
    led = driver.sync(leader, 2, {leader: b"L"})
    assert led.answer.error is OK
    for _ in range(REBALANCE_MS // 1000):
        assert driver.heartbeat(follower) is OK
        driver.heartbeat(leader)
        driver.advance(1)
    assert driver.heartbeat(follower) is UNKNOWN
    assert driver.heartbeat(leader) is IN_PROGRESS
    assert driver.group.describe().rebalances[-1].cause.value == "sync-expired"


def test_a_leader_that_never_syncs_is_removed() -> None:
    driver, leader, follower = in_state(COMPLETING)
    followed = driver.sync(follower, 2)
    for _ in range(REBALANCE_MS // 1000):
        driver.heartbeat(leader)
        driver.advance(1)
    assert followed.answer.error is IN_PROGRESS
    assert driver.join(follower).answer.leader == follower


# Heartbeats and sessions


@pytest.mark.parametrize(
    ("state", "error"), [(PREPARING, IN_PROGRESS), (COMPLETING, OK), (STABLE, OK)]
)
def test_heartbeats_are_answered_by_state(state: State, error: ErrorCode) -> None:
    driver, leader, _ = in_state(state)
    assert driver.heartbeat(leader) is error
    assert driver.heartbeat("stranger") is UNKNOWN
    assert driver.heartbeat(leader, driver.group.generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert driver.heartbeat(leader, instance_id="i") is UNKNOWN


def test_a_heartbeat_to_an_empty_group_is_unknown() -> None:
    assert Driver().heartbeat("stranger") is UNKNOWN


def test_a_member_without_heartbeats_is_removed_at_its_session_timeout() -> None:
    driver, leader, follower = in_state(STABLE)
    driver.advance(SESSION_MS / 1000 - 1)
    assert driver.heartbeat(leader) is OK
    driver.advance(0.999)
    assert driver.group.state is STABLE
    driver.advance(0.001)
    assert driver.heartbeat(follower) is UNKNOWN
    assert driver.heartbeat(leader) is IN_PROGRESS


def test_heartbeats_keep_a_session() -> None:
    driver, leader, follower = in_state(STABLE)
    for _ in range(100):
        driver.advance(9)
        assert driver.heartbeat(leader) is driver.heartbeat(follower) is OK


def test_a_waiting_join_keeps_the_session_and_its_answer_starts_it() -> None:
    driver, leader, follower = in_state(STABLE)
    joined = driver.join(leader)
    for _ in range(5):
        driver.advance(9)
        driver.heartbeat(follower)
    driver.join(follower)
    assert joined.answer.error is OK
    driver.advance(9)
    assert driver.heartbeat(leader) is OK
    driver.advance(10)
    assert driver.heartbeat(leader) is UNKNOWN


def test_a_waiting_sync_keeps_the_session() -> None:
    driver, leader, follower = in_state(COMPLETING)
    followed = driver.sync(follower, 2)
    for _ in range(3):
        driver.advance(9)
        driver.heartbeat(leader)
    driver.sync(leader, 2, {follower: b"F"})
    assert followed.answer.assignment == b"F"
    driver.advance(9)
    assert driver.heartbeat(follower) is OK


def test_a_touch_keeps_a_session() -> None:
    driver, leader, _ = in_state(STABLE)
    driver.advance(9)
    driver.group.touch(driver.now, leader)
    driver.group.touch(driver.now, "stranger")
    driver.advance(9)
    assert driver.heartbeat(leader) is IN_PROGRESS  # the follower has expired


def test_a_group_whose_members_all_expire_is_empty_and_stored_as_such() -> None:
    driver, _, _ = in_state(STABLE)
    driver.advance(SESSION_MS / 1000)
    assert driver.group.state is EMPTY
    stored = driver.stored[-1]
    assert (stored.generation, stored.members, stored.protocol) == (2, (), None)
    assert (stored.leader, stored.protocol_type) == (None, "consumer")
    assert stored.state_timestamp_ms == WALL_MS + int(driver.now * 1000)
    assert driver.group.size_bytes == 0


# Members that leave


@pytest.mark.parametrize("state", [COMPLETING, STABLE])
def test_a_member_that_leaves_causes_a_rebalance(state: State) -> None:
    driver, leader, follower = in_state(state)
    answer = driver.leave(follower).answer
    assert [row.error for row in answer.members] == [OK]
    assert driver.heartbeat(leader) is IN_PROGRESS
    assert len(driver.join(leader).answer.members) == 1


def test_joins_are_complete_when_the_last_missing_member_leaves() -> None:
    driver, leader, follower = in_state(PREPARING)
    joined = driver.join(leader)
    driver.leave(follower)
    assert len(joined.answer.members) == 1


def test_a_member_that_leaves_the_initial_rebalance_does_not_end_it() -> None:
    driver = Driver()
    first, second = driver.new(), driver.new()
    driver.leave(next(iter(driver.group.members)).member_id)
    assert first.answer.error is UNKNOWN
    assert second.waits
    driver.advance(6)
    assert len(second.answer.members) == 1


def test_the_last_member_that_leaves_is_answered_when_that_is_committed() -> None:
    driver, leader, follower = in_state(STABLE)
    driver.commits = False
    left = driver.leave(leader, follower)
    assert left.waits
    assert driver.group.state is EMPTY
    driver.commit()
    assert [row.error for row in left.answer.members] == [OK, OK]
    assert driver.stored[-1].members == ()


def test_several_members_leave_and_unknown_ones_are_refused() -> None:
    driver, leader, _ = in_state(STABLE)
    answer = driver.leave("stranger", leader, LeaveMember("", None), LeaveMember("", "i")).answer
    assert [row.error for row in answer.members] == [UNKNOWN, OK, UNKNOWN, UNKNOWN]
    assert [row.member_id for row in answer.members] == ["stranger", leader, "", ""]


def test_a_member_that_leaves_has_its_waiting_requests_answered() -> None:
    driver, _, follower = in_state(COMPLETING)
    followed = driver.sync(follower, 2)
    driver.leave(follower)
    assert followed.answer.error is UNKNOWN


def test_a_pending_member_leaves_without_a_rebalance() -> None:
    driver, leader, _ = in_state(STABLE)
    pending = driver.join().answer.member_id
    assert driver.leave(pending).answer.members[0].error is OK
    assert driver.heartbeat(leader) is OK
    assert driver.join(pending).answer.error is UNKNOWN


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    driver = Driver()
    leader, follower = driver.stable_static("a", "b")
    assert driver.leave(LeaveMember("", "b")).answer.members[0].error is OK
    assert driver.heartbeat(follower, instance_id="b") is UNKNOWN
    assert driver.leave(LeaveMember("other", "a")).answer.members[0].error is FENCED
    assert driver.heartbeat(leader, instance_id="a") is IN_PROGRESS


# Static members


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance() -> None:
    driver = Driver(commits=False)
    driver.commits = True
    leader, follower = driver.stable_static("a", "b")
    driver.commits = False
    again = driver.join(instance_id="b")
    assert again.waits  # until its record is committed
    driver.commit()
    answer = again.answer
    assert (answer.error, answer.generation, answer.leader) == (OK, 1, leader)
    assert answer.member_id not in (leader, follower)
    assert not answer.skip_assignment
    assert driver.sync(answer.member_id, 1, instance_id="b").answer.assignment == follower.encode()
    assert driver.group.state is STABLE
    assert answer.member_id in {row.member_id for row in driver.stored[-1].members}


@pytest.mark.parametrize(
    "request_of",
    [
        lambda driver, name: driver.heartbeat(name, instance_id="b"),
        lambda driver, name: driver.sync(name, 1, instance_id="b").answer.error,
        lambda driver, name: driver.join(name, instance_id="b").answer.error,
        lambda driver, name: driver.leave(LeaveMember(name, "b")).answer.members[0].error,
        lambda driver, name: driver.group.check_commit(name, "b", 1, in_transaction=False),
    ],
)
def test_the_old_incarnation_of_a_static_member_is_fenced(
    request_of: Callable[[Driver, str], ErrorCode],
) -> None:
    driver = Driver()
    _, follower = driver.stable_static("a", "b")
    driver.join(instance_id="b")
    assert request_of(driver, follower) is FENCED
    assert driver.group.state is STABLE


def test_waiting_requests_of_an_old_incarnation_are_fenced() -> None:
    driver = Driver()
    leader, follower = driver.stable_static("a", "b")
    driver.join(leader, instance_id="a")
    old = driver.join(follower, instance_id="b", protocols=OTHER)
    assert old.answer.error is OK
    waiting = driver.sync(follower, 2, instance_id="b")
    new = driver.join(instance_id="b")
    assert waiting.answer.error is FENCED
    assert driver.group.state is PREPARING
    newer = driver.join(instance_id="b")
    assert new.answer.error is FENCED
    assert driver.join(leader, instance_id="a").answer.generation == newer.answer.generation == 3


def test_a_restarted_static_leader_need_not_assign() -> None:
    driver = Driver()
    leader, follower = driver.stable_static("a", "b")
    answer = driver.join(instance_id="a").answer
    assert answer.skip_assignment
    assert answer.leader == answer.member_id != leader
    assert {row.member_id for row in answer.members} == {answer.member_id, follower}
    synced = driver.sync(answer.member_id, 1, instance_id="a").answer
    assert synced.assignment == leader.encode()


def test_a_restarted_static_leader_of_an_old_version_does_not_learn_that_it_leads() -> None:
    driver = Driver()
    leader, _ = driver.stable_static("a", "b")
    answer = driver.join(instance_id="a", version=8).answer
    assert (answer.leader, answer.skip_assignment, answer.members) == (leader, False, ())
    assert driver.group.members.leader == answer.member_id


def test_a_restarted_static_member_that_changes_the_protocol_causes_a_rebalance() -> None:
    driver = Driver()
    leader, follower = driver.stable_static("a", protocols=BOTH)[0], None
    assert driver.group.protocol == "range"
    joined = driver.join(instance_id="a", protocols=tuple(reversed(BOTH)))
    assert joined.answer.protocol == "sticky"
    assert joined.answer.generation == 2
    assert driver.heartbeat(leader, instance_id="a") is FENCED
    assert follower is None


def test_a_restart_that_cannot_be_stored_is_undone() -> None:
    driver = Driver()
    leader, follower = driver.stable_static("a", "b")
    size_bytes = driver.group.size_bytes
    driver.commits = False
    again = driver.join(instance_id="b", protocols=OTHER, session_ms=20_000)
    driver.fail(ErrorCode.NOT_COORDINATOR)
    assert again.answer.error is ErrorCode.NOT_COORDINATOR
    assert (again.answer.member_id, again.answer.generation) == ("", 1)
    assert driver.heartbeat(follower, instance_id="b") is OK
    assert driver.group.size_bytes == size_bytes
    assert driver.group.describe().members[-1].session_timeout_ms == SESSION_MS
    assert driver.heartbeat(leader, instance_id="a") is OK


def test_a_failed_restart_that_a_rebalance_has_overtaken_stays() -> None:
    driver = Driver()
    driver.stable_static("a", protocols=BOTH)
    driver.commits = False
    again = driver.join(instance_id="a", protocols=(Protocol("range", b"r"), Protocol("x", b"")))
    other = driver.new(protocols=(Protocol("x", b""),))
    # Without the new protocols of the restarted member, the two would have none in common.
    assert again.answer.generation == other.answer.generation == 2
    driver.fail()
    assert driver.group.state is COMPLETING
    assert driver.group.protocol == "x"


def test_a_failed_restart_stays_while_members_join() -> None:
    driver = Driver()
    leader, follower, _ = driver.stable_static("a", "b", "c")
    driver.commits = False
    again = driver.join(instance_id="b")
    driver.join(leader, instance_id="a", protocols=OTHER)
    driver.fail()
    assert again.waits
    assert driver.group.state is PREPARING
    assert driver.heartbeat(follower, instance_id="b") is FENCED


def test_a_stored_restart_waits_for_the_rebalance_that_has_started() -> None:
    driver = Driver()
    leader, _, other = driver.stable_static("a", "b", "c")
    driver.commits = False
    again = driver.join(instance_id="b")
    driver.join(leader, instance_id="a", protocols=OTHER)
    driver.commit()
    assert again.waits
    driver.join(other, instance_id="c")
    assert (again.answer.error, again.answer.generation) == (OK, 2)


def test_a_rebalance_answers_the_join_of_a_restarted_member_with_its_generation() -> None:
    driver = Driver()
    leader, _ = driver.stable_static("a", "b")
    driver.commits = False
    again = driver.join(instance_id="b")
    driver.join(leader, instance_id="a")
    assert again.answer.generation == 2
    driver.commit()
    assert driver.group.state is COMPLETING


# The log and leadership


def test_a_new_coordinator_continues_a_stable_group() -> None:
    driver, leader, follower = in_state(STABLE)
    driver.failover()
    assert driver.group.state is STABLE
    assert driver.heartbeat(leader, 1) is OK
    assert driver.sync(follower, 1).answer.assignment == follower.encode()
    assert driver.group.members.leader == leader
    driver.advance(9)
    driver.heartbeat(leader, 1)
    driver.advance(1)
    assert driver.heartbeat(follower, 1) is UNKNOWN


def test_a_new_coordinator_knows_the_generation_of_an_empty_group() -> None:
    driver, leader, follower = in_state(STABLE)
    driver.leave(leader, follower)
    driver.failover()
    assert (driver.group.state, driver.group.generation) == (EMPTY, 2)
    joined = driver.new()
    driver.advance(3)
    assert joined.answer.generation == 3


@pytest.mark.parametrize("state", [PREPARING, COMPLETING, STABLE])
def test_the_end_of_leadership_answers_all_waiting_requests(state: State) -> None:
    driver, leader, follower = in_state(state)
    waiting = [driver.new()] if state is PREPARING else []
    if state is COMPLETING:
        driver.commits = False
        waiting = [driver.sync(follower, 2), driver.sync(leader, 2)]
    driver.group.unload()
    assert [asked.answer.error for asked in waiting] == [ErrorCode.NOT_COORDINATOR] * len(waiting)
    assert driver.group.next_due == float("inf")
    gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.join().answer.error is driver.join(leader).answer.error is gone
    assert driver.sync(leader, 1).answer.error is gone
    assert driver.heartbeat(leader) is gone
    assert driver.leave(leader).answer.error is gone
    assert driver.group.check_commit(leader, None, 1, in_transaction=False) is gone


def test_a_tombstone_removes_a_group_without_members_only() -> None:
    driver, leader, follower = in_state(STABLE)
    assert not driver.group.replay_tombstone()
    assert driver.heartbeat(leader) is OK
    driver.leave(leader, follower)
    pending = driver.join().answer.member_id
    assert not driver.group.replay_tombstone()
    assert not driver.group.is_disposable
    driver.leave(pending)
    assert driver.group.is_disposable
    assert driver.group.replay_tombstone()
    assert driver.group.state is DEAD


def test_offsets_are_committed_by_members_of_the_generation() -> None:
    driver, leader, follower = in_state(STABLE)

    def check(member_id: str, generation: int, *, in_transaction: bool = False) -> ErrorCode:
        return driver.group.check_commit(member_id, None, generation, in_transaction=in_transaction)

    assert check(leader, 1) is OK
    assert check(leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert check("stranger", 1) is UNKNOWN
    assert check("", -1) is UNKNOWN
    assert check("", -1, in_transaction=True) is OK
    driver.join(leader)
    assert check(leader, 1) is OK  # before it gives up its partitions
    driver.join(follower)
    assert check(leader, 2) is IN_PROGRESS
    assert check(leader, 2, in_transaction=True) is OK
    driver.leave(leader)
    driver.leave(follower)
    assert check("", -1) is OK
    assert check(leader, 2) is UNKNOWN


# Views and memory


def test_a_view_shows_metadata_of_a_stable_group_only() -> None:
    driver, leader, _ = in_state(STABLE)
    view = driver.group.describe()
    assert (view.state, view.protocol, view.protocol_type) == ("Stable", "range", "consumer")
    assert {row.metadata for row in view.members} == {b"r"}
    driver.join(leader)
    view = driver.group.describe()
    assert (view.state, view.protocol) == ("PreparingRebalance", "")
    assert {row.metadata for row in view.members} == {b""}


def test_a_view_explains_the_rebalances() -> None:
    driver, leader, follower = in_state(STABLE)
    driver.join(leader, protocols=OTHER)
    view = driver.group.describe()
    assert view.missing == (follower,)
    assert [row.cause.value for row in view.rebalances] == ["new-member", "metadata-changed"]
    first, running = view.rebalances
    assert first.joined == ("client-1", "client-3")
    assert (first.generation, first.length_s) == (1, 3.0 + 3.0)
    assert (running.generation, running.length_s) == (-1, None)
    assert (running.member_id, running.client_id) == (leader, "client")
    assert running.client_host == "/10.0.0.1"
    for _ in range(REBALANCE_MS // 1000):
        driver.heartbeat(follower)
        driver.advance(1)
    assert driver.group.describe().rebalances[-1].late == (follower,)


def test_the_view_of_a_rebalance_has_those_that_left() -> None:
    driver, leader, follower = in_state(STABLE)
    driver.leave(follower)
    driver.join(leader)
    last = driver.group.describe().rebalances[-1]
    assert (last.cause.value, last.left, last.member_id) == ("member-left", (follower,), follower)


def test_the_history_is_bounded() -> None:
    driver = Driver()
    leader = driver.stable(1)[0]
    for number in range(40):
        driver.join(leader, protocols=(Protocol("range", bytes([number])),))
    view = driver.group.describe()
    assert len(view.rebalances) == 16


def test_the_size_counts_metadata_and_assignments() -> None:
    driver = Driver()
    (leader,) = driver.stable(1)
    before = driver.group.size_bytes
    driver.join(leader, protocols=(Protocol("range", b"r" * 1001),))
    driver.sync(leader, 2, {leader: b"a" * 2000})
    assert driver.group.size_bytes == before + 1000 + 2000 - len(leader)
    driver.leave(leader)
    assert driver.group.size_bytes == 0


def test_every_state_but_the_last_leads_to_dead() -> None:
    assert all(DEAD in TRANSITIONS[state] for state in State)
    assert TRANSITIONS[DEAD] == {DEAD}
