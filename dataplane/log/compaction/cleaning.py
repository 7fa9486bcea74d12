"""One cleaning of one log: read the dirty part, write the remaining records, replace segments.

    gather   read the dirty part, and put the last offset of each key into the offset map
    rewrite  read each group of segments from the log start on, write the remaining records to
             <base>.log.cleaned and its indexes, and sync these files
    replace  replace the group by the new segment (`PartitionLog.replace_segments`)

Reads, checks and writes run in a worker thread, in short slices and with file descriptors of their
own. Appends, reads, retention and deletion continue meanwhile: before each slice the log is
checked, and a cleaning whose log was truncated or deleted ends with `CleaningAborted`. Groups that
were replaced before stay replaced; the next cleaning starts with the same dirty part.

A group with no records to remove is not changed.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from metaquorum.dataplane.log.compaction.compaction import (
    BatchFilter,
    CleaningCounts,
    LastBatch,
    Markers,
    Outcome,
    SegmentSizes,
    groups,
    marker_type,
    note_keys,
)
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.aborted import ENTRY_BYTES, AbortedTransaction, read_entries
from metaquorum.dataplane.log.segments.config import MAX_SEGMENT_BYTES, LogConfig
from metaquorum.dataplane.log.segments.files import storage_errors
from metaquorum.dataplane.log.segments.index import OffsetIndex, TimeIndex
from metaquorum.dataplane.log.segments.names import (
    ABORTED_INDEX,
    CLEANED,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    file_name,
)
from metaquorum.dataplane.log.segments.offset_map import OffsetMap
from metaquorum.dataplane.log.segments.scan import IndexBuilder
from metaquorum.dataplane.log.segments.segment import Segment, SegmentState, walk_headers
from metaquorum.runtime.interfaces import Buffer, Clock, Disk, File, StorageError
from metaquorum.wire.primitives.errors import KafkaError, WireError
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.records.batches import HEADER_BYTES, BatchHeader, batch_crc, parse_header

logger = logging.getLogger(__name__)

# Bytes of batches decoded in one slice: some milliseconds, for which the event loop may wait.
SLICE_BYTES: Final = 32 << 10
WRITE_BYTES: Final = 64 << 10
# Bytes of log whose headers are read in one slice, in search of transaction markers.
WALK_SLICE_BYTES: Final = 4 << 20

# Yields the number of bytes read and written in each slice.
Slices = Generator[int, None, None]


class CleaningAborted(Exception):  # noqa: N818 - nothing is wrong
    """Raised if the log was truncated or deleted, lost its first segment, or is not compacted."""


class UncleanableError(Exception):
    """Raised if a batch is damaged or cannot be decoded; the message has file and position."""


@frozen
class CleaningOrder:
    """Range of a cleaning [first_dirty, end), and its configs."""

    first_dirty: int
    end: int
    now_ms: int
    delete_retention_ms: int
    map_bytes: int
    load_factor: float
    io_buffer_bytes: int


@dataclass(slots=True)
class CleaningResult:
    """Progress and statistics of a cleaning."""

    cleaned_to: int  # less than the ordered end if the offset map was full before
    counts: CleaningCounts
    bytes_before: int = 0
    bytes_after: int = 0
    map_entries: int = 0
    replaced_segments: int = 0


@frozen
class _Source:
    """Path and size of a segment when it is read; the bytes up to that size do not change."""

    path: str
    size_bytes: int
    aborted_path: str = ""  # index of aborted transactions, if the segment has one
    aborted_bytes: int = 0


class Cleaning:
    """One cleaning of one log; see the top of this file."""

    def __init__(
        self,
        log: PartitionLog,
        disk: Disk,
        clock: Clock,
        order: CleaningOrder,
        pause: Callable[[int], Awaitable[None]],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Prepare the cleaning of the sealed segments that end at or before `order.end`.

        `pause(size_bytes)` throttles the I/O: it returns when the rate allows these bytes.
        `is_wanted` returns whether to continue.
        """
        self._log = log
        self._disk = disk
        self._clock = clock
        self._order = order
        self._pause = pause
        self._is_wanted = is_wanted
        self._folder = log.folder
        self._truncations = log.truncations
        self._config: LogConfig = log.config
        self._all = [_source(segment) for segment in log.segments]
        self._segments = [s for s, end in log.sealed_segments() if end <= order.end]
        self._ends = [end for _, end in log.sealed_segments() if end <= order.end]
        entries = min(order.end - order.first_dirty, 1 << 40)
        self._map = OffsetMap(order.map_bytes, order.load_factor, entries)
        self._is_full = False
        self._markers: Markers | None = None
        self.result = CleaningResult(order.first_dirty, CleaningCounts())

    async def run(self) -> CleaningResult:
        """Clean the log. Raises CleaningAborted, UncleanableError or StorageError."""
        result = self.result
        result.cleaned_to = await self._gather()
        result.map_entries = self._map.size
        filter_ = BatchFilter(
            self._map,
            self._order.now_ms,
            self._order.delete_retention_ms,
            self._last_batch,
            self._outcome,
            result.counts,
        )
        sizes = [
            SegmentSizes(
                segment.base_offset,
                end,
                segment.size_bytes,
                len(segment.index) * OffsetIndex.FORMAT.size,
                len(segment.times) * TimeIndex.FORMAT.size,
            )
            for segment, end in zip(self._segments, self._ends, strict=True)
            if segment.base_offset < result.cleaned_to
        ]
        for numbers in groups(sizes, self._config.segment_bytes, self._config.segment_index_bytes):
            await self._clean_group([self._segments[number] for number in numbers], filter_)
        return result

    # Slices

    async def _beside(self, slices: Slices) -> None:
        """Run all slices, each in a worker thread, with a check of the log before each."""
        try:
            while True:
                self._check()
                done = await self._disk.run(lambda: next(slices, -1))
                if done < 0:
                    return
                await self._pause(done)
        except (StorageError, UncleanableError):
            self._check()  # the error may come from a truncation or deletion of the log meanwhile
            raise
        finally:
            slices.close()

    def _check(self) -> None:
        if not self._is_wanted() or self._log.folder != self._folder:
            raise CleaningAborted
        if self._log.truncations != self._truncations:
            raise CleaningAborted
        if self._log.first_segment_offset > self._segments[0].base_offset:
            raise CleaningAborted

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            with storage_errors("clean", path):
                yield
        except WireError as error:
            raise UncleanableError(f"{path}: {error}") from None

    # Gathering keys

    async def _gather(self) -> int:
        """Fill the offset map. Return the offset up to which it covers the log."""
        order = self._order
        for segment, end in zip(self._segments, self._ends, strict=True):
            if end <= order.first_dirty:
                continue
            position = 0
            if order.first_dirty > segment.base_offset:
                found = segment.locate(order.first_dirty)
                position = segment.size_bytes if found is None else found[0]
            self._is_full = False
            await self._beside(self._gather_segment(_source(segment), position))
            if self._is_full:
                return self._map.latest_offset + 1
        self._map.latest_offset = order.end - 1
        return order.end

    def _gather_segment(self, source: _Source, position: int) -> Slices:
        with self._errors(source.path):
            file = self._disk.open(source.path)
            try:
                opened = read = 0
                for batch, header, read_bytes in self._batches(file, position, source.size_bytes):
                    read += read_bytes
                    yield from self._find_markers(header)
                    if self._counts(header):
                        if not note_keys(self._map, batch, header, self._order.first_dirty):
                            self._is_full = True
                            return
                    else:
                        self._map.latest_offset = header.last_offset
                    opened += header.batch_bytes
                    if opened >= SLICE_BYTES:
                        yield read
                        opened = read = 0
                yield read
            finally:
                file.close()

    def _counts(self, header: BatchHeader) -> bool:
        """Return whether the batch's records count as the latest of their keys: not if aborted."""
        if header.is_control or not header.record_count:
            return False
        if not header.is_transactional:
            return True
        return self._outcome(header.producer_id, header.last_offset) is Outcome.COMMITTED

    def _outcome(self, producer_id: int, offset: int) -> Outcome:
        assert self._markers is not None
        return self._markers.outcome(producer_id, offset)

    def _find_markers(self, header: BatchHeader) -> Slices:
        """Read all transaction markers of the log, at the first transactional batch.

        Raises UncleanableError if a header or a marker is damaged; checksums of other batches are
        not checked.
        """
        if self._markers is not None or header.is_control or not header.is_transactional:
            return
        self._markers = Markers()
        for source in self._all:
            with self._errors(source.path):
                yield from self._markers_of(source, self._markers)

    def _markers_of(self, source: _Source, markers: Markers) -> Slices:
        file = self._disk.open(source.path)
        walked = 0
        try:
            for position, each in walk_headers(file, 0, source.size_bytes):
                if each.is_control:
                    batch = file.read(each.batch_bytes, position)
                    _check_batch(file, position, batch, each)
                    kind = marker_type(batch, each)
                    if kind is not None:
                        markers.add(each.producer_id, each.last_offset, kind)
                if position - walked >= WALK_SLICE_BYTES:
                    yield position - walked
                    walked = position
        except StorageError as error:  # a damaged header: a failure of the disk is an OSError
            raise UncleanableError(str(error)) from None
        finally:
            file.close()

    def _batches(
        self, file: File, position: int, end: int
    ) -> Iterator[tuple[memoryview, BatchHeader, int]]:
        """Yield each batch, its header, and the number of bytes read for it.

        Raises UncleanableError if a batch is damaged; its checksum is checked.
        """
        data = memoryview(b"")
        at = 0  # in `data`
        while position < end:
            read = 0
            size = HEADER_BYTES
            for _ in range(2):  # read the header first, then the whole batch
                if at + size > len(data):
                    size = min(max(size, self._order.io_buffer_bytes), end - position)
                    data, at = memoryview(file.read(size, position)), 0
                    read += len(data)
                try:
                    header = parse_header(data, at)
                except KafkaError as error:
                    raise _damage(file, position, error.message) from None
                size = header.batch_bytes
                if size > end - position:
                    raise _damage(file, position, f"a batch of {size} bytes is too long")
            batch = data[at : at + size]
            _check_batch(file, position, batch, header)
            yield batch, header, read
            position += size
            at += size

    # Rewriting

    def _last_batch(self, producer_id: int) -> LastBatch | None:
        """Return the batch that must stay for this producer; called in a worker thread."""
        entry = self._log.producers.entries.get(producer_id)
        if entry is None:
            return None
        try:
            return LastBatch(entry.epoch, entry.batches[-1].last_offset)
        except IndexError:
            return LastBatch(entry.epoch, -1)

    async def _clean_group(self, segments: Sequence[Segment], filter_: BatchFilter) -> None:
        self._all = [_source(segment) for segment in self._log.segments]
        target = _Target(self._disk, self._folder, segments[0].base_offset, self._config)
        sources = [_source(segment) for segment in segments]
        before = sum(source.size_bytes for source in sources)
        self.result.bytes_before += before
        try:
            await self._beside(self._rewrite(sources, target, filter_))
            if len(segments) == 1 and not target.is_changed:
                self.result.bytes_after += before
                return
            await self._beside(self._finish(target))
            assert target.state is not None
            replaced = await self._log.replace_segments(
                self._disk, self._clock, segments, target.state, self._is_wanted
            )
            if not replaced:
                raise CleaningAborted
        finally:
            target.remove()
        self.result.bytes_after += target.state.size_bytes
        self.result.replaced_segments += len(segments)

    def _rewrite(
        self, sources: Sequence[_Source], target: "_Target", filter_: BatchFilter
    ) -> Slices:
        last = max((n for n, source in enumerate(sources) if source.size_bytes), default=-1)
        target.create()
        for number, source in enumerate(sources):
            with self._errors(source.path):
                file = self._disk.open(source.path)
                left = source.size_bytes
                opened = moved = 0
                aborted = self._aborted_of(source)
                entry = next(aborted, None)
                try:
                    for batch, header, read in self._batches(file, 0, source.size_bytes):
                        yield from self._find_markers(header)
                        left -= header.batch_bytes
                        kept = filter_.filter(batch, header, number == last and not left)
                        moved += read + target.add(kept, batch, header)
                        while entry is not None and entry.last_offset <= header.last_offset:
                            if entry.last_offset == header.last_offset and filter_.ended_batches:
                                target.add_aborted(entry)
                            entry = next(aborted, None)
                        opened += header.batch_bytes
                        if opened >= SLICE_BYTES:
                            yield moved
                            opened = moved = 0
                    yield moved + target.write_buffer()
                finally:
                    aborted.close()
                    file.close()

    def _aborted_of(self, source: _Source) -> Generator[AbortedTransaction]:
        """Yield the aborted transactions whose markers are in this segment, in order."""
        if source.aborted_bytes:
            file = self._disk.open(source.aborted_path)
            try:
                yield from read_entries(file, source.aborted_bytes)
            finally:
                file.close()

    def _finish(self, target: "_Target") -> Slices:
        target.finish()
        yield 0


