"""Offsets of all logs of a directory, in files of Kafka's format.

    recovery-point-offset-checkpoint  up to where each log is synced
    replication-offset-checkpoint     high watermarks
    log-start-offset-checkpoint       where logs begin that begin within a segment
    cleaner-offset-checkpoint         up to where compacted logs are cleaned

What they say of logs that cannot be opened is kept, or the next start would take synced bytes for a
torn tail.

A recovery point on disk is a promise: below it recovery takes every missing or damaged byte for the
fault of the disk, and segments that end below it are not scanned. So it is lowered, and synced,
before a log is cut below it (`cutting`): written after the cut, as Kafka does, a crash in between
leaves a promise about bytes that are cut, and about the bytes that are appended in their place.
"""

import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias

import trio

from dataplane.log.partition_log import PartitionLog
from dataplane.log.recovery.checkpoints import LogOffsets, Partition, decode_offsets, encode_offsets
from dataplane.log.segments.files import storage_errors
from dataplane.log.segments.names import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from metaquorum.runtime.interfaces import Disk, StorageError, write_atomically

# Asked at the moment of a write: a log may be deleted, and another made under its name, while the
# write waits for its turn.
HighWatermarks: TypeAlias = Callable[[], Mapping[Partition, int]]

logger = logging.getLogger(__name__)


