"""What workers know of their replicas, and no API of Kafka tells."""

from collections.abc import Sequence

from metaquorum.admin.cluster import Cluster
from metaquorum.admin.errors import broker_error
from metaquorum.admin.values import Ledger, Truncation
from wire.types import uuid_to_text


async def describe_truncations(
    cluster: Cluster, node_id: int, topics: Sequence[str] | None = None
) -> Ledger:
    """The truncation ledger of one worker. NotServedError by any Kafka; BrokerError."""
    from wire.messages.describe_truncations import (
        DescribeTruncationsRequest,
        DescribeTruncationsResponse,
    )

    request = DescribeTruncationsRequest(topics=None if topics is None else list(topics))
    response: DescribeTruncationsResponse = await cluster.call(request, to=node_id)
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, f"node {node_id}")
    return Ledger(
        node_id,
        [
            Truncation(
                node_id,
                row.time_ms,
                row.topic,
                uuid_to_text(row.topic_id),
                row.partition,
                row.reason,
                row.offset,
                row.end_offset if row.end_offset >= 0 else None,
                row.last_epoch if row.last_epoch >= 0 else None,
                row.leader_id if row.leader_id >= 0 else None,
                row.leader_epoch if row.leader_epoch >= 0 else None,
                row.high_watermark if row.high_watermark >= 0 else None,
                row.acknowledged,
                row.detail or None,
            )
            for row in response.truncations
        ],
        response.has_forgotten,
    )
