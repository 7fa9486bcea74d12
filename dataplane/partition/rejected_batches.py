"""Rejection of batches that follow a refused batch of the same producer on a connection.

A producer has up to five requests in flight. If the first fails, the later ones must fail too, so
that the producer sends all again in order. The log ensures this by the sequence numbers of a known
producer. An unknown producer may begin at any sequence, because its state may have expired or been
deleted (KIP-360). If the first batch of a new producer is refused (a full disk with room for a
smaller batch, a leader or topic not yet in this worker's metadata, too few in-sync replicas), the
log would accept the second, and never the first. Every retry of the first by Java's producer would
fail; librdkafka would report it as delivered, because a later batch was, and the batch would be
lost.

So a refused batch that may be retried is remembered during the next four requests of its
connection, which may have been sent before the producer saw the error. A batch may be retried if
its error is retriable, or if it is too large and has several records: Java's producer splits it.
(After other errors aiokafka continues with the next sequence in the same epoch.) A refused batch of
a transaction is always remembered: the transaction cannot do without it. A batch of a producer
unknown to the log:

    no refused batch of the producer          the log decides
    the refused sequence, or an earlier one   the log decides
    another producer epoch                    the log decides: the old epoch is over
    a later sequence of that epoch            refused

If more batches are refused at once than can be remembered, the connection of an unknown producer is
closed, so that it also sends all again. Kafka refuses later sequences in transactions only
(`VerificationStateEntry.lowestSequence`), and by partition: there any client can have the batches
of another refused, with an earlier sequence in a request with that producer's id.

The later batches get the error of the first if it is retriable, and OUT_OF_ORDER_SEQUENCE_NUMBER
otherwise, or where Kafka always uses that error. After it librdkafka starts a new epoch and sends
all unacknowledged batches of all partitions again, which may duplicate records.
"""

from typing import Final, NamedTuple

from metaquorum.dataplane.log.segments.producers import REMEMBERED_BATCHES
from metaquorum.metadata.records import MAX_TOPIC_CHARS
from metaquorum.runtime import StorageError
from metaquorum.wire.primitives.errors import RETRIABLE, ErrorCode, KafkaError
from metaquorum.wire.primitives.types import Buffer, Uuid
from metaquorum.wire.records.batches import TRANSACTIONAL, BatchHeader, parse_header

# Requests of one producer that may be in flight after a refused one.
REQUESTS_BEHIND: Final = REMEMBERED_BATCHES - 1
# Refused batches remembered per connection: some 64 KiB of memory.
MAX_REFUSED: Final = 150

_SEQUENCES: Final = 1 << 31  # 2^31 - 1 is followed by 0

# Topic name or id, as in the request, and partition index.
Place = tuple[str | Uuid, int]


class TooManyRejectedError(Exception):
    """Raised if more batches were refused than can be remembered; the connection is closed."""


class _Rejected(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    last_request: int  # last request in which it is remembered


class RejectedBatches:
    """Refused batches of one connection."""

    __slots__ = ("_batches", "_forgotten_until", "_last_request", "_request")

    def __init__(self) -> None:
        self._batches: dict[
            tuple[Place, int], _Rejected
        ] = {}  # the first refused one of each producer
        self._request = 0
        self._last_request = 0  # last request in which any batch is remembered
        self._forgotten_until = -1  # last request affected by a forgotten batch

    def next_request(self) -> "RejectedBatches | None":
        """Count a produce request; return None if no remembered batch affects it."""
        self._request += 1
        return self if self._request <= self._last_request else None

    def reject(
        self, place: Place, records: Buffer | None, error: KafkaError | StorageError
    ) -> KafkaError | StorageError:
        """Remember a batch that failed with `error`; return the error for the response."""
        try:
            header = parse_header(records or b"")
        except KafkaError:
            return error  # no valid header, so no producer
        code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        if header.producer_id >= 0:
            first = self._first(place, header)
            if first is None or not _is_after(header.base_sequence, first.sequence):
                if _may_come_again(place, header, code):
                    self._note(place, header, code)
            elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and first.code in RETRIABLE:
                return KafkaError(first.code, f"the earlier sequence {first.sequence} was refused")
        return error

    def _first(self, place: Place, header: BatchHeader) -> _Rejected | None:
        """Return the remembered batch of the header's producer and epoch."""
        first = self._batches.get((place, header.producer_id))
        if first is None or first.epoch != header.producer_epoch:
            return None
        return first if first.last_request >= self._request else None

    def _note(self, place: Place, header: BatchHeader, code: ErrorCode) -> None:
        key = place, header.producer_id
        self._last_request = self._request + REQUESTS_BEHIND
        if key not in self._batches and len(self._batches) >= MAX_REFUSED and not self._forget():
            self._forgotten_until = self._last_request
            return
        self._batches[key] = _Rejected(
            header.producer_epoch, header.base_sequence, code, self._last_request
        )

    def _forget(self) -> bool:
        """Drop expired batches; return whether there is room."""
        self._batches = {
            key: each for key, each in self._batches.items() if each.last_request >= self._request
        }
        return len(self._batches) < MAX_REFUSED

    def check(self, place: Place, header: BatchHeader) -> None:
        """Check that a producer unknown to the log may start with this batch.

        Raises KafkaError if an earlier batch was refused, TooManyRejectedError if that is unknown.
        """
        first = self._first(place, header)
        if first is not None and _is_after(header.base_sequence, first.sequence):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}; "
                f"the refused sequence {first.sequence} must come first",
            )
        known = self._batches.pop((place, header.producer_id), None)
        if known is None and self._forgotten_until >= self._request:
            raise TooManyRejectedError(
                "more batches were refused on this connection than the worker remembers"
            )


def _may_come_again(place: Place, header: BatchHeader, code: ErrorCode) -> bool:
    if len(place[0]) > MAX_TOPIC_CHARS:  # no topic can have such a name
        return False
    return (
        code in RETRIABLE
        or header.attributes & TRANSACTIONAL != 0
        or (code is ErrorCode.MESSAGE_TOO_LARGE and header.record_count > 1)
    )


def _is_after(sequence: int, other: int) -> bool:
    return 0 < (sequence - other) % _SEQUENCES < _SEQUENCES // 2
