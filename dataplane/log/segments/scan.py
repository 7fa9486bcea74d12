"""A full scan of a segment: how far its batches are valid, and the entries of its indexes.

Blocking functions over an open `File`, which read in bounded steps: call them in a worker thread
(`Disk.run`).
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.index import OffsetIndex, TimeIndex
from metaquorum.dataplane.log.segments.segment import (
    MAX_RELATIVE_OFFSET,
    NO_TIMESTAMP,
    SegmentState,
)
from metaquorum.runtime.interfaces import File
from metaquorum.wire.primitives.errors import KafkaError
from metaquorum.wire.records.batches import CRC_START
from metaquorum.wire.records.crc import crc32c
from metaquorum.wire.records.records import HEADER_BYTES, BatchHeader, BatchState, parse_header
from metaquorum.wire.records.records import scan as scan_batch

SCAN_BYTES: Final = 1 << 20
# Number of possible batch headers that are tried after a damaged batch.
MAX_RESYNC_CANDIDATES: Final = 1000
NO_EPOCH: Final = -1


class Damage(NamedTuple):
    """Position of the first invalid batch of a segment, and what is wrong with it."""

    position: int
    problem: str


class SegmentScan(NamedTuple):
    """Result of a scan; all fields but `damage` describe the part before the damage."""

    state: SegmentState
    next_offset: int
    bytes_since_index: int
    offset_index: bytes
    time_index: bytes
    damage: Damage | None


def scan_segment(
    file: File,
    base_offset: int,
    config: LogConfig,
    on_batch: Callable[[int, BatchHeader], None],
    *,
    leader_epoch: int = NO_EPOCH,
) -> SegmentScan:
    """Scan the segment from its start, and call `on_batch(position, header)` for each valid
    batch.

    The first damaged batch ends the scan. `leader_epoch` is that of the batch before the segment,
    if known. Leader epochs never decrease in a log: a segment whose first batch has an earlier one
    was truncated once, and reappeared because its removal was not synced.

    The checksum of a batch does not cover its offset and leader epoch. Both may jump forward, so a
    batch with a jump is held until the next one is read: if that one continues as if there were no
    jump, the batch with the jump is the damaged one.
    """
    builder = IndexBuilder(base_offset, config)
    size = file.size()
    held: tuple[int, BatchHeader] | None = None
    damage: Damage | None = None
    before = place = _Place(base_offset, leader_epoch)

    def take(position: int, header: BatchHeader) -> None:
        builder.add(position, header)
        on_batch(position, header)

    for position, header, problem in _checked_batches(file, size):
        if header is None or problem:
            damage = Damage(position, problem)
            break
        if problem := place.problem(header, base_offset):
            if held is not None and not before.problem(header, base_offset):
                position, place = held[0], before
                problem = f"the offset or leader epoch of the batch jumps: {held[1][:3]}"
                held = None
            damage = Damage(position, problem)
            break
        if held is not None:
            take(*held)
            held = None
        before, place = place, _Place(header.next_offset, header.leader_epoch)
        if before.jumps_to(header):
            held = (position, header)
        else:
            take(position, header)
    if held is not None:
        take(*held)
    state = builder.finish(damage.position if damage else size)
    return SegmentScan(
        state,
        place.next_offset,
        builder.bytes_since_index,
        bytes(builder.index),
        bytes(builder.times),
        damage,
    )


class _Place(NamedTuple):
    """Next offset and last leader epoch at a point of the scan."""

    next_offset: int
    leader_epoch: int  # -1 before the first batch

    def problem(self, header: BatchHeader, base_offset: int) -> str:
        """Return why this batch cannot follow; "" if it can."""
        if header.base_offset < self.next_offset:
            return f"base offset {header.base_offset}, expected {self.next_offset} or more"
        if header.leader_epoch < self.leader_epoch:
            return f"leader epoch {header.leader_epoch} after {self.leader_epoch}"
        if header.last_offset - base_offset > MAX_RELATIVE_OFFSET:
            return f"offset {header.last_offset} is too far from base offset {base_offset}"
        return ""

    def jumps_to(self, header: BatchHeader) -> bool:
        raised = header.leader_epoch > self.leader_epoch >= 0
        return raised or header.base_offset > self.next_offset


class IndexBuilder:
    """Builder of the index entries that appends of these batches would have added."""

    def __init__(self, base_offset: int, config: LogConfig) -> None:
        self._base_offset = base_offset
        self._interval = config.index_interval_bytes
        self._max_index = config.segment_index_bytes // OffsetIndex.FORMAT.size
        self._max_times = config.segment_index_bytes // TimeIndex.FORMAT.size
        self.index = bytearray()
        self.times = bytearray()
        self.bytes_since_index = 0
        self._first_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = -1
        self._last_time_entry = NO_TIMESTAMP

    def add(self, position: int, header: BatchHeader) -> None:
        if position == 0:
            self._first_timestamp = header.max_timestamp
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = header.last_offset
        if self.bytes_since_index > self._interval:
            if len(self.index) < self._max_index * OffsetIndex.FORMAT.size:
                self.index += OffsetIndex.FORMAT.pack(
                    header.last_offset - self._base_offset, position
                )
            self._add_time()
            self.bytes_since_index = 0
        self.bytes_since_index += header.batch_bytes

    def _add_time(self) -> None:
        full = len(self.times) >= self._max_times * TimeIndex.FORMAT.size
        if self._max_timestamp > self._last_time_entry and not full:
            self.times += TimeIndex.FORMAT.pack(
                self._max_timestamp, self._max_timestamp_offset - self._base_offset
            )
            self._last_time_entry = self._max_timestamp

    def finish(self, size_bytes: int) -> SegmentState:
        self._add_time()
        return SegmentState(
            self._base_offset,
            size_bytes,
            len(self.index),
            len(self.times),
            self._first_timestamp,
            self._max_timestamp,
            self._max_timestamp_offset,
        )


def _checked_batches(file: File, size: int) -> Iterator[tuple[int, BatchHeader | None, str]]:
    """Yield position, header and problem ("" for none) of each batch; a problem ends the scan."""
    position = start = 0
    data = b""
    while position < size:
        at = position - start
        result = scan_batch(data, at)
        if result.state is BatchState.TORN and start + len(data) < size:
            header = result.header
            if header is not None and header.batch_bytes > SCAN_BYTES:
                problem = _check_large(file, position, size, header)
                yield position, header, problem
                if problem:
                    return
                position = start = position + header.batch_bytes
                data = b""
                continue
            if at or not data:  # the batch continues beyond the bytes that were read
                start = position
                data = file.read(min(SCAN_BYTES, size - position), position)
                continue
        yield position, result.header, result.problem
        if result.header is None or result.problem:
            return
        position += result.header.batch_bytes


def _check_large(file: File, position: int, size: int, header: BatchHeader) -> str:
    """Return the problem of a batch that is larger than one read; "" for none."""
    end = position + header.batch_bytes
    if end > size:
        return f"the file ends after {size - position} of {header.batch_bytes} bytes of the batch"
    if header.base_offset < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        return f"invalid base offset {header.base_offset} or record count {header.record_count}"
    crc = 0
    at = position + CRC_START
    while at < end:
        data = file.read(min(SCAN_BYTES, end - at), at)
        crc = crc32c(data, crc)
        at += len(data)
        if not data:
            return "the file ends early"
    return "" if crc == header.crc else "the checksum does not match"


def find_batch_behind(
    file: File, position: int, size: int, next_offset: int
) -> tuple[int, BatchHeader] | None:
    """Return the first valid batch at or after `position` with offset `next_offset` or more.

    This distinguishes damage in the middle of a segment from a torn tail. Return None if no batch
    is found, or if more than MAX_RESYNC_CANDIDATES positions look like a batch header.
    """
    high = (next_offset >> 32).to_bytes(4, "big")
    looks_like = re.compile(b"(?s)(?=" + re.escape(high) + b".{12}\\x02)")
    candidates = 0
    while position < size:
        data = file.read(min(SCAN_BYTES, size - position), position)
        for match in looks_like.finditer(data):
            at = position + match.start()
            header = _header_at(file, at)
            if header is None or header.base_offset < next_offset:
                continue
            candidates += 1
            if candidates > MAX_RESYNC_CANDIDATES:
                return None
            if not _check_large(file, at, size, header):
                return at, header
        if len(data) < SCAN_BYTES:
            return None
        position += len(data) - HEADER_BYTES
    return None


def _header_at(file: File, position: int) -> BatchHeader | None:
    try:
        return parse_header(file.read(HEADER_BYTES, position))
    except KafkaError:
        return None
