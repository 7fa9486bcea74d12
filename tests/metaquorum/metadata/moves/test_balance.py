"""Every plan is legal, moves nothing without need, and is balanced within the stated bounds."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.moves.balance import (
    DEFAULT_TOLERANCE,
    Goal,
    add,
    balance,
    crowded,
    drain,
    spread,
    staying,
)
from metaquorum.metadata.moves.cluster_state import ClusterState, PartitionState, WorkerState
from metaquorum.metadata.moves.plan import Plan, PlanError
from tests.examples import examples

FEW = examples(30)  # each example is a whole cluster
GOALS = st.sets(st.sampled_from(Goal), min_size=1)


@st.composite
def clusters(
    draw: st.DrawFn, *, racks: bool = True, most_workers: int = 7, all_may_move: bool = False
) -> ClusterState:
    count = draw(st.integers(2, most_workers))
    workers = [
        WorkerState(
            each,
            draw(st.sampled_from((None, "a", "b", "c"))) if racks else None,
            draw(st.sampled_from((None, None, "x", "y"))) if racks else None,
        )
        for each in range(count)
    ]
    partitions = []
    for at in range(draw(st.integers(1, 12))):
        row = draw(st.permutations(range(count)))[: draw(st.integers(1, min(3, count)))]
        partitions.append(
            PartitionState(
                draw(st.sampled_from("tu")),
                at,
                tuple(row),
                None if not all_may_move and draw(st.integers(0, 9)) == 0 else row[0],
                draw(st.integers(0, 3) | st.integers(0, 1000)),
                is_moving=not all_may_move and draw(st.integers(0, 9)) == 0,
            )
        )
    return ClusterState(tuple(workers), tuple(partitions))


def numbers(state: ClusterState) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Return the replicas, the bytes and the leaders of each worker."""
    count: Counter[int] = Counter({each.worker_id: 0 for each in state.workers})
    size, leaders = count.copy(), count.copy()
    for each in state.partitions:
        leaders[each.replicas[0]] += 1
        for worker in each.replicas:
            count[worker] += 1
            size[worker] += each.size_bytes
    return count, size, leaders


def shared(replicas: tuple[int, ...], group: dict[int, str]) -> int:
    return sum(n * n for n in Counter([group[worker] for worker in replicas]).values())


def groups(state: ClusterState) -> tuple[dict[int, str], dict[int, str]]:
    racks = {each.worker_id: each.rack or "" for each in state.workers}
    hosts = {each.worker_id: each.host or str(each.worker_id) for each in state.workers}
    return racks, hosts


def check_legal(state: ClusterState, plan: Plan, *, spreads: bool = True) -> None:
    known = {(each.topic, each.partition): each for each in state.partitions}
    workers = {each.worker_id for each in state.workers}
    for move in plan.moves:
        now = known.pop((move.topic, move.partition))
        assert now.may_move
        assert move.replicas == now.replicas != move.target
        assert move.size_bytes == now.size_bytes
        assert len(set(move.target)) == len(move.target) == len(move.replicas)
        assert workers.issuperset(move.target)
        if spreads:
            for group in groups(state):
                assert shared(move.target, group) <= shared(move.replicas, group)
                assert len({group[w] for w in move.target}) >= len(
                    {group[w] for w in move.replicas}
                )
    if spreads:
        assert crowded(state, plan) == []


@FEW
@given(clusters(), GOALS)
def test_a_balance_is_legal_and_a_second_one_is_empty(
    state: ClusterState, goals: set[Goal]
) -> None:
    plan = balance(state, goals)
    check_legal(state, plan)
    assert balance(state.moved(plan), goals).moves == () or any(
        not each.may_move for each in state.partitions
    )
    if goals == {Goal.LEADERS}:
        assert plan.copied_bytes == 0


