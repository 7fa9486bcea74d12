"""Log directories without room: what was deleted, or may be, is removed without delay.

    the disk has no space for a write         the directory is full (`LogDirs.full`)
    while it is full                          files of deleted segments and folders of deleted logs
                                              wait for no delay; retention runs at once, and again
                                              with back-off while that frees nothing
    a batch of the largest size has room,     it is no longer full
    and a checkpoint can be written

Readers are safe, as with a delay of 0: a file that is being sent stays readable, and other reads
find that its records were deleted.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Final

import trio

from metaquorum.dataplane.instruments.failing_items import FailingItems
from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.runtime import Runtime, StorageError, sleep

log = logging.getLogger(__name__)

# Interval of the attempts to free space while a directory is full.
FULL_LOOK_S: Final = 1.0
MOST_RETENTION_WAIT_S: Final = 60.0

Step = Callable[[LogDir], Awaitable[None]]


class FullDirs:
    """The task that frees space in full log directories."""

    def __init__(
        self,
        runtime: Runtime,
        log_dirs: LogDirs,
        room_bytes: Callable[[], int],
        retain: Step,
        remove: Step,
    ) -> None:
        """Create the task. `room_bytes`: free bytes with which a directory is not full.

        `retain`: let retention delete segments of one directory. `remove`: remove the files of
        deleted segments and logs there. Both raise StorageError.
        """
        self._clock = runtime.clock
        self._disk = runtime.disk
        self._log_dirs = log_dirs
        self._room_bytes = room_bytes
        self._retain = retain
        self._remove = remove
        self._retention: FailingItems[LogDir] = FailingItems(most_retry_s=MOST_RETENTION_WAIT_S)
        # Directories that were full, and since when they are not. One that is soon full again keeps
        # its back-off: a few bytes may be free, too few for a batch.
        self._had_room_at: dict[LogDir, float] = {}
        self._busy: set[LogDir] = set()  # with a task in `_try`

    async def run(self) -> None:
        """Free space whenever a directory is full, until cancelled.

        Each directory has a task of its own: a disk that hangs holds up no other one.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await self._log_dirs.wait_full()
                for log_dir in self._log_dirs.full:
                    if log_dir not in self._busy:
                        self._busy.add(log_dir)
                        nursery.start_soon(self._try, log_dir)
                await sleep(self._clock, FULL_LOOK_S)

    async def _try(self, log_dir: LogDir) -> None:
        try:
            await self._free(log_dir)
        except (StorageError, OSError) as error:
            log.debug("cannot free space in %s: %s", log_dir.path, error)
        finally:
            self._busy.discard(log_dir)

    async def _free(self, log_dir: LogDir) -> None:
        had_room_at = self._had_room_at.pop(log_dir, inf)
        if self._clock.monotonic() - had_room_at > MOST_RETENTION_WAIT_S:
            self._retention.succeeded(log_dir)
        before = await self._free_bytes(log_dir)
        await self._remove(log_dir)
        now = self._clock.monotonic()
        if self._retention.is_due(log_dir, now):
            await self._retain(log_dir)
            await self._remove(log_dir)
        free = await self._free_bytes(log_dir)
        if free > before:
            log.info("%s was full: %d bytes were freed there", log_dir.path, free - before)
            self._retention.succeeded(log_dir)
        elif self._retention.is_due(log_dir, now):
            self._retention.failed(log_dir, "full", now)
        if free >= self._room_bytes():
            await self._log_dirs.checkpoint(log_dir)  # a quota of the user may be used up
            self._log_dirs.has_room(log_dir)
            self._had_room_at[log_dir] = self._clock.monotonic()

    async def _free_bytes(self, log_dir: LogDir) -> int:
        return await self._disk.run(partial(self._disk.free_bytes, log_dir.path))
