"""The files of one log: its segments, the recovery point, and retired segments yet to be removed.

    recovery_point ≤ log_end_offset
    records before `recovery_point` are synced; a loss of power can remove the records after it

Producer state, leader epochs and the log start offset belong to `partition_log`. Bytes beyond the
size of the active segment are not part of the log and are never read. After a failed sync, or a
failed change of several files, the content of the disk is unknown: every later append or flush
fails with the same error. If the process has no descriptor left, a sync has not failed
in this sense: it is tried again.
"""

import logging
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import trio

from metaquorum.dataplane.log.recovery.folder import LogFolder, Unsynced
from metaquorum.dataplane.log.recovery.recovery import LoadedLog
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.files import (
    DiskFullError,
    LogFile,
    OpenFiles,
    storage_error,
    storage_errors,
)
from metaquorum.dataplane.log.segments.names import (
    ABORTED_INDEX,
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SWAP,
    TIME_INDEX,
    file_name,
)
from metaquorum.dataplane.log.segments.segment import MAX_RELATIVE_OFFSET, Segment, SegmentState
from metaquorum.dataplane.log.segments.segment_list import Segments
from metaquorum.runtime.interfaces import (
    Clock,
    Disk,
    File,
    StorageError,
    is_out_of_descriptors,
    sleep,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

NO_TIMESTAMP: Final = -1
NO_CUT: Final = 2**63
# Attempts to sync the names of a swap while the process has no descriptor left.
DESCRIPTOR_TRIES: Final = 60
DESCRIPTOR_RETRY_S: Final = 0.5


class SegmentSpan(NamedTuple):
    """Offsets, size and newest timestamp of one segment, for retention."""

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int  # largest timestamp of its records; time of its creation if they have none


class LocalLog:
    """Segments of one log, with its end, its recovery point and their changes on disk."""

    __slots__ = (
        "_config",
        "_cut_unsynced",
        "_failure",
        "_files",
        "_flushing",
        "_folder",
        "_last_flush_ms",
        "_opened_end_offset",
        "_replacements",
        "_retired",
        "_segments",
        "_swapping",
        "_tail_dirty",
        "_truncations",
        "_unsynced_segments",
        "_writing",
        "least_cut",
        "log_end_offset",
        "noted_recovery_point",
        "partition",
        "recovery_point",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        files: OpenFiles,
        config: LogConfig,
        topic: str,
        partition: int,
        loaded: LoadedLog,
        now_ms: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = loaded.topic_id or bytes(16)
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        # The recovery point in the checkpoint file is at most this: `OffsetCheckpoints` sets it.
        self.noted_recovery_point = loaded.noted.recovery_point
        self._opened_end_offset = loaded.log_end_offset
        self._files = files
        self._folder = LogFolder(
            files,
            loaded.folder,
            loaded.epochs,
            loaded.snapshot_offsets,
            loaded.unsynced,
            loaded.is_made,
        )
        self._config = config
        self._segments = Segments(
            [
                Segment(files, loaded.folder, config, state, now_ms, create=not loaded.is_made)
                for state in loaded.segments
            ],
            self.log_end_offset,
        )
        self._segments.active.bytes_since_index = loaded.bytes_since_index
        self._last_flush_ms = now_ms
        self._flushing: trio.Event | None = None
        self._failure: str | None = None
        self._unsynced_segments: list[Segment] = []
        self._retired: list[Segment] = []
        self._tail_dirty = False
        self._truncations = 0
        # Least offset of all truncations since a copy of this log was last adjusted to them.
        self.least_cut = NO_CUT
        self._cut_unsynced = False  # a loss of power may restore truncated records
        self._replacements = 0
        self._swapping: int | None = None  # base offset of a .swap that is not in place yet
        self._writing = False

    # State

    @property
    def files(self) -> OpenFiles:
        """Descriptors that it shares with the other logs of its log directory."""
        return self._files

    @property
    def folder(self) -> str:
        return self._folder.path

    @property
    def config(self) -> LogConfig:
        return self._config

    def configure(self, config: LogConfig) -> None:
        """Apply `config` to this log and all its segments."""
        self._config = config
        for segment in self._segments:
            segment.configure(config)

    @property
    def has_folder(self) -> bool:
        """Whether the log's folder exists; a full disk may have left it incomplete."""
        return self._folder.exists

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def first_segment_offset(self) -> int:
        return self._segments.first_offset

    @property
    def active_segment_offset(self) -> int:
        return self._segments.active.base_offset

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def synced_offset(self) -> int:
        """Offset before which all segments and their indexes are synced: recovery trusts them."""
        if self._unsynced_segments:
            return min(self.recovery_point, self._unsynced_segments[0].base_offset)
        return self.recovery_point

    @property
    def unflushed_records(self) -> int:
        """Number of records after the recovery point, which a loss of power could remove."""
        return self.log_end_offset - self.recovery_point

    @property
    def segments(self) -> Sequence[Segment]:
        """Current segments, the active one last."""
        return tuple(self._segments)

    @property
    def truncations(self) -> int:
        """Number of truncations since the log was opened."""
        return self._truncations

    def sealed_segments(self) -> list[tuple[Segment, int]]:
        """Return all segments except the active one, each with its end offset."""
        return list(self._segments.with_end_offsets(self.log_end_offset))[:-1]

    def segment_spans(self) -> Iterator[SegmentSpan]:
        """Yield the offsets, size and age of each segment for retention, oldest first."""
        for segment, end_offset in self._segments.with_end_offsets(self.log_end_offset):
            newest_ms = segment.max_timestamp
            yield SegmentSpan(
                segment.base_offset,
                end_offset,
                segment.size_bytes,
                newest_ms if newest_ms >= 0 else segment.created_ms,
            )

    @property
    def is_flushing(self) -> bool:
        return self._flushing is not None

    @property
    def is_writing(self) -> bool:
        """Whether an append is being written in a worker thread."""
        return self._writing

    @property
    def failure(self) -> str | None:
        """Error text for which this log rejects appends; None while it accepts them."""
        return self._failure

    # The active segment

    def _segment_for(
        self,
        size_bytes: int,
        last_offset: int,
        max_timestamp: int,
        now_ms: int,
        *,
        checks_size: bool = True,
    ) -> Segment:
        """Return the active segment, after a roll if the current one cannot take this append.

        Without `checks_size`, more than segment.bytes are alone in a segment.
        """
        assert not self._writing
        if self._failure is not None:
            raise StorageError(self._failure)
        folder = self._folder
        if not folder.is_made:
            folder.make(self.topic_id)
        if folder.has_new_epochs:
            folder.write_epochs()
        if self._tail_dirty:
            self._clean_tail()
        active = self._segments.active
        config = self._config
        has_room = active.size_bytes + size_bytes <= config.segment_bytes
        first = active.first_timestamp
        if (
            has_room
            and not active.indexes_full
            and last_offset - active.base_offset <= MAX_RELATIVE_OFFSET
            and 0 <= first <= max_timestamp <= first + config.segment_ms
            and not config.segment_jitter_ms
        ):
            return active  # nearly always
        if not has_room and checks_size:
            self._check_size(size_bytes)
        if active.size_bytes and (
            not has_room
            or active.indexes_full
            or last_offset - active.base_offset > MAX_RELATIVE_OFFSET
            or self._waited_ms(active, max_timestamp, now_ms) > config.segment_ms
        ):
            self.roll(now_ms)
            active = self._segments.active
        if last_offset - active.base_offset > MAX_RELATIVE_OFFSET:
            self.roll(now_ms)
            active = self._segments.active
        return active

    def _check_size(self, size_bytes: int) -> None:
        """Raise KafkaError (RECORD_LIST_TOO_LARGE) if an append is larger than a segment may be.

        A batch that was refused as too large is refused as such again, also after later ones were
        appended: a producer that did not receive the first refusal takes
        OUT_OF_ORDER_SEQUENCE_NUMBER for a sign that the batch is stored.
        """
        if size_bytes > self._config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size_bytes} bytes of batches are larger than segment.bytes, "
                f"{self._config.segment_bytes}",
            )

    def _waited_ms(self, active: Segment, max_timestamp: int, now_ms: int) -> int:
        """Return the age of the segment in ms, by its records' timestamps or else by its creation.

        Includes the segment's part of segment.jitter.ms.
        """
        first = active.find_first_timestamp()
        jitter = self._config.segment_jitter_ms
        if jitter:
            # Derived from the names: it only has to differ between partitions and segments.
            jitter = (
                zlib.crc32(f"{self.topic}-{self.partition}/{active.base_offset}".encode()) % jitter
            )
        if first >= 0 and max_timestamp >= 0:
            return max_timestamp - first + jitter
        return now_ms - active.created_ms + jitter

    def _clean_tail(self) -> None:
        """Truncate the bytes that a failed append left in the active segment's file."""
        active = self._segments.active
        with storage_errors("truncate", active.file.path):
            file = active.file.get()
            if file.size() > active.size_bytes:
                file.truncate(active.size_bytes)
        self._tail_dirty = False

    def roll(self, now_ms: int) -> bool:
        """Complete the active segment and begin a new one at the log end offset.

        Return False, without change, if the active segment is empty. Raises StorageError if the
        directory fails.
        """
        sealed = self._segments.active
        end = self.log_end_offset
        if not sealed.size_bytes and sealed.base_offset == end:
            return False
        with storage_errors("roll", sealed.file.path):
            sealed.seal()
            with self._syncing():
                self._folder.settle_names(are_being_synced=self._flushing is not None)
            segment = self._new_segment(end, now_ms)
        self._unsynced_segments.append(sealed)
        self._segments.add(segment)
        return True

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        if not self._folder.is_made:
            self._folder.make(self.topic_id)
        state = SegmentState(base_offset, 0, 0, 0, NO_TIMESTAMP, NO_TIMESTAMP)
        segment = Segment(self._files, self.folder, self._config, state, now_ms, create=True)
        file = segment.file.get()
        if file.size():
            file.truncate(0)
        self._folder.names_changed()
        return segment

    # Truncation

    def _end_of_cut(self, offset: int) -> int:
        """Return the log end offset after `_cut(offset)`. Raises StorageError."""
        segment = self._segments.last_before(offset)
        with storage_errors("read", segment.file.path):
            return segment.end_at(offset)

    def _first_cut_at(self, offset: int) -> int:
        """Return the base offset of the first batch that `_cut(offset)` removes, or `offset`."""
        segment = self._segments.last_before(offset)
        with storage_errors("read", segment.file.path):
            found = segment.locate(offset)
        return offset if found is None else min(offset, found[1].base_offset)

    def _distrust_from(self, offset: int) -> None:
        """Lower the recovery point to `offset`.

        Called before the files change: a truncation that fails half way must not leave a recovery
        point beyond the log's end.
        """
        assert self.noted_recovery_point <= offset, (
            f"{self.folder} is truncated at {offset}, below the recovery point on disk, "
            f"{self.noted_recovery_point}: see LogDirs.cutting"
        )
        self.recovery_point = min(self.recovery_point, offset)

    def _cut(self, offset: int) -> int:
        """Truncate the files at `offset`. Return the end offset, which is `offset` or less."""
        self._drop_swap()
        while (segment := self._segments.pop_behind(offset)) is not None:
            self._remove_segment(segment)
        return self._segments.active.truncate_to(offset)

    def _cut_all(self, offset: int) -> None:
        """Replace all segments by one empty segment with the base offset `offset`."""
        self._drop_swap()
        for segment in reversed(list(self._segments)):
            self._remove_segment(segment)
        self._segments = Segments([self._new_segment(offset, 0)], offset)

    def _end_files_at(self, offset: int) -> None:
        """Set the log end offset, and forget what refers to later offsets."""
        self._cut_unsynced = True
        self.least_cut = min(self.least_cut, offset)
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self._tail_dirty = False
        self._unsynced_segments = [s for s in self._unsynced_segments if s in self._segments]
        self._segments.forget_places(offset)

    def _remove_segment(self, segment: Segment) -> None:
        segment.remove()
        self._folder.names_changed()

    @contextmanager
    def _syncing(self) -> Iterator[None]:
        """Reject all later appends and flushes if a sync fails. Raises StorageError.

        If the process has no descriptor left for a file or folder, the sync is tried again later.
        """
        try:
            with storage_errors("sync", self.folder):
                yield
        except StorageError as error:
            if not is_out_of_descriptors(error):
                self._failure = str(error)
            raise

    @contextmanager
    def _failing(self, action: str) -> Iterator[None]:
        """Reject all later appends and flushes if the block fails. Raises StorageError."""
        try:
            yield
        except (OSError, StorageError) as error:
            if isinstance(error, OSError):
                failure = storage_error(error, action, self.folder)
            else:
                failure = error
            self._failure = str(failure)
            raise failure from error

    # Deletion of old segments

    def _retire_first(self) -> None:
        """Rename the first segment, which is not the active one, to `.deleted`."""
        segment = self._segments.pop_first()
        self._retired.append(segment)
        if segment in self._unsynced_segments:
            self._unsynced_segments.remove(segment)
        with storage_errors("rename", segment.file.path):
            segment.retire()
        self._folder.names_changed()

    # Compaction

    async def replace_segments(
        self,
        disk: Disk,
        clock: Clock,
        old: Sequence[Segment],
        state: SegmentState,
        is_wanted: Callable[[], bool],
    ) -> bool:
        """Replace `old` by the cleaned segment whose synced files end in `.cleaned`.

        Return False, without change, if the log was truncated or moved meanwhile, or if
        `is_wanted()` no longer holds: a copy of the log may have begun that has read `old`. The
        files of `old` are renamed to `.deleted` and stay readable as long as those that retention
        deletes. Raises StorageError if the directory fails. `clock` times the attempts to sync
        while no descriptor is free.

            .cleaned → .swap   synced: from here on, recovery uses the .swap instead of `old`
            old → .deleted     synced, so that recovery finds no segment of `old` without the .swap
            .swap → its usual name
        """
        folder = self.folder
        if not self._segments.has_sealed(old):
            return False
        with storage_errors("rename", folder):
            self._rename_all(state, CLEANED, SWAP)
        with trio.CancelScope(shield=True) as shield:
            self._swapping = state.base_offset
            try:
                if not await self._sync_names(disk, folder):
                    return False
            except StorageError:
                self._drop_swap()
                raise
            if self._swapping is None or not self._segments.has_sealed(old) or not is_wanted():
                self._drop_swap()
                return False
            self._swapping = None
            with self._failing("replace segments of"):
                segment = self._swap(old, state)
                if await self._sync_swap(disk, clock, folder, shield) and segment in self._segments:
                    segment.settle()
                    self._folder.names_changed()
        return True

    def _drop_swap(self) -> None:
        """Remove a .swap whose segments were not replaced yet. Raises StorageError.

        Recovery would replace the segments by the .swap. After a truncation that would put the old
        records in the place of all records appended since: the .swap is therefore removed before
        the truncation, and the flush after the truncation syncs the removal.
        """
        if self._swapping is not None:
            with self._failing("remove the cleaned segment of"):
                for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX):
                    self._folder.remove(file_name(self._swapping, suffix) + SWAP)
            self._swapping = None

    def _rename_all(self, state: SegmentState, ending: str, new_ending: str) -> None:
        aborted = (ABORTED_INDEX,) if state.aborted_bytes else ()
        for suffix in (*aborted, OFFSET_INDEX, TIME_INDEX, LOG):
            path = os.path.join(self.folder, file_name(state.base_offset, suffix))
            self._files.disk.rename(path + ending, path + new_ending)
        self._folder.names_changed()

    def _swap(self, old: Sequence[Segment], state: SegmentState) -> Segment:
        made_ms = old[-1].created_ms
        segment = Segment(self._files, self.folder, self._config, state, made_ms, ending=SWAP)
        end = self._segments.end_of(old[-1])
        self._segments.replace(old, segment)
        self._replacements += 1
        for each in old:
            self._retired.append(each)
            if each in self._unsynced_segments:
                self._unsynced_segments.remove(each)
            each.retire(f".{self._replacements}")
        self._folder.drop_snapshots_between(state.base_offset, end)
        return segment

    async def _sync_swap(
        self, disk: Disk, clock: Clock, folder: str, shield: trio.CancelScope
    ) -> bool:
        """Sync the names of a swap as `_sync_names` does; wait for a descriptor if there is none.

        The names are changed already. Reads and appends continue meanwhile. A node that stops does
        not wait: recovery completes the swap, since the name of the .swap is synced.
        """
        for _ in range(DESCRIPTOR_TRIES):
            try:
                return await self._sync_names(disk, folder)
            except StorageError as error:
                if not is_out_of_descriptors(error):
                    raise
            shield.shield = False
            try:
                await sleep(clock, DESCRIPTOR_RETRY_S)
            finally:
                shield.shield = True
        return await self._sync_names(disk, folder)

    async def _sync_names(self, disk: Disk, folder: str) -> bool:
        """Sync the folder's entries. Return False if the folder was renamed meanwhile."""
        try:
            with storage_errors("sync", folder):
                await disk.run(lambda: disk.sync_dir(folder))
        except StorageError:
            if self.folder == folder:
                raise
        return self.folder == folder

    def remove_deleted(self, count: int | None = None) -> tuple[int, StorageError | None]:
        """Remove the files of retired segments: of the `count` oldest, or of all.

        Each is tried. Return the number of those that still have a file, with the first error; a
        later call tries them again, after all others. Blocking, and slow for large files: call it
        in a worker thread (`Disk.run`).
        """
        retired = self._retired[:count]
        del self._retired[: len(retired)]
        failed: list[Segment] = []
        failure: StorageError | None = None
        for segment in retired:
            try:
                with storage_errors("remove", self.folder):
                    segment.remove()
            except StorageError as error:
                failed.append(segment)
                failure = failure or error
        self._retired += failed
        return len(failed), failure

    # Durability

    def needs_flush(self, now_ms: int) -> bool:
        """Return whether flush.messages or flush.ms is due, or a sealed segment is unsynced."""
        unflushed = self.log_end_offset - self.recovery_point
        if unflushed >= self._config.flush_messages or self._unsynced_segments:
            return True
        return unflushed > 0 and now_ms - self._last_flush_ms >= self._config.flush_ms

    async def flush(self, disk: Disk, now_ms: int | None = None) -> None:
        """Sync all records that were appended before this call.

        Concurrent callers share one sync. Raises StorageError if the directory fails, DiskFullError
        if only the leader epochs cannot be written: the records are synced then.
        """
        target = self.log_end_offset
        while self._failure is None and (
            self.recovery_point < min(target, self.log_end_offset)
            or self._unsynced_segments
            or self._cut_unsynced
            or not self._folder.is_synced
        ):
            if self._flushing is not None:
                await self._flushing.wait()
                continue
            self._flushing = trio.Event()
            try:
                await self._flush_once(disk)
            finally:
                self._flushing.set()
                self._flushing = None
            if now_ms is not None:
                self._last_flush_ms = now_ms
        if self._failure is not None:
            raise StorageError(self._failure)

    async def _flush_once(self, disk: Disk) -> None:
        # One segment at a time: their number may exceed the limit of open files.
        while self._unsynced_segments:
            segment = self._unsynced_segments[0]
            await self._sync_files(disk, segment.files_to_sync(), None)
            if self._unsynced_segments[:1] == [segment]:  # not truncated meanwhile
                del self._unsynced_segments[0]
        # Read the end only now, so that segments sealed during the syncs above are included:
        # otherwise they, and the cleaner, would wait for the next flush.
        full: DiskFullError | None = None
        try:
            self._folder.write_epochs()
        except DiskFullError as error:  # a truncation must be synced before the next append
            full = error
        end, truncations = self.log_end_offset, self._truncations
        unsynced = self._folder.take_unsynced()
        try:
            await self._sync_files(disk, (self._segments.active.file,), unsynced)
        except BaseException:  # failed, or cancelled before the sync began
            self._folder.give_back(unsynced)
            raise
        if truncations == self._truncations:
            self._cut_unsynced = False
            if full is None:  # else recovery would not find the epochs
                self.recovery_point = max(self.recovery_point, end)
        if full is not None:
            raise full

    async def _sync_files(
        self, disk: Disk, files: Sequence[LogFile], unsynced: Unsynced | None
    ) -> None:
        opened: list[File] = []

        def sync() -> None:
            with self._files.sync_failure_marker.syncing():
                for file in opened:
                    file.sync()
                if unsynced is not None:
                    unsynced.sync(disk)

        with self._syncing():
            try:
                opened.extend(file.acquire() for file in files)
                await disk.run(sync)
            finally:
                for file in files[: len(opened)]:
                    file.release()

    def _complete_active(self) -> None:
        """Write the indexes of the active segment to their files; the next sync includes them."""
        active = self._segments.active
        if active.size_bytes and self._is_changed():
            active.seal()
            self._unsynced_segments.append(active)
            self._folder.names_changed()

    def _remove_wrong_indexes(self) -> None:
        """Remove the files of indexes that were found wrong and could not be removed then."""
        for segment in self._segments:
            try:
                segment.remove_wrong_indexes()
            except OSError as error:
                logger.warning(
                    "cannot remove the wrong indexes of %s: %s; remove them before the next start, "
                    "which rebuilds missing indexes only",
                    segment.file.path,
                    error,
                )

    def _is_changed(self) -> bool:
        return self.log_end_offset != self._opened_end_offset or self._truncations > 0

    def _take_all_unsynced(self) -> Unsynced:
        """Take all names that have to be synced, those of segment files included."""
        unsynced = self._folder.take_unsynced()
        names = {file.name for each in self._unsynced_segments for file in each.files_to_sync()}
        if self.recovery_point < self.log_end_offset:
            names.add(self._segments.active.file.name)
        unsynced.names |= names
        return unsynced

    def closed_clean(self) -> None:
        """Advance the recovery point to the end, once the names of `prepare_close` are synced."""
        self._unsynced_segments.clear()
        self.recovery_point = self.log_end_offset

    def close(self) -> None:
        """Close all files without a sync."""
        for segment in (*self._segments, *self._retired):
            segment.close()

    def moved(self, folder: str) -> None:
        """Use `folder` as the log's folder after a rename. Reads in progress are not affected."""
        self._folder.path = folder
        for segment in (*self._segments, *self._retired):
            segment.moved(folder)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        assert 0 <= self.recovery_point <= self.log_end_offset
        bases = [segment.base_offset for segment in self.segments]
        assert bases, "a log has an active segment"
        assert bases == sorted(set(bases)), bases
        assert bases[-1] == self.active_segment_offset <= self.log_end_offset
        assert self.least_cut >= 0
        assert all(segment.size_bytes >= 0 for segment in self.segments)
