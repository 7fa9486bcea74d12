"""Sentences of `mq-admin moves explain`, and the arithmetic of progress."""

from dataclasses import replace

import pytest

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.move_plans.explanation import explain, lowest_operator_throttle
from metaquorum.client.move_plans.measuring import free_bytes
from metaquorum.client.move_plans.values import (
    CopyOnDisk,
    MovePlan,
    MovingPartition,
    OperatorThrottle,
    PlanFacts,
    Progress,
    StoppedMove,
)
from metaquorum.client.values import FollowerView, LogDir, PartitionView, WorkerDescription

MOVING = MovingPartition("t", 0, (3, 2), (3,), (1,), (1, 2), 1, 1000)
PLAN = MovePlan(
    *(7, "User:a", "mq-admin", "running", 500, 2, 10, 10_000, 20, 1000, None),
    *(4, 3, 0, 1, 4000, 1000, (MOVING,), 11_000),
)
LATE = PartitionView(5, 90, 90, (FollowerView(3, False, 40, 5, None),))


def worker(worker_id: int, *, fenced: str = "") -> WorkerDescription:
    return WorkerDescription(
        worker_id, f"node-{worker_id}:9092", None, bool(fenced), fenced, None, 1, False, 1, 5
    )


FACTS = PlanFacts(
    PLAN, {each: worker(each) for each in (1, 2, 3)}, {TopicPartition("t", 0): LATE}, {}, {}
)


def texts(facts: PlanFacts) -> list[str]:
    return [wait.text for wait in explain(facts)]


def test_a_replica_that_lags_is_named_with_the_throttles_and_whose_they_are() -> None:
    assert texts(FACTS) == [
        "worker 3 is 50 records behind leader 1; throttled to 500 B/s as leader on worker 1 by plan"
        " 7 and throttled to 500 B/s as follower on worker 3 by plan 7",
        "6 moves wait for their turn: 1 partition moves, of at most 2 at the same time",
    ]
    throttles = {(1, "leader"): 100, (3, "follower"): 9000}
    (first, _) = texts(replace(FACTS, throttles=throttles))
    assert "throttled to 100 B/s as leader on worker 1 by an operator's config" in first
    assert "throttled to 500 B/s as follower on worker 3 by plan 7" in first


def test_the_lowest_throttle_of_an_operator_that_limits_a_move_is_found() -> None:
    rates = {(1, "leader"): 900, (3, "follower"): 700, (2, "leader"): 1, (3, "leader"): 2}
    lowest = OperatorThrottle(3, "follower", 700)
    assert lowest_operator_throttle(PLAN, rates, {}) == lowest
    assert lowest_operator_throttle(PLAN, {}, {("t", "leader"): "*"}) is None
    # Without a throttle of the plan, only replicas in an operator's lists are limited.
    unlimited = replace(PLAN, rate_bytes_per_s=None)
    assert lowest_operator_throttle(unlimited, rates, {}) is None
    lists = {("t", "leader"): "0:1", ("u", "follower"): "*", ("t", "follower"): "0:2,1:3"}
    leading = OperatorThrottle(1, "leader", 900)
    assert lowest_operator_throttle(unlimited, rates, lists) == leading
    leaderless = replace(PLAN, moving=(replace(MOVING, leader=None),))
    assert lowest_operator_throttle(leaderless, rates, {}) == lowest
    assert lowest_operator_throttle(replace(PLAN, moving=()), rates, {}) is None


def test_one_move_is_named_in_the_singular() -> None:
    plan = FACTS.plan
    one_waits = replace(FACTS, plan=replace(plan, moves=plan.begun + 1))
    assert texts(one_waits)[-1].startswith("1 move waits for its turn: 1 partition moves, of")
    paused = replace(one_waits, plan=replace(one_waits.plan, state="paused"))
    assert "1 move waits because the plan is paused" in " ".join(texts(paused))
    ended = replace(plan, state="cancelled", moves=3, done=2, stopped=1, moving=())
    assert "1 was cancelled or given up" in " ".join(texts(replace(FACTS, plan=ended)))


