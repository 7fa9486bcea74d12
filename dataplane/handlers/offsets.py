"""ListOffsets and OffsetForLeaderEpoch: the offset of a timestamp, or the end of a leader epoch."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

import trio

from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.timestamps import Candidate, TimestampOffset, latest_of
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication.replica_authentication import claim_error
from metaquorum.dataplane.scheduling.time_slices import each_of, for_each_of, in_pieces, pause
from metaquorum.dataplane.worker.capabilities import (
    FailsPartitions,
    HasPartitions,
    OpensBatches,
    ReadsPartitions,
)
from metaquorum.dataplane.worker.context import Request
from metaquorum.runtime import File, StorageError
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from metaquorum.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_NOT_AVAILABLE_SINCE: Final = 5  # OFFSET_NOT_AVAILABLE, KIP-207
# The first version of ListOffsets that accepts each special timestamp.
_SINCE: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED: Final = 1
_ISOLATION_LEVELS: Final = (0, _READ_COMMITTED)
_CONSUMER: Final = -1  # replica id


class LooksUpOffsets(ReadsPartitions, OpensBatches, FailsPartitions, Protocol):
    """Capability to look up partitions, and read their records to find a timestamp."""


async def handle_list_offsets(
    worker: LooksUpOffsets, request: Request, message: ListOffsetsRequest
) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
    """Look up offsets; as in Kafka, each row of a repeated partition gets INVALID_REQUEST."""
    seen: set[tuple[str, int]] = set()
    lookup = _Lookup(worker, request, message)
    note = partial(_note_twice, seen, lookup.twice)
    await for_each_of(message.topics, _partitions_of, note)
    found = await each_of(message.topics, _partitions_of, lookup.row)
    topics = await in_pieces(
        found, lambda each: ListOffsetsTopicResponse(name=each[0].name, partitions=each[1])
    )
    response = ListOffsetsResponse(topics=topics)
    worker.slicer.discard(seen, lookup.twice, found)
    return lookup.search(response) if lookup.searches else response


def _partitions_of(topic: ListOffsetsTopic) -> list[ListOffsetsPartition]:
    return topic.partitions


def _note_twice(
    seen: set[tuple[str, int]],
    twice: set[tuple[str, int]],
    topic: ListOffsetsTopic,
    data: ListOffsetsPartition,
) -> None:
    key = topic.name, data.partition_index
    if key in seen:
        twice.add(key)
    seen.add(key)


class _Lookup:
    """The rows of one request. `searches` has those that may have to read records of batches."""

    def __init__(
        self, worker: LooksUpOffsets, request: Request, message: ListOffsetsRequest
    ) -> None:
        self.twice: set[tuple[str, int]] = set()
        self.searches: list[tuple[ListOffsetsPartitionResponse, Partition, int, int]] = []
        self._worker = worker
        self._request = request
        # A replica id without a proof is ignored, not refused: kafka-python 3.0.0 to 3.0.11 name
        # replica 0 in each lookup, and Kafka answers them. Followers ask as consumers.
        is_proven = not claim_error(request.client, message.replica_id)
        self._replica_id = message.replica_id if is_proven else _CONSUMER
        self._committed = message.isolation_level == _READ_COMMITTED
        self._is_unknown_level = message.isolation_level not in _ISOLATION_LEVELS

    def row(
        self, topic: ListOffsetsTopic, data: ListOffsetsPartition
    ) -> ListOffsetsPartitionResponse:
        answer = ListOffsetsPartitionResponse(partition_index=data.partition_index)
        timestamp = data.timestamp
        try:
            if self._is_unknown_level or (topic.name, data.partition_index) in self.twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            partition = self._partition(topic.name, data)
            end = _end_for(partition, self._replica_id, committed=self._committed)
            if _is_search(timestamp):
                self.searches.append((answer, partition, timestamp, end))
            elif (found := _find(partition, timestamp, end)) is not None:
                answer.offset, answer.timestamp, answer.leader_epoch = found
        except KafkaError as error:
            answer.error_code = error.code
        return answer

    def _partition(self, topic: str, data: ListOffsetsPartition) -> Partition:
        """Return the partition of a row.

        Raises KafkaError if this worker is not its leader, or the lookup is not possible: an
        unsupported timestamp, or a new leader that is catching up.
        """
        replica_id, version = self._replica_id, self._request.version
        partition = self._worker.replica_manager.by_name(topic, data.partition_index)
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
        return partition

    async def search(self, response: ListOffsetsResponse) -> ListOffsetsResponse:
        worker = self._worker
        for answer, partition, timestamp, end in self.searches:
            await pause()
            try:
                found = await _search(worker, partition.log, timestamp, end)
                if found is not None:
                    answer.offset, answer.timestamp, answer.leader_epoch = found
            except KafkaError as error:
                answer.error_code = error.code
            except StorageError as error:
                worker.partition_failed(partition, error)
                answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            except EOFError:  # the segment was deleted meanwhile
                answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        worker.slicer.discard(self.searches)
        return response


def _is_search(timestamp: int) -> bool:
    """Return whether the lookup of `timestamp` may have to read records of batches."""
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def _end_for(partition: Partition, replica_id: int, *, committed: bool) -> int:
    """Return the end of the visible log: the log end offset for replicas.

    For clients, return the high watermark, or the last stable offset with READ_COMMITTED.
    """
    if replica_id >= 0:
        return partition.log.log_end_offset
    return partition.last_stable_offset if committed else partition.high_watermark


def _find(partition: Partition, timestamp: int, end_offset: int) -> tuple[int, int, int] | None:
    """Return offset, timestamp and leader epoch of a special timestamp; None if there is none."""
    if timestamp == LATEST:
        return end_offset, -1, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = partition.log.log_start_offset
        return start, -1, partition.log.epochs.epoch_at(start, default=partition.leader_epoch)
    return None  # there is no tiered storage


async def _search(
    worker: OpensBatches, log: PartitionLog, timestamp: int, end_offset: int
) -> TimestampOffset | None:
    """Return the first record below `end_offset` with at least `timestamp`, None if there is none.

    For MAX_TIMESTAMP, return the record with the largest timestamp. Reads records of batches.
    """
    if timestamp == MAX_TIMESTAMP:
        start_offset = log.log_start_offset
        found = latest_of(
            [
                await _open(
                    worker, each, partial(each.find_max_timestamp, start_offset=start_offset)
                )
                for each in log.max_timestamp_candidates()
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
        await trio.lowlevel.checkpoint()  # many batches may have a wrong timestamp in the header
    return None


async def _open(
    worker: OpensBatches, candidate: Candidate, find: Callable[[File], TimestampOffset | None]
) -> TimestampOffset | None:
    """Return the result of `find` for the batch; in a worker thread if it may take long."""
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
    """Run `find` in a worker thread, and return a KafkaError instead of raising it.

    An exception that leaves a thread is part of a reference cycle: it would keep its stack frames
    and the decompressed records until the next garbage collection.
    """
    try:
        return find(file)
    except KafkaError as error:
        return KafkaError(error.code, error.message)


async def handle_offset_for_leader_epoch(
    worker: ReadsPartitions, request: Request, message: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    def epoch_end(topic: OffsetForLeaderTopic, data: OffsetForLeaderPartition) -> EpochEndOffset:
        return _epoch_end(worker, request, message.replica_id, topic.topic, data)

    found = await each_of(message.topics, lambda topic: topic.partitions, epoch_end)
    topics = await in_pieces(
        found, lambda each: OffsetForLeaderTopicResult(topic=each[0].topic, partitions=each[1])
    )
    worker.slicer.discard(found)
    return OffsetForLeaderEpochResponse(topics=topics)


def _epoch_end(
    worker: HasPartitions,
    request: Request,
    replica_id: int,
    topic: str,
    data: OffsetForLeaderPartition,
) -> EpochEndOffset:
    answer = EpochEndOffset(partition=data.partition, leader_epoch=-1, end_offset=-1)
    try:
        if error := claim_error(request.client, replica_id):
            raise KafkaError(error)
        partition = worker.replica_manager.by_name(topic, data.partition)
        if error := partition.leader_error(data.current_leader_epoch):
            raise KafkaError(error)
        answer.leader_epoch, answer.end_offset = partition.log.epochs.end_offset_for(
            data.leader_epoch, partition.log.log_end_offset
        )
    except KafkaError as error:
        answer.error_code = error.code
    return answer
