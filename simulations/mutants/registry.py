"""Table of all mutants: bugs planted into the shipped code, to show that checkers find them.

Each replaces one or a few functions by wrong ones while a world runs. Many are real bugs: of other
systems, such as Kafka, or of this one until a seed found them.
"""

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import trio

from metaquorum.dataplane.log.compaction import cleaning
from metaquorum.dataplane.log.compaction.compaction import BatchFilter
from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.dataplane.log.local_log import LocalLog
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.recovery import recovery
from metaquorum.dataplane.log.segments.names import CLEAN_SHUTDOWN
from metaquorum.dataplane.log.segments.offset_map import OffsetMap
from metaquorum.dataplane.log.segments.producers import ProducerStateTable
from metaquorum.dataplane.log.segments.scan import SegmentScan
from metaquorum.dataplane.log.segments.segment_list import Segments
from metaquorum.dataplane.network import pipeline
from metaquorum.dataplane.network.pipeline import RequestPipeline
from metaquorum.metadata.image import PartitionImage
from metaquorum.quorum.controller.leaders import leader_selection
from metaquorum.quorum.storage import data_dir
from metaquorum.quorum.storage.journal import Journal
from metaquorum.runtime.interfaces import Disk, write_atomically
from metaquorum.simulations.kernel.mutation import Mutant, WithoutEffect, all_of, mutated, swapped
from metaquorum.simulations.mutants.cleanup_mutants import CLEANUP_MUTANTS
from metaquorum.simulations.mutants.fetch_mutants import FETCH_MUTANTS
from metaquorum.simulations.mutants.group_mutants import GROUP_MUTANTS
from metaquorum.simulations.mutants.interleaving_mutants import CHECK_MUTANTS
from metaquorum.simulations.mutants.load_mutants import LOAD_MUTANTS
from metaquorum.simulations.mutants.log_dir_mutants import COPY_MUTANTS, LOG_DIR_MUTANTS
from metaquorum.simulations.mutants.log_mutants import LOG_MUTANTS
from metaquorum.simulations.mutants.maintenance_mutants import UPKEEP_MUTANTS
from metaquorum.simulations.mutants.move_mutants import DRAINING_MUTANTS, MOVE_MUTANTS
from metaquorum.simulations.mutants.plan_mutants import PLAN_MUTANTS
from metaquorum.simulations.mutants.quorum_mutants import CLUSTER_MUTANTS, QUORUM_MUTANTS
from metaquorum.simulations.mutants.quota_mutants import QUOTA_MUTANTS
from metaquorum.simulations.mutants.replica_fault_mutants import REPLICA_FAULT_MUTANTS
from metaquorum.simulations.mutants.replication_mutants import (
    REGISTRATION_MUTANTS,
    REPLICATION_MUTANTS,
)
from metaquorum.simulations.mutants.state_mutants import STATE_MUTANTS
from metaquorum.simulations.mutants.sync_mutants import FAULT_MUTANTS
from metaquorum.simulations.mutants.throttling_mutants import THROTTLING_MUTANTS
from metaquorum.simulations.mutants.transaction_mutants import TRANSACTION_MUTANTS
from metaquorum.simulations.mutants.truncation_mutants import CUT_MUTANTS
from metaquorum.simulations.mutants.upgrade_mutants import MOVES_LEVEL_MUTANTS, UPGRADE_MUTANTS
from metaquorum.simulations.mutants.validation_mutants import PRODUCER_MUTANTS, VALIDATION_MUTANTS

__all__ = ["MUTANTS", "Mutant", "mutated"]


def _metadata_ack_before_fsync() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def append_frame(self: Any, frame: bytes) -> None:
            file, self._file = self._file, WithoutEffect(self._file, "sync")
            try:
                right(self, frame)
            finally:
                self._file = file

        return append_frame

    return swapped(Journal, "_append_frame", wrong)


def _journal_folder_not_synced() -> AbstractContextManager[None]:
    return swapped(Journal, "_sync_dir", lambda right: lambda self: None)


def _index_not_rebuilt() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def write_index(disk: Disk, path: str, entries: bytes) -> None:
            if not disk.exists(path):
                right(disk, path, entries)

        return write_index

    return swapped(recovery, "write_index", wrong)


def _torn_tail_served() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def scan_segment(file: Any, *rest: Any, **named: Any) -> SegmentScan:
            result: SegmentScan = right(file, *rest, **named)
            state = result.state._replace(size_bytes=file.size())
            return result._replace(state=state, damage=None)

        return scan_segment

    return swapped(recovery, "scan_segment", wrong)


