"""Mutants that have an effect only with damaged or older disks, or with an offline replica."""

from contextlib import AbstractContextManager
from typing import Any, Final

from metaquorum.dataplane.log.dirs import log_dir
from metaquorum.dataplane.log.local_log import LocalLog
from metaquorum.dataplane.log.segments import files
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication import follower_state
from metaquorum.quorum.controller import worker_registration
from metaquorum.quorum.raft.progress import Progress
from metaquorum.runtime.interfaces import StorageError
from metaquorum.simulations.kernel.mutation import Mutant, swapped
from metaquorum.wire.records.batches import parse_header


def _damage_taken_over() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def batch_crc(records: Any, position: int, size_bytes: int) -> int:
            return parse_header(records, position).crc

        return batch_crc

    return swapped(follower_state, "batch_crc", wrong)


def _older_image_believed() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def has_all_of(worker: Any, last: Any) -> bool:
            return bool(right(worker, last)) or worker.previous_broker_epoch >= 0

        return has_all_of

    return swapped(worker_registration, "_has_all_of", wrong)


def _cut_takes_offline() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def cut(self: Any, offset: int) -> int:
            raise StorageError(f"cannot truncate {self.folder}")

        return cut

    return swapped(LocalLog, "_cut", wrong)


def _failed_read_is_a_bug() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def storage_error(error: OSError, action: str, path: str) -> Exception:
            if action == "read":
                return KeyError(path)
            result: Exception = right(error, action, path)
            return result

        return storage_error

    return swapped(files, "storage_error", wrong)


def _cut_damage_forgotten() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def load_log(*rest: Any, **named: Any) -> Any:
            return right(*rest, **{**named, "notes_damage": False})

        return load_log

    return swapped(log_dir, "load_log", wrong)


def _unclean_for_ever() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def advance(self: Any) -> None:
            state = self.state
            if self.leader_state is not None and 0 <= state.unclean_epoch <= state.leader_epoch:
                self._commit(self.log.log_end_offset)
            right(self)

        return advance

    return swapped(Partition, "advance", wrong)


def _matched_for_ever() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def refused(self: Any, next_index: int, next_round: int) -> None:
            right(self, max(next_index, self.matched_index + 1), next_round)

        return refused

    return swapped(Progress, "refused", wrong)


def _unfinished_folder_kept() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        return property(lambda self: self._folder.is_made)

    return swapped(LocalLog, "has_folder", wrong)


REPLICA_FAULT_MUTANTS: Final = tuple(
    Mutant(name, about, scenario, found_as, apply)
    for name, scenario, about, found_as, apply in (
        (
            "damage-taken-over",
            "damaged-replicas",
            "a follower does not verify the checksums of fetched batches",
            ("L4",),
            _damage_taken_over,
        ),
        (
            "older-image-believed",
            "damaged-replicas",
            "a worker that names the broker epoch of any earlier process counts as having all logs",
            ("R2", "R6", "R8"),
            _older_image_believed,
        ),
        (
            "cut-damage-forgotten",
            "crossings",
            "a start truncates damage and leaves no record of it for the next start",
            ("R2", "R6"),
            _cut_damage_forgotten,
        ),
        (
            "cut-takes-offline",
            "replication",
            "a follower that must truncate its log takes it offline, although the disk is intact",
            ("liveness",),
            _cut_takes_offline,
        ),
        (
            "matched-for-ever",
            "rebuilt-voter",
            "a leader never sends entries again that a voter once had",
            ("liveness",),
            _matched_for_ever,
        ),
        (
            "failed-read-is-a-bug",
            "replication",
            "a read that fails raises KeyError instead of taking the partition offline",
            ("bug",),
            _failed_read_is_a_bug,
        ),
        (
            "unclean-for-ever",
            "replication",
            "after an unclean election leaders of the partition commit records that only they have",
            ("R1", "R2", "R6"),
            _unclean_for_ever,
        ),
        (
            "unfinished-folder-kept",
            "replication",
            "the folder of a log that a full disk left unfinished stays when its topic is deleted",
            ("R10",),
            _unfinished_folder_kept,
        ),
    )
)
