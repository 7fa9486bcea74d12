"""AlterConfigs and IncrementalAlterConfigs: wishes for the controller, answered once in force."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from dataplane.handlers.configs import config_scope
from dataplane.worker import Request, Worker
from metaquorum.config_changes import ALL_WORKERS, ConfigChange, ConfigOp, ResourceChange
from metaquorum.config_def import Scope
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
    asked = [
        _Asked(
            resource.resource_type,
            resource.resource_name,
            [ConfigChange(c.name, c.config_operation, c.value) for c in resource.configs],
            replace=False,
        )
        for resource in message.resources
    ]
    outcomes = await _change(worker, request, asked, validate_only=message.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=_answers(incremental_alter_configs.AlterConfigsResourceResponse, asked, outcomes)
    )


async def handle_alter_configs(
    worker: Worker, request: Request, message: AlterConfigsRequest
) -> AlterConfigsResponse:
    asked = [
        _Asked(
            resource.resource_type,
            resource.resource_name,
            [ConfigChange(c.name, ConfigOp.SET, c.value) for c in resource.configs],
            replace=True,
        )
        for resource in message.resources
    ]
    outcomes = await _change(worker, request, asked, validate_only=message.validate_only)
    return AlterConfigsResponse(
        responses=_answers(alter_configs.AlterConfigsResourceResponse, asked, outcomes)
    )


def _answers(
    kind: type[_Answer], asked: Sequence[_Asked], outcomes: Sequence[KafkaError | None]
) -> list[_Answer]:
    return [
        kind(
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, error in zip(asked, outcomes, strict=True)
    ]


async def _change(
    worker: Worker, request: Request, asked: Sequence[_Asked], *, validate_only: bool
) -> list[KafkaError | None]:
    """For each resource: None, or why nothing of it was changed."""
    outcomes: dict[int, KafkaError | None] = {}
    wishes: dict[int, ResourceChange] = {}
    counts = Counter((each.resource_type, each.resource_name) for each in asked)
    for number, each in enumerate(asked):
        try:
            if counts[each.resource_type, each.resource_name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
            wishes[number] = _wish(worker, each)
        except KafkaError as error:
            outcomes[number] = error
    answers = await worker.gateway.change_configs(
        request.asker,
        list(wishes.values()),
        validate_only=validate_only,
        timeout_s=CHANGE_S,
    )
    outcomes |= zip(wishes, answers, strict=True)
    return [outcomes[number] for number in range(len(asked))]


def _wish(worker: Worker, asked: _Asked) -> ResourceChange:
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
