"""DescribeLogDirs: the log directories of this worker, and how large the logs in them are."""

from collections.abc import AsyncIterator, Iterable
from typing import Final

import trio

from dataplane.partition import Partition
from dataplane.worker import Request, Worker
from wire.errors import ErrorCode
from wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

# Partitions described between two turns of the loop.
SLICE_PARTITIONS: Final = 500


async def handle_describe_log_dirs(
    worker: Worker, request: Request, message: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    path = worker.partitions.log_dir_path
    result = DescribeLogDirsResult(log_dir=path)
    try:
        result.total_bytes, result.usable_bytes = await worker.disk.run(
            lambda: (worker.disk.total_bytes(path), worker.disk.free_bytes(path))
        )
    except OSError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return DescribeLogDirsResponse(results=[result])
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    async for partition in _wanted(worker, message.topics):
        topics.setdefault(partition.topic, []).append(
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size_bytes,
                offset_lag=max(partition.log.log_end_offset - partition.high_watermark, 0),
            )
        )
    result.topics = [
        DescribeLogDirsTopic(name=name, partitions=partitions)
        for name, partitions in topics.items()
    ]
    return DescribeLogDirsResponse(results=[result])


async def _wanted(
    worker: Worker, topics: list[DescribableLogDirTopic] | None
) -> AsyncIterator[Partition]:
    """Those of `topics` (None: all) that are here and usable, each once."""
    partitions: Iterable[Partition] = worker.partitions
    if topics is not None:
        asked = {topic.topic: set(topic.partitions) for topic in topics}
        partitions = (
            partition
            for name, indexes in asked.items()
            for partition in worker.partitions.of_topic(name)
            if partition.index in indexes
        )
    for number, partition in enumerate(partitions, 1):
        if partition.offline is None:
            yield partition
        if number % SLICE_PARTITIONS == 0:
            await trio.lowlevel.checkpoint()
