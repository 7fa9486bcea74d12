"""The transactional ids of one partition of `__transaction_state`, and the operations on them.

Every operation decides on the committed state. From the append of its record to its replay the
state that follows is pending, and other operations on the id get CONCURRENT_TRANSACTIONS, which
clients retry. A prepared transaction remains pending until its completion is replayed.

    prepared --replayed--> `on_prepared`: the markers are sent --> complete --replayed

So no marker exists before its decision is committed, and no new transaction begins before the
markers of the last one are written.

An id is doubtful after a load if its last record is older than a possible loss of the end of the
log (the partition's `unclean_epoch`). Epochs that were given after that record are forgotten, and
partitions may know them: if one was given again, its first batches would be taken for duplicates,
and be acknowledged without being stored. So no epoch of such a producer id is given again:

    InitProducerId                   a new producer id, with any expected id and epoch
    EndTxn of version 2, repeated    the known outcome
    all others                       INVALID_PRODUCER_ID_MAPPING; clients abort and initialize
    an open transaction              aborted at once, with the last epoch, which fences all others
    one that only partitions know    the same, in partitions that this worker leads
    a prepared transaction           its markers are sent; completed, it has the last epoch

Ids have a budget of memory with a share for each client (`client_budget`): an id is that of the
client that has created it, also before its first record is committed, or UNKNOWN after a load. The
partitions of its open transaction are its growth.

Source: TransactionCoordinator of Apache Kafka 4.3.1, KIP-98, KIP-360, KIP-890. (Kafka continues the
epochs at the last known one after a loss.)
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import inf
from typing import Final, NamedTuple, TypeVar

from metaquorum.dataplane.coordinators.client_budget import (
    COORDINATOR,
    MAX_NEW_ID_BYTES,
    UNKNOWN,
    ClientBudget,
    Refusal,
    is_longer,
    text_bytes,
)
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord, Write
from metaquorum.dataplane.coordinators.transaction.record_formats import (
    MAX_ID_BYTES,
    MalformedRecordError,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from metaquorum.dataplane.coordinators.transaction.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    COMPLETED,
    COMPLETION,
    EMPTY,
    EPOCH_BUMP_VERSION,
    IDLE,
    LAST_EPOCH,
    MAX_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    Place,
    State,
    Transaction,
)
from metaquorum.dataplane.coordinators.transaction.transaction_statistics import (
    TransactionStatistics,
)
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, Steps, emptied, pause
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

A = TypeVar("A")

# Partitions of one transaction: the record of all of them must fit one batch.
MAX_PARTITIONS: Final = 20_000
# Topics of one transaction, whose record is encoded in one step.
MAX_TOPICS: Final = 2_000
# Seconds until the record of a completion that could not be appended is written again.
RETRY_S: Final = 1.0
NOW: Final = 0.0  # before every monotonic time
# Doubtful ids, and partitions of their open transactions, that are looked at in one step.
MAX_CHECKED: Final = 500
# Memory of an id without its characters and partitions, and of one partition in its state. The
# names of topics are those of the metadata.
ID_BYTES: Final = 500
PARTITION_BYTES: Final = 150
_new_tuple: Final = tuple.__new__  # creates a NamedTuple without the call of its own __new__
# Constants, because Python 3.11 looks up members of an enum slowly.
NO_ERROR: Final = ErrorCode.NONE
_DEAD: Final = State.DEAD
_CONCURRENT_TRANSACTIONS: Final = ErrorCode.CONCURRENT_TRANSACTIONS
_INVALID_PRODUCER_ID_MAPPING: Final = ErrorCode.INVALID_PRODUCER_ID_MAPPING
_PRODUCER_FENCED: Final = ErrorCode.PRODUCER_FENCED
_TRANSACTION_ABORTABLE: Final = ErrorCode.TRANSACTION_ABORTABLE


class Outcome(NamedTuple):
    """Answer to InitProducerId and EndTxn. `needs_id`: repeat the operation with a new id."""

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    needs_id: bool = False


class Expected(NamedTuple):
    """Producer id and epoch that a client believes to have (KIP-360)."""

    producer_id: int
    producer_epoch: int


class Transition(NamedTuple):
    """State of a transactional id after a record; None after a tombstone."""

    transactional_id: str
    after: Transaction | None


def _find_none(shard: "TransactionShard") -> None:
    shard.found_open({})


# Error for a new id. Clients retry the second until memory is free. The first ends their retries,
# so that they report it.
_REFUSED: Final = {
    None: NO_ERROR,
    Refusal.SHARE: ErrorCode.POLICY_VIOLATION,
    Refusal.FULL: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
_CONCURRENT: Final = Outcome(_CONCURRENT_TRANSACTIONS)
_NEEDS_ID: Final = Outcome(NO_ERROR, needs_id=True)
_INVALID_STATE: Final = Outcome(ErrorCode.INVALID_TXN_STATE)


class TransactionShard:
    """The shard of transactional ids.

    `transaction_version` returns the cluster's level; `on_prepared` is called with each transaction
    whose markers must be sent. `find_open` searches for the partitions in which producers have open
    transactions, and calls `found_open` at once or later.
    """

    def __init__(
        self,
        index: int,
        coordinator_epoch: int,
        budget: ClientBudget,
        transaction_version: Callable[[], int],
        on_prepared: Callable[["TransactionShard", str, Transaction], object],
        statistics: TransactionStatistics | None = None,
        find_open: Callable[["TransactionShard"], object] = _find_none,
    ) -> None:
        self.index = index  # number of the partition
        self.coordinator_epoch = coordinator_epoch
        self.transactions: dict[str, Transaction] = {}
        self.unreadable_count = 0  # malformed records, which are skipped
        self.first_problem = ""  # the reason of the first of them
        self.is_unloaded = False
        self.state_counts = [0] * len(State)  # transactional ids by the number of their state
        self._statistics = statistics or TransactionStatistics()
        self._budget = budget
        # Client of each id that counts: of all known ones, and those whose first record is pending.
        self._clients: dict[str, str] = {}
        self._version = transaction_version
        self._on_prepared = on_prepared
        self._pending: dict[str, State] = {}
        self._is_loaded = False
        # Transactions that were not complete when they were loaded, with their ids.
        self._to_resume: deque[tuple[str, Transaction]] = deque()
        self._loaded_ms = NO_TIME
        self._unwritten: dict[str, None] = {}  # completions that could not be appended
        self.next_due = inf
        self._find_open = find_open
        self._doubtful: dict[str, None] = {}
        # Doubtful ids whose open transactions will be aborted, and where producers have them.
        self._to_check: deque[str] = deque()
        self._left_open: Mapping[int, Collection[Place]] | None = None
        self._is_searching = False

    @property
    def doubtful_count(self) -> int:
        """Number of ids whose last records may be lost, and whose clients have not returned."""
        return len(self._doubtful)

    @property
    def unwritten_count(self) -> int:
        """Number of completions that could not be appended, and will be written again."""
        return len(self._unwritten)

    def is_pending(self, transactional_id: str) -> bool:
        return transactional_id in self._pending

    # InitProducerId

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Expected | None,
        now_ms: int,
        new_id: int | None = None,
        client: str = UNKNOWN,
    ) -> Outcome | Write[Outcome]:
        """Give the client a producer id and an epoch that fence all its earlier instances.

        `client` is its name in the budget. An id that exists is never refused for memory.
        """
        known = self.transactions.get(transactional_id)
        if transactional_id in self._pending:
            return _CONCURRENT
        if known is None:
            code = self._check_new(transactional_id, client)
            if code is not NO_ERROR:
                return Outcome(code)
        elif self._clients[transactional_id] == UNKNOWN:
            self._clients[transactional_id] = self._budget.take_over(
                UNKNOWN, client, id_bytes(transactional_id), _partitions_bytes(known)
            )
        if known is None or transactional_id in self._doubtful:
            if new_id is None:
                return _NEEDS_ID
            if known is None:
                self._count(transactional_id, client)
            known = Transaction(new_id, NO_EPOCH, timeout_ms, now_ms)
            after = known.initialized(
                timeout_ms, None if expected is None else expected.producer_epoch, now_ms
            )
            return self._initialized(transactional_id, after, client)
        if expected is not None and not _is_valid(known, expected):
            return Outcome(_PRODUCER_FENCED)
        if known.state is ONGOING:
            return self._fence(transactional_id, known, now_ms, new_id, client)
        if known.state not in IDLE:
            return _CONCURRENT
        expected_epoch = None if expected is None else expected.producer_epoch
        if known.is_exhausted and expected_epoch in (None, known.producer_epoch):
            if new_id is None:
                return _NEEDS_ID
            after = known.with_new_id(
                new_id, timeout_ms, now_ms, keeps_last_epoch=expected is not None
            )
            return self._initialized(transactional_id, after, client)
        try:
            after = known.initialized(timeout_ms, expected_epoch, now_ms)
        except KafkaError as error:
            return Outcome(error.code)
        return self._initialized(transactional_id, after, client)

    def _check_new(self, transactional_id: str, client: str) -> ErrorCode:
        """Return the error of a client that may not create the id."""
        if is_longer(transactional_id, MAX_NEW_ID_BYTES):
            return ErrorCode.INVALID_REQUEST
        refusal = self._budget.refused(
            client, "a transactional id", transactional_id, id_bytes(transactional_id)
        )
        return _REFUSED[refusal]

    def _count(self, transactional_id: str, client: str) -> None:
        self._clients[transactional_id] = client
        self._budget.use(client, id_bytes(transactional_id))

    def _uncount(self, transactional_id: str) -> None:
        """Stop counting an id without partitions. Idempotent."""
        client = self._clients.pop(transactional_id, None)
        if client is not None:
            self._budget.use(client, -id_bytes(transactional_id))

    def client_of(self, transactional_id: str) -> str:
        """Return the client of the id in the budget; UNKNOWN also if the id is not known."""
        return self._clients.get(transactional_id, UNKNOWN)

    def _initialized(
        self, transactional_id: str, after: Transaction, client: str
    ) -> Write[Outcome]:
        outcome = Outcome(NO_ERROR, after.producer_id, after.producer_epoch)
        return self._write(transactional_id, after, outcome, client)

    def _fence(
        self,
        transactional_id: str,
        known: Transaction,
        now_ms: int,
        new_id: int | None,
        client: str,
    ) -> Outcome | Write[Outcome]:
        """Abort an open transaction for another than its client, which retries meanwhile."""
        # Its markers are those of the version that its client has begun it with, or of a later one.
        version = max(self._version(), known.client_version)
        if version < EPOCH_BUMP_VERSION:
            version = 0
        elif known.is_exhausted and new_id is None:
            return _NEEDS_ID
        takes_id = version >= EPOCH_BUMP_VERSION and known.is_exhausted and new_id is not None
        after = known.prepared(
            PREPARE_ABORT,
            version,
            now_ms,
            next_producer_id=new_id if takes_id and new_id is not None else NO_PRODUCER_ID,
            is_fenced=True,
        )
        return self._write(transactional_id, after, _CONCURRENT, client)

    # Partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer: Expected,
        places: Collection[Place],
        client_version: int,
        now_ms: int,
        client: str = UNKNOWN,
    ) -> ErrorCode | Write[ErrorCode]:
        """Add partitions to the transaction; the first begin it.

        They count for the client of the id, and their uncommitted record for `client`.
        """
        if transactional_id in self._pending:
            return _CONCURRENT_TRANSACTIONS
        known = self._certain(transactional_id)
        code = _check_producer(known, producer)
        if known is None or code is not NO_ERROR:
            return code
        if known.state in PREPARED:
            return _CONCURRENT_TRANSACTIONS
        if known.state is ONGOING and known.partitions.issuperset(places):
            return NO_ERROR
        before = known.partitions if known.state is ONGOING else frozenset()
        added = len(before.union(places)) - len(before)
        if len(before) + added > MAX_PARTITIONS or (
            len(before) + added > MAX_TOPICS
            and len({topic for topic, _ in chain(before, places)}) > MAX_TOPICS
        ):
            return ErrorCode.INVALID_REQUEST
        refusal = self._budget.refused(
            self._clients[transactional_id],
            "partitions of a transaction",
            transactional_id,
            0,
            added * PARTITION_BYTES,
        )
        if refusal is not None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # until other transactions have ended
        after = known.with_partitions(places, now_ms, client_version)
        return self._write(transactional_id, after, NO_ERROR, client)

    def verify_partitions(
        self, transactional_id: str, producer: Expected, places: Iterable[Place]
    ) -> dict[Place, ErrorCode]:
        """Return for each partition whether it is part of the transaction (KIP-890)."""
        known = self._certain(transactional_id)
        code = _check_producer(known, producer)
        if known is None or code is not NO_ERROR:
            return dict.fromkeys(places, code)
        if known.state in PREPARED:
            return dict.fromkeys(places, _CONCURRENT_TRANSACTIONS)
        return {
            place: NO_ERROR if place in known.partitions else _TRANSACTION_ABORTABLE
            for place in places
        }

    def confirmed(
        self, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> Collection[Place]:
        """Return the partitions for which `verify_partitions` finds no error."""
        known = self.transactions.get(transactional_id)
        if (
            known is None
            or transactional_id in self._doubtful
            or known.producer_id != producer_id
            or known.producer_epoch != producer_epoch
            or known.state in PREPARED
        ):
            return ()
        return known.partitions

    def _certain(self, transactional_id: str) -> Transaction | None:
        """Return the transaction, unless later records of it may be lost."""
        if transactional_id in self._doubtful:
            return None
        return self.transactions.get(transactional_id)

    # End

    def end(
        self,
        transactional_id: str,
        producer: Expected,
        *,
        is_commit: bool,
        client_version: int,
        now_ms: int,
        new_id: int | None = None,
        client: str = UNKNOWN,
    ) -> Outcome | Write[Outcome]:
        """Commit or abort the transaction of a client; its uncommitted record is of `client`."""
        known = self.transactions.get(transactional_id)
        if known is None:
            if transactional_id in self._pending:
                return _CONCURRENT
            return Outcome(_INVALID_PRODUCER_ID_MAPPING)
        if transactional_id in self._doubtful:
            return self._end_doubtful(transactional_id, known, producer, is_commit, client_version)
        if client_version < EPOCH_BUMP_VERSION:
            return self._end_classic(transactional_id, known, producer, is_commit, now_ms, client)
        if transactional_id in self._pending:
            return _CONCURRENT
        epoch = producer.producer_epoch
        retries_overflow = (
            known.previous_producer_id == producer.producer_id
            and epoch == LAST_EPOCH
            and known.producer_epoch == 0
        )
        retries_bump = known.producer_epoch == epoch + 1
        if known.producer_id != producer.producer_id and not retries_overflow:
            return Outcome(_INVALID_PRODUCER_ID_MAPPING)
        is_same = known.producer_epoch == epoch
        if known.state in PREPARED:
            is_valid = retries_bump
        elif known.state in COMPLETED:
            is_valid = retries_bump or retries_overflow or is_same
        else:
            is_valid = is_same
        if not is_valid:
            return Outcome(_PRODUCER_FENCED)
        if known.state in PREPARED:
            is_committing = known.state is PREPARE_COMMIT
            return _CONCURRENT if is_committing is is_commit else _INVALID_STATE
        if known.state in COMPLETED and (retries_bump or retries_overflow):
            if (known.state is COMPLETE_COMMIT) is not is_commit:
                return _INVALID_STATE
            return Outcome(NO_ERROR, known.producer_id, known.producer_epoch)
        if known.state is not ONGOING and is_commit:
            return _INVALID_STATE
        if known.is_exhausted and new_id is None:
            return _NEEDS_ID
        after = known.prepared(
            PREPARE_COMMIT if is_commit else PREPARE_ABORT,
            client_version,
            now_ms,
            next_producer_id=NO_PRODUCER_ID if new_id is None or not known.is_exhausted else new_id,
        )
        # The next transaction has the next id, if this one has used up the epochs.
        answer = Outcome(NO_ERROR, after.producer_id, after.producer_epoch)
        if after.next_producer_id != NO_PRODUCER_ID:
            answer = Outcome(NO_ERROR, after.next_producer_id, 0)
        return self._write(transactional_id, after, answer, client)

    def _end_classic(
        self,
        transactional_id: str,
        known: Transaction,
        producer: Expected,
        is_commit: bool,
        now_ms: int,
        client: str,
    ) -> Outcome | Write[Outcome]:
        """End the transaction of a client that keeps its epoch (versions 0 and 1)."""
        code = _check_producer(known, producer)
        if code is not NO_ERROR:
            return Outcome(code)
        if transactional_id in self._pending:
            return _CONCURRENT
        if known.state is ONGOING:
            state = PREPARE_COMMIT if is_commit else PREPARE_ABORT
            after = known.prepared(state, 0, now_ms)
            outcome = Outcome(NO_ERROR, after.producer_id, after.producer_epoch)
            return self._write(transactional_id, after, outcome, client)
        if known.state is (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT):
            return Outcome(NO_ERROR, known.producer_id, known.producer_epoch)
        return _INVALID_STATE

    def _end_doubtful(
        self,
        transactional_id: str,
        known: Transaction,
        producer: Expected,
        is_commit: bool,
        client_version: int,
    ) -> Outcome:
        """Answer the repeated end of the last known transaction, and refuse all others.

        With a version below 2, a later transaction, which is lost, has the same epoch.
        """
        if transactional_id in self._pending:
            return _CONCURRENT
        given = known.producer_epoch
        if given == MAX_EPOCH:
            given = known.last_producer_epoch
        is_repeated = producer == (known.producer_id, given - 1) or (
            producer == (known.previous_producer_id, LAST_EPOCH) and given == 0
        )
        state = COMPLETE_COMMIT if is_commit else COMPLETE_ABORT
        if client_version >= EPOCH_BUMP_VERSION and is_repeated and known.state is state:
            return Outcome(NO_ERROR, known.producer_id, given)
        return Outcome(_INVALID_PRODUCER_ID_MAPPING)

    def complete(self, transactional_id: str, now_ms: int) -> Write[None] | None:
        """Return the record of a prepared transaction whose markers are all written."""
        known = self.transactions.get(transactional_id)
        if known is None or known.state not in PREPARED:
            return None
        after = known.completed(now_ms)
        if transactional_id in self._doubtful and after.producer_epoch != MAX_EPOCH:
            after = after.used_up()
        return self._write(transactional_id, after, None, COORDINATOR)

    # Time

    async def timed_out(self, now_ms: int) -> list[str]:
        """Return the ids whose transactions have been open for longer than their timeouts."""
        found: list[str] = []
        for piece in self.pieces():
            found += [
                transactional_id
                for transactional_id, known in piece
                if known.has_timed_out(now_ms) and transactional_id not in self._pending
            ]
            await pause()
        return found

    def abort_timed_out(
        self, transactional_id: str, now_ms: int, new_id: int | None = None
    ) -> Outcome | Write[Outcome]:
        known = self.transactions.get(transactional_id)
        if known is None or transactional_id in self._pending or not known.has_timed_out(now_ms):
            return Outcome(NO_ERROR)
        return self._fence(transactional_id, known, now_ms, new_id, COORDINATOR)

    async def expired(self, now_ms: int, expiration_ms: int) -> list[str]:
        """Return the ids without an open transaction that no client has used since then."""
        found: list[str] = []
        for piece in self.pieces():
            found += [
                transactional_id
                for transactional_id, known in piece
                if known.updated_ms <= now_ms - expiration_ms
                and known.state in IDLE
                and transactional_id not in self._pending
            ]
            await pause()
        return found

    def remove_expired(
        self, transactional_ids: Iterable[str], now_ms: int, expiration_ms: int
    ) -> Write[ErrorCode] | ErrorCode:
        """Return tombstones for those of the ids that have still expired."""
        records = []
        for transactional_id in transactional_ids:
            known = self.transactions.get(transactional_id)
            if (
                known is not None
                and known.state in IDLE
                and known.updated_ms <= now_ms - expiration_ms
                and transactional_id not in self._pending
            ):
                records.append(self._record(transactional_id, None))
        return Write(records, NO_ERROR, client=COORDINATOR) if records else NO_ERROR

    def remove(self, transactional_id: str, client: str = UNKNOWN) -> Write[ErrorCode] | ErrorCode:
        """Remove an id without an open transaction, for an operator."""
        known = self.transactions.get(transactional_id)
        if transactional_id in self._pending:
            return _CONCURRENT_TRANSACTIONS
        if known is None:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        if known.state not in IDLE:
            return _CONCURRENT_TRANSACTIONS
        return Write([self._record(transactional_id, None)], NO_ERROR, client=client)

    # Records

    def _write(self, transactional_id: str, after: Transaction, answer: A, client: str) -> Write[A]:
        """Return the write of a state for `client`; UNKNOWN: for the client of the id."""
        written: Write[A] = _new_tuple(
            Write,
            (
                [self._record(transactional_id, after)],
                answer,
                None,
                None,
                client or self._clients[transactional_id],
            ),
        )
        return written

    def _record(self, transactional_id: str, after: Transaction | None) -> CoordinatorRecord:
        self._pending[transactional_id] = _DEAD if after is None else after.state
        value = None
        if after is not None:
            value = encode_value(after, self._value_version(after))
        transition = _new_tuple(Transition, (transactional_id, after))
        return _new_tuple(
            CoordinatorRecord, (encode_key(transactional_id), value, transition, False)
        )

    def _value_version(self, after: Transaction) -> int:
        """Return the version of a value: what a client of version 2 needs is in none but the last.

        So an open transaction keeps its protocol when the cluster's level is lowered. All workers
        that coordinate transactions read both versions.
        """
        return int(self._version() >= 1 or after.client_version >= EPOCH_BUMP_VERSION)

    # The shard's side of the runtime

    def due(
        self, now: float, now_ms: int, is_over: Callable[[], bool] | None = None
    ) -> list[CoordinatorRecord]:
        """Resume what was loaded; write completions again that could not be appended."""
        records = self._abort_left_open(now_ms) if self._to_check else []
        self.next_due = inf
        while self._to_resume:
            self._resume(*self._to_resume.popleft())
            if is_over is not None and is_over():
                break
        for transactional_id in list(islice(self._unwritten, PIECE_ROWS)):
            del self._unwritten[transactional_id]
            outcome = self.complete(transactional_id, now_ms)
            if outcome is not None:
                records += outcome.records
        if self._unwritten or self._to_resume or (self._to_check and not self._is_searching):
            self.next_due = now
        return records

    def _resume(self, transactional_id: str, loaded: Transaction) -> None:
        # If it was changed since, the change has sent its own markers. A second marker of an epoch
        # that the client keeps might end its next transaction.
        if self.transactions.get(transactional_id) is not loaded:
            return
        if loaded.state in PREPARED:
            self._on_prepared(self, transactional_id, loaded)
        elif loaded.state is ONGOING and loaded.started_ms > self._loaded_ms:
            self.transactions[transactional_id] = replace(loaded, started_ms=self._loaded_ms)

    def _abort_left_open(self, now_ms: int) -> list[CoordinatorRecord]:
        """Return the decisions to abort open transactions of some of the doubtful ids."""
        if self._left_open is None:
            if not self._is_searching:
                self._is_searching = True
                self._find_open(self)
            if self._left_open is None:
                return []
        records: list[CoordinatorRecord] = []
        left = MAX_CHECKED
        while self._to_check and left > 0:
            transactional_id = self._to_check.popleft()
            self._pending.pop(transactional_id, None)
            known = self.transactions[transactional_id]
            places = set(self._left_open.get(known.producer_id, ()))
            if known.state is ONGOING:
                places |= known.partitions
            left -= 1 + len(places)
            if places or known.state is ONGOING:
                after = known.aborted_after_loss(places, now_ms)
                records.append(self._record(transactional_id, after))
        if not self._to_check:
            self._left_open = None
        return records

    def found_open(self, places: Mapping[int, Collection[Place]]) -> None:
        """Take the partitions in which producers have open transactions, by producer id."""
        self._is_searching = False
        self._left_open = places
        self.next_due = NOW

    def _check_later(self, transactional_id: str, state: State, due: float) -> None:
        """Look for open transactions of a doubtful id; its operations wait meanwhile."""
        self._pending[transactional_id] = state
        self._to_check.append(transactional_id)
        self.next_due = min(self.next_due, due)

    def appended(self, records: Sequence[CoordinatorRecord]) -> None: ...

    def refused(self, records: Sequence[CoordinatorRecord], now: float) -> None:
        for record in records:
            transition = record.decoded_key
            if not isinstance(transition, Transition):
                continue
            transactional_id, after = transition
            if after is not None and after.state in COMPLETED:
                self._unwritten[transactional_id] = None
                self.next_due = min(self.next_due, now + RETRY_S)
            elif (
                transactional_id in self._doubtful
                and after is not None
                and after.state is PREPARE_ABORT
            ):
                self._check_later(transactional_id, after.state, now + RETRY_S)
            else:
                self._pending.pop(transactional_id, None)
                if transactional_id not in self.transactions:
                    self._uncount(transactional_id)

    def replay_appended(
        self, records: Sequence[CoordinatorRecord], monotonic: Callable[[], float]
    ) -> None:
        for record in records:
            transition = record.decoded_key
            assert isinstance(transition, Transition)
            self._apply(*transition)

    def replay(self, record: CoordinatorRecord, now: float) -> Steps[None] | None:
        transition = record.decoded_key
        if not isinstance(transition, Transition):
            try:
                transactional_id = decode_key(record.key)
                if transactional_id is None:
                    return None
                after = None if record.value is None else decode_value(record.value)
            except MalformedRecordError as error:
                self.unreadable_count += 1
                self.first_problem = self.first_problem or str(error)
                return None
            transition = Transition(transactional_id, after)
            if record.is_doubtful:
                self._doubtful[transactional_id] = None
            else:
                self._doubtful.pop(transactional_id, None)
        self._apply(*transition)
        return None

    def _apply(self, transactional_id: str, after: Transaction | None) -> None:
        before = self.transactions.get(transactional_id)
        if transactional_id not in self._clients and after is not None:
            self._count(transactional_id, UNKNOWN)
        grown = _partitions_bytes(after) - _partitions_bytes(before)
        if grown:
            self._budget.use(self._clients[transactional_id], 0, grown)
        if before is not None:
            self.state_counts[before.state.number] -= 1
        self._pending.pop(transactional_id, None)
        if after is None or (self._is_loaded and after.state is EMPTY):
            self._doubtful.pop(transactional_id, None)
        if after is None:
            self.transactions.pop(transactional_id, None)
            self._uncount(transactional_id)
            return
        self.transactions[transactional_id] = after
        self.state_counts[after.state.number] += 1
        if self._is_loaded and after.state in PREPARED:
            if after.state is PREPARE_COMMIT:
                self._statistics.committed_count += 1
            else:
                self._statistics.aborted_count += 1
            self._send_markers(transactional_id, after)
        elif (
            transactional_id in self._doubtful
            and before is not None
            and self._is_loaded
            and before.producer_epoch != MAX_EPOCH
        ):
            # Its producer may have begun another transaction before the loss.
            self._check_later(transactional_id, after.state, NOW)

    def _send_markers(self, transactional_id: str, prepared: Transaction) -> None:
        self._pending[transactional_id] = COMPLETION[prepared.state]
        self._on_prepared(self, transactional_id, prepared)

    async def restore(self, now: float) -> None:
        """Note the transactions that are not complete; operations on prepared ones must wait."""
        for piece in self.pieces():
            for transactional_id, known in piece:
                if known.state in PREPARED:
                    self._pending[transactional_id] = COMPLETION[known.state]
                elif transactional_id in self._doubtful:
                    self._check_later(transactional_id, known.state, NOW)
                    continue
                if known.state not in IDLE:
                    self._to_resume.append((transactional_id, known))
            await pause()

    def loaded(self, now: float, now_ms: int) -> None:
        """Resume the prepared transactions: their markers may be missing in some partitions.

        Timeouts of open ones count from now at the latest: the clock of the coordinator that began
        them may be ahead.
        """
        self._is_loaded = True
        self._loaded_ms = now_ms
        if self._to_resume:
            self.next_due = now

    async def unload(self) -> None:
        self.is_unloaded = True
        self._to_resume.clear()
        self._to_check.clear()
        self._left_open = None
        while self.transactions:
            transactional_id, known = self.transactions.popitem()
            if known.partitions:
                self._budget.use(self._clients[transactional_id], 0, -_partitions_bytes(known))
            self._uncount(transactional_id)
            if len(self.transactions) % PIECE_ROWS == 0:
                await pause()
        for transactional_id in list(self._clients):  # their first records are not committed
            self._uncount(transactional_id)
        await emptied(self._pending)
        await emptied(self._unwritten)
        await emptied(self._doubtful)

    def pieces(self) -> Iterator[list[tuple[str, Transaction]]]:
        """Yield all ids, in pieces; ids may be added and removed between two steps."""
        ids = list(self.transactions)
        for at in range(0, len(ids), PIECE_ROWS):
            yield [
                (each, known)
                for each in ids[at : at + PIECE_ROWS]
                if (known := self.transactions.get(each)) is not None
            ]


def is_too_long(transactional_id: str) -> bool:
    """Return whether no record can have the id."""
    return is_longer(transactional_id, MAX_ID_BYTES)


def _check_producer(known: Transaction | None, producer: Expected) -> ErrorCode:
    if known is None or known.producer_id != producer.producer_id:
        return _INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer.producer_epoch:
        return _PRODUCER_FENCED
    return NO_ERROR


def _is_valid(known: Transaction, expected: Expected) -> bool:
    """Return whether the client may be the last instance, by its producer id (KIP-360)."""
    return (
        known.producer_epoch == NO_EPOCH
        or expected.producer_id == known.producer_id
        or (
            expected.producer_id == known.previous_producer_id
            and expected.producer_epoch >= LAST_EPOCH
        )
    )


def id_bytes(transactional_id: str) -> int:
    """Return the memory of an id without partitions, estimated."""
    return ID_BYTES + text_bytes(transactional_id)


def _partitions_bytes(known: Transaction | None) -> int:
    return 0 if known is None else len(known.partitions) * PARTITION_BYTES
