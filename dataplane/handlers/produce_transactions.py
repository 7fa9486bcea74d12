"""Transactional batches of produce requests: which must be verified, and with what outcome.

    batch                                     request
    none is transactional                     as without a transactional id
    transactional, no transactional id        refused: TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    of two producers                          refused: INVALID_PRODUCER_ID_MAPPING
    of a producer with an open transaction    appended
    the first of a transaction                the coordinator is asked first (KIP-890)

From version 12 on, the question adds the partition to the transaction: that is how clients of
transaction.version 2 do it. Errors depend on the version, as older clients know fewer of them.

A verification lasts as long as its request: `ProduceTransaction.begin` is called before the
question, and `cancel` after the appends.
"""

from collections.abc import Collection, Mapping
from struct import Struct
from typing import Final, Protocol

from metaquorum.dataplane.log.segments.verification import NOT_REQUIRED, Verification
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.scheduling.time_slices import for_each_of
from metaquorum.dataplane.worker.capabilities import HasClock, HasImage, HasPartitions
from metaquorum.dataplane.worker.feature_levels import has_level
from metaquorum.dataplane.worker.transaction_verifier import MAX_PLACES, Place, TransactionVerifier
from metaquorum.quorum.controller.internal_topics import TRANSACTIONS_LEVEL
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.types import Buffer
from metaquorum.wire.records.batches import ATTRIBUTES_LOW_AT, HEADER_BYTES, TRANSACTIONAL

FIRST_WITH_ABORTABLE: Final = 11  # KIP-890: TRANSACTION_ABORTABLE
FIRST_THAT_ADDS: Final = 12
FIRST_WITH_TOPIC_ID: Final = 13
# Delays of the question while the producer's last transaction is being completed; seconds.
# Kafka: add.partitions.to.txn.retry.backoff.ms and .max.ms.
RETRY_S: Final = 0.02
RETRIES_S: Final = 0.1

_unpack_producer = Struct(">qhi").unpack_from
_PRODUCER_AT: Final = 43
# Errors that the clients of all versions retry, if they are reported as NOT_ENOUGH_REPLICAS.
_TRY_AGAIN: Final = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        # Its coordinator does not know another partition of the request yet.
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    )
)


class VerifiesWithoutWait(Protocol):
    """Capability to ask the transaction coordinator of this worker about its partitions."""

    @property
    def transaction_verifier(self) -> TransactionVerifier: ...

    @property
    def verifies_transactions(self) -> bool:
        """The config `transaction.partition.verification.enable`."""


class VerifiesTransactions(VerifiesWithoutWait, HasClock, HasPartitions, HasImage, Protocol):
    """Capability to ask transaction coordinators about the partitions that this worker leads."""


def is_transactional(records: Buffer | None) -> bool:
    """Return whether the batch, which may be malformed, has the flag of a transaction."""
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and records[ATTRIBUTES_LOW_AT] & TRANSACTIONAL != 0
    )


def transaction_of(records: Buffer) -> tuple[int, int, int] | None:
    """Return what `producer_of` does for a transactional batch; None for any other."""
    if len(records) < HEADER_BYTES or not records[ATTRIBUTES_LOW_AT] & TRANSACTIONAL:
        return None
    producer_id, epoch, sequence = _unpack_producer(records, _PRODUCER_AT)
    return producer_id, epoch, sequence


def producer_of(records: Buffer) -> tuple[int, int, int]:
    """Return producer id, producer epoch and base sequence of a batch with a whole header."""
    producer_id, epoch, sequence = _unpack_producer(records, _PRODUCER_AT)
    return producer_id, epoch, sequence


