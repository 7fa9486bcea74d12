"""Lag of groups: committed offsets and the ends of the partition logs.

The partitions of a group are those with a committed offset and those that a member owns. One is
without the other after a rebalance that moved no record yet, after a member left, or if a consumer
without group membership commits.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from metaquorum.client.administration.admin import EARLIEST, LATEST, AdminClient
from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import BrokerError
from metaquorum.client.groups.coordinators import Outcomes
from metaquorum.client.groups.offsets import Committed, committed_offsets
from metaquorum.client.groups.queries import describe_groups
from metaquorum.client.groups.values import GroupDescription, GroupLag, PartitionLag
from metaquorum.wire.primitives.errors import ErrorCode

_UNKNOWN_GROUP: Final = ErrorCode.GROUP_ID_NOT_FOUND


class LogOffsets(NamedTuple):
    """Log start offset and high watermark of a partition."""

    start: int
    end: int


async def describe_lag(cluster: Cluster, groups: Sequence[str]) -> Outcomes[GroupLag]:
    """Return the lag of each group in the partitions that it owns or has committed.

    The outcome is GROUP_ID_NOT_FOUND for a group that does not exist. Owners are known for groups
    of the classic protocol only.
    """
    described = await describe_groups(cluster, groups)
    committed = await committed_offsets(cluster, list(described))
    partitions = {
        where for group in described for where in _partitions(described[group], committed[group])
    }
    logs = await log_offsets(cluster, partitions)
    return {group: _lag(group, described[group], committed[group], logs) for group in described}


def _partitions(
    described: GroupDescription | BrokerError, committed: Committed | BrokerError
) -> set[TopicPartition]:
    owned = set() if isinstance(described, BrokerError) else set(described.owners())
    return owned if isinstance(committed, BrokerError) else owned | committed.keys()


def _lag(
    group: str,
    described: GroupDescription | BrokerError,
    committed: Committed | BrokerError,
    logs: dict[TopicPartition, LogOffsets],
) -> GroupLag | BrokerError:
    if isinstance(committed, BrokerError):
        return committed
    if isinstance(described, BrokerError):
        # Only groups of the classic protocol are described; others have offsets all the same.
        if described.code is not _UNKNOWN_GROUP or not committed:
            return described
        return group_lag(group, None, committed, logs)
    return group_lag(group, described, committed, logs)


def group_lag(
    group: str,
    described: GroupDescription | None,
    committed: Committed,
    logs: dict[TopicPartition, LogOffsets],
) -> GroupLag:
    """Return the lag of a group from its description, commits and logs; partitions are sorted."""
    owners = {} if described is None else described.owners()
    rows = []
    for where in sorted(owners.keys() | committed.keys()):
        log = logs.get(where)
        rows.append(
            PartitionLag(
                where,
                committed.get(where),
                None if log is None else log.start,
                None if log is None else log.end,
                owners.get(where),
            )
        )
    return GroupLag(group, None if described is None else described.state, rows)


async def log_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, LogOffsets]:
    """Return start and end of the logs of those partitions that exist and have a leader."""
    wanted = set(partitions)
    led = sorted(wanted & await led_partitions(cluster, {where.topic for where in wanted}))
    admin = AdminClient(cluster)
    starts = await admin.list_offsets(dict.fromkeys(led, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(led, LATEST))
    found: dict[TopicPartition, LogOffsets] = {}
    for where in led:
        start, end = starts[where], ends[where]
        if not isinstance(start, BrokerError) and not isinstance(end, BrokerError):
            found[where] = LogOffsets(start.offset, end.offset)
    return found


async def led_partitions(cluster: Cluster, topics: Iterable[str]) -> set[TopicPartition]:
    """Return the partitions of `topics` that have a leader; none of a topic that does not exist."""
    described = await AdminClient(cluster).describe_topics(sorted(topics))
    return {
        TopicPartition(topic.name, partition.index)
        for topic in described.values()
        if not isinstance(topic, BrokerError)
        for partition in topic.partitions
        if partition.leader is not None
    }
