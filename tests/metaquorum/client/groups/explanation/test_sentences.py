"""Sentences about a group, with one row for each problem."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from metaquorum.client.administration.topic_survival import Level
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.errors import UnreachableError
from metaquorum.client.groups.consumer_protocol import Assignment, Subscription
from metaquorum.client.groups.explanation.activity import (
    GroupActivity,
    MemberActivity,
    PendingId,
    Rebalance,
)
from metaquorum.client.groups.explanation.facts import (
    GroupFacts,
    PartitionProgress,
    Sample,
    Throttling,
)
from metaquorum.client.groups.explanation.sentences import Finding, explain
from metaquorum.client.groups.explanation.unread import Unread
from metaquorum.client.groups.explanation.words import duration, ranges
from metaquorum.client.usage.quota_use import QuotaUse

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def member(client_id: str = "a", *owned: TopicPartition, **more: Any) -> MemberActivity:
    made = MemberActivity(
        member_id=f"{client_id}-1",
        instance_id=None,
        client_id=client_id,
        client_host="/10.0.0.1",
        user="alice",
        waiting_in="",
        is_late=False,
        heard_s=1.0,
        muted_s=0.0,
        session_timeout_s=45.0,
        rebalance_timeout_s=300.0,
        subscription=Subscription(("t",), 0),
        assignment=Assignment(owned, 0),
    )
    return replace(made, **more)


def group(*members: MemberActivity, **more: Any) -> GroupActivity:
    made = GroupActivity(
        group="g",
        coordinator=1,
        state="Stable",
        protocol_type="consumer",
        protocol="range",
        generation=3,
        leader="a-1",
        waits_for="",
        state_s=100.0,
        left_s=None,
        members=members,
        pending=(),
        rebalances=(),
    )
    return replace(made, **more)


def sample(committed: int | None, end: int = 10, start: int = 0) -> Sample:
    first = max(start, committed or 0)
    return Sample(committed, Unread(start, end, max(0, end - first), 0, None))


def progress(now: Sample, before: Sample | None = None, **more: Any) -> PartitionProgress:
    owner = more.pop("owner", member("a", P0))
    made = PartitionProgress(P0, owner, True, True, now, None, before, 2.0)
    return replace(made, **more)


def facts(
    activity: GroupActivity, partitions: Sequence[PartitionProgress] = (), **more: Any
) -> GroupFacts:
    made = GroupFacts(activity, partitions, missing_topics=(), throttling=(), failures=())
    return replace(made, **more)


def rebalance(began_s_ago: float, lasted_s: float | None = 2.0, **more: Any) -> Rebalance:
    made = Rebalance(
        "a member's session has timed out", "a-1", "a", "/10.0.0.1", "", began_s_ago, lasted_s, 3
    )
    return replace(made, **more)


def use(**more: Any) -> QuotaUse:
    made = QuotaUse(
        worker=2,
        key="consumer_byte_rate",
        user="alice",
        client_id=None,
        ip=None,
        precedence=3,
        quota=1000.0,
        used=0.0,
        used_total=0.0,
        window_s=10.0,
        delay_s=0.0,
        next_delay_s=0.0,
        throttle_count=7,
        throttle_total_s=9.0,
        throttle_longest_s=5.0,
        throttle_recent_s=0.0,
    )
    return replace(made, **more)


HEALTHY = facts(group(member("a", P0)), [progress(sample(7), sample(5))])
JOINING = group(
    member("a", P0, is_late=True, heard_s=20.0),
    member("b", waiting_in="JoinGroup"),
    state="PreparingRebalance",
    waits_for="JoinGroup",
    left_s=250.0,
    rebalances=(rebalance(900.0), rebalance(50.0, None)),
)
SILENT = member("a", P0, is_late=True, heard_s=40.0)
PENDING = group(
    member("b", waiting_in="JoinGroup"),
    waits_for="JoinGroup",
    state_s=5.0,
    pending=(PendingId("c-1", "/10.0.0.9", 5.0),),
)
LATE_LEADER = group(
    member("a", is_late=True), state="CompletingRebalance", waits_for="assignment", left_s=9.0
)


@pytest.mark.parametrize(
    ("found", "level", "text"),
    [
        (HEALTHY, Level.GOOD, "the group is Stable, no member is late, lag 3 records"),
        (
            facts(JOINING),
            Level.BAD,
            "1 of 2 members has waited 50 s for a (10.0.0.1), silent for 20 s, to join again; "
            "it continues without them in 4 min",
        ),
        (
            facts(replace(JOINING, members=[SILENT, replace(SILENT, client_id="c", heard_s=30.0)])),
            Level.BAD,
            "for a (10.0.0.1), silent for 40 s, c (10.0.0.1), silent for 30 s, to join again; it "
            "continues without them in 4 min, or in 15 s if they stay silent: their sessions end",
        ),
        (
            facts(group(member("a", is_late=True), waits_for="JoinGroup", state_s=5.0)),
            Level.BAD,
            "the group has waited 5.0 s for a (10.0.0.1), silent for 1.0 s, to join again",
        ),
        (
            facts(PENDING),
            Level.BAD,
            "1 of 1 member has waited 5.0 s for 1 new member from 10.0.0.9 to join with the",
        ),
        (
            facts(LATE_LEADER),
            Level.BAD,
            "all members have waited 100 s for the assignment of the group's leader, a (10.0.0.1)",
        ),
        (
            facts(group(member("a"), waits_for="commit", state_s=30.0)),
            Level.BAD,
            "until the assignment is in the log of __consumer_offsets",
        ),
        (
            facts(group(member("b", is_late=True), waits_for="SyncGroup", left_s=60.0)),
            Level.BAD,
            "the group has waited 100 s for b (10.0.0.1) to fetch the assignment",
        ),
        (
            facts(group(member("a"), waits_for="more members", left_s=3.0)),
            Level.NOTE,
            "the first rebalance waits for more members, for 3.0 s",
        ),
        (
            facts(group(member("a"), rebalances=[rebalance(100.0 * n) for n in (4, 3, 2, 1)])),
            Level.BAD,
            "4 rebalances within 10 min, which took 8.0 s; 4 of them because a member's session "
            "has timed out (a)",
        ),
        (
            facts(replace(JOINING, rebalances=[rebalance(50.0, None)] * 4)),
            Level.BAD,
            "4 rebalances within 10 min, which took 3 min",
        ),
        (
            facts(group(rebalances=[rebalance(700.0)])),
            Level.BAD,
            "no members: no consumer of it is running, or none can join; its last rebalance began "
            "12 min ago: a member's session has timed out (a)",
        ),
        (
            facts(group(member("a", P0, heard_s=30.0, instance_id="i-1"))),
            Level.BAD,
            "a (10.0.0.1, instance i-1), silent for 30 s, loses its session in 15 s",
        ),
        (facts(group(member("a", muted_s=4.0))), Level.BAD, "a quota mutes its connection for 4.0"),
        (
            facts(group(member("a", P0), member("b"))),
            Level.NOTE,
            "b (10.0.0.1) owns no partition: there are more members than partitions",
        ),
        (
            facts(HEALTHY.activity, missing_topics=["x", "y"]),
            Level.BAD,
            "members subscribe to topics that do not exist: x, y",
        ),
        (
            facts(HEALTHY.activity, [progress(sample(7), owner=None)]),
            Level.BAD,
            "no member owns t:0: the group's leader, a (10.0.0.1), did not assign them",
        ),
        (
            facts(group(protocol_type="")),
            Level.BAD,
            "consumers that assign partitions to themselves are not members",
        ),
        (
            facts(group(member("a", subscription=None, assignment=None), protocol_type="connect")),
            Level.NOTE,
            "the members are not consumers, but of protocol type connect: what they own and read "
            "is not known",
        ),
        (
            facts(HEALTHY.activity, [progress(sample(7), owner=None, is_subscribed=False)]),
            Level.BAD,
            "no member subscribes to t:0, where the group has committed offsets: lag 3 records",
        ),
        (
            facts(HEALTHY.activity, [progress(sample(10), owner=None, is_subscribed=False)]),
            Level.NOTE,
            "no member subscribes to t:0, where the group has committed offsets: lag 0 records",
        ),
        (
            facts(HEALTHY.activity, [progress(Sample(5, None), has_leader=False)]),
            Level.BAD,
            "nothing can be read from t:0: no leader, or deleted",
        ),
        (
            facts(HEALTHY.activity, [progress(sample(3, start=5))]),
            Level.BAD,
            "records that the group has not read were deleted from t:0",
        ),
        (
            facts(HEALTHY.activity, [progress(sample(30))]),
            Level.BAD,
            "the committed offset is beyond the end of t:0",
        ),
        (
            facts(HEALTHY.activity, [progress(sample(5), sample(5), age_s=20.0)]),
            Level.BAD,
            "the lag in t:0 had no commit within 2.0 s: the members do not read, or do not commit",
        ),
        (
            facts(HEALTHY.activity, [progress(sample(6, 20), sample(5, 10))]),
            Level.BAD,
            "the lag in t:0 grew in spite of commits within 2.0 s: the members read more slowly",
        ),
        (
            facts(
                replace(HEALTHY.activity, state_s=5.0), [progress(sample(None), sample(None, 9))]
            ),
            Level.NOTE,
            "nothing was committed yet in t:0",
        ),
        (
            facts(HEALTHY.activity, [progress(sample(None), sample(None))]),
            Level.NOTE,
            "nothing was committed yet in t:0, 100 s after the last rebalance: the members have "
            "not read the records there, do not commit, or began at the end (auto.offset.reset)",
        ),
        (
            facts(HEALTHY.activity, [progress(sample(None), sample(None, 9))]),
            Level.BAD,
            "nothing was committed yet in t:0, 100 s after the last rebalance, while producers "
            "write: the members do not read, or do not commit",
        ),
        (
            facts(HEALTHY.activity, [progress(sample(None))]),
            Level.GOOD,
            "no member is late; the lag in t:0 is not known",
        ),
        (
            facts(HEALTHY.activity, throttling=[Throttling([member("a")], use(delay_s=3.0), 0.0)]),
            Level.BAD,
            "a (10.0.0.1): worker 2 has delayed 7 responses by consumer_byte_rate, 1000 bytes a "
            "second, rule 3, user=alice; now by 3.0 s",
        ),
        (
            facts(HEALTHY.activity, throttling=[Throttling([member()], use(throttle_count=1), 0)]),
            Level.NOTE,
            "worker 2 has delayed 1 response by",
        ),
        (
            facts(HEALTHY.activity, throttling=[Throttling([member("a")], use(), 0.0)]),
            Level.NOTE,
            "none within the last 10 s",
        ),
        (
            facts(
                HEALTHY.activity,
                throttling=[Throttling([member("a")], use(precedence=9), 2.0)],
            ),
            Level.BAD,
            "the default in the worker's configs; now by 2.0 s",
        ),
        (
            facts(HEALTHY.activity, failures=[UnreachableError("node 2 cannot be reached")]),
            Level.NOTE,
            "not known: node 2 cannot be reached",
        ),
    ],
)
def test_each_problem_has_its_sentence(found: GroupFacts, level: Level, text: str) -> None:
    (said,) = [each for each in explain(found) if text in each.text]
    assert said.level is level
    is_well = not any(each.level is Level.BAD for each in explain(found))
    assert (explain(found)[0].level is Level.GOOD) == is_well


def test_what_members_are_about_to_commit_is_no_problem() -> None:
    for now, before in ((sample(5), sample(5)), (sample(6, 20), sample(5, 10))):
        for age_s, level in ((14.0, Level.GOOD), (16.0, Level.BAD), (None, Level.BAD)):
            found = facts(HEALTHY.activity, [progress(now, before, age_s=age_s)])
            assert explain(found)[0].level is level


def test_a_deleted_topic_is_not_reported_as_one_without_a_leader_too() -> None:
    found = facts(
        HEALTHY.activity, [progress(Sample(None, None), has_leader=False)], missing_topics=["t"]
    )
    assert [each.text for each in explain(found) if each.about == "partitions"] == [
        "members subscribe to topics that do not exist: t"
    ]


def test_growth_needs_two_readings() -> None:
    now, before = sample(6, 20), sample(5, 10)
    assert progress(now, before).growth_per_s == 4.5
    assert progress(now).growth_per_s is None
    assert progress(now, sample(None)).growth_per_s is None
    assert explain(facts(HEALTHY.activity, [progress(sample(5, 20))]))[0].level is Level.GOOD


def test_unowned_partitions_are_unknown_where_assignments_are() -> None:
    kept = progress(sample(7), owner=None)
    assert facts(group(member("a", P1)), [kept]).unowned == [P0]
    assert facts(group(member("a", assignment=None)), [kept]).unowned == []
    assert facts(group(), [replace(kept, is_subscribed=False)]).unowned == []


def test_words_are_short() -> None:
    partitions = [TopicPartition("t", index) for index in (0, 1, 2, 5)]
    assert ranges([*partitions, TopicPartition("a", 1)]) == "a:1 t:0-2,5"
    assert ranges(TopicPartition(f"t{n}", 0) for n in range(7)).endswith("t4:0 and 2 more")
    assert [duration(each) for each in (0.04, 9.94, 10, 119, 120, 7200, 200_000)] == [
        *("0.0 s", "9.9 s", "10 s", "119 s", "2 min", "2 h", "2 d")
    ]
    assert isinstance(explain(HEALTHY)[0], Finding)


def test_open_transactions_that_hold_offsets_are_named() -> None:
    found = explain(facts(group(member("a", P0), transactions=[(5, 3), (7, 1)])))
    (text,) = [each.text for each in found if each.about == "transactions"]
    assert "of producers 5 (3 offsets), 7 (1 offset): consumers" in text
    assert all(each.level is not Level.BAD for each in found)
    many = explain(facts(group(member("a", P0), transactions=[(each, 1) for each in range(9)])))
    assert any(" 4 (1 offset) and 4 more:" in each.text for each in many)
    assert not any(each.about == "transactions" for each in explain(facts(group())))
