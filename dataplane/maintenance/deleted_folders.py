"""Removal of the folders of deleted logs, log.segment.delete.delay.ms after their deletion.

In a directory that is full (`LogDirs.full`), they are removed without that delay.

Each folder is tried by itself: one that cannot be removed stays, is reported once and tried again
with back-off (`FailingItems`), and holds up no other folder.
"""

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

import trio

from dataplane.instruments.failing_items import FailingItems
from dataplane.log.dirs.log_dir import LogDir
from dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.runtime import Clock, StorageError

log = logging.getLogger(__name__)

_Folder: TypeAlias = tuple[LogDir, str]


class DeletedFolders:
    """Folders of deleted logs that are still on disk."""

    def __init__(self, clock: Clock, log_dirs: LogDirs, delay_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._log_dirs = log_dirs
        self._delay_ms = delay_ms
        # With the monotonic time of their removal. One entry for each call that found any.
        self._waiting: list[tuple[float, LogDir, list[str]]] = []
        self._removing: Final = trio.Lock()  # no folder is removed by two calls at a time
        self._failing: FailingItems[_Folder] = FailingItems()

    async def remove_due(self) -> None:
        """Remove the folders whose delay, or whose back-off after a failure, has passed."""
        async with self._removing:
            await self._remove_due()

    async def _remove_due(self) -> None:
        now = self._clock.monotonic()
        for log_dir in self._log_dirs.online:
            log_dir.expire_strays(self._clock.now_ms())
            if deleted := log_dir.take_deleted():
                self._waiting.append((now + self._delay_ms() / 1000, log_dir, deleted))
        due: dict[LogDir, list[str]] = {}
        waiting, self._waiting = self._waiting, []
        for row in waiting:
            at, log_dir, names = row
            if at <= now or log_dir in self._log_dirs.full:
                due.setdefault(log_dir, []).extend(names)
            else:
                self._waiting.append(row)
        for log_dir, name in self._failing.due(now):
            due.setdefault(log_dir, []).append(name)
        for log_dir, names in due.items():
            await self._remove(log_dir, names)

    async def _remove(self, log_dir: LogDir, names: list[str]) -> None:
        try:
            failures = await self._log_dirs.remove(log_dir, names)
        except StorageError as error:
            failures = dict.fromkeys(names, error)
        if log_dir.failure is not None:
            failures = {}  # the next start finds the folders
        now = self._clock.monotonic()
        for name in names:
            failure = failures.get(name)
            if failure is None:
                self._failing.succeeded((log_dir, name))
            elif self._failing.failed((log_dir, name), str(failure), now):
                log.error(
                    "cannot remove the folder %s of a deleted log in %s: %s; the removal is tried"
                    " again from time to time",
                    name,
                    log_dir.path,
                    failure,
                )
