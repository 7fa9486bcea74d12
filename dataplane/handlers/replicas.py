"""APIs about replicas that Kafka does not have: authentication, follower states, truncations."""

from typing import Final, Protocol

import trio

from metaquorum.dataplane.partition.leader_state import Follower
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication.replica_authentication import (
    ReplicaAuthenticationError,
    ReplicaAuthenticator,
)
from metaquorum.dataplane.replication.truncation_ledger import Entry, TruncationLedger
from metaquorum.dataplane.scheduling.time_slices import in_pieces
from metaquorum.dataplane.worker.capabilities import HasClock, HasPartitions, HasSlicer
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.authenticate_replica import (
    AuthenticateReplicaRequest,
    AuthenticateReplicaResponse,
)
from metaquorum.wire.messages.describe_replicas import (
    DescribedFollower,
    DescribedReplicas,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    DescribeReplicasTopicResult,
)
from metaquorum.wire.messages.describe_truncations import (
    DescribedTruncation,
    DescribeTruncationsRequest,
    DescribeTruncationsResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

# Partitions described before other tasks run.
SLICE_PARTITIONS: Final = 500
_UNKNOWN: Final = -1


class AuthenticatesReplicas(Protocol):
    """Capability to authenticate followers as workers."""

    @property
    def replica_authenticator(self) -> ReplicaAuthenticator: ...


class CutLogs(Protocol):
    @property
    def ledger(self) -> TruncationLedger: ...


class DescribesTruncations(HasSlicer, Protocol):
    """Capability to read the ledger of truncated logs; nothing else of replication."""

    @property
    def isr_manager(self) -> CutLogs: ...


class FollowerContacts(Protocol):
    def heard_at(self, replica_id: int) -> float: ...


class HearsFollowers(Protocol):
    """Capability to read the times of the last contact with followers; nothing else."""

    @property
    def isr_manager(self) -> FollowerContacts: ...


class DescribesReplicas(HearsFollowers, HasClock, HasPartitions, Protocol):
    """Capability to look up partitions, and the follower states of their leaders."""


def handle_authenticate_replica(
    worker: AuthenticatesReplicas, request: Request, message: AuthenticateReplicaRequest
) -> AuthenticateReplicaResponse:
    """Answer one message of the handshake that authenticates a follower as a worker."""
    try:
        token = worker.replica_authenticator.respond(request.client, bytes(message.auth_bytes))
    except ReplicaAuthenticationError as error:
        return AuthenticateReplicaResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message=str(error),
            auth_bytes=error.answer,
        )
    return AuthenticateReplicaResponse(auth_bytes=token)


async def handle_describe_truncations(
    worker: DescribesTruncations, request: Request, message: DescribeTruncationsRequest
) -> DescribeTruncationsResponse:
    ledger = worker.isr_manager.ledger
    topics: set[str] = set()
    response = DescribeTruncationsResponse(has_forgotten=ledger.has_forgotten)

    def describe(entry: Entry) -> None:
        if message.topics is None or entry.topic in topics:
            response.truncations.append(_described(entry))

    await in_pieces(message.topics or (), topics.add)
    await in_pieces(list(ledger), describe)
    worker.slicer.discard(topics)
    return response


def _described(entry: Entry) -> DescribedTruncation:
    return DescribedTruncation(
        time_ms=entry.time_ms,
        topic=entry.topic,
        topic_id=entry.topic_id,
        partition=entry.partition,
        reason=entry.reason.value,
        offset=entry.offset,
        end_offset=entry.end_offset,
        last_epoch=entry.last_epoch,
        leader_id=entry.leader_id,
        leader_epoch=entry.leader_epoch,
        high_watermark=entry.high_watermark,
        acknowledged=entry.acknowledged.value,
        detail=entry.detail,
    )


async def handle_describe_replicas(
    worker: DescribesReplicas, request: Request, message: DescribeReplicasRequest
) -> DescribeReplicasResponse:
    response = DescribeReplicasResponse()
    left = SLICE_PARTITIONS
    for topic in message.topics:
        result = DescribeReplicasTopicResult(name=topic.name)
        response.topics.append(result)
        left -= 1
        for index in topic.partitions:
            result.partitions.append(_replicas(worker, topic.name, index))
            left -= 1
            if left <= 0:
                left = SLICE_PARTITIONS
                await trio.lowlevel.checkpoint()
        if left <= 0:
            left = SLICE_PARTITIONS
            await trio.lowlevel.checkpoint()
    return response


def _replicas(worker: DescribesReplicas, topic: str, index: int) -> DescribedReplicas:
    try:
        partition = worker.replica_manager.by_name(topic, index)
        if code := partition.leader_error():
            raise KafkaError(code)
    except KafkaError as error:
        return DescribedReplicas(partition=index, error_code=error.code)
    leadership = partition.leader_state
    now = worker.clock.monotonic()
    return DescribedReplicas(
        partition=index,
        error_code=ErrorCode.NONE,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        log_end_offset=partition.log.log_end_offset,
        followers=[]
        if leadership is None
        else [_follower(worker, partition, one, now) for one in leadership.followers],
    )


def _follower(
    worker: HearsFollowers, partition: Partition, follower: Follower, now: float
) -> DescribedFollower:
    caught_up_at = follower.caught_up_at
    heard_at = max(follower.fetched_at, worker.isr_manager.heard_at(follower.replica_id))
    if follower.log_end_offset == partition.log.log_end_offset:
        caught_up_at = max(caught_up_at, heard_at)  # a follower at the end sends no new fetch
    return DescribedFollower(
        replica_id=follower.replica_id,
        in_sync=follower.replica_id in partition.isr,
        log_end_offset=follower.log_end_offset,
        fetched_ms_ago=_ms_ago(heard_at, now) if follower.fetched_at else _UNKNOWN,
        caught_up_ms_ago=_ms_ago(caught_up_at, now) if caught_up_at > 0 else _UNKNOWN,
    )


def _ms_ago(at: float, now: float) -> int:
    return max(0, int((now - at) * 1000))