class ProduceTransaction:
    """The transaction of one produce request."""

    __slots__ = ("_version", "codes", "errors", "places", "producer", "verifications")

    def __init__(self, version: int) -> None:
        self._version = version
        self.producer: tuple[int, int] | None = None
        # Partitions to verify, which have the first batch of a transaction.
        self.places: dict[Place, Partition] = {}
        self.verifications: dict[Place, Verification] = {}
        self.errors: dict[Place, KafkaError] = {}
        self.codes: Mapping[Place, ErrorCode] = {}

    @property
    def adds(self) -> bool:
        return self._version >= FIRST_THAT_ADDS

    def begin(self) -> None:
        """Begin the verifications; the caller must `cancel` them when the request is over."""
        assert self.producer is not None
        for place, partition in self.places.items():
            self.verifications[place] = partition.log.producers.verifications.begin(
                self.producer[0], has_own_epoch=self.adds
            )

    def begin_again(self) -> bool:
        """Begin those verifications again that a marker has ended; return whether there are any."""
        assert self.producer is not None
        producer_id, epoch = self.producer
        has_ended = False
        for place, partition in self.places.items():
            producers = partition.log.producers
            verifications = producers.verifications
            if not (
                verifications.is_pending(producer_id, self.verifications[place])
                or producers.in_transaction(producer_id, epoch)
            ):
                has_ended = True
                self.verifications[place] = verifications.begin(
                    producer_id, has_own_epoch=self.adds
                )
        return has_ended

    def cancel(self) -> None:
        """End the verifications that have not ended, and no others of the same producer."""
        assert self.producer is not None
        for place, verification in self.verifications.items():
            producers = self.places[place].log.producers
            producers.verifications.cancel(self.producer[0], verification)

    def verification_of(self, partition: Partition) -> Verification | None:
        """Return the verification on which an append to this partition relies, if any.

        Raises KafkaError if the partition could not be verified.
        """
        place = partition.topic, partition.index
        if (error := self.errors.get(place)) is not None:
            raise error
        code = self.codes.get(place, ErrorCode.NONE)
        if code:
            raise produce_error(code, self._version)
        return self.verifications.get(place)


def confirmed_here(
    worker: VerifiesWithoutWait, encoded_id: memoryview, producer_id: int, epoch: int
) -> Collection[Place]:
    """Return the partitions of the transaction if its coordinator is in this worker.

    What is not certain, errors included, is left to `look_for_transaction`.
    """
    if producer_id < 0 or not worker.verifies_transactions:
        return ()
    transactional_id = str(encoded_id, "utf-8", "replace")
    return worker.transaction_verifier.confirmed(transactional_id, producer_id, epoch)


def is_confirmed(
    partition: Partition, confirmed: Collection[Place], producer_id: int, epoch: int
) -> bool:
    """Return whether a first batch needs no other verification than these confirmed partitions.

    Nothing happens between the coordinator's answer and the append. Else as in `confirmed_here`.
    """
    if (
        (partition.topic, partition.index) not in confirmed
        or partition.leader_id != partition.worker_id
        or partition.offline is not None
    ):
        return False
    entry = partition.log.producers.entries.get(producer_id)
    return entry is None or epoch >= entry.epoch


def verify_now(
    worker: VerifiesTransactions, transaction: ProduceTransaction, transactional_id: str
) -> bool:
    """Ask a coordinator in this worker, which does not have to wait; return whether it is here.

    A coordinator that adds the partitions has to write that first.
    """
    if transaction.adds:
        return False
    assert transaction.producer is not None
    codes = worker.transaction_verifier.verify_now(
        transactional_id, *transaction.producer, transaction.places
    )
    if codes is None:
        return False
    transaction.codes = codes
    return True