class OffsetCheckpoints:
    def __init__(self, disk: Disk, path: str) -> None:
        """`path` is the log directory's."""
        self.high_watermarks: dict[Partition, int] = {}  # as they were written last
        self.cleaner_offsets: dict[Partition, int] = {}
        self._disk = disk
        self._path = path
        self._offline: dict[Partition, LogOffsets] = {}
        self._ceilings: list[Mapping[Partition, LogOffsets]] = []  # of logs that are being cut
        self._deleted: set[Partition] = set()  # of which something may be noted on disk
        self._writing = trio.Lock()

    def read(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Recovery points and log starts; the others are in the attributes. OSError."""
        self.high_watermarks = self._read(HIGH_WATERMARK_CHECKPOINT)
        try:
            self.cleaner_offsets = self._read(CLEANER_CHECKPOINT)
        except StorageError as error:  # costs no more than another cleaning
            logger.warning("compaction begins at the start of each log: %s", error)
        return self._read(RECOVERY_POINT_CHECKPOINT), self._read(LOG_START_CHECKPOINT)

    def _read(self, name: str) -> dict[Partition, int]:
        path = os.path.join(self._path, name)
        if not self._disk.exists(path):
            return {}
        try:
            return decode_offsets(self._disk.read_file(path))
        except ValueError as error:
            raise StorageError(
                f"{path} cannot be read ({error}); restore it, or remove it: every log is then "
                f"scanned, and cut where it is damaged"
            ) from None

    def keep(self, partition: Partition, offsets: LogOffsets) -> None:
        """The log is offline, and these stay noted of it."""
        self._offline[partition] = self._below_cuts(partition, offsets)

    def forget(self, partition: Partition) -> None:
        """The log is no more; `write_deletions` follows."""
        self.cleaner_offsets.pop(partition, None)
        self.high_watermarks.pop(partition, None)
        self._offline.pop(partition, None)
        self._deleted.add(partition)

    # Each of the rest survives a loss of power once it is written. StorageError.

    async def write(
        self,
        logs: Mapping[Partition, PartitionLog],
        high_watermarks: HighWatermarks | None,
    ) -> None:
        """Recovery points and log starts, and high watermarks if given."""
        async with self._writing:
            offline = self._offline.items()
            points = {at: offsets.recovery_point for at, offsets in offline}
            starts = {at: offsets.log_start_offset for at, offsets in offline}
            logs = dict(logs)
            for partition, log in logs.items():
                point, start = log.synced_offset, log.log_start_offset
                if self._ceilings:
                    point, start = self._below_cuts(partition, LogOffsets(point, start))
                points[partition] = point
                if start:  # of a first segment too: it may be back after a crash
                    starts[partition] = start
                # A write that fails, or is given up, may have reached the disk or not.
                log.noted_recovery_point = max(log.noted_recovery_point, point)
                log.least_noted_recovery_point = min(log.least_noted_recovery_point, point)
                log.noted_log_start_offset = max(log.noted_log_start_offset, start)
            contents = {RECOVERY_POINT_CHECKPOINT: points, LOG_START_CHECKPOINT: starts}
            if high_watermarks is not None:
                contents[HIGH_WATERMARK_CHECKPOINT] = self._with_offline(high_watermarks())
            await self._write_files(contents)
            if high_watermarks is not None:
                self._wrote_high_watermarks(contents[HIGH_WATERMARK_CHECKPOINT])
            for partition, log in logs.items():
                log.noted_recovery_point = log.least_noted_recovery_point = points[partition]
                log.noted_log_start_offset = starts.get(partition, 0)

    async def write_deletions(self, logs: Mapping[Partition, PartitionLog]) -> None:
        """Nothing on disk tells of logs that are no more.

        A checkpoint tells partitions by their names: what it says of a log would be believed of
        the next one of its name, which it would make a lost one, or one that was damaged.
        """
        deleted = set(self._deleted)
        if deleted:
            await self.write(logs, lambda: self.high_watermarks)  # without those of deleted logs
            await self.write_cleaner_offsets()
            self._deleted -= deleted

    @asynccontextmanager
    async def cutting(
        self, logs: Mapping[Partition, PartitionLog], kept: Mapping[Partition, LogOffsets]
    ) -> AsyncIterator[None]:
        """Inside, nothing on disk says more of these logs than `kept`, whoever writes checkpoints.

        They are to be cut inside: what they say themselves is no more than that from then on.
        """
        self._ceilings.append(kept)
        try:
            if any(
                log.noted_recovery_point > kept[at].recovery_point
                or log.noted_log_start_offset > kept[at].log_start_offset
                for at in kept
                if (log := logs.get(at)) is not None
            ):
                await self.write(logs, None)
            yield
        finally:
            self._ceilings.remove(kept)

    def _below_cuts(self, partition: Partition, offsets: LogOffsets) -> LogOffsets:
        for kept in self._ceilings:
            if (most := kept.get(partition)) is not None:
                offsets = LogOffsets(*map(min, offsets, most))
        return offsets

    async def write_high_watermarks(self, high_watermarks: HighWatermarks) -> None:
        """Those of partitions that cannot be opened are kept."""
        async with self._writing:
            offsets = self._with_offline(high_watermarks())
            if offsets == self.high_watermarks:
                return
            await self._write_files({HIGH_WATERMARK_CHECKPOINT: offsets})
            self._wrote_high_watermarks(offsets)

    def _wrote_high_watermarks(self, offsets: dict[Partition, int]) -> None:
        """`high_watermarks` are those on disk, without those of logs deleted during the write."""
        for partition in self._deleted:
            offsets.pop(partition, None)
        self.high_watermarks = offsets

    def _with_offline(self, high_watermarks: Mapping[Partition, int]) -> dict[Partition, int]:
        kept = {at: offset for at, offset in self.high_watermarks.items() if at in self._offline}
        return kept | dict(high_watermarks)

    async def write_cleaner_offsets(self) -> None:
        """How far logs are cleaned."""
        async with self._writing:
            await self._write_files({CLEANER_CHECKPOINT: dict(self.cleaner_offsets)})

    async def _write_files(self, contents: Mapping[str, Mapping[Partition, int]]) -> None:
        def write() -> None:
            for name, offsets in contents.items():
                path = os.path.join(self._path, name)
                write_atomically(self._disk, path, encode_offsets(offsets))

        with storage_errors("write a checkpoint in", self._path):
            await self._disk.run(write)
