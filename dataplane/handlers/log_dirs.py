"""DescribeLogDirs: the log directories of this worker, and the sizes of their logs.

While the worker drains, all of its directories are cordoned in the words of Kafka (KIP-1066): they
receive no new replicas.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final, Protocol

import trio

from dataplane.log.dirs.dir_discovery import AbsentDir
from dataplane.log.dirs.log_dir import LogDir
from dataplane.partition.partition import Partition
from dataplane.scheduling.time_slices import Work, for_each_of, in_pieces, row_count
from dataplane.worker.capabilities import HasDisk, HasImage, HasSlicer, HasWorkerId
from dataplane.worker.context import Request
from wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from wire.primitives.errors import ErrorCode

# Partitions described before other tasks run.
SLICE_PARTITIONS: Final = 500


class KnownLogDirs(Protocol):
    """The log directories of this worker, and the directory of each partition."""

    @property
    def online(self) -> Iterable[LogDir]: ...

    @property
    def failed(self) -> Iterable[LogDir]: ...

    @property
    def absent(self) -> Iterable[AbsentDir]: ...

    def dir_of(self, partition: tuple[str, int]) -> LogDir | None: ...


class HostedLogs(Protocol):
    """The partitions of this worker and its log directories, read only."""

    def __iter__(self) -> Iterator[Partition]: ...

    def of_topic(self, name: str) -> list[Partition]: ...

    @property
    def log_dirs(self) -> KnownLogDirs: ...


class HostsLogs(Protocol):
    @property
    def replica_manager(self) -> HostedLogs: ...


class DescribesLogDirs(HostsLogs, HasDisk, HasImage, HasSlicer, HasWorkerId, Protocol):
    """Capability to read this worker's partitions, and the total and free space of its disks."""


async def handle_describe_log_dirs(
    worker: DescribesLogDirs, request: Request, message: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    log_dirs = worker.replica_manager.log_dirs
    usable = {log_dir.path: await _space(worker, log_dir) for log_dir in list(log_dirs.online)}
    for online in usable.values():
        online.is_cordoned = worker.image.is_draining(worker.worker_id)
    async for log_dir, partition in _wanted(worker, message.topics):
        if (result := usable.get(log_dir.path)) is None or result.error_code:
            continue
        if not result.topics or result.topics[-1].name != partition.topic:
            result.topics.append(DescribeLogDirsTopic(name=partition.topic))
        result.topics[-1].partitions.append(
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size_bytes,
                offset_lag=max(partition.log.log_end_offset - partition.high_watermark, 0),
            )
        )
    lost = [one.path for one in log_dirs.failed]
    lost += [one.path for one in log_dirs.absent if one.is_configured]
    return DescribeLogDirsResponse(
        results=[result for path, result in usable.items() if path not in lost]
        + [_lost(path) for path in lost]
    )


def _lost(path: str) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path)


async def _space(worker: HasDisk, log_dir: LogDir) -> DescribeLogDirsResult:
    disk, path = worker.disk, log_dir.path
    try:
        total, usable = await disk.run(lambda: (disk.total_bytes(path), disk.free_bytes(path)))
    except OSError:
        return _lost(path)
    return DescribeLogDirsResult(log_dir=path, total_bytes=total, usable_bytes=usable)


async def _wanted(
    worker: DescribesLogDirs, topics: list[DescribableLogDirTopic] | None
) -> AsyncIterator[tuple[LogDir, Partition]]:
    """Yield the online partitions of `topics` (None: all) on this worker, each once, by topic."""
    partitions: Iterable[Partition] = worker.replica_manager
    if topics is not None:
        partitions = await worker.slicer.do(
            _asked(worker, topics), row_count(topics, lambda topic: topic.partitions)
        )
    for number, partition in enumerate(partitions, 1):
        log_dir = worker.replica_manager.log_dirs.dir_of((partition.topic, partition.index))
        if partition.offline is None and log_dir is not None:
            yield log_dir, partition
        if number % SLICE_PARTITIONS == 0:
            await trio.lowlevel.checkpoint()


def _asked(worker: HostsLogs, topics: list[DescribableLogDirTopic]) -> Work[list[Partition]]:
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

    yield from in_pieces(topics, find)
    yield from for_each_of(topics, lambda topic: topic.partitions, keep)
    partitions: list[Partition] = []

    def take(name: str) -> None:
        partitions.extend([one for index, one in here[name].items() if index in asked[name]])

    yield from in_pieces(asked, take)
    return partitions
