"""What this worker knows of replicas that no API of Kafka tells."""

from dataplane.ledger import Entry
from dataplane.worker import Request, Worker
from wire.messages.describe_truncations import (
    DescribedTruncation,
    DescribeTruncationsRequest,
    DescribeTruncationsResponse,
)


def handle_describe_truncations(
    worker: Worker, request: Request, message: DescribeTruncationsRequest
) -> DescribeTruncationsResponse:
    ledger = worker.replication.ledger
    topics = None if message.topics is None else set(message.topics)
    return DescribeTruncationsResponse(
        has_forgotten=ledger.has_forgotten,
        truncations=[_described(e) for e in ledger if topics is None or e.topic in topics],
    )


def _described(entry: Entry) -> DescribedTruncation:
    return DescribedTruncation(
        time_ms=entry.time_ms,
        topic=entry.topic,
        topic_id=entry.topic_id,
        partition=entry.partition,
        reason=entry.reason.value,
        offset=entry.offset,
        end_offset=entry.end_offset,
        last_epoch=entry.last_epoch,
        leader_id=entry.leader_id,
        leader_epoch=entry.leader_epoch,
        high_watermark=entry.high_watermark,
        acknowledged=entry.acknowledged.value,
        detail=entry.detail,
    )
