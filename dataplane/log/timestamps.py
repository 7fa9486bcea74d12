"""Finding records by their timestamps (ListOffsets), in segments and their time indexes.

The indexes narrow a search to some kilobytes of headers and one batch; only that batch is opened.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dataplane.log.files import storage_errors
from dataplane.log.segment import Segment
from wire.errors import ErrorCode, KafkaError, WireError
from wire.records import BatchHeader, TimestampType, find_max_timestamp, find_timestamp


class TimestampOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


def find_offset(
    segments: Sequence[Segment], timestamp: int, start_offset: int, end_offset: int
) -> TimestampOffset | None:
    """The first record in [start_offset, end_offset) that is not older than `timestamp`."""
    for segment in segments:
        if not segment.size_bytes or segment.max_timestamp < timestamp:
            continue
        for position, header in segment.walk(segment.locate_timestamp(timestamp)):
            if header.base_offset >= end_offset:
                return None
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            found = _in_batch(segment, position, header, timestamp, start_offset)
            if found is not None:
                return _before(end_offset, found, header)
    return None


def find_youngest(segments: Sequence[Segment], end_offset: int) -> TimestampOffset | None:
    """The record with the largest timestamp, the first of several, if it is before `end_offset`."""
    filled = [segment for segment in segments if segment.size_bytes]
    youngest = max(filled, key=lambda segment: segment.max_timestamp, default=None)
    if youngest is None or youngest.max_timestamp < 0:
        return None
    place = youngest.locate(youngest.max_timestamp_offset)
    if place is None:
        return None
    position, header = place
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return _before(end_offset, (header.base_offset, header.max_timestamp), header)
    with _batch(youngest, position, header) as batch:
        found = find_max_timestamp(batch, 0)
    return _before(end_offset, found, header) if found else None


def _in_batch(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> tuple[int, int] | None:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return max(header.base_offset, start_offset), header.max_timestamp
    with _batch(segment, position, header) as batch:
        return find_timestamp(batch, 0, timestamp, start_offset)


def _before(end_offset: int, found: tuple[int, int], header: BatchHeader) -> TimestampOffset | None:
    offset, timestamp = found
    return TimestampOffset(offset, timestamp, header.leader_epoch) if offset < end_offset else None


@contextmanager
def _batch(segment: Segment, position: int, header: BatchHeader) -> Iterator[bytes]:
    """The bytes of a batch to be opened. What cannot be is told to who asked: CORRUPT_MESSAGE."""
    with storage_errors("read", segment.file.path):
        data = segment.file.get().read(header.batch_bytes, position)
    try:
        yield data
    except WireError as error:
        text = f"batch at position {position} of {segment.file.path}: {error}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from None
