"""Facts that explain why read_committed stops before the end of partitions.

    the partition leaders   last stable offset and high watermark, twice; open transactions, twice
    the coordinators        the transactional ids and states of these transactions
    the metadata            leader, in-sync replicas and min.insync.replicas of all partitions

A node that does not answer, or refuses, is among the `failures`; the other facts remain.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from metaquorum.client.administration.admin import LATEST, AdminClient
from metaquorum.client.administration.health import PartitionHealth
from metaquorum.client.administration.replicas import describe_health
from metaquorum.client.cluster import Answers, Cluster, TopicPartition
from metaquorum.client.errors import AdminError, BrokerError, UnreachableError
from metaquorum.client.transactions.hanging import (
    Coordinated,
    coordinated,
    open_transactions,
    why_hanging,
)
from metaquorum.client.transactions.queries import describe_producers
from metaquorum.client.transactions.values import (
    OpenTransaction,
    ProducerState,
    TransactionDescription,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.frozen import frozen

# A new leader has no high watermark before its followers have fetched, which may take forever.
OFFSETS_TIMEOUT_S: Final = 5.0


@frozen
class StallingTransaction:
    """An open transaction of a partition in which read_committed does not advance.

    `description`: of its transactional id; None: no coordinator that answered has it. `why_hanging`
    None: a coordinator will end it, or it is not known whether one does. `unmarked`: the partitions
    of a prepared transaction without a marker.
    """

    open: OpenTransaction
    description: TransactionDescription | None
    why_hanging: str | None
    unmarked: Sequence[PartitionHealth]


@frozen
class StallFacts:
    """Offsets and open transactions of a partition. None: not known.

    `transactions`: by first offset; the first one holds the last stable offset. `is_moving`: it has
    moved meanwhile.
    """

    where: TopicPartition
    health: PartitionHealth
    last_stable_offset: int | None
    high_watermark: int | None
    is_moving: bool
    transactions: Sequence[StallingTransaction]
    now_ms: int

    @property
    def waiting(self) -> int:
        """Offsets that read_uncommitted reads and read_committed does not."""
        if self.last_stable_offset is None or self.high_watermark is None:
            return 0
        return max(0, self.high_watermark - self.last_stable_offset)


@frozen
class TopicStalls:
    """The partitions that were asked for, in order."""

    partitions: Sequence[StallFacts]
    failures: Sequence[Exception]


async def gather_stalls(
    cluster: Cluster, topic: str, indexes: Sequence[int] | None = None
) -> TopicStalls:
    """Return the facts about partitions (None: all) of a topic.

    Raises BrokerError if the topic or a partition does not exist.
    """
    healths = await _healths(cluster, topic, indexes)
    failures: list[Exception] = []
    led = [where for where, health in healths.items() if health.leader is not None]
    stable, ends = await _offsets(cluster, led, failures)
    behind = [
        where
        for where in led
        if where not in stable or where not in ends or stable[where] < ends[where]
    ]
    before = await _producers(cluster, behind, failures)
    open_before = open_transactions(before)
    known = await coordinated(cluster, {each.producer.producer_id for each in open_before})
    failures += known.failures
    after = await _producers(cluster, behind, failures)
    later, _ = await _offsets(cluster, behind, failures)
    still = {_key(each) for each in open_transactions(after)}
    unmarked = await _unmarked(cluster, known)
    partitions = []
    for where, health in healths.items():
        moved_to = later.get(where)
        is_moving = moved_to is not None and moved_to > stable.get(where, moved_to)
        own = [each for each in open_before if each.where == where and _key(each) in still]
        partitions.append(
            StallFacts(
                where,
                health,
                moved_to if moved_to is not None else stable.get(where),
                ends.get(where),
                is_moving,
                [_stalling(each, known, unmarked) for each in own],
                cluster.transport.now_ms(),
            )
        )
    different = {str(each): each for each in failures}
    return TopicStalls(partitions, list(different.values()))


async def _healths(
    cluster: Cluster, topic: str, indexes: Sequence[int] | None
) -> dict[TopicPartition, PartitionHealth]:
    described = (await AdminClient(cluster).describe_topics([topic]))[topic]
    if isinstance(described, BrokerError):
        raise described
    healths = {
        TopicPartition(topic, each.index): each
        for each in await describe_health(cluster, [described])
    }
    wanted = list(healths) if indexes is None else [TopicPartition(topic, i) for i in indexes]
    for where in wanted:
        if where not in healths:
            text = f"there is no such partition; topic {topic} has {len(healths)}"
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise BrokerError(code, text, f"partition {where}")
    return {where: healths[where] for where in wanted}


async def _offsets(
    cluster: Cluster, partitions: Sequence[TopicPartition], failures: list[Exception]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the last stable offsets and, read later, the high watermarks."""
    admin = AdminClient(cluster)
    found: list[dict[TopicPartition, int]] = []
    for read_committed in (True, False):
        offsets: dict[TopicPartition, int] = {}
        try:
            answers = await admin.list_offsets(
                dict.fromkeys(partitions, LATEST),
                read_committed=read_committed,
                timeout_s=min(cluster.timeout_s, OFFSETS_TIMEOUT_S),
            )
        except (AdminError, BrokerError) as error:
            failures.append(error)
            answers = {}
        for where, answer in answers.items():
            if isinstance(answer, BrokerError):
                failures.append(answer)
            else:
                offsets[where] = answer.offset
        found.append(offsets)
    return found[0], found[1]


async def _producers(
    cluster: Cluster, partitions: Sequence[TopicPartition], failures: list[Exception]
) -> Answers[list[ProducerState]]:
    if not partitions:
        return {}
    try:
        answers = await describe_producers(cluster, partitions)
    except UnreachableError as error:
        failures.append(error)
        return {}
    failures += [each for each in answers.values() if isinstance(each, BrokerError)]
    return answers


async def _unmarked(
    cluster: Cluster, known: Coordinated
) -> Mapping[TopicPartition, PartitionHealth]:
    """Return the health of the partitions of prepared transactions."""
    topics = {
        where.topic
        for each in known.descriptions.values()
        if each.is_prepared
        for where in each.partitions
    }
    if not topics:
        return {}
    described = await AdminClient(cluster).describe_topics(sorted(topics))
    there = [each for each in described.values() if not isinstance(each, BrokerError)]
    return {
        TopicPartition(each.topic, each.index): each
        for each in await describe_health(cluster, there)
    }


def _stalling(
    open_: OpenTransaction, known: Coordinated, healths: Mapping[TopicPartition, PartitionHealth]
) -> StallingTransaction:
    description = known.descriptions.get(open_.producer.producer_id)
    unmarked = (
        [healths[where] for where in description.partitions if where in healths]
        if description is not None and description.is_prepared
        else []
    )
    why = why_hanging(open_, description, known.is_complete)
    return StallingTransaction(open_, description, why, unmarked)


def _key(each: OpenTransaction) -> tuple[TopicPartition, int, int]:
    return each.where, each.producer.producer_id, each.start_offset