def _clean_mark_kept() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def begin(self: Any) -> Any:
            path = f"{self.path}/{CLEAN_SHUTDOWN}"
            mark = self._disk.read_file(path) if self._disk.exists(path) else None
            result = right(self)
            if mark is not None:
                write_atomically(self._disk, path, mark)
            return result

        return begin

    return swapped(LogDir, "_begin", wrong)


def _recovered_not_synced() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def scan(self: Any, base: int) -> Any:
            disk, self.disk = self.disk, WithoutEffect(self.disk, "sync")
            try:
                return right(self, base)
            finally:
                self.disk = disk

        return scan

    return swapped(recovery._Loader, "_scan", wrong)


def _names_not_synced() -> AbstractContextManager[None]:
    return swapped(data_dir, "_sync_names", lambda right: lambda disk, path: None)


def _producers_forgotten() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def finish(self: Any, first_unclean: int) -> None:
            right(self, first_unclean)
            self.log.producers = ProducerStateTable()

        return finish

    return swapped(recovery._Loader, "_finish", wrong)


def _failed_append_kept() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def clean_tail(self: Any) -> None:
            active = self._segments.active
            active.size_bytes = active.file.get().size()
            self._tail_dirty = False

        return clean_tail

    return swapped(LocalLog, "_clean_tail", wrong)


def _read_past_high_watermark() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def read(self: Any, offset: int, max_bytes: int, end_offset: int, **more: Any) -> Any:
            result = right(self, offset, max_bytes, end_offset, **more)
            active = self._segments.active.file
            if result.size_bytes and result._file is active:
                result.size_bytes = active.get().size() - result.position
            return result

        return read

    return swapped(PartitionLog, "read", wrong)


def _place_of_another_segment() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def read_upto(self: Any, segment: Any, end_offset: int, position: int) -> None:
            self._next_read_offset, self._next_read_position = end_offset, position

        return read_upto

    return swapped(Segments, "read_upto", wrong)


def _answers_out_of_order() -> AbstractContextManager[None]:
    def handles_more(_: Any) -> Any:
        return property(lambda self: len(self.queue) < pipeline.MAX_DELAYED)

    def ready_first(right: Any) -> Any:
        def take_ready(self: Any) -> bytes:
            self.queue = deque(sorted(self.queue, key=lambda reply: not pipeline.is_ready(reply)))
            data: bytes = right(self)
            return data

        return take_ready

    return all_of(
        swapped(RequestPipeline, "may_handle", handles_more),
        swapped(RequestPipeline, "take_ready", ready_first),
    )


def _ack_before_flush() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def flush(self: Any, disk: Any, now_ms: int | None = None) -> None:
            # Callers that wait for an acknowledgement pass no time.
            if now_ms is not None:
                await right(self, disk, now_ms)

        return flush

    return swapped(LocalLog, "flush", wrong)


def _same_epoch_again() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def settled(partition: PartitionImage, *rest: Any, **named: Any) -> PartitionImage | None:
            after: PartitionImage | None = right(partition, *rest, **named)
            return after and replace(after, leader_epoch=partition.leader_epoch)

        return settled

    return swapped(leader_selection, "settled", wrong)


def _live_key_dropped() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        return lambda self, key: right(self, key) + (key == b"key 1")

    return swapped(OffsetMap, "get", wrong)


def _deletion_forgotten_early() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def filter_records(self: Any, *rest: Any) -> Any:
            self.delete_retention_ms = 0
            return right(self, *rest)

        return filter_records

    return swapped(BatchFilter, "_filter_records", wrong)


def _swapped_without_sync() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def finish(self: Any) -> None:
            file, disk = self._file, self._disk
            self._file, self._disk = WithoutEffect(file, "sync"), WithoutEffect(disk, "sync")
            try:
                right(self)
            finally:
                self._file, self._disk = file, disk

        return finish

    return swapped(cleaning._Target, "finish", wrong)


def _names_swapped_without_sync() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def sync_names(self: Any, disk: Any, folder: str) -> bool:
            await trio.lowlevel.checkpoint()
            return bool(self.folder == folder)

        return sync_names

    return swapped(LocalLog, "_sync_names", wrong)


def _deleted_keys_come_back() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def put(self: Any, key: bytes, offset: int) -> bool:
            return offset % 2 == 0 or bool(right(self, key, offset))

        return put

    return swapped(OffsetMap, "put", wrong)


