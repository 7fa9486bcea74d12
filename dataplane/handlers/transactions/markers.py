"""WriteTxnMarkers: coordinators end transactions in partitions; administrators end hanging ones.

    connection with a proven worker id   the markers are those of a coordinator
    any other                            an administrator's (Java: Admin.abortTransaction)

Producer epoch and coordinator epoch are checked by the log in both cases. An administrator's are
those of the producer in the partition (DescribeProducers): newer ones would make the markers of the
coordinator late, and the next transactions of the producer would never end. An administrator's
marker never ends a transaction that a coordinator knows to be open or prepared: all coordinators
are asked for the producer. If the producer writes to the partition meanwhile, the marker is
refused, too.

    INVALID_TXN_STATE           a coordinator knows the transaction: abort it there; or the
                                partition does not know the producer
    COORDINATOR_NOT_AVAILABLE   a coordinator did not answer; retriable
    CONCURRENT_TRANSACTIONS     the producer wrote to the partition meanwhile; retriable
    INVALID_REQUEST             more than `MAX_ROWS` markers, topics and partitions
"""

from typing import Final, Protocol, TypeAlias

from metaquorum.dataplane.log.segments.producers import NO_OFFSET, TransactionMarker
from metaquorum.dataplane.network.client import NO_WORKER
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.scheduling.time_slices import in_pieces, pause
from metaquorum.dataplane.worker.capabilities import HasImage, HasPartitions
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.feature_levels import has_level
from metaquorum.dataplane.worker.marker_writer import MarkerWriter
from metaquorum.dataplane.worker.transaction_states import TransactionStates
from metaquorum.quorum.controller.internal_topics import TRANSACTIONS_LEVEL
from metaquorum.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

# Markers, topics and partitions of an administrator's request; Java's client names one partition.
MAX_ROWS: Final = 1_000

# Epoch of a producer in a partition, first offset of its transaction, last offset of its batches.
_Seen: TypeAlias = tuple[int, int, int]


class WritesMarkers(HasImage, HasPartitions, Protocol):
    @property
    def marker_writer(self) -> MarkerWriter: ...

    @property
    def transaction_states(self) -> TransactionStates: ...


async def handle_write_txn_markers(
    worker: WritesMarkers, request: Request, message: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    if not has_level(worker.image, TRANSACTIONS_LEVEL):
        return await _refuse(message, ErrorCode.UNSUPPORTED_VERSION)
    if request.client.replica.worker_id != NO_WORKER:
        return await worker.marker_writer.write(message)
    return await _write_for_administrator(worker, message)


async def _write_for_administrator(
    worker: WritesMarkers, message: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    if _has_too_many_rows(message):
        return await _refuse(message, ErrorCode.INVALID_REQUEST)
    seen: dict[tuple[str, int, int], _Seen | None] = {}
    for marker in message.markers:
        for topic in marker.topics:
            for index in topic.partition_indexes:
                try:
                    partition = worker.replica_manager.by_name(topic.name, index)
                except KafkaError:
                    continue
                place = topic.name, index, marker.producer_id
                seen[place] = _look(partition, marker.producer_id)
    try:
        producer_ids = {marker.producer_id for marker in message.markers}
        open_ = await worker.transaction_states.open_producers(producer_ids)
    except KafkaError as error:
        return await _refuse(message, error.code)

    def check(partition: Partition, marker: TransactionMarker) -> None:
        if marker.producer_id in open_:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"a coordinator knows the open transaction of producer {marker.producer_id}",
            )
        place = partition.topic, partition.index, marker.producer_id
        if place not in seen or seen[place] != _look(partition, marker.producer_id):
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"producer {marker.producer_id} has written to {partition} meanwhile",
            )
        _check_epochs(partition, marker)

    return await worker.marker_writer.write(message, check)


def _check_epochs(partition: Partition, marker: TransactionMarker) -> None:
    """Raise KafkaError if the partition has not seen the marker's epochs; the log has the rest."""
    entry = partition.log.producers.entries.get(marker.producer_id)
    if entry is None:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"{partition} does not know producer {marker.producer_id}",
        )
    if marker.producer_epoch > entry.epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {marker.producer_id} has epoch {entry.epoch} in {partition}, the marker has"
            f" epoch {marker.producer_epoch}",
        )
    if marker.coordinator_epoch > max(entry.coordinator_epoch, 0):
        raise KafkaError(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"the last marker of producer {marker.producer_id} in {partition} is of coordinator"
            f" epoch {entry.coordinator_epoch}, this one of {marker.coordinator_epoch}",
        )


def _has_too_many_rows(message: WriteTxnMarkersRequest) -> bool:
    count = 0
    for marker in message.markers:
        count += 1 + len(marker.topics)
        if count > MAX_ROWS:
            return True
        count += sum([len(topic.partition_indexes) for topic in marker.topics])
    return count > MAX_ROWS


def _look(partition: Partition, producer_id: int) -> _Seen | None:
    entry = partition.log.producers.entries.get(producer_id)
    if entry is None:
        return None
    last_offset = entry.batches[-1].last_offset if entry.batches else NO_OFFSET
    return entry.epoch, entry.transaction_first_offset, last_offset


async def _refuse(message: WriteTxnMarkersRequest, code: ErrorCode) -> WriteTxnMarkersResponse:
    """Return the same error for all partitions."""
    response = WriteTxnMarkersResponse()
    for marker in message.markers:
        of_marker = WritableTxnMarkerResult(producer_id=marker.producer_id)
        response.markers.append(of_marker)
        await pause()
        for topic in marker.topics:
            results = await in_pieces(
                topic.partition_indexes,
                lambda index: WritableTxnMarkerPartitionResult(
                    partition_index=index, error_code=code
                ),
            )
            of_marker.topics.append(
                WritableTxnMarkerTopicResult(name=topic.name, partitions=results)
            )
            await pause()
    return response
