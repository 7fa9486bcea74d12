"""AlterPartitionReassignments and ListPartitionReassignments: moves of partitions (KIP-455)."""

from collections.abc import Sequence
from typing import Protocol

from metaquorum.dataplane.handlers.topics import timeout_seconds
from metaquorum.dataplane.scheduling.time_slices import for_each_of
from metaquorum.dataplane.worker.capabilities import AsksController, HasImage
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.feature_levels import needs_level
from metaquorum.metadata.image import TopicImage
from metaquorum.quorum.controller.features import MOVES_LEVEL
from metaquorum.quorum.controller.reassignment import Reassignment
from metaquorum.quorum.rpc.methods import REASSIGN_PARTITIONS, ReassignPartitions
from metaquorum.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from metaquorum.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError


class MovesPartitions(AsksController, HasImage, Protocol):
    """Capability to ask the controller for moves, and to read the metadata."""


async def handle_alter_partition_reassignments(
    worker: MovesPartitions, request: Request, message: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    allows_change = message.allow_replication_factor_change
    answer = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allows_change, error_message=None
    )
    try:
        needs_level(worker.image, MOVES_LEVEL, "a move of a partition")
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.message
        return answer
    specs: list[Reassignment] = []
    errors: list[KafkaError | None] = []
    slicer, topics = worker.slicer, message.topics

    def take(topic: ReassignableTopic, one: ReassignablePartition) -> None:
        replicas = None if one.replicas is None else tuple(one.replicas)
        specs.append(Reassignment(topic.name, one.partition_index, replicas, allows_change))

    try:
        await for_each_of(topics, lambda topic: topic.partitions, take)
        errors = await worker.controller_client.change_each(
            REASSIGN_PARTITIONS,
            specs,
            lambda part: ReassignPartitions(request.context, part),
            timeout_s=timeout_seconds(message.timeout_ms),
        )
        codes: set[int] = set()
        answer.responses = await _by_topic(topics, errors, codes)
        if not topics:
            answer.error_message = ""  # as in Kafka
        elif codes == {ErrorCode.REQUEST_TIMED_OUT} and (late := errors[0]) is not None:
            # Kafka's controller executes a request as a whole, so its timeout is an error of it.
            answer.error_code, answer.error_message = late.code, late.message
        return answer
    finally:
        slicer.discard(specs, errors)


async def _by_topic(
    topics: Sequence[ReassignableTopic], errors: Sequence[KafkaError | None], codes: set[int]
) -> list[ReassignableTopicResponse]:
    """Return a result for each topic of the request; `errors` has its partitions in order.

    Adds the error codes of the partitions to `codes`.
    """
    results: list[ReassignableTopicResponse] = []
    of_partitions = iter(errors)

    def partitions_of(topic: ReassignableTopic) -> list[ReassignablePartition]:
        results.append(ReassignableTopicResponse(name=topic.name))
        return topic.partitions

    def take(_: ReassignableTopic, one: ReassignablePartition) -> None:
        results[-1].partitions.append(_result(one.partition_index, next(of_partitions)))
        codes.add(results[-1].partitions[-1].error_code)

    await for_each_of(topics, partitions_of, take)
    return results


def _result(index: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=index,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
    )


async def handle_list_partition_reassignments(
    worker: HasImage, request: Request, message: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """List the moves of the requested partitions, by default of all; each of them once."""
    response = ListPartitionReassignmentsResponse(error_message=None)
    image = worker.image
    listed: set[tuple[str, int]] = set()  # a request that repeats partitions costs no memory

    def take(topic: TopicImage, index: int) -> None:
        if not 0 <= index < len(topic.partitions) or not topic.partitions[index].is_moving:
            return
        if (topic.name, index) in listed:
            return
        listed.add((topic.name, index))
        state = topic.partitions[index]
        if not response.topics or response.topics[-1].name != topic.name:
            response.topics.append(OngoingTopicReassignment(name=topic.name))
        response.topics[-1].partitions.append(
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(state.replicas),
                adding_replicas=list(state.adding),
                removing_replicas=list(state.removing),
            )
        )

    if message.topics is None:
        await for_each_of(image.topics.each(), lambda topic: range(len(topic.partitions)), take)
        return response

    def take_asked(asked: ListPartitionReassignmentsTopics, index: int) -> None:
        if (topic := image.topic(asked.name)) is not None:
            take(topic, index)

    await for_each_of(message.topics, lambda asked: asked.partition_indexes, take_asked)
    return response