MUTANTS: Final[dict[str, Mutant]] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "metadata-ack-before-fsync",
            "a change of metadata is acknowledged before its journal is on disk",
            "single-node-power",
            ("M2", "M3"),
            _metadata_ack_before_fsync,
        ),
        Mutant(
            "journal-folder-not-synced",
            "the name of a new journal segment is not made durable",
            "single-node-power",
            ("M2", "M3"),
            _journal_folder_not_synced,
        ),
        Mutant(
            "index-not-rebuilt",
            "after an unclean stop the indexes are used as they are",
            "single-node-power",
            ("L5",),
            _index_not_rebuilt,
        ),
        Mutant(
            "torn-tail-served",
            "bytes at the end of a log that are not a valid batch stay in it",
            "single-node-power",
            ("L4", "L5"),
            _torn_tail_served,
        ),
        Mutant(
            "clean-mark-kept",
            "the marker of a clean stop stays after the start (KAFKA-10471)",
            "single-node-power",
            ("L4", "L5", "R6"),
            _clean_mark_kept,
        ),
        Mutant(
            "recovered-not-synced",
            "recovered segments count as durable without a sync (KAFKA-10101)",
            "single-node-power",
            ("liveness", "R6"),
            _recovered_not_synced,
        ),
        Mutant(
            "recovered-folders-not-synced",
            "folders that a killed process created count as durable without a sync",
            "log-dirs",
            ("R6",),
            _names_not_synced,
        ),
        Mutant(
            "producers-forgotten",
            "the state of producers does not survive a start",
            "single-node-kill",
            ("T1",),
            _producers_forgotten,
        ),
        Mutant(
            "failed-append-kept",
            "the bytes of an append that failed stay in the log",
            "disk-full",
            ("L1", "L4", "L5"),
            _failed_append_kept,
        ),
        Mutant(
            "read-past-high-watermark",
            "consumers get all records of the file, not only committed ones",
            "hostile",
            ("R5",),
            _read_past_high_watermark,
        ),
        Mutant(
            "place-of-another-segment",
            "a file position cached for an older segment is used in the active one",
            "hostile",
            ("L1", "L4", "L5"),
            _place_of_another_segment,
        ),
        Mutant(
            "answers-out-of-order",
            "responses to requests that need not wait are sent first",
            "hostile",
            ("P1",),
            _answers_out_of_order,
        ),
        Mutant(
            "ack-before-flush",
            "flush.messages does not delay the acknowledgement",
            "single-node-power",
            ("R6",),
            _ack_before_flush,
        ),
        Mutant(
            "same-epoch-again",
            "a leader continues in the epoch in which it crashed (KAFKA-10527)",
            "single-node-power",
            ("R4",),
            _same_epoch_again,
        ),
        Mutant(
            "live-key-dropped",
            "compaction removes the last record of a key",
            "compaction",
            ("L2",),
            _live_key_dropped,
        ),
        Mutant(
            "deletion-forgotten-early",
            "compaction removes a tombstone before delete.retention.ms is over",
            "compaction",
            ("L2",),
            _deletion_forgotten_early,
        ),
        Mutant(
            "swapped-without-sync",
            "a cleaned segment replaces the old ones before it is durable",
            "compaction",
            ("L2", "L4", "L5", "liveness"),
            _swapped_without_sync,
        ),
        Mutant(
            "names-swapped-without-sync",
            "names of replaced segments are removed before that of the cleaned one is durable",
            "compaction",
            ("L2", "L5", "liveness"),
            _names_swapped_without_sync,
        ),
        Mutant(
            "deleted-keys-come-back",
            "the offset map misses keys, so a tombstone is removed before the record it deletes",
            "compaction",
            ("L2",),
            _deleted_keys_come_back,
        ),
        *UPKEEP_MUTANTS,
        *FETCH_MUTANTS,
        *LOG_MUTANTS,
        *VALIDATION_MUTANTS,
        *QUORUM_MUTANTS,
        *CLUSTER_MUTANTS,
        *QUOTA_MUTANTS,
        *REPLICATION_MUTANTS,
        *REGISTRATION_MUTANTS,
        *CUT_MUTANTS,
        *CLEANUP_MUTANTS,
        *LOAD_MUTANTS,
        *CHECK_MUTANTS,
        *THROTTLING_MUTANTS,
        *PLAN_MUTANTS,
        *FAULT_MUTANTS,
        *REPLICA_FAULT_MUTANTS,
        *GROUP_MUTANTS,
        *UPGRADE_MUTANTS,
        *MOVES_LEVEL_MUTANTS,
        *TRANSACTION_MUTANTS,
        *PRODUCER_MUTANTS,
        *MOVE_MUTANTS,
        *LOG_DIR_MUTANTS,
        *COPY_MUTANTS,
        *DRAINING_MUTANTS,
        *STATE_MUTANTS,
    )
}
