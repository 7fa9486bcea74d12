"""Recovery of one log: open a partition's folder after a clean stop, a crash or a loss of power.

After a clean stop every file was synced, and nothing is scanned: the headers of the last segment
are read from its last index entry on, and producer state is read from the snapshot at the end.

Otherwise all segments from the one with the recovery point on are scanned: every header, checksum
and offset. Their indexes, leader epochs and producer state are rebuilt, and the files are synced
before the log is served (KAFKA-10101). Rules:

    bytes after the last valid batch       torn tail: truncated, logged as a warning
    damage followed by valid batches,      these bytes were never synced, and a loss of power may
    at or after the recovery point         keep a later page and lose an earlier one: the log is
                                           truncated at the damage, as in Kafka, and the range of
                                           lost offsets is logged as an error
    damage before the recovery point,      these bytes had been synced, so the disk lost or changed
    a log end before it, or damage         them: StorageError with file and position; the partition
    after a clean stop                     is offline and its files are not changed

If a sync failed, or a process died during one, readable bytes may not be on the device
(`sync_failure_marker`). Recovery then rewrites the files it relies on, before the scan, with the
same bytes, so that the sync that follows is reliable.

Apart from these rewrites and the repair of the folder (`folder_repair`), recovery does not change a
segment before it has decided that the segment is valid, or where to truncate it. It is idempotent:
after a crash during recovery the next one has the same result. All functions are blocking: call
them in a worker thread (`Disk.run`).
"""

import logging
import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from metaquorum.dataplane.log.recovery.checkpoints import (
    NOTHING_NOTED,
    LogOffsets,
    decode_damage,
    decode_partition_metadata,
    encode_damage,
)
from metaquorum.dataplane.log.recovery.folder_repair import ADVICE, settle_folder
from metaquorum.dataplane.log.segments.aborted import (
    ENTRY,
    ENTRY_BYTES,
    VERSION,
    AbortedTransaction,
    AbortedWriter,
    TransactionTracker,
)
from metaquorum.dataplane.log.segments.config import NEVER, LogConfig
from metaquorum.dataplane.log.segments.epochs import LeaderEpochs, decode_leader_epochs
from metaquorum.dataplane.log.segments.files import storage_errors
from metaquorum.dataplane.log.segments.index import OffsetIndex, TimeIndex, write_index
from metaquorum.dataplane.log.segments.markers import read_marker
from metaquorum.dataplane.log.segments.names import (
    ABORTED_INDEX,
    DAMAGED,
    EPOCH_CHECKPOINT,
    LOG,
    OFFSET_INDEX,
    PARTITION_METADATA,
    SNAPSHOT,
    TIME_INDEX,
    file_name,
)
from metaquorum.dataplane.log.segments.producers import ProducerStateTable
from metaquorum.dataplane.log.segments.scan import (
    NO_EPOCH,
    Damage,
    SegmentScan,
    find_batch_behind,
    scan_segment,
)
from metaquorum.dataplane.log.segments.segment import SegmentState, walk_headers
from metaquorum.dataplane.log.segments.snapshots import decode_snapshot
from metaquorum.runtime.interfaces import Disk, File, StorageError, write_atomically
from metaquorum.wire.records.records import BatchHeader

logger = logging.getLogger(__name__)

_REPLAY_BYTES: Final = 64 << 10
_CHECKED_BYTES: Final = 512 * ENTRY_BYTES
_REWRITE_BYTES: Final = 1 << 20
_LENGTH_AT: Final = 8  # position of the batch length, after the base offset
_LENGTH_END: Final = 12  # the batch length counts the bytes from here on


class RecoveryStoppedError(Exception):
    """Raised if the caller stops a recovery before the log is recovered."""


