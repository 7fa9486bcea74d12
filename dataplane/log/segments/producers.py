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
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from dataplane.log.segments.verification import Verification, Verifications
from wire.primitives.errors import ErrorCode, KafkaError
from wire.records.batches import CONTROL, TRANSACTIONAL, BatchHeader

REMEMBERED_BATCHES: Final = 5
# Beyond this many producer ids, 1/_EVICTED_SHARE of them are evicted, longest idle first.
MAX_PRODUCERS: Final = 100_000
_EVICTED_SHARE: Final = 100

NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_new_tuple: Final = tuple.__new__  # creates a NamedTuple without the call of its own __new__


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

    __slots__ = ("entries", "verifications")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.entries: dict[int, ProducerEntry] = {e.producer_id: e for e in entries}
        self.verifications = Verifications()

    def __len__(self) -> int:
        return len(self.entries)

    def check(self, headers: Sequence[BatchHeader]) -> BatchMetadata | None:
        """Return the earlier copy of the first batch if all are duplicates; None if all are next.

        Changes no state. Raises KafkaError (INVALID_PRODUCER_EPOCH or
        OUT_OF_ORDER_SEQUENCE_NUMBER) if they are neither.
        """
        if len(headers) == 1:
            header = headers[0]
            if header.producer_id < 0:
                return None
            entry = self.entries.get(header.producer_id)
            if entry is None:
                return None
            first = header.base_sequence
            if (
                header.producer_epoch == entry.epoch
                and entry.batches
                and first == (entry.batches[-1].last_sequence + 1) & _SEQUENCE_MASK
            ):
                return None  # the next sequence: nearly all batches
            last = (first + header.last_offset_delta) & _SEQUENCE_MASK
            mark = entry.find_duplicate(header.producer_epoch, first, last)
            if mark is None:
                _check_next(header, entry.epoch, entry.last_sequence)
            return mark
        return self._check_several(headers)

    def _check_several(self, headers: Sequence[BatchHeader]) -> BatchMetadata | None:
        ahead: dict[int, tuple[int, int]] = {}
        first: BatchMetadata | None = None
        duplicates = 0
        for header in headers:
            if header.producer_id < 0:
                continue
            entry = self.entries.get(header.producer_id)
            if entry is not None and header.producer_id not in ahead:
                mark = entry.find_duplicate(
                    header.producer_epoch, header.base_sequence, header.last_sequence
                )
                if mark is not None:
                    first = first or mark
                    duplicates += 1
                    continue
                ahead[header.producer_id] = (entry.epoch, entry.last_sequence)
            if header.producer_id in ahead:
                _check_next(header, *ahead[header.producer_id])
            ahead[header.producer_id] = (header.producer_epoch, header.last_sequence)
        if 0 < duplicates < len(headers):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{duplicates} of {len(headers)} batches are duplicates, the others are not",
            )
        return first

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has an open transaction in this log, in this epoch."""
        entry = self.entries.get(producer_id)
        return (
            entry is not None
            and entry.transaction_first_offset != NO_OFFSET
            and entry.epoch == epoch
        )

    def check_verified(self, header: BatchHeader, verification: Verification | None) -> None:
        """Check that a transactional batch of a client continues or begins a known transaction.

        `verification` is the one that has succeeded for it, if any. Raises KafkaError
        (INVALID_TXN_STATE, OUT_OF_ORDER_SEQUENCE_NUMBER). A duplicate passes: it is not appended.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        if not self.in_transaction(producer_id, epoch):
            entry = self.entries.get(producer_id)
            if entry is None or not entry.find_duplicate(
                epoch, header.base_sequence, header.last_sequence
            ):
                self.verifications.check(header, verification)

    def update(
        self, header: BatchHeader, last_offset: int, max_timestamp: int, now_ms: int
    ) -> None:
        """Record an appended batch as its producer's last, with the assigned offset and time."""
        producer_id = header.producer_id
        entry = self.entries.get(producer_id)
        if entry is None:
            if len(self.entries) >= MAX_PRODUCERS:
                self._evict()
            entry = ProducerEntry(producer_id, header.producer_epoch, now_ms)
            self.entries[producer_id] = entry
        elif entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_seen_ms = now_ms
        attributes = header.attributes
        if attributes & TRANSACTIONAL:
            self.verifications.end(producer_id)
        if attributes & CONTROL:
            entry.transaction_first_offset = NO_OFFSET
            return
        delta = header.last_offset_delta
        batches = entry.batches
        if len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        last_sequence = (header.base_sequence + delta) & _SEQUENCE_MASK
        batches.append(
            _new_tuple(BatchMetadata, (last_sequence, last_offset, delta, max_timestamp))
        )
        if attributes & TRANSACTIONAL and entry.transaction_first_offset == NO_OFFSET:
            entry.transaction_first_offset = last_offset - delta

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

    def _evict(self) -> None:
        idle = [e for e in self.entries.values() if e.transaction_first_offset == NO_OFFSET]
        idle.sort(key=lambda entry: entry.last_seen_ms)
        for entry in idle[: MAX_PRODUCERS // _EVICTED_SHARE]:
            del self.entries[entry.producer_id]


def _check_next(header: BatchHeader, epoch: int, last_sequence: int) -> None:
    if header.producer_epoch < epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} has epoch {epoch}, the batch has the older epoch "
            f"{header.producer_epoch}",
        )
    if header.producer_epoch > epoch:
        expected = 0
        if epoch == NO_EPOCH:
            return
    else:
        expected = (last_sequence + 1) & _SEQUENCE_MASK
    if header.base_sequence != expected:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sent sequence {header.base_sequence}, "
            f"expected {expected}",
        )
