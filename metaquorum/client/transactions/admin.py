"""Administration of transactions, as one class."""

from collections.abc import Iterable, Sequence

from metaquorum.client.cluster import Answers, Cluster, TopicPartition
from metaquorum.client.groups.coordinators import Outcomes
from metaquorum.client.transactions.hanging import (
    DEFAULT_MAX_TIMEOUT_S,
    Coordinated,
    HangingList,
    coordinated,
    find_hanging,
)
from metaquorum.client.transactions.queries import (
    abort_in_partition,
    describe_producers,
    describe_transactions,
    fence_producer,
    list_transactions,
    remove_ids,
)
from metaquorum.client.transactions.stall_facts import TopicStalls, gather_stalls
from metaquorum.client.transactions.values import (
    ProducerState,
    TransactionDescription,
    TransactionList,
)


class TransactionAdmin:
    """Administration of the transactions of one cluster; `metaquorum.client.administration.admin`
    explains errors.

    Works with Kafka 3.0 and later.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        min_duration_ms: int = -1,
        pattern: str | None = None,
    ) -> TransactionList:
        """Return the transactional ids of all nodes that match (empty: any), by name.

        `min_duration_ms`: without transactions that began later. `pattern`: RE2 expression for
        the whole id. Raises AdminError if the cluster is too old for a filter.
        """
        return await list_transactions(
            self.cluster,
            states=states,
            producer_ids=producer_ids,
            min_duration_ms=min_duration_ms,
            pattern=pattern,
        )

    async def describe_transactions(
        self, transactional_ids: Sequence[str]
    ) -> Outcomes[TransactionDescription]:
        """Return the state of each transactional id, or TRANSACTIONAL_ID_NOT_FOUND."""
        return await describe_transactions(self.cluster, transactional_ids)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], node_id: int | None = None
    ) -> Answers[list[ProducerState]]:
        """Return the producers that the leader of each partition, or one node, remembers."""
        return await describe_producers(self.cluster, partitions, node_id)

    async def coordinated(self, producer_ids: Iterable[int]) -> Coordinated:
        """Return the transactions of these producer ids at the coordinators."""
        return await coordinated(self.cluster, producer_ids)

    async def find_hanging(
        self,
        partitions: Iterable[TopicPartition],
        *,
        node_id: int | None = None,
        max_timeout_s: float = DEFAULT_MAX_TIMEOUT_S,
    ) -> HangingList:
        """Return the transactions of partitions that no coordinator will end.

        Only those whose last record is older than `max_timeout_s`, the longest transaction timeout.
        """
        return await find_hanging(
            self.cluster, partitions, node_id=node_id, max_timeout_s=max_timeout_s
        )

    async def abort_in_partition(
        self,
        where: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
    ) -> None:
        """Write an abort marker to one partition, to end a hanging transaction there.

        Never for a transaction that a coordinator knows, which would be torn. Raises BrokerError.
        """
        await abort_in_partition(
            self.cluster,
            where,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )

    async def fence_producer(self, transactional_id: str) -> tuple[int, int]:
        """Fence the producer with a transactional id, which aborts its open transaction.

        Returns the producer id and epoch that are valid from now on. A transactional id that does
        not exist is created. Raises BrokerError.
        """
        return await fence_producer(self.cluster, transactional_id)

    async def remove_ids(self, transactional_ids: Sequence[str]) -> Outcomes[None]:
        """Remove transactional ids without an open transaction; return None or the error of each.

        Their producers get an error at their next transaction, and must initialize again. Raises
        NotServedError if the cluster is Apache Kafka.
        """
        return await remove_ids(self.cluster, transactional_ids)

    async def gather_stalls(self, topic: str, indexes: Sequence[int] | None = None) -> TopicStalls:
        """Return the facts about partitions (None: all) for `stall_explanation.explain`.

        Raises BrokerError if the topic or a partition does not exist.
        """
        return await gather_stalls(self.cluster, topic, indexes)
