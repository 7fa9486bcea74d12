"""Finding records by their timestamps (ListOffsets), in segments and their time indexes.

The indexes narrow a search to some kilobytes of headers and one batch; only that batch is opened.
Opening takes long where the batch is a bomb, or its header claims a timestamp that none of its
records has: a search is therefore made of candidates, each found at once and opened anywhere.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from dataplane.log.segments.files import storage_errors
from dataplane.log.segments.segment import NO_TIMESTAMP, Segment
from dataplane.log.segments.slices import LogSlice
from metaquorum.runtime.interfaces import File
from wire.primitives.errors import ErrorCode, KafkaError, WireError
from wire.records.compression import Codec
from wire.records.records import BatchHeader, TimestampType, find_max_timestamp, find_timestamp

# An uncompressed batch up to here is opened within a millisecond or so.
QUICK_BYTES: Final = 16 * 1024


class TimestampOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


class Candidate(NamedTuple):
    """A batch that may have the record that is looked for."""

    records: LogSlice
    header: BatchHeader

    @property
    def is_quick(self) -> bool:
        """Whether opening it takes no time worth mentioning."""
        return self.header.timestamp_type is TimestampType.LOG_APPEND_TIME or (
            self.header.codec == Codec.NONE and self.header.batch_bytes <= QUICK_BYTES
        )

    def first_since(self, file: File, timestamp: int, start_offset: int) -> TimestampOffset | None:
        """The first record from `start_offset` on that is not older. `file` is `records` pinned.

        KafkaError (CORRUPT_MESSAGE) when the batch cannot be opened.
        """
        if self.header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return self._found((max(self.header.base_offset, start_offset), self._newest))
        return self._open(file, lambda data: find_timestamp(data, 0, timestamp, start_offset))

    def find_max_timestamp(self, file: File, start_offset: int) -> TimestampOffset | None:
        """The record with the largest timestamp from `start_offset` on, the first of several."""
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
    """The first batch in [start_offset, end_offset) that says it has what is not older."""
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
    """One of these has the youngest record from `start_offset` on: two at most.

    That is the batch with the largest timestamp; and the one that a log begins in the middle of,
    of which nobody knows what is left.
    """
    found: list[Candidate] = []
    youngest: tuple[int, Segment, int] | None = None  # timestamp, and where that is
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
    """The one with the largest timestamp, the first of several."""
    there = (each for each in found if each is not None)
    return max(there, key=lambda each: (each.timestamp, -each.offset), default=None)


def _candidate(segment: Segment, position: int, header: BatchHeader) -> Candidate:
    piece = LogSlice(segment.file, position, header.batch_bytes, header.base_offset)
    return Candidate(piece, header)
