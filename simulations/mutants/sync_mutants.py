"""Mutants of syncs.

They have an effect only if a file system is synced as a whole, if the loop runs between two
operations of a function in a worker thread, or if a disk fails.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

from metaquorum.dataplane.log import local_log
from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.dataplane.log.local_log import LocalLog
from metaquorum.dataplane.log.recovery import recovery
from metaquorum.dataplane.log.segments import files
from metaquorum.dataplane.log.segments.config import NEVER
from metaquorum.simulations.kernel.mutation import Mutant, swapped


@contextmanager
def _both(*mutations: AbstractContextManager[None]) -> Iterator[None]:
    with ExitStack() as stack:
        for apply in mutations:
            stack.enter_context(apply)
        yield


def _failed_sync_is_a_bug() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def storage_error(error: OSError, action: str, path: str) -> Exception:
            if action == "sync":
                return KeyError(path)
            result: Exception = right(error, action, path)
            return result

        return storage_error

    return _both(swapped(files, "storage_error", wrong), swapped(local_log, "storage_error", wrong))


def _sync_all_not_done() -> AbstractContextManager[None]:
    return swapped(LogDir, "_sync_all", lambda right: lambda self: True)


def _end_noted_by_the_thread() -> AbstractContextManager[None]:
    """Read the log end offset after the sync: wrong if records are appended during the sync."""

    def wrong(right: Any) -> Any:
        async def sync_files(self: Any, disk: Any, logs: Any, unsynced: Any) -> None:
            if unsynced is None:
                await right(self, disk, logs, None)
                return
            await right(self, disk, logs, _Then(self, unsynced))

        return sync_files

    return swapped(LocalLog, "_sync_files", wrong)


class _Then:
    def __init__(self, log: Any, unsynced: Any) -> None:
        self._log = log
        self._unsynced = unsynced

    def sync(self, disk: Any) -> None:
        self._unsynced.sync(disk)
        self._log.recovery_point = max(self._log.recovery_point, self._log.log_end_offset)


def _small_files_not_synced() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def may_be_unsynced(self: Any) -> frozenset[str]:
            return frozenset()

        return may_be_unsynced

    return swapped(recovery._Loader, "_may_be_unsynced", wrong)


def _unsynced_index_believed() -> AbstractContextManager[None]:
    def to_its_end(_: Any) -> Any:
        def first_unclean(self: Any) -> int:
            if self.clean:
                return NEVER
            after = bisect_right(self.bases, self.synced_to)
            return int(self.bases[max(after - 1, 0)])

        return first_unclean

    return _both(
        swapped(recovery._Loader, "_first_unclean", to_its_end),
        swapped(LocalLog, "synced_offset", lambda _: property(lambda self: self.recovery_point)),
    )


FAULT_MUTANTS: Final = tuple(
    Mutant(name, about, scenario, found_as, apply)
    for name, about, scenario, found_as, apply in (
        (
            "failed-sync-is-a-bug",
            "a sync that fails raises KeyError instead of taking the directory offline",
            "failing-disk",
            ("bug",),
            _failed_sync_is_a_bug,
        ),
        (
            "sync-all-not-done",
            "a clean stop does not sync the whole file system",
            "syncs",
            ("R6", "L4", "L5", "liveness"),
            _sync_all_not_done,
        ),
        (
            "end-noted-by-the-thread",
            "a log counts as synced to its end after the folder's sync, not to its end before",
            "syncs",
            ("R6", "L4", "L5"),
            _end_noted_by_the_thread,
        ),
        (
            "small-files-not-synced",
            "topic ids and epochs that a killed process wrote count as durable without a sync",
            "log-dirs",
            ("R6",),
            _small_files_not_synced,
        ),
        (
            "unsynced-index-believed",
            "recovery trusts the indexes of a segment that ends at the recovery point",
            "single-node-power",
            ("L5",),
            _unsynced_index_believed,
        ),
    )
)
