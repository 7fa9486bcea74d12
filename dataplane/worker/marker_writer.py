"""Markers: the end of transactions in the partitions that this worker leads (WriteTxnMarkers).

    partition of a client's topic       the marker is appended to its log
    partition of `__consumer_offsets`   the coordinator of groups appends it, and applies offsets
    any other internal topic            refused: it belongs to its coordinator

Like a produce with acks=all, a marker needs min.insync.replicas, and is answered once all in-sync
replicas have it. All markers of a request are appended before the first wait. A coordinator that
gets no answer sends a marker again; that appends another one, which ends nothing.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import trio

from metaquorum.dataplane.log.segments.config import NEVER
from metaquorum.dataplane.log.segments.markers import MARKER_BYTES
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, TimeSlicer, pause
from metaquorum.dataplane.worker.capabilities import PartitionLookup
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS, INTERNAL_TOPICS, check_writable
from metaquorum.runtime import Clock, Disk, StorageError
from metaquorum.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

# Seconds that replicas have to get the markers of a request.
COMMIT_S: Final = 10.0

# Topic name and partition index.
Place: TypeAlias = tuple[str, int]
# Raises KafkaError if the marker must not be appended to the partition now.
Check = Callable[[Partition, TransactionMarker], None]

# The coordinator of transactions knows the errors of a partition leader only. As in Kafka.
_OF_GROUPS: Final = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
)


class EndsGroupTransactions(Protocol):
    def append_marker(
        self, index: int, marker: TransactionMarker, done: Callable[[ErrorCode], object]
    ) -> object:
        """Append the marker to the partition of `__consumer_offsets`; then call `done`."""


class _Row:
    """One partition of the request, and its row in the response."""

    __slots__ = ("marker", "partition", "result", "topic")

    def __init__(
        self, topic: str, marker: TransactionMarker, result: WritableTxnMarkerPartitionResult
    ) -> None:
        self.topic = topic
        self.marker = marker
        self.result = result
        self.partition: Partition | None = None


class _Appended(NamedTuple):
    """A marker that may not be replicated yet."""

    row: _Row
    partition: Partition
    leader_epoch: int
    end_offset: int


class _Outstanding:
    """Number of markers that are not done yet; wakes one task when there are none."""

    def __init__(self) -> None:
        self.count = 0
        self._none_left = trio.Event()

    def one_done(self) -> None:
        self.count -= 1
        if not self.count:
            self._none_left.set()

    async def wait_for_all(self) -> None:
        if self.count:
            await self._none_left.wait()


class MarkerWriter:
    """Writer of markers to the partitions of one worker."""

    def __init__(
        self,
        partitions: PartitionLookup,
        groups: EndsGroupTransactions,
        clock: Clock,
        disk: Disk,
        slicer: TimeSlicer,
        failed: Callable[[Partition, StorageError], None],
    ) -> None:
        """Create the writer; `failed` takes a partition offline whose log directory failed."""
        self._partitions = partitions
        self._groups = groups
        self._clock = clock
        self._disk = disk
        self._slicer = slicer
        self._failed = failed

    async def write(
        self, request: WriteTxnMarkersRequest, check: Check | None = None
    ) -> WriteTxnMarkersResponse:
        """Append the markers and wait for the replicas; an error is that of one partition."""
        response, rows = await self._rows(request)
        done: list[_Appended] = []
        waiting: list[_Row] = []
        groups = _Outstanding()
        groups.count = 1  # not done before the last marker was sent
        for number, row in enumerate(rows, 1):
            if row.topic == CONSUMER_OFFSETS:
                self._end_in_groups(row, groups, check)
            elif not self._append(row, done, check):
                waiting.append(row)
            if number % PIECE_ROWS == 0:
                await pause()
        groups.one_done()
        for row in waiting:  # behind a large append, or a change of the partition
            assert row.partition is not None
            async with row.partition.appending:
                self._append(row, done, check, holds_lock=True)
        with trio.move_on_after(COMMIT_S) as limit:
            await self._flush(done)
            await self._wait_committed(done)
            await groups.wait_for_all()
        for appended in done:
            _settle(appended)
        if limit.cancelled_caught and groups.count:
            for row in rows:
                if row.topic == CONSUMER_OFFSETS and row.result.error_code == _UNANSWERED:
                    row.result.error_code = ErrorCode.REQUEST_TIMED_OUT
        return response

    def write_now(
        self, marker: TransactionMarker, places: Sequence[Place]
    ) -> list[ErrorCode] | None:
        """Append the marker to each partition and return the errors, in the order of `places`.

        Return None, without an append, if this worker does not lead one of the partitions, or one
        is internal, is busy, or has replicas or a flush to wait for: `write` is for those.
        """
        partitions: list[Partition] = []
        for topic, index in places:
            if topic in INTERNAL_TOPICS:
                return None
            try:
                partition = self._partitions.by_name(topic, index)
            except KafkaError:
                return None
            log = partition.log
            if (
                partition.leader_state is not None
                or partition.leader_id != partition.worker_id
                or partition.offline is not None
                or partition.appending.locked()
                or (
                    partition.config.log.flush_messages != NEVER
                    and partition.config.log.flush_messages <= log.unflushed_records + 1
                )
            ):
                return None
            partitions.append(partition)
        now_ms = self._clock.now_ms()
        return [self._append_to(partition, marker, now_ms) for partition in partitions]

    async def _rows(
        self, request: WriteTxnMarkersRequest
    ) -> tuple[WriteTxnMarkersResponse, list[_Row]]:
        response = WriteTxnMarkersResponse()
        rows: list[_Row] = []
        for asked in request.markers:
            marker = TransactionMarker(
                asked.producer_id,
                asked.producer_epoch,
                asked.coordinator_epoch,
                asked.transaction_result,
                asked.transaction_version,
            )
            of_marker = WritableTxnMarkerResult(producer_id=asked.producer_id)
            response.markers.append(of_marker)
            for topic in asked.topics:
                of_topic = WritableTxnMarkerTopicResult(name=topic.name)
                of_marker.topics.append(of_topic)
                await pause()
                for index in topic.partition_indexes:
                    result = WritableTxnMarkerPartitionResult(partition_index=index)
                    of_topic.partitions.append(result)
                    rows.append(_Row(topic.name, marker, result))
                    if len(rows) % PIECE_ROWS == 0:
                        await pause()
        return response, rows

    def _append(
        self, row: _Row, done: list[_Appended], check: Check | None, *, holds_lock: bool = False
    ) -> bool:
        """Append one marker. Return False if it must wait for the partition."""
        try:
            partition = row.partition = self._find(row)
        except KafkaError as error:
            row.result.error_code = error.code
            return True
        if partition.appending.locked() and not holds_lock:
            return False
        leader_epoch = partition.leader_epoch
        now_ms = self._clock.now_ms()
        code = row.result.error_code = self._append_to(partition, row.marker, now_ms, check)
        if not code:
            done.append(_Appended(row, partition, leader_epoch, partition.log.log_end_offset))
        return True

    def _append_to(
        self,
        partition: Partition,
        marker: TransactionMarker,
        now_ms: int,
        check: Check | None = None,
    ) -> ErrorCode:
        try:
            partition.check_append(_ALL_ACKS)
            if check is not None:
                check(partition, marker)
            partition.log.append_marker(marker, partition.leader_epoch, now_ms)
            partition.appended(MARKER_BYTES)
        except KafkaError as error:
            return error.code
        except StorageError as error:
            self._failed(partition, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return _NO_ERROR

    def _find(self, row: _Row) -> Partition:
        if row.topic != CONSUMER_OFFSETS:
            check_writable(row.topic)
        try:
            return self._partitions.by_name(row.topic, row.result.partition_index)
        except KafkaError as error:  # as in Kafka, also if the replica is elsewhere or offline
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error.message) from None

    def _end_in_groups(self, row: _Row, groups: _Outstanding, check: Check | None) -> None:
        try:
            partition = self._find(row)
            partition.check_append(_ALL_ACKS)
            if check is not None:
                check(partition, row.marker)
        except KafkaError as error:
            row.result.error_code = error.code
            return

        def ended(code: ErrorCode) -> None:
            if code in _OF_GROUPS:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            row.result.error_code = code
            groups.one_done()

        groups.count += 1
        row.result.error_code = _UNANSWERED
        self._groups.append_marker(row.result.partition_index, row.marker, ended)

    async def _flush(self, done: list[_Appended]) -> None:
        for row, partition, _, _ in done:
            if partition.log.config.flush_messages <= partition.log.unflushed_records:
                try:
                    await partition.flush(self._disk)
                except StorageError as error:
                    self._failed(partition, error)
                    row.result.error_code = ErrorCode.KAFKA_STORAGE_ERROR

    async def _wait_committed(self, done: list[_Appended]) -> None:
        left = _Outstanding()
        waiters = []
        try:
            for number, (_, partition, leader_epoch, end_offset) in enumerate(done, 1):
                if partition.high_watermark < end_offset and partition.leads_since(leader_epoch):
                    left.count += 1
                    waiter = partition.wait_committed(end_offset, left.one_done)
                    waiters.append((partition, waiter))
                if number % PIECE_ROWS == 0:
                    # A marker that is replicated during the pause must not end the wait.
                    left.count += 1
                    await pause()
                    left.count -= 1
            await left.wait_for_all()
        finally:
            for partition, waiter in waiters:
                partition.stop_waiting(waiter)


_ALL_ACKS: Final = -1
_NO_ERROR: Final = ErrorCode.NONE  # Python 3.11 looks up members of an enum slowly
# Until the coordinator of groups has answered.
_UNANSWERED: Final = ErrorCode.UNKNOWN_SERVER_ERROR


def _settle(appended: _Appended) -> None:
    """Set the error of a marker that was appended, but is not on enough replicas."""
    row, partition, leader_epoch, end_offset = appended
    if row.result.error_code:
        return
    if not partition.leads_since(leader_epoch):
        row.result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif partition.high_watermark < end_offset:
        row.result.error_code = ErrorCode.REQUEST_TIMED_OUT
    elif len(partition.isr) < partition.least_isr:
        row.result.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
