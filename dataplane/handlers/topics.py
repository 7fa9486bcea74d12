"""CreateTopics and DeleteTopics: wishes for the controller, answered once they are visible."""

from typing import Final

import trio

from dataplane.handlers.configs import resolve_all
from dataplane.worker import Request, Worker
from metaquorum.config import to_text
from metaquorum.decisions import NewTopic, TopicOutcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from wire.types import ZERO_UUID, Uuid

_CONFIGS_SINCE: Final = 5
_BY_ID_SINCE: Final = 6
MAX_TIMEOUT_MS: Final = 10 * 60 * 1000


async def handle_create_topics(
    worker: Worker, request: Request, message: CreateTopicsRequest
) -> CreateTopicsResponse:
    outcomes: dict[str | None, TopicOutcome] = {}
    with trio.move_on_after(timeout_seconds(message.timeout_ms)):
        for outcome in await _create(worker, message.topics, message.validate_only):
            outcomes[outcome.name] = outcome
    return CreateTopicsResponse(
        topics=[
            _created(worker, outcomes.get(name) or _timed_out(name), request.version)
            for name in dict.fromkeys(t.name for t in message.topics)
        ]
    )


async def _create(
    worker: Worker, topics: list[CreatableTopic], validate_only: bool
) -> list[TopicOutcome]:
    outcomes: list[TopicOutcome] = []
    wishes: list[NewTopic] = []
    for topic in topics:
        try:
            wishes.append(_wish(topic))
        except KafkaError as error:
            outcomes.append(TopicOutcome.refused(error, topic.name))
    refused = {outcome.name for outcome in outcomes}
    wishes = [wish for wish in wishes if wish.name not in refused]  # the same name again
    try:
        outcomes += await worker.gateway.create_topics(wishes, validate_only=validate_only)
    except KafkaError as error:
        outcomes += [TopicOutcome.refused(error, wish.name) for wish in wishes]
    return outcomes


def _wish(topic: CreatableTopic) -> NewTopic:
    """KafkaError for what names one partition or one config twice: only one could be kept."""
    assignments = {a.partition_index: tuple(a.broker_ids) for a in topic.assignments}
    if len(assignments) != len(topic.assignments):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned more than once."
        )
    configs = {c.name: c.value for c in topic.configs}
    if len(configs) != len(topic.configs):
        raise KafkaError(ErrorCode.INVALID_CONFIG, "A config is given more than once.")
    return NewTopic(
        topic.name, topic.num_partitions, topic.replication_factor, assignments or None, configs
    )


def timeout_seconds(timeout_ms: int) -> float:
    return max(0, min(timeout_ms, MAX_TIMEOUT_MS)) / 1000


def _timed_out(name: str | None, topic_id: Uuid | None = None) -> TopicOutcome:
    return TopicOutcome.refused(
        KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Not done in time; it may still be done."),
        name,
        topic_id,
    )


def _created(worker: Worker, outcome: TopicOutcome, version: int) -> CreatableTopicResult:
    assert outcome.name is not None
    result = CreatableTopicResult(
        name=outcome.name, error_code=outcome.code, error_message=outcome.message
    )
    if outcome.code is not ErrorCode.NONE:
        return result
    result.topic_id = outcome.topic_id or ZERO_UUID
    result.num_partitions = outcome.partitions
    result.replication_factor = outcome.replication_factor
    if version >= _CONFIGS_SINCE:
        result.configs = _configs(worker, outcome)
    return result


def _configs(worker: Worker, outcome: TopicOutcome) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=resolved.key.name,
            value=to_text(resolved.value),
            read_only=False,
            config_source=resolved.source,
            is_sensitive=False,
        )
        for resolved in resolve_all(worker.layers.topic_configs(outcome.configs))
    ]


async def handle_delete_topics(
    worker: Worker, request: Request, message: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    if request.version >= _BY_ID_SINCE:
        asked = [(t.name, None if t.name is not None else t.topic_id) for t in message.topics]
    else:
        asked = [(name, None) for name in message.topic_names]
    asked = list(dict.fromkeys(asked))
    outcomes = [_timed_out(name, topic_id) for name, topic_id in asked]
    with trio.move_on_after(timeout_seconds(message.timeout_ms)):
        try:
            outcomes = await worker.gateway.delete_topics(asked)
        except KafkaError as error:
            outcomes = [TopicOutcome.refused(error, name, topic_id) for name, topic_id in asked]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=outcome.name,
                topic_id=outcome.topic_id or ZERO_UUID,
                error_code=outcome.code,
                error_message=outcome.message,
            )
            for outcome in outcomes
        ]
    )
