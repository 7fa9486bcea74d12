"""Search for hanging transactions: open in a log, and unknown to every coordinator (KIP-664).

    1. producers of the partitions with an open transaction whose last record is old enough
    2. the transactional ids of their producer ids, from all coordinators
    3. the state of these transactional ids
    4. the producers again: a transaction that has ended meanwhile does not hang

A coordinator adds a partition before the first record, and removes it after the marker. So an open
transaction hangs if its partition is in no transaction that a coordinator described after step 1,
and if it is still open in step 4.
"""

from collections.abc import Iterable, Mapping, Sequence

from metaquorum.client.cluster import Answers, Cluster, TopicPartition
from metaquorum.client.errors import BrokerError, UnreachableError
from metaquorum.client.groups.coordinators import Outcomes
from metaquorum.client.transactions.queries import (
    describe_producers,
    describe_transactions,
    list_transactions,
)
from metaquorum.client.transactions.values import (
    HangingTransaction,
    OpenTransaction,
    ProducerState,
    TransactionDescription,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.frozen import frozen

# Kafka's default of transaction.max.timeout.ms: no transaction is open for longer.
DEFAULT_MAX_TIMEOUT_S = 900.0


@frozen
class HangingList:
    """Hanging transactions. `unknown`: open ones whose coordinator did not answer.

    `failures`: errors of nodes and partitions, whose transactions are missing or unknown.
    """

    hanging: Sequence[HangingTransaction]
    unknown: Sequence[OpenTransaction]
    failures: Sequence[Exception]


@frozen
class Coordinated:
    """Transactional ids of some producer ids, as their coordinators describe them.

    `descriptions`: by producer id. `is_complete`: whether all coordinators answered.
    """

    descriptions: Mapping[int, TransactionDescription]
    is_complete: bool
    failures: Sequence[Exception]


async def find_hanging(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    *,
    node_id: int | None = None,
    max_timeout_s: float = DEFAULT_MAX_TIMEOUT_S,
) -> HangingList:
    """Return the hanging transactions of partitions, on their leaders or on a node.

    Only those whose last record is older than `max_timeout_s`, the longest transaction timeout.
    """
    wanted = list(partitions)
    answers = await describe_producers(cluster, wanted, node_id)
    failures: list[Exception] = [each for each in answers.values() if isinstance(each, BrokerError)]
    oldest_ms = cluster.transport.now_ms() - max_timeout_s * 1000
    candidates = [
        each for each in open_transactions(answers) if each.producer.last_timestamp_ms < oldest_ms
    ]
    if not candidates:
        return HangingList((), (), failures)
    known = await coordinated(cluster, {each.producer.producer_id for each in candidates})
    again = await describe_producers(cluster, {each.where for each in candidates}, node_id)
    still = {(each.where, each.producer.producer_id, each.start_offset)
             for each in open_transactions(again)}  # fmt: skip
    hanging, unknown = [], []
    for each in candidates:
        if (each.where, each.producer.producer_id, each.start_offset) not in still:
            continue
        description = known.descriptions.get(each.producer.producer_id)
        if why := why_hanging(each, description, known.is_complete):
            name = None if description is None else description.transactional_id
            hanging.append(HangingTransaction(each, name, why))
        elif description is None:
            unknown.append(each)
    return HangingList(hanging, unknown, [*failures, *known.failures])


def open_transactions(answers: Answers[list[ProducerState]]) -> list[OpenTransaction]:
    """Return the open transactions of partitions, by partition and first offset."""
    found = [
        OpenTransaction(where, producer)
        for where, producers in answers.items()
        if not isinstance(producers, BrokerError)
        for producer in producers
        if producer.start_offset is not None
    ]
    return sorted(found, key=lambda each: (each.where, each.start_offset))


async def coordinated(cluster: Cluster, producer_ids: Iterable[int]) -> Coordinated:
    """Return the descriptions of the transactional ids with these producer ids."""
    ids = sorted(producer_ids)
    if not ids:
        return Coordinated({}, True, ())
    listed = await list_transactions(cluster, producer_ids=ids)
    names = [each.transactional_id for each in listed.transactions]
    failures = [*listed.failures.values()]
    outcomes: Outcomes[TransactionDescription] = {}
    try:
        if names:
            outcomes = await describe_transactions(cluster, names)
    except UnreachableError as error:
        failures.append(error)
    found: dict[int, TransactionDescription] = {}
    for outcome in outcomes.values():
        if isinstance(outcome, BrokerError):
            if outcome.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                failures.append(outcome)
        else:
            found[outcome.producer_id] = outcome
    is_complete = not failures and not listed.lost_partitions
    return Coordinated(found, is_complete, failures)


def why_hanging(
    open_: OpenTransaction, description: TransactionDescription | None, is_complete: bool
) -> str | None:
    """Return why no coordinator ends a transaction; None: one does, or it is not known.

    `description`: of the transactional id with its producer id; None: no coordinator that answered
    has it. `is_complete`: all answered.
    """
    if description is None:
        return "no coordinator knows its producer id" if is_complete else None
    if open_.where in description.partitions and description.is_active:
        return None
    name = description.transactional_id
    return (
        f"its coordinator knows no transaction of {name} in this partition (state "
        f"{description.state}, epoch {description.producer_epoch})"
    )