def test_a_throttle_of_0_is_a_problem_because_the_move_never_ends() -> None:
    (first, _) = explain(FACTS)
    assert not first.is_problem
    (first, _) = explain(replace(FACTS, throttles={(1, "leader"): 0}))
    assert "throttled to 0 B/s as leader on worker 1 by an operator's config" in first.text
    assert first.is_problem


def test_a_lower_throttle_of_another_plan_on_the_same_worker_is_named() -> None:
    """All throttled replicas of a side of a worker share its rate, the lowest of all plans."""
    elsewhere = MovingPartition("u", 0, (3,), (3,), (1,), (1,), 1, 1000)
    slow = replace(PLAN, plan_id=8, rate_bytes_per_s=50, moving=(elsewhere,))
    (first, _) = texts(replace(FACTS, others=(slow,)))
    assert first.endswith(
        "throttled to 50 B/s as leader on worker 1 by plan 8"
        " and throttled to 50 B/s as follower on worker 3 by plan 8"
    )
    # Only worker 3 has a replica of the other partition; worker 4 leads it.
    (first, _) = texts(
        replace(
            FACTS, others=(replace(slow, moving=(replace(elsewhere, removing=(4,), leader=4),)),)
        )
    )
    assert "throttled to 500 B/s as leader on worker 1 by plan 7" in first
    assert "throttled to 50 B/s as follower on worker 3 by plan 8" in first
    # An added replica that leads sends as well.
    led = replace(elsewhere, target=(1, 5), adding=(1, 5), removing=(2,), leader=1)
    (first, _) = texts(replace(FACTS, others=(replace(slow, moving=(led,)),)))
    assert "throttled to 50 B/s as leader on worker 1 by plan 8" in first
    for other in (replace(slow, rate_bytes_per_s=None), replace(slow, rate_bytes_per_s=5000)):
        assert texts(replace(FACTS, others=(other,))) == texts(FACTS)
    unlimited = replace(FACTS, plan=replace(PLAN, rate_bytes_per_s=None), others=(slow,))
    assert "it is not throttled" in texts(unlimited)[0]
    (first, _) = texts(replace(unlimited, lists={("t", "leader"): "*"}))
    assert "throttled to 50 B/s as leader on worker 1 by plan 8" in first


def test_a_copy_that_does_not_fit_on_its_disk_is_a_problem() -> None:
    def first(copied: int, usable: int, error: str = "") -> tuple[str, bool]:
        disk = CopyOnDisk("/disk2/log", copied, usable)
        (wait, _) = explain(replace(FACTS, copies={(TopicPartition("t", 0), 3): disk}))
        return wait.text, wait.is_problem

    text, is_problem = first(400, 599)
    assert text == (
        "worker 3 is 50 records behind leader 1; 600 bytes are left to copy, and its log directory"
        " /disk2/log has 599 bytes free: free some space there, or move other replicas away;"
        " throttled to 500 B/s as leader on worker 1 by plan 7"
        " and throttled to 500 B/s as follower on worker 3 by plan 7"
    )
    assert is_problem
    for copied, usable in ((400, 600), (400, -1), (1000, 0), (2000, 0)):
        assert first(copied, usable) == (explain(FACTS)[0].text, False)


def test_moves_that_were_stopped_are_named_with_the_reason() -> None:
    stops = (
        StoppedMove(None, 4, "its topic was deleted"),
        StoppedMove("t", 5, "worker 3 of its target is no longer registered"),
    )
    ended = replace(PLAN, state="complete", stopped=2, moving=(), stops=stops)
    waits = explain(replace(FACTS, plan=ended))
    assert [(wait.partition, wait.text) for wait in waits] == [
        (None, "the move of partition 4 of a topic was given up: its topic was deleted"),
        ("t-5", "its move was stopped: worker 3 of its target is no longer registered"),
        (None, "plan 7 is complete: 3 of 10 moves are done, 2 were cancelled or given up"),
    ]
    assert [wait.is_problem for wait in waits] == [True, True, False]
    (*_, last) = texts(replace(FACTS, plan=replace(PLAN, stopped=30, stops=stops)))
    assert last == "30 moves were cancelled or given up; the last 2 are named"
    cancelled = replace(PLAN, state="cancelled", stopped=30, moving=(), stops=stops[:1])
    assert texts(replace(FACTS, plan=cancelled))[-1].endswith("30 were cancelled or given up")


