"""Plans of moves: StartMovePlan, AlterMovePlan and DescribeMovePlans, APIs of this project."""

from collections.abc import Iterator
from typing import Final, Protocol

from metaquorum.dataplane.handlers.topics import timeout_seconds
from metaquorum.dataplane.scheduling.time_slices import for_each_of, in_pieces, pause
from metaquorum.dataplane.worker.capabilities import AsksController, HasClock, HasImage
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.feature_levels import needs_level
from metaquorum.metadata.image import MetadataImage, MovePlanImage, PartitionKey
from metaquorum.metadata.records import MAX_PLANNED_MOVES, PlannedMove
from metaquorum.quorum.controller.features import MOVES_LEVEL
from metaquorum.quorum.controller.plans.move_plans import (
    CANCEL,
    MAX_PLAN_MOVES,
    START,
    THROTTLE,
    MovePlanChange,
    MovePlanPart,
    NewMovePlan,
)
from metaquorum.quorum.controller.topics import check_workers
from metaquorum.quorum.rpc.methods import (
    APPEND_MOVES,
    CHANGE_MOVE_PLANS,
    CREATE_MOVE_PLAN,
    AppendMoves,
    ChangeMovePlans,
    CreateMovePlan,
)
from metaquorum.wire.messages.alter_move_plan import AlterMovePlanRequest, AlterMovePlanResponse
from metaquorum.wire.messages.describe_move_plans import (
    DescribedMovePlan,
    DescribeMovePlansRequest,
    DescribeMovePlansResponse,
    MovingPartition,
    StoppedMove,
)
from metaquorum.wire.messages.start_move_plan import (
    PlannedPartition,
    PlannedTopic,
    StartMovePlanRequest,
    StartMovePlanResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

SENT_PARTS: Final = 20  # in one request to the controller: 2000 moves
MOST_NAMED: Final = 10  # partitions in one sentence
_NONE: Final = -1
_NO_PLAN: Final = 0


class PlansMoves(AsksController, HasImage, Protocol):
    """Capability to ask the controller for plans, and to read the metadata."""


class DescribesPlans(HasClock, HasImage, Protocol):
    """Capability to read the metadata, and the time."""


async def handle_start_move_plan(
    worker: PlansMoves, request: Request, message: StartMovePlanRequest
) -> StartMovePlanResponse:
    """Create a plan, send its moves, and start it. If that fails, cancel it."""
    slicer, client, context = worker.slicer, worker.controller_client, request.context
    timeout_s = timeout_seconds(message.timeout_ms)
    planned: dict[PartitionKey, PlannedMove] = {}
    plan_id = _NONE
    try:
        needs_level(worker.image, MOVES_LEVEL, "a plan of moves")
        await _planned(worker.image, message.topics, planned)
        plan = NewMovePlan(
            context.principal,
            context.client_id or "",
            _rate(message.rate_bytes_per_s),
            message.batch_size,
            len(planned),
            sum(move.size_bytes for move in planned.values()),
            message.estimate_s,
        )
        plan_id = await client.change(
            CREATE_MOVE_PLAN, CreateMovePlan(context, plan), timeout_s=timeout_s
        )
        parts = await _parts(plan_id, planned)
        for first in range(0, len(parts), SENT_PARTS):
            errors = await client.change_each(
                APPEND_MOVES,
                parts[first : first + SENT_PARTS],
                lambda some: AppendMoves(context, some),
                timeout_s=timeout_s,
            )
            _raise_first(errors)
        await _change(worker, request, MovePlanChange(plan_id, START), timeout_s)
    except KafkaError as error:
        if plan_id != _NONE:
            await _cancel(worker, request, plan_id, timeout_s)
        return StartMovePlanResponse(error_code=error.code, error_message=error.message)
    finally:
        slicer.discard(planned)
    return StartMovePlanResponse(plan_id=plan_id)


async def _planned(
    image: MetadataImage, topics: list[PlannedTopic], planned: dict[PartitionKey, PlannedMove]
) -> None:
    """Put the requested moves into `planned`. Raises KafkaError if one of them is invalid."""
    taken: dict[PartitionKey, int] = {}
    busy: dict[int, list[str]] = {}  # partitions that cannot be planned, by plan, or _NO_PLAN
    for plan_id, plan in image.plans.items():
        if not plan.has_ended:
            taken |= dict.fromkeys(plan.moving, plan_id)
            for move in plan.moves(plan.header.begun):
                taken[move.topic_id, move.partition] = plan_id
                if len(taken) % 64 == 0:
                    await pause()

    def take(asked: PlannedTopic, one: PlannedPartition) -> None:
        topic = image.topic(asked.name)
        at = f"{asked.name}-{one.partition_index}"
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {asked.name}."
            )
        if not 0 <= one.partition_index < len(topic.partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"There is no partition {at}; topic {asked.name} has {len(topic.partitions)}.",
            )
        key = topic.topic_id, one.partition_index
        if key in planned:
            raise _invalid(f"The plan names partition {at} more than once.")
        if (other := taken.get(key)) is not None:
            busy.setdefault(other, []).append(at)
        elif topic.partitions[one.partition_index].is_moving:
            busy.setdefault(_NO_PLAN, []).append(at)
        if one.size_bytes < 0:
            raise _invalid(f"The bytes of partition {at} are below 0.")
        if len(planned) == MAX_PLAN_MOVES:
            raise _invalid(f"A plan has at most {MAX_PLAN_MOVES} moves. Split a larger one.")
        replicas = tuple(one.replicas)
        try:
            check_workers(image, replicas)
        except KafkaError as error:
            raise KafkaError(error.code, f"{at}: {error.message}") from None
        planned[key] = PlannedMove(*key, replicas, one.size_bytes)

    await for_each_of(topics, lambda topic: topic.partitions, take)
    if busy:
        raise _invalid(_busy_text(busy))


