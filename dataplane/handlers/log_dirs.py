"""DescribeLogDirs and AlterReplicaLogDirs: the log directories of this worker, and their logs.

While the worker drains, all of its directories are cordoned in the words of Kafka (KIP-1066): they
receive no new replicas.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from metaquorum.config.resolution import Configs
from metaquorum.dataplane.log.dirs.dir_steps import UnresponsiveError
from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.dataplane.log.dirs.moved_logs import UnfinishedMove
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication.log_dir_mover import LogDirMover
from metaquorum.dataplane.scheduling.time_slices import for_each_of, in_pieces, pause
from metaquorum.dataplane.worker.capabilities import HasDisk, HasImage, HasSlicer, HasWorkerId
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    AlterReplicaLogDirTopicResult,
)
from metaquorum.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode

# Partitions described before other tasks run.
SLICE_PARTITIONS: Final = 500
# Future replicas created before other tasks run: some file operations each.
MOVES_AT_ONCE: Final = 8


T = TypeVar("T")


class KnownLogDirs(Protocol):
    """The log directories of this worker, and the directory of each partition."""

    @property
    def online(self) -> Iterable[LogDir]: ...

    @property
    def lost_paths(self) -> list[str]: ...

    @property
    def continuing(self) -> Mapping[tuple[str, int], UnfinishedMove]: ...

    async def do(self, log_dir: LogDir, step: Callable[[], Awaitable[T]], /) -> T: ...

    def dir_of(self, partition: tuple[str, int]) -> LogDir | None: ...

    def future(self, partition: tuple[str, int]) -> tuple[LogDir, PartitionLog] | None: ...


class HostedLogs(Protocol):
    """The partitions of this worker and its log directories, read only."""

    def __iter__(self) -> Iterator[Partition]: ...

    def of_topic(self, name: str) -> list[Partition]: ...

    @property
    def log_dirs(self) -> KnownLogDirs: ...


class HostsLogs(Protocol):
    @property
    def replica_manager(self) -> HostedLogs: ...


class DescribesLogDirs(HostsLogs, HasDisk, HasImage, HasWorkerId, Protocol):
    """Capability to read this worker's partitions, and the total and free space of its disks."""

    @property
    def configs(self) -> Configs:
        """The effective configs of this worker."""


async def handle_describe_log_dirs(
    worker: DescribesLogDirs, request: Request, message: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    log_dirs = worker.replica_manager.log_dirs
    usable = {log_dir.path: await _space(worker, log_dir) for log_dir in list(log_dirs.online)}
    for online in usable.values():
        online.is_cordoned = worker.image.is_draining(worker.worker_id)
    for log_dir in log_dirs.online:
        if log_dir.is_full and (full := usable.get(log_dir.path)) is not None:
            _show_full(full, worker.configs.integer("message.max.bytes"))
    async for log_dir, partition in _wanted(worker, message.topics):
        log = partition.log
        row = DescribeLogDirsPartition(
            partition_index=partition.index,
            partition_size=log.size_bytes,
            offset_lag=max(log.log_end_offset - partition.high_watermark, 0),
        )
        _add(usable.get(log_dir.path), partition, row)
        at = partition.topic, partition.index
        if (unfinished := log_dirs.continuing.get(at)) is not None:
            row = DescribeLogDirsPartition(
                partition_index=partition.index,
                offset_lag=log.log_end_offset - log.log_start_offset,  # until it is recovered
                is_future_key=True,
            )
            _add(usable.get(unfinished.path), partition, row)
        elif (moving := log_dirs.future(at)) is not None:
            target, future = moving
            row = DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=future.size_bytes,
                offset_lag=log.log_end_offset - future.log_end_offset,
                is_future_key=True,
            )
            _add(usable.get(target.path), partition, row)
    lost = log_dirs.lost_paths
    return DescribeLogDirsResponse(
        results=[result for path, result in usable.items() if path not in lost]
        + [_lost(path) for path in lost]
    )


