"""Opening a partition's folder: what its log holds, after a clean stop or after none.

After a clean stop every file was synced, so nothing is scanned: the last segment's tail is walked
from its last index entry, the producers are read from the snapshot at the end.

After a crash or a loss of power, segments from the one that holds the recovery point on are
scanned: every header, checksum and offset. Their indexes, epochs and producers are made anew from
what was found, and the files are synced before anything is served (KAFKA-10101). What is found:

    bytes behind the last sound batch      torn tail; cut off, logged
    damage with sound batches behind it,   these bytes were never synced, and a loss of power may
    at or above the recovery point         keep a later page and lose an earlier one; the log is
                                           cut at the damage as Kafka does, and the range of
                                           offsets that goes is logged as an error
    damage below the recovery point,       these bytes had been synced: a disk that loses or
    an end before it, or damage after      changes them is not for us to paper over. StorageError
    a clean stop                           names file and position; the partition is not served
                                           and its files stay as they are

Where a sync failed, or a process died in one, what can be read may not be what the device has
(`sync_failure_marker`): what is about to be relied on is then written again before it is scanned,
the same bytes in the same places, so that the sync that follows tells the truth.

Nothing is changed on disk before a log is known to be sound or to be cut, and cutting twice (a
crash during recovery) gives the same. All here is plain and slow: for `Disk.run`.
"""

import logging
import os
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from dataplane.log.recovery.checkpoints import (
    NOTHING_NOTED,
    LogOffsets,
    decode_damage,
    decode_partition_metadata,
    encode_damage,
)
from dataplane.log.recovery.folder_repair import ADVICE, settle_folder
from dataplane.log.segments.config import NEVER, LogConfig
from dataplane.log.segments.epochs import LeaderEpochs, decode_leader_epochs
from dataplane.log.segments.files import storage_errors
from dataplane.log.segments.index import OffsetIndex, TimeIndex, write_index
from dataplane.log.segments.names import (
    DAMAGED,
    EPOCH_CHECKPOINT,
    LOG,
    OFFSET_INDEX,
    PARTITION_METADATA,
    SNAPSHOT,
    TIME_INDEX,
    file_name,
)
from dataplane.log.segments.producers import ProducerStateTable
from dataplane.log.segments.scan import (
    NO_EPOCH,
    Damage,
    SegmentScan,
    find_batch_behind,
    scan_segment,
)
from dataplane.log.segments.segment import SegmentState, walk_headers
from dataplane.log.segments.snapshots import decode_snapshot
from metaquorum.runtime.interfaces import Disk, File, StorageError, write_atomically
from wire.records.records import BatchHeader

logger = logging.getLogger(__name__)

_REPLAY_BYTES: Final = 64 << 10
_REWRITE_BYTES: Final = 1 << 20
_LENGTH_AT: Final = 8  # of a batch: the bytes behind it
_LENGTH_END: Final = 12  # the base offset and that length


@dataclass(slots=True)
class LoadedLog:
    """All that opening a folder found out; a `PartitionLog` begins with it."""

    folder: str
    topic_id: bytes | None = None
    segments: list[SegmentState] = field(default_factory=list)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    producers: ProducerStateTable = field(default_factory=ProducerStateTable)
    snapshot_offsets: list[int] = field(default_factory=list)
    unsynced: frozenset[str] = frozenset()  # names of files that the first flush has to sync
    is_made: bool = True  # else the folder is, by the first append
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    noted: LogOffsets = NOTHING_NOTED  # in the checkpoints on disk
    bytes_since_index: int = 0
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    lost_end_offset: int = -1  # at least up to here there were records, which were cut
    # What was cut is more than the write that a killed process had not finished.
    is_damaged: bool = False


