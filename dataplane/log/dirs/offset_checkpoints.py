"""Checkpoint files of a log directory: offsets of all its logs, in Kafka's format.

    recovery-point-offset-checkpoint  recovery points: records before them are synced
    replication-offset-checkpoint     high watermarks
    log-start-offset-checkpoint       log start offsets
    cleaner-offset-checkpoint         offsets up to which compacted logs are cleaned

Entries of logs that cannot be opened are kept: without them, the next start would treat damage of
synced bytes as a torn tail.

A recovery point on disk is a guarantee: recovery treats every missing or damaged byte before it as
a fault of the disk, and does not scan segments that end before it. It is therefore lowered, and
synced, before a log is truncated below it (`holding`). Kafka writes it after the truncation; a
crash in between then leaves a guarantee for truncated bytes and for those appended in their place.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeAlias

import trio

from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.recovery.checkpoints import (
    LogOffsets,
    Partition,
    decode_offsets,
    encode_offsets,
)
from metaquorum.dataplane.log.segments.files import storage_errors
from metaquorum.dataplane.log.segments.names import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from metaquorum.runtime.interfaces import Disk, StorageError, write_atomically

# A callable, evaluated at the moment of the write: while a write waits for the lock, a log may be
# deleted and another created with its name.
HighWatermarks: TypeAlias = Callable[[], Mapping[Partition, int]]

logger = logging.getLogger(__name__)

# Consequence of the removal of a malformed file, for its error
_WITHOUT: Final = {
    RECOVERY_POINT_CHECKPOINT: "without recovery points, recovery scans every log and truncates it "
    "where it is damaged",
    HIGH_WATERMARK_CHECKPOINT: "without this file, the high watermark of each partition is 0 until "
    "its in-sync replicas have fetched, and this start cannot notice lost committed records",
    LOG_START_CHECKPOINT: "without this file, each log starts with its first segment, and deleted "
    "records may be readable again",
}


class OffsetCheckpoints:
    """The checkpoint files of one log directory."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Use the files in the log directory `path`, without reading them yet."""
        self.high_watermarks: dict[Partition, int] = {}  # as on disk
        self.cleaner_offsets: dict[Partition, int] = {}
        self._disk = disk
        self._path = path
        self._offline: dict[Partition, LogOffsets] = {}
        self._ceilings: list[Mapping[Partition, LogOffsets]] = []  # by truncation in progress
        self._deleted: set[Partition] = set()  # deleted logs that may still be in the files
        self._leaving: set[Partition] = set()  # logs whose folders will be renamed
        self._writing = trio.Lock()

    def read(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Read all files. Return recovery points and log starts, and set the public attributes.

        Raises StorageError if a file is malformed, OSError if it cannot be read.
        """
        self.high_watermarks = self._read(HIGH_WATERMARK_CHECKPOINT)
        self.cleaner_offsets = self._read(CLEANER_CHECKPOINT)
        return self._read(RECOVERY_POINT_CHECKPOINT), self._read(LOG_START_CHECKPOINT)

    def _read(self, name: str) -> dict[Partition, int]:
        path = os.path.join(self._path, name)
        if not self._disk.exists(path):
            return {}
        try:
            return decode_offsets(self._disk.read_file(path))
        except ValueError as error:
            if name == CLEANER_CHECKPOINT:  # only costs another cleaning of each log
                logger.warning(
                    "%s is malformed (%s); the cleaner begins again at the start of each log",
                    path,
                    error,
                )
                return {}
            raise StorageError(
                f"{path} is malformed ({error}); restore or remove it; {_WITHOUT[name]}"
            ) from None

    def keep(self, partition: Partition, offsets: LogOffsets) -> None:
        """Keep `offsets` in the files for a log that is offline."""
        self._offline[partition] = self._below_cuts(partition, offsets)

    def leave(self, partition: Partition) -> None:
        """Forget a log that still has its folder; no write has its offsets until `left`."""
        self._leaving.add(partition)
        self.forget(partition)

    def left(self, partition: Partition) -> None:
        """Note that the folder was renamed, or cannot be: the name may be written again."""
        self._leaving.discard(partition)

    def forget(self, partition: Partition) -> None:
        """Remove a deleted log's offsets from memory; `write_deletions` updates the files."""
        self.cleaner_offsets.pop(partition, None)
        self.high_watermarks.pop(partition, None)
        self._offline.pop(partition, None)
        self._deleted.add(partition)

    # All writes below are synced when they return, and raise StorageError on failure.

    async def write(
        self,
        logs: Mapping[Partition, PartitionLog],
        high_watermarks: HighWatermarks | None,
    ) -> None:
        """Write recovery points, log starts, and high watermarks if given."""
        async with self._writing:
            offline = self._offline.items()
            points = {at: offsets.recovery_point for at, offsets in offline}
            starts = {at: offsets.log_start_offset for at, offsets in offline}
            logs = {at: log for at, log in logs.items() if at not in self._leaving}
            for partition, log in logs.items():
                point, start = log.synced_offset, log.log_start_offset
                if self._ceilings:
                    point, start = self._below_cuts(partition, LogOffsets(point, start))
                points[partition] = point
                if start:  # also if a segment begins there: a crash may restore deleted segments
                    starts[partition] = start
                # A write that fails or is cancelled may or may not have reached the disk.
                log.noted_recovery_point = max(log.noted_recovery_point, point)
                log.noted_log_start_offset = max(log.noted_log_start_offset, start)
            contents = {RECOVERY_POINT_CHECKPOINT: points, LOG_START_CHECKPOINT: starts}
            if high_watermarks is not None:
                contents[HIGH_WATERMARK_CHECKPOINT] = self._with_offline(high_watermarks())
            await self._write_files(contents)
            if high_watermarks is not None:
                self._wrote_high_watermarks(contents[HIGH_WATERMARK_CHECKPOINT])
            for partition, log in logs.items():
                log.noted_recovery_point = points[partition]
                log.noted_log_start_offset = starts.get(partition, 0)

    async def write_deletions(self, logs: Mapping[Partition, PartitionLog]) -> None:
        """Remove deleted logs from the files.

        Checkpoints identify a log by topic name and partition: a stale entry would apply to the
        next log with that name, which would then look lost or damaged.
        """
        deleted = set(self._deleted)
        if deleted:
            await self.write(logs, lambda: self.high_watermarks)  # without those of deleted logs
            await self.write_cleaner_offsets()
            self._deleted -= deleted

    @property
    def has_deletions(self) -> bool:
        """Whether deleted logs may still be in the files."""
        return bool(self._deleted)

    @contextmanager
    def holding(self, kept: Mapping[Partition, LogOffsets]) -> Iterator[None]:
        """Let all writes keep the offsets of these logs at or below `kept` while the block runs.

        Once `lower` has returned, the block may truncate the logs to these offsets.
        """
        self._ceilings.append(kept)
        try:
            yield
        finally:
            self._ceilings.remove(kept)

    def exceed(
        self, logs: Mapping[Partition, PartitionLog], kept: Mapping[Partition, LogOffsets]
    ) -> bool:
        """Return whether offsets of these logs in the files are above `kept`."""
        return any(
            log.noted_recovery_point > kept[at].recovery_point
            or log.noted_log_start_offset > kept[at].log_start_offset
            for at in kept
            if (log := logs.get(at)) is not None
        )

    def _below_cuts(self, partition: Partition, offsets: LogOffsets) -> LogOffsets:
        for kept in self._ceilings:
            if (most := kept.get(partition)) is not None:
                offsets = LogOffsets(*map(min, offsets, most))
        return offsets

    async def write_high_watermarks(self, high_watermarks: HighWatermarks) -> None:
        """Write high watermarks if they changed; those of logs that are offline are kept."""
        async with self._writing:
            offsets = self._with_offline(high_watermarks())
            if offsets == self.high_watermarks:
                return
            await self._write_files({HIGH_WATERMARK_CHECKPOINT: offsets})
            self._wrote_high_watermarks(offsets)

    def _wrote_high_watermarks(self, offsets: dict[Partition, int]) -> None:
        """Set `high_watermarks` to those written, except for logs deleted during the write."""
        for partition in self._deleted:
            offsets.pop(partition, None)
        self.high_watermarks = offsets

    def _with_offline(self, high_watermarks: Mapping[Partition, int]) -> dict[Partition, int]:
        kept = {at: offset for at, offset in self.high_watermarks.items() if at in self._offline}
        kept |= high_watermarks
        for partition in self._leaving:
            kept.pop(partition, None)
        return kept

    async def write_cleaner_offsets(self) -> None:
        """Write the offsets up to which logs are cleaned."""
        async with self._writing:
            await self._write_files({CLEANER_CHECKPOINT: dict(self.cleaner_offsets)})

    async def _write_files(self, contents: Mapping[str, Mapping[Partition, int]]) -> None:
        def write() -> None:
            for name, offsets in contents.items():
                path = os.path.join(self._path, name)
                write_atomically(self._disk, path, encode_offsets(offsets))

        with storage_errors("write a checkpoint in", self._path):
            await self._disk.run(write)
