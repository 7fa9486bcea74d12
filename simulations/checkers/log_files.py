"""Checkers of the files of a log, with a parser that shares no code with the shipped one."""

import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

import crc32c

from metaquorum.simulations.harness.environment import Checker
from metaquorum.simulations.harness.history import Final, Read
from metaquorum.simulations.kernel.comparing import Comparing
from metaquorum.simulations.kernel.storage import Inode, Storage


class NaiveBatch(NamedTuple):
    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


def naive_batches(data: bytes) -> Iterator[NaiveBatch]:
    """Yield the valid batches at the start of a segment, parsed by the protocol's field table."""
    position = 0
    while position + 61 <= len(data):
        base_offset, length = struct.unpack_from(">qi", data, position)
        size = length + 12
        if size < 61 or position + size > len(data):
            return
        (crc,) = struct.unpack_from(">I", data, position + 17)
        if crc32c.crc32c(data[position + 21 : position + size]) != crc:
            return
        (last_delta,) = struct.unpack_from(">i", data, position + 23)
        (max_timestamp,) = struct.unpack_from(">q", data, position + 35)
        yield NaiveBatch(position, size, base_offset, base_offset + last_delta, max_timestamp)
        position += size


class Segment(NamedTuple):
    base_offset: int
    batches: list[NaiveBatch]
    size: int
    offsets: bytes
    times: bytes
    path: str  # path of its files, without suffix


def naive_segments(storage: Storage, folder: str, *, swapping: bool = False) -> list[Segment]:
    """Return the segments of a log. `swapping`: include those with the suffix `.swap`."""
    try:
        files = {path.rsplit("/", 1)[1]: inode for path, inode in storage.files(folder).items()}
    except FileNotFoundError:
        return []  # the first append creates the folder of a log
    if swapping:
        settled = {name.removesuffix(".swap"): inode for name, inode in files.items()}
        files = settled | {name: inode for name, inode in files.items() if name in settled}
    segments: list[Segment] = []
    for name, inode in sorted(files.items()):
        if name.endswith(".log"):
            stem = name.removesuffix(".log")
            segments.append(
                Segment(
                    int(stem),
                    list(naive_batches(bytes(inode.data))),
                    len(inode.data),
                    bytes(files.get(stem + ".index", Inode()).data),
                    bytes(files.get(stem + ".timeindex", Inode()).data),
                    f"{folder}/{stem}",
                )
            )
    return segments


class LookupsFindEverything(Checker):
    """A fetch from any offset, and a look-up of any timestamp, finds what a scan finds."""

    invariant = "L5"

    def by_offset(self, final: Final, offset: int, reads: list[Read]) -> None:
        self.compare(
            bool(reads) and reads[0].offset == offset,
            "{}-{}: a fetch at offset {} began at {}",
            final.topic,
            final.partition,
            offset,
            reads[0].offset if reads else None,
        )

    def by_time(self, final: Final, timestamp_ms: int, found: int | None) -> None:
        first = next((r.offset for r in final.reads if r.timestamp_ms >= timestamp_ms), -1)
        self.compare(
            found == first,
            "{}-{}: the first record of {} or later is at {}, the node returned {}",
            final.topic,
            final.partition,
            timestamp_ms,
            first,
            found,
        )

    def youngest(self, final: Final, found: int) -> None:
        newest = max((r.timestamp_ms for r in final.reads), default=-1)
        first = next((r.offset for r in final.reads if r.timestamp_ms == newest), -1)
        self.compare(
            found == first,
            "{}-{}: the youngest record, of {}, is at {}, the node returned {}",
            final.topic,
            final.partition,
            newest,
            first,
            found,
        )


