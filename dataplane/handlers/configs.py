"""DescribeConfigs: the effective values, and the values of each layer. ListConfigResources."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Protocol

from metaquorum.config.absent import (
    ABSENT_CONFIGS,
    AbsentConfig,
    AbsentKind,
    absent_configs,
)
from metaquorum.config.definition import ConfigType, Scope, to_text
from metaquorum.config.plan_limit import FOLLOWER, LEADER, plan_limit
from metaquorum.config.registry import is_of_listener, shown_keys
from metaquorum.config.resolution import Configs, ConfigSource, Resolved, Synonym
from metaquorum.dataplane.network.worker_addresses import live_worker_ids
from metaquorum.dataplane.quotas.replication_quota import PlanLimits
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, Steps, in_pieces, pause
from metaquorum.dataplane.worker.capabilities import (
    HasImage,
    HasLayers,
    HasLogLevels,
    HasSlicer,
    HasWorkerId,
)
from metaquorum.dataplane.worker.context import Request
from metaquorum.metadata.internal_topics import is_internal
from metaquorum.metadata.topic_names import check_topic_name
from metaquorum.quorum.controller.config_changes import ALL_WORKERS
from metaquorum.runtime.whole_numbers import whole_number
from metaquorum.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from metaquorum.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

MAX_WORKER_ID: Final = 2**31 - 1  # an int32 in the protocol
LOGGERS: Final = 8  # resource type of the loggers of a worker
_OF_LOGGER: Final = 6  # source of their levels
_UNKNOWN_CONFIG_TYPE: Final = 0
_OTHER_RESOURCE_TYPES: Final = frozenset((LOGGERS, *AbsentKind))
_TYPES_SINCE: Final = 1
PIECE_CONFIGS: Final = 16  # about 10 µs each


class ResolvesConfigs(HasImage, HasLayers, HasWorkerId, Protocol):
    """Capability to read the configs of all topics and of this worker."""

    @property
    def configs(self) -> Configs:
        """The effective configs of this worker."""


class DescribesConfigs(ResolvesConfigs, HasSlicer, HasLogLevels, Protocol):
    """`ResolvesConfigs`, for any number of resources in a request."""

    @property
    def plan_limits(self) -> Sequence[PlanLimits]:
        """Rates at which plans of moves limit this worker now."""


async def handle_describe_configs(
    worker: DescribesConfigs, request: Request, message: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe each resource; a resource that repeats with the same keys is described once.

    Clients look up results by resource name.
    """
    asked: dict[tuple[int, str, frozenset[str] | None], DescribeConfigsResource] = {}
    for number, resource in enumerate(message.resources, 1):
        wanted: frozenset[str] | None = None
        if keys := resource.configuration_keys:  # empty means all, as in Kafka
            names: set[str] = set()
            await in_pieces(keys, names.add)
            wanted = frozenset(names)
        asked.setdefault((resource.resource_type, resource.resource_name, wanted), resource)
        if number % PIECE_ROWS == 0:
            await pause()
    results: list[DescribeConfigsResult] = []
    for (_, _, wanted), resource in asked.items():
        result = await _describe(worker, message, resource, wanted)
        results.append(result)
    worker.slicer.discard(asked)
    return DescribeConfigsResponse(results=results)


async def _describe(
    worker: DescribesConfigs,
    message: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    wanted: frozenset[str] | None,
) -> DescribeConfigsResult:
    """Return the configs of one resource; all of them if `wanted` is None."""
    await pause()
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        if resource.resource_type in ABSENT_CONFIGS:
            kind = AbsentKind(resource.resource_type)
            result.configs = [
                _absent_entry(config, message)
                for config in absent_configs(kind, resource.resource_name)
                if wanted is None or config.name in wanted
            ]
            return result
        if resource.resource_type == LOGGERS:
            _check_logger_resource(worker, resource.resource_name)
            result.configs = await in_pieces(worker.log_levels.in_force().items(), _level_entry)
            if wanted is not None:
                result.configs = [each for each in result.configs if each.name in wanted]
            return result
        configs = _resolved(worker, resource)
    except KafkaError as error:
        result.error_code = error.code
        result.error_message = error.message
        return result
    for number, resolved in enumerate(configs, 1):
        if wanted is None or resolved.key.name in wanted:
            result.configs.append(_entry(resolved, message))
        if number % PIECE_CONFIGS == 0:
            await pause()
    return result


def _check_logger_resource(worker: HasWorkerId, name: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if (worker_id := whole_number(name, MAX_WORKER_ID)) is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        )
    if worker_id != worker.worker_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {worker.worker_id} but received {name}",
        )


def _level_entry(logger: tuple[str, str]) -> DescribeConfigsResourceResult:
    name, level = logger
    return DescribeConfigsResourceResult(
        name=name, value=level, config_source=_OF_LOGGER, config_type=_UNKNOWN_CONFIG_TYPE
    )


