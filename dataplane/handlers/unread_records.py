"""DescribeUnreadRecords: what follows an offset, such as a committed one, in partitions led here.

The API is this project's own, not Kafka's. Only headers of batches are read. A row needs an index
lookup and one header; pages that are not in memory are read in a worker thread, at most
`MAX_COLD_READS` for a request. Rows beyond that have no timestamp and no size.
"""

from typing import Final, Protocol

from metaquorum.dataplane.log.segments.files import ColdError
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.scheduling.time_slices import pause
from metaquorum.dataplane.worker.capabilities import FailsPartitions, HasDisk, HasPartitions
from metaquorum.dataplane.worker.context import Request
from metaquorum.runtime import StorageError
from metaquorum.wire.messages.describe_unread_records import (
    DescribeUnreadRecordsRequest,
    DescribeUnreadRecordsResponse,
    PositionInPartition,
    UnreadInPartition,
    UnreadInTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import BatchHeader, TimestampType

MAX_ROWS: Final = 10_000  # in one request
MAX_COLD_READS: Final = 1000
MAX_COLD_READS_OF_ROW: Final = 8
UNKNOWN: Final = -1


class ReadsLogs(HasDisk, HasPartitions, FailsPartitions, Protocol):
    """Capability to look up partitions, and to read headers of their batches."""


async def handle_describe_unread_records(
    worker: ReadsLogs, request: Request, message: DescribeUnreadRecordsRequest
) -> DescribeUnreadRecordsResponse:
    topics = message.topics
    if len(topics) > MAX_ROWS or sum([1 + len(topic.partitions) for topic in topics]) > MAX_ROWS:
        return DescribeUnreadRecordsResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"a request may name at most {MAX_ROWS} topics and partitions",
        )
    reader = UnreadReader(worker)
    response = DescribeUnreadRecordsResponse()
    for topic in topics:
        result = UnreadInTopic(name=topic.name)
        response.topics.append(result)
        await pause()
        for asked in topic.partitions:
            await pause()
            result.partitions.append(await reader.row(topic.name, asked))
    return response


class UnreadReader:
    """Rows of one request; they share the limit of reads from the disk."""

    def __init__(self, worker: ReadsLogs) -> None:
        self._worker = worker
        self._cold_reads_left = MAX_COLD_READS

    async def row(self, topic: str, asked: PositionInPartition) -> UnreadInPartition:
        row = UnreadInPartition(partition_index=asked.partition_index)
        try:
            partition = self._worker.replica_manager.by_name(topic, asked.partition_index)
            _check_led(partition)
            await self._measure(row, partition, asked.offset)
        except KafkaError as error:
            row.error_code = error.code
        except StorageError as error:
            self._worker.partition_failed(partition, error)
            row.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return row

    async def _measure(self, row: UnreadInPartition, partition: Partition, offset: int) -> None:
        log = partition.log
        row.log_start_offset, row.high_watermark = log.log_start_offset, partition.high_watermark
        first = max(offset, log.log_start_offset)
        row.record_count = max(0, partition.high_watermark - first)
        if not row.record_count:
            row.size_bytes = 0
            return
        found = await self._rest(partition, first)
        if found is not None:
            row.size_bytes, header = found
            if header is not None:
                row.first_timestamp_ms = _first_timestamp_ms(header)

    async def _rest(
        self, partition: Partition, offset: int
    ) -> tuple[int, BatchHeader | None] | None:
        """Return the result of `rest_hot`; None if it takes too many reads of the disk."""
        for _ in range(MAX_COLD_READS_OF_ROW):
            try:
                return partition.log.rest_hot(offset)
            except ColdError as cold:
                if not self._cold_reads_left:
                    return None
                self._cold_reads_left -= 1
                try:
                    await cold.warm(self._worker.disk)
                except OSError:  # the segment was deleted meanwhile
                    return None
                _check_led(partition)
        return None


def _check_led(partition: Partition) -> None:
    """Raise KafkaError unless this worker leads the partition, and knows its high watermark."""
    if code := partition.leader_error():
        raise KafkaError(code)
    if partition.is_catching_up:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)


def _first_timestamp_ms(header: BatchHeader) -> int:
    """Return the timestamp of the batch's first record; the largest, where it is not in the header.

    A batch with a delete horizon has that instead; one with log append time has one timestamp.
    """
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    if is_append_time or header.delete_horizon_ms is not None:
        return header.max_timestamp
    return header.base_timestamp
