"""Metadata: the workers, and the topics with their leaders, as the metadata log says."""

from collections.abc import Container, Coroutine, Iterable
from typing import Any, Final

import trio

from dataplane import mutations
from dataplane.handlers.cluster import CLUSTER_OPERATIONS
from dataplane.worker import Request, Worker
from metaquorum.decisions import NewTopic
from metaquorum.image import MetadataImage, PartitionImage, TopicImage
from metaquorum.topic_names import check_topic_name
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from wire.types import ZERO_UUID

_TOPIC_IDS_SINCE: Final = 10
_NO_LEADER: Final = -1
# How long an answer waits for the topics that it makes. The client asks again for what is missing.
AUTO_CREATE_S: Final = 5.0
# How long it waits for the next leader. Requests behind it on the connection wait, too.
NEXT_LEADER_S: Final = 0.4
# Until there are ACLs: READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS,
# ALTER_CONFIGS (KIP-430).
TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))


def handle_metadata(
    worker: Worker, request: Request, message: MetadataRequest
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    image = worker.image
    asked = message.topics
    if asked is None or (not asked and request.version == 0):
        return _response(
            worker, request, message, [_topic(worker, t, message) for t in _all(image)]
        )
    if request.version < _TOPIC_IDS_SINCE:
        for topic in asked:
            topic.topic_id = ZERO_UUID
    if message.allow_auto_topic_creation and worker.auto_create_topics:
        names = [t.name for t in asked if t.name and image.topic(t.name) is None]
        if names:
            return _create_first(worker, request, message, names)
    if _has_suspect_leader(worker, asked):
        return _once_led(worker, request, message, asked)
    return _response(worker, request, message, [_one(worker, t, message) for t in asked])


def _has_suspect_leader(worker: Worker, asked: list[MetadataRequestTopic]) -> bool:
    suspects = worker.replication.suspects()
    if not suspects:
        return False
    topics = (_topic_of(worker.image, each) for each in asked)
    return any(
        partition.leader in suspects
        for topic in topics
        if topic is not None
        for partition in topic.partitions
    )


async def _once_led(
    worker: Worker, request: Request, message: MetadataRequest, asked: list[MetadataRequestTopic]
) -> MetadataResponse:
    """The answer waits until it can name the next leader, but not for long.

    Its process is gone, most likely, and the controller about to say who takes over. A client that
    was told of no leader would ask again after a while, each time a longer one.
    """
    with trio.move_on_after(NEXT_LEADER_S):
        while _has_suspect_leader(worker, asked) and not worker.stopping:
            await worker.loader.wait_visible(worker.loader.visible.end_offset + 1)
    return _response(worker, request, message, [_one(worker, t, message) for t in asked])


def _topic_of(image: MetadataImage, asked: MetadataRequestTopic) -> TopicImage | None:
    if asked.name is None:
        return image.topic_by_id(asked.topic_id)
    return image.topic(asked.name)


def _all(image: MetadataImage) -> Iterable[TopicImage]:
    return image.topics.values()


async def _create_first(
    worker: Worker, request: Request, message: MetadataRequest, names: list[str]
) -> MetadataResponse:
    """Unknown topics are made before the answer, which then shows them with their leaders."""
    wishes = [NewTopic(name) for name in dict.fromkeys(names)]
    counts = [mutations.partitions_of_new(worker, wish) for wish in wishes]
    allowed = await mutations.allowed(worker, request, counts, is_strict=False)
    outcomes = await worker.gateway.create_topics(request.asker, wishes, timeout_s=AUTO_CREATE_S)
    refused = {o.name: o for o in outcomes if o.code is not ErrorCode.NONE}
    assert message.topics is not None
    topics = []
    for asked in message.topics:
        answer = _one(worker, asked, message)
        if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and asked.name in refused:
            answer.error_code = _creation_error(refused[asked.name].code)
        topics.append(answer)
    response = _response(worker, request, message, topics)
    response.throttle_time_ms = allowed.throttle_ms
    return response


def _creation_error(code: ErrorCode) -> ErrorCode:
    """What a client that only asked for metadata is told of a creation that failed."""
    if code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_REPLICATION_FACTOR):
        return code
    # Made by another request, and not visible here yet; or not made yet.
    if code in (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT):
        return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _one(
    worker: Worker, asked: MetadataRequestTopic, message: MetadataRequest
) -> MetadataResponseTopic:
    image = worker.image
    if asked.name is None:
        topic = image.topic_by_id(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id
            )
        return _topic(worker, topic, message)
    topic = image.topic(asked.name)
    if topic is not None:
        return _topic(worker, topic, message)
    try:
        check_topic_name(asked.name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except KafkaError as error:
        code = error.code
    return MetadataResponseTopic(error_code=code, name=asked.name)


def _topic(worker: Worker, topic: TopicImage, message: MetadataRequest) -> MetadataResponseTopic:
    answer = MetadataResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=describe_partitions(worker, topic),
    )
    if message.include_topic_authorized_operations:
        answer.topic_authorized_operations = TOPIC_OPERATIONS
    return answer


def describe_partitions(
    worker: Worker, topic: TopicImage, first: int = 0, end: int | None = None
) -> list[MetadataResponsePartition]:
    """Those from `first` up to `end`; a replica here that cannot be used is known to be offline.

    A leader whose process has just closed its connections is none: a client that is told so asks
    again soon, and one that is sent there does not.
    """
    image, offline = worker.image, worker.partitions.offline(topic.topic_id)
    suspects = worker.replication.suspects()
    return [
        _partition(
            image, index, partition, worker.worker_id if index in offline else None, suspects
        )
        for index, partition in enumerate(topic.partitions[first:end], first)
    ]


def _partition(
    image: MetadataImage,
    index: int,
    partition: PartitionImage,
    lost: int | None,
    suspects: Container[int],
) -> MetadataResponsePartition:
    leader = image.workers.get(partition.leader)
    led = (
        leader is not None
        and not leader.fenced
        and partition.leader != lost
        and partition.leader not in suspects
    )
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader if led else _NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[
            replica
            for replica in partition.replicas
            if replica == lost
            or replica in partition.offline
            or (worker := image.workers.get(replica)) is None
            or worker.fenced
        ],
    )


def _response(
    worker: Worker, request: Request, message: MetadataRequest, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=w.worker_id, host=w.host, port=w.port, rack=w.rack)
            for w in worker.live_workers(request.client.listener)
        ],
        cluster_id=worker.image.cluster_id,
        controller_id=worker.controller_id,
        topics=topics,
    )
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response
