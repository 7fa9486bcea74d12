"""The outcome of a produce request for each partition, and the condition for its response.

appended, acks=all           all in-sync replicas have the records, at least min.insync.replicas
out of order sequence        the quorum confirms that this worker is still the leader
producer id not given out    this worker has the metadata of now
any other error              none: the response is sent at once
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeAlias

import trio

from metaquorum.dataplane.instruments.error_counts import ErrorCounts
from metaquorum.dataplane.log.partition_log import AppendResult
from metaquorum.dataplane.log.segments.files import DiskFullError
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.delayed import DelayedResponse, Timers
from metaquorum.dataplane.network.worker_addresses import live_workers
from metaquorum.dataplane.partition.batch_validation import InvalidRecordsError
from metaquorum.dataplane.partition.partition import NotLeaderOrFollowerError, Partition
from metaquorum.dataplane.quotas.producer_admission import UnknownProducerIdError
from metaquorum.dataplane.scheduling.time_slices import at_once, for_each_of, in_pieces
from metaquorum.dataplane.worker.capabilities import (
    FailsPartitions,
    HasClock,
    HasImage,
    HasQuotas,
    HasWorkerId,
)
from metaquorum.dataplane.worker.leadership_check import LeadershipCheck, LeadershipQuestion
from metaquorum.runtime import StorageError, is_out_of_descriptors
from metaquorum.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.protocol import request_form
from metaquorum.wire.protocol.apis import APIS, ApiKey, RequestHeader
from metaquorum.wire.protocol.headers import encode_response
from metaquorum.wire.protocol.produce_one import Appended

_API: Final = APIS[ApiKey.PRODUCE]

Answer: TypeAlias = PartitionProduceResponse
# Function that starts the coroutine of a response; not started yet, so that it can be dropped.
Pending: TypeAlias = Callable[[], Coroutine[Any, Any, Answer]]
Answers: TypeAlias = list["tuple[TopicProduceData, list[Answer | Pending]]"]

# Paths of this machine are in the log, not in responses to clients.
_NO_DESCRIPTOR: Final = (
    "the worker has no file descriptor left for the partition's log; it accepts records again when"
    " it has one"
)
_NOT_WRITTEN: Final = "disk error while accessing the partition's log"
_DISK_FULL: Final = (
    "no space left on the disk of the partition's log; it accepts records again when space is freed"
)


class ReportsFailures(HasWorkerId, FailsPartitions, Protocol):
    """Capability to set a partition offline after a disk failure, and name another leader."""


class ChecksLeadership(Protocol):
    """Capability to ask the quorum whether this worker is still the leader."""

    @property
    def leadership_check(self) -> LeadershipCheck: ...


class RejectsAfterCheck(ReportsFailures, ChecksLeadership, Protocol):
    """Capability to report a failure after the quorum has confirmed the leader."""


class AnswersProduce(ReportsFailures, HasImage, HasQuotas, Protocol):
    """Capability to report the outcome of each partition, and count the request against quotas."""

    @property
    def errors(self) -> ErrorCounts | None: ...


class DelaysProduce(ChecksLeadership, HasQuotas, Protocol):
    """Capability to wait for replicas, the quorum or the request's time limit."""

    @property
    def timers(self) -> Timers: ...


def success(partition: Partition, result: AppendResult) -> Answer:
    return PartitionProduceResponse(
        index=partition.index,
        base_offset=result.first_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=partition.log.log_start_offset,
    )


def refused(index: int, code: ErrorCode, reason: str) -> Answer:
    answer = PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=reason
    )
    if code is ErrorCode.INVALID_RECORD or code is ErrorCode.INVALID_TIMESTAMP:
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message=reason)
        ]
    return answer


def failed(
    worker: ReportsFailures,
    partition: Partition | None,
    index: int,
    error: KafkaError | StorageError,
) -> Answer:
    if isinstance(error, StorageError):
        assert partition is not None
        worker.partition_failed(partition, error)
        reason = _NO_DESCRIPTOR if is_out_of_descriptors(error) else _NOT_WRITTEN
        if isinstance(error, DiskFullError):
            reason = _DISK_FULL
        return refused(index, ErrorCode.KAFKA_STORAGE_ERROR, reason)
    answer = refused(index, error.code, error.message)
    if isinstance(error, InvalidRecordsError):
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=number, batch_index_error_message=text)
            for number, text in error.records
        ]
    known = error if isinstance(error, NotLeaderOrFollowerError) else partition
    if (
        error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        and known is not None
        and known.leader_id != worker.worker_id
    ):
        answer.current_leader = LeaderIdAndEpoch(
            leader_id=known.leader_id, leader_epoch=known.leader_epoch
        )
    return answer