@FEW
@given(clusters(), GOALS.map(lambda goals: goals | {Goal.REPLICAS}))
def test_no_legal_move_brings_two_numbers_of_replicas_closer(
    state: ClusterState, goals: set[Goal]
) -> None:
    plan = balance(state, goals)
    after = state.moved(plan)
    count, _, _ = numbers(after)
    for old, new in permutations(count, 2):
        if count[old] - count[new] < 2:
            continue
        for then, now in zip(after.partitions, state.partitions, strict=True):
            if now.may_move and old in then.replicas and new not in then.replicas:
                target = tuple([new if w == old else w for w in then.replicas])
                assert any(
                    shared(target, group) > shared(then.replicas, group) for group in groups(state)
                )


@FEW
@given(clusters(racks=False, all_may_move=True), GOALS)
def test_without_racks_the_numbers_are_within_the_bounds(
    state: ClusterState, goals: set[Goal]
) -> None:
    count, size, _ = numbers(state.moved(balance(state, goals)))
    if Goal.REPLICAS in goals:
        assert max(count.values()) - min(count.values()) <= 1
    if Goal.BYTES in goals:
        mean = sum(size.values()) / len(size)
        within = [abs(each - mean) <= mean * DEFAULT_TOLERANCE + 0.001 for each in size.values()]
        largest = max(each.size_bytes for each in state.partitions)
        assert all(within) or max(size.values()) - min(size.values()) <= largest


@FEW
@given(clusters(most_workers=4, all_may_move=True))
def test_leaders_are_as_equal_as_the_replicas_permit(state: ClusterState) -> None:
    few = replace(state, partitions=state.partitions[:6])
    _, _, leaders = numbers(few.moved(balance(few, {Goal.LEADERS})))
    best = min(
        sum(n * n for n in Counter(chosen).values())
        for chosen in product(*[each.replicas for each in few.partitions])
    )
    assert sum(n * n for n in leaders.values()) == best


@FEW
@given(clusters(), st.data())
def test_drain_moves_only_the_replicas_of_the_worker(
    state: ClusterState, data: st.DataObject
) -> None:
    worker = data.draw(st.sampled_from([each.worker_id for each in state.workers]))
    others = len(state.workers) - 1
    if any(len(each.replicas) > others and each.may_move for each in state.partitions):
        with pytest.raises(PlanError, match="replicas, and the plan leaves only"):
            drain(state, [worker])
        return
    plan = drain(state, [worker])
    check_legal(state, plan, spreads=False)
    left = {(p.topic, p.partition) for p in staying(state, [worker])}
    for then, now in zip(state.moved(plan).partitions, state.partitions, strict=True):
        assert (worker in then.replicas) == ((now.topic, now.partition) in left)
        for before, after in zip(now.replicas, then.replicas, strict=True):
            assert before in (after, worker)
    for move in crowded(state, plan):  # only if all other workers share at least as much
        rest = [w.worker_id for w in state.workers if w.worker_id not in {*move.target, worker}]
        new = move.adding[0]
        for other in rest:
            target = tuple([other if w == new else w for w in move.target])
            assert any(shared(target, g) > shared(move.replicas, g) for g in groups(state))


@FEW
@given(clusters(), GOALS, st.data())
def test_add_moves_only_to_the_new_worker(
    state: ClusterState, goals: set[Goal], data: st.DataObject
) -> None:
    new = len(state.workers)
    rack = data.draw(st.sampled_from((None, "a", "d")))
    state = replace(state, workers=(*state.workers, WorkerState(new, rack)))
    plan = add(state, [new], goals)
    check_legal(state, plan)
    assert all(move.adding == (new,) for move in plan.moves)
    count, _, _ = numbers(state.moved(plan))
    assert count[new] <= sum(count.values()) // len(count)
    if rack is None and all(w.rack is None and w.host is None for w in state.workers):
        share = sum(count.values()) // len(count)
        assert count[new] == share or any(not each.may_move for each in state.partitions)


