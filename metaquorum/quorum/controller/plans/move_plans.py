"""Plans of moves: many partitions, a few at a time, carried out by the active controller.

A plan is in the metadata log, so it needs neither the command that started it nor the controller
that has begun it. Its moves are those of `reassignment`, with the same rules. Steps, each in one
batch:

    state         a step                                                          then
    loading       none; moves are appended                                        running
    running       begins the next moves, while fewer than `batch_size` partitions
                  move; without any left                                          complete
    paused        none; moves that have begun continue; if they were the last     complete
    cancelling    cancels the moves that have begun; without any left             cancelled

A partition has the id of the plan while it moves. So the record that ends the move, cancels it,
replaces its target or deletes the topic takes the partition out of the plan, and with it the plan's
throttle (`metaquorum.dataplane.partition.plan_throttles`): no throttle can be left behind.

    when its turn comes, the partition ...                 the move
    is missing (its topic is deleted or re-created)        is given up
    moves already, as another client has requested         is given up: that client decides
    would get a replica on a worker that is not registered is given up
    has the target already, or moves there at once         is done
    otherwise                                              begins

The plan remembers the last moves that were stopped, with the reason: a step gives it for those that
it gives up or cancels, and replay for those that another change stops.

A move that has begun is cancelled if a worker of its target is unregistered, as it could never end.
A move that cannot be cancelled (`reassignment.cancelled`) continues until it is complete, with its
throttle.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from metaquorum.metadata.image import MetadataImage, MovePlanImage, PartitionKey, partition_record
from metaquorum.metadata.records import (
    CANCELLED,
    CANCELLING,
    COMPLETE,
    LOADING,
    MAX_BATCH_MOVES,
    MAX_PLANNED_MOVES,
    MAX_REASON_CHARS,
    MAX_STOPS,
    MAX_TEXT_CHARS,
    METADATA_VERSION,
    PAUSED,
    RUNNING,
    STOPPED_BY_DELETION,
    MetadataRecord,
    MovePlanRecord,
    PartitionRecord,
    PlannedMove,
    PlannedMovesRecord,
    RemoveMovePlanRecord,
    StoppedMove,
)
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.features import MOVES_LEVEL, check_level
from metaquorum.quorum.controller.reassignment import cancelled_move, requested_move
from metaquorum.quorum.controller.topics import check_workers
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

MAX_PLANS: Final = 32  # with those that have ended; then the oldest of them are removed
MAX_ACTIVE_PLANS: Final = 4
MAX_PLAN_MOVES: Final = 200_000
STEP_MOVES: Final = 100  # moves that one step begins, gives up or cancels; 2 ms
_INT64_MAX: Final = 2**63 - 1


@frozen
class NewMovePlan:
    """Request to create a plan, whose moves are sent afterwards.

    `moves`, `size_bytes`: their number, and the bytes that they copy. `estimate_s`: seconds that
    the plan takes as estimated, or -1.
    """

    owner: str
    client_id: str
    rate_bytes_per_s: int | None
    batch_size: int
    moves: int
    size_bytes: int
    estimate_s: int


@frozen
class MovePlanPart:
    """Request to append moves to a plan that is loading: the part of that number, from 0."""

    plan_id: int
    number: int
    moves: Sequence[PlannedMove]


@frozen
class MovePlanChange:
    """Request to change a plan: `action` is one of START, PAUSE, RESUME, CANCEL and THROTTLE.

    `rate_bytes_per_s`: for THROTTLE, None for no limit.
    """

    plan_id: int
    action: str
    rate_bytes_per_s: int | None = None


START: Final = "start"
PAUSE: Final = "pause"
RESUME: Final = "resume"
CANCEL: Final = "cancel"
THROTTLE: Final = "throttle"
# The states in which an action is possible, and the state after it (None: unchanged).
_ACTIONS: Final = {
    START: ((LOADING,), RUNNING),
    PAUSE: ((RUNNING, PAUSED), PAUSED),
    RESUME: ((PAUSED, RUNNING), RUNNING),
    CANCEL: ((LOADING, RUNNING, PAUSED, CANCELLING), CANCELLING),
    THROTTLE: ((LOADING, RUNNING, PAUSED, CANCELLING), None),
}


@frozen
class PlanStep:
    """Result of a step. `has_more`: another step could do more at once."""

    begun: int = 0
    has_more: bool = False
    given_up: tuple[StoppedMove, ...] = ()
    ended: MovePlanRecord | None = None


def create_plan(image: MetadataImage, asked: NewMovePlan, now_ms: int) -> Decision[int]:
    """Decide the creation of a plan; the answer is its id. Raises KafkaError if it is refused."""
    check_level(image, METADATA_VERSION, MOVES_LEVEL, "a plan of moves")
    if not 1 <= asked.moves <= MAX_PLAN_MOVES:
        raise _invalid(
            f"A plan has from 1 to {MAX_PLAN_MOVES} moves; this one has {asked.moves}."
            " Split a larger one."
        )
    if not 1 <= asked.batch_size <= MAX_BATCH_MOVES:
        raise _invalid(
            f"A plan moves from 1 to {MAX_BATCH_MOVES} partitions at the same time;"
            f" the batch size is {asked.batch_size}."
        )
    _check_rate(asked.rate_bytes_per_s)
    if not 0 <= asked.size_bytes <= _INT64_MAX:
        raise _invalid("The bytes of the plan are not a number from 0 to 2^63 - 1.")
    active = [plan_id for plan_id, plan in sorted(image.plans.items()) if not plan.has_ended]
    if len(active) >= MAX_ACTIVE_PLANS:
        raise _invalid(
            f"At most {MAX_ACTIVE_PLANS} plans run at the same time, and plans"
            f" {', '.join(map(str, active))} have not ended. Wait for one, or cancel it."
        )
    plan_id = max(image.plans, default=0) + 1
    ended = [plan_id for plan_id, plan in sorted(image.plans.items()) if plan.has_ended]
    records: list[MetadataRecord] = (
        [RemoveMovePlanRecord(oldest) for oldest in ended[: len(image.plans) + 1 - MAX_PLANS]]
        if len(image.plans) >= MAX_PLANS
        else []
    )
    header = MovePlanRecord(
        plan_id,
        asked.owner[:MAX_TEXT_CHARS],
        asked.client_id[:MAX_TEXT_CHARS],
        LOADING,
        asked.rate_bytes_per_s,
        asked.batch_size,
        asked.moves,
        asked.size_bytes,
        max(-1, min(asked.estimate_s, 2**31 - 1)),
        max(0, now_ms),
    )
    return Decision(plan_id, [*records, header])


def append_moves(image: MetadataImage, asked: MovePlanPart) -> Decision[KafkaError | None]:
    """Decide to append moves to a plan; the answer is None or the error.

    A part that the plan has already is accepted without a record, so a request may be repeated.
    """
    try:
        plan = _plan(image, asked.plan_id)
        if plan.header.state != LOADING:
            raise _invalid(f"Plan {asked.plan_id} is {plan.header.state}; it takes no more moves.")
        if asked.number < len(plan.parts) and plan.parts[asked.number] == tuple(asked.moves):
            return Decision(None)
        if asked.number != len(plan.parts):
            raise _invalid(
                f"Plan {asked.plan_id} has {len(plan.parts)} parts; part {asked.number} is not the"
                " next one."
            )
        size = len(asked.moves)
        left = plan.header.moves - asked.number * MAX_PLANNED_MOVES
        if size != min(left, MAX_PLANNED_MOVES) or not size:
            raise _invalid(
                f"Part {asked.number} of plan {asked.plan_id} has {size} moves instead of"
                f" {max(0, min(left, MAX_PLANNED_MOVES))}."
            )
        for move in asked.moves:
            topic = image.topic_by_id(move.topic_id)
            if topic is None or not 0 <= move.partition < len(topic.partitions):
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"A partition of plan {asked.plan_id} is missing: its topic was"
                    " deleted. Make the plan again.",
                )
            check_workers(image, move.replicas)
    except KafkaError as error:
        return Decision(error)
    return Decision(None, [PlannedMovesRecord(asked.plan_id, tuple(asked.moves))])


def change_plan(image: MetadataImage, asked: MovePlanChange) -> Decision[KafkaError | None]:
    """Decide a change of a plan; the answer is None or the error."""
    try:
        check_level(image, METADATA_VERSION, MOVES_LEVEL, "a plan of moves")
        header = _plan(image, asked.plan_id).header
        if asked.action not in _ACTIONS:
            raise _invalid(f"'{asked.action}' is none of {', '.join(_ACTIONS)}.")
        states, after = _ACTIONS[asked.action]
        if header.state not in states:
            raise _invalid(
                f"Plan {asked.plan_id} is {header.state};"
                f" '{asked.action}' needs a plan that is {' or '.join(states)}."
            )
        changed = header if after is None else replace(header, state=after)
        if asked.action == THROTTLE:
            _check_rate(asked.rate_bytes_per_s)
            changed = replace(header, rate_bytes_per_s=asked.rate_bytes_per_s)
        elif asked.action == START:
            loaded = sum(map(len, _plan(image, asked.plan_id).parts))
            if loaded != header.moves:
                raise _invalid(
                    f"Plan {asked.plan_id} has {loaded} of its {header.moves} moves; it cannot"
                    " start before it has all."
                )
    except KafkaError as error:
        return Decision(error)
    return Decision(None, [] if changed == header else [changed])


def step_plan(image: MetadataImage, plan_id: int, now_ms: int) -> Decision[PlanStep]:
    """Decide the next step of a plan; no records if there is none now."""
    plan = image.plans.get(plan_id)
    if plan is None or plan.has_ended or plan.header.state == LOADING:
        return Decision(PlanStep())
    header = plan.header
    if header.state == CANCELLING:
        return _cancelling(image, plan, now_ms)
    if records := _cancel(image, [at for at in sorted(plan.moving) if _is_stuck(image, at)]):
        stops = [_stuck(image, record) for record in records]
        # Each record of a partition counts its stop on top of the header.
        return Decision(PlanStep(has_more=True), [_with_stops(header, stops), *records])
    if header.begun == header.moves and not plan.moving:
        after = replace(header, state=COMPLETE, ended_ms=max(0, now_ms))
        return Decision(PlanStep(ended=after), [after])
    if header.state == PAUSED:
        return Decision(PlanStep())
    return _beginning(image, plan)


def expire_plan(image: MetadataImage, plan_id: int) -> Decision[bool]:
    """Decide to cancel a plan that is still loading, as its sender has vanished."""
    plan = image.plans.get(plan_id)
    if plan is None or plan.header.state != LOADING:
        return Decision(False)
    return Decision(True, [replace(plan.header, state=CANCELLING)])


def _beginning(image: MetadataImage, plan: MovePlanImage) -> Decision[PlanStep]:
    header = plan.header
    free = header.batch_size - len(plan.moving)
    begun: dict[PartitionKey, MetadataRecord] = {}
    at_once: dict[PartitionKey, MetadataRecord] = {}
    given_up: list[StoppedMove] = []
    looked_at = 0
    done = header.done
    for move in plan.moves(header.begun):
        if len(begun) >= free or looked_at == STEP_MOVES:
            break
        looked_at += 1
        key = move.topic_id, move.partition
        topic = image.topic_by_id(move.topic_id)
        if topic is None or move.partition >= len(topic.partitions):
            given_up.append(StoppedMove("", move.partition, STOPPED_BY_DELETION))
            continue
        if topic.partitions[move.partition].is_moving or key in begun or key in at_once:
            given_up.append(StoppedMove(topic.name, move.partition, "it moves already"))
            continue
        try:
            after = requested_move(image, topic, move.partition, move.replicas, header.plan_id)
        except KafkaError as error:
            reason = str(error.message)[:MAX_REASON_CHARS]
            given_up.append(StoppedMove(topic.name, move.partition, reason))
            continue
        if after is None or not after.is_moving:
            done += 1
        if after is not None:
            record = partition_record(topic.topic_id, move.partition, after)
            (begun if after.is_moving else at_once)[key] = record
    if not looked_at:
        return Decision(PlanStep())
    changed = replace(
        _with_stops(header, given_up),
        begun=header.begun + looked_at,
        done=done,
        stopped=header.stopped + len(given_up),
    )
    has_more = len(plan.moving) + len(begun) < header.batch_size
    # The header is the first: records of partitions that leave the plan count on top of it.
    return Decision(
        PlanStep(len(begun), has_more, tuple(given_up)),
        [changed, *begun.values(), *at_once.values()],
    )


def _cancelling(image: MetadataImage, plan: MovePlanImage, now_ms: int) -> Decision[PlanStep]:
    if not plan.moving:
        after = replace(plan.header, state=CANCELLED, ended_ms=max(0, now_ms))
        return Decision(PlanStep(ended=after), [after])
    records = _cancel(image, sorted(plan.moving))
    return Decision(PlanStep(has_more=bool(records)), records)


def _with_stops(header: MovePlanRecord, stops: Sequence[StoppedMove]) -> MovePlanRecord:
    return replace(header, stops=(*header.stops, *stops)[-MAX_STOPS:]) if stops else header


def _stuck(image: MetadataImage, record: PartitionRecord) -> StoppedMove:
    """Return why a step cancels that move; the record is the one that cancels it."""
    topic = image.topic_by_id(record.topic_id)
    assert topic is not None, "a deleted topic has left its plan"
    target = topic.partitions[record.partition].target
    lost = next(replica for replica in target if replica not in image.workers)
    return StoppedMove(
        topic.name, record.partition, f"worker {lost} of its target is no longer registered"
    )


def _cancel(image: MetadataImage, keys: Sequence[PartitionKey]) -> list[PartitionRecord]:
    """Return records that cancel the moves, of at most STEP_MOVES that can be cancelled."""
    records: list[PartitionRecord] = []
    for topic_id, number in keys:
        topic = image.topic_by_id(topic_id)
        assert topic is not None, "a deleted topic has left its plan"
        try:
            after = cancelled_move(image, topic, number)
        except KafkaError:
            continue  # the move continues; `mq-admin moves explain` shows it
        records.append(partition_record(topic_id, number, after))
        if len(records) == STEP_MOVES:
            break
    return records


def _is_stuck(image: MetadataImage, key: PartitionKey) -> bool:
    """Return whether a worker of the target is no longer registered."""
    topic = image.topic_by_id(key[0])
    assert topic is not None, "a deleted topic has left its plan"
    return any(replica not in image.workers for replica in topic.partitions[key[1]].target)


def _plan(image: MetadataImage, plan_id: int) -> MovePlanImage:
    plan = image.plans.get(plan_id)
    if plan is None:
        known = ", ".join(map(str, sorted(image.plans))) or "none"
        raise KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND, f"There is no plan {plan_id}; known plans: {known}."
        )
    return plan


def _check_rate(rate_bytes_per_s: int | None) -> None:
    if rate_bytes_per_s is not None and not 1 <= rate_bytes_per_s <= _INT64_MAX:
        raise _invalid(
            "The throttle of a plan is at least 1 byte per second;"
            f" {rate_bytes_per_s} would never finish."
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