def _busy_text(busy: dict[int, list[str]]) -> str:
    """Return sentences that name the partitions of each plan, and those of reassignments."""
    texts = []
    for plan_id, names in sorted(busy.items()):
        named = ", ".join(names[:MOST_NAMED])
        if len(names) > MOST_NAMED:
            named += f" and {len(names) - MOST_NAMED} more"
        is_one = len(names) == 1
        subject = f"Partition {named}" if is_one else f"{len(names)} partitions ({named})"
        if plan_id == _NO_PLAN:
            texts.append(
                f"{subject} {'moves' if is_one else 'move'} already, by a reassignment. Wait until"
                " it ends, or cancel it with 'kafka-reassign-partitions.sh --cancel'."
            )
        else:
            texts.append(
                f"{subject} {'is' if is_one else 'are'} part of plan {plan_id}, which has not"
                f" ended. Wait for it, or cancel it with 'mq-admin moves cancel {plan_id}'."
            )
    return " ".join(texts)


async def _parts(plan_id: int, planned: dict[PartitionKey, PlannedMove]) -> list[MovePlanPart]:
    parts: list[MovePlanPart] = []
    moves: list[PlannedMove] = []

    def take(move: PlannedMove) -> None:
        moves.append(move)
        if len(moves) == MAX_PLANNED_MOVES:
            parts.append(MovePlanPart(plan_id, len(parts), tuple(moves)))
            moves.clear()

    await in_pieces(planned.values(), take)
    if moves:
        parts.append(MovePlanPart(plan_id, len(parts), tuple(moves)))
    return parts


async def _change(
    worker: AsksController, request: Request, change: MovePlanChange, timeout_s: float
) -> None:
    """Change a plan. Raises KafkaError if the controller refuses the change."""
    _raise_first(
        await worker.controller_client.change_each(
            CHANGE_MOVE_PLANS,
            [change],
            lambda some: ChangeMovePlans(request.context, some),
            timeout_s=timeout_s,
        )
    )


async def _cancel(worker: AsksController, request: Request, plan_id: int, timeout_s: float) -> None:
    """Cancel a plan that could not be sent; the controller does so later if this fails."""
    try:
        await _change(worker, request, MovePlanChange(plan_id, CANCEL), timeout_s)
    except KafkaError:
        return


def _raise_first(errors: list[KafkaError | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


async def handle_alter_move_plan(
    worker: PlansMoves, request: Request, message: AlterMovePlanRequest
) -> AlterMovePlanResponse:
    rate = _rate(message.rate_bytes_per_s) if message.action == THROTTLE else None
    change = MovePlanChange(message.plan_id, message.action, rate)
    try:
        # A controller of an older version does not have the method.
        needs_level(worker.image, MOVES_LEVEL, "a plan of moves")
        await _change(worker, request, change, timeout_seconds(message.timeout_ms))
    except KafkaError as error:
        return AlterMovePlanResponse(error_code=error.code, error_message=error.message)
    return AlterMovePlanResponse()


def _rate(rate_bytes_per_s: int) -> int | None:
    return None if rate_bytes_per_s == _NONE else rate_bytes_per_s


async def handle_describe_move_plans(
    worker: DescribesPlans, request: Request, message: DescribeMovePlansRequest
) -> DescribeMovePlansResponse:
    """Describe the requested plans, by default all; unknown ids are left out."""
    response = DescribeMovePlansResponse(now_ms=worker.clock.now_ms())
    image = worker.image
    asked = None if message.plan_ids is None else set(message.plan_ids)
    for plan_id, plan in sorted(image.plans.items()):
        if asked is None or plan_id in asked:
            described = await _described(image, plan, include_moving=message.include_moving)
            response.plans.append(described)
    return response


async def _described(
    image: MetadataImage, plan: MovePlanImage, *, include_moving: bool
) -> DescribedMovePlan:
    header = plan.header
    described = DescribedMovePlan(
        plan_id=header.plan_id,
        owner=header.owner,
        client_id=header.client_id,
        state=header.state,
        rate_bytes_per_s=_NONE if header.rate_bytes_per_s is None else header.rate_bytes_per_s,
        batch_size=header.batch_size,
        moves=header.moves,
        size_bytes=header.size_bytes,
        estimate_s=header.estimate_s,
        created_ms=header.created_ms,
        ended_ms=header.ended_ms,
        begun=header.begun,
        done=header.done,
        stopped=header.stopped,
        moving_count=len(plan.moving),
        stops=[
            StoppedMove(topic=stop.topic, partition_index=stop.partition, reason=stop.reason)
            for stop in header.stops
        ],
    )
    if plan.has_ended:
        return described
    described.begun_bytes = described.moving_bytes = 0

    def begun() -> Iterator[PlannedMove]:
        for number, move in enumerate(plan.moves()):
            if number == header.begun:
                return
            yield move

    def take(move: PlannedMove) -> None:
        described.begun_bytes += move.size_bytes
        if (move.topic_id, move.partition) in plan.moving:
            described.moving_bytes += move.size_bytes
            if include_moving:
                described.moving.append(_moving(image, move))

    await in_pieces(begun(), take)
    return described


def _moving(image: MetadataImage, move: PlannedMove) -> MovingPartition:
    topic = image.topic_by_id(move.topic_id)
    assert topic is not None, "a deleted topic has left its plan"
    state = topic.partitions[move.partition]
    return MovingPartition(
        topic=topic.name,
        partition_index=move.partition,
        replicas=list(state.target),
        adding=list(state.adding),
        removing=list(state.removing),
        isr=list(state.isr),
        leader_id=state.leader,
        size_bytes=move.size_bytes,
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
