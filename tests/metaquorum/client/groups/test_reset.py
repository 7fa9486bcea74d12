"""Plans of new offsets, their files, and the refusal of groups with members."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.client import BrokerError, TopicPartition
from metaquorum.client.groups.consumer_protocol import Assignment
from metaquorum.client.groups.lag import LogOffsets, group_lag
from metaquorum.client.groups.reset import (
    PlannedOffset,
    Reset,
    ResetPlan,
    ResetTarget,
    check_without_members,
    planned,
    wanted_offset,
)
from metaquorum.client.groups.reset_file import offsets_text, read_offsets
from metaquorum.client.groups.values import (
    CommittedOffset,
    GroupDescription,
    MemberDescription,
)
from metaquorum.wire.primitives.errors import ErrorCode

P0, P1, P2 = (TopicPartition("orders", index) for index in range(3))
LOG = LogOffsets(10, 50)
OFFSETS = st.integers(0, 2**63 - 1)


def wanted(reset: Reset, committed: int | None = 20, times: dict[Any, int] | None = None) -> Any:
    there = {} if committed is None else {P0: CommittedOffset(committed)}
    return wanted_offset(P0, reset, there, {P0: LOG}, times or {})


@pytest.mark.parametrize(
    ("reset", "committed", "found"),
    [
        (Reset(ResetTarget.EARLIEST), 20, 10),
        (Reset(ResetTarget.LATEST), 20, 50),
        (Reset(ResetTarget.CURRENT), 20, 20),
        (Reset(ResetTarget.CURRENT), None, 50),
        (Reset(ResetTarget.OFFSET, 30), None, 30),
        (Reset(ResetTarget.SHIFT, -3), 20, 17),
        (Reset(ResetTarget.SHIFT, 3), None, None),
        (Reset(ResetTarget.TIME, 1), 20, 50),
    ],
)
def test_each_target_means_an_offset(reset: Reset, committed: int | None, found: int) -> None:
    assert wanted(reset, committed) == found


def test_a_time_is_the_first_record_from_then_on() -> None:
    assert wanted(Reset(ResetTarget.TIME, 1), times={P0: 33}) == 33


@given(OFFSETS, st.integers(-5, 2**63), OFFSETS)
def test_a_new_offset_is_within_the_log_unless_it_is_the_current_one(
    start: int, offset: int, size: int
) -> None:
    log = LogOffsets(start, start + size)
    (clamped,) = planned("g", {P0: offset}, {}, {P0: log}).offsets
    assert log.start <= clamped.new <= log.end
    assert (clamped.clamped_from is None) == (log.start <= offset <= log.end)
    assert clamped.clamped_from in (None, offset)
    (kept,) = planned("g", {P0: offset}, {}, {P0: log}, is_clamped=False).offsets
    assert (kept.new, kept.clamped_from) == (offset, None)


def test_partitions_without_a_log_or_a_commit_to_shift_are_refused() -> None:
    plan = planned("g", {P0: 20, P1: 20, P2: None}, {P0: CommittedOffset(4)}, {P0: LOG, P2: LOG})
    assert plan.offsets == [PlannedOffset(P0, 4, 20, LOG)]
    assert {where: error.code for where, error in plan.refused.items()} == {
        P1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        P2: ErrorCode.INVALID_REQUEST,
    }


def member(number: int, *owned: TopicPartition) -> MemberDescription:
    assignment = Assignment(tuple(owned), b"")
    return MemberDescription(
        f"id-{number}", None, f"app-{number}", f"/10.0.0.{number}", None, assignment, 0, 0
    )


def group(state: str, *members: MemberDescription) -> GroupDescription:
    return GroupDescription("g", state, "consumer", "range", 1, members)


def test_a_group_with_members_is_refused_with_their_names() -> None:
    check_without_members(group("Empty"))
    for count, names in (
        (1, "1 member: app-1 (10.0.0.1)"),
        (
            7,
            "7 members: app-1 (10.0.0.1), app-2 (10.0.0.2), app-3 (10.0.0.3), app-4 (10.0.0.4), "
            "app-5 (10.0.0.5) and 2 more",
        ),
    ):
        with pytest.raises(BrokerError) as refused:
            check_without_members(group("Stable", *map(member, range(1, count + 1))))
        assert str(refused.value) == f"group g: it is Stable and has {names}"
        assert refused.value.code is ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_waits_for_members_is_refused() -> None:
    with pytest.raises(BrokerError, match="group g: it is PreparingRebalance and has 0 members"):
        check_without_members(group("PreparingRebalance"))


# Lag


def test_lag_covers_committed_and_owned_partitions() -> None:
    described = group("Stable", member(1, P0, P1))
    committed = {P1: CommittedOffset(45), P2: CommittedOffset(60)}
    lag = group_lag("g", described, committed, {P0: LOG, P1: LOG, P2: LOG})
    owner = described.members[0]
    assert [(each.where, each.lag, each.owner) for each in lag.partitions] == [
        (P0, None, owner),  # owned, without a commit
        (P1, 5, owner),
        (P2, -10, None),  # committed, without an owner, and behind the log end
    ]
    assert (lag.state, lag.total) == ("Stable", -5)


def test_lag_is_unknown_without_a_log() -> None:
    lag = group_lag("g", None, {P0: CommittedOffset(1)}, {})
    (only,) = lag.partitions
    assert (only.lag, only.log_start, only.log_end) == (None, None, None)
    assert (lag.state, lag.total) == (None, None)


# Files

TOPICS = st.text("abz-._", min_size=1, max_size=5)
PLACES = st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1))
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)
FILES = st.dictionaries(NAMES, st.dictionaries(PLACES, OFFSETS, min_size=1, max_size=3), min_size=1)


@given(FILES)
def test_an_exported_plan_is_read_back(offsets: dict[str, dict[TopicPartition, int]]) -> None:
    plans = [
        ResetPlan(name, [PlannedOffset(where, None, new, LOG) for where, new in own.items()], {})
        for name, own in offsets.items()
    ]
    assert read_offsets(offsets_text(plans, with_group=True), offsets) == offsets
    for plan in plans:
        text = offsets_text([plan], with_group=False)
        assert read_offsets(text, [plan.group]) == {plan.group: offsets[plan.group]}


def test_lines_of_other_groups_are_skipped() -> None:
    text = 'g,orders,0,5\n"h",orders,0,6\n\n'
    assert read_offsets(text, ["h", "i"]) == {"h": {P0: 6}, "i": {}}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("orders,0,5\ng,orders,0,5\n", "line 2: every line must be"),
        ("orders,0\n", "line 1: every line must be"),
        ("orders,x,5\n", "line 1: 'x' is not a partition"),
        ("orders,2147483648,5\n", "is not a partition"),
        ("orders,0,-5\n", "line 1: '-5' is not an offset"),
        ("orders,0,9223372036854775808\n", "is not an offset"),
        ("orders,0,5\norders,0,6\n", "line 2: partition orders-0 occurs twice"),
        ('"orders,0,5\n', "line 1: unexpected end of data"),
    ],
)
def test_a_malformed_line_is_named(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        read_offsets(text, ["g"])


def test_lines_without_a_group_need_a_single_group() -> None:
    with pytest.raises(ValueError, match="line 1: there are several groups"):
        read_offsets("orders,0,5\n", ["g", "h"])
