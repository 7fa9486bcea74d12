"""Producer state of one partition: idempotent produce without duplicate batches (KIP-98).

A producer numbers its records per partition. The log keeps, per producer id, the producer epoch and
the last five batches: a client has at most five in flight. The check of an incoming batch:

    one of the last five batches     duplicate: answered with the offsets of the first copy
    unknown producer id              accepted with any sequence: the state may have expired, or
                                     retention may have deleted the batches (KIP-360)
    older producer epoch             INVALID_PRODUCER_EPOCH
    newer producer epoch             accepted if the sequence is 0, otherwise
                                     OUT_OF_ORDER_SEQUENCE_NUMBER
    next sequence after the last     accepted; 0 follows 2^31 - 1
    any other                        OUT_OF_ORDER_SEQUENCE_NUMBER

As in Kafka today, DUPLICATE_SEQUENCE_NUMBER is not used: a duplicate older than five batches is out
of order, too. Followers and recovery update the state without this check.

Unlike in Kafka, idle producers expire by the time of their last append to this log, not by the
timestamps of their records: a client that writes old timestamps is protected from duplicates, too.

Nothing else removes a producer: its state protects acknowledged records from duplicates. The table
has no maximum, as in Kafka; a leader limits how many new producers a client brings
(`metaquorum.dataplane.quotas.producer_admission`). An entry takes about 470 bytes with one batch in
memory and 1,210 with five; 55 and 151 in a snapshot.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from metaquorum.dataplane.log.segments.aborted import CompletedTransaction, OpenTransactions
from metaquorum.dataplane.log.segments.verification import Verification, Verifications
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import TRANSACTIONAL, BatchHeader
from metaquorum.wire.records.records import ControlType, EndTransactionMarker

REMEMBERED_BATCHES: Final = 5

# From this level of `transaction.version` on, each transaction has an epoch of its own (KIP-890).
EPOCH_PER_TRANSACTION: Final = 2
MAX_EPOCH: Final = 32767
NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_ABORT: Final = ControlType.ABORT  # Python 3.11 looks up members of an enum slowly
_new_tuple: Final = tuple.__new__  # creates a NamedTuple without the call of its own __new__


class TransactionMarker(NamedTuple):
    """Marker that ends a producer's transaction in one partition.

    `transaction_version` is the level of that feature with which the coordinator ended the
    transaction.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0


class BatchMetadata(NamedTuple):
    """Last sequence and offset of one batch; the first ones are lower by `offset_delta`."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & _SEQUENCE_MASK


class ProducerEntry:
    """State of one producer id: its epoch, its last batches and its open transaction."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "has_own_epoch",
        "last_seen_ms",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(
        self,
        producer_id: int,
        epoch: int,
        last_seen_ms: int,
        batches: Iterable[BatchMetadata] = (),
        coordinator_epoch: int = -1,
        transaction_first_offset: int = NO_OFFSET,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.last_seen_ms = last_seen_ms
        self.batches = list(batches)
        self.coordinator_epoch = coordinator_epoch
        self.transaction_first_offset = transaction_first_offset
        # Whether the open transaction is known to have its epoch to itself; not in snapshots.
        self.has_own_epoch = False

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, epoch: int, first: int, last: int) -> BatchMetadata | None:
        if epoch == self.epoch:
            for mark in self.batches:
                if mark.last_sequence == last and mark.first_sequence == first:
                    return mark
        return None


