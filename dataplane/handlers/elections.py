"""ElectLeaders: elections that a client asks for."""

from itertools import groupby

from dataplane.handlers.topics import timeout_seconds
from dataplane.worker import Request, Worker
from metaquorum.leader_election import ElectionType, LeaderWish, wishes_for_all
from wire.errors import ErrorCode, KafkaError
from wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_TYPES = frozenset(ElectionType)


async def handle_elect_leaders(
    worker: Worker, request: Request, message: ElectLeadersRequest
) -> ElectLeadersResponse:
    kind = message.election_type
    if kind not in _TYPES:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    asked = message.topic_partitions
    if asked is None:
        wishes = list(wishes_for_all(worker.image, kind))
    else:
        wishes = [
            LeaderWish(topic.topic, index, kind) for topic in asked for index in topic.partitions
        ]
    answers = await worker.gateway.elect_leaders(
        request.asker, wishes, timeout_s=timeout_seconds(message.timeout_ms)
    )
    results = [
        (wish, answer)
        for wish, answer in zip(wishes, answers, strict=True)
        # Who asks for all hears of those alone of which there is something to say.
        if asked is not None or answer is None or answer.code != ErrorCode.ELECTION_NOT_NEEDED
    ]
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=name, partition_result=[_result(wish, answer) for wish, answer in of_topic]
            )
            for name, of_topic in groupby(results, key=lambda row: row[0].topic)
        ]
    )


def _result(wish: LeaderWish, answer: KafkaError | None) -> PartitionResult:
    if answer is None:
        return PartitionResult(partition_id=wish.partition, error_code=ErrorCode.NONE)
    return PartitionResult(
        partition_id=wish.partition, error_code=answer.code, error_message=answer.message
    )
