"""Removal of the folders of deleted logs, log.segment.delete.delay.ms after their deletion.

In a directory that is full (`LogDirs.full`), they are removed without that delay.

Each folder is tried by itself: one that cannot be removed stays, is reported once and tried again
with back-off (`FailingItems`), and holds up no other folder.
"""

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

import trio

from metaquorum.dataplane.instruments.failing_items import FailingItems
from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
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
        self._waiting: Final[dict[LogDir, list[tuple[float, list[str]]]]] = {}
        # No folder is removed by two calls at a time. A disk that hangs holds up no other one.
        self._removing: Final = {log_dir: trio.Lock() for log_dir in log_dirs}
        self._failing: FailingItems[_Folder] = FailingItems()

    async def remove_due(self, log_dir: LogDir) -> None:
        """Remove the folders of one directory whose delay, or back-off after a failure, has passed.

        A call waits for the end of an earlier one for the same directory.
        """
        async with self._removing[log_dir]:
            if names := self._take_due(log_dir):
                await self._remove(log_dir, names)

    def _take_due(self, log_dir: LogDir) -> list[str]:
        now = self._clock.monotonic()
        waiting = self._waiting.pop(log_dir, [])
        if log_dir.failure is None:
            log_dir.expire_strays(self._clock.now_ms())
            if deleted := log_dir.take_deleted():
                waiting.append((now + self._delay_ms() / 1000, deleted))
        due: list[str] = []
        left: list[tuple[float, list[str]]] = []
        for at, names in waiting:
            if at <= now or log_dir in self._log_dirs.full:
                due += names
            else:
                left.append((at, names))
        if left:
            self._waiting[log_dir] = left
        return due + [name for one, name in self._failing.due(now) if one is log_dir]

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
