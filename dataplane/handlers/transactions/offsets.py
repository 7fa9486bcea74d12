"""TxnOffsetCommit: offsets of a group that are committed by the marker of a transaction.

    version    the client                                    before the append
    0-2        names no member                               the coordinator of the transaction is
    3, 4       names member and generation (KIP-447)         asked whether the group is part of it
    5          of transaction.version 2 (KIP-890)            it adds the group to the transaction

Only the first commit of a transaction in a partition of `__consumer_offsets` asks. A marker that
arrives before the append ends the verification, and the append is refused. Errors as in Kafka:

    the group's coordinator is loading, below version 2    COORDINATOR_NOT_AVAILABLE
    the transaction's coordinator did not answer           COORDINATOR_LOAD_IN_PROGRESS, retried
    the group is not part of the transaction               TRANSACTION_ABORTABLE; INVALID_TXN_STATE
                                                           below version 4
    another producer has the transactional id              INVALID_PRODUCER_EPOCH

A commit of many offsets is several batches: the marker makes them one.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

import trio

from metaquorum.dataplane.coordinators.group.group_shard import (
    CommitRequest,
    GroupShard,
    OffsetToCommit,
)
from metaquorum.dataplane.coordinators.shard import TransactionOf, Write
from metaquorum.dataplane.handlers.groups.asking import Answer, GroupResponse
from metaquorum.dataplane.handlers.groups.parts import Codes, WritesInParts, write_in_parts
from metaquorum.dataplane.handlers.produce_outcome import ChecksLeadership, settled
from metaquorum.dataplane.handlers.produce_transactions import (
    RETRIES_S,
    RETRY_S,
    VerifiesTransactions,
)
from metaquorum.dataplane.log.segments.producers import ProducerStateTable
from metaquorum.dataplane.log.segments.verification import NOT_REQUIRED, Verification
from metaquorum.dataplane.quotas.producer_admission import UnknownProducerIdError
from metaquorum.dataplane.scheduling.time_slices import Steps, each_of, in_pieces
from metaquorum.dataplane.worker.capabilities import HasQuotas
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.feature_levels import has_level
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.quorum.controller.internal_topics import TRANSACTIONS_LEVEL
from metaquorum.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.schema.message import Message

_KNOWS_LOADING_SINCE: Final = 2  # KAFKA-7296
_KNOWS_ABORTABLE_SINCE: Final = 4  # KIP-890
_ADDS_SINCE: Final = 5
# Errors as the client knows them, of the log and of the transaction's coordinator.
_REPORTED: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
# Rows of a request with the error of each, NONE if its offset may be committed.
_Checked: TypeAlias = list[tuple[TxnOffsetCommitRequestTopic, list[ErrorCode]]]


class CommitsInTransactions(
    VerifiesTransactions, WritesInParts, HasQuotas, ChecksLeadership, Protocol
):
    """Capability to commit offsets of groups in transactions."""


async def handle_txn_offset_commit(
    worker: CommitsInTransactions, request: Request, message: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    commit = _Commit(worker, request, message)
    checked = await commit.checked()
    if not commit.offsets:
        return await commit.response(checked, iter(()))
    try:
        return await _verify_and_commit(worker, commit, checked)
    finally:
        commit.cancel()


async def _verify_and_commit(
    worker: CommitsInTransactions, commit: "_Commit", checked: _Checked
) -> TxnOffsetCommitResponse:
    try:
        producer = await commit.verified()
        await commit.admit()
    except KafkaError as error:
        refused = [error.code] * len(commit.offsets)
        worker.slicer.discard(commit.offsets)
        return await commit.response(checked, iter(refused))
    answer = await commit.written(checked, producer)
    if isinstance(answer, GroupResponse):
        ready = trio.Event()
        answer.on_ready(ready.set)
        await ready.wait()
        done = answer.complete()
        answer = done if isinstance(done, Message) else await done
    assert isinstance(answer, TxnOffsetCommitResponse)
    return answer


class _Commit:
    """One TxnOffsetCommit."""

    def __init__(
        self, worker: CommitsInTransactions, request: Request, message: TxnOffsetCommitRequest
    ) -> None:
        self.offsets: list[OffsetToCommit] = []
        self._worker = worker
        self._client = request.client
        self._version = request.version
        self._message = message
        # The verification in progress, and the producers of the group's partition.
        self._verification: tuple[ProducerStateTable, Verification] | None = None

    def checked(self) -> Steps[_Checked]:
        """Collect the offsets of known partitions; return the errors of all rows."""
        image = self._worker.image
        is_supported = has_level(image, TRANSACTIONS_LEVEL)

        def check(
            topic: TxnOffsetCommitRequestTopic, row: TxnOffsetCommitRequestPartition
        ) -> ErrorCode:
            if not is_supported:
                return ErrorCode.UNSUPPORTED_VERSION
            known = image.topic(topic.name)
            if known is None or not 0 <= row.partition_index < len(known.partitions):
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self.offsets.append(
                OffsetToCommit(
                    topic.name,
                    known.topic_id,
                    row.partition_index,
                    row.committed_offset,
                    row.committed_leader_epoch,
                    row.committed_metadata or "",
                )
            )
            return ErrorCode.NONE

        return each_of(self._message.topics, lambda topic: topic.partitions, check)

    async def verified(self) -> TransactionOf:
        """Return the transaction of the commit. Raises KafkaError unless the group is part of it.

        The coordinator is not asked if the transaction is already open in the group's partition.
        """
        message, worker = self._message, self._worker
        if not message.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        producer_id, epoch = message.producer_id, message.producer_epoch
        if producer_id < 0 or epoch < 0:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "there is no producer id or no epoch"
            )
        adds = self._version >= _ADDS_SINCE
        give_up = worker.clock.monotonic() + RETRIES_S
        while True:
            verification = self._begin()
            if verification is None or verification is NOT_REQUIRED:
                return TransactionOf(producer_id, epoch, verification)
            code = await self._ask(adds=adds)
            may_retry = adds and worker.clock.monotonic() < give_up
            if code:
                # The coordinator completes the producer's last transaction.
                if not may_retry or code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    raise KafkaError(code, "the transaction's coordinator refused the group")
                await worker.clock.sleep_until(worker.clock.monotonic() + RETRY_S)
            elif not may_retry or not self._has_ended(verification):
                return TransactionOf(producer_id, epoch, verification)
            # The marker of that transaction ends this verification, perhaps before the answer. Were
            # it a later one, the coordinator would refuse the producer's epoch now.

    def _begin(self) -> Verification | None:
        """Begin the verification; None if the transaction is open in the group's partition."""
        message, worker = self._message, self._worker
        producer_id, epoch = message.producer_id, message.producer_epoch
        producers = self._producers()
        adds = self._version >= _ADDS_SINCE
        if producers.is_verified(producer_id, epoch, has_own_epoch=adds):
            return None
        producers.check_epoch(producer_id, epoch)
        if not adds and not worker.verifies_transactions:
            return NOT_REQUIRED
        self.cancel()
        verification = producers.verifications.begin(producer_id, has_own_epoch=adds)
        self._verification = producers, verification
        return verification

    async def admit(self) -> None:
        """Count the producer if it is new to the group's partition. Raises KafkaError."""
        producer_id = self._message.producer_id
        if producer_id not in self._producers().entries:
            try:
                self._worker.quotas.producers.admit(self._client, producer_id)
            except UnknownProducerIdError as error:
                raise await settled(self._worker, error) from None

    def cancel(self) -> None:
        """End the verification of this commit if it has not ended."""
        if self._verification is not None:
            producers, verification = self._verification
            producers.verifications.cancel(self._message.producer_id, verification)

    def _has_ended(self, verification: Verification) -> bool:
        """Return whether a marker has ended the verification."""
        message, producers = self._message, self._producers()
        return not producers.verifications.is_pending(
            message.producer_id, verification
        ) and not producers.in_transaction(message.producer_id, message.producer_epoch)

    def _producers(self) -> ProducerStateTable:
        """Return the producers of the group's partition. Raises KafkaError."""
        worker, group_id = self._worker, self._message.group_id
        worker.groups.shard(group_id)
        index = worker.groups.partition_of(group_id)
        return worker.replica_manager.by_name(CONSUMER_OFFSETS, index).log.producers

    async def _ask(self, *, adds: bool) -> ErrorCode:
        """Return the answer of the transaction's coordinator."""
        message, worker = self._message, self._worker
        place = CONSUMER_OFFSETS, worker.groups.partition_of(message.group_id)
        codes = await worker.transaction_verifier.verify(
            message.transactional_id,
            message.producer_id,
            message.producer_epoch,
            [place],
            self._client,
            adds=adds,
        )
        return codes[place]

    def written(self, checked: _Checked, producer: TransactionOf) -> Steps[Message | GroupResponse]:
        def finished(codes: Iterator[ErrorCode], refused: ErrorCode) -> Answer:
            return self.response(checked, codes)

        return write_in_parts(
            self._worker,
            self._message.group_id,
            self.offsets,
            partial(self._operate, producer),
            finished,
        )

    def _operate(
        self, producer: TransactionOf, shard: GroupShard, offsets: Sequence[OffsetToCommit]
    ) -> Write[list[ErrorCode]] | Codes:
        clock, message = self._worker.clock, self._message
        return shard.commit(
            clock.monotonic(),
            clock.now_ms(),
            CommitRequest(
                message.group_id,
                message.member_id,
                message.group_instance_id,
                message.generation_id,
                offsets,
                producer=producer,
                client=self._client.account,
            ),
        )

    async def response(
        self, checked: _Checked, codes: Iterator[ErrorCode]
    ) -> TxnOffsetCommitResponse:
        """Return the response; `codes`: errors of the rows without an error of their own."""

        def row(
            _: object, asked: tuple[TxnOffsetCommitRequestPartition, ErrorCode]
        ) -> TxnOffsetCommitResponsePartition:
            partition, code = asked
            if code is ErrorCode.NONE:
                code = self._reported(next(codes))
            return TxnOffsetCommitResponsePartition(
                partition_index=partition.partition_index, error_code=code
            )

        rows = await each_of(
            checked, lambda each: zip(each[0].partitions, each[1], strict=True), row
        )
        topics = await in_pieces(
            rows,
            lambda each: TxnOffsetCommitResponseTopic(name=each[0][0].name, partitions=each[1]),
        )
        self._worker.slicer.discard(rows, checked)
        return TxnOffsetCommitResponse(topics=topics)

    def _reported(self, code: ErrorCode) -> ErrorCode:
        code = _REPORTED.get(code, code)
        if code is ErrorCode.TRANSACTION_ABORTABLE and self._version < _KNOWS_ABORTABLE_SINCE:
            return ErrorCode.INVALID_TXN_STATE
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and self._version < _KNOWS_LOADING_SINCE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return code
