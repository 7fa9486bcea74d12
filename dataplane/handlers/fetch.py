"""Fetch: slices of segment files, up to the high watermark, waiting for more where asked to.

An answer holds no records, only where they lie: `connection` copies small slices and hands large
ones to sendfile. A fetch that finds less than `min_bytes` watches its partitions and reads again
when enough has come, its time is over, or something else happened to one of them.

Fetch sessions (KIP-227) are not kept: session id 0 tells clients so, and they send whole requests.
"""

from collections.abc import Coroutine
from typing import Any, Final, TypeAlias

import trio

from dataplane.log.partition_log import LogSlice
from dataplane.partition import NO_ERROR, FetchWaiter, Partition
from dataplane.worker import Request, Worker
from metaquorum.runtime import StorageError
from wire.errors import ErrorCode, KafkaError
from wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

_TOPIC_IDS_SINCE: Final = 13
_READ_COMMITTED: Final = 1
_DEBUG_REPLICA: Final = -2
# A client that asks to wait for longer is answered, emptily, after this.
MAX_WAIT_MS: Final = 5 * 60 * 1000

_Seen: TypeAlias = tuple[int, int, bool]
Asked: TypeAlias = list[tuple[FetchTopic, FetchPartition, Partition | None, ErrorCode]]


def handle_fetch(
    worker: Worker, request: Request, message: FetchRequest
) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
    if message.session_id:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    asked = _resolve(worker, request.version, message)
    found = _Found(worker, message, asked)
    # More than max_bytes never comes, however long we wait.
    min_bytes = min(message.min_bytes, message.max_bytes, worker.fetch_max_bytes)
    if (
        found.size_bytes >= min_bytes
        or found.must_answer
        or message.max_wait_ms <= 0
        or not asked
        or worker.stopping
    ):
        return found.response(message, asked)
    missing_bytes = min_bytes - found.size_bytes
    return _wait_for_more(worker, request, message, missing_bytes, _watched(asked))


def _watched(asked: Asked) -> dict[Partition, _Seen]:
    """The partitions of a fetch as they were when it was looked at."""
    return {p: _seen(p) for _, _, p, _ in asked if p is not None}


def _seen(partition: Partition) -> _Seen:
    return partition.high_watermark, partition.leader_epoch, partition.is_served


async def _wait_for_more(
    worker: Worker,
    request: Request,
    message: FetchRequest,
    missing_bytes: int,
    watched: dict[Partition, _Seen],
) -> FetchResponse:
    waiter = FetchWaiter(missing_bytes)
    # Earlier answers of this connection were sent in between, which may have taken long.
    if worker.stopping or any(_seen(partition) != seen for partition, seen in watched.items()):
        waiter.wake()
    for partition in watched:
        partition.waiters.add(waiter)
    worker.fetch_waiters.add(waiter)
    wait_ms = min(message.max_wait_ms, MAX_WAIT_MS)
    try:
        with trio.move_on_after(wait_ms / 1000):
            await waiter.woken.wait()
    finally:
        worker.fetch_waiters.discard(waiter)
        for partition in watched:
            partition.waiters.discard(waiter)
    asked = _resolve(worker, request.version, message)
    return _Found(worker, message, asked).response(message, asked)


def _resolve(worker: Worker, version: int, message: FetchRequest) -> Asked:
    by_id = version >= _TOPIC_IDS_SINCE
    asked: Asked = []
    for topic in message.topics:
        for data in topic.partitions:
            partition: Partition | None = None
            code = NO_ERROR
            try:
                partition = (
                    worker.partitions.by_id(topic.topic_id, data.partition)
                    if by_id
                    else worker.partitions.by_name(topic.topic, data.partition)
                )
            except KafkaError as error:
                code = error.code
            asked.append((topic, data, partition, _error(partition, data, code)))
    return asked


def _error(partition: Partition | None, data: FetchPartition, code: ErrorCode) -> ErrorCode:
    if partition is None:
        return code
    return partition.leader_error(data.current_leader_epoch)


