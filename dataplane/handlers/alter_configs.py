"""AlterConfigs and IncrementalAlterConfigs: the controller changes the configs.

The response is sent once the change is in effect on this worker.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from metaquorum.config.absent import refuse_change
from metaquorum.config.definition import Scope
from metaquorum.dataplane.handlers.configs import LOGGERS, MAX_WORKER_ID, config_scope
from metaquorum.dataplane.instruments.log_levels import LEVELS, OWN, ROOT
from metaquorum.dataplane.scheduling.time_slices import each_of, in_pieces
from metaquorum.dataplane.worker.capabilities import (
    AsksController,
    HasLogLevels,
    HasSlicer,
    HasWorkerId,
)
from metaquorum.dataplane.worker.context import Request
from metaquorum.quorum.controller.config_changes import (
    ALL_WORKERS,
    ConfigChange,
    ConfigOp,
    ResourceChange,
)
from metaquorum.quorum.controller.topics import MAX_SPECS, TOO_MANY
from metaquorum.quorum.rpc.methods import CHANGE_CONFIGS, ChangeConfigs
from metaquorum.runtime.whole_numbers import whole_number
from metaquorum.wire.messages import alter_configs, incremental_alter_configs
from metaquorum.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from metaquorum.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

_Answer = TypeVar(
    "_Answer",
    alter_configs.AlterConfigsResourceResponse,
    incremental_alter_configs.AlterConfigsResourceResponse,
)

# The requests have no timeout of their own. Most clients wait 30 s for the response.
CHANGE_S: Final = 25.0


class AltersConfigs(AsksController, HasWorkerId, HasLogLevels, Protocol):
    """Capability to ask the controller for changes; only a worker itself changes its configs.

    It changes the levels of its loggers itself, at once; they are not stored.
    """


@frozen
class _RequestedResource:
    """The changes for one resource, of either of the two requests."""

    resource_type: int
    resource_name: str
    changes: Sequence[ConfigChange]
    replace: bool


async def handle_incremental_alter_configs(
    worker: AltersConfigs, request: Request, message: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    asked = await _asked(
        worker,
        message.resources,
        lambda c: ConfigChange(c.name, c.config_operation, c.value),
        replace=False,
    )
    responses = await _change(
        worker,
        request,
        asked,
        incremental_alter_configs.AlterConfigsResourceResponse,
        validate_only=message.validate_only,
    )
    return IncrementalAlterConfigsResponse(responses=responses)


async def _asked(
    worker: HasSlicer,
    resources: list[Any],
    change: Callable[[Any], ConfigChange],
    *,
    replace: bool,
) -> list[_RequestedResource]:
    found = await each_of(
        resources, lambda resource: resource.configs, lambda _, config: change(config)
    )
    try:
        return await in_pieces(
            found,
            lambda each: _RequestedResource(
                each[0].resource_type, each[0].resource_name, each[1], replace
            ),
        )
    finally:
        worker.slicer.discard(found)


async def handle_alter_configs(
    worker: AltersConfigs, request: Request, message: AlterConfigsRequest
) -> AlterConfigsResponse:
    asked = await _asked(
        worker,
        message.resources,
        lambda c: ConfigChange(c.name, ConfigOp.SET, c.value),
        replace=True,
    )
    responses = await _change(
        worker,
        request,
        asked,
        alter_configs.AlterConfigsResourceResponse,
        validate_only=message.validate_only,
    )
    return AlterConfigsResponse(responses=responses)


async def _change(
    worker: AltersConfigs,
    request: Request,
    asked: list[_RequestedResource],
    kind: type[_Answer],
    *,
    validate_only: bool,
) -> list[_Answer]:
    """Change the resources. Return a result for each of them; `asked` is emptied."""
    slicer = worker.slicer
    outcomes: dict[int, KafkaError | None] = {}
    specs: dict[int, ResourceChange] = {}
    counts: Counter[tuple[int, str]] = Counter()

    def take(numbered: tuple[int, _RequestedResource]) -> None:
        number, each = numbered
        try:
            if counts[each.resource_type, each.resource_name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
            if each.resource_type == LOGGERS:
                _set_log_levels(worker, request, each, validate_only=validate_only)
                outcomes[number] = None
            else:
                specs[number] = _spec(worker, each)
        except KafkaError as error:
            outcomes[number] = error

    def count(each: _RequestedResource) -> None:
        counts[each.resource_type, each.resource_name] += 1

    def keep(answered: tuple[int, KafkaError | None]) -> None:
        outcomes[answered[0]] = answered[1]

    def answer(numbered: tuple[int, _RequestedResource]) -> _Answer:
        number, resource = numbered
        error = outcomes[number]
        return kind(
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    try:
        await in_pieces(asked, count)
        await in_pieces(enumerate(asked), take)
        answers = await worker.controller_client.change_each(
            CHANGE_CONFIGS,
            list(specs.values()),
            lambda part: ChangeConfigs(request.context, part, validate_only),
            timeout_s=CHANGE_S,
        )
        await in_pieces(zip(specs, answers, strict=True), keep)
        return await in_pieces(enumerate(asked), answer)
    finally:
        slicer.discard(asked, outcomes, specs, counts)


def _spec(worker: HasWorkerId, asked: _RequestedResource) -> ResourceChange:
    if len(asked.changes) > MAX_SPECS:
        raise TOO_MANY
    refuse_change(asked.resource_type)
    scope = config_scope(asked.resource_type)
    name = asked.resource_name
    if scope is Scope.WORKER and name != ALL_WORKERS:
        _check_worker_id(worker, name, "broker id, expected")
        name = str(worker.worker_id)
    return ResourceChange(scope, name, asked.changes, asked.replace)


def _check_worker_id(worker: HasWorkerId, name: str, unexpected: str) -> None:
    """Raise KafkaError unless the name is the id of this worker; `unexpected`: Kafka's words."""
    if (worker_id := whole_number(name, MAX_WORKER_ID)) is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
        )
    if worker_id != worker.worker_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected {unexpected} {worker.worker_id}, but received {name}",
        )


