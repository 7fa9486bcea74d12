"""The atomic unit of the metadata log: a batch of records, all replayed or none.

Bytes: the msgpack array `[format, term, proposer, sequence, expected_offset, count]`, then `count`
records, each a msgpack array of its own (so that they can be packed and read in slices).

`expected_offset` is where the proposer knew the log to end when it decided; a batch that arrives
anywhere else was decided on another state and is dropped by every replica alike, as is one whose
`term` is not the term it was committed in. A batch sent twice is therefore replayed once: its first
copy moves the end. (`proposer`, `sequence`) names the proposal, for its proposer to recognise.
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
from wire.primitives.frozen import frozen

FORMAT: Final = 1
# Within one batch, as proposed. The journal, the transport and followers rely on both.
MAX_BATCH_BYTES: Final = 2 << 20
MAX_BATCH_RECORDS: Final = 12_000
# Records to encode, decode or replay before the loop gets its turn: 3 ms or less.
SLICE_RECORDS: Final = 300

_INT64_MAX: Final = 2**63 - 1
_HEADER_FIELDS: Final = ("format", "term", "proposer", "sequence", "expected offset", "count")


class BatchTooLargeError(Exception):
    """More records or bytes than one batch may have."""


@frozen
class Batch:
    """A batch with its records still packed, one behind the other, in `body`."""

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
        """The records, read one by one; RecordError where they are not what `count` says."""
        unpacker = _unpacker(self.body)
        for number in range(self.count):
            try:
                row = unpacker.unpack()
            except _UNPACK_ERRORS as error:
                raise RecordError(f"batch: record {number} is no msgpack ({error!r})") from None
            yield record_from(row)
        if unpacker.tell() != len(self.body):
            raise RecordError(f"batch: bytes left behind its {self.count} records")


def check_size(count: int, body_bytes: int) -> None:
    """BatchTooLargeError where one batch does not take so many records or bytes."""
    if count > MAX_BATCH_RECORDS or body_bytes > MAX_BATCH_BYTES:
        raise BatchTooLargeError(
            f"{count} metadata records of {body_bytes} bytes in all; one batch takes"
            f" {MAX_BATCH_RECORDS} and {MAX_BATCH_BYTES}"
        )


def decode_batch(data: bytes) -> Batch:
    """The batch, its records not yet looked at; RecordError."""
    unpacker = _unpacker(data)
    try:
        row = unpacker.unpack()
    except _UNPACK_ERRORS as error:
        raise RecordError(f"batch: header is no msgpack ({error!r})") from None
    if type(row) is not tuple or not row or type(row[0]) is not int:
        raise RecordError("batch: header is not an array")
    if row[0] > FORMAT:
        raise NewerVersionError(
            f"batch: format {row[0]} was written by a newer version; this one reads {FORMAT}"
        )
    if row[0] != FORMAT or len(row) != len(_HEADER_FIELDS):
        raise RecordError("batch: header has the wrong length")
    for name, value in zip(_HEADER_FIELDS, row, strict=True):
        if type(value) is not int or not 0 <= value <= _INT64_MAX:
            raise RecordError(f"batch: {name} is no number")
    _, term, proposer, sequence, expected_offset, count = row
    body = data[unpacker.tell() :]
    if count > MAX_BATCH_RECORDS or len(body) > MAX_BATCH_BYTES:
        raise RecordError(f"batch: {count} records in {len(body)} bytes are too many")
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
