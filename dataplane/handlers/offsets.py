"""ListOffsets and OffsetForLeaderEpoch: where in a log a time or an epoch lies."""

from typing import Final

from dataplane.partition import Partition
from dataplane.worker import Request, Worker
from metaquorum.runtime import StorageError
from wire.errors import ErrorCode, KafkaError
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
# The version of ListOffsets that first takes each special timestamp.
_SINCE: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED: Final = 1


def handle_list_offsets(
    worker: Worker, request: Request, message: ListOffsetsRequest
) -> ListOffsetsResponse:
    committed = message.isolation_level == _READ_COMMITTED
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _list_offset(worker, request.version, committed, topic.name, data)
                    for data in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _list_offset(
    worker: Worker, version: int, committed: bool, topic: str, data: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    answer = ListOffsetsPartitionResponse(partition_index=data.partition_index)
    partition: Partition | None = None
    try:
        partition = worker.partitions.by_name(topic, data.partition_index)
        if error := partition.leader_error(data.current_leader_epoch):
            raise KafkaError(error)
        if version < _SINCE.get(data.timestamp, 0) or data.timestamp < EARLIEST_PENDING_UPLOAD:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        end = partition.last_stable_offset if committed else partition.high_watermark
        found = _find(partition, data.timestamp, end)
        if found is not None:
            answer.offset, answer.timestamp, answer.leader_epoch = found
    except KafkaError as error:
        answer.error_code = error.code
    except StorageError as error:
        assert partition is not None
        worker.partition_failed(partition, error)
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return answer


def _find(partition: Partition, timestamp: int, end_offset: int) -> tuple[int, int, int] | None:
    """Offset, timestamp and leader epoch; None when nothing below `end_offset` fits."""
    log = partition.log
    if timestamp == LATEST:
        return end_offset, -1, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return start, -1, log.epochs.epoch_at(start, default=partition.leader_epoch)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None  # nothing is ever tiered
    if timestamp == MAX_TIMESTAMP:
        return log.max_timestamp(end_offset)
    return log.offset_for_timestamp(timestamp, end_offset)


def handle_offset_for_leader_epoch(
    worker: Worker, request: Request, message: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_epoch_end(worker, topic.topic, data) for data in topic.partitions],
            )
            for topic in message.topics
        ]
    )


def _epoch_end(worker: Worker, topic: str, data: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=data.partition, leader_epoch=-1, end_offset=-1)
    try:
        partition = worker.partitions.by_name(topic, data.partition)
        if error := partition.leader_error(data.current_leader_epoch):
            raise KafkaError(error)
        answer.leader_epoch, answer.end_offset = partition.log.epochs.end_offset_for(
            data.leader_epoch, partition.log.log_end_offset
        )
    except KafkaError as error:
        answer.error_code = error.code
    return answer