def topic_response(answers: tuple[TopicProduceData, list[Any]]) -> TopicProduceResponse:
    topic, of_topic = answers
    return TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id, partition_responses=of_topic
    )


async def response_of(worker: HasImage, client: Client, answers: Answers) -> ProduceResponse:
    """Return the response for complete answers; add workers' endpoints if it names a leader."""
    response = ProduceResponse(responses=(await in_pieces(answers, topic_response)))
    leaders: list[LeaderIdAndEpoch] = []

    def look(_: TopicProduceResponse, answer: PartitionProduceResponse) -> None:
        if not leaders and answer.current_leader is not None:
            leaders.append(answer.current_leader)

    await for_each_of(response.responses, lambda topic: topic.partition_responses, look)
    if leaders:
        response.node_endpoints = [
            NodeEndpoint(node_id=w.worker_id, host=w.host, port=w.port, rack=w.rack)
            for w in live_workers(worker.image, client.listener)
        ]
    return response


class Outcome:
    """The outcome of each partition of a request, and the client to answer."""

    __slots__ = ("_appended", "_client", "_failed", "_header", "_size_bytes", "_topic", "_worker")

    def __init__(
        self,
        worker: AnswersProduce,
        client: Client,
        header: RequestHeader,
        size_bytes: int,
        topic: bytes,
        appended: list[Appended],
    ) -> None:
        """Create the outcome; `appended` has all partitions in request order, also failed ones."""
        self._worker = worker
        self._client = client
        self._header = header
        self._size_bytes = size_bytes
        self._topic = topic
        self._appended = appended
        self._failed: dict[int, tuple[Partition, Answer]] = {}  # by index in `appended`

    def fail(self, number: int, partition: Partition, error: KafkaError | StorageError) -> None:
        answer = failed(self._worker, partition, partition.index, error)
        if self._worker.errors is not None:
            self._worker.errors.add(ApiKey.PRODUCE, answer.error_code)
        self._failed[number] = partition, answer

    def answer(self) -> bytes:
        """Return the whole response frame; count the request against the quotas."""
        worker, header = self._worker, self._header
        version, correlation_id = header.api_version, header.correlation_id
        throttle_ms = 0
        if worker.quotas.is_on:
            throttle_ms = worker.quotas.answering(self._client, header.client_id, self._size_bytes)
        if self._failed:
            response = self._by_tables()
            response.throttle_time_ms = throttle_ms
            return encode_response(_API, version, correlation_id, response)
        return request_form.encode_one(
            version, correlation_id, self._topic, self._appended, throttle_ms
        )

    def _by_tables(self) -> ProduceResponse:
        partition, _ = next(iter(self._failed.values()))
        asked = TopicProduceData(name=partition.topic, topic_id=partition.topic_id)
        answers: list[Answer | Pending] = [
            Answer(index=index, base_offset=base, log_append_time_ms=time, log_start_offset=start)
            for index, base, time, start in self._appended
        ]
        for number, (_, answer) in self._failed.items():
            answers[number] = answer
        return at_once(response_of(self._worker, self._client, [(asked, answers)]))


def _check_committed(partition: Partition, leader_epoch: int, end_offset: int) -> None:
    """Check that at least min.insync.replicas, and all in-sync replicas, have the records.

    The records are those before `end_offset`. Raises KafkaError otherwise, or if the partition has
    a new leader.
    """
    if not partition.leads_since(leader_epoch):
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition} has a new leader")
    if partition.high_watermark < end_offset:
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"not all in-sync replicas of {partition} had the records in time",
        )
    if len(partition.isr) < partition.least_isr:
        raise KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"{len(partition.isr)} in-sync replicas of {partition}, fewer than required: "
            f"min.insync.replicas is {partition.config.min_insync_replicas}",
        )


