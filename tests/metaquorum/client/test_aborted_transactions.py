"""AbortedTransactions, for fetch responses that begin at any offset."""

from collections.abc import Sequence

import pytest

from metaquorum.client.aborted_transactions import AbortedTransactions
from metaquorum.wire.messages.fetch import AbortedTransaction
from metaquorum.wire.records.records import (
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
    parse_header,
)

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT
# Batches (None) and markers of two producers, one offset each.
LOG: Sequence[tuple[int, ControlType | None]] = [
    (1, None),
    (2, None),
    (1, ABORT),
    (1, None),
    (2, ABORT),
    (1, COMMIT),
    (2, None),
    (1, None),
    (1, ABORT),
    (2, COMMIT),
    (2, None),
    (2, COMMIT),
]
LISTED = ((1, 0, 2), (2, 1, 4), (1, 7, 8))  # producer, first offset, marker
IN_ABORTED = {0, 1, 7}


def batch_at(offset: int) -> bytes:
    producer, control = LOG[offset]
    if control is None:
        record = Record(offset, 0, None, b"v")
        batch = encode_batch(
            [record], producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
        )
    else:
        marker = EndTransactionMarker(control, 0)
        batch = encode_marker(
            marker, producer_id=producer, producer_epoch=0, timestamp_ms=0, offset=offset
        )
    return bytes(batch)


@pytest.mark.parametrize("start", range(len(LOG)))
def test_a_response_may_begin_inside_a_transaction_or_at_its_marker(start: int) -> None:
    """Kafka lists each aborted transaction whose marker is not below the fetch offset."""
    listed = [
        AbortedTransaction(producer_id=producer, first_offset=first)
        for producer, first, marker in LISTED
        if marker >= start
    ]
    aborted = AbortedTransactions(listed)
    found = set()
    for offset in range(start, len(LOG)):
        batch = batch_at(offset)
        header = parse_header(batch)
        if header.is_control:
            aborted.on_marker(batch, 0, header)
        elif aborted.covers(header):
            found.add(offset)
    assert found == {offset for offset in IN_ABORTED if offset >= start}
