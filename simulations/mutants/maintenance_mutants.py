"""Mutants of retention, deletion, configs, fetch sessions, indexes and syncs."""

import struct
from contextlib import AbstractContextManager
from typing import Any, Final

import trio

from metaquorum.dataplane.fetch.sessions import SessionPartition
from metaquorum.dataplane.log.compaction import cleaning
from metaquorum.dataplane.log.dirs.dir_steps import DirSteps
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.log.dirs.offset_checkpoints import OffsetCheckpoints
from metaquorum.dataplane.log.local_log import LocalLog
from metaquorum.dataplane.log.segments.index import SparseIndex
from metaquorum.dataplane.log.segments.names import LOG_START_CHECKPOINT
from metaquorum.dataplane.log.segments.segment import Segment
from metaquorum.dataplane.log.segments.sync_failure_marker import SyncFailureMarker
from metaquorum.dataplane.maintenance import background_tasks
from metaquorum.dataplane.maintenance.background_tasks import BackgroundTasks
from metaquorum.dataplane.replication.replica_manager import ReplicaManager
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import ConfigRecord
from metaquorum.runtime.interfaces import StorageError
from metaquorum.simulations.kernel.mutation import Mutant, all_of, swapped

_CHECKSUM_AT: Final = 17


def _retention_takes_one_more() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def retention_start(segments: Any, log_start_offset: int, *rest: Any) -> Any:
            spans = list(segments)
            start = right(spans, log_start_offset, *rest)
            if start == log_start_offset:
                return start
            ends = [span.end_offset for span in spans[:-1] if span.base_offset == start]
            return ends[0] if ends else start

        return retention_start

    return swapped(background_tasks, "retention_start", wrong)


def _deleted_records_come_back() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        return lambda self, name: {} if name == LOG_START_CHECKPOINT else right(self, name)

    return swapped(OffsetCheckpoints, "_read", wrong)


def _deletion_not_written() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def checkpoint(self: Any, log_dir: Any, high_watermarks: Any = None) -> None:
            await trio.lowlevel.checkpoint()
            if high_watermarks is not None:  # the periodic checkpoint
                await right(self, log_dir, high_watermarks)

        return checkpoint

    return swapped(LogDirs, "checkpoint", wrong)


def _configs_not_in_snapshot() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        return lambda self: (
            record for record in right(self) if not isinstance(record, ConfigRecord)
        )

    return swapped(MetadataImage, "records", wrong)


def _config_not_in_force() -> AbstractContextManager[None]:
    return swapped(ReplicaManager, "_reconfigure", lambda _: lambda *_: None)


def _session_forgets() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        return lambda self, new: self.session.waiter is not None and right(self, new)

    return swapped(SessionPartition, "note", wrong)


def _failed_sync_acknowledged() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def sync_files(self: Any, *rest: Any) -> None:
            try:
                await right(self, *rest)
            except StorageError:
                self._failure = None

        return sync_files

    return swapped(LocalLog, "_sync_files", wrong)


def _failed_sync_forgotten() -> AbstractContextManager[None]:
    return swapped(SyncFailureMarker, "is_in_doubt", lambda _: lambda self: False)


def _time_index_late() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def add_entries(self: Any, position: int, last_offset: int) -> None:
            first, self._max_timestamp_offset = self._max_timestamp_offset, last_offset
            right(self, position, last_offset)
            self._max_timestamp_offset = first

        return add_entries

    return swapped(Segment, "_add_entries", wrong)


def _index_believed() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        return lambda self, position, offset, _: right(self, position, offset, None)

    return swapped(Segment, "_locate_from", wrong)


def _time_index_believed() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def time_entry(self: Any, count: Any) -> Any:
            number = count(self.times) if self.size_bytes else 0
            if not number:
                return None
            entry = self.times.entry(number - 1)
            place = self.locate(self.base_offset + entry[1])
            at = place[0] if place else self.size_bytes
            return entry[0], self.base_offset + entry[1], at

        return time_entry

    return swapped(Segment, "_time_entry", wrong)


def _time_index_order_believed() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        return lambda self, timestamp, position, before: True

    return swapped(Segment, "_is_first_with", wrong)


def _rot_made_sound() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        return lambda batch, position, size: struct.unpack_from(
            ">I", batch, position + _CHECKSUM_AT
        )[0]

    return swapped(cleaning, "batch_crc", wrong)


def _hanging_directory_waited_for() -> AbstractContextManager[None]:
    return swapped(DirSteps, "run", lambda _: lambda self: trio.sleep_forever())


def _deletion_waits_for_appends() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def delete_all(self: Any, ends: Any, rng: Any) -> None:
            for end in ends.values():
                if end is not None:
                    await end()
            await right(self, ends, rng)

        return delete_all

    return swapped(LogDirs, "delete_all", wrong)