class Commit:
    """The deadline of a request with acks=all, by which all in-sync replicas must have it."""

    __slots__ = ("_deadline", "_worker")

    def __init__(self, worker: HasClock, timeout_ms: int) -> None:
        self._worker = worker
        self._deadline = worker.clock.monotonic() + max(0, timeout_ms) / 1000

    async def wait(self, partition: Partition, result: AppendResult, leader_epoch: int) -> None:
        """Wait until all in-sync replicas have the records.

        Raises KafkaError after the deadline, or if the leader changed. The records are then in this
        worker's log, but a new leader may truncate them.
        """
        end_offset = result.last_offset + 1
        if partition.high_watermark < end_offset and partition.leads_since(leader_epoch):
            woken = trio.Event()
            waiter = partition.wait_committed(end_offset, woken.set)
            with trio.move_on_after(max(0.0, self._deadline - self._worker.clock.monotonic())):
                await woken.wait()
            partition.stop_waiting(waiter)
        _check_committed(partition, leader_epoch, end_offset)


# Index in the request, partition, leader epoch of the append, end offset.
Uncommitted: TypeAlias = tuple[int, Partition, int, int]
# Index in the request, partition, leader epoch of the refusal, error.
Refusal: TypeAlias = tuple[int, Partition, int, KafkaError | StorageError]


class DelayedProduce(DelayedResponse):
    """The delayed response to a request with acks=all, ready once all in-sync replicas have it.

    With a sequence out of order, it is ready once the quorum has confirmed the leader. Later
    requests of the connection are appended meanwhile, so that followers fetch all of them at once;
    not if quotas are on, because a quota must throttle a client before its next request.
    """

    __slots__ = (
        "_doubts",
        "_missing",
        "_outcome",
        "_question",
        "_timer",
        "_uncommitted",
        "_waiters",
    )

    def __init__(
        self,
        worker: DelaysProduce,
        uncommitted: list[Uncommitted],
        doubts: list[Refusal],
        outcome: Outcome,
        timeout_ms: int,
    ) -> None:
        super().__init__(allows_pipelining=not worker.quotas.is_on)
        self._outcome = outcome
        self._uncommitted = uncommitted
        self._doubts = doubts
        self._question = worker.leadership_check.ask(self._one_done) if doubts else None
        self._missing = len(uncommitted) + (self._question is not None)
        self._waiters = [
            (partition, partition.wait_committed(end_offset, self._one_done))
            for _, partition, _, end_offset in uncommitted
        ]
        self._timer = worker.timers.call_after(max(0, timeout_ms) / 1000, self.ready)

    def _one_done(self) -> None:
        self._missing -= 1
        if not self._missing:
            self.ready()

    def complete(self) -> bytes:
        self.cancel()
        for number, partition, leader_epoch, end_offset in self._uncommitted:
            try:
                _check_committed(partition, leader_epoch, end_offset)
            except KafkaError as error:
                self._outcome.fail(number, partition, error)
        for number, partition, leader_epoch, doubted in self._doubts:
            assert self._question is not None
            reported = _after_check(self._question, partition, leader_epoch, doubted)
            self._outcome.fail(number, partition, reported)
        return self._outcome.answer()

    def cancel(self) -> None:
        self._timer.cancel()
        if self._question is not None:
            self._question.cancel()
        for partition, waiter in self._waiters:
            partition.stop_waiting(waiter)
        self._waiters.clear()


def unchanged(answer: bytes) -> bytes:
    return answer


def is_doubtful(partition: Partition, error: KafkaError | StorageError) -> bool:
    """Return whether the error is only valid if this worker is still the leader, or has all
    metadata."""
    return isinstance(error, UnknownProducerIdError) or (
        partition.leader_state is not None
        and isinstance(error, KafkaError)
        and error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )


def _after_check(
    question: LeadershipQuestion,
    partition: Partition,
    leader_epoch: int,
    error: KafkaError | StorageError,
) -> KafkaError | StorageError:
    """Return the error to report after the quorum has answered."""
    if not (question.is_current and partition.leads_since(leader_epoch)):
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition} may have a new leader")
    if isinstance(error, UnknownProducerIdError):
        return error.settled(is_caught_up=question.is_caught_up)
    return error


async def reject_after_check(
    worker: RejectsAfterCheck,
    partition: Partition,
    leader_epoch: int,
    error: KafkaError | StorageError,
) -> Answer:
    question = await _answered(worker)
    reported = _after_check(question, partition, leader_epoch, error)
    return failed(worker, partition, partition.index, reported)


async def settled(worker: ChecksLeadership, error: UnknownProducerIdError) -> KafkaError:
    """Return the error to report, once this worker has the metadata of now."""
    return error.settled(is_caught_up=(await _answered(worker)).is_caught_up)


async def _answered(worker: ChecksLeadership) -> LeadershipQuestion:
    answered = trio.Event()
    question = worker.leadership_check.ask(answered.set)
    await answered.wait()
    return question