def load_log(
    disk: Disk,
    folder: str,
    config: LogConfig,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
    in_doubt: bool = False,
    notes_damage: bool = False,
) -> LoadedLog:
    """The log in that folder is as described, on disk too. StorageError if it cannot be trusted.

    `in_doubt`: an earlier sync may have failed.
    `notes_damage`: others rely on what the process before wrote, so that damage which is cut off is
    noted in the folder, until the quorum has been told (`PartitionLog.forget_damage`).
    """
    rest = (recovery_point, log_start_offset, now_ms, in_doubt, notes_damage)
    with storage_errors("recover", folder):
        if clean:
            try:
                return _Loader(disk, folder, config, True, *rest).load()
            except StorageError as error:
                logger.warning("%s was not left clean, it is scanned: %s", folder, error)
        return _Loader(disk, folder, config, False, *rest).load()


_SMALL_FILES: Final = frozenset((EPOCH_CHECKPOINT, PARTITION_METADATA))


class _Loader:
    def __init__(
        self,
        disk: Disk,
        folder: str,
        config: LogConfig,
        clean: bool,
        recovery_point: int,
        log_start_offset: int,
        now_ms: int,
        in_doubt: bool,
        notes_damage: bool,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.config = config
        self.clean = clean
        # Up to here every byte was synced, so that damage is the disk's doing.
        self.synced_to = NEVER if clean else recovery_point
        self.now_ms = now_ms
        self.in_doubt = in_doubt
        self.notes_damage = notes_damage
        self.log = LoadedLog(
            folder,
            log_start_offset=log_start_offset,
            noted=LogOffsets(recovery_point, log_start_offset),
        )
        self.bases: list[int] = []
        self.names: set[str] = set()
        self.replay_from = 0  # producers are known up to here
        self.walk_from = 0  # epochs, too
        self.next_offset = 0
        self.last_epoch = NO_EPOCH  # of the last batch that was looked at
        self.changed = False
        self.changed_epochs = False

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def load(self) -> LoadedLog:
        log = self.log
        found = settle_folder(self.disk, self.folder, self.config)
        self.names, self.bases, self.changed = found.names, found.base_offsets, found.is_changed
        log.snapshot_offsets = found.snapshot_offsets
        self._read_damage()
        if not self.clean:
            log.unsynced = self._may_be_unsynced()
            self._rewrite_small_files()
        self._read_metadata()
        epochs_known = self._read_epochs()
        if not self.bases:
            self._check_end(log.log_start_offset)
            self.disk.open(self.path(file_name(log.log_start_offset, LOG)), create=True).close()
            log.segments = [SegmentState(log.log_start_offset)]
            log.log_end_offset = log.recovery_point = log.log_start_offset
            log.epochs.truncate_from_end(log.log_end_offset)
            self.disk.sync_dir(self.folder)
            return log
        log.log_start_offset = max(log.log_start_offset, self.bases[0])
        first_unclean = self._first_unclean()
        self._read_snapshot(first_unclean)
        self.walk_from = self.replay_from if epochs_known else 0
        if self.walk_from == NEVER:
            self.walk_from = self.bases[-1]
        self._read_segments(first_unclean)
        self._finish(first_unclean)
        return log

    # What is known beside the segments

    def _may_be_unsynced(self) -> frozenset[str]:
        """What is relied on, and the process that died may have written and not synced."""
        last = self._first_unclean() if self.bases else 0
        snapshots = (at for at in self.log.snapshot_offsets if self.synced_to <= at <= last)
        return (_SMALL_FILES & self.names).union(file_name(at, SNAPSHOT) for at in snapshots)

    def _read_metadata(self) -> None:
        """Whose log it is; nobody's, if power went before the log was ever flushed."""
        if PARTITION_METADATA not in self.names:
            return
        path = self.path(PARTITION_METADATA)
        try:
            self.log.topic_id = decode_partition_metadata(self.disk.read_file(path))
        except ValueError as error:
            if self.synced_to > 0:
                raise StorageError(
                    f"{path} does not say which topic this is ({error}); "
                    f"restore it, or move the folder away if a replica has the data"
                ) from None

    def _read_epochs(self) -> bool:
        """Whether the checkpoint tells of every epoch; else they are read from the batches."""
        if EPOCH_CHECKPOINT not in self.names:
            return False
        path = self.path(EPOCH_CHECKPOINT)
        try:
            self.log.epochs = decode_leader_epochs(self.disk.read_file(path))
        except ValueError as error:
            logger.warning("%s is read from the log again: %s", path, error)
            return False
        return True

    # What must be scanned

    def _first_unclean(self) -> int:
        """Segments from this base offset on may hold bytes that were not synced."""
        if self.clean:
            return NEVER
        # A segment that ends just there may have been complete in its log and not in its indexes.
        after = bisect_left(self.bases, self.synced_to)
        return self.bases[max(after - 1, 0)]

    def _read_snapshot(self, first_unclean: int) -> None:
        """Producers as of the newest good snapshot that is older than what must be scanned."""
        log = self.log
        if self.clean and not log.snapshot_offsets:  # no producers: see PartitionLog
            self.replay_from = NEVER
            return
        for offset in reversed(log.snapshot_offsets):
            if offset > first_unclean:
                continue
            path = self.path(file_name(offset, SNAPSHOT))
            try:
                log.producers = decode_snapshot(self.disk.read_file(path))
            except ValueError as error:
                logger.warning("%s is not used: %s", path, error)
                continue
            self.replay_from = offset
            return
        self.replay_from = log.log_start_offset

    def _sizes(self, base: int) -> SegmentState | None:
        """What stands on disk, if the indexes may be there for it."""
        sizes = []
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
            name = file_name(base, suffix)
            sizes.append(self.disk.size(self.path(name)) if name in self.names else -1)
        size, index, times = sizes
        if size == 0 and index <= 0 and times <= 0:
            return SegmentState(base)
        if index < 0 or times < 0 or index % OffsetIndex.FORMAT.size:
            return None
        if times % TimeIndex.FORMAT.size or size == 0:
            return None
        return SegmentState(base, size, index, times)

    # Reading it

    def _read_segments(self, first_unclean: int) -> None:
        for number, base in enumerate(self.bases):
            self._check_order(base)
            is_last = number + 1 == len(self.bases)
            next_base = NEVER if is_last else self.bases[number + 1]
            state = self._sizes(base)
            if state is None or base >= first_unclean:
                sound = self._scan(base)
                if not is_last and (not sound or self._is_hole(next_base)):
                    self._drop_segments(number + 1)
                    return
            elif next_base > self.walk_from and not (is_last and self._walk_tail(state)):
                self._walk(state, 0)
                self.log.segments.append(state)
            else:
                self.log.segments.append(state)
                self.next_offset = max(self.next_offset, base) if is_last else next_base

    def _check_order(self, base: int) -> None:
        if base < self.next_offset:
            raise StorageError(
                f"{self.path(file_name(base, LOG))} begins at offset {base}, but the segment "
                f"before it ends at {self.next_offset}; {ADVICE}"
            )

    def _walk(self, state: SegmentState, position: int) -> None:
        file = self.disk.open(self.path(file_name(state.base_offset, LOG)))
        self.next_offset = max(self.next_offset, state.base_offset)
        try:
            for _, header in walk_headers(file, position, state.size_bytes, _REPLAY_BYTES):
                self._on_batch(header)
                self.next_offset = header.next_offset
        finally:
            file.close()

    def _walk_tail(self, state: SegmentState) -> bool:
        """The log's end is known from the batches behind the last index entry.

        False when they are not all that must be read, as the producers' snapshot is older.
        """
        position = 0
        if state.index_bytes:
            entry = OffsetIndex.FORMAT.size
            path = self.path(file_name(state.base_offset, OFFSET_INDEX))
            file = self.disk.open(path)
            try:
                _, position = OffsetIndex.FORMAT.unpack(file.read(entry, state.index_bytes - entry))
            finally:
                file.close()
            if not 0 <= position < state.size_bytes:
                raise StorageError(f"{path} points beyond the log")
        self._walk(state, position)
        if self.walk_from > self.next_offset:
            raise StorageError(
                f"{self.folder} ends at offset {self.next_offset}, its snapshot at {self.walk_from}"
            )
        return self.replay_from == NEVER or position == 0 or self.walk_from == self.next_offset

    def _on_batch(self, header: BatchHeader) -> None:
        epoch = self.last_epoch = header.leader_epoch
        epochs = self.log.epochs
        if epoch >= 0 and epochs.epoch_at(header.base_offset) != epoch:
            epochs.assign(epoch, header.base_offset)
            self.changed_epochs = True
        if header.producer_id >= 0 and header.last_offset >= self.replay_from:
            self.log.producers.update(header, header.last_offset, header.max_timestamp, self.now_ms)

    # Scanning and cutting

    def _scan(self, base: int) -> bool:
        """The segment is sound, as it was or because it was cut; False if it was cut."""
        log = self.log
        self.changed = True
        file = self.disk.open(self.path(file_name(base, LOG)))
        try:
            self._rewrite(file)
            result = scan_segment(
                file, base, self.config, self._on_batch, leader_epoch=self.last_epoch
            )
            if result.damage is not None:
                self._cut(file, result, result.damage)
            file.sync()
        finally:
            file.close()
        for suffix, data in ((OFFSET_INDEX, result.offset_index), (TIME_INDEX, result.time_index)):
            write_index(self.disk, self.path(file_name(base, suffix)), data)
        log.scanned_bytes += result.state.size_bytes
        log.bytes_since_index = result.bytes_since_index
        log.segments.append(result.state)
        self.next_offset = result.next_offset
        return result.damage is None

    def _rewrite(self, file: File) -> None:
        """What can be read of it is going to be synced, where that is in doubt.

        Before it is checked: what was not written again may be read otherwise later.
        """
        if self.in_doubt:
            for position in range(0, file.size(), _REWRITE_BYTES):
                file.write(file.read(_REWRITE_BYTES, position), position)

    def _cut(self, file: File, result: SegmentScan, damage: Damage) -> None:
        size = file.size()
        end = result.next_offset
        if end < self.synced_to:
            raise StorageError(
                f"{file.path} is damaged at position {damage.position} (offset {end}): "
                f"{damage.problem}. It had been synced up to offset "
                f"{'its end' if self.clean else self.synced_to}: the disk lost or changed it. "
                f"{ADVICE}"
            )
        behind = find_batch_behind(file, damage.position + 1, size, end)
        lost = size - damage.position
        reached = -1 if behind is None else behind[1].next_offset
        is_torn = behind is None and _is_unfinished(file, damage.position, size)
        self._lose(lost, reached, is_torn=is_torn)
        if behind is None:
            logger.warning(
                "%s: torn tail of %d bytes cut off at position %d, the log ends at offset %d: %s",
                file.path, lost, damage.position, end, damage.problem,
            )  # fmt: skip
        else:
            logger.error(
                "%s: damaged at position %d (%s), with sound batches behind: offsets from %d to at "
                "least %d, %d bytes, had not been synced and are lost",
                file.path, damage.position, damage.problem, end, behind[1].last_offset, lost,
            )  # fmt: skip
        file.truncate(damage.position)

    def _lose(self, size_bytes: int, reached_offset: int, *, is_torn: bool) -> None:
        """So many bytes are about to be cut off, which reached that offset (-1: not known).

        `is_torn`: as a write that was cut short leaves it, of which nobody has been told. Else the
        disk is to blame. This process may end before it has told the quorum, and the next one finds
        a sound log: so it is noted beside the log what was cut. The note is not synced: after a
        loss of power nobody relies on this log in any case.
        """
        log = self.log
        log.truncated_bytes += size_bytes
        log.lost_end_offset = max(log.lost_end_offset, reached_offset)
        if is_torn:
            return
        log.is_damaged = True
        if self.notes_damage:
            file = self.disk.open(self.path(DAMAGED), create=True)
            try:
                file.truncate(0)
                file.write(encode_damage(log.truncated_bytes, log.lost_end_offset), 0)
            finally:
                file.close()

    def _read_damage(self) -> None:
        """What an earlier process has cut off, and perhaps told nobody."""
        if DAMAGED in self.names:
            self.log.is_damaged = True
            noted = decode_damage(self.disk.read_file(self.path(DAMAGED)))
            self.log.truncated_bytes, self.log.lost_end_offset = noted

    def _is_hole(self, next_base: int) -> bool:
        """Whether the next segment does not continue this one, as some of it was not synced.

        Below what was synced a gap is the work of compaction.
        """
        return next_base != self.next_offset and self.next_offset >= self.synced_to

    def _drop_segments(self, first: int) -> None:
        """What follows a cut segment goes, the last first."""
        for base in reversed(self.bases[first:]):
            size = self.disk.size(self.path(file_name(base, LOG)))
            self._lose(size, base, is_torn=False)
            logger.error(
                "%s: %d bytes from offset %d on follow a gap at offset %d, had not been synced "
                "and are lost",
                self.path(file_name(base, LOG)), size, base, self.next_offset,
            )  # fmt: skip
            self._remove_segment(base)

    def _remove_segment(self, base: int) -> None:
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
            name = file_name(base, suffix)
            if self.disk.exists(self.path(name)):
                self.disk.remove(self.path(name))
        self.changed = True

    # The end

    def _check_end(self, end_offset: int) -> None:
        """StorageError where whole batches are missing that had been synced."""
        synced_to = self.log.noted.recovery_point
        if end_offset < synced_to:
            raise StorageError(
                f"{self.folder} ends at offset {end_offset}, and had been synced up to offset "
                f"{synced_to}: the disk lost the rest, or somebody removed it. {ADVICE}"
            )

    def _finish(self, first_unclean: int) -> None:
        log = self.log
        self._check_end(self.next_offset)
        log.log_end_offset = log.recovery_point = self.next_offset
        if log.log_end_offset < log.log_start_offset:
            self._start_over()
        changed = log.epochs.truncate_from_end(log.log_end_offset)
        changed |= log.epochs.truncate_from_start(log.log_start_offset)
        if changed or self.changed_epochs:
            write_atomically(self.disk, self.path(EPOCH_CHECKPOINT), log.epochs.encode())
        if log.log_end_offset > self.synced_to:
            self._sync_small_files()
            log.unsynced = frozenset()
        trusted = min(log.log_end_offset, first_unclean)
        for offset in log.snapshot_offsets:
            if offset > trusted:
                self.disk.remove(self.path(file_name(offset, SNAPSHOT)))
        log.snapshot_offsets = [offset for offset in log.snapshot_offsets if offset <= trusted]
        if self.changed:
            self.disk.sync_dir(self.folder)

    def _rewrite_small_files(self) -> None:
        """The next sync of what is beside the log tells the truth: `_sync_small_files`, or a flush.

        A log that is empty is not scanned, and relies on them as soon as it holds something.
        """
        if self.in_doubt:
            for name in sorted(self.log.unsynced):
                file = self.disk.open(self.path(name))
                try:
                    self._rewrite(file)
                finally:
                    file.close()

    def _sync_small_files(self) -> None:
        """What the process that died had written beside the log is as safe as the log is now."""
        for name in sorted(self.log.unsynced):
            file = self.disk.open(self.path(name))
            try:
                file.sync()
            finally:
                file.close()

    def _start_over(self) -> None:
        """All that is left of the log lies before its start: it goes on empty from there."""
        log = self.log
        logger.error(
            "%s: ends at offset %d, before its start %d: it is empty now",
            self.folder, log.log_end_offset, log.log_start_offset,
        )  # fmt: skip
        for segment in reversed(log.segments):
            self._remove_segment(segment.base_offset)
        self.disk.open(self.path(file_name(log.log_start_offset, LOG)), create=True).close()
        log.segments = [SegmentState(log.log_start_offset)]
        log.log_end_offset = log.recovery_point = log.log_start_offset
        log.producers = ProducerStateTable()


def _is_unfinished(file: File, position: int, size: int) -> bool:
    """The file ends within the batch there, as a write that was cut short leaves it."""
    data = file.read(_LENGTH_END, position)
    if len(data) < _LENGTH_END:
        return True
    return int.from_bytes(data[_LENGTH_AT:], "big", signed=True) > size - position - _LENGTH_END
