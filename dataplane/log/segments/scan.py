"""Reading a segment through, byte for byte: what of it is sound, and what its indexes must say.

Plain functions over an open `File`, in bounded steps, for `Disk.run`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from dataplane.log.segments.config import LogConfig
from dataplane.log.segments.index import OffsetIndex, TimeIndex
from dataplane.log.segments.segment import MAX_RELATIVE_OFFSET, NO_TIMESTAMP, SegmentState
from metaquorum.runtime.interfaces import File
from wire.primitives.errors import KafkaError
from wire.records.crc import crc32c
from wire.records.records import HEADER_BYTES, BatchHeader, BatchState, parse_header
from wire.records.records import scan as scan_batch

SCAN_BYTES: Final = 1 << 20
# How many places that look like a batch are tried behind a damaged one.
MAX_RESYNC_CANDIDATES: Final = 1000
_CRC_START: Final = 21
NO_EPOCH: Final = -1


class Damage(NamedTuple):
    """Where a segment stops being sound."""

    position: int
    problem: str


class SegmentScan(NamedTuple):
    state: SegmentState  # of the sound part
    next_offset: int
    bytes_since_index: int
    offset_index: bytes
    time_index: bytes
    damage: Damage | None


def scan_segment(
    file: File,
    base_offset: int,
    config: LogConfig,
    on_batch: Callable[[BatchHeader], None],
    *,
    leader_epoch: int = NO_EPOCH,
) -> SegmentScan:
    """Every sound batch from the start on was given to `on_batch`; damage ends the scan.

    `leader_epoch` is that of the batch before the segment, if known. Leader epochs never go back in
    a log: a segment whose first batch is of an earlier one was cut once, and is back as its removal
    was not synced.

    A batch's offset and leader epoch are not in its checksum. Both may jump forward, so a batch
    where one does is held until the next one is seen: if that goes back to where it would be
    without the jump, the jump is the damage.
    """
    builder = IndexBuilder(base_offset, config)
    size = file.size()
    held: tuple[int, BatchHeader] | None = None
    damage: Damage | None = None
    before = place = _Place(base_offset, leader_epoch)

    def take(position: int, header: BatchHeader) -> None:
        builder.add(position, header)
        on_batch(header)

    for position, header, problem in _checked_batches(file, size):
        if header is None or problem:
            damage = Damage(position, problem)
            break
        if problem := place.problem(header, base_offset):
            if held is not None and not before.problem(header, base_offset):
                position, place = held[0], before
                problem = f"its offset or leader epoch jumps: {held[1][:3]}"
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
    """Where a log has come to."""

    next_offset: int
    leader_epoch: int  # -1 before the first batch

    def problem(self, header: BatchHeader, base_offset: int) -> str:
        """Why this batch cannot follow; "" if it can."""
        if header.base_offset < self.next_offset:
            return f"offset {header.base_offset} where {self.next_offset} or more must follow"
        if header.leader_epoch < self.leader_epoch:
            return f"leader epoch {header.leader_epoch} behind {self.leader_epoch}"
        if header.last_offset - base_offset > MAX_RELATIVE_OFFSET:
            return f"offset {header.last_offset} is too far from the segment's {base_offset}"
        return ""

    def jumps_to(self, header: BatchHeader) -> bool:
        raised = header.leader_epoch > self.leader_epoch >= 0
        return raised or header.base_offset > self.next_offset


class IndexBuilder:
    """The entries that appending these batches would have made."""

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
    """Position, header and problem of one batch after the other; nothing follows a problem."""
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
            if at or not data:  # it began in this piece and ends in the next
                start = position
                data = file.read(min(SCAN_BYTES, size - position), position)
                continue
        yield position, result.header, result.problem
        if result.header is None or result.problem:
            return
        position += result.header.batch_bytes


def _check_large(file: File, position: int, size: int, header: BatchHeader) -> str:
    """What is wrong with a batch that is larger than one step; "" for nothing."""
    end = position + header.batch_bytes
    if end > size:
        return f"{size - position} of {header.batch_bytes} bytes"
    if header.base_offset < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        return f"base offset {header.base_offset}, {header.record_count} records"
    crc = 0
    at = position + _CRC_START
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
    """The first sound batch at or behind `position`, at `next_offset` or later.

    It tells damage in the middle from a torn tail. None also when too many places look like one.
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