def _one_directory_fails_all() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def fail(self: Any, log_dir: Any, error: StorageError) -> None:
            right(self, log_dir, error)
            for other in list(self.online):
                right(self, other, error)

        return fail

    return swapped(LogDirs, "fail", wrong)


def _wrong_index_emptied() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def remove_wrong_file(self: Any) -> None:
            if self.has_wrong_file:
                self.file.get().truncate(0)
                self.has_wrong_file = False

        return remove_wrong_file

    return swapped(SparseIndex, "remove_wrong_file", wrong)


class _StoppedClock:
    """Clock whose wall time stays at `now_ms`."""

    def __init__(self, clock: Any, now_ms: int) -> None:
        self._clock = clock
        self._now_ms = now_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def now_ms(self) -> int:
        return self._now_ms


def _clock_read_once() -> AbstractContextManager[None]:
    began_ms: dict[Any, int] = {}

    def whole_pass(right: Any) -> Any:
        async def retain(self: Any, log_dir: Any) -> None:
            began_ms[self] = self._clock.now_ms()
            try:
                await right(self, log_dir)
            finally:
                began_ms.pop(self, None)

        return retain

    def one_log(right: Any) -> Any:
        def advance_start(self: Any, partition: Any) -> Any:
            clock = self._clock
            if self in began_ms:
                self._clock = _StoppedClock(clock, began_ms[self])
            try:
                return right(self, partition)
            finally:
                self._clock = clock

        return advance_start

    return all_of(
        swapped(BackgroundTasks, "_retain", whole_pass),
        swapped(BackgroundTasks, "_advance_start", one_log),
    )


UPKEEP_MUTANTS: Final = (
    Mutant(
        "retention-takes-one-more",
        "retention also deletes the first segment that is not due",
        "administration",
        ("L3",),
        _retention_takes_one_more,
    ),
    Mutant(
        "clock-read-once",
        "retention judges all logs of a pass by the time at which the pass began",
        "everything",
        ("L3",),
        _clock_read_once,
    ),
    Mutant(
        "deleted-records-come-back",
        "after a start the log start offset is that of the first segment again",
        "administration",
        ("L3",),
        _deleted_records_come_back,
    ),
    Mutant(
        "deletion-not-written",
        "DeleteRecords is acknowledged before the log start offset is on disk",
        "log-dirs",
        ("L3",),
        _deletion_not_written,
    ),
    Mutant(
        "configs-not-in-snapshot",
        "a snapshot of the metadata has no configs",
        "administration",
        ("M3", "M4"),
        _configs_not_in_snapshot,
    ),
    Mutant(
        "config-not-in-force",
        "a topic's partitions apply a changed config only after the next start",
        "administration",
        ("M3",),
        _config_not_in_force,
    ),
    Mutant(
        "session-forgets",
        "a fetch session misses records appended between two of its requests",
        "administration",
        ("liveness",),
        _session_forgets,
    ),
    Mutant(
        "time-index-late",
        "an entry of the time index has the last batch, not that with the largest timestamp",
        "administration",
        ("L5",),
        _time_index_late,
    ),
    Mutant(
        "failed-sync-acknowledged",
        "a sync that fails counts as one that succeeded",
        "failing-disk",
        ("R6", "L2"),
        _failed_sync_acknowledged,
    ),
    Mutant(
        "failed-sync-forgotten",
        "recovery trusts readable data after a sync has failed",
        "failing-disk",
        ("R6", "L1", "L2"),
        _failed_sync_forgotten,
    ),
    Mutant(
        "index-believed",
        "entries of the offset index are not compared with the batch",
        "failing-disk",
        ("L1", "L5"),
        _index_believed,
    ),
    Mutant(
        "time-index-believed",
        "entries of the time index are not compared with the batch",
        "failing-disk",
        ("L3", "L5"),
        _time_index_believed,
    ),
    Mutant(
        "time-index-order-believed",
        "an entry of the time index may point to a later batch with the same timestamp",
        "failing-disk",
        ("L5",),
        _time_index_order_believed,
    ),
    Mutant(
        "wrong-index-emptied",
        "an index that was found wrong leaves an empty file, which the next start trusts",
        "failing-disk",
        ("L5",),
        _wrong_index_emptied,
    ),
    Mutant(
        "rot-made-sound",
        "compaction copies damaged batches with a new, valid checksum",
        "failing-disk",
        ("L2", "L4"),
        _rot_made_sound,
    ),
    Mutant(
        "one-directory-fails-all",
        "a failed log directory takes the others offline, too",
        "log-dirs",
        ("liveness",),
        _one_directory_fails_all,
    ),
    Mutant(
        "hanging-directory-waited-for",
        "duties for all log directories wait for one that hangs",
        "log-dirs",
        ("liveness",),
        _hanging_directory_waited_for,
    ),
    Mutant(
        "deletion-waits-for-appends",
        "a deletion waits for an append in progress whose disk hangs",
        "log-dirs",
        ("liveness", "M3"),
        _deletion_waits_for_appends,
    ),
)
