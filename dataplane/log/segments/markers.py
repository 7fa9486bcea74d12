"""Transaction markers in control batches."""

from functools import lru_cache
from typing import Final, NamedTuple

from dataplane.log.segments.producers import TransactionMarker
from metaquorum.runtime.interfaces import Buffer, File
from wire.primitives.errors import WireError
from wire.records.batches import BatchHeader, parse_header
from wire.records.records import (
    ControlType,
    EndTransactionMarker,
    decode_marker,
    encode_marker,
    iter_records,
)

# Size of a control batch with a marker.
MARKER_BYTES: Final = 78
# Batches that are remembered: the partitions of a transaction get the same one.
_REMEMBERED: Final = 64


class EncodedMarker(NamedTuple):
    """The control batch of a marker, without its offset and leader epoch."""

    data: bytes
    header: BatchHeader
    marker: EndTransactionMarker


@lru_cache(_REMEMBERED)
def encoded(marker: TransactionMarker, now_ms: int) -> EncodedMarker:
    """Return the control batch of MARKER_BYTES that ends the producer's transaction."""
    kind = ControlType.COMMIT if marker.is_commit else ControlType.ABORT
    ends = EndTransactionMarker(kind, marker.coordinator_epoch)
    data = encode_marker(
        ends,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        timestamp_ms=now_ms,
    )
    return EncodedMarker(bytes(data), parse_header(data), ends)


def marker_at(buffer: Buffer, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    """Return the marker of the control batch at `position` of the buffer.

    The result is None if compaction has emptied the batch, and for any other content.
    """
    if not header.record_count:
        return None
    try:
        return decode_marker(next(iter_records(buffer, position)))
    except WireError:
        return None


def read_marker(file: File, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    """Return the marker of the control batch at `position` of the file, as `marker_at` does."""
    if not header.record_count:
        return None
    return marker_at(file.read(header.batch_bytes, position), 0, header)
