"""State of a transactional producer: what is permitted next, and what each error means. Plain.

    NEW        no producer id yet, or the last `init` failed     init
    READY      no transaction                                    begin
    OPEN       in a transaction                                  send, send_offsets, commit, abort
    FAILED     a step of the transaction failed                  abort
    COMMITTING the commit was begun, and no answer is known      commit
    ABORTING   the abort was begun, and no answer is known       abort
    FATAL      fenced, or refused finally                        nothing

    NEW --init--> READY --begin--> OPEN --commit--> COMMITTING --answer--> READY
                                   OPEN, FAILED --abort--> ABORTING --answer--> READY

Levels of `transaction.version` (a feature of the cluster):

    0, 1  AddPartitionsToTxn and AddOffsetsToTxn before the first record or offset; sequences
          continue in the next transaction; after a failed step InitProducerId raises the epoch
          (KIP-360)
    2     a leader adds its partition with the first record (KIP-890); EndTxn answers with the epoch
          of the next transaction, in which sequences begin at 0; the first transaction after a
          lower level needs a new epoch from InitProducerId before it begins

The level is that of the coordinator's finalized features when the transaction begins.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.errors import BrokerError
from metaquorum.client.transactions.errors import FatalTransactionError, abortable, fatal
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.records.records import NO_PRODUCER_ID

# Level from which partitions are added by the first record, and each transaction has an epoch.
IMPLICIT_SINCE: Final = 2

# Errors that no later transaction of this producer can escape, in the answer to any request.
_FATAL: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.INVALID_REQUEST,
    }
)
# Fatal in the answers of the coordinator; a leader gives them if a transaction has ended meanwhile.
_FATAL_OF_COORDINATOR: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE}
)


class State(Enum):
    """States of a producer; see the module."""

    NEW = "new"
    READY = "ready"
    OPEN = "in a transaction"
    FAILED = "in a transaction that can only be aborted"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FATAL = "unusable"


class WrongStateError(RuntimeError):
    """Raised if a call is not permitted in the state of the producer."""


@dataclass(slots=True)
class TransactionState:
    """State of one producer.

    `is_started`: the coordinator may have the transaction; `is_confirmed`: it has.
    `is_bump_needed`: at levels below 2,
    the epoch must be raised after the abort, as it is not known which records were appended.
    `is_uncertain`: an answer to EndTxn was lost, so that the coordinator may have decided.
    `is_epoch_used`: a transaction below level 2 has ended, and its epoch was kept. Its markers may
    not be written yet, so records that add their partition themselves could still join it.
    """

    transactional_id: str
    state: State = State.NEW
    level: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    is_started: bool = False
    is_confirmed: bool = False
    is_bump_needed: bool = False
    is_uncertain: bool = False
    is_unknown_to_coordinator: bool = False
    is_epoch_used: bool = False
    error: BrokerError | None = None

    @property
    def subject(self) -> str:
        """Name of the producer in errors."""
        return f"transactional id {self.transactional_id}"

    @property
    def is_implicit(self) -> bool:
        """Whether records add their partitions to the transaction."""
        return self.level >= IMPLICIT_SINCE

    def check(self, *permitted: State) -> None:
        """Raise the error of the producer, or WrongStateError, unless in a permitted state."""
        if self.state in permitted:
            return
        if self.state is State.FATAL and self.error is not None:
            raise fatal(self.error)
        if self.state is State.FAILED and self.error is not None:
            raise abortable(self.error)
        wanted = " or ".join(each.value for each in permitted)
        raise WrongStateError(f"{self.subject} is {self.state.value}; the call needs: {wanted}")

    def initialized(self, producer_id: int, producer_epoch: int) -> None:
        """Take a producer id and epoch."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.is_epoch_used = False
        self._ready()

    def needs_epoch(self, level: int) -> bool:
        """Return whether a transaction of `level` must begin with a new epoch."""
        return level >= IMPLICIT_SINCE and self.is_epoch_used

    def begin(self, level: int) -> None:
        """Begin a transaction at a level of `transaction.version`."""
        self.check(State.READY)
        self.level = level
        self.state = State.OPEN

    def unadded(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that must be added to the transaction before records."""
        return [] if self.is_implicit else [p for p in partitions if p not in self.partitions]

    def on_error(self, error: BrokerError, *, of_coordinator: bool) -> BrokerError:
        """Take the final error of a step; return the error for the program.

        `of_coordinator`: the coordinator of the transaction or of a group gave the answer.
        """
        if self.state is State.FATAL or isinstance(error, FatalTransactionError):
            return self.refused(self.error or error)
        if error.code in _FATAL or (of_coordinator and error.code in _FATAL_OF_COORDINATOR):
            return self.refused(error)
        if error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            self.is_unknown_to_coordinator = True
        self.fail(error)
        return abortable(error)

    def refused(self, error: BrokerError) -> FatalTransactionError:
        """Take an error that ends the use of the producer; return it for the program."""
        self.state, self.error = State.FATAL, error
        return fatal(error)

    def fail(self, error: BrokerError) -> None:
        """Let the transaction be aborted only."""
        if self.state in (State.OPEN, State.FAILED):
            self.state, self.error = State.FAILED, error
            self.is_bump_needed = True

    def ended(self, producer_id: int, producer_epoch: int) -> bool:
        """Take the answer to EndTxn; return whether the producer has a new epoch.

        Answers before EndTxn 5 have no producer id (-1).
        """
        is_new = producer_id >= 0 and producer_epoch >= 0
        is_new = is_new and (producer_id, producer_epoch) != (self.producer_id, self.producer_epoch)
        if is_new:
            self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.is_epoch_used = not is_new and (self.is_started or self.is_epoch_used)
        self._ready()
        return is_new

    def _ready(self) -> None:
        self.state = State.READY
        self.partitions.clear()
        self.groups.clear()
        self.is_started = self.is_confirmed = self.is_bump_needed = False
        self.is_uncertain = self.is_unknown_to_coordinator = False
        self.error = None
