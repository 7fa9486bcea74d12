"""DeleteRecords: advance log start offsets, durably, on all live replicas."""

from typing import Final, Protocol

import trio

from metaquorum.dataplane.handlers.topics import timeout_seconds
from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.dataplane.log.segments.files import DiskFullError
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.partition.pending_deletes import PendingDeletes
from metaquorum.dataplane.scheduling.time_slices import for_each_of, pause
from metaquorum.dataplane.worker.capabilities import (
    FailsPartitions,
    HasClock,
    HasDisk,
    HasImage,
    HasLayers,
    HasSlicer,
)
from metaquorum.dataplane.worker.context import Request
from metaquorum.metadata.internal_topics import check_writable, is_internal
from metaquorum.runtime import StorageError
from metaquorum.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

HIGH_WATERMARK: Final = -1
# Seconds that a request waits for the deletion of its partitions' segments. Retention deletes those
# that are left; Kafka leaves all of them to it.
DELETION_S: Final = 1.0
# How long a full disk may take to have room for a checkpoint, and the time between attempts.
ROOM_PATIENCE_S: Final = 5.0
ROOM_RETRY_S: Final = 0.25
_NO_OFFSET: Final = -1


class Checkpoints(Protocol):
    def dir_of(self, partition: tuple[str, int], /) -> LogDir | None: ...

    async def checkpoint(self, log_dir: LogDir, /) -> None: ...


class HostedRecords(Protocol):
    """The partitions of this worker by name, and their log directories for checkpoints."""

    def by_name(self, topic: str, index: int) -> Partition: ...

    @property
    def log_dirs(self) -> Checkpoints: ...


class HostsRecords(Protocol):
    @property
    def replica_manager(self) -> HostedRecords: ...


class ReadsTopicConfigs(HasImage, HasLayers, Protocol):
    """Capability to read the effective configs of a topic."""


class AdvancesLogStart(ReadsTopicConfigs, HasClock, Protocol):
    """Capability to advance a log start offset."""


class DeletesRecords(AdvancesLogStart, HostsRecords, FailsPartitions, HasDisk, HasSlicer, Protocol):
    """Capability to delete records of any number of this worker's partitions.

    `pending_deletes` removes the files later.
    """

    @property
    def pending_deletes(self) -> PendingDeletes: ...