async def verify(
    worker: VerifiesTransactions,
    transaction: ProduceTransaction,
    transactional_id: str,
    client: Client,
) -> None:
    """Ask the coordinator about all places, and again soon while it completes a transaction.

    A coordinator that adds the partitions is also asked again if the marker of the last transaction
    has ended a verification: it may have been written just before the answer. Were it a later one,
    the producer's epoch would have ended with it, and the coordinator refuses it now.
    """
    assert transaction.producer is not None
    clock = worker.clock
    give_up = clock.monotonic() + RETRIES_S
    while True:
        transaction.codes = await worker.transaction_verifier.verify(
            transactional_id,
            *transaction.producer,
            transaction.places,
            client,
            adds=transaction.adds,
        )
        if not transaction.adds or clock.monotonic() >= give_up:
            return
        is_busy = ErrorCode.CONCURRENT_TRANSACTIONS in transaction.codes.values()
        if is_busy:
            await clock.sleep_until(clock.monotonic() + RETRY_S)
        if not transaction.begin_again() and not is_busy:
            return


async def look_for_transaction(
    worker: VerifiesTransactions, message: ProduceRequest, version: int
) -> ProduceTransaction | None:
    """Return the transaction of the request; None if no batch is transactional.

    Raises KafkaError if the whole request must be refused.
    """
    transaction = ProduceTransaction(version)
    found: list[tuple[TopicProduceData, PartitionProduceData]] = []

    def look(topic: TopicProduceData, data: PartitionProduceData) -> None:
        if is_transactional(data.records):
            found.append((topic, data))

    await for_each_of(message.topic_data, lambda topic: topic.partition_data, look)
    if not found:
        return None
    if not has_level(worker.image, TRANSACTIONS_LEVEL):
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, "this cluster's metadata.version has no transactions"
        )
    if message.transactional_id is None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a transactional batch in a request without a transactional id",
        )
    is_required = transaction.adds or worker.verifies_transactions

    def add(topic: TopicProduceData, data: PartitionProduceData) -> None:
        _add(worker, transaction, topic, data, is_required=is_required)

    await for_each_of(found, lambda one: (one,), lambda _, one: add(*one))
    return transaction


def _add(
    worker: VerifiesTransactions,
    transaction: ProduceTransaction,
    topic: TopicProduceData,
    data: PartitionProduceData,
    *,
    is_required: bool,
) -> None:
    """Add the partition to those of the transaction, and to those to verify if it must be."""
    assert data.records is not None
    producer_id, epoch, _ = producer_of(data.records)
    if producer_id < 0:
        return  # the batch is refused
    if transaction.producer is None:
        transaction.producer = producer_id, epoch
    elif transaction.producer != (producer_id, epoch):
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "transactional batches of more than one producer in a request",
        )
    partition = _led_partition(worker, topic, data.index)
    if partition is None or partition.is_internal:
        return  # the append refuses it
    producers = partition.log.producers
    if producers.is_verified(producer_id, epoch, has_own_epoch=transaction.adds):
        return
    place = partition.topic, partition.index
    if not is_required:
        transaction.verifications[place] = NOT_REQUIRED
        return
    try:
        if len(transaction.places) >= MAX_PLACES:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"a request begins transactions in more than {MAX_PLACES} partitions",
            )
        producers.check_epoch(producer_id, epoch)
        transaction.places[place] = partition
    except KafkaError as error:
        transaction.errors[place] = error


def _led_partition(worker: HasPartitions, topic: TopicProduceData, index: int) -> Partition | None:
    """Return the partition; None if this worker does not lead it, which the append reports."""
    try:
        if topic.name:
            partition = worker.replica_manager.by_name(topic.name, index)
        else:
            partition = worker.replica_manager.by_id(topic.topic_id, index)
    except KafkaError:
        return None
    return None if partition.leader_error() else partition


def produce_error(code: ErrorCode, version: int) -> KafkaError:
    """Return the error to report for the coordinator's answer, by the version of the request."""
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_WITH_ABORTABLE:
        code = ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.INVALID_TXN_STATE:
        return KafkaError(code, "the partition is not part of the transaction")
    if code in _TRY_AGAIN and not (
        code is ErrorCode.CONCURRENT_TRANSACTIONS and version >= FIRST_THAT_ADDS
    ):
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the transaction's coordinator has not verified the partition: {code.name}",
        )
    return KafkaError(code, f"the transaction's coordinator refused the partition: {code.name}")
