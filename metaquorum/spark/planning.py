"""Planning: the offset ranges of a load, fixed once; tasks read by the plan alone.

    names of topics → partitions → offsets now (log start, end, timestamps) → ranges → splits

`make_plan` queries the cluster, over blocking sockets. All decisions are functions without I/O over
a `PartitionSnapshot` of each partition: `resolve` returns the first and the end offset of a
partition, `split_ranges` divides the ranges into tasks, as the official connector does
(`KafkaOffsetRangeCalculator`), and by bytes.

The end of a partition is its high watermark, or with read_committed its last stable offset; records
appended later are not in the plan. Offsets outside the log are an error. With `failOnDataLoss`
false, offsets below the log start offset stay in the first range of the partition, so that its
reader reports them as deleted, and offsets beyond the end are left out, with a warning.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from metaquorum.client.administration.admin import EARLIEST, LATEST, AdminClient
from metaquorum.client.administration.replicas import topic_config
from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import AdminError, BrokerError
from metaquorum.client.socket_transport import wait
from metaquorum.client.values import OffsetAtTime
from metaquorum.spark.errors import LoadError
from metaquorum.spark.given_options import OptionError
from metaquorum.spark.offset_ranges import UNKNOWN, OffsetRange, ReadPlan, TopicFacts
from metaquorum.spark.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    MAX_RANGES,
    Assign,
    Limit,
    OffsetsByPartition,
    Position,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    Timestamp,
    TimestampsByPartition,
    Topics,
    partition_names,
)
from metaquorum.wire.messages.metadata import MetadataResponseTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.frozen import frozen

log = logging.getLogger(__name__)

NO_OFFSET: Final = -1  # no record has the timestamp or a later one


class PlanError(LoadError):
    """The options ask for offsets or topics that this cluster does not have."""


@frozen
class PartitionSnapshot:
    """State of a partition when the plan was made.

    NO_OFFSET: no record at or after the timestamp. UNKNOWN: the cluster did not report the value.
    """

    log_start: int
    end: int  # the high watermark, or the last stable offset
    leader_epoch: int = UNKNOWN
    size_bytes: int = UNKNOWN  # size of the leader's log
    at_starting_timestamp: int | None = None  # None: not requested
    at_ending_timestamp: int | None = None

    @property
    def bytes_per_offset(self) -> float | None:
        if self.size_bytes == UNKNOWN or self.end <= self.log_start:
            return None
        return self.size_bytes / (self.end - self.log_start)


def make_plan(cluster: Cluster, options: ReadOptions) -> ReadPlan:
    """Return the plan for `options`, from the current state of the cluster. Blocking.

    Raises PlanError if the cluster does not have the offsets, OptionError if the options name
    other partitions than those of the topics, BrokerError or UnreachableError if a request fails.
    """
    return wait(_make_plan(cluster, options))


async def _make_plan(cluster: Cluster, options: ReadOptions) -> ReadPlan:
    topics, assigned = await _find_partitions(cluster, options.topics)
    check_partitions(options.starting, "starting", assigned)
    check_partitions(options.ending, "ending", assigned)
    snapshots = await _snapshots(cluster, options, topics, assigned)
    ranges: list[OffsetRange] = []
    for where, snapshot in snapshots.items():
        start, end = resolve(where, snapshot, options)
        if start < end:
            topic_id = topics[where.topic].topic_id
            ranges.append(
                OffsetRange(*where, start, end, topic_id, leader_epoch=snapshot.leader_epoch)
            )
    compacted = await _compacted(cluster, sorted(topics))
    return ReadPlan(
        cluster_id=cluster.cluster_id,
        read_committed=options.fetch.read_committed,
        ranges=tuple(split_ranges(ranges, snapshots, options)),
        topics={
            name: TopicFacts(topic.topic_id, compacted.get(name)) for name, topic in topics.items()
        },
        made_at_ms=cluster.transport.now_ms(),
    )


# Without I/O: first and end offsets of partitions


def check_partitions(limit: Limit, side: str, assigned: Iterable[TopicPartition]) -> None:
    """Raise OptionError unless a limit by partition names exactly the `assigned` partitions."""
    if isinstance(limit, OffsetsByPartition):
        option, named = f"{side}Offsets", limit.offsets.keys()
    elif isinstance(limit, TimestampsByPartition):
        option, named = f"{side}OffsetsByTimestamp", limit.timestamps_ms.keys()
    else:
        return
    partitions = set(assigned)
    if named == partitions:
        return
    hint = ""
    if isinstance(limit, OffsetsByPartition):
        hint = ", with -1 for latest and -2 for earliest"
    problems = []
    if missing := partitions - named:
        problems.append(f"it does not name {partition_names(missing)}")
    if others := set(named) - partitions:
        problems.append(f"it names {partition_names(others)}, not read")
    raise OptionError(
        f"option {option} must name exactly the partitions that are read{hint}: "
        + "; ".join(problems)
    )


def resolve(
    where: TopicPartition, snapshot: PartitionSnapshot, options: ReadOptions
) -> tuple[int, int]:
    """Return the first and the end offset of the partition; equal if there is nothing to read.

    Raises PlanError if the log does not have the offsets and `failOnDataLoss` is set.
    """
    start = _starting_offset(where, snapshot, options)
    end = _ending_offset(where, snapshot, options.ending)
    if start > end and _is_given(options.starting) and _is_given(options.ending):
        raise PlanError(
            f"partition {where}: the starting offset {start} is above the ending offset {end}"
        )
    lost = _not_in_log(start, end, snapshot)
    if lost and options.fetch.fail_on_data_loss:
        raise PlanError(
            f"partition {where}: {lost}; choose offsets that the log has, or use "
            f"{options.fetch.data_loss_option} to read those of the range that exist"
        )
    if lost:
        log.warning("partition %s: %s; data loss is allowed: the rest is read", where, lost)
    end = min(end, max(snapshot.end, snapshot.log_start))
    return min(start, end), end


def _starting_offset(
    where: TopicPartition, snapshot: PartitionSnapshot, options: ReadOptions
) -> int:
    limit = options.starting
    if isinstance(limit, OffsetsByPartition):
        offset = limit.offsets[where]
        return snapshot.log_start if offset == EARLIEST_OFFSET else offset
    if isinstance(limit, Position):
        return snapshot.log_start
    offset = _at(snapshot.at_starting_timestamp)
    if offset != NO_OFFSET:
        return offset
    if options.latest_if_no_match:
        return snapshot.end
    timestamp_ms = (
        limit.timestamp_ms if isinstance(limit, Timestamp) else limit.timestamps_ms[where]
    )
    raise PlanError(
        f"partition {where} has no record at or after the starting timestamp {timestamp_ms}; set "
        "startingOffsetsByTimestampStrategy to latest to skip such partitions"
    )


def _ending_offset(where: TopicPartition, snapshot: PartitionSnapshot, limit: Limit) -> int:
    offset = LATEST_OFFSET
    if isinstance(limit, OffsetsByPartition):
        offset = limit.offsets[where]
    elif not isinstance(limit, Position):
        offset = _at(snapshot.at_ending_timestamp)
    return snapshot.end if offset in (LATEST_OFFSET, NO_OFFSET) else offset


def _at(offset: int | None) -> int:
    assert offset is not None, "the offset of the timestamp was requested"
    return offset


def _is_given(limit: Limit) -> bool:
    return not isinstance(limit, Position)


def _not_in_log(start: int, end: int, snapshot: PartitionSnapshot) -> str:
    """Return a phrase for the offsets of the range outside the log; "" if there are none."""
    if start > snapshot.end:
        return f"offset {start} is beyond the end of the log at {snapshot.end}"
    if end > snapshot.end:
        return f"offsets {snapshot.end} to {end - 1} are beyond the end of the log"
    if start > end:  # the log's start
        return f"the offsets before {end} are deleted: the log starts at {start}"
    if start < snapshot.log_start and start < end:
        last = min(end, snapshot.log_start) - 1
        return f"offsets {start} to {last} are deleted: the log starts at {snapshot.log_start}"
    return ""


# Without I/O: splits


def split_ranges(
    ranges: Iterable[OffsetRange],
    snapshots: Mapping[TopicPartition, PartitionSnapshot],
    options: ReadOptions,
) -> list[OffsetRange]:
    """Divide the ranges into smaller ranges, in order, with estimates of their bytes.

    `maxRecordsPerPartition` and `maxBytesPerPartition` limit the size of a range. If there are
    then fewer than `minPartitions` ranges, they are divided in proportion to their offsets. Empty
    ranges are left out. Raises PlanError if the size of a log is needed but unknown, or if there
    are more than MAX_RANGES ranges.
    """
    # Deleted offsets take no time to read, so they do not count in the size of the first part.
    live = [
        _Part(each, max(each.start, min(snapshots[where_of(each)].log_start, each.end)))
        for each in sorted(ranges, key=lambda each: (each.topic, each.partition, each.start))
        if each.start < each.end
    ]
    parts = live
    if options.max_records_per_partition is not None:
        most = options.max_records_per_partition
        _check_count(sum(-(-part.size // most) for part in parts), "maxRecordsPerPartition")
        parts = [one for part in parts for one in part.divided(-(-part.size // most))]
    if options.max_bytes_per_partition is not None:
        counts = [
            _parts_by_bytes(part, snapshots, options.max_bytes_per_partition) for part in parts
        ]
        _check_count(sum(counts), "maxBytesPerPartition")
        parts = [one for part, n in zip(parts, counts, strict=True) for one in part.divided(n)]
    if options.min_partitions is not None and len(parts) < options.min_partitions:
        parts = _split_by_count(parts, options.min_partitions)
    return [_estimated(part, snapshots[where_of(part.range)]) for part in parts]


def where_of(each: OffsetRange) -> TopicPartition:
    return TopicPartition(each.topic, each.partition)


@frozen
class _Part:
    """A range whose offsets from `live_start` on are in the log."""

    range: OffsetRange
    live_start: int

    @property
    def size(self) -> int:
        return self.range.end - self.live_start

    def divided(self, count: int) -> list[_Part]:
        """Return `count` parts whose sizes differ by at most one; at most one part per offset."""
        count = max(1, min(count, self.size))
        if count == 1:
            return [self]
        parts = []
        start, at, left = self.range.start, self.live_start, self.size
        for number in range(count):
            size = left // (count - number)  # the connector's rounding: the last is the largest
            left -= size
            end = at + size
            parts.append(_Part(replace(self.range, start=start, end=end), at))
            start = at = end
        return parts


def _split_by_count(parts: Sequence[_Part], least: int) -> list[_Part]:
    """Divide the parts as `KafkaOffsetRangeCalculator` of Spark 4.2 does, rounding included.

    A part whose share of `least` rounds to one stays whole, and so do the other parts of its
    partition; the rest of `least` is shared among the other parts by their sizes.
    """
    total = sum(part.size for part in parts)
    if not total:
        return list(parts)
    whole = [part for part in parts if _share(part.size, total, least) == 1]
    rest = total - sum(part.size for part in whole)
    left = max(least - len(whole), 1)
    kept = {where_of(part.range) for part in whole}
    return [
        one
        for part in parts
        for one in part.divided(
            1 if where_of(part.range) in kept else _share(part.size, rest, left)
        )
    ]


def _share(size: int, total: int, count: int) -> int:
    return max(math.floor(size / total * count + 0.5), 1)


def _parts_by_bytes(
    part: _Part, snapshots: Mapping[TopicPartition, PartitionSnapshot], most: int
) -> int:
    if not part.size:
        return 1
    where = where_of(part.range)
    per_offset = snapshots[where].bytes_per_offset
    if per_offset is None:
        raise PlanError(
            "maxBytesPerPartition cannot be applied: the cluster does not report the size of "
            f"{where} (DescribeLogDirs, which needs Describe on the cluster); use "
            "maxRecordsPerPartition"
        )
    return math.ceil(part.size * per_offset / most)


def _check_count(count: int, option: str) -> None:
    if count > MAX_RANGES:
        raise PlanError(
            f"{option} makes {count} ranges, more than {MAX_RANGES}: set it higher, or read less"
        )


def _estimated(part: _Part, snapshot: PartitionSnapshot) -> OffsetRange:
    per_offset = snapshot.bytes_per_offset
    if per_offset is None:
        return part.range
    return replace(part.range, bytes_estimate=round(part.size * per_offset))


# Requests to the cluster


async def _find_partitions(
    cluster: Cluster, wanted: Topics
) -> tuple[dict[str, MetadataResponseTopic], list[TopicPartition]]:
    """Return the topics by name, and the partitions to read.

    Raises PlanError if a topic or a partition cannot be read, BrokerError if a request fails.
    """
    if isinstance(wanted, SubscribePattern):
        names = await _matching(cluster, wanted.pattern)
    elif isinstance(wanted, Subscribe):
        names = sorted(wanted.topics)
    else:
        names = sorted({where.topic for where in wanted.partitions})
    topics: dict[str, MetadataResponseTopic] = {}
    for name in names:
        try:
            topic = await cluster.topic(name, refresh=True)
        except BrokerError as error:
            raise _explained(error, name) from None
        if topic.is_internal:
            # The connector reads no record of an internal topic, without an error.
            raise PlanError(f"topic {name} is internal to the cluster and cannot be read")
        topics[name] = topic
    found = {
        TopicPartition(name, partition.partition_index)
        for name, topic in topics.items()
        for partition in topic.partitions
    }
    if not isinstance(wanted, Assign):
        return topics, sorted(found)
    if missing := set(wanted.partitions) - found:
        raise PlanError(
            f"option assign names partitions that do not exist: {partition_names(missing)}"
        )
    return topics, sorted(wanted.partitions)


async def _matching(cluster: Cluster, pattern: str) -> list[str]:
    expression = re.compile(pattern)
    found = await cluster.refresh(None)
    names = [
        topic.name
        for topic in found
        if topic.name and not topic.is_internal and expression.search(topic.name)
    ]
    if not names:
        # Not an error, as in the connector: topics for the pattern may be created later.
        log.warning("no topic name matches the pattern %r: nothing is read", pattern)
    return sorted(names)


def _explained(error: BrokerError, topic: str) -> Exception:
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return PlanError(f"there is no topic {topic}, or this user may not describe it")
    if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return PlanError(f"this user may not read topic {topic}: grant Read and Describe on it")
    return error


async def _snapshots(
    cluster: Cluster,
    options: ReadOptions,
    topics: Mapping[str, MetadataResponseTopic],
    assigned: Sequence[TopicPartition],
) -> dict[TopicPartition, PartitionSnapshot]:
    read_committed = options.fetch.read_committed
    starting = await _at_timestamps(cluster, options.starting, assigned, read_committed)
    ending = await _at_timestamps(cluster, options.ending, assigned, read_committed)
    log_starts = await _offsets(cluster, dict.fromkeys(assigned, EARLIEST), read_committed)
    # Requested last, so that no other offset is beyond the end.
    ends = await _offsets(cluster, dict.fromkeys(assigned, LATEST), read_committed)
    sizes = await _log_sizes(cluster, assigned)
    epochs = {
        TopicPartition(name, partition.partition_index): partition.leader_epoch
        for name, topic in topics.items()
        for partition in topic.partitions
    }
    return {
        where: PartitionSnapshot(
            log_start=log_starts[where].offset,
            end=ends[where].offset,
            leader_epoch=_epoch(ends[where].leader_epoch, epochs[where]),
            size_bytes=sizes.get(where, UNKNOWN),
            at_starting_timestamp=starting.get(where),
            at_ending_timestamp=ending.get(where),
        )
        for where in assigned
    }


def _epoch(of_end: int, of_metadata: int) -> int:
    """Return the leader epoch of the end, else that of the metadata, else UNKNOWN.

    Brokers before Kafka 2.1 do not send it with the offsets, those before 2.0 not at all.
    """
    return next((epoch for epoch in (of_end, of_metadata) if epoch >= 0), UNKNOWN)


async def _at_timestamps(
    cluster: Cluster, limit: Limit, assigned: Iterable[TopicPartition], read_committed: bool
) -> dict[TopicPartition, int]:
    if isinstance(limit, Timestamp):
        times: Mapping[TopicPartition, int] = dict.fromkeys(assigned, limit.timestamp_ms)
    elif isinstance(limit, TimestampsByPartition):
        times = limit.timestamps_ms
    else:
        return {}
    found = await _offsets(cluster, times, read_committed)
    return {where: answer.offset for where, answer in found.items()}


async def _offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, OffsetAtTime]:
    """Return the offsets at `times`. Raises the error of the first partition that failed."""
    answers = await AdminClient(cluster).list_offsets(times, read_committed=read_committed)
    found: dict[TopicPartition, OffsetAtTime] = {}
    for where, answer in answers.items():
        if isinstance(answer, BrokerError):
            raise _explained(answer, where.topic)
        found[where] = answer
    return found


async def _log_sizes(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the bytes of the leaders' logs that the workers report.

    A worker reports them only to a principal with Describe on the cluster.
    """
    from metaquorum.wire.messages.describe_log_dirs import (
        DescribableLogDirTopic,
        DescribeLogDirsRequest,
        DescribeLogDirsResponse,
    )

    sizes: dict[TopicPartition, int] = {}
    deadline = cluster.deadline()
    grouped, _ = await cluster.leaders(partitions, refresh=False, deadline=deadline)
    for node_id, led in grouped.items():
        by_topic: dict[str, list[int]] = {}
        for where in led:
            by_topic.setdefault(where.topic, []).append(where.partition)
        request = DescribeLogDirsRequest(
            topics=[
                DescribableLogDirTopic(topic=name, partitions=indexes)
                for name, indexes in by_topic.items()
            ]
        )
        try:
            response: DescribeLogDirsResponse = await cluster.call(
                request, to=node_id, deadline=deadline
            )
        except AdminError as error:
            log.info("node %s does not report the sizes of its logs: %s", node_id, error)
            continue
        for result in response.results:
            for topic in result.topics:
                for partition in topic.partitions:
                    if not result.error_code and not partition.is_future_key:
                        where = TopicPartition(topic.name, partition.partition_index)
                        sizes[where] = partition.partition_size
    return sizes


async def _compacted(cluster: Cluster, topics: Sequence[str]) -> dict[str, bool]:
    """Return for each topic whether it is compacted; empty without DescribeConfigs."""
    try:
        policies = await topic_config(cluster, topics, "cleanup.policy")
    except AdminError as error:
        log.info("the cluster does not report which topics are compacted: %s", error)
        return {}
    return {
        topic: "compact" in [part.strip() for part in policy.split(",")]
        for topic, policy in policies.items()
    }