def _set_log_levels(
    worker: AltersConfigs, request: Request, asked: _RequestedResource, *, validate_only: bool
) -> None:
    """Change the levels of this worker's loggers: all of the request or none.

    Raises KafkaError, with the codes and texts of Kafka 4.3.1.
    """
    if asked.replace:  # AlterConfigs
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {LOGGERS}")
    if len(asked.changes) > MAX_SPECS:
        raise TOO_MANY
    if len({change.name for change in asked.changes}) < len(asked.changes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    _check_worker_id(worker, asked.resource_name, "node id. Expected")
    for change in asked.changes:
        _check_log_level(worker, change)
    if validate_only:
        return
    levels = {
        change.name: change.value if change.op == ConfigOp.SET else None for change in asked.changes
    }
    client = request.client
    if levels and not worker.log_levels.set(levels, client.principal, client.address[0]):
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "Log levels are changed too often from this address: every change is logged. Try again"
            " later",
        )


def _check_log_level(worker: HasLogLevels, change: ConfigChange) -> None:
    name, level = change.name, change.value
    if change.op in (ConfigOp.APPEND, ConfigOp.SUBTRACT):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{ConfigOp(change.op).name} operation is not allowed for the BROKER_LOGGER resource",
        )
    if change.op not in (ConfigOp.SET, ConfigOp.DELETE):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unknown operation type {change.op} is not allowed for the BROKER_LOGGER resource",
        )
    if change.op == ConfigOp.SET and level is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    if not worker.log_levels.knows(name):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if name == OWN:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"The log level of {name}, which logs changes, is fixed"
        )
    if change.op == ConfigOp.DELETE and name == ROOT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Removing the log level of the {ROOT} logger is not allowed",
        )
    if change.op == ConfigOp.SET and level not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {level} as it is not a supported log level."
            f" Valid log levels are {', '.join(LEVELS)}",
        )
