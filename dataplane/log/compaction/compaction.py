"""Rules of compaction: the records that stay, and the part of a log to clean next.

    log start          first_dirty             end                            log end
    | cleaned before   | to be cleaned         | too young, unstable, active  |

The offset map gets the last offset of each key in [first_dirty, end). Then every batch before `end`
is read again. A record is removed if the map has a later offset for its key, or if it is an expired
tombstone (a key without a value). Offsets and their order, and the first and last offset of a
batch, never change; a batch may lose some or all of its records.

A tombstone is kept for `delete.retention.ms` after its first cleaning, so that a consumer that
reads from the start within that time sees the deletion. Its batch stores that deadline as *delete
horizon* in the place of the base timestamp (KIP-534).

    a batch stays without records, as an empty batch, if
        it is the last one of an idempotent producer: its sequence must be known after a restart
        it is the last one of its group of segments: the end offset must not change
    a transaction marker stays
        until the first cleaning that finds no batch of its transaction before it, and
        then for delete.retention.ms, like a tombstone

Records without a key (from before the topic was compacted) are removed. Plain state, no I/O.
Source: Kafka's LogCleaner, KIP-58, KIP-354, KIP-534.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from metaquorum.dataplane.log.segments.offset_map import OffsetMap
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.primitives.types import Buffer
from metaquorum.wire.records.batches import (
    CODEC_MASK,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    BatchHeader,
    pack_batch,
)
from metaquorum.wire.records.compression import compress_pieces
from metaquorum.wire.records.records import (
    ControlType,
    decode_marker,
    iter_records,
    record_spans,
    with_timestamp_delta,
)

# Segments that are merged into one: their files are renamed without yielding to the event loop.
MAX_GROUP_SEGMENTS: Final = 64
MAX_RELATIVE_OFFSET: Final = 2**31 - 1


# Choice of the part to clean


class SegmentAges(NamedTuple):
    """Offsets, size and ages of one segment."""

    base_offset: int
    end_offset: int
    size_bytes: int
    first_ms: int  # timestamp of the first batch; -1 if it has none
    newest_ms: int


@frozen
class CompactionLimits:
    """Configs of a topic that decide when it is cleaned."""

    min_lag_ms: int
    max_lag_ms: int
    min_dirty_ratio: float


@frozen
class Cleanable:
    """Part of a log that may be cleaned, and how urgent that is."""

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    delay_ms: int  # time by which its oldest records exceed max.compaction.lag.ms

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, limits: CompactionLimits) -> bool:
        return self.dirty_bytes > 0 and (
            self.delay_ms > 0 or self.dirty_ratio > limits.min_dirty_ratio
        )


def cleanable(
    segments: Sequence[SegmentAges],
    cleaned_to: int,
    stable_end: int,
    now_ms: int,
    limits: CompactionLimits,
) -> Cleanable:
    """Return the part of the log from `cleaned_to` on that may be cleaned: whole segments.

    `segments` are all but the active one; `stable_end` is the last stable offset.
    """
    start = segments[0].base_offset if segments else 0
    log_end = segments[-1].end_offset if segments else 0
    first_dirty = cleaned_to if start <= cleaned_to <= log_end else start
    end = first_dirty
    clean_bytes = dirty_bytes = delay_ms = 0
    for segment in segments:
        if segment.end_offset <= first_dirty:
            clean_bytes += segment.size_bytes
            continue
        too_young = limits.min_lag_ms > 0 and segment.newest_ms > now_ms - limits.min_lag_ms
        if segment.end_offset > stable_end or too_young:
            break
        end = segment.end_offset
        dirty_bytes += segment.size_bytes
        if segment.first_ms > 0:
            delay_ms = max(delay_ms, now_ms - limits.max_lag_ms - segment.first_ms)
    return Cleanable(first_dirty, end, clean_bytes, dirty_bytes, delay_ms)


class SegmentSizes(NamedTuple):
    """Offsets and file sizes of one segment."""

    base_offset: int
    end_offset: int
    log_bytes: int
    index_bytes: int
    time_index_bytes: int


def groups(
    segments: Iterable[SegmentSizes], max_log_bytes: int, max_index_bytes: int
) -> Iterator[list[int]]:
    """Yield the indexes of consecutive segments that fit into one segment of these limits."""
    group: list[int] = []
    base = log_bytes = index_bytes = time_index_bytes = 0
    for number, segment in enumerate(segments):
        log_bytes += segment.log_bytes
        index_bytes += segment.index_bytes
        time_index_bytes += segment.time_index_bytes
        if group and (
            len(group) == MAX_GROUP_SEGMENTS
            or log_bytes > max_log_bytes
            or max(index_bytes, time_index_bytes) > max_index_bytes
            or segment.end_offset - 1 - base > MAX_RELATIVE_OFFSET
        ):
            yield group
            group = []
        if not group:
            base, log_bytes = segment.base_offset, segment.log_bytes
            index_bytes, time_index_bytes = segment.index_bytes, segment.time_index_bytes
        group.append(number)
    if group:
        yield group


@dataclass(slots=True)
class CleanerStatistics:
    """Values for the metrics of a worker's cleaner, named as in Kafka."""

    uncleanable_partitions_count: int = 0
    max_clean_time_secs: float = 0.0  # longest of the last cleanings of all cleaner threads
    max_compaction_delay_secs: float = 0.0  # time beyond max.compaction.lag.ms, at the last check


