"""Selection of the batches of a fetch response that belong to aborted transactions (KIP-98).

A fetch with isolation level read_committed lists, for each partition, the aborted transactions
whose records may be in the response: producer id and first offset. From that offset on, the
producer's transactional batches are aborted, up to the marker that ends the transaction.
"""

from collections.abc import Sequence

from metaquorum.wire.messages.fetch import AbortedTransaction
from metaquorum.wire.primitives.types import Buffer
from metaquorum.wire.records.records import BatchHeader, ControlType, decode_marker, iter_records


class AbortedTransactions:
    """Aborted transactions of one partition in one fetch response.

    Pass the batches of the response in order: control batches to `on_marker`, all others to
    `covers`.
    """

    def __init__(self, listed: Sequence[AbortedTransaction] | None) -> None:
        self._coming = sorted(listed or (), key=lambda one: one.first_offset, reverse=True)
        self._open: set[int] = set()

    def covers(self, header: BatchHeader) -> bool:
        """Return whether the records of this batch were aborted."""
        self._begin(header)
        return header.is_transactional and header.producer_id in self._open

    def on_marker(self, buffer: Buffer, start: int, header: BatchHeader) -> None:
        """End the transaction of the producer whose control batch is at `start` in `buffer`.

        The response may contain no other batch of that transaction, since a fetch may begin at a
        marker. Raises WireError if the batch is malformed.
        """
        self._begin(header)
        for record in iter_records(buffer, start):
            marker = decode_marker(record)
            if marker is not None and marker.control_type is ControlType.ABORT:
                self._open.discard(header.producer_id)

    def _begin(self, header: BatchHeader) -> None:
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._open.add(self._coming.pop().producer_id)
