"""Records that follow given offsets, by partition. Not served by Apache Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Final

from metaquorum.client.cluster import Answers, Cluster, TopicPartition
from metaquorum.client.errors import broker_error
from metaquorum.wire.primitives.frozen import frozen

if TYPE_CHECKING:
    from metaquorum.wire.messages.describe_unread_records import DescribeUnreadRecordsResponse

# Partitions of one request; workers refuse more than 10,000 topics and partitions.
MAX_PARTITIONS: Final = 4000


@frozen
class Unread:
    """Committed records of a partition from an offset on. None: not known.

    `first_timestamp_ms` None, too, if all records are read.
    """

    log_start: int
    high_watermark: int
    records: int
    size_bytes: int | None  # about
    first_timestamp_ms: int | None

    def age_s(self, now_ms: int) -> float | None:
        """Return the age of the first unread record; 0 if all are read, None if not known."""
        if not self.records:
            return 0.0
        if self.first_timestamp_ms is None:
            return None
        return max(0, now_ms - self.first_timestamp_ms) / 1000


async def describe_unread(
    cluster: Cluster, offsets: Mapping[TopicPartition, int]
) -> Answers[Unread]:
    """Return what follows the offset of each partition, as its leader knows it.

    Raises NotServedError if the cluster is Apache Kafka.
    """
    deadline = cluster.deadline()

    async def ask(node_id: int, led: list[TopicPartition]) -> Answers[Unread]:
        found: Answers[Unread] = {}
        for first in range(0, len(led), MAX_PARTITIONS):
            part = led[first : first + MAX_PARTITIONS]
            found |= await _ask_one(
                cluster, node_id, {each: offsets[each] for each in part}, deadline
            )
        return found

    return await cluster.ask_leaders(offsets, ask, deadline)


async def _ask_one(
    cluster: Cluster, node_id: int, offsets: Mapping[TopicPartition, int], deadline: float
) -> Answers[Unread]:
    from metaquorum.wire.messages.describe_unread_records import (
        DescribeUnreadRecordsRequest,
        PositionInPartition,
        PositionsInTopic,
    )

    request = DescribeUnreadRecordsRequest(
        topics=[
            PositionsInTopic(
                name=topic,
                partitions=[
                    PositionInPartition(partition_index=each.partition, offset=offsets[each])
                    for each in own
                ],
            )
            for topic, own in groupby(sorted(offsets), key=lambda where: where.topic)
        ]
    )
    response: DescribeUnreadRecordsResponse = await cluster.call(
        request, to=node_id, deadline=deadline
    )
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, f"worker {node_id}")
    return {
        (where := TopicPartition(topic.name, row.partition_index)): broker_error(
            row.error_code, None, f"partition {where}"
        )
        if row.error_code
        else Unread(
            row.log_start_offset,
            row.high_watermark,
            row.record_count,
            None if row.size_bytes < 0 else row.size_bytes,
            None if row.first_timestamp_ms < 0 else row.first_timestamp_ms,
        )
        for topic in response.topics
        for row in topic.partitions
    }
