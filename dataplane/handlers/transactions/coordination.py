"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions and ListTransactions.

A cluster below the level of transactions answers UNSUPPORTED_VERSION. Before version 2 of the first
three, clients know INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED (KIP-588).
"""

from collections.abc import Awaitable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from metaquorum.dataplane.coordinators.asked import Asked
from metaquorum.dataplane.coordinators.group.group_coordinator import GroupCoordinator
from metaquorum.dataplane.coordinators.transaction.transaction import Place
from metaquorum.dataplane.coordinators.transaction.transaction_coordinator import (
    TransactionCoordinator,
)
from metaquorum.dataplane.coordinators.transaction.transaction_shard import (
    MAX_PARTITIONS,
    Expected,
    Outcome,
)
from metaquorum.dataplane.network.client import NO_WORKER
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, each_once, pause
from metaquorum.dataplane.worker.capabilities import HasImage, HasSlicer
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.feature_levels import has_level
from metaquorum.dataplane.worker.internal_topics import InternalTopics
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS, is_internal
from metaquorum.quorum.controller.internal_topics import TRANSACTIONS_LEVEL
from metaquorum.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from metaquorum.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from metaquorum.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from metaquorum.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from metaquorum.wire.messages.remove_transactional_ids import (
    RemovedTransactionalId,
    RemoveTransactionalIdsRequest,
    RemoveTransactionalIdsResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

_BATCHED_SINCE: Final = 4  # AddPartitionsToTxn for several transactions, of workers and clients
# transaction.version of a client that sends it. Source: TransactionVersion of Kafka 4.3.
_VERSION_OF_BATCHES: Final = 2
_FENCED_SINCE: Final = 2  # AddPartitionsToTxn, AddOffsetsToTxn, EndTxn
_EPOCH_BUMP_SINCE: Final = 5  # EndTxn of clients with transaction.version 2
# Constants, because Python 3.11 looks up members of an enum slowly.
_PRODUCER_FENCED: Final = ErrorCode.PRODUCER_FENCED
_TOPIC_AUTHORIZATION_FAILED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_UNKNOWN_TOPIC_OR_PARTITION: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
# Ids that are removed in one step: their records are committed together.
REMOVED_AT_ONCE: Final = 100
_NOT_REMOVED: Final = {
    ErrorCode.CONCURRENT_TRANSACTIONS: "its transaction is open, or changes: abort it first",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "it is not known",
}
_new_tuple: Final = tuple.__new__  # creates a NamedTuple without the call of its own __new__


class CoordinatesTransactions(HasImage, HasSlicer, Protocol):
    @property
    def transactions(self) -> TransactionCoordinator: ...


class CoordinatesGroupsInTransactions(Protocol):
    @property
    def transactions(self) -> TransactionCoordinator: ...

    @property
    def groups(self) -> GroupCoordinator: ...

    @property
    def internal_topics(self) -> InternalTopics: ...


def fenced(code: ErrorCode, version: int, since: int = _FENCED_SINCE) -> ErrorCode:
    """Return the error in a version of the request that may not know PRODUCER_FENCED."""
    if code is _PRODUCER_FENCED and version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


class _Begun(NamedTuple):
    """Partitions that cannot be added, with their errors, and the error of all others."""

    refused: dict[Place, ErrorCode]
    code: ErrorCode | Asked[ErrorCode]


async def handle_add_partitions_to_txn(
    worker: CoordinatesTransactions, request: Request, message: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Coroutine[Any, Any, AddPartitionsToTxnResponse]:
    if request.version < _BATCHED_SINCE:
        return await _add_to_one(worker, request, message)
    if request.client.replica.worker_id == NO_WORKER:
        # A Kafka without an authorizer serves clients that choose the highest version.
        return await _add_to_each(worker, message.transactions, request.client.account)
    return worker.transactions.add_partitions(message, request.client.account)


async def _add_to_one(
    worker: CoordinatesTransactions, request: Request, message: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Coroutine[Any, Any, AddPartitionsToTxnResponse]:
    topics = message.v3_and_below_topics
    begun = await _begin(
        worker,
        message.v3_and_below_transactional_id,
        _new_tuple(
            Expected, (message.v3_and_below_producer_id, message.v3_and_below_producer_epoch)
        ),
        topics,
        request.client.account,
    )
    if isinstance(begun.code, Asked):
        return _added_later(worker, topics, begun.code, request.version)
    results = await _added(topics, begun.refused, fenced(begun.code, request.version))
    worker.slicer.discard(begun.refused)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


async def _added_later(
    worker: CoordinatesTransactions,
    topics: list[AddPartitionsToTxnTopic],
    asked: Asked[ErrorCode],
    version: int,
) -> AddPartitionsToTxnResponse:
    results = await _added(topics, {}, fenced(await asked.wait(), version))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


async def _add_to_each(
    worker: CoordinatesTransactions,
    transactions: list[AddPartitionsToTxnTransaction],
    client: str,
) -> AddPartitionsToTxnResponse | Coroutine[Any, Any, AddPartitionsToTxnResponse]:
    all_begun: list[_Begun] = []
    waits = False
    for asked in transactions:
        begun = await _begin(
            worker,
            asked.transactional_id,
            Expected(asked.producer_id, asked.producer_epoch),
            asked.topics,
            client,
            client_version=_VERSION_OF_BATCHES,
            verify_only=asked.verify_only,
        )
        all_begun.append(begun)
        waits |= isinstance(begun.code, Asked)
        await pause()
    if waits:
        return _added_to_each_later(worker, transactions, all_begun)
    return await _added_to_each(worker, transactions, all_begun)


async def _added_to_each_later(
    worker: CoordinatesTransactions,
    transactions: list[AddPartitionsToTxnTransaction],
    all_begun: list[_Begun],
) -> AddPartitionsToTxnResponse:
    for number, begun in enumerate(all_begun):
        if isinstance(begun.code, Asked):
            all_begun[number] = begun._replace(code=await begun.code.wait())
            await pause()
    return await _added_to_each(worker, transactions, all_begun)


async def _added_to_each(
    worker: CoordinatesTransactions,
    transactions: list[AddPartitionsToTxnTransaction],
    all_begun: list[_Begun],
) -> AddPartitionsToTxnResponse:
    results: list[AddPartitionsToTxnResult] = []
    for asked, (refused, code) in zip(transactions, all_begun, strict=True):
        assert not isinstance(code, Asked)
        rows = await _added(asked.topics, refused, code)
        results.append(
            AddPartitionsToTxnResult(transactional_id=asked.transactional_id, topic_results=rows)
        )
        if refused:
            worker.slicer.discard(refused)
        await pause()
    worker.slicer.discard(all_begun)
    return AddPartitionsToTxnResponse(results_by_transaction=results)


async def _begin(
    worker: CoordinatesTransactions,
    transactional_id: str,
    producer: Expected,
    topics: list[AddPartitionsToTxnTopic],
    client: str,
    *,
    client_version: int = 0,
    verify_only: bool = False,
) -> _Begun:
    """Begin to add the partitions for a client, or look whether the transaction has them.

    Nothing is added if one of them cannot be.
    """
    # Plain loops: `for_each_of` and `each_of` take twice the time for a few partitions.
    places: list[Place] = []
    refused: dict[Place, ErrorCode] = {}
    left, image = PIECE_ROWS, worker.image
    for topic in topics:
        name, count, problem = topic.name, 0, _UNKNOWN_TOPIC_OR_PARTITION
        if is_internal(name):
            # As in Kafka before version 4. AddOffsetsToTxn adds the partition of a group; no
            # markers end transactions in partitions of `__transaction_state`.
            problem = _TOPIC_AUTHORIZATION_FAILED
        elif (known := image.topic(name)) is not None:
            # Its own name is in memory already, that of the request would be kept.
            name, count = known.name, len(known.partitions)
        for index in topic.partitions:
            if 0 <= index < count:
                places.append((name, index))
            else:
                refused[name, index] = problem
            left -= 1
            if not left:
                left = PIECE_ROWS
                await pause()
        left -= 1
        if left <= 0:
            left = PIECE_ROWS
            await pause()
    code = None
    if not has_level(image, TRANSACTIONS_LEVEL):
        code, refused = ErrorCode.UNSUPPORTED_VERSION, {}
    elif refused:  # nothing is added
        code = ErrorCode.OPERATION_NOT_ATTEMPTED
    elif len(places) > MAX_PARTITIONS:
        code = ErrorCode.INVALID_REQUEST
    if code is not None:
        worker.slicer.discard(places)
        return _Begun(refused, code)
    transactions = worker.transactions
    if verify_only:
        codes = transactions.verified(transactional_id, producer, places)
        return _Begun(dict(codes), ErrorCode.NONE)
    return _Begun(
        {}, transactions.begin_add(transactional_id, producer, places, client_version, client)
    )


async def _added(
    topics: list[AddPartitionsToTxnTopic],
    refused: dict[tuple[str, int], ErrorCode],
    otherwise: ErrorCode,
) -> list[AddPartitionsToTxnTopicResult]:
    results: list[AddPartitionsToTxnTopicResult] = []
    left = PIECE_ROWS
    for topic in topics:
        name = topic.name
        rows: list[AddPartitionsToTxnPartitionResult] = []
        for index in topic.partitions:
            code = refused.get((name, index), otherwise) if refused else otherwise
            rows.append(
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            )
            left -= 1
            if not left:
                left = PIECE_ROWS
                await pause()
        results.append(AddPartitionsToTxnTopicResult(name=name, results_by_partition=rows))
        left -= 1
        if left <= 0:
            left = PIECE_ROWS
            await pause()
    return results


def _partitions_of(topic: AddPartitionsToTxnTopic) -> list[int]:
    return topic.partitions


async def handle_add_offsets_to_txn(
    worker: CoordinatesGroupsInTransactions, request: Request, message: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the partition of the group's offsets to the transaction."""
    try:
        worker.transactions.partition_of(message.transactional_id)
        await worker.internal_topics.ensure(CONSUMER_OFFSETS)
        place = CONSUMER_OFFSETS, worker.groups.partition_of(message.group_id)
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=error.code)
    code = await worker.transactions.add_to(
        message.transactional_id,
        Expected(message.producer_id, message.producer_epoch),
        [place],
        client=request.client.account,
    )
    return AddOffsetsToTxnResponse(error_code=fenced(code, request.version))


