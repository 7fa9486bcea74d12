"""Transaction markers in control batches."""

from typing import Final

from metaquorum.runtime.interfaces import Buffer, File
from wire.primitives.errors import WireError
from wire.records.batches import BatchHeader
from wire.records.records import EndTransactionMarker, decode_marker, iter_records

# Size of a control batch with a marker.
MARKER_BYTES: Final = 78


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
