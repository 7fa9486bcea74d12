"""Results of the administration of transactions: plain values with Kafka's names."""

from collections.abc import Mapping, Sequence
from typing import Final

from metaquorum.client.cluster import TopicPartition
from metaquorum.wire.primitives.frozen import frozen

# States of a transactional id, by Kafka's names.
STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
ONGOING: Final = "Ongoing"
# The outcome is decided, and markers are being written.
PREPARED: Final = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
NO_COORDINATOR_EPOCH: Final = -1


@frozen
class TransactionListing:
    """A transactional id in the list of a coordinator."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int  # node id

    @property
    def is_active(self) -> bool:
        """Whether it has a transaction that is open or prepared."""
        return self.state == ONGOING or self.state in PREPARED


@frozen
class TransactionList:
    """Transactional ids of all nodes that answered, and the errors of the others.

    `lost_partitions`: partitions of __transaction_state without a leader; their ids are missing.
    """

    transactions: Sequence[TransactionListing]
    failures: Mapping[int, Exception]
    lost_partitions: Sequence[int]

    @property
    def is_complete(self) -> bool:
        """Whether no transactional id can be missing."""
        return not self.failures and not self.lost_partitions


@frozen
class TransactionDescription:
    """State of a transactional id. `start_time_ms`: of its last transaction; None: it had none.

    `partitions`: of an ongoing transaction; of a prepared one those without a marker.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None
    partitions: Sequence[TopicPartition]
    coordinator: int

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided, and markers are missing."""
        return self.state in PREPARED

    @property
    def is_active(self) -> bool:
        """Whether the coordinator will end the transaction."""
        return self.state == ONGOING or self.is_prepared

    @property
    def is_commit(self) -> bool:
        return self.state in ("PrepareCommit", "CompleteCommit")


@frozen
class ProducerState:
    """A producer that a partition remembers. `start_offset` None: no open transaction.

    `coordinator_epoch` -1: no transaction of this producer has ended in the partition yet.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    start_offset: int | None


@frozen
class OpenTransaction:
    """A transaction that a partition's log has not seen the end of."""

    where: TopicPartition
    producer: ProducerState

    @property
    def start_offset(self) -> int:
        assert self.producer.start_offset is not None
        return self.producer.start_offset


@frozen
class HangingTransaction:
    """An open transaction that no coordinator will end. `why`: a sentence."""

    open: OpenTransaction
    transactional_id: str | None
    why: str
