"""Sentences that say what each move of a plan waits for; pure functions of `PlanFacts`.

the move waits for ...           because
a replica of the target          its worker is down, it has not fetched, or it lags
room on a disk                   more is left to copy than is free in its log directory
a throttle                       the lowest rate of all plans and an operator, on either side
a leader                         no replica can lead
its turn                         `batch_size` others move, or the plan is paused

The last moves that were stopped are named as well, with the reason.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter, itemgetter

from metaquorum.client.move_plans.values import (
    MovePlan,
    MovingPartition,
    OperatorThrottle,
    PlanFacts,
    StoppedMove,
)
from metaquorum.config.throttled_replicas import ThrottledReplicas
from metaquorum.wire.primitives.frozen import frozen

SIDES = ("leader", "follower")


@frozen
class Wait:
    """A partition (None: the plan) that waits, and for what. `replica`: worker id of a replica."""

    partition: str | None
    replica: int | None
    lag: int | None  # records
    text: str
    is_problem: bool = False


def explain(facts: PlanFacts) -> list[Wait]:
    """Return what the plan waits for, by partition, and then the plan itself."""
    waits: list[Wait] = []
    for partition in facts.plan.moving:
        waits += _of_partition(facts, partition)
    waits += [_of_stop(stop) for stop in facts.plan.stops]
    waits += _of_plan(facts.plan)
    return waits


def lowest_operator_throttle(
    plan: MovePlan,
    throttles: Mapping[tuple[int, str], int],
    lists: Mapping[tuple[str, str], str],
) -> OperatorThrottle | None:
    """Return the lowest throttle of an operator that limits a move of the plan.

    `throttles` and `lists`: as in `PlanFacts`.
    """
    found = [
        OperatorThrottle(worker_id, side, throttles[worker_id, side])
        for partition in plan.moving
        for replica in partition.adding
        for side, worker_id in zip(SIDES, (partition.leader, replica), strict=True)
        if worker_id is not None
        and (worker_id, side) in throttles
        and _is_throttled(plan, lists, partition, side, worker_id, replica)
    ]
    return min(found, key=attrgetter("rate_bytes_per_s", "worker_id", "side"), default=None)


def _is_throttled(
    plan: MovePlan,
    lists: Mapping[tuple[str, str], str],
    partition: MovingPartition,
    side: str,
    worker_id: int,
    replica: int,
) -> bool:
    """Return whether an operator's list names the replica of that worker, or the plan limits it."""
    listed = ThrottledReplicas.of(
        [each for each in lists.get((partition.topic, side), "").split(",") if each]
    )
    if listed is not None and listed.has(partition.partition, worker_id):
        return True
    return plan.rate_bytes_per_s is not None and replica in partition.adding


def _of_plan(plan: MovePlan) -> Iterator[Wait]:
    def wait(text: str, *, is_problem: bool = False) -> Wait:
        return Wait(None, None, None, text, is_problem)

    waiting = plan.moves - plan.begun
    if plan.has_ended:
        yield wait(
            f"plan {plan.plan_id} is {plan.state}: {plan.done} of {plan.moves} moves are done,"
            f" {plan.stopped} {_number(plan.stopped, 'was', 'were')} cancelled or given up"
            f"{_unnamed(plan)}"
        )
    elif plan.state == "loading":
        yield wait("the moves of the plan are being sent; it has not started")
    elif plan.state == "paused" and not waiting:
        yield wait("the plan is paused, but all its moves have begun")
    elif plan.state == "paused":
        yield wait(
            f"{_waiting(waiting)} because the plan is paused: 'mq-admin moves resume"
            f" {plan.plan_id}' continues it",
            is_problem=True,
        )
    elif plan.state == "cancelling":
        if plan.moving_count:
            yield wait(
                f"{plan.moving_count} moves cannot be cancelled, as no original replica has all"
                " committed records, or none may lead: they end when their target is in sync"
            )
    elif waiting:
        yield wait(
            f"{_waiting(waiting)} for {_number(waiting, 'its', 'their')} turn: {plan.moving_count}"
            f" {_number(plan.moving_count, 'partition moves', 'partitions move')}, of at most"
            f" {plan.batch_size} at the same time"
        )
    if plan.stopped and not plan.has_ended:
        moves_were = _number(plan.stopped, "move was", "moves were")
        yield wait(f"{plan.stopped} {moves_were} cancelled or given up{_unnamed(plan)}")


