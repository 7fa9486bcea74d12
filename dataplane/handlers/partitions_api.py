"""CreatePartitions, DescribeTopicPartitions and DescribeProducers."""

from collections import Counter
from functools import partial
from typing import Final, Protocol

import trio

from metaquorum.dataplane.handlers.metadata import ViewsTopics, view_of
from metaquorum.dataplane.handlers.topics import timeout_seconds
from metaquorum.dataplane.log.segments.producers import ProducerEntry
from metaquorum.dataplane.scheduling.time_slices import (
    PIECE_ROWS,
    TimeSlicer,
    for_each_of,
    in_order,
    in_pieces,
    pause,
    pieces,
)
from metaquorum.dataplane.worker import mutation_limits
from metaquorum.dataplane.worker.capabilities import HasPartitions, HasSlicer, ReadsPartitions
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.metadata_cache import TOPIC_OPERATIONS, describe
from metaquorum.dataplane.worker.mutation_limits import ChangesPartitions
from metaquorum.metadata.image import NO_LEADER, TopicImage
from metaquorum.metadata.internal_topics import is_internal
from metaquorum.metadata.topic_names import check_topic_name
from metaquorum.quorum.controller.topics import MAX_SPECS, TOO_MANY, NewPartitions
from metaquorum.quorum.rpc.methods import CREATE_PARTITIONS, CreatePartitions
from metaquorum.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from metaquorum.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)
from metaquorum.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

# Maximum of partitions in one response (Kafka: max.request.partition.size.limit).
MAX_DESCRIBED_PARTITIONS: Final = 2000
# Producers described before other tasks run.
SLICE_PRODUCERS: Final = 2000
_NO_TIMESTAMP: Final = -1
_STRICT_SINCE: Final = 3  # clients handle THROTTLING_QUOTA_EXCEEDED (KIP-599)


class DescribesPartitions(ViewsTopics, HasSlicer, Protocol):
    """Capability to read the metadata, and this worker's view of leaders and offline replicas."""