class ProducerStateTable:
    """Producer state of one log, by producer id. Plain state."""

    __slots__ = ("entries", "transactions", "verifications")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.entries: dict[int, ProducerEntry] = {e.producer_id: e for e in entries}
        open_ = [
            (entry.transaction_first_offset, entry.producer_id)
            for entry in self.entries.values()
            if entry.transaction_first_offset != NO_OFFSET
        ]
        # None until the log has its first transaction.
        self.transactions: OpenTransactions | None = OpenTransactions(open_) if open_ else None
        self.verifications = Verifications()

    def __len__(self) -> int:
        return len(self.entries)

    def check(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the earlier copy of the batch if it is a duplicate; None if it is the next.

        Changes no state. Raises KafkaError (INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER
        or INVALID_TXN_STATE) if it is neither. A batch without a sequence is of a coordinator: only
        its epoch is checked.
        """
        if header.producer_id < 0:
            return None
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return None
        epoch, first, batches = header.producer_epoch, header.base_sequence, entry.batches
        is_open = entry.transaction_first_offset != NO_OFFSET
        if (
            epoch == entry.epoch
            and batches
            and first == (batches[-1].last_sequence + 1) & _SEQUENCE_MASK
            and (not is_open or header.attributes & TRANSACTIONAL)
        ):
            return None  # the next sequence: nearly all batches
        last = header.last_sequence
        mark = entry.find_duplicate(epoch, first, last) if first >= 0 else None
        if mark is None:
            _check_next(header, entry.epoch, entry.last_sequence, is_open)
        return mark

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has an open transaction in this log, in this epoch."""
        entry = self.entries.get(producer_id)
        return (
            entry is not None
            and entry.transaction_first_offset != NO_OFFSET
            and entry.epoch == epoch
        )

    def is_verified(self, producer_id: int, epoch: int, *, has_own_epoch: bool) -> bool:
        """Return whether a batch continues the open transaction without a verification.

        A client that begins to give each transaction its own epoch does so with the epoch of its
        last transaction, whose marker may not be here yet: the batch must not join that one.
        """
        entry = self.entries.get(producer_id)  # `in_transaction` would be another call
        return (
            entry is not None
            and entry.transaction_first_offset != NO_OFFSET
            and entry.epoch == epoch
            and (not has_own_epoch or entry.has_own_epoch)
        )

    def has_late_transaction(self, seen_before_ms: int) -> bool:
        """Return whether the oldest open transaction has had no batch since `seen_before_ms`."""
        oldest = None if self.transactions is None else self.transactions.oldest_producer_id
        return oldest is not None and self.entries[oldest].last_seen_ms < seen_before_ms

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise KafkaError (INVALID_PRODUCER_EPOCH) if the producer has a newer epoch."""
        entry = self.entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise _older_epoch(producer_id, epoch, entry.epoch)

    def check_verified(self, header: BatchHeader, verification: Verification | None) -> None:
        """Check that a transactional batch of a client continues or begins a known transaction.

        `verification` is the one that has succeeded for it, if any. Raises KafkaError
        (INVALID_TXN_STATE, OUT_OF_ORDER_SEQUENCE_NUMBER). A duplicate passes: it is not appended.
        With an epoch per transaction, the first batch of a producer without batches has sequence 0:
        its state cannot have expired since an earlier one.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        entry = self.entries.get(producer_id)
        if entry is not None and entry.epoch == epoch:
            if entry.transaction_first_offset != NO_OFFSET:
                if verification is not None:
                    verification.is_used = True
                return
            batches, first = entry.batches, header.base_sequence
            is_next = not batches or first == (batches[-1].last_sequence + 1) & _SEQUENCE_MASK
            if not is_next and entry.find_duplicate(epoch, first, header.last_sequence):
                return
        self.verifications.check(header, verification)
        if (
            verification is not None
            and verification.has_own_epoch
            and header.base_sequence > 0
            and (entry is None or not entry.batches)
        ):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence {header.base_sequence} as the first "
                f"of epoch {epoch}, expected 0",
            )

    def check_marker(self, marker: TransactionMarker) -> None:
        """Raise KafkaError if this marker may not end the producer's transaction.

        INVALID_PRODUCER_EPOCH if its epoch is older than the producer's. With an epoch per
        transaction, the coordinator ends a transaction with a new epoch: the producer's current
        epoch is that of a late marker, too, unless no transaction is open (a repeated marker) or
        the epochs are used up. TRANSACTION_COORDINATOR_FENCED if a newer coordinator has written a
        marker. Source: Kafka's ProducerAppendInfo, KIP-890, KIP-1228.
        """
        entry = self.entries.get(marker.producer_id)
        if entry is None:
            return
        epoch = marker.producer_epoch
        is_late = epoch < entry.epoch or (
            marker.transaction_version >= EPOCH_PER_TRANSACTION
            and epoch == entry.epoch
            and entry.transaction_first_offset != NO_OFFSET
            and epoch != MAX_EPOCH
        )
        if is_late:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {marker.producer_id} has epoch {entry.epoch}, the marker has epoch "
                f"{epoch}; transaction version {marker.transaction_version}",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"the last marker of producer {marker.producer_id} is of coordinator epoch "
                f"{entry.coordinator_epoch}, this one of the older epoch "
                f"{marker.coordinator_epoch}",
            )

    def update(
        self, header: BatchHeader, last_offset: int, max_timestamp: int, now_ms: int
    ) -> None:
        """Record an appended batch as its producer's last, with the assigned offset and time."""
        producer_id = header.producer_id
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self._add(producer_id, header.producer_epoch)
        elif entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_seen_ms = now_ms
        delta = header.last_offset_delta
        batches = entry.batches
        if len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        last_sequence = header.base_sequence
        if last_sequence >= 0:
            last_sequence = (last_sequence + delta) & _SEQUENCE_MASK
        batches.append(
            _new_tuple(BatchMetadata, (last_sequence, last_offset, delta, max_timestamp))
        )
        if header.attributes & TRANSACTIONAL:
            if entry.transaction_first_offset == NO_OFFSET:
                first_offset = entry.transaction_first_offset = last_offset - delta
                if self.transactions is None:
                    self.transactions = OpenTransactions()
                self.transactions.begin(first_offset, producer_id)
            if self.verifications.pending and self.verifications.end(producer_id):
                entry.has_own_epoch = True

    def end_transaction(
        self,
        header: BatchHeader,
        marker: EndTransactionMarker | None,
        last_offset: int,
        now_ms: int,
    ) -> CompletedTransaction | None:
        """Record an appended control batch, and return the transaction that it ends.

        `marker` is None if compaction has emptied the batch. The result is None if the producer had
        no open transaction.
        """
        producer_id = header.producer_id
        if self.verifications.pending:
            self.verifications.end(producer_id)
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self._add(producer_id, header.producer_epoch)
        elif entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_seen_ms = now_ms
        if marker is not None:
            entry.coordinator_epoch = marker.coordinator_epoch
        first_offset = entry.transaction_first_offset
        if first_offset == NO_OFFSET:
            return None
        entry.transaction_first_offset = NO_OFFSET
        entry.has_own_epoch = False
        assert self.transactions is not None
        is_aborted = marker is not None and marker.control_type is _ABORT
        return self.transactions.end(first_offset, producer_id, last_offset, is_aborted)

    def _add(self, producer_id: int, epoch: int) -> ProducerEntry:
        entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch, 0)
        return entry

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers idle for `expiration_ms` and without a transaction; return how many."""
        old = [
            entry.producer_id
            for entry in self.entries.values()
            if now_ms - entry.last_seen_ms >= expiration_ms
            and entry.transaction_first_offset == NO_OFFSET
        ]
        for producer_id in old:
            del self.entries[producer_id]
        return len(old)

    def check_invariants(self, log_end_offset: int) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        open_ = {}
        for producer_id, entry in self.entries.items():
            assert entry.producer_id == producer_id >= 0
            assert NO_EPOCH <= entry.epoch <= MAX_EPOCH, entry.epoch
            assert len(entry.batches) <= REMEMBERED_BATCHES
            last_offset = -1
            for batch in entry.batches:
                assert last_offset < batch.first_offset <= batch.last_offset < log_end_offset
                last_offset = batch.last_offset
            if entry.transaction_first_offset != NO_OFFSET:
                open_[entry.transaction_first_offset] = producer_id
            else:
                assert not entry.has_own_epoch
        assert open_ == ({} if self.transactions is None else self.transactions.open)
        if self.transactions is not None:
            self.transactions.check_invariants(log_end_offset)


def _check_next(header: BatchHeader, epoch: int, last_sequence: int, is_open: bool) -> None:
    if header.producer_epoch < epoch:
        raise _older_epoch(header.producer_id, header.producer_epoch, epoch)
    if header.base_sequence >= 0 and epoch != NO_EPOCH:
        expected = 0
        if header.producer_epoch == epoch:
            expected = (last_sequence + 1) & _SEQUENCE_MASK
        if header.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, "
                f"expected {expected}",
            )
    if is_open and not header.attributes & TRANSACTIONAL:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {header.producer_id} has an open transaction, the batch is not "
            "transactional",
        )


def _older_epoch(producer_id: int, epoch: int, current: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} has epoch {current}, the batch has the older epoch {epoch}",
    )