def _number(count: int, singular: str, plural: str) -> str:
    return singular if count == 1 else plural


def _waiting(count: int) -> str:
    return f"{count} {_number(count, 'move waits', 'moves wait')}"


def _unnamed(plan: MovePlan) -> str:
    """Return how many of the stopped moves the plan remembers, if not all."""
    if plan.state in ("cancelling", "cancelled") or len(plan.stops) >= plan.stopped:
        return ""
    return f"; the last {len(plan.stops)} are named"


def _of_stop(stop: StoppedMove) -> Wait:
    if stop.topic is None:
        text = f"the move of partition {stop.partition} of a topic was given up: {stop.reason}"
        return Wait(None, None, None, text, is_problem=True)
    at = f"{stop.topic}-{stop.partition}"
    return Wait(at, None, None, f"its move was stopped: {stop.reason}", is_problem=True)


def _of_partition(facts: PlanFacts, partition: MovingPartition) -> Iterator[Wait]:
    at = f"{partition.topic}-{partition.partition}"
    if partition.leader is None:
        yield Wait(
            at,
            None,
            None,
            "the partition has no leader, so no replica can copy from it",
            is_problem=True,
        )
        return
    missing = [replica for replica in partition.target if replica not in partition.isr]
    for replica in missing:
        yield _of_replica(facts, partition, at, replica, partition.leader)
    if not missing:
        yield Wait(at, None, None, "all replicas of the target are in sync; none of them may lead")


def _of_replica(
    facts: PlanFacts, partition: MovingPartition, at: str, replica: int, leader: int
) -> Wait:
    worker = facts.workers.get(replica)
    if worker is None:
        return Wait(at, replica, None, f"worker {replica} is no longer registered", is_problem=True)
    if worker.is_fenced:
        why = f": {worker.why_fenced}" if worker.why_fenced else ""
        return Wait(at, replica, None, f"worker {replica} is down{why}", is_problem=True)
    view = facts.views.get(partition.where)
    known = next((each for each in view.followers if each.node == replica), None) if view else None
    if view is None or known is None or known.log_end_offset is None:
        lag, copied = None, f"worker {replica} has not fetched yet"
    else:
        lag = max(0, view.log_end_offset - known.log_end_offset)
        copied = f"worker {replica} is {lag} records behind leader {leader}"
    full = _full(facts, partition, replica)
    held = [
        throttle
        for side, worker_id in zip(SIDES, (leader, replica), strict=True)
        if (throttle := _throttle(facts, partition, side, worker_id, replica)) is not None
    ]
    throttled = " and ".join(text for _, text in held) or "it is not throttled"
    is_problem = bool(full) or any(rate == 0 for rate, _ in held)
    return Wait(at, replica, lag, f"{copied}; {full}{throttled}", is_problem=is_problem)


def _full(facts: PlanFacts, partition: MovingPartition, replica: int) -> str:
    """Return the text of a copy that does not fit into its log directory; empty if it does."""
    copy = facts.copies.get((partition.where, replica))
    if copy is None or copy.usable_bytes < 0:
        return ""
    left = partition.copy_bytes - copy.size_bytes
    if left <= copy.usable_bytes:
        return ""
    return (
        f"{left} bytes are left to copy, and its log directory {copy.path} has {copy.usable_bytes}"
        " bytes free: free some space there, or move other replicas away; "
    )


def _throttle(
    facts: PlanFacts, partition: MovingPartition, side: str, worker_id: int, replica: int
) -> tuple[int, str] | None:
    """Return the throttle of that worker on that side, with a text of whose it is."""
    if not _is_throttled(facts.plan, facts.lists, partition, side, worker_id, replica):
        return None
    # All throttled replicas of a side of a worker share one rate, the lowest.
    rates = [
        (plan.rate_bytes_per_s, f"plan {plan.plan_id}")
        for plan in (facts.plan, *facts.others)
        if plan.rate_bytes_per_s is not None
        and any(each.has_on(worker_id, side) for each in plan.moving)
    ]
    operator = facts.throttles.get((worker_id, side))
    if operator is not None:
        rates.append((operator, "an operator's config"))
    if not rates:
        return None
    rate, whose = min(rates, key=itemgetter(0))
    return rate, f"throttled to {rate} B/s as {side} on worker {worker_id} by {whose}"
