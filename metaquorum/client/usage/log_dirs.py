"""Log directories of workers: partitions, sizes, and those that cannot take records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from metaquorum.client.errors import broker_error
from metaquorum.client.values import LogDir, ReplicaOnDisk

if TYPE_CHECKING:
    from metaquorum.client.cluster import Cluster
    from metaquorum.wire.messages.describe_log_dirs import (
        DescribableLogDirTopic,
        DescribeLogDirsResponse,
    )

# Default of message.max.bytes: room for the largest batch, without which a directory is full.
LARGEST_BATCH_BYTES: Final = 1024 * 1024 + 12


async def describe_log_dirs(
    cluster: Cluster, node_id: int, topics: Sequence[DescribableLogDirTopic] | None = None
) -> list[LogDir]:
    """Return the log directories of one node by path, with the replicas of `topics` (None: of all).

    Sizes are in bytes. Raises BrokerError if the node refuses.
    """
    from metaquorum.wire.messages.describe_log_dirs import DescribeLogDirsRequest

    request = DescribeLogDirsRequest(topics=None if topics is None else list(topics))
    response: DescribeLogDirsResponse = await cluster.call(request, to=node_id)
    if response.error_code:
        raise broker_error(response.error_code, None, f"node {node_id}")
    return [
        LogDir(
            node_id=node_id,
            path=result.log_dir,
            error=broker_error(result.error_code, None, "").message if result.error_code else "",
            total_bytes=result.total_bytes,
            usable_bytes=result.usable_bytes,
            replicas=[
                ReplicaOnDisk(
                    topic.name,
                    partition.partition_index,
                    partition.partition_size,
                    partition.offset_lag,
                    partition.is_future_key,
                )
                for topic in result.topics
                for partition in topic.partitions
            ],
        )
        for result in sorted(response.results, key=lambda result: result.log_dir)
    ]


def is_full(log_dir: LogDir, room_bytes: int) -> bool:
    """Return whether less than `room_bytes` can be written. False if that is not reported."""
    return not log_dir.error and 0 <= log_dir.usable_bytes < room_bytes


def log_dir_warning(log_dir: LogDir, room_bytes: int) -> str | None:
    """Return a sentence about a directory that is offline or full; None for any other one."""
    place = f"log directory {log_dir.path} of worker {log_dir.node_id}"
    if log_dir.error:
        return f"{place} is offline: the log of the worker has the cause"
    if not is_full(log_dir, room_bytes):
        return None
    return (
        f"{place} is full: {log_dir.usable_bytes:,} bytes are left, fewer than a batch may have"
        f" ({room_bytes:,}), so its partitions refuse such records; delete records or topics,"
        f" shorten their retention, enlarge the disk or the quota of the worker's user, or move"
        f" replicas away (`mq-admin log-dirs --node"
        f" {log_dir.node_id} --partitions` shows their sizes)"
    )