def handle_end_txn(
    worker: CoordinatesTransactions, request: Request, message: EndTxnRequest
) -> EndTxnResponse | Coroutine[Any, Any, EndTxnResponse]:
    ended = worker.transactions.begin_end(
        message.transactional_id,
        _new_tuple(Expected, (message.producer_id, message.producer_epoch)),
        is_commit=message.committed,
        client_version=2 if request.version >= _EPOCH_BUMP_SINCE else 0,
        client=request.client.account,
    )
    if isinstance(ended, Outcome):
        return _ended(ended, request.version)
    return _ended_later(ended, request.version)


async def _ended_later(ended: Awaitable[Outcome], version: int) -> EndTxnResponse:
    return _ended(await ended, version)


def _ended(outcome: Outcome, version: int) -> EndTxnResponse:
    return EndTxnResponse(
        error_code=fenced(outcome.code, version),
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
    )


async def handle_describe_transactions(
    worker: CoordinatesTransactions, request: Request, message: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    response = DescribeTransactionsResponse()
    asked = message.transactional_ids
    for transactional_id in await each_once(asked):
        response.transaction_states.append(_described(worker, transactional_id))
        await pause()
    return response


def _described(worker: CoordinatesTransactions, transactional_id: str) -> TransactionState:
    try:
        known = worker.transactions.describe(transactional_id)
    except KafkaError as error:
        return TransactionState(transactional_id=transactional_id, error_code=error.code)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=known.state.title,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.started_ms,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=indexes)
            for topic, indexes in known.partitions_by_topic().items()
        ],
    )


async def handle_remove_transactional_ids(
    worker: CoordinatesTransactions, request: Request, message: RemoveTransactionalIdsRequest
) -> RemoveTransactionalIdsResponse:
    response = RemoveTransactionalIdsResponse()
    asked, client = message.transactional_ids, request.client.account
    ids = await each_once(asked)
    for at in range(0, len(ids), REMOVED_AT_ONCE):
        some = ids[at : at + REMOVED_AT_ONCE]
        removed = [worker.transactions.begin_remove(each, client) for each in some]
        for transactional_id, outcome in zip(some, removed, strict=True):
            code = await outcome.wait() if isinstance(outcome, Asked) else outcome
            response.results.append(
                RemovedTransactionalId(
                    transactional_id=transactional_id,
                    error_code=code,
                    error_message=_NOT_REMOVED.get(code),
                )
            )
        await pause()
    return response


async def handle_list_transactions(
    worker: CoordinatesTransactions, request: Request, message: ListTransactionsRequest
) -> ListTransactionsResponse:
    if not has_level(worker.image, TRANSACTIONS_LEVEL):
        return ListTransactionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return await worker.transactions.list_transactions(message)
