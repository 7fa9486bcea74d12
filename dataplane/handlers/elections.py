"""ElectLeaders: leader elections that a client requests."""

from collections.abc import Sequence
from typing import Protocol

from metaquorum.dataplane.handlers.topics import timeout_seconds
from metaquorum.dataplane.scheduling.time_slices import for_each_of, in_pieces
from metaquorum.dataplane.worker.capabilities import AsksController, HasImage
from metaquorum.dataplane.worker.context import Request
from metaquorum.quorum.controller.leaders.elect_leaders import ElectionSpec, ElectionType, specs_of
from metaquorum.quorum.rpc.methods import ELECT_LEADERS, ElectLeaders
from metaquorum.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

_TYPES = frozenset(ElectionType)


class ElectsLeaders(AsksController, HasImage, Protocol):
    """Capability to ask the controller for elections, and read all topics of the metadata."""


async def handle_elect_leaders(
    worker: ElectsLeaders, request: Request, message: ElectLeadersRequest
) -> ElectLeadersResponse:
    kind = message.election_type
    asked = message.topic_partitions
    specs: list[ElectionSpec] = []
    answers: list[KafkaError | None] = []
    slicer = worker.slicer
    is_known = kind in _TYPES
    try:
        if asked is None and is_known:
            topics = list(worker.image.topics.values())
            await in_pieces(topics, lambda topic: specs.extend(specs_of(topic, kind)))
        elif asked is not None:
            await for_each_of(
                asked,
                lambda topic: topic.partitions,
                lambda topic, index: specs.append(ElectionSpec(topic.topic, index, kind)),
            )
        if not is_known:
            refusal = KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}")
            work = _by_topic(specs, [refusal] * len(specs), hears_all=True)
            return ElectLeadersResponse(
                error_code=refusal.code,
                replica_election_results=await work,
            )
        answers = await worker.controller_client.change_each(
            ELECT_LEADERS,
            specs,
            lambda part: ElectLeaders(request.context, part),
            timeout_s=timeout_seconds(message.timeout_ms),
        )
        work = _by_topic(specs, answers, hears_all=asked is not None)
        return ElectLeadersResponse(replica_election_results=await work)
    finally:
        slicer.discard(specs, answers)


async def _by_topic(
    specs: Sequence[ElectionSpec], answers: Sequence[KafkaError | None], *, hears_all: bool
) -> list[ReplicaElectionResult]:
    """Return the results by topic; leave out ELECTION_NOT_NEEDED unless `hears_all`."""
    results: list[ReplicaElectionResult] = []

    def take(answered: tuple[ElectionSpec, KafkaError | None]) -> None:
        spec, answer = answered
        if not hears_all and answer is not None and answer.code == ErrorCode.ELECTION_NOT_NEEDED:
            return
        if not results or results[-1].topic != spec.topic:
            results.append(ReplicaElectionResult(topic=spec.topic))
        results[-1].partition_result.append(_result(spec, answer))

    await in_pieces(zip(specs, answers, strict=True), take)
    return results


def _result(spec: ElectionSpec, answer: KafkaError | None) -> PartitionResult:
    if answer is None:
        return PartitionResult(partition_id=spec.partition, error_code=ErrorCode.NONE)
    return PartitionResult(
        partition_id=spec.partition, error_code=answer.code, error_message=answer.message
    )