def _add(
    result: DescribeLogDirsResult | None, partition: Partition, row: DescribeLogDirsPartition
) -> None:
    if result is None or result.error_code:
        return
    if not result.topics or result.topics[-1].name != partition.topic:
        result.topics.append(DescribeLogDirsTopic(name=partition.topic))
    result.topics[-1].partitions.append(row)


def _lost(path: str) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path)


def _show_full(result: DescribeLogDirsResult, largest_batch_bytes: int) -> None:
    """Show no usable bytes in a directory that refuses writes although its file system has room.

    So it is if a disk quota of the process's user is used up.
    """
    if result.usable_bytes >= largest_batch_bytes:
        result.usable_bytes = 0


async def _space(worker: DescribesLogDirs, log_dir: LogDir) -> DescribeLogDirsResult:
    disk, path = worker.disk, log_dir.path

    def space() -> tuple[int, int]:
        return disk.total_bytes(path), disk.free_bytes(path)

    log_dirs = worker.replica_manager.log_dirs
    try:
        total, usable = await log_dirs.do(log_dir, partial(disk.run, space))
    except (OSError, UnresponsiveError):
        return _lost(path)
    return DescribeLogDirsResult(log_dir=path, total_bytes=total, usable_bytes=usable)


async def _wanted(
    worker: DescribesLogDirs, topics: list[DescribableLogDirTopic] | None
) -> AsyncIterator[tuple[LogDir, Partition]]:
    """Yield the online partitions of `topics` (None: all) on this worker, each once, by topic."""
    partitions: Iterable[Partition] = worker.replica_manager
    if topics is not None:
        partitions = await _asked(worker, topics)
    for number, partition in enumerate(partitions, 1):
        log_dir = worker.replica_manager.log_dirs.dir_of((partition.topic, partition.index))
        if partition.offline is None and log_dir is not None:
            yield log_dir, partition
        if number % SLICE_PARTITIONS == 0:
            await trio.lowlevel.checkpoint()


async def _asked(worker: HostsLogs, topics: list[DescribableLogDirTopic]) -> list[Partition]:
    """Return the requested partitions that this worker hosts, each once, by topic."""
    here: dict[str, dict[int, Partition]] = {}
    asked: dict[str, dict[int, Partition]] = {}

    def find(topic: DescribableLogDirTopic) -> None:
        if topic.topic not in here:
            found = {one.index: one for one in worker.replica_manager.of_topic(topic.topic)}
            if found:
                here[topic.topic] = found

    def keep(topic: DescribableLogDirTopic, index: int) -> None:
        if (found := here.get(topic.topic)) is not None and (one := found.get(index)) is not None:
            asked.setdefault(topic.topic, {})[index] = one

    await in_pieces(topics, find)
    await for_each_of(topics, lambda topic: topic.partitions, keep)
    partitions: list[Partition] = []

    def take(name: str) -> None:
        partitions.extend([one for index, one in here[name].items() if index in asked[name]])

    await in_pieces(asked, take)
    return partitions


class MovesReplicas(HasSlicer, Protocol):
    @property
    def log_dir_mover(self) -> LogDirMover: ...


async def handle_alter_replica_log_dirs(
    worker: MovesReplicas, request: Request, message: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Begin, redirect or cancel moves; a partition in several directories takes the last one."""
    asked: dict[tuple[str, int], str] = {}
    topics: list[tuple[str, AlterReplicaLogDirTopic]] = []
    await for_each_of(
        message.dirs,
        lambda directory: directory.topics,
        lambda directory, topic: topics.append((directory.path, topic)),
    )

    def note(row: tuple[str, AlterReplicaLogDirTopic], index: int) -> None:
        asked[row[1].name, index] = row[0]

    await for_each_of(topics, lambda row: row[1].partitions, note)
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for number, ((topic, index), path) in enumerate(asked.items(), 1):
        code = worker.log_dir_mover.alter(topic, index, path)
        result = results.setdefault(topic, AlterReplicaLogDirTopicResult(topic_name=topic))
        result.partitions.append(
            AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
        )
        if number % MOVES_AT_ONCE == 0:
            await pause()
    response = AlterReplicaLogDirsResponse(results=list(results.values()))
    worker.slicer.discard(asked, topics, results)
    return response