def _absent_entry(
    config: AbsentConfig, message: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    default = ConfigSource.DEFAULT
    entry = DescribeConfigsResourceResult(
        name=config.name,
        value=config.text,
        read_only=True,
        config_source=default,
        config_type=config.type,
    )
    if message.include_synonyms and config.worker is not None:
        synonym = DescribeConfigsSynonym(name=config.worker, value=config.text, source=default)
        entry.synonyms = [synonym]
    if message.include_documentation:
        entry.documentation = config.doc
    return entry


def _resolved(worker: DescribesConfigs, resource: DescribeConfigsResource) -> Iterator[Resolved]:
    name = resource.resource_name
    if config_scope(resource.resource_type) is Scope.TOPIC:
        check_topic_name(name)
        if worker.image.topic(name) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        own = worker.image.topic_configs(name)
        return resolve_all(worker.layers.topic_configs(own, is_internal=is_internal(name)))
    if name == ALL_WORKERS:
        return worker.layers.set_for_all_workers()
    if (worker_id := whole_number(name, MAX_WORKER_ID)) is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        )
    if worker_id != worker.worker_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {worker.worker_id} or empty string, but received"
            f" {name}",
        )
    return chain(resolve_all(worker.configs), _plan_limits(worker.plan_limits))


def _plan_limits(plans: Sequence[PlanLimits]) -> Iterator[Resolved]:
    """Yield the rates of the plans, under names of their own.

    So a client that sets a throttle where none is set, and removes it later, is not misled.
    """
    for plan in plans:
        for side, rate in ((LEADER, plan.leader_rate), (FOLLOWER, plan.follower_rate)):
            if rate is not None:
                key = plan_limit(plan.plan_id, plan.owner, side)
                synonym = Synonym(key.name, to_text(rate), ConfigSource.DYNAMIC_WORKER)
                yield Resolved(key, rate, (synonym,))


def config_scope(resource_type: int) -> Scope:
    """Return the scope of a resource type. Raises KafkaError for a type without configs."""
    try:
        return Scope(resource_type)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Resource type {resource_type} has no configs"
        ) from None


def resolve_all(configs: Configs) -> Iterator[Resolved]:
    """Yield every config that is shown, by name; then the configs of single listeners.

    A config that can be set dynamically only is shown while it is set, as in Kafka: Cruise Control
    does not set its throttle on a worker that has the config.
    """
    names = dict.fromkeys(key.name for key in shown_keys(configs.scope))
    for resolved in map(configs.resolve, names):
        if not (resolved.key.dynamic_only and resolved.source is ConfigSource.DEFAULT):
            yield resolved
    if configs.scope is Scope.WORKER:
        given = sorted({name for _, texts in configs.layers for name in texts} - names.keys())
        yield from (configs.resolve(name) for name in given if is_of_listener(name))


def _entry(resolved: Resolved, message: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    key = resolved.key
    entry = DescribeConfigsResourceResult(
        name=key.name,
        value=None if key.is_secret else to_text(resolved.value),
        read_only=not key.dynamic,
        config_source=resolved.source,
        is_sensitive=key.is_secret,
        config_type=ConfigType(key.type),
    )
    if message.include_synonyms:
        entry.synonyms = [
            DescribeConfigsSynonym(
                name=s.name, value=None if key.is_secret else s.text, source=s.source
            )
            for s in resolved.synonyms
            if s.text is not None
        ]
    if message.include_documentation:
        entry.documentation = key.doc
    return entry


def handle_list_config_resources(
    worker: HasImage, request: Request, message: ListConfigResourcesRequest
) -> ListConfigResourcesResponse | Steps[ListConfigResourcesResponse]:
    """List workers, their loggers and topics; version 0 lists client metrics: there are none."""
    if request.version < _TYPES_SINCE:
        return ListConfigResourcesResponse()
    wanted = set(message.resource_types) or {*Scope, *_OTHER_RESOURCE_TYPES}
    if not wanted <= {*Scope, *_OTHER_RESOURCE_TYPES}:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    names: list[tuple[int, str]] = []
    for each in (Scope.WORKER, LOGGERS):
        if each in wanted:
            names += [(each, str(worker_id)) for worker_id in live_worker_ids(worker.image)]
    if Scope.TOPIC in wanted:
        names += [(Scope.TOPIC, name) for name in worker.image.topics]
    return _list_resources(names)


async def _list_resources(names: list[tuple[int, str]]) -> ListConfigResourcesResponse:
    found = await in_pieces(
        names, lambda each: ConfigResource(resource_name=each[1], resource_type=each[0])
    )
    return ListConfigResourcesResponse(config_resources=found)
