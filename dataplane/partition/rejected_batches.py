"""What follows a batch that was refused on a connection: the same, until that one is there.

A producer sends up to five requests ahead. If the first of them fails, those behind it must fail,
too, so that all are sent again in order. By its sequences the log sees to that, if it knows the
producer. One that it does not know may begin anywhere, as what was known may have expired or been
deleted (KIP-360): of a new producer whose first batch is refused (a full disk that has room for a
smaller one, a leader or topic of which this worker has not heard yet, replicas that come back into
sync) the second would be taken, and the first could never be. Java's producer would then send it in
vain; librdkafka takes it for delivered, as what comes behind it is, and it is lost.

So a refused batch that may come again is remembered for as long as there may be requests that were
sent before its answer was seen: the next four of its connection. It may come again if its error is
one that is tried again, or if it is too large and has several records: Java's producer splits it.
(For the rest aiokafka goes on behind it in the same epoch.) Of a batch whose producer the log does
not know

    nothing was refused here                  the log decides
    the sequence that was refused, or before  the log decides
    another epoch                             the log decides: the old one is given up
    a later sequence of that epoch            refused

With more batches refused at once than are remembered, a producer that the log does not know has its
connection closed, and sends all again, too. Kafka holds back what follows in transactions only
(`VerificationStateEntry.lowestSequence`).

What follows gets the error that the first had, if clients try again upon it; else, and where Kafka
always says so, OUT_OF_ORDER_SEQUENCE_NUMBER. With that librdkafka begins a new epoch, and sends
anew, in all its partitions, whatever it has no answer for: that may be there twice then.
"""

from typing import Final, NamedTuple

from dataplane.log.segments.producers import REMEMBERED_BATCHES
from metaquorum.metadata.records import MAX_TOPIC_CHARS
from metaquorum.runtime import StorageError
from wire.primitives.errors import RETRIABLE, ErrorCode, KafkaError
from wire.primitives.types import Buffer, Uuid
from wire.records.batches import BatchHeader, parse_header

# Requests with batches of one producer that may be under way behind one that is refused.
REQUESTS_BEHIND: Final = REMEMBERED_BATCHES - 1
# Of one connection: some 64 KiB of memory.
MAX_REFUSED: Final = 150

_SEQUENCES: Final = 1 << 31  # 2^31 - 1 is followed by 0

# A topic, as it was asked for, by name or by id; and the index of the partition.
Place = tuple[str | Uuid, int]


class TooManyRejectedError(Exception):
    """More batches were rejected than are remembered: the connection has to end."""


class _Rejected(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    last_request: int  # until which it is remembered


class RejectedBatches:
    """Those of one connection."""

    __slots__ = ("_batches", "_forgotten_until", "_last_request", "_request")

    def __init__(self) -> None:
        self._batches: dict[tuple[Place, int], _Rejected] = {}  # the first of each producer
        self._request = 0
        self._last_request = 0  # until which anything is remembered
        self._forgotten_until = -1  # until then, there were more than could be remembered

    def next_request(self) -> "RejectedBatches | None":
        """Another produce request has come; None: none of those before it matters any more."""
        self._request += 1
        return self if self._request <= self._last_request else None

    def reject(
        self, place: Place, records: Buffer | None, error: KafkaError | StorageError
    ) -> KafkaError | StorageError:
        """The batch was not appended, because of `error`. What its producer is told."""
        try:
            header = parse_header(records or b"")
        except KafkaError:
            return error  # nobody's
        code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        if header.producer_id >= 0:
            first = self._first(place, header)
            if first is None or not _is_after(header.base_sequence, first.sequence):
                if _may_come_again(place, header, code):
                    self._note(place, header, code)
            elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and first.code in RETRIABLE:
                return KafkaError(first.code, f"sequence {first.sequence} was refused before it")
        return error

    def _first(self, place: Place, header: BatchHeader) -> _Rejected | None:
        """What was refused first of its producer in its epoch, and still matters."""
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
        """Those that do not matter any more; False if all do."""
        self._batches = {
            key: each for key, each in self._batches.items() if each.last_request >= self._request
        }
        return len(self._batches) < MAX_REFUSED

    def check(self, place: Place, header: BatchHeader) -> None:
        """KafkaError or TooManyRejectedError unless a producer unknown to the log may begin so."""
        first = self._first(place, header)
        if first is not None and _is_after(header.base_sequence, first.sequence):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sends sequence {header.base_sequence}, "
                f"{first.sequence} was refused and is next",
            )
        known = self._batches.pop((place, header.producer_id), None)
        if known is None and self._forgotten_until >= self._request:
            raise TooManyRejectedError(
                "too many batches were refused to know which producers may go on"
            )


def _may_come_again(place: Place, header: BatchHeader, code: ErrorCode) -> bool:
    if len(place[0]) > MAX_TOPIC_CHARS:  # there never will be such a topic
        return False
    return code in RETRIABLE or (code is ErrorCode.MESSAGE_TOO_LARGE and header.record_count > 1)


def _is_after(sequence: int, other: int) -> bool:
    return 0 < (sequence - other) % _SEQUENCES < _SEQUENCES // 2
