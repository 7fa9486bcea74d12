"""ElectLeaders: elections that a client asks for."""

from collections.abc import Sequence

from dataplane.handlers.topics import timeout_seconds
from dataplane.scheduling.time_slices import Work, for_each_of, in_pieces, row_count
from dataplane.worker.context import Request, Worker
from metaquorum.controller.elect_leaders import ElectionType, LeaderWish, wishes_of
from wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from wire.primitives.errors import ErrorCode, KafkaError

_TYPES = frozenset(ElectionType)


async def handle_elect_leaders(
    worker: Worker, request: Request, message: ElectLeadersRequest
) -> ElectLeadersResponse:
    kind = message.election_type
    if kind not in _TYPES:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    asked = message.topic_partitions
    wishes: list[LeaderWish] = []
    answers: list[KafkaError | None] = []
    turns = worker.turns
    try:
        if asked is None:
            topics = list(worker.image.topics.values())
            await turns.do(
                in_pieces(topics, lambda topic: wishes.extend(wishes_of(topic, kind))),
                row_count(topics, lambda topic: topic.partitions),
            )
        else:
            await turns.do(
                for_each_of(
                    asked,
                    lambda topic: topic.partitions,
                    lambda topic, index: wishes.append(LeaderWish(topic.topic, index, kind)),
                ),
                row_count(asked, lambda topic: topic.partitions),
            )
        answers = await worker.gateway.elect_leaders(
            request.asker, wishes, timeout_s=timeout_seconds(message.timeout_ms)
        )
        work = _by_topic(wishes, answers, hears_all=asked is not None)
        return ElectLeadersResponse(replica_election_results=await turns.do(work, len(wishes)))
    finally:
        turns.discard(wishes, answers)


def _by_topic(
    wishes: Sequence[LeaderWish], answers: Sequence[KafkaError | None], *, hears_all: bool
) -> Work[list[ReplicaElectionResult]]:
    """A result for each wish; without those that are not needed, unless the client `hears_all`."""
    results: list[ReplicaElectionResult] = []

    def take(answered: tuple[LeaderWish, KafkaError | None]) -> None:
        wish, answer = answered
        if not hears_all and answer is not None and answer.code == ErrorCode.ELECTION_NOT_NEEDED:
            return
        if not results or results[-1].topic != wish.topic:
            results.append(ReplicaElectionResult(topic=wish.topic))
        results[-1].partition_result.append(_result(wish, answer))

    yield from in_pieces(zip(wishes, answers, strict=True), take)
    return results


def _result(wish: LeaderWish, answer: KafkaError | None) -> PartitionResult:
    if answer is None:
        return PartitionResult(partition_id=wish.partition, error_code=ErrorCode.NONE)
    return PartitionResult(
        partition_id=wish.partition, error_code=answer.code, error_message=answer.message
    )
