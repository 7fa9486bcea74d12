"""Lookup of records by timestamp (ListOffsets) in segments and their time indexes.

The indexes narrow a lookup to some kilobytes of headers and one batch; only the records of that
batch are read. That is slow for a decompression bomb, or for a header with a timestamp that none of
its records has. A lookup therefore returns candidates: finding one is fast, and its records can be
read in a worker thread.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from metaquorum.dataplane.log.segments.files import storage_errors
from metaquorum.dataplane.log.segments.segment import NO_TIMESTAMP, Segment
from metaquorum.dataplane.log.segments.slices import LogSlice
from metaquorum.runtime.interfaces import File
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError
from metaquorum.wire.records.compression import Codec
from metaquorum.wire.records.records import (
    BatchHeader,
    TimestampType,
    find_max_timestamp,
    find_timestamp,
)

# The records of an uncompressed batch up to this size are read within about a millisecond.
QUICK_BYTES: Final = 16 * 1024


class TimestampOffset(NamedTuple):
    """A record that a lookup by timestamp has found."""

    offset: int
    timestamp: int
    leader_epoch: int


class Candidate(NamedTuple):
    """A batch that may have the record that a lookup by timestamp wants."""

    records: LogSlice
    header: BatchHeader

    @property
    def is_quick(self) -> bool:
        """Whether its records can be read on the event loop: about a millisecond at most."""
        return self.header.timestamp_type is TimestampType.LOG_APPEND_TIME or (
            self.header.codec == Codec.NONE and self.header.batch_bytes <= QUICK_BYTES
        )

    def first_since(self, file: File, timestamp: int, start_offset: int) -> TimestampOffset | None:
        """Return the first record from `start_offset` on with `timestamp` or a later one, or None.

        `file` is the pinned file of `records`. Raises KafkaError (CORRUPT_MESSAGE) if the batch
        cannot be decoded, StorageError if the file cannot be read.
        """
        if self.header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return self._found((max(self.header.base_offset, start_offset), self._newest))
        return self._open(file, lambda data: find_timestamp(data, 0, timestamp, start_offset))

    def find_max_timestamp(self, file: File, start_offset: int) -> TimestampOffset | None:
        """Return the record with the largest timestamp from `start_offset` on.

        Of several, return the first one. Arguments and errors are those of `first_since`.
        """
        if self.header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return self._found((max(self.header.base_offset, start_offset), self._newest))
        return self._open(file, lambda data: find_max_timestamp(data, 0, start_offset))

    @property
    def _newest(self) -> int:
        return self.header.max_timestamp

    def _found(self, found: tuple[int, int] | None) -> TimestampOffset | None:
        return None if found is None else TimestampOffset(*found, self.header.leader_epoch)

    def _open(
        self, file: File, find: Callable[[bytes], tuple[int, int] | None]
    ) -> TimestampOffset | None:
        position = self.records.position
        with storage_errors("read", file.path):
            data = file.read(self.header.batch_bytes, position)
        try:
            return self._found(find(data))
        except WireError as error:
            text = f"batch at position {position} of {file.path}: {error}"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from None


def next_candidate(
    segments: Sequence[Segment], timestamp: int, start_offset: int, end_offset: int
) -> Candidate | None:
    """Return the first batch in [start_offset, end_offset) whose header has a maximum timestamp
    of at least `timestamp`.
    """
    for segment in segments:
        if not segment.size_bytes or segment.max_timestamp < timestamp:
            continue
        start = segment.locate_timestamp(timestamp)
        if start_offset > segment.base_offset:
            place = segment.locate(start_offset)
            if place is None:
                continue
            start = max(start, place[0])
        for position, header in segment.walk(start):
            if header.base_offset >= end_offset:
                return None
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                return _candidate(segment, position, header)
    return None


def max_timestamp_candidates(segments: Sequence[Segment], start_offset: int) -> list[Candidate]:
    """Return at most two batches, one of which has the newest record from `start_offset` on.

    These are the batch with the largest timestamp, and a batch that contains `start_offset`: the
    record with its maximum timestamp may be before the log start.
    """
    found: list[Candidate] = []
    youngest: tuple[int, Segment, int] | None = None  # timestamp, segment, offset
    for segment in segments:
        timestamp, offset = NO_TIMESTAMP, -1
        if segment.base_offset >= start_offset:
            if segment.size_bytes:
                timestamp, offset = segment.max_timestamp, segment.max_timestamp_offset
        elif (place := segment.locate(start_offset)) is not None:
            for position, header in segment.walk(place[0]):
                if header.base_offset < start_offset:
                    found.append(_candidate(segment, position, header))
                elif header.max_timestamp > timestamp:
                    timestamp, offset = header.max_timestamp, header.last_offset
        if timestamp > (youngest[0] if youngest else NO_TIMESTAMP):
            youngest = timestamp, segment, offset
    if youngest is not None and (place := youngest[1].locate(youngest[2])) is not None:
        found.append(_candidate(youngest[1], *place))
    return found


def latest_of(found: Iterable[TimestampOffset | None]) -> TimestampOffset | None:
    """Return the entry with the largest timestamp, of several the one with the smallest offset."""
    there = (each for each in found if each is not None)
    return max(there, key=lambda each: (each.timestamp, -each.offset), default=None)


def _candidate(segment: Segment, position: int, header: BatchHeader) -> Candidate:
    piece = LogSlice(segment.file, position, header.batch_bytes, header.base_offset)
    return Candidate(piece, header)
