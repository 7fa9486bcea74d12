"""Record batch, the atomic unit of the metadata log: all its records are replayed or none.

Bytes: the msgpack array `[format, term, proposer, sequence, expected_offset, count]`, then `count`
records, each a separate msgpack array (so that they can be packed and read in slices).

`expected_offset` is the log end offset on which the proposer decided. Every replica drops a batch
that is committed at another offset, because it was decided on another state, and a batch whose
`term` differs from the term in which it was committed. So a batch sent twice is replayed once: its
first copy moves the log end offset. (`proposer`, `sequence`) identifies the proposal to its
proposer.
"""

from collections.abc import Iterator
from typing import Final

import msgpack

from metaquorum.metadata.records import (
    UNPACK_LIMITS,
    MetadataRecord,
    NewerVersionError,
    RecordError,
    record_from,
)
from metaquorum.wire.primitives.frozen import frozen

FORMAT: Final = 1
# Limits of one batch as proposed. The journal, the transport and followers rely on both.
MAX_BATCH_BYTES: Final = 2 << 20
MAX_BATCH_RECORDS: Final = 12_000
# Records to encode, decode or replay between two checkpoints of the event loop: 3 ms or less.
SLICE_RECORDS: Final = 300

_INT64_MAX: Final = 2**63 - 1
_HEADER_FIELDS: Final = ("format", "term", "proposer", "sequence", "expected offset", "count")


class BatchTooLargeError(Exception):
    """Raised if a batch has more records or bytes than allowed."""


@frozen
class Batch:
    """Batch whose records are still packed, one after the other, in `body`."""

    term: int
    proposer: int
    sequence: int
    expected_offset: int
    count: int
    body: bytes

    @property
    def end_offset(self) -> int:
        return self.expected_offset + self.count

    def encode(self) -> bytes:
        check_size(self.count, len(self.body))
        header = (
            FORMAT,
            self.term,
            self.proposer,
            self.sequence,
            self.expected_offset,
            self.count,
        )
        packed = msgpack.packb(header)
        assert isinstance(packed, bytes)
        return packed + self.body

    def records(self) -> Iterator[MetadataRecord]:
        """Yield the records. Raises RecordError if they are malformed or do not match `count`."""
        unpacker = _unpacker(self.body)
        for number in range(self.count):
            try:
                row = unpacker.unpack()
            except _UNPACK_ERRORS as error:
                raise RecordError(f"batch: record {number} is not msgpack ({error!r})") from None
            yield record_from(row)
        if unpacker.tell() != len(self.body):
            raise RecordError(f"batch: excess bytes after its {self.count} records")


def check_size(count: int, body_bytes: int) -> None:
    """Raise BatchTooLargeError if the records or bytes exceed the limits of one batch."""
    if count > MAX_BATCH_RECORDS or body_bytes > MAX_BATCH_BYTES:
        raise BatchTooLargeError(
            f"{count} metadata records of {body_bytes} bytes in total; one batch can have"
            f" {MAX_BATCH_RECORDS} records and {MAX_BATCH_BYTES} bytes"
        )


def decode_batch(data: bytes) -> Batch:
    """Return the batch with its records still packed. Raises RecordError if it is malformed."""
    unpacker = _unpacker(data)
    try:
        row = unpacker.unpack()
    except _UNPACK_ERRORS as error:
        raise RecordError(f"batch: header is not msgpack ({error!r})") from None
    if type(row) is not tuple or not row or type(row[0]) is not int:
        raise RecordError("batch: header is not an array")
    if row[0] > FORMAT:
        raise NewerVersionError(
            f"batch: format {row[0]} was written by a newer version; this version reads {FORMAT}"
        )
    if row[0] != FORMAT or len(row) != len(_HEADER_FIELDS):
        raise RecordError("batch: header has the wrong length")
    for name, value in zip(_HEADER_FIELDS, row, strict=True):
        if type(value) is not int or not 0 <= value <= _INT64_MAX:
            raise RecordError(f"batch: {name} is not a number from 0 to 2**63 - 1")
    _, term, proposer, sequence, expected_offset, count = row
    body = data[unpacker.tell() :]
    if count > MAX_BATCH_RECORDS or len(body) > MAX_BATCH_BYTES:
        raise RecordError(f"batch: {count} records in {len(body)} bytes exceed the limits")
    return Batch(term, proposer, sequence, expected_offset, count, body)


_UNPACK_ERRORS: Final = (
    ValueError,
    TypeError,
    RecursionError,
    msgpack.OutOfData,
    msgpack.UnpackException,
)


def _unpacker(data: bytes) -> msgpack.Unpacker:
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(data), 1), **UNPACK_LIMITS)
    unpacker.feed(data)
    return unpacker
