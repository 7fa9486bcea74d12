"""ListOffsets and OffsetForLeaderEpoch: where in a log a time or an epoch lies."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import trio

from dataplane.log.partition_log import PartitionLog
from dataplane.log.timestamps import Candidate, TimestampOffset, youngest_of
from dataplane.partition import Partition
from dataplane.replica_authentication import claim_error
from dataplane.worker import Request, Worker
from metaquorum.runtime import File, StorageError
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
_NOT_AVAILABLE_SINCE: Final = 5  # OFFSET_NOT_AVAILABLE, KIP-207
_SINCE: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED: Final = 1


def handle_list_offsets(
    worker: Worker, request: Request, message: ListOffsetsRequest
) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
    if any(_is_search(data.timestamp) for topic in message.topics for data in topic.partitions):
        return _list_offsets(worker, request, message)
    # Nothing in it waits, then: one step of the coroutine is all of it.
    coroutine = _list_offsets(worker, request, message)
    try:
        coroutine.send(None)
    except StopIteration as done:
        response: ListOffsetsResponse = done.value
        return response
    raise AssertionError


async def _list_offsets(
    worker: Worker, request: Request, message: ListOffsetsRequest
) -> ListOffsetsResponse:
    replica_id, committed = message.replica_id, message.isolation_level == _READ_COMMITTED
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    await _list_offset(worker, request, replica_id, committed, topic.name, data)
                    for data in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _is_search(timestamp: int) -> bool:
    """Whether batches may have to be opened for it."""
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


async def _list_offset(
    worker: Worker,
    request: Request,
    replica_id: int,
    committed: bool,
    topic: str,
    data: ListOffsetsPartition,
) -> ListOffsetsPartitionResponse:
    answer = ListOffsetsPartitionResponse(partition_index=data.partition_index)
    version = request.version
    partition: Partition | None = None
    try:
        if error := claim_error(request.client, replica_id):
            raise KafkaError(error)
        partition = worker.partitions.by_name(topic, data.partition_index)
        if error := partition.leader_error(data.current_leader_epoch):
            raise KafkaError(error)
        if version < _SINCE.get(data.timestamp, 0) or data.timestamp < EARLIEST_PENDING_UPLOAD:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if replica_id < 0 and data.timestamp != EARLIEST and partition.is_catching_up:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE
                if version >= _NOT_AVAILABLE_SINCE
                else ErrorCode.LEADER_NOT_AVAILABLE
            )
        end = _end_for(partition, replica_id, committed=committed)
        found = (
            await _search(worker, partition.log, data.timestamp, end)
            if _is_search(data.timestamp)
            else _find(partition, data.timestamp, end)
        )
        if found is not None:
            answer.offset, answer.timestamp, answer.leader_epoch = found
    except KafkaError as error:
        answer.error_code = error.code
    except StorageError as error:
        assert partition is not None
        worker.partition_failed(partition, error)
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    except EOFError:  # the segment was removed in the meantime
        answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    return answer


def _end_for(partition: Partition, replica_id: int, *, committed: bool) -> int:
    """Other replicas see all of the log, clients what is committed."""
    if replica_id >= 0:
        return partition.log.log_end_offset
    return partition.last_stable_offset if committed else partition.high_watermark


def _find(partition: Partition, timestamp: int, end_offset: int) -> tuple[int, int, int] | None:
    """Offset, timestamp and leader epoch; None when nothing fits."""
    if timestamp == LATEST:
        return end_offset, -1, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = partition.log.log_start_offset
        return start, -1, partition.log.epochs.epoch_at(start, default=partition.leader_epoch)
    return None  # nothing is ever tiered


async def _search(
    worker: Worker, log: PartitionLog, timestamp: int, end_offset: int
) -> TimestampOffset | None:
    """The record below `end_offset` that is not older, or the youngest. Opens batches."""
    if timestamp == MAX_TIMESTAMP:
        start_offset = log.log_start_offset
        found = youngest_of(
            [
                await _open(worker, each, partial(each.youngest, start_offset=start_offset))
                for each in log.youngest_candidates()
            ]
        )
        return found if found is not None and found.offset < end_offset else None
    start_offset = log.log_start_offset
    while (candidate := log.candidate_since(timestamp, start_offset, end_offset)) is not None:
        find = partial(candidate.first_since, timestamp=timestamp, start_offset=start_offset)
        found = await _open(worker, candidate, find)
        if found is not None:
            return found if found.offset < end_offset else None
        start_offset = candidate.header.last_offset + 1
        await trio.lowlevel.checkpoint()  # headers may lie, one after the other
    return None


async def _open(
    worker: Worker, candidate: Candidate, find: Callable[[File], TimestampOffset | None]
) -> TimestampOffset | None:
    """What `find` says of the batch, beside the loop if that may take long."""
    with candidate.records.pinned() as file:
        if candidate.is_quick:
            return find(file)
        async with worker.opening_batch:
            found = await worker.disk.run(partial(_find_or_refusal, find, file))
    if isinstance(found, KafkaError):
        raise found
    return found


def _find_or_refusal(
    find: Callable[[File], TimestampOffset | None], file: File
) -> TimestampOffset | KafkaError | None:
    """An exception that leaves a thread is part of a cycle, and would keep the frames in which it
    arose, with all that had been decompressed, until the collector comes by.
    """
    try:
        return find(file)
    except KafkaError as error:
        return KafkaError(error.code, error.message)


def handle_offset_for_leader_epoch(
    worker: Worker, request: Request, message: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _epoch_end(worker, request, message.replica_id, topic.topic, data)
                    for data in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _epoch_end(
    worker: Worker, request: Request, replica_id: int, topic: str, data: OffsetForLeaderPartition
) -> EpochEndOffset:
    answer = EpochEndOffset(partition=data.partition, leader_epoch=-1, end_offset=-1)
    try:
        if error := claim_error(request.client, replica_id):
            raise KafkaError(error)
        partition = worker.partitions.by_name(topic, data.partition)
        if error := partition.leader_error(data.current_leader_epoch):
            raise KafkaError(error)
        answer.leader_epoch, answer.end_offset = partition.log.epochs.end_offset_for(
            data.leader_epoch, partition.log.log_end_offset
        )
    except KafkaError as error:
        answer.error_code = error.code
    return answer