@dataclass(slots=True)
class LoadedLog:
    """Result of recovery, with which a `PartitionLog` starts."""

    folder: str
    topic_id: bytes | None = None
    segments: list[SegmentState] = field(default_factory=list)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    producers: ProducerStateTable = field(default_factory=ProducerStateTable)
    snapshot_offsets: list[int] = field(default_factory=list)
    unsynced: frozenset[str] = frozenset()  # names of files that the first flush has to sync
    is_made: bool = True  # False: the first append creates the folder
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    noted: LogOffsets = NOTHING_NOTED  # offsets in the checkpoint files
    bytes_since_index: int = 0
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    lost_end_offset: int = -1  # truncated records reached at least this offset; -1: unknown
    # Recovery truncated more than the unfinished last write of a killed process.
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
    is_stopped: Callable[[], bool] = lambda: False,
) -> LoadedLog:
    """Recover the log in `folder`, and return its state. Raises StorageError if it is damaged.

    `clean`: the directory was stopped cleanly; if this log's files contradict that, it is scanned.
    `in_doubt`: an earlier sync may have failed.
    `notes_damage`: other nodes rely on all writes of the previous process, so a marker in the
    folder records truncated damage until the controller knows (`PartitionLog.forget_damage`).
    `is_stopped`: asked before each segment; if it returns True, this raises RecoveryStoppedError.
    """
    rest = (recovery_point, log_start_offset, now_ms, in_doubt, notes_damage, is_stopped)
    with storage_errors("recover", folder):
        if clean:
            try:
                return _Loader(disk, folder, config, True, *rest).load()
            except StorageError as error:
                logger.warning(
                    "%s is not in the state of a clean shutdown: %s; recovering the log by a full "
                    "scan",
                    folder,
                    error,
                )
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
        is_stopped: Callable[[], bool],
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.config = config
        self.clean = clean
        # Every byte before this offset was synced, so that damage there is a fault of the disk.
        self.synced_to = NEVER if clean else recovery_point
        self.now_ms = now_ms
        self.in_doubt = in_doubt
        self.notes_damage = notes_damage
        self.is_stopped = is_stopped
        self.log = LoadedLog(
            folder,
            log_start_offset=log_start_offset,
            noted=LogOffsets(recovery_point, log_start_offset),
        )
        self.bases: list[int] = []
        self.names: set[str] = set()
        self.replay_from = 0  # producer state is known up to this offset
        self.walk_from = 0  # producer state and leader epochs are known up to this offset
        self.next_offset = 0
        self.last_epoch = NO_EPOCH  # leader epoch of the last batch that was read
        self.tracker: TransactionTracker | None = None
        self.tracked_to = -1  # `tracker` knows all batches before this segment
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

    # Small files

    def _may_be_unsynced(self) -> frozenset[str]:
        """Return small files that recovery uses and the dead process may not have synced."""
        last = self._first_unclean() if self.bases else 0
        snapshots = (at for at in self.log.snapshot_offsets if self.synced_to <= at <= last)
        return (_SMALL_FILES & self.names).union(file_name(at, SNAPSHOT) for at in snapshots)

    def _read_metadata(self) -> None:
        """Read the topic id; a loss of power before the first flush may have left none."""
        if PARTITION_METADATA not in self.names:
            return
        path = self.path(PARTITION_METADATA)
        try:
            self.log.topic_id = decode_partition_metadata(self.disk.read_file(path))
        except ValueError as error:
            if self.synced_to > 0:
                raise StorageError(
                    f"cannot read the topic id in {path} ({error}); restore the file, or move the "
                    f"folder away if a replica has the data"
                ) from None

    def _read_epochs(self) -> bool:
        """Read leader epochs. Return False if they have to be rebuilt from the batches."""
        if EPOCH_CHECKPOINT not in self.names:
            return False
        path = self.path(EPOCH_CHECKPOINT)
        try:
            self.log.epochs = decode_leader_epochs(self.disk.read_file(path))
        except ValueError as error:
            logger.warning("%s is malformed: %s; rebuilding it from the log", path, error)
            return False
        return True

    # Choice of segments to scan

    def _first_unclean(self) -> int:
        """Return the base offset of the first segment that may have unsynced bytes."""
        if self.clean:
            return NEVER
        # A segment that ends exactly there may have a synced log file but unsynced indexes.
        after = bisect_left(self.bases, self.synced_to)
        return self.bases[max(after - 1, 0)]

    def _read_snapshot(self, first_unclean: int) -> None:
        """Read producer state from the newest valid snapshot at or before `first_unclean`."""
        log = self.log
        if self.clean and not log.snapshot_offsets:  # no producers: see `_needs_snapshot`
            self.replay_from = NEVER
            return
        for offset in reversed(log.snapshot_offsets):
            if offset > first_unclean:
                continue
            path = self.path(file_name(offset, SNAPSHOT))
            try:
                log.producers = decode_snapshot(self.disk.read_file(path))
            except ValueError as error:
                logger.warning(
                    "ignoring the malformed producer snapshot %s: %s; producers are read from an "
                    "older snapshot and the log",
                    path,
                    error,
                )
                continue
            self.replay_from = offset
            return
        self.replay_from = log.log_start_offset

    def _sizes(self, base: int) -> SegmentState | None:
        """Return the sizes of the segment's files; None if its indexes must be rebuilt."""
        sizes = []
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
            name = file_name(base, suffix)
            sizes.append(self.disk.size(self.path(name)) if name in self.names else -1)
        size, index, times = sizes
        aborted = self._check_aborted(base, size)
        if aborted < 0:
            return None
        if size == 0 and index <= 0 and times <= 0:
            return SegmentState(base)
        if index < 0 or times < 0 or index % OffsetIndex.FORMAT.size:
            return None
        if times % TimeIndex.FORMAT.size or size == 0:
            return None
        return SegmentState(base, size, index, times, aborted_bytes=aborted)

    def _check_aborted(self, base: int, size_bytes: int) -> int:
        """Return the size of the segment's index of aborted transactions; -1 if it is wrong."""
        name = file_name(base, ABORTED_INDEX)
        if name not in self.names:
            return 0
        path = self.path(name)
        size = self.disk.size(path)
        if size % ENTRY_BYTES or (size and size_bytes <= 0):
            logger.warning("%s has a wrong size, %d bytes; rebuilding it", path, size)
            return -1
        last = base - 1
        file = self.disk.open(path)
        try:
            for position in range(0, size, _CHECKED_BYTES):
                for entry in ENTRY.iter_unpack(file.read(_CHECKED_BYTES, position)):
                    version, _, first_offset, last_offset, stable = entry
                    if (
                        version != VERSION
                        or last_offset <= last
                        or not 0 <= first_offset < last_offset
                        or not 0 <= stable <= last_offset + 1
                    ):
                        logger.warning("%s is malformed: %s; rebuilding it", path, entry)
                        return -1
                    last = last_offset
        finally:
            file.close()
        return size

    # Segments

    def _read_segments(self, first_unclean: int) -> None:
        for number, base in enumerate(self.bases):
            if self.is_stopped():
                raise RecoveryStoppedError(self.folder)
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
                f"{self.path(file_name(base, LOG))} begins at offset {base}, but the previous "
                f"segment ends at offset {self.next_offset}; {ADVICE}"
            )

    def _walk(self, state: SegmentState, position: int) -> None:
        file = self.disk.open(self.path(file_name(state.base_offset, LOG)))
        self.next_offset = max(self.next_offset, state.base_offset)
        try:
            for at, header in walk_headers(file, position, state.size_bytes, _REPLAY_BYTES):
                self._on_batch(file, at, header)
                self.next_offset = header.next_offset
        finally:
            file.close()

    def _walk_tail(self, state: SegmentState) -> bool:
        """Read the headers from the last index entry on, for the log end offset.

        Return False if earlier headers must be read, too, because the producer snapshot is older.
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
                raise StorageError(f"the last entry of {path} points beyond the segment's end")
        self._walk(state, position)
        if self.walk_from > self.next_offset:
            raise StorageError(
                f"{self.folder} ends at offset {self.next_offset}, but its producer snapshot is "
                f"of offset {self.walk_from}"
            )
        return self.replay_from == NEVER or position == 0 or self.walk_from == self.next_offset

    def _on_batch(self, file: File, position: int, header: BatchHeader) -> None:
        epoch = self.last_epoch = header.leader_epoch
        epochs = self.log.epochs
        if epoch >= 0 and epochs.epoch_at(header.base_offset) != epoch:
            epochs.assign(epoch, header.base_offset)
            self.changed_epochs = True
        if header.producer_id >= 0 and header.last_offset >= self.replay_from:
            if header.is_control:
                marker = read_marker(file, position, header)
                self.log.producers.end_transaction(header, marker, header.last_offset, self.now_ms)
            else:
                self.log.producers.update(
                    header, header.last_offset, header.max_timestamp, self.now_ms
                )

    # Aborted transactions

    def _tracker_before(self, base: int) -> TransactionTracker:
        """Return the open transactions before the segment at `base`."""
        if self.tracker is not None and self.tracked_to == base:
            return self.tracker
        if self.replay_from <= base:  # all batches since the snapshot were read
            return TransactionTracker(_open_of(self.log.producers))
        tracker, start = TransactionTracker(()), 0
        for offset in reversed(self.log.snapshot_offsets):
            if offset <= base:
                try:
                    data = self.disk.read_file(self.path(file_name(offset, SNAPSHOT)))
                    tracker, start = TransactionTracker(_open_of(decode_snapshot(data))), offset
                    break
                except ValueError:  # logged when producer state was read
                    continue
        first = max(bisect_left(self.bases, start + 1) - 1, 0)
        for each in self.bases[first : self.bases.index(base)]:
            file = self.disk.open(self.path(file_name(each, LOG)))
            try:
                for at, header in walk_headers(file, 0, file.size(), _REPLAY_BYTES):
                    if header.base_offset >= start:
                        self._track(tracker, file, at, header)
            finally:
                file.close()
        return tracker

    def _track(
        self, tracker: TransactionTracker, file: File, position: int, header: BatchHeader
    ) -> AbortedTransaction | None:
        """Track the batch, and return the transaction that it aborts, if any."""
        if not header.is_transactional:
            return None
        if not header.is_control:
            tracker.begin(header.producer_id, header.base_offset)
            return None
        marker = read_marker(file, position, header)
        completed = tracker.end(header.producer_id, header.last_offset, marker)
        if completed is None or not completed.is_aborted:
            return None
        return AbortedTransaction(*completed[:4])

    # Scan and truncation

    def _scan(self, base: int) -> bool:
        """Scan the segment, truncate it at damage, and sync it. Return False if truncated."""
        log = self.log
        self.changed = True
        aborted = AbortedWriter(self.disk, self.path(file_name(base, ABORTED_INDEX)))
        tracker = self.tracker = self._tracker_before(base)
        file = self.disk.open(self.path(file_name(base, LOG)))

        def on_batch(position: int, header: BatchHeader) -> None:
            self._on_batch(file, position, header)
            if (found := self._track(tracker, file, position, header)) is not None:
                aborted.add(found)

        try:
            self._rewrite(file)
            result = scan_segment(file, base, self.config, on_batch, leader_epoch=self.last_epoch)
            if result.damage is not None:
                self._cut(file, result, result.damage)
            file.sync()
            aborted.finish()
        finally:
            aborted.close()
            file.close()
        for suffix, data in ((OFFSET_INDEX, result.offset_index), (TIME_INDEX, result.time_index)):
            write_index(self.disk, self.path(file_name(base, suffix)), data)
        log.scanned_bytes += result.state.size_bytes
        log.bytes_since_index = result.bytes_since_index
        log.segments.append(result.state._replace(aborted_bytes=aborted.size_bytes))
        self.next_offset = result.next_offset
        self.tracked_to = self.bases[self.bases.index(base) + 1] if base != self.bases[-1] else -1
        return result.damage is None

    def _rewrite(self, file: File) -> None:
        """Rewrite the file with its own bytes, if an earlier sync may have failed.

        Called before the scan: bytes that were not rewritten may read differently later.
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
                f"{damage.problem}. The log had been synced up to "
                f"{'its end' if self.clean else f'offset {self.synced_to}'}, so the disk lost or "
                f"changed bytes; {ADVICE}"
            )
        behind = find_batch_behind(file, damage.position + 1, size, end)
        lost = size - damage.position
        reached = -1 if behind is None else behind[1].next_offset
        is_torn = behind is None and _is_unfinished(file, damage.position, size)
        self._lose(lost, reached, is_torn=is_torn)
        if behind is None:
            logger.warning(
                "%s: truncating a torn tail of %d bytes at position %d; the log ends at offset %d: "
                "%s",
                file.path, lost, damage.position, end, damage.problem,
            )  # fmt: skip
        else:
            logger.error(
                "%s: damaged at position %d (%s), followed by valid batches: offsets from %d to at "
                "least %d, %d bytes, had not been synced and are lost",
                file.path, damage.position, damage.problem, end, behind[1].last_offset, lost,
            )  # fmt: skip
        file.truncate(damage.position)

    def _lose(self, size_bytes: int, reached_offset: int, *, is_torn: bool) -> None:
        """Record that bytes up to `reached_offset` (-1: unknown) are about to be truncated.

        `is_torn`: they are an unfinished write, which was never acknowledged. Otherwise the disk
        lost records. This process may end before it reports that to the controller, and the next
        one would find a valid log: a marker in the folder keeps what was lost. The marker is not
        synced: after a loss of power the controller does not rely on this log in any case.
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
        """Read the marker of damage that an earlier process truncated and may not have reported."""
        if DAMAGED in self.names:
            self.log.is_damaged = True
            noted = decode_damage(self.disk.read_file(self.path(DAMAGED)))
            self.log.truncated_bytes, self.log.lost_end_offset = noted

    def _is_hole(self, next_base: int) -> bool:
        """Return whether unsynced batches are missing between this segment and the next.

        Before the recovery point, gaps come from compaction.
        """
        return next_base != self.next_offset and self.next_offset >= self.synced_to

    def _drop_segments(self, first: int) -> None:
        """Remove the segments that follow a truncated one, the last first."""
        for base in reversed(self.bases[first:]):
            size = self.disk.size(self.path(file_name(base, LOG)))
            self._lose(size, base, is_torn=False)
            logger.error(
                "%s: removing %d bytes from offset %d on: they follow a gap at offset %d, had not "
                "been synced and are lost",
                self.path(file_name(base, LOG)), size, base, self.next_offset,
            )  # fmt: skip
            self._remove_segment(base)

    def _remove_segment(self, base: int) -> None:
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX):
            name = file_name(base, suffix)
            if self.disk.exists(self.path(name)):
                self.disk.remove(self.path(name))
        self.changed = True

    # End of recovery

    def _check_end(self, end_offset: int) -> None:
        """Raise StorageError if the log ends before its recovery point."""
        synced_to = self.log.noted.recovery_point
        if end_offset < synced_to:
            raise StorageError(
                f"{self.folder} ends at offset {end_offset}, but had been synced up to offset "
                f"{synced_to}: the disk lost the rest, or files were removed; {ADVICE}"
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
        """Rewrite the small files with their own bytes, if an earlier sync may have failed.

        `_sync_small_files` or a flush syncs them. An empty log is not scanned, but relies on them
        from its first append on.
        """
        if self.in_doubt:
            for name in sorted(self.log.unsynced):
                file = self.disk.open(self.path(name))
                try:
                    self._rewrite(file)
                finally:
                    file.close()

    def _sync_small_files(self) -> None:
        """Sync the small files that the dead process may not have synced."""
        for name in sorted(self.log.unsynced):
            file = self.disk.open(self.path(name))
            try:
                file.sync()
            finally:
                file.close()

    def _start_over(self) -> None:
        """Replace a log that ends before its log start offset by an empty one from there on."""
        log = self.log
        logger.error(
            "%s: the log ends at offset %d, before its log start offset %d: all segments are "
            "removed, and the log continues empty from the log start offset on",
            self.folder, log.log_end_offset, log.log_start_offset,
        )  # fmt: skip
        for segment in reversed(log.segments):
            self._remove_segment(segment.base_offset)
        self.disk.open(self.path(file_name(log.log_start_offset, LOG)), create=True).close()
        log.segments = [SegmentState(log.log_start_offset)]
        log.log_end_offset = log.recovery_point = log.log_start_offset
        log.producers = ProducerStateTable()


def _open_of(producers: ProducerStateTable) -> list[tuple[int, int]]:
    """Return the first offset and producer id of each open transaction."""
    transactions = producers.transactions
    return [] if transactions is None else list(transactions.open.items())


def _is_unfinished(file: File, position: int, size: int) -> bool:
    """Return whether the file ends within the batch at `position`, as an unfinished write does."""
    data = file.read(_LENGTH_END, position)
    if len(data) < _LENGTH_END:
        return True
    return int.from_bytes(data[_LENGTH_AT:], "big", signed=True) > size - position - _LENGTH_END
