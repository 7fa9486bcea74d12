"""Lists and descriptions of transactions and producers; markers of an administrator (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from metaquorum.client.cluster import Answers, Cluster, TopicPartition
from metaquorum.client.errors import AdminError, BrokerError, UnreachableError, broker_error
from metaquorum.client.groups.coordinators import (
    TRANSACTIONS,
    Outcomes,
    answered,
    ask_coordinators,
    is_retried,
)
from metaquorum.client.transactions.values import (
    ProducerState,
    TransactionDescription,
    TransactionList,
    TransactionListing,
)
from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from metaquorum.wire.primitives.errors import ErrorCode

if TYPE_CHECKING:
    from metaquorum.wire.messages.describe_producers import DescribeProducersResponse
    from metaquorum.wire.messages.describe_transactions import (
        DescribeTransactionsResponse,
        TransactionState,
    )
    from metaquorum.wire.messages.init_producer_id import InitProducerIdResponse
    from metaquorum.wire.messages.list_transactions import ListTransactionsResponse
    from metaquorum.wire.messages.remove_transactional_ids import RemoveTransactionalIdsResponse
    from metaquorum.wire.messages.write_txn_markers import WriteTxnMarkersResponse

MAX_PARTITIONS: Final = 500  # in one DescribeProducers
_DURATION_SINCE: Final = 1  # ListTransactions: KIP-994
_PATTERN_SINCE: Final = 2  # ListTransactions: KIP-1152
# Errors of WriteTxnMarkers that are final, though retriable in answers to other requests.
_MARKER_FINAL: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})


async def list_transactions(
    cluster: Cluster,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    min_duration_ms: int = -1,
    pattern: str | None = None,
) -> TransactionList:
    """Return the transactional ids of all nodes that match (empty: any), by name.

    `min_duration_ms`: without transactions that began later. `pattern`: RE2 expression for the
    whole id. A node that cannot answer is among the failures. Raises AdminError if the cluster is
    too old for a filter, and BrokerError if it does not know a state or cannot read the pattern.
    """
    topics = await cluster.refresh([TRANSACTION_STATE])
    lost = [each.partition_index for one in topics for each in one.partitions if each.leader_id < 0]
    found: dict[str, TransactionListing] = {}
    failures: dict[int, Exception] = {}
    for node_id in await cluster.live_nodes():
        try:
            for listing in await _list_of(
                cluster, node_id, states, producer_ids, min_duration_ms, pattern
            ):
                found[listing.transactional_id] = listing  # one that moved meanwhile comes twice
        except BrokerError as error:
            if error.code in (ErrorCode.INVALID_REGULAR_EXPRESSION, ErrorCode.INVALID_REQUEST):
                raise
            failures[node_id] = error
        except UnreachableError as error:
            failures[node_id] = error
    return TransactionList([found[name] for name in sorted(found)], failures, sorted(lost))


async def _list_of(
    cluster: Cluster,
    node_id: int,
    states: Sequence[str],
    producer_ids: Sequence[int],
    min_duration_ms: int,
    pattern: str | None,
) -> list[TransactionListing]:
    from metaquorum.wire.messages.list_transactions import ListTransactionsRequest

    deadline = cluster.deadline()  # separate, so that a hanging node does not fail the others
    connection = await cluster.connection(node_id, deadline)
    version = connection.version_of(ListTransactionsRequest)
    if min_duration_ms >= 0 and version < _DURATION_SINCE:
        raise AdminError("this cluster is too old to select transactions by their duration")
    if pattern is not None and version < _PATTERN_SINCE:
        raise AdminError("this cluster is too old to select transactional ids by a pattern")
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=min_duration_ms,
        transactional_id_pattern=pattern,
    )
    attempt = 0
    while True:
        response: ListTransactionsResponse = await cluster.call(
            request, to=node_id, deadline=deadline
        )
        if response.unknown_state_filters:
            unknown = ", ".join(response.unknown_state_filters)
            text = f"node {node_id} does not know the state {unknown}"
            raise BrokerError(ErrorCode.INVALID_REQUEST, text)
        if not response.error_code:
            return [
                TransactionListing(
                    each.transactional_id, each.producer_id, each.transaction_state, node_id
                )
                for each in response.transaction_states
            ]
        error = broker_error(response.error_code, None, f"transactions of node {node_id}")
        if not is_retried(error) or not await cluster.back_off(attempt, deadline):
            raise error
        attempt += 1


async def describe_transactions(
    cluster: Cluster, transactional_ids: Sequence[str]
) -> Outcomes[TransactionDescription]:
    """Return the state of each transactional id, or TRANSACTIONAL_ID_NOT_FOUND."""
    from metaquorum.wire.messages.describe_transactions import DescribeTransactionsRequest

    deadline = cluster.deadline()

    async def ask(node_id: int, own: list[str]) -> Outcomes[TransactionDescription]:
        response: DescribeTransactionsResponse = await cluster.call(
            DescribeTransactionsRequest(transactional_ids=own), to=node_id, deadline=deadline
        )
        found = {
            each.transactional_id: _described(each, node_id) for each in response.transaction_states
        }
        return answered(found, own, TRANSACTIONS)

    return await ask_coordinators(cluster, transactional_ids, ask, deadline, TRANSACTIONS)


async def remove_ids(cluster: Cluster, transactional_ids: Sequence[str]) -> Outcomes[None]:
    """Remove transactional ids without an open transaction; return None or the error of each."""
    from metaquorum.wire.messages.remove_transactional_ids import RemoveTransactionalIdsRequest

    deadline = cluster.deadline()

    async def ask(node_id: int, own: list[str]) -> Outcomes[None]:
        response: RemoveTransactionalIdsResponse = await cluster.call(
            RemoveTransactionalIdsRequest(transactional_ids=own), to=node_id, deadline=deadline
        )
        found: Outcomes[None] = {}
        for each in response.results:
            name = each.transactional_id
            found[name] = None
            if each.error_code:
                subject = TRANSACTIONS.subject(name)
                found[name] = broker_error(each.error_code, each.error_message, subject)
        return answered(found, own, TRANSACTIONS)

    return await ask_coordinators(cluster, transactional_ids, ask, deadline, TRANSACTIONS)


def _described(state: TransactionState, node_id: int) -> TransactionDescription | BrokerError:
    if state.error_code:
        error = broker_error(state.error_code, None, TRANSACTIONS.subject(state.transactional_id))
        if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            error.message = "there is no such transactional id, or it has expired"
        return error
    start_ms = state.transaction_start_time_ms
    return TransactionDescription(
        state.transactional_id,
        state.transaction_state,
        state.producer_id,
        state.producer_epoch,
        state.transaction_timeout_ms,
        start_ms if start_ms >= 0 else None,
        sorted(
            TopicPartition(topic.topic, index)
            for topic in state.topics
            for index in topic.partitions
        ),
        node_id,
    )


async def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition], node_id: int | None = None
) -> Answers[list[ProducerState]]:
    """Return the producers that the leader of each partition, or the replica on a node, knows."""
    deadline = cluster.deadline()
    if node_id is None:

        async def ask(leader: int, led: list[TopicPartition]) -> Answers[list[ProducerState]]:
            return await _producers_of(cluster, leader, led, deadline)

        return await cluster.ask_leaders(partitions, ask, deadline)
    return await _producers_of(cluster, node_id, list(partitions), deadline)


async def _producers_of(
    cluster: Cluster, node_id: int, partitions: list[TopicPartition], deadline: float
) -> Answers[list[ProducerState]]:
    from metaquorum.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest

    found: Answers[list[ProducerState]] = {}
    ordered = sorted(partitions)
    for first in range(0, len(ordered), MAX_PARTITIONS):
        request = DescribeProducersRequest(
            topics=[
                TopicRequest(name=topic, partition_indexes=[where.partition for where in own])
                for topic, own in groupby(
                    ordered[first : first + MAX_PARTITIONS], key=lambda where: where.topic
                )
            ]
        )
        response: DescribeProducersResponse = await cluster.call(
            request, to=node_id, deadline=deadline
        )
        for topic in response.topics:
            for partition in topic.partitions:
                where = TopicPartition(topic.name, partition.partition_index)
                if partition.error_code:
                    found[where] = broker_error(
                        partition.error_code, partition.error_message, f"partition {where}"
                    )
                    continue
                found[where] = [
                    ProducerState(
                        each.producer_id,
                        each.producer_epoch,
                        each.last_sequence,
                        each.last_timestamp,
                        each.coordinator_epoch,
                        each.current_txn_start_offset
                        if each.current_txn_start_offset >= 0
                        else None,
                    )
                    for each in partition.active_producers
                ]
    return found


async def abort_in_partition(
    cluster: Cluster,
    where: TopicPartition,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> None:
    """Write an abort marker to one partition, as Kafka's `Admin.abortTransaction`.

    For a hanging transaction, which no coordinator ends: the rest of a transaction that its
    coordinator commits would be torn. A `coordinator_epoch` below 0 is sent as 0. Raises
    BrokerError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED if the epochs are not those
    of the producer's last batch and marker, or the refusal of the leader.
    """
    from metaquorum.wire.messages.write_txn_markers import (
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )

    deadline = cluster.deadline()
    request = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_result=False,
                topics=[
                    WritableTxnMarkerTopic(name=where.topic, partition_indexes=[where.partition])
                ],
                coordinator_epoch=max(0, coordinator_epoch),
            )
        ]
    )

    async def ask(leader: int, led: list[TopicPartition]) -> Answers[None]:
        response: WriteTxnMarkersResponse = await cluster.call(
            request, to=leader, deadline=deadline
        )
        codes = [
            partition.error_code
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        ]
        if len(codes) != 1:
            text = f"the response has {len(codes)} results for one marker"
            return {where: BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, text, f"partition {where}")}
        if not codes[0]:
            return {where: None}
        error = broker_error(codes[0], None, f"partition {where}")
        if error.code in _MARKER_FINAL:
            raise error
        return {where: error}

    outcome = (await cluster.ask_leaders([where], ask, deadline))[where]
    if isinstance(outcome, BrokerError):
        raise outcome


async def fence_producer(cluster: Cluster, transactional_id: str) -> tuple[int, int]:
    """Fence the producer with a transactional id, which aborts its open transaction.

    Returns the producer id and the epoch that are valid from now on. Raises BrokerError on refusal.
    """
    from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest

    deadline = cluster.deadline()
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=1,  # as Kafka: no transaction with it follows
    )

    async def ask(node_id: int, own: list[str]) -> Outcomes[tuple[int, int]]:
        attempt = 0
        while True:
            response: InitProducerIdResponse = await cluster.call(
                request, to=node_id, deadline=deadline
            )
            if not response.error_code:
                return {transactional_id: (response.producer_id, response.producer_epoch)}
            error = broker_error(response.error_code, None, TRANSACTIONS.subject(transactional_id))
            is_concurrent = error.code is ErrorCode.CONCURRENT_TRANSACTIONS
            if not is_concurrent or not await cluster.back_off(attempt, deadline):
                return {transactional_id: error}
            attempt += 1

    outcome = (await ask_coordinators(cluster, [transactional_id], ask, deadline, TRANSACTIONS))[
        transactional_id
    ]
    if isinstance(outcome, BrokerError):
        raise outcome
    return outcome