# Transactions


class Outcome(Enum):
    """Outcome of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


class Markers:
    """Outcomes of the transactions of a log: the first marker after a batch decides.

    Consecutive markers of one producer and one kind share an entry.
    """

    __slots__ = ("_aborts", "_offsets")

    def __init__(self) -> None:
        self._offsets: dict[int, array[int]] = {}
        self._aborts: dict[int, bytearray] = {}

    def add(self, producer_id: int, offset: int, control_type: ControlType) -> None:
        """Add a marker with a larger offset than all earlier markers."""
        offsets = self._offsets.setdefault(producer_id, array("q"))
        aborts = self._aborts.setdefault(producer_id, bytearray())
        is_abort = control_type is ControlType.ABORT
        if aborts and aborts[-1] == is_abort:
            offsets[-1] = offset
            return
        offsets.append(offset)
        aborts.append(is_abort)

    def outcome(self, producer_id: int, offset: int) -> Outcome:
        """Return the outcome of the transaction with the producer's batch at `offset`."""
        offsets = self._offsets.get(producer_id, ())
        number = bisect_left(offsets, offset)
        if number == len(offsets):
            return Outcome.OPEN
        return Outcome.ABORTED if self._aborts[producer_id][number] else Outcome.COMMITTED


def marker_type(batch: Buffer, header: BatchHeader) -> ControlType | None:
    """Return the type of a control batch; None if it is empty or ends no transaction."""
    if not header.record_count:
        return None
    marker = decode_marker(next(iter_records(batch)))
    return None if marker is None else marker.control_type


# Producers


class LastBatch(NamedTuple):
    """Last batch of an active producer, which must stay; offset -1: its last marker."""

    epoch: int
    last_offset: int

    def is_in(self, header: BatchHeader) -> bool:
        if self.last_offset >= 0:
            return header.last_offset == self.last_offset
        return header.is_control and header.producer_epoch == self.epoch


# The map


def note_keys(map_: OffsetMap, batch: Buffer, header: BatchHeader, start_offset: int) -> bool:
    """Put the keys of the batch into the map with their offsets. Return False if it is full."""
    base = header.base_offset
    for data, spans in record_spans(batch, 0, header):
        for _, _, _, delta, _, key_at, key_length, _, _, _, _ in spans:
            offset = base + delta
            if (
                key_length >= 0
                and offset >= start_offset
                and not map_.put(data[key_at : key_at + key_length], offset)
            ):
                return False
            map_.latest_offset = offset
    map_.latest_offset = header.last_offset
    return True


# The filter


@dataclass(slots=True)
class CleaningCounts:
    """Numbers of records that one cleaning has read, kept, and removed because they have no key."""

    read_records: int = 0
    kept_records: int = 0
    keyless_records: int = 0


