"""Producer whose records and offsets take effect together, or not at all (KIP-98).

    producer = TransactionalProducer(cluster, "billing-1")
    await producer.init()
    async with producer.transaction():
        await producer.send("invoices", records)
        await producer.send_offsets(consumer.positions(), consumer.group_metadata)

`init` fences every earlier producer with the same transactional id, and ends the transaction that
it left open. The coordinator aborts a transaction that takes longer than `transaction_timeout_s`.
Readers with read_committed see the records after the commit only.

The protocol follows the level of the feature `transaction.version` at each `begin`; see
`transaction_state`. At most one task or thread calls a producer at a time.

A lost answer to EndTxn is asked for again: the coordinator answers a repetition as it answered the
first request. An outcome that cannot be found out is raised as UnknownOutcomeError, never guessed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NoReturn

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.connection import SOFTWARE_NAME, SOFTWARE_VERSION
from metaquorum.client.errors import (
    AdminError,
    BrokerError,
    InterruptedChangeError,
    UnreachableError,
    broker_error,
)
from metaquorum.client.groups.coordinators import (
    GROUPS,
    TRANSACTIONS,
    CoordinatorKind,
    find_coordinators,
)
from metaquorum.client.groups.values import CommittedOffset, GroupMetadata
from metaquorum.client.producer import DEFAULT_BATCH_BYTES, Appended, Producer, ProducerRecord
from metaquorum.client.transactions.errors import UnknownOutcomeError
from metaquorum.client.transactions.transaction_state import State, TransactionState
from metaquorum.metadata.records import TRANSACTION_VERSION
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.records.records import NO_PRODUCER_ID, Codec

if TYPE_CHECKING:
    from metaquorum.wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
    from metaquorum.wire.messages.api_versions import ApiVersionsResponse
    from metaquorum.wire.messages.end_txn import EndTxnResponse
    from metaquorum.wire.messages.init_producer_id import InitProducerIdResponse
    from metaquorum.wire.messages.txn_offset_commit import TxnOffsetCommitResponse
    from metaquorum.wire.schema.message import Message

DEFAULT_TRANSACTION_TIMEOUT_S: Final = 60.0
# Time after which `begin` asks the coordinator for the feature levels again.
FEATURES_AGE_S: Final = 10.0
# Longest wait for one answer of a coordinator, after which it is looked up again.
ATTEMPT_S: Final = 10.0
# First pause while the coordinator completes the transaction before; it takes milliseconds.
CONCURRENT_PAUSE_S: Final = 0.02
CONCURRENT_ATTEMPTS: Final = 4
# Last versions of the protocol in which a partition is added to the transaction before its records.
_PRODUCE_UNTIL: Final = 11
_ADD_PARTITIONS_UNTIL: Final = 3  # later versions are for brokers
_END_TXN_UNTIL: Final = 4
_OFFSET_COMMIT_UNTIL: Final = 4

# Answers that mean that the coordinator has moved, or is unknown.
_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,  # its node is no longer in the metadata
    }
)
_RETRIED: Final = _MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
}
# Answers to EndTxn after which the decision may be in the log nevertheless: its append failed late.
_UNCERTAIN: Final = _MOVED | {ErrorCode.REQUEST_TIMED_OUT}

ErrorOf = Callable[[Any], BrokerError | None]


class _Batches(Producer):
    """Sends the batches of a transaction; the epoch and the sequences are of its state."""

    def __init__(
        self, owner: TransactionalProducer, codec: Codec, batch_bytes: int, transactional_id: str
    ) -> None:
        super().__init__(owner.cluster, codec=codec, batch_bytes=batch_bytes)
        self._owner = owner
        self._transactional_id = transactional_id

    def use(self, producer_id: int, producer_epoch: int) -> None:
        """Use a producer id and epoch; another epoch begins with sequence 0."""
        if self._producer != (producer_id, producer_epoch):
            self._producer = producer_id, producer_epoch
            self._sequences.clear()

    def use_level(self, is_implicit: bool) -> None:
        self._last_version = None if is_implicit else _PRODUCE_UNTIL

    async def _prepare(self, partitions: Iterable[TopicPartition]) -> None:
        await self._owner.add_partitions(partitions)


class TransactionalProducer:
    """Producer with transactions; see the module."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        transaction_timeout_s: float = DEFAULT_TRANSACTION_TIMEOUT_S,
        codec: Codec = Codec.NONE,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        features_age_s: float = FEATURES_AGE_S,
    ) -> None:
        """Create a producer; `init` is its first call.

        `transactional_id`: the same after a restart, and of one producer at a time.
        `features_age_s`: age from which `begin` reads the level of transaction.version again.
        """
        if not transactional_id:
            raise ValueError("a transactional id is not empty")
        self.cluster = cluster
        self._timeout_ms = int(transaction_timeout_s * 1000)
        self._features_age_s = features_age_s
        self._state = TransactionState(transactional_id)
        self._batches = _Batches(self, codec, batch_bytes, transactional_id)
        self._nodes: dict[tuple[int, str], int] = {}  # coordinators by key type and key
        self._level: int | None = None
        self._level_at = 0.0

    @property
    def transactional_id(self) -> str:
        return self._state.transactional_id

    @property
    def state(self) -> State:
        """State of the producer; `transaction_state` has the table."""
        return self._state.state

    @property
    def level(self) -> int:
        """Level of transaction.version of the current, or last, transaction."""
        return self._state.level

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch; (-1, -1) before `init`."""
        return self._state.producer_id, self._state.producer_epoch

    # Transactions

    async def init(self) -> None:
        """Take the transactional id: fence earlier producers, and end what they left open.

        A transaction whose commit was decided is completed, every other one is aborted. Raises
        FatalTransactionError if the coordinator refuses, and UnreachableError; then `init` may be
        called again.
        """
        self._state.check(State.NEW)
        await self._init_producer(self.cluster.deadline(), NO_PRODUCER_ID, -1)

    async def begin(self) -> None:
        """Begin a transaction; nothing is sent but a request for the feature levels, at times.

        The first transaction after transaction.version was raised to 2 begins with a new epoch.
        Raises WrongStateError in a transaction, UnreachableError, and FatalTransactionError if the
        coordinator refuses the epoch.
        """
        self._state.check(State.READY)
        deadline = self.cluster.deadline()
        level = await self._feature_level(deadline)
        if self._state.needs_epoch(level):
            await self._init_producer(deadline, *self.producer)
        self._state.begin(level)
        self._batches.use_level(self._state.is_implicit)

    async def send(self, topic: str, records: Iterable[ProducerRecord]) -> list[Appended]:
        """Append `records` to `topic` as `Producer.send`, within the transaction.

        Raises AbortableTransactionError or FatalTransactionError (see `errors`); after any other
        error, too, the transaction can only be aborted.
        """
        self._state.check(State.OPEN)
        try:
            appended = await self._batches.send(topic, records)
        except BrokerError as error:
            self._refuse(error, of_coordinator=False)
        except BaseException as error:
            self._fail(error)
            raise
        self._state.is_confirmed = True
        return appended

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | CommittedOffset], group: GroupMetadata
    ) -> None:
        """Commit offsets, of the next records to read, for a group within the transaction.

        They become the committed offsets of the group when the transaction commits. Raises
        AbortableTransactionError with ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID
        if `group` is no longer a member in that generation (KIP-447), and errors as `send`.
        """
        self._state.check(State.OPEN)
        if not offsets:
            return
        deadline = self.cluster.deadline()
        try:
            if not self._state.is_implicit and group.group not in self._state.groups:
                await self._add_offsets(group.group, deadline)
            await self._commit_offsets(offsets, group, deadline)
        except BrokerError as error:
            self._refuse(error, of_coordinator=True)
        except BaseException as error:
            self._fail(error)
            raise
        self._state.is_confirmed = True

    async def commit(self) -> None:
        """Commit the transaction: when this returns, all of it takes effect, even after crashes.

        Raises AbortableTransactionError (abort it), FatalTransactionError (it was not committed),
        UnreachableError (nothing was decided: commit or abort it later), and UnknownOutcomeError
        (repeat `commit`, unless it says that this is of no use).
        """
        self._state.check(State.OPEN, State.COMMITTING)
        await self._end(committed=True)

    async def abort(self) -> None:
        """Abort the transaction: none of it takes effect.

        Raises FatalTransactionError (another producer has aborted it), and UnknownOutcomeError or
        UnreachableError (repeat `abort`; the coordinator aborts it after its timeout anyhow).
        """
        self._state.check(State.OPEN, State.FAILED, State.ABORTING)
        await self._end(committed=False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Begin a transaction, commit it at the end of the block, and abort it after an exception.

        A cancelled block sends nothing: abort, or let the timeout or the next `init` abort it.
        """
        await self.begin()
        try:
            yield
            await self.commit()
        except Exception as error:
            await self.abort_after(error)
            raise

    async def abort_after(self, error: Exception) -> None:
        """Abort the transaction, if it can be, after `error`, which gets a note if that fails."""
        if self._state.state not in (State.OPEN, State.FAILED):
            return
        try:
            await self.abort()
        except (AdminError, BrokerError) as failure:
            error.add_note(f"the transaction could not be aborted: {failure}")

    # Steps

    async def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction before their first records, at levels below 2."""
        state = self._state
        state.is_started = True
        wanted = sorted(state.unadded(partitions))
        if not wanted:
            return
        from metaquorum.wire.messages.add_partitions_to_txn import (
            AddPartitionsToTxnRequest,
            AddPartitionsToTxnTopic,
        )

        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=state.transactional_id,
            v3_and_below_producer_id=state.producer_id,
            v3_and_below_producer_epoch=state.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=[where.partition for where in own])
                for topic, own in groupby(wanted, key=lambda where: where.topic)
            ],
        )
        try:
            await self._ask(
                TRANSACTIONS,
                state.transactional_id,
                request,
                _error_of_partitions,
                self.cluster.deadline(),
                max_version=_ADD_PARTITIONS_UNTIL,
            )
        except BrokerError as error:
            self._refuse(error, of_coordinator=True)
        state.partitions.update(wanted)
        state.is_confirmed = True

    async def _add_offsets(self, group: str, deadline: float) -> None:
        from metaquorum.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest

        state = self._state
        state.is_started = True
        request = AddOffsetsToTxnRequest(
            transactional_id=state.transactional_id,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            group_id=group,
        )
        await self._ask(
            TRANSACTIONS, state.transactional_id, request, self._error_of_response, deadline
        )
        state.groups.add(group)
        state.is_confirmed = True

    async def _commit_offsets(
        self,
        offsets: Mapping[TopicPartition, int | CommittedOffset],
        group: GroupMetadata,
        deadline: float,
    ) -> None:
        from metaquorum.wire.messages.txn_offset_commit import (
            TxnOffsetCommitRequest,
            TxnOffsetCommitRequestPartition,
            TxnOffsetCommitRequestTopic,
        )

        state = self._state
        state.is_started = True
        request = TxnOffsetCommitRequest(
            transactional_id=state.transactional_id,
            group_id=group.group,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            generation_id=group.generation,
            member_id=group.member_id,
            group_instance_id=group.instance_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=where.partition,
                            committed_offset=offset.offset,
                            committed_leader_epoch=offset.leader_epoch,
                            committed_metadata=offset.metadata,
                        )
                        for where in own
                        if (offset := _offset(offsets[where]))
                    ],
                )
                for topic, own in groupby(sorted(offsets), key=lambda where: where.topic)
            ],
        )
        last = None if state.is_implicit else _OFFSET_COMMIT_UNTIL
        await self._ask(
            GROUPS, group.group, request, _error_of_offsets(group.group), deadline, max_version=last
        )

    async def _init_producer(self, deadline: float, producer_id: int, epoch: int) -> None:
        """Take a producer id, or the next epoch of the given one (KIP-360)."""
        from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest

        state = self._state
        request = InitProducerIdRequest(
            transactional_id=state.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        try:
            response: InitProducerIdResponse = await self._ask(
                TRANSACTIONS, state.transactional_id, request, self._error_of_response, deadline
            )
        except BrokerError as error:
            if error.code in _RETRIED:  # still so at the deadline
                raise
            raise state.refused(error) from None
        state.initialized(response.producer_id, response.producer_epoch)
        self._batches.use(*self.producer)

    async def _end(self, *, committed: bool) -> None:
        state = self._state
        deadline = self.cluster.deadline()
        needs_bump = state.is_bump_needed and state.is_started and not state.is_implicit
        if state.is_started and not state.is_unknown_to_coordinator:
            before = state.state
            state.state = State.COMMITTING if committed else State.ABORTING
            response = await self._end_txn(committed, before, deadline)
            if response is None:
                needs_bump = True
            elif not needs_bump:
                state.ended(response.producer_id, response.producer_epoch)
                self._batches.use(*self.producer)
                return
        if needs_bump or state.is_unknown_to_coordinator:
            # A failure leaves the state: `abort` repeats EndTxn, to which there is nothing to do.
            await self._init_producer(deadline, *self.producer)
        else:
            state.ended(NO_PRODUCER_ID, -1)

    async def _end_txn(
        self, committed: bool, before: State, deadline: float
    ) -> EndTxnResponse | None:
        """Send EndTxn until an answer is known; None if there is no transaction to abort."""
        from metaquorum.wire.messages.end_txn import EndTxnRequest

        state = self._state
        request = EndTxnRequest(
            transactional_id=state.transactional_id,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            committed=committed,
        )
        try:
            answer: EndTxnResponse = await self._ask(
                TRANSACTIONS,
                state.transactional_id,
                request,
                self._error_of_response,
                deadline,
                max_version=None if state.is_implicit else _END_TXN_UNTIL,
                on_uncertain=self._note_uncertain,
            )
        except UnreachableError as error:
            raise self._undecided(committed, before, error) from error
        except BrokerError as error:
            if error.code in _RETRIED:
                raise self._undecided(committed, before, error) from error
            if not committed and self._is_nothing_to_abort(error):
                return None
            raise self._end_refused(committed, error) from error
        except AdminError:  # NotServedError and others: this attempt was not sent
            if not state.is_uncertain:
                state.state = before
            raise
        except BaseException:  # cancelled, perhaps before the answer to a request that was sent
            self._note_uncertain()
            raise
        return answer

    def _undecided(
        self, committed: bool, before: State, error: UnreachableError | BrokerError
    ) -> Exception:
        """Return the error for an EndTxn without a final answer at the deadline."""
        state = self._state
        if not state.is_uncertain:
            state.state = before  # no coordinator has taken the request
            return error
        action = "commit" if committed else "abort"
        return UnknownOutcomeError(state.transactional_id, action, error, is_final=False)

    def _is_nothing_to_abort(self, error: BrokerError) -> bool:
        """Return whether the coordinator says that it has no transaction of this producer."""
        state = self._state
        if error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            state.is_unknown_to_coordinator = True
            return True
        return error.code is ErrorCode.INVALID_TXN_STATE and not state.is_confirmed

    def _end_refused(self, committed: bool, error: BrokerError) -> Exception:
        """Return the error for a final refusal of EndTxn."""
        state = self._state
        if not committed:
            return state.refused(error)
        if state.is_uncertain:  # an earlier attempt may have committed
            state.refused(error)
            return UnknownOutcomeError(state.transactional_id, "commit", error, is_final=True)
        state.state = State.OPEN
        return state.on_error(error, of_coordinator=True)

    def _note_uncertain(self) -> None:
        self._state.is_uncertain = True

    def _refuse(self, error: BrokerError, *, of_coordinator: bool) -> NoReturn:
        raise self._state.on_error(error, of_coordinator=of_coordinator) from error

    def _fail(self, error: BaseException) -> None:
        """Note an error that no broker has answered, such as a cancellation or a timeout."""
        code, text = ErrorCode.NETWORK_EXCEPTION, str(error) or type(error).__name__
        self._state.fail(BrokerError(code, text, self._state.subject))

    # Coordinators

    async def _ask(
        self,
        kind: CoordinatorKind,
        key: str,
        request: Message,
        error_of: ErrorOf,
        deadline: float,
        *,
        max_version: int | None = None,
        on_uncertain: Callable[[], None] | None = None,
    ) -> Any:
        """Send a request to a coordinator until its answer is final; return the response.

        `on_uncertain` is called if an attempt may have been processed without an answer. Raises the
        BrokerError of the last answer, also if it is retriable, and UnreachableError.
        """
        attempt = 0
        while True:
            failure: BrokerError | UnreachableError | None
            try:
                node_id = await self._coordinator(kind, key, deadline)
                response = await self.cluster.call(
                    request,
                    to=node_id,
                    deadline=min(deadline, self.cluster.deadline(ATTEMPT_S)),
                    changes=on_uncertain is not None,
                    max_version=max_version,
                )
                failure = error_of(response)
            except InterruptedChangeError as error:
                assert on_uncertain is not None
                on_uncertain()
                failure = UnreachableError(str(error))
            except (UnreachableError, BrokerError) as error:  # the lookup or the connection failed
                failure = error
            else:
                if failure is None:
                    return response
                if on_uncertain is not None and failure.code in _UNCERTAIN:
                    on_uncertain()
            if isinstance(failure, UnreachableError) or failure.code in _MOVED:
                self._nodes.pop((kind.key_type, key), None)
            elif failure.code not in _RETRIED:
                raise failure
            if not await self._back_off(failure, attempt, deadline):
                raise failure
            attempt += 1

    async def _back_off(self, failure: Exception, attempt: int, deadline: float) -> bool:
        is_concurrent = (
            isinstance(failure, BrokerError) and failure.code is ErrorCode.CONCURRENT_TRANSACTIONS
        )
        if not is_concurrent or attempt >= CONCURRENT_ATTEMPTS:
            return await self.cluster.back_off(attempt, deadline)
        until = self.cluster.deadline(CONCURRENT_PAUSE_S)
        if until >= deadline:
            return False
        await self.cluster.transport.sleep_until(until)
        return True

    async def _coordinator(self, kind: CoordinatorKind, key: str, deadline: float) -> int:
        if (known := self._nodes.get((kind.key_type, key))) is not None:
            return known
        soon = min(deadline, self.cluster.deadline(ATTEMPT_S))
        found = (await find_coordinators(self.cluster, [key], soon, kind))[key]
        if isinstance(found, BrokerError):
            raise found
        if found not in self.cluster.nodes:
            await self.cluster.refresh(deadline=soon)
        if found not in self.cluster.nodes:
            text = f"its coordinator, node {found}, is not in the metadata of the cluster"
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text, kind.subject(key))
        self._nodes[kind.key_type, key] = found
        return found

    async def _feature_level(self, deadline: float) -> int:
        """Return the level of transaction.version, at most `features_age_s` old."""
        now = self.cluster.transport.monotonic()
        if self._level is None or now - self._level_at >= self._features_age_s:
            from metaquorum.wire.messages.api_versions import ApiVersionsRequest

            response: ApiVersionsResponse = await self._ask(
                TRANSACTIONS,
                self.transactional_id,
                ApiVersionsRequest(
                    client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
                ),
                self._error_of_response,
                deadline,
            )
            levels = {each.name: each.max_version_level for each in response.finalized_features}
            self._level, self._level_at = levels.get(TRANSACTION_VERSION, 0), now
        return self._level

    def _error_of_response(self, response: Any) -> BrokerError | None:
        if not response.error_code:
            return None
        return broker_error(response.error_code, None, self._state.subject)


def _offset(offset: int | CommittedOffset) -> CommittedOffset:
    return offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset)


def _error_of_partitions(response: AddPartitionsToTxnResponse) -> BrokerError | None:
    """Return the error that decides: one that is not retried before one that is."""
    errors = [
        broker_error(
            partition.partition_error_code,
            None,
            f"partition {TopicPartition(topic.name, partition.partition_index)}",
        )
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
        if partition.partition_error_code
    ]
    return _decisive(errors)


def _error_of_offsets(group: str) -> ErrorOf:
    def error_of(response: TxnOffsetCommitResponse) -> BrokerError | None:
        return _decisive(
            [
                broker_error(partition.error_code, None, GROUPS.subject(group))
                for topic in response.topics
                for partition in topic.partitions
                if partition.error_code
            ]
        )

    return error_of


def _decisive(errors: list[BrokerError]) -> BrokerError | None:
    """Return the error that decides: one that is not retried first.

    OPERATION_NOT_ATTEMPTED says that another partition was refused.
    """
    attempted = [error for error in errors if error.code is not ErrorCode.OPERATION_NOT_ATTEMPTED]
    final = [error for error in attempted if error.code not in _RETRIED]
    return next(iter(final or attempted or errors), None)
