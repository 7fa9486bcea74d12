"""ElectLeaders: elections that a client asks for."""

from collections.abc import Iterable
from itertools import groupby

from dataplane.handlers.topics import timeout_seconds
from dataplane.turns import Work, each_of, in_pieces
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
        wishes = []
        await worker.turns.do(
            each_of(
                asked,
                lambda topic: topic.partitions,
                lambda topic, index: wishes.append(LeaderWish(topic.topic, index, kind)),
            ),
            sum([1 + len(topic.partitions) for topic in asked]),
        )
    answers = await worker.gateway.elect_leaders(
        request.asker, wishes, timeout_s=timeout_seconds(message.timeout_ms)
    )
    results: list[tuple[LeaderWish, KafkaError | None]] = []

    def take(result: tuple[LeaderWish, KafkaError | None]) -> None:
        # Who asks for all hears of those alone of which there is something to say.
        answer = result[1]
        if asked is not None or answer is None or answer.code != ErrorCode.ELECTION_NOT_NEEDED:
            results.append(result)

    await worker.turns.do(in_pieces(zip(wishes, answers, strict=True), take), len(wishes))
    topics = await worker.turns.do(_by_topic(results), len(results))
    return ElectLeadersResponse(replica_election_results=topics)


def _by_topic(
    results: Iterable[tuple[LeaderWish, KafkaError | None]],
) -> Work[list[ReplicaElectionResult]]:
    found = yield from each_of(
        groupby(results, key=lambda row: row[0].topic),
        lambda topic: topic[1],
        lambda _, row: _result(*row),
    )
    return [ReplicaElectionResult(topic=topic[0], partition_result=rows) for topic, rows in found]


def _result(wish: LeaderWish, answer: KafkaError | None) -> PartitionResult:
    if answer is None:
        return PartitionResult(partition_id=wish.partition, error_code=ErrorCode.NONE)
    return PartitionResult(
        partition_id=wish.partition, error_code=answer.code, error_message=answer.message
    )