@dataclass(slots=True)
class BatchFilter:
    """Filter of the records that stay, called for each batch in order, from the log start on."""

    offsets: OffsetMap
    now_ms: int
    delete_retention_ms: int
    last_batch: Callable[[int], LastBatch | None]  # by producer id; None if it has expired
    outcome: Callable[[int, int], Outcome]  # transaction outcome by (producer id, offset)
    counts: CleaningCounts = field(default_factory=CleaningCounts)
    # Whether the last batch was a marker that ends a transaction with batches before it.
    ended_batches: bool = False
    _met: set[int] = field(default_factory=set)  # producers with a batch since their last marker

    def filter(self, batch: Buffer, header: BatchHeader, keep_empty: bool) -> Buffer | None:
        """Return the batch unchanged, a new batch with the records that stay, or None.

        `keep_empty`: return an empty batch instead of None. Raises WireError if the batch cannot
        be decoded.
        """
        if header.producer_id >= 0 and not keep_empty:
            last = self.last_batch(header.producer_id)
            keep_empty = last is not None and last.is_in(header)
        self.ended_batches = False
        if header.is_control:
            return self._filter_marker(batch, header, keep_empty)
        if header.is_transactional:
            self._met.add(header.producer_id)
            outcome = self.outcome(header.producer_id, header.last_offset)
            if outcome is Outcome.ABORTED:
                self.counts.read_records += header.record_count
                return _empty(header) if keep_empty else None
            if outcome is Outcome.OPEN:
                self._count(header.record_count, header.record_count)
                return batch
        return self._filter_records(batch, header, keep_empty)

    def _count(self, read: int, kept: int) -> None:
        self.counts.read_records += read
        self.counts.kept_records += kept

    def _filter_marker(self, batch: Buffer, header: BatchHeader, keep_empty: bool) -> Buffer | None:
        if not header.record_count:
            return batch if keep_empty else None
        has_batches = self.ended_batches = header.producer_id in self._met
        kind = marker_type(batch, header)
        self._met.discard(header.producer_id)
        horizon = header.delete_horizon_ms
        if kind is None or has_batches:
            kept: Buffer | None = batch
        elif horizon is None:
            kept = self._rebuild(batch, header, None, self.now_ms + self.delete_retention_ms)
        elif horizon <= self.now_ms:
            kept = _empty(header) if keep_empty else None
        else:
            kept = batch
        dropped = kept is None or (kept is not batch and horizon is not None)
        self._count(header.record_count, 0 if dropped else header.record_count)
        return kept

    def _filter_records(
        self, batch: Buffer, header: BatchHeader, keep_empty: bool
    ) -> Buffer | None:
        if not header.record_count:
            return batch if keep_empty else None
        kept = bytearray()  # one flag per record: whether it stays
        has_tombstones = False
        horizon = header.delete_horizon_ms
        tombstones_stay = horizon is None or self.now_ms < horizon
        base, get, mapped = header.base_offset, self.offsets.get, self.offsets.latest_offset
        for data, spans in record_spans(batch, 0, header):
            for _, _, _, delta, _, key_at, key_length, _, value_length, _, _ in spans:
                offset = base + delta
                if offset > mapped:
                    stays = True  # not covered by the map yet; a tombstone gets no deadline yet
                elif key_length < 0:
                    self.counts.keyless_records += 1
                    stays = False
                else:
                    stays = offset >= get(data[key_at : key_at + key_length]) and (
                        value_length >= 0 or tombstones_stay
                    )
                    has_tombstones = has_tombstones or (stays and value_length < 0)
                kept.append(stays)
        staying = kept.count(True)
        self._count(header.record_count, staying)
        if has_tombstones and horizon is None:
            return self._rebuild(batch, header, kept, self.now_ms + self.delete_retention_ms)
        if staying == header.record_count:
            return batch
        if staying:
            return self._rebuild(batch, header, kept, None)
        return _empty(header) if keep_empty else None

    def _rebuild(
        self, batch: Buffer, header: BatchHeader, kept: bytearray | None, horizon_ms: int | None
    ) -> bytearray:
        """Return a batch with the `kept` records (None: all) and a new delete horizon, if given.

        The batch is decompressed again rather than held in memory: it may be 100 times as large.
        """
        base_ms, attributes = header.base_timestamp, header.attributes
        shift = 0 if horizon_ms is None else base_ms - horizon_ms
        if horizon_ms is not None:
            attributes |= DELETE_HORIZON
        last_delta = None
        count = 0

        def pieces() -> Iterator[bytes]:
            nonlocal last_delta, count
            index = 0
            for data, spans in record_spans(batch, 0, header):
                parts: list[bytes] = []
                for span in spans:
                    if kept is None or kept[index]:
                        delta = span[4]
                        if last_delta is None or delta > last_delta:
                            last_delta = delta
                        if horizon_ms is None:
                            parts.append(data[span[0] : span[1]])
                        else:
                            parts.append(with_timestamp_delta(data, span, delta + shift))
                        count += 1
                    index += 1
                yield b"".join(parts)

        body = b"".join([made for _, made in compress_pieces(header.codec, pieces())])
        assert last_delta is not None
        max_ms = header.max_timestamp if attributes & LOG_APPEND_TIME else base_ms + last_delta
        new = header._replace(
            attributes=attributes,
            base_timestamp=base_ms if horizon_ms is None else horizon_ms,
            max_timestamp=max_ms,
            record_count=count,
        )
        return pack_batch(new, body)


def _empty(header: BatchHeader) -> bytearray:
    """Return the batch without records, with its offsets, producer and sequence."""
    attributes = header.attributes & ~(DELETE_HORIZON | CODEC_MASK)
    return pack_batch(
        header._replace(attributes=attributes, base_timestamp=header.max_timestamp, record_count=0),
        b"",
    )
