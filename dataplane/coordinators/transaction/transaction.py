"""The state machine of one transactional id. Plain values: each transition returns the next one.

                     AddPartitions                EndTxn, timeout
    Empty ----------------------------> Ongoing ------------------> PrepareCommit, PrepareAbort
      ^     ^           AddPartitions ^    |                                   |
      |     '-- InitProducerId --.    |    '-InitProducerId, timeout:          | all markers
      | InitProducerId           |    |      PrepareEpochFence, then           v are written
      '-- (a new id)             '----+----- PrepareAbort -----> CompleteCommit, CompleteAbort
                                                                               |
    Empty, CompleteCommit, CompleteAbort -- expired --> Dead (a tombstone)  <--'

PrepareEpochFence and Dead are only ever pending: no record has them. With transaction.version 2
(KIP-890), EndTxn also aborts a transaction that is Empty or complete, to which nothing was added.

    epoch         grows with      version 0 and 1    InitProducerId; fencing of an open transaction
                                  version 2          the same, and every EndTxn
    exhausted     at 32,766: the last one, 32,767, is for fencing only
    next id       InitProducerId gives a new producer id with epoch 0; EndTxn of version 2 writes
                  the new id into the prepared record, and the completed transaction has it

Source: KIP-98, KIP-360 (expected id and epoch), KIP-890; TransactionMetadata of Apache Kafka 4.3.1.
"""

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Final, TypeAlias

from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
# Highest epoch of a producer, and the highest one that a client is given.
MAX_EPOCH: Final = 32_767
LAST_EPOCH: Final = MAX_EPOCH - 1
# transaction.version from which each transaction has an epoch of its own.
EPOCH_BUMP_VERSION: Final = 2

# Topic name and partition index.
Place: TypeAlias = tuple[str, int]


class State(Enum):
    """State: the number in records, and the name in DescribeTransactions."""

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"

    def __init__(self, number: int, title: str) -> None:
        self.number = number
        self.title = title

    # Members are equal only to themselves; Enum hashes their names, in Python.
    __hash__ = object.__hash__

    @classmethod
    def of_number(cls, number: int) -> "State":
        """Return the state of a record. Raises ValueError."""
        for state in cls:
            if state.number == number:
                return state
        raise ValueError(f"state {number} of a transaction is unknown")


# Constants, because Python 3.11 looks up members of an enum slowly.
EMPTY: Final = State.EMPTY
ONGOING: Final = State.ONGOING
PREPARE_COMMIT: Final = State.PREPARE_COMMIT
PREPARE_ABORT: Final = State.PREPARE_ABORT
COMPLETE_COMMIT: Final = State.COMPLETE_COMMIT
COMPLETE_ABORT: Final = State.COMPLETE_ABORT
PREPARED: Final = frozenset((PREPARE_COMMIT, PREPARE_ABORT))
COMPLETED: Final = frozenset((COMPLETE_COMMIT, COMPLETE_ABORT))
# States without an open transaction: the transactional id may expire.
IDLE: Final = COMPLETED | {EMPTY}
# State after the markers of a prepared transaction.
COMPLETION: Final = {PREPARE_COMMIT: COMPLETE_COMMIT, PREPARE_ABORT: COMPLETE_ABORT}
BY_NAME: Final = {state.title: state for state in State}