async def handle_delete_records(
    worker: DeletesRecords, request: Request, message: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    deadline = trio.current_time() + timeout_seconds(message.timeout_ms)
    asked = await _once(worker, message)
    deleted: list[tuple[str, DeleteRecordsPartitionResult]] = []
    try:
        until = trio.current_time() + DELETION_S
        topics = [await _of_topic(worker, *each, deleted, until) for each in asked.items()]
    finally:
        worker.slicer.discard(asked)
    await _keep(worker, deleted, deadline)
    for name, result in deleted:
        if not result.error_code:
            with trio.CancelScope(deadline=deadline):
                await _everywhere(worker, name, result)
    return DeleteRecordsResponse(topics=topics)


async def _keep(
    worker: HostsRecords, deleted: list[tuple[str, DeleteRecordsPartitionResult]], deadline: float
) -> None:
    """Write the checkpoints with the new log start offsets; set an error where they cannot be.

    On a full disk, wait until the deleted segments are removed (`FullDirs`).
    """
    of_dir: dict[LogDir | None, list[DeleteRecordsPartitionResult]] = {}
    for name, result in deleted:
        log_dir = worker.replica_manager.log_dirs.dir_of((name, result.partition_index))
        of_dir.setdefault(log_dir, []).append(result)
    deadline = min(deadline, trio.current_time() + ROOM_PATIENCE_S)
    while of_dir:
        is_last = trio.current_time() >= deadline
        for log_dir, results in list(of_dir.items()):
            try:
                if log_dir is not None:
                    await worker.replica_manager.log_dirs.checkpoint(log_dir)
                    del of_dir[log_dir]
                    continue
            except DiskFullError:
                if not is_last:
                    continue
            except StorageError:
                pass
            del of_dir[log_dir]
            for result in results:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                result.low_watermark = _NO_OFFSET
        if of_dir:
            await trio.sleep(ROOM_RETRY_S)


async def _once(worker: HasSlicer, message: DeleteRecordsRequest) -> dict[str, dict[int, int]]:
    """Return the offset of each partition; as in Kafka, the last one if a partition repeats."""
    asked: dict[str, dict[int, int]] = {}

    def keep(topic: DeleteRecordsTopic, data: DeleteRecordsPartition) -> None:
        asked.setdefault(topic.name, {})[data.partition_index] = data.offset

    await for_each_of(message.topics, lambda topic: topic.partitions, keep)
    return asked


async def _everywhere(
    worker: HostsRecords, topic: str, result: DeleteRecordsPartitionResult
) -> None:
    """Wait until every live replica's log start offset has reached `result.low_watermark`.

    Set the low watermark and the error code of `result`: REQUEST_TIMED_OUT if cancelled.
    """
    start, result.low_watermark = result.low_watermark, _NO_OFFSET
    try:
        partition = worker.replica_manager.by_name(topic, result.partition_index)
        partition.notify_log_start()
        while not (error := partition.leader_error()):
            result.low_watermark = partition.low_watermark
            if result.low_watermark >= start:
                result.error_code = ErrorCode.NONE
                return
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            moved = trio.Event()
            partition.start_waiters.add(moved)
            try:
                await moved.wait()
            finally:
                partition.start_waiters.discard(moved)
        result.error_code = error
    except KafkaError as error:
        result.error_code = error.code
    result.low_watermark = _NO_OFFSET


async def _of_topic(
    worker: DeletesRecords,
    name: str,
    asked: dict[int, int],
    deleted: list[tuple[str, DeleteRecordsPartitionResult]],
    until: float,
) -> DeleteRecordsTopicResult:
    """Return the results of the topic; add those of successful partitions to `deleted`."""
    topic = DeleteRecordsTopicResult(name=name)
    try:
        for index, offset in asked.items():
            await pause()
            result = await _of_partition(worker, name, index, offset, until)
            topic.partitions.append(result)
            if not result.error_code:
                deleted.append((name, result))
    finally:
        worker.slicer.discard(asked)
    return topic


async def _of_partition(
    worker: DeletesRecords, topic: str, index: int, offset: int, until: float
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=index, low_watermark=_NO_OFFSET)
    partition: Partition | None = None
    try:
        check_writable(topic)
        partition = worker.replica_manager.by_name(topic, index)
        async with partition.appending:
            plog, is_advanced = partition.log, _advance(worker, partition, offset)
        if is_advanced:
            # Each deleted segment takes a sync: appends continue meanwhile.
            with trio.CancelScope(deadline=until):
                if count := await plog.delete_old_segments(worker.disk):
                    worker.pending_deletes.add(partition, plog, count)
            try:
                await partition.flush(worker.disk)
            except DiskFullError as error:  # the leader epochs have no room yet
                worker.partition_failed(partition, error)
        result.low_watermark = plog.log_start_offset
    except KafkaError as error:
        result.error_code = error.code
    except StorageError as error:
        assert partition is not None
        worker.partition_failed(partition, error)
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return result


def _advance(worker: AdvancesLogStart, partition: Partition, offset: int) -> bool:
    """Advance the log start offset to `offset`. Return False if it was not below `offset`.

    Records below `offset` in the same segment stay on disk until the segment is deleted. The caller
    syncs the log, so that after a power failure no deleted segment reappears and the log end offset
    is not below the log start offset. Raises KafkaError if this worker is not the leader, the
    offset is out of range or the topic is only compacted, StorageError if the log directory fails.
    """
    if error := partition.leader_error():
        raise KafkaError(error)
    _check_policy(worker, partition.topic)
    if offset == HIGH_WATERMARK:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    plog = partition.log
    if not plog.advance_log_start(offset):
        return False
    if offset == plog.log_end_offset:
        plog.roll(worker.clock.now_ms())
    partition.log_start_moved()
    return True


def _check_policy(worker: ReadsTopicConfigs, topic: str) -> None:
    configs = worker.layers.topic_configs(
        worker.image.topic_configs(topic), is_internal=is_internal(topic)
    )
    if "compact" in (policy := configs.list("cleanup.policy")) and "delete" not in policy:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