class _Found:
    """What can be read for a fetch now: one row per partition asked for."""

    __slots__ = ("answers", "must_answer", "size_bytes", "worker")

    def __init__(self, worker: Worker, message: FetchRequest, asked: Asked) -> None:
        self.worker = worker
        self.size_bytes = 0
        # An error or a diverging log is told at once; and nothing comes to a full answer, or to
        # what was read of an older segment.
        self.must_answer = False
        self.answers: list[PartitionData] = []
        if message.replica_state is not None:
            replica_id = message.replica_state.replica_id
        else:
            replica_id = message.replica_id
        committed = message.isolation_level == _READ_COMMITTED
        left = min(message.max_bytes, worker.fetch_max_bytes)
        for _, data, partition, code in asked:
            if partition is None or code is not NO_ERROR:
                answer = self._refuse(data, partition, code)
            elif replica_id >= 0:
                answer = self._refuse(data, partition, ErrorCode.REPLICA_NOT_AVAILABLE)
            else:
                end_offset = (
                    partition.log.log_end_offset
                    if replica_id == _DEBUG_REPLICA
                    else partition.last_stable_offset
                    if committed
                    else partition.high_watermark
                )
                answer = self._read(data, partition, end_offset, left)
                if committed:
                    answer.aborted_transactions = []
            left -= answer.records.size_bytes if isinstance(answer.records, LogSlice) else 0
            self.answers.append(answer)

    def _refuse(
        self, data: FetchPartition, partition: Partition | None, code: ErrorCode
    ) -> PartitionData:
        self.must_answer = True
        answer = PartitionData(
            partition_index=data.partition,
            error_code=code,
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )
        if partition is not None and code in _LEADER_ELSEWHERE:
            answer.current_leader = LeaderIdAndEpoch(
                leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
            )
        return answer

    def _read(
        self, data: FetchPartition, partition: Partition, end_offset: int, left: int
    ) -> PartitionData:
        log = partition.log
        answer = PartitionData(
            partition_index=data.partition,
            error_code=0,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=None,
            records=b"",
        )
        try:
            if data.last_fetched_epoch >= 0 and (diverging := _diverging(partition, data)):
                self.must_answer = True
                answer.diverging_epoch = diverging
                return answer
            piece = log.read(
                data.fetch_offset,
                min(data.partition_max_bytes, left),
                end_offset,
                # The first partition with records gives a batch, however large it is (KIP-74).
                min_one=not self.size_bytes,
            )
        except KafkaError as error:
            return self._refuse(data, partition, error.code)
        except StorageError as error:
            self.worker.partition_failed(partition, error)
            return self._refuse(data, partition, ErrorCode.KAFKA_STORAGE_ERROR)
        if piece.size_bytes:
            self.size_bytes += piece.size_bytes
            answer.records = piece
            if data.fetch_offset < log.active_segment_offset:
                self.must_answer = True
        elif data.fetch_offset < end_offset:
            self.must_answer = True
        return answer

    def response(self, message: FetchRequest, asked: Asked) -> FetchResponse:
        responses: list[FetchableTopicResponse] = []
        last: FetchTopic | None = None
        for (topic, _, _, _), answer in zip(asked, self.answers, strict=True):
            if topic is not last:
                last = topic
                responses.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id))
            responses[-1].partitions.append(answer)
        response = FetchResponse(responses=responses)
        if self.must_answer and any(answer.current_leader for answer in self.answers):
            response.node_endpoints = [
                NodeEndpoint(node_id=w.worker_id, host=w.host, port=w.port, rack=w.rack)
                for w in self.worker.live_workers()
            ]
        return response


_LEADER_ELSEWHERE: Final = frozenset(
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
)


def _diverging(partition: Partition, data: FetchPartition) -> EpochEndOffset | None:
    """Where the asker's log parts from ours, by the last epoch it has (KIP-595).

    KafkaError (OFFSET_OUT_OF_RANGE) for an epoch of which nothing is known here.
    """
    epoch, end_offset = partition.log.epochs.end_offset_for(
        data.last_fetched_epoch, partition.log.log_end_offset
    )
    if epoch < 0:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition} knows no epoch {data.last_fetched_epoch}"
        )
    if epoch < data.last_fetched_epoch or end_offset < data.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None