class _Target:
    """The file `<base>.log.cleaned` and its indexes, while they are written."""

    def __init__(self, disk: Disk, folder: str, base_offset: int, config: LogConfig) -> None:
        self._disk = disk
        self._folder = folder
        self._base_offset = base_offset
        self._file: File | None = None
        self._index = IndexBuilder(base_offset, config)
        self._buffer = bytearray()
        self._aborted = bytearray()
        self._written = 0
        self._made: list[str] = []
        self.is_changed = False
        self.state: SegmentState | None = None

    def _path(self, suffix: str) -> str:
        return os.path.join(self._folder, file_name(self._base_offset, suffix) + CLEANED)

    def _create(self, suffix: str) -> File:
        path = self._path(suffix)
        file = self._disk.open(path, create=True)
        self._made.append(path)
        file.truncate(0)
        return file

    def create(self) -> None:
        with storage_errors("create", self._path(LOG)):
            self._file = self._create(LOG)

    def add(self, kept: Buffer | None, batch: Buffer, header: BatchHeader) -> int:
        """Buffer `kept`, the rest of `batch` or None. Return the number of bytes written."""
        self.is_changed = self.is_changed or kept is not batch
        if kept is None:
            return 0
        position = self._written + len(self._buffer)
        if position + len(kept) > MAX_SEGMENT_BYTES:
            raise UncleanableError(f"{self._path(LOG)} would exceed the largest segment size")
        self._index.add(position, header if kept is batch else parse_header(kept))
        self._buffer += kept
        return self.write_buffer() if len(self._buffer) >= WRITE_BYTES else 0

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Add an aborted transaction of which the segments before still have batches."""
        self._aborted += aborted.encode()

    def write_buffer(self) -> int:
        assert self._file is not None
        size = len(self._buffer)
        with storage_errors("write", self._path(LOG)):
            self._file.write(self._buffer, self._written)
        self._written += size
        self._buffer.clear()
        return size

    def finish(self) -> None:
        """Write and sync the files; the names of the files are not synced."""
        self.write_buffer()
        state = self._index.finish(self._written)
        self.state = state._replace(aborted_bytes=len(self._aborted))
        assert self._file is not None
        with storage_errors("write", self._path(LOG)):
            self._file.sync()
            for suffix, data in (
                (OFFSET_INDEX, self._index.index),
                (TIME_INDEX, self._index.times),
                (ABORTED_INDEX, self._aborted),
            ):
                if suffix == ABORTED_INDEX and not data:
                    continue
                file = self._create(suffix)
                try:
                    file.write(bytes(data), 0)
                    file.sync()
                finally:
                    file.close()

    def remove(self) -> None:
        """Close the file, and remove all files that still have the suffix .cleaned."""
        if self._file is not None:
            self._file.close()
        for path in self._made:
            try:
                if self._disk.exists(path):
                    self._disk.remove(path)
            except OSError as error:
                logger.warning("cannot remove %s: %s; the next start removes it", path, error)


def _check_batch(file: File, position: int, batch: Buffer, header: BatchHeader) -> None:
    """Raise UncleanableError unless the batch is complete and has the checksum of its header."""
    size = header.batch_bytes
    if len(batch) < size or batch_crc(batch, 0, size) != header.crc:
        raise _damage(file, position, "the checksum does not match")


def _damage(file: File, position: int, problem: str) -> UncleanableError:
    return UncleanableError(f"{file.path} is damaged at position {position}: {problem}")


def _source(segment: Segment) -> _Source:
    if (aborted := segment.aborted) is None:
        return _Source(segment.file.path, segment.size_bytes)
    return _Source(segment.file.path, segment.size_bytes, aborted.path, len(aborted) * ENTRY_BYTES)
