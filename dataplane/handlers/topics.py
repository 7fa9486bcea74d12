"""CreateTopics and DeleteTopics: the controller makes the change; the response follows it.

The response is sent once the change is visible in the metadata of this worker.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol, TypeAlias

from metaquorum.config.definition import to_text
from metaquorum.dataplane.handlers.configs import resolve_all
from metaquorum.dataplane.scheduling.time_slices import (
    PIECE_ROWS,
    TimeSlicer,
    in_pieces,
    pause,
    pieces,
)
from metaquorum.dataplane.worker import mutation_limits
from metaquorum.dataplane.worker.capabilities import HasLayers, HasSlicer
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.mutation_limits import ChangesPartitions, CreatesTopics
from metaquorum.metadata.image import MetadataImage
from metaquorum.quorum.controller.topics import MAX_SPECS, TOO_MANY, NewTopic, TopicOutcome
from metaquorum.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from metaquorum.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.types import ZERO_UUID, Uuid

_CONFIGS_SINCE: Final = 5
_BY_ID_SINCE: Final = 6
# From these versions on, clients handle THROTTLING_QUOTA_EXCEEDED (KIP-599).
_STRICT_CREATION_SINCE: Final = 6
_STRICT_DELETION_SINCE: Final = 5
MAX_TIMEOUT_MS: Final = 10 * 60 * 1000
# Name and id of a topic, as a client sent them.
_Named: TypeAlias = tuple[str | None, Uuid | None]


class DescribesNewTopics(HasLayers, HasSlicer, Protocol):
    """Capability to read the effective configs of topics that have just been created."""


class CreatesAndDescribesTopics(CreatesTopics, HasLayers, Protocol):
    """Capability to create topics within the quotas, and read their effective configs."""


async def handle_create_topics(
    worker: CreatesAndDescribesTopics, request: Request, message: CreateTopicsRequest
) -> CreateTopicsResponse:
    created, throttle_ms = await _create(worker, request, message)
    try:
        topics = await _all_created(worker, request, message, created)
    finally:
        worker.slicer.discard(created)
    return CreateTopicsResponse(throttle_time_ms=throttle_ms, topics=topics)


async def _all_created(
    worker: DescribesNewTopics,
    request: Request,
    message: CreateTopicsRequest,
    created: list[TopicOutcome],
) -> list[CreatableTopicResult]:
    """Return one result per topic name, in the order of the request."""
    outcomes: dict[str | None, TopicOutcome] = {}
    names: dict[str, None] = {}
    for some in pieces(created):
        outcomes.update([(outcome.name, outcome) for outcome in some])
        await pause()
    for topics in pieces(message.topics):
        names.update(dict.fromkeys([topic.name for topic in topics]))
        await pause()
    results: list[CreatableTopicResult] = []
    for name in names:
        results.append(_created(worker, outcomes[name], request.version))
        # The configs of a created topic take half a millisecond.
        if len(results) % PIECE_ROWS == 0 or results[-1].configs:
            await pause()
    worker.slicer.discard(outcomes, names)
    return results


async def _create(
    worker: CreatesTopics, request: Request, message: CreateTopicsRequest
) -> tuple[list[TopicOutcome], int]:
    """Return an outcome for each topic name, and the throttle time in milliseconds."""
    slicer = worker.slicer
    todo, refused = await _specs(slicer, message.topics)
    try:
        allowed = mutation_limits.Allowed(len(todo))
        if not message.validate_only:
            counts = await in_pieces(todo, partial(mutation_limits.partitions_of_new, worker))
            is_strict = request.version >= _STRICT_CREATION_SINCE
            allowed = await mutation_limits.allowed(worker, request, counts, is_strict=is_strict)
        outcomes = await worker.controller_client.create_topics(
            request.context,
            todo[: allowed.count],
            validate_only=message.validate_only,
            timeout_s=timeout_seconds(message.timeout_ms),
        )
        exceeded = await in_pieces(
            todo[allowed.count :],
            lambda spec: TopicOutcome.refused(mutation_limits.EXCEEDED, spec.name),
        )
    finally:
        slicer.discard(todo)
    return [*refused, *outcomes, *exceeded], allowed.throttle_ms


async def _specs(
    slicer: TimeSlicer, topics: list[CreatableTopic]
) -> tuple[list[NewTopic], list[TopicOutcome]]:
    """Return the topics for the controller to create, and the outcomes of invalid ones."""
    refused: dict[str, TopicOutcome] = {}
    specs: dict[str, NewTopic] = {}
    left = PIECE_ROWS
    for topic in topics:
        try:
            if topic.name in specs:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            specs[topic.name] = _spec(topic)
        except KafkaError as error:
            refused[topic.name] = TopicOutcome.refused(error, topic.name)
        left -= 1 + len(topic.assignments) + len(topic.configs)
        if left <= 0:
            left = PIECE_ROWS
            await pause()
    todo: list[NewTopic] = []
    for some in pieces(list(specs.values())):
        todo += [spec for spec in some if spec.name not in refused]
        await pause()
    outcomes = list(refused.values())
    slicer.discard(specs, refused)
    return todo, outcomes


def _spec(topic: CreatableTopic) -> NewTopic:
    """Return the topic to create. Raises KafkaError if a partition or a config repeats."""
    if max(len(topic.assignments), len(topic.configs)) > MAX_SPECS:
        raise TOO_MANY
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


def _created(worker: HasLayers, outcome: TopicOutcome, version: int) -> CreatableTopicResult:
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


def _configs(worker: HasLayers, outcome: TopicOutcome) -> list[CreatableTopicConfigs]:
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
    worker: ChangesPartitions, request: Request, message: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    slicer = worker.slicer
    named: dict[_Named, int] = {}  # how often each is named
    outcomes: list[TopicOutcome] = []
    refused: list[TopicOutcome] = []
    asked: list[_Named] = []
    try:

        def count(each: _Named) -> None:
            named[each] = named.get(each, 0) + 1

        if request.version >= _BY_ID_SINCE:
            await in_pieces(message.topics, lambda topic: count(_named(topic)))
        else:
            await in_pieces(message.topic_names, lambda name: count((name, None)))

        def judge(each: _Named) -> None:
            error = _contradiction(worker.image, named, each)
            if error is None:
                asked.append(each)
            else:
                refused.append(TopicOutcome.refused(error, *each))

        await in_pieces(list(named), judge)
        counts = await in_pieces(
            asked, lambda each: mutation_limits.partitions_of(worker.image, *each)
        )
        is_strict = request.version >= _STRICT_DELETION_SINCE
        allowed = await mutation_limits.allowed(worker, request, counts, is_strict=is_strict)
        outcomes = await worker.controller_client.delete_topics(
            request.context, asked[: allowed.count], timeout_s=timeout_seconds(message.timeout_ms)
        )
        outcomes += await in_pieces(
            asked[allowed.count :],
            lambda each: TopicOutcome.refused(mutation_limits.EXCEEDED, *each),
        )
        outcomes += refused
        responses = await in_pieces(outcomes, _deleted)
    finally:
        slicer.discard(named, outcomes, refused, asked)
    return DeleteTopicsResponse(throttle_time_ms=allowed.throttle_ms, responses=responses)


def _named(topic: DeleteTopicState) -> _Named:
    return topic.name, None if topic.topic_id == ZERO_UUID else topic.topic_id


def _contradiction(
    image: MetadataImage, named: Mapping[_Named, int], each: _Named
) -> KafkaError | None:
    """Return why a row names no topic, or one that another row names too; None if it is clear.

    A client that names a topic by its id does not mean a later topic of the same name. Source:
    ControllerApis of Kafka 4.3, including the texts.
    """
    name, topic_id = each
    if name is not None and topic_id is not None:
        text = "You may not specify both topic name and topic id."
    elif name is None and topic_id is None:
        text = "Neither topic name nor id were specified."
    elif named[each] > 1:
        text = "Duplicate topic name." if topic_id is None else "Duplicate topic id."
    elif name is not None and (topic := image.topic(name)) and (None, topic.topic_id) in named:
        text = "The provided topic name maps to an ID that was already supplied."
    elif (
        topic_id is not None
        and (topic := image.topic_by_id(topic_id))
        and (topic.name, None) in named
    ):
        text = "Duplicate topic id."
    else:
        return None
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def _deleted(outcome: TopicOutcome) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=outcome.name,
        topic_id=outcome.topic_id or ZERO_UUID,
        error_code=outcome.code,
        error_message=outcome.message,
    )