@pytest.mark.parametrize(
    ("listed", "is_throttled"), [("0:1", True), ("*", True), ("0:3", False), ("", False)]
)
def test_without_a_rate_of_the_plan_only_an_operators_list_throttles(
    listed: str, is_throttled: bool
) -> None:
    facts = replace(
        FACTS,
        plan=replace(PLAN, rate_bytes_per_s=None),
        throttles={(1, "leader"): 100},
        lists={("t", "leader"): listed},
    )
    (first, _) = texts(facts)
    assert ("throttled to 100 B/s as leader on worker 1 by an operator's" in first) == is_throttled
    assert ("it is not throttled" in first) != is_throttled


def test_workers_that_are_down_or_gone_are_problems() -> None:
    down = {**FACTS.workers, 3: worker(3, fenced="its session expired")}
    (first, _) = explain(replace(FACTS, workers=down))
    assert (first.text, first.is_problem) == ("worker 3 is down: its session expired", True)
    gone = {1: worker(1), 2: worker(2)}
    (first, _) = explain(replace(FACTS, workers=gone))
    assert (first.text, first.is_problem) == ("worker 3 is no longer registered", True)
    (first, _) = explain(replace(FACTS, views={}))
    assert first.text.startswith("worker 3 has not fetched yet; throttled to")
    nobody = replace(PLAN, moving=(replace(MOVING, leader=None),))
    (first, _) = explain(replace(FACTS, plan=nobody))
    assert "has no leader" in first.text
    synced = replace(PLAN, moving=(replace(MOVING, isr=(3, 2)),))
    (first, _) = explain(replace(FACTS, plan=synced))
    assert first.text == "all replicas of the target are in sync; none of them may lead"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("loading", "the moves of the plan are being sent"),
        ("paused", "6 moves wait because the plan is paused: 'mq-admin moves resume 7'"),
        ("cancelling", "1 moves cannot be cancelled, as no original replica has all"),
        ("complete", "plan 7 is complete: 3 of 10 moves are done, 0 were cancelled or given up"),
    ],
)
def test_each_state_of_a_plan_has_its_sentence(state: str, text: str) -> None:
    facts = replace(FACTS, plan=replace(PLAN, state=state, moving=()))
    (only,) = texts(facts)
    assert only.startswith(text)


def test_a_paused_plan_without_waiting_moves_is_no_problem() -> None:
    begun = replace(PLAN, state="paused", begun=PLAN.moves, moving=())
    (only,) = explain(replace(FACTS, plan=begun))
    assert (only.text, only.is_problem) == (
        "the plan is paused, but all its moves have begun",
        False,
    )


def test_the_rate_and_the_time_left_follow_from_the_copied_bytes() -> None:
    progress = Progress(PLAN, 4000)
    assert PLAN.elapsed_s == 10
    assert progress.rate_bytes_per_s == 400
    assert progress.left_s(400) == 15
    assert progress.left_s(None) is None
    ended = replace(PLAN, state="complete", ended_ms=5000)
    assert (ended.elapsed_s, Progress(ended, 10_000).left_s(400)) == (4, None)
    assert Progress(ended, None).rate_bytes_per_s is None


def test_free_space_is_counted_once_for_each_volume() -> None:
    def log_dir(path: str, total: int, usable: int, error: str = "") -> LogDir:
        return LogDir(1, path, error, total, usable, [])

    one, same, other = log_dir("a", 100, 40), log_dir("b", 100, 40), log_dir("c", 100, 7)
    assert free_bytes([one, same]) == 40
    assert free_bytes([one, same, other]) == 47
    assert free_bytes([one, log_dir("d", -1, -1)]) is None
    assert free_bytes([one, log_dir("d", -1, -1, "offline")]) == 40