class ScansLogs(Comparing):
    """Compares segments and indexes on a disk with a scan of the batches."""

    def scan(
        self,
        name: str,
        segments: list[Segment],
        *,
        may_skip: bool,
        sparse_bytes: int,
        restarts: int,
        rotten_indexes: Collection[str] = (),
    ) -> int:
        """Check that segments are valid and match their indexes; return the log end offset.

        `may_skip`: compaction may have left gaps. An index has an entry after at most
        `sparse_bytes` and one batch; each of `restarts` may reset that count once.
        """
        expected = segments[0].base_offset if segments else 0
        for segment in segments:
            self._sound(name, segment, expected, may_skip)
            # If one index is wrong, the node deletes both; the next start builds them again.
            if segment.path not in rotten_indexes:
                self._offsets(name, segment, sparse_bytes, restarts)
                self._times(name, segment)
            if segment.batches:
                expected = segment.batches[-1].last_offset + 1
        return expected

    def _sound(self, name: str, segment: Segment, expected: int, may_skip: bool) -> None:
        end = sum(batch.size for batch in segment.batches)
        self.compare(
            end == segment.size,
            "{} segment {}: valid up to byte {} of {}",
            name,
            segment.base_offset,
            end,
            segment.size,
        )
        self.compare(
            segment.base_offset == expected or (may_skip and segment.base_offset > expected),
            "{} segment {} follows offset {}",
            name,
            segment.base_offset,
            expected,
        )
        for batch in segment.batches:
            self.compare(
                batch.base_offset == expected or (may_skip and batch.base_offset > expected),
                "{}: a batch at offset {}, expected at {}",
                name,
                batch.base_offset,
                expected,
            )
            expected = batch.last_offset + 1

    def _offsets(self, name: str, segment: Segment, sparse_bytes: int, restarts: int) -> None:
        ends = {batch.position: batch.last_offset for batch in segment.batches}
        last = -1
        for relative, position in struct.iter_unpack(
            ">ii", segment.offsets[: _whole(segment.offsets, 8)]
        ):
            self.compare(
                position > last and ends.get(position) == segment.base_offset + relative,
                "{} segment {}: its index has offset {} at byte {}, the scan found {}",
                name,
                segment.base_offset,
                segment.base_offset + relative,
                position,
                ends.get(position),
            )
            last = position
        self._dense(name, segment, sparse_bytes, restarts)

    def _dense(self, name: str, segment: Segment, sparse_bytes: int, restarts: int) -> None:
        """Compare the bytes between index entries with their bound; a start may reset the count."""
        biggest = max((batch.size for batch in segment.batches), default=0)
        bound = restarts * (sparse_bytes + biggest)
        data = segment.offsets[: _whole(segment.offsets, 8)]
        entries = {position for _, position in struct.iter_unpack(">ii", data)}
        since = 0
        for batch in segment.batches:
            if batch.position in entries:
                since = 0
            self.compare(
                since <= bound,
                "{} segment {}: {} bytes without an index entry at byte {}",
                name,
                segment.base_offset,
                since,
                batch.position,
            )
            since += batch.size

    def _times(self, name: str, segment: Segment) -> None:
        data = segment.times[: _whole(segment.times, 12)]
        last_timestamp = -1
        for timestamp, relative in struct.iter_unpack(">qi", data):
            offset = segment.base_offset + relative
            upto = [batch for batch in segment.batches if batch.base_offset <= offset]
            youngest = max((batch.max_timestamp for batch in upto), default=-1)
            first = next((b.last_offset for b in upto if b.max_timestamp == youngest), -1)
            self.compare(
                timestamp > last_timestamp and (timestamp, offset) == (youngest, first),
                "{} segment {}: its time index has {} at offset {}, the scan found {} at {}",
                name,
                segment.base_offset,
                timestamp,
                offset,
                youngest,
                first,
            )
            last_timestamp = timestamp
        newest = max((batch.max_timestamp for batch in segment.batches), default=-1)
        self.compare(
            last_timestamp == newest,
            "{} segment {}: its time index ends with {}, the youngest batch is of {}",
            name,
            segment.base_offset,
            last_timestamp,
            newest,
        )


class IndexIsScan(ScansLogs, Checker):
    """After a clean stop every segment is valid to its end and matches its indexes."""

    invariant = "L5"

    def scanned(self, final: Final, segments: list[Segment]) -> None:
        name = f"{final.topic}-{final.partition}"
        end = self.scan(
            name,
            segments,
            may_skip=final.topic.is_compacted,
            sparse_bytes=self.environment.settings.index_interval_bytes,
            restarts=self.environment.node.runs,
            rotten_indexes=self.environment.history.rotten_indexes,
        )
        self.compare(
            end == final.log_end_offset,
            "{} ends at {} on disk and at {} for clients",
            name,
            end,
            final.log_end_offset,
        )


def _whole(data: bytes, size: int) -> int:
    return len(data) - len(data) % size


class RetentionLeavesTheActive(Checker):
    """Retention removes whole segments before the log start offset, never the active one."""

    invariant = "L3"

    def scanned(self, final: Final, segments: list[Segment], log_start_offset: int) -> None:
        name = f"{final.topic}-{final.partition}"
        # The first append creates a log.
        self.compare(bool(segments) or not final.log_end_offset, "{} has no segment", name)
        if segments:
            self.compare(
                segments[0].base_offset <= log_start_offset,
                "{} begins at {}, its first segment at {}",
                name,
                log_start_offset,
                segments[0].base_offset,
            )
        self.compare(
            final.log_start_offset <= final.log_end_offset,
            "{} starts at offset {}, after its end {}",
            name,
            final.log_start_offset,
            final.log_end_offset,
        )