@FEW
@given(clusters(), GOALS, st.data())
def test_topics_are_spread_over_the_workers_of_a_list(
    state: ClusterState, goals: set[Goal], data: st.DataObject
) -> None:
    workers = data.draw(st.sets(st.sampled_from([w.worker_id for w in state.workers]), min_size=1))
    topic = state.partitions[0].topic
    own = [each for each in state.partitions if each.topic == topic]
    if any(len(each.replicas) > len(workers) and each.may_move for each in own):
        with pytest.raises(PlanError, match="replicas, and the plan leaves only"):
            spread(state, [topic], workers, goals)
        return
    plan = spread(state, [topic], workers, goals)
    check_legal(state, plan, spreads=False)
    assert all(move.topic == topic for move in plan.moves)
    for each in state.moved(plan).partitions:
        is_ours = (each.topic, each.partition) in {
            (p.topic, p.partition) for p in own if p.may_move
        }
        assert not is_ours or workers.issuperset(each.replicas)


def even(count: int, workers: int, size: int = 10) -> ClusterState:
    """Return a balanced cluster of `workers`, replication factor 2, and one worker without any."""
    return ClusterState(
        tuple([WorkerState(each) for each in range(workers + 1)]),
        tuple(
            [
                PartitionState("t", at, (at % workers, (at + 1) % workers), at % workers, size)
                for at in range(count)
            ]
        ),
    )


def test_a_new_worker_gets_its_share_of_replicas_bytes_and_leaders() -> None:
    state = even(60, 3)
    plan = add(state, [3])
    count, size, leaders = numbers(state.moved(plan))
    assert dict(count) == {0: 30, 1: 30, 2: 30, 3: 30}
    assert dict(size) == {0: 300, 1: 300, 2: 300, 3: 300}
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert plan.copied_bytes == 300


def test_the_fewest_bytes_move_if_only_numbers_are_balanced() -> None:
    workers = tuple([WorkerState(each) for each in range(2)])
    sizes = [900, 5, 700, 3]
    state = ClusterState(
        workers,
        tuple([PartitionState("t", at, (0,), 0, size) for at, size in enumerate(sizes)]),
    )
    assert balance(state, {Goal.REPLICAS}).copied_bytes == 8
    _, size, _ = numbers(state.moved(balance(state, {Goal.REPLICAS, Goal.BYTES})))
    assert max(size.values()) - min(size.values()) <= 900


def test_draining_keeps_racks_apart() -> None:
    workers = tuple(
        [WorkerState(at, rack) for at, rack in enumerate(["a", "a", "b", "b", "c", "c"])]
    )
    state = ClusterState(
        workers, tuple([PartitionState("t", at, (0, 2, 4), 0, 10) for at in range(8)])
    )
    for move in drain(state, [0]).moves:
        assert move.target == (1, 2, 4)


def test_a_worker_that_drains_or_is_not_live_receives_nothing() -> None:
    state = even(6, 3)
    workers = (*state.workers[:3], replace(state.workers[3], may_receive=False))
    state = replace(state, workers=workers)
    assert balance(state).moves == ()
    with pytest.raises(PlanError, match="worker 3 cannot receive replicas, because it is not live"):
        add(state, [3])
    assert all(3 not in move.target for move in drain(state, [0]).moves)


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (lambda state: drain(state, [9]), "there is no worker 9"),
        (lambda state: add(state, [9]), "there is no worker 9"),
        (lambda state: spread(state, ["u"]), "there is no topic u"),
        (lambda state: spread(state, ["t"], [9]), "there is no worker 9"),
        (
            lambda state: spread(state, ["t"], [1]),
            "t-5 has 2 replicas, and the plan leaves only 1 worker for them",
        ),
        (lambda state: drain(state, [0, 1, 2, 3]), "there is no worker that may receive"),
    ],
)
def test_impossible_plans_are_refused(plan: Callable[[ClusterState], Plan], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        plan(even(6, 3))