@frozen
class Transaction:
    """Producer id and epoch of a transactional id, and its last transaction.

    `last_producer_epoch` is the one before the last bump, for retries. `started_ms` is NO_TIME
    before the first transaction. `client_version` is the transaction.version of the client.

    The three transitions of every transaction pass the fields in order: `replace` takes ten times
    as long.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    state: State = EMPTY
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_EPOCH
    partitions: frozenset[Place] = frozenset()
    started_ms: int = NO_TIME
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for a client."""
        return self.producer_epoch >= LAST_EPOCH

    def has_timed_out(self, now_ms: int) -> bool:
        return self.state is ONGOING and self.started_ms + self.timeout_ms < now_ms

    def initialized(
        self, timeout_ms: int, expected_epoch: int | None, now_ms: int
    ) -> "Transaction":
        """Return the state after InitProducerId without an open transaction.

        Raises KafkaError (PRODUCER_FENCED) unless the expected epoch is the current one or, as in a
        retry, the one before it.
        """
        epoch, last_epoch = self.producer_epoch + 1, NO_EPOCH
        if expected_epoch is not None:
            if self.producer_epoch == NO_EPOCH or expected_epoch == self.producer_epoch:
                last_epoch = self.producer_epoch
            elif expected_epoch == self.last_producer_epoch:
                epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
            else:
                raise KafkaError(
                    ErrorCode.PRODUCER_FENCED,
                    f"epoch {expected_epoch} is neither the current epoch nor the one before",
                )
        return replace(
            self,
            state=EMPTY,
            previous_producer_id=self.producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def with_new_id(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, keeps_last_epoch: bool
    ) -> "Transaction":
        """Return the state after InitProducerId whose epochs are exhausted."""
        return replace(
            self,
            state=EMPTY,
            producer_id=producer_id,
            previous_producer_id=self.producer_id,
            producer_epoch=0,
            last_producer_epoch=self.producer_epoch if keeps_last_epoch else NO_EPOCH,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def with_partitions(
        self, added: Iterable[Place], now_ms: int, client_version: int
    ) -> "Transaction":
        """Return the state with more partitions; the first of them begin the transaction."""
        return Transaction(
            self.producer_id,
            self.producer_epoch,
            self.timeout_ms,
            now_ms,
            ONGOING,
            self.producer_id,
            self.next_producer_id,
            self.last_producer_epoch,
            self.partitions.union(added),
            now_ms if self.state in IDLE else self.started_ms,
            client_version,
        )

    def prepared(
        self,
        state: State,
        client_version: int,
        now_ms: int,
        *,
        next_producer_id: int = NO_PRODUCER_ID,
        is_fenced: bool = False,
    ) -> "Transaction":
        """Return the state that decides the transaction; `is_fenced` by another than its client."""
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        if client_version >= EPOCH_BUMP_VERSION:
            epoch, last_epoch = min(epoch + 1, MAX_EPOCH), epoch
        elif is_fenced:
            epoch, last_epoch = min(epoch + 1, MAX_EPOCH), NO_EPOCH
        was_idle = self.state in IDLE
        return Transaction(
            self.producer_id,
            epoch,
            self.timeout_ms,
            now_ms,
            state,
            self.producer_id,
            next_producer_id,
            last_epoch,
            frozenset() if was_idle else self.partitions,
            # A transaction to which nothing was added begins with its end.
            now_ms if was_idle else self.started_ms,
            client_version,
        )

    def completed(self, now_ms: int) -> "Transaction":
        """Return the state once all markers of a prepared transaction are written."""
        assert self.state in PREPARED
        producer_id, epoch, last_epoch = (
            self.producer_id,
            self.producer_epoch,
            self.last_producer_epoch,
        )
        if self.client_version >= EPOCH_BUMP_VERSION and self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch, last_epoch = self.next_producer_id, 0, self.producer_epoch
        return Transaction(
            producer_id,
            epoch,
            self.timeout_ms,
            now_ms,
            COMPLETION[self.state],
            self.producer_id,
            NO_PRODUCER_ID,
            last_epoch,
            frozenset(),
            self.started_ms,
            self.client_version,
        )

    def used_up(self) -> "Transaction":
        """Return the state with the last epoch: no client is given another one of this id."""
        return replace(self, producer_epoch=MAX_EPOCH, last_producer_epoch=self.producer_epoch)

    def aborted_after_loss(self, places: Iterable[Place], now_ms: int) -> "Transaction":
        """Return the decision to abort what the producer id has left open in these partitions.

        The last epoch ends a transaction of any other, and fences the producer id permanently.
        """
        return replace(
            self,
            state=PREPARE_ABORT,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=MAX_EPOCH,
            last_producer_epoch=NO_EPOCH,
            started_ms=now_ms if self.state in IDLE else self.started_ms,
            updated_ms=now_ms,
            partitions=frozenset(places),
        )

    def partitions_by_topic(self) -> dict[str, list[int]]:
        """Return the partitions of each topic; topics and partitions are in order."""
        return by_topic(self.partitions)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        assert self.producer_id >= 0
        assert NO_EPOCH <= self.producer_epoch <= MAX_EPOCH
        assert NO_EPOCH <= self.last_producer_epoch <= MAX_EPOCH
        assert self.timeout_ms > 0
        if self.producer_epoch and self.last_producer_epoch != NO_EPOCH:
            assert self.last_producer_epoch <= self.producer_epoch
        assert self.next_producer_id == NO_PRODUCER_ID or self.state in PREPARED
        assert not self.partitions or self.state is ONGOING or self.state in PREPARED
        assert self.started_ms >= 0 or self.state in IDLE
        assert self.state is not ONGOING or self.producer_epoch < MAX_EPOCH
        assert self.state is not ONGOING or self.partitions


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    """Return the partitions of each topic; topics and partitions are in order."""
    found: dict[str, list[int]] = {}
    for topic, index in sorted(places):
        found.setdefault(topic, []).append(index)
    return found
