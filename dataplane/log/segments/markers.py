"""Transaction markers in control batches."""

from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.runtime.interfaces import Buffer, File
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.records.batches import (
    AFTER_CRC,
    CONTROL,
    MAGIC,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    pack_up_to_crc,
)
from metaquorum.wire.records.crc import crc32c
from metaquorum.wire.records.records import (
    ControlType,
    EndTransactionMarker,
    decode_marker,
    iter_records,
)

# Size of a control batch with a marker.
MARKER_BYTES: Final = 78
# Batches that are remembered: the partitions of a transaction get the same one.
_REMEMBERED: Final = 64
# The header after the checksum, and the record with lengths as varints.
_pack_after_crc: Final = Struct(f">{AFTER_CRC}5bhhbhib").pack
_ATTRIBUTES: Final = TRANSACTIONAL | CONTROL
_SIZE: Final = MARKER_BYTES - PREFIX_BYTES  # that the header has
_RECORD_SIZE, _KEY_SIZE, _VALUE_SIZE = 2 * 16, 2 * 4, 2 * 6  # as varints
_VERSION: Final = 0  # version of the key and of the value
# Constants, because Python 3.11 looks up members of an enum slowly.
_COMMIT: Final = ControlType.COMMIT
_ABORT: Final = ControlType.ABORT


class EncodedMarker(NamedTuple):
    """The control batch of a marker, without its offset and leader epoch."""

    data: bytes
    header: BatchHeader
    marker: EndTransactionMarker


@lru_cache(_REMEMBERED)
def encoded(marker: TransactionMarker, now_ms: int) -> EncodedMarker:
    """Return the control batch of MARKER_BYTES that ends the producer's transaction.

    The same as `encode_marker` and `parse_header`, in a fifth of the time: each transaction writes
    one.
    """
    kind = _COMMIT if marker.is_commit else _ABORT
    producer_id, epoch, coordinator_epoch = marker[:3]
    checked = _pack_after_crc(
        _ATTRIBUTES,
        0,
        now_ms,
        now_ms,
        producer_id,
        epoch,
        -1,
        1,
        _RECORD_SIZE,
        0,
        0,
        0,
        _KEY_SIZE,
        _VERSION,
        1 if marker.is_commit else 0,
        _VALUE_SIZE,
        _VERSION,
        coordinator_epoch,
        0,
    )
    crc = crc32c(checked)
    header = BatchHeader(
        0,
        MARKER_BYTES,
        -1,
        MAGIC,
        crc,
        _ATTRIBUTES,
        0,
        now_ms,
        now_ms,
        producer_id,
        epoch,
        -1,
        1,
    )
    data = pack_up_to_crc(0, _SIZE, -1, MAGIC, crc) + checked
    return EncodedMarker(data, header, EndTransactionMarker(kind, coordinator_epoch))


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
