"""DescribeConfigs: the values in force, and every layer's word on them."""

from collections.abc import Iterator
from typing import Final

from dataplane.worker import Request, Worker
from metaquorum.config import ConfigType, Scope, shown_keys, to_text
from metaquorum.config_layers import Configs, Resolved
from metaquorum.topic_names import check_topic_name
from wire.errors import ErrorCode, KafkaError
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

_ALL_WORKERS: Final = ""


def handle_describe_configs(
    worker: Worker, request: Request, message: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_describe(worker, message, resource) for resource in message.resources]
    )


def _describe(
    worker: Worker, message: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        configs = _configs(worker, resource)
    except KafkaError as error:
        result.error_code = error.code
        result.error_message = error.message
        return result
    wanted = resource.configuration_keys
    result.configs = [
        _entry(resolved, message)
        for resolved in resolve_all(configs)
        if wanted is None or resolved.key.name in wanted
    ]
    return result


def _configs(worker: Worker, resource: DescribeConfigsResource) -> Configs:
    name = resource.resource_name
    if resource.resource_type == Scope.TOPIC:
        check_topic_name(name)
        if worker.image.topic(name) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return worker.layers.topic_configs(worker.image.topic_configs(name))
    if resource.resource_type == Scope.WORKER:
        if name == _ALL_WORKERS:  # only what was set for all of them
            return Configs(Scope.WORKER, ())
        if name != str(worker.worker_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"ask broker {name} itself; this is broker {worker.worker_id}",
            )
        return worker.configs
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"configs of resource type {resource.resource_type} are not kept"
    )


def resolve_all(configs: Configs) -> Iterator[Resolved]:
    """Every config that is shown, by name; for all workers together, those that are set."""
    for key in shown_keys(configs.scope):
        if configs.layers:
            yield configs.resolve(key.name)


def _entry(resolved: Resolved, message: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    key = resolved.key
    entry = DescribeConfigsResourceResult(
        name=key.name,
        value=to_text(resolved.value),
        read_only=not key.dynamic,
        config_source=resolved.source,
        is_sensitive=False,
        config_type=ConfigType(key.type),
    )
    if message.include_synonyms:
        entry.synonyms = [
            DescribeConfigsSynonym(name=s.name, value=s.text, source=s.source)
            for s in resolved.synonyms
        ]
    if message.include_documentation:
        entry.documentation = key.doc
    return entry
