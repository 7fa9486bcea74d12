"""AlterConfigs and IncrementalAlterConfigs: wishes for the controller, answered once in force."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dataplane.handlers.configs import config_scope
from dataplane.turns import each_of, in_pieces
from dataplane.worker import Request, Worker
from metaquorum.config_changes import ALL_WORKERS, ConfigChange, ConfigOp, ResourceChange
from metaquorum.config_def import Scope
from metaquorum.decisions import MAX_WISHES, TOO_MANY
from wire.errors import ErrorCode, KafkaError
from wire.messages import alter_configs, incremental_alter_configs
from wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_Answer = TypeVar(
    "_Answer",
    alter_configs.AlterConfigsResourceResponse,
    incremental_alter_configs.AlterConfigsResourceResponse,
)

# These requests bring no time limit. Most clients give an answer half a minute.
CHANGE_S: Final = 25.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """What one resource of a request asks for, whichever of the two requests it is."""

    resource_type: int
    resource_name: str
    changes: Sequence[ConfigChange]
    replace: bool


async def handle_incremental_alter_configs(
    worker: Worker, request: Request, message: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    found = await _changes_of(
        worker,
        message.resources,
        lambda c: ConfigChange(c.name, c.config_operation, c.value),
    )
    asked = await worker.turns.each(
        found, lambda each: _Asked(each[0].resource_type, each[0].resource_name, each[1], False)
    )
    outcomes = await _change(worker, request, asked, validate_only=message.validate_only)
    responses = await _answers(
        worker, incremental_alter_configs.AlterConfigsResourceResponse, asked, outcomes
    )
    return IncrementalAlterConfigsResponse(responses=responses)


async def _changes_of(
    worker: Worker, resources: list[Any], change: Callable[[Any], ConfigChange]
) -> list[tuple[Any, list[ConfigChange]]]:
    count = sum([1 + len(resource.configs) for resource in resources])
    work = each_of(resources, lambda resource: resource.configs, lambda _, config: change(config))
    return await worker.turns.do(work, count)


async def handle_alter_configs(
    worker: Worker, request: Request, message: AlterConfigsRequest
) -> AlterConfigsResponse:
    found = await _changes_of(
        worker, message.resources, lambda c: ConfigChange(c.name, ConfigOp.SET, c.value)
    )
    asked = await worker.turns.each(
        found, lambda each: _Asked(each[0].resource_type, each[0].resource_name, each[1], True)
    )
    outcomes = await _change(worker, request, asked, validate_only=message.validate_only)
    responses = await _answers(worker, alter_configs.AlterConfigsResourceResponse, asked, outcomes)
    return AlterConfigsResponse(responses=responses)


async def _answers(
    worker: Worker,
    kind: type[_Answer],
    asked: Sequence[_Asked],
    outcomes: Sequence[KafkaError | None],
) -> list[_Answer]:
    def answer(outcome: tuple[_Asked, KafkaError | None]) -> _Answer:
        resource, error = outcome
        return kind(
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return await worker.turns.each(list(zip(asked, outcomes, strict=True)), answer)


async def _change(
    worker: Worker, request: Request, asked: Sequence[_Asked], *, validate_only: bool
) -> list[KafkaError | None]:
    """For each resource: None, or why nothing of it was changed."""
    outcomes: dict[int, KafkaError | None] = {}
    wishes: dict[int, ResourceChange] = {}
    counts: Counter[tuple[int, str]] = Counter()

    def take(numbered: tuple[int, _Asked]) -> None:
        number, each = numbered
        try:
            if counts[each.resource_type, each.resource_name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
            wishes[number] = _wish(worker, each)
        except KafkaError as error:
            outcomes[number] = error

    await worker.turns.each(
        asked, lambda each: counts.update(((each.resource_type, each.resource_name),))
    )
    await worker.turns.do(in_pieces(enumerate(asked), take), len(asked))
    answers = await worker.gateway.change_configs(
        request.asker,
        list(wishes.values()),
        validate_only=validate_only,
        timeout_s=CHANGE_S,
    )
    outcomes |= zip(wishes, answers, strict=True)
    return [outcomes[number] for number in range(len(asked))]


def _wish(worker: Worker, asked: _Asked) -> ResourceChange:
    if len(asked.changes) > MAX_WISHES:
        raise TOO_MANY
    scope = config_scope(asked.resource_type)
    name = asked.resource_name
    if scope is Scope.WORKER and name != ALL_WORKERS:
        if not (name.isascii() and name.isdigit()):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
            )
        if int(name) != worker.worker_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {worker.worker_id}, but received {name}",
            )
        name = str(worker.worker_id)
    return ResourceChange(scope, name, asked.changes, asked.replace)