async def handle_create_partitions(
    worker: ChangesPartitions, request: Request, message: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    slicer = worker.slicer
    outcomes, specs = await _specs(slicer, message.topics)
    try:
        allowed = mutation_limits.Allowed(len(specs))
        if not message.validate_only:
            counts_more = await in_pieces(
                specs, partial(mutation_limits.partitions_more, worker.image)
            )
            is_strict = request.version >= _STRICT_SINCE
            allowed = await mutation_limits.allowed(
                worker, request, counts_more, is_strict=is_strict
            )
        answers = await worker.controller_client.change_each(
            CREATE_PARTITIONS,
            specs[: allowed.count],
            lambda part: CreatePartitions(request.context, part, message.validate_only),
            timeout_s=timeout_seconds(message.timeout_ms),
        )
        answers += [mutation_limits.EXCEEDED] * (len(specs) - allowed.count)
        answered = zip(specs, answers, strict=True)
        await in_pieces(answered, lambda each: outcomes.update({each[0].topic: each[1]}))
        results = await in_pieces(outcomes.items(), _result)
    finally:
        slicer.discard(outcomes, specs)
    return CreatePartitionsResponse(throttle_time_ms=allowed.throttle_ms, results=results)


async def _specs(
    slicer: TimeSlicer,
    topics: list[CreatePartitionsTopic],
) -> tuple[dict[str, KafkaError | None], list[NewPartitions]]:
    """Return an outcome per topic name, and the requests for the controller.

    The outcome of a valid request is replaced by the controller's.
    """
    counts: Counter[str] = Counter()
    for piece in pieces(topics):
        counts.update([topic.name for topic in piece])
        await pause()
    twice = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    outcomes: dict[str, KafkaError | None] = {}
    specs: list[NewPartitions] = []
    left = PIECE_ROWS
    for topic in topics:
        outcomes[topic.name] = twice
        assigned_count = len(topic.assignments or ())
        if assigned_count > MAX_SPECS:
            outcomes[topic.name] = TOO_MANY
        elif counts[topic.name] == 1:
            specs.append(_spec(topic))
        left -= 1 + assigned_count
        if left <= 0:
            left = PIECE_ROWS
            await pause()
    slicer.discard(counts)
    return outcomes, specs


def _result(outcome: tuple[str, KafkaError | None]) -> CreatePartitionsTopicResult:
    name, error = outcome
    return CreatePartitionsTopicResult(
        name=name,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
    )


def _spec(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = None
    if topic.assignments is not None:
        assignments = [tuple(each.broker_ids) for each in topic.assignments]
    return NewPartitions(topic.name, topic.count, assignments)


async def handle_describe_topic_partitions(
    worker: DescribesPartitions, request: Request, message: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Describe topics in order of name, from the cursor up to the limit of partitions."""
    image, cursor = worker.image, message.cursor
    asked: set[str] = set()
    await in_pieces(message.topics, lambda topic: asked.add(topic.name))
    if cursor is not None and not _is_sound(cursor, asked):
        topics = await in_pieces((await in_order(asked)), _refuse_cursor)
        worker.slicer.discard(asked)
        return DescribeTopicPartitionsResponse(topics=topics)
    response = DescribeTopicPartitionsResponse()
    left = max(1, min(message.response_partition_limit, MAX_DESCRIBED_PARTITIONS))
    described_count = 0
    names = await in_order(asked or image.topics)
    for number, name in enumerate(names, 1):
        if number % PIECE_ROWS == 0 or described_count >= PIECE_ROWS:
            described_count = 0
            await pause()
        if cursor is not None and name < cursor.topic_name:
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if not left:
            response.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        topic = image.topic(name)
        described = _absent(name) if topic is None else _describe(worker, topic, first, left)
        response.topics.append(described)
        count = len(described.partitions)
        described_count += count
        left -= count
        if topic is not None and first + count < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=first + count)
            break
    worker.slicer.discard(asked)
    return response


def _is_sound(cursor: Cursor, asked: set[str]) -> bool:
    return cursor.partition_index >= 0 and (not asked or cursor.topic_name in asked)


def _refuse_cursor(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=name)


def _absent(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except KafkaError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        is_internal=is_internal(name),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _describe(
    worker: ViewsTopics, topic: TopicImage, first: int, limit: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=one.error_code,
                partition_index=one.partition_index,
                leader_id=one.leader_id,
                leader_epoch=one.leader_epoch,
                replica_nodes=one.replica_nodes,
                isr_nodes=one.isr_nodes,
                # An empty array if there are none: the Java client fails on null.
                eligible_leader_replicas=list(state.elr),
                last_known_elr=[] if state.last_leader == NO_LEADER else [state.last_leader],
                offline_replicas=one.offline_replicas,
            )
            for one, state in zip(
                describe(view_of(worker, topic), first, first + limit),
                topic.partitions[first : first + limit],
                strict=True,
            )
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


async def handle_describe_producers(
    worker: ReadsPartitions, request: Request, message: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Describe the producers of partitions; a repeated partition is described once."""
    asked: dict[str, dict[int, None]] = {}

    def keep(topic: TopicRequest, index: int) -> None:
        asked.setdefault(topic.name, {})[index] = None

    await for_each_of(message.topics, lambda topic: topic.partition_indexes, keep)
    response = DescribeProducersResponse()
    try:
        for name, indexes in asked.items():
            topic = TopicResponse(name=name)
            response.topics.append(topic)
            for index in indexes:
                topic.partitions.append(await _producers(worker, name, index))
                await pause()
            worker.slicer.discard(indexes)
    finally:
        worker.slicer.discard(asked)
    return response


async def _producers(worker: HasPartitions, topic: str, index: int) -> PartitionResponse:
    """Return the producers that this replica knows.

    The replica does not have to be the leader: kafka-transactions sends the request to each worker.
    """
    answer = PartitionResponse(partition_index=index)
    try:
        check_topic_name(topic)
        partition = worker.replica_manager.by_name(topic, index)
        if partition.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.message
        return answer
    for number, entry in enumerate(list(partition.log.producers.entries.values()), 1):
        answer.active_producers.append(_producer(entry))
        if number % SLICE_PRODUCERS == 0:
            await trio.lowlevel.checkpoint()
    return answer


def _producer(entry: ProducerEntry) -> ProducerState:
    return ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.batches[-1].timestamp if entry.batches else _NO_TIMESTAMP,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.transaction_first_offset,
    )
