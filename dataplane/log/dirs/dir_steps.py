"""Steps in one log directory for which callers wait only a while: its disk may hang.

A call to a disk that hangs does not return and cannot be cancelled. Work for all directories, such
as the deletion of a topic, therefore does its steps here:

    the step ends in time          the caller gets its result, or its error
    PATIENCE_S pass before that    the directory is unresponsive, which is logged once; the caller
                                   gets UnresponsiveError, the step continues
    a step in an unresponsive one  UnresponsiveError at once, without the step; one that must be
                                   done `in_any_case` begins all the same, as a late one
    all late steps have ended      the directory is responsive again

A lone directory has no such steps: nothing could continue without it.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import trio

from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.runtime.interfaces import StorageError

logger = logging.getLogger(__name__)

# More than a disk takes that is merely busy, less than clients and controllers wait.
PATIENCE_S: Final = 3.0

T = TypeVar("T")


class UnresponsiveError(StorageError):
    """Raised if a directory has not ended a step in time: nothing is known to have failed."""


class _Step:
    """One step: its result or error once `ended` is set."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.is_late = False
        self.result: Any = None
        self.error: StorageError | OSError | None = None


class DirSteps:
    """The steps of all directories of one worker; `run` does them in tasks of their own."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._late: dict[LogDir, int] = {}  # number of late steps in progress

    async def run(self) -> None:
        """Do steps until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def is_unresponsive(self, log_dir: LogDir) -> bool:
        return log_dir in self._late

    async def do(
        self,
        log_dir: LogDir,
        step: Callable[[], Awaitable[T]],
        moved_at: Callable[[], float] | None = None,
        *,
        in_any_case: bool = False,
    ) -> T:
        """Return the result of `step()`, or raise its StorageError, OSError or UnresponsiveError.

        `moved_at`: for a long step, when it made progress last, in trio's seconds; inf while it
        does not wait for the disk. `in_any_case`: the step is done after UnresponsiveError, too.
        Without `run`, wait for the step however long it takes.
        """
        if self._nursery is None:
            return await step()
        is_unresponsive = log_dir in self._late
        if is_unresponsive and not in_any_case:
            raise _unresponsive(log_dir)
        doing = _Step()
        self._nursery.start_soon(self._do, log_dir, step, doing)
        if is_unresponsive:
            self._note_late(log_dir, doing)
            raise _unresponsive(log_dir)
        began = trio.current_time()
        while not doing.ended.is_set():
            left_s = (began if moved_at is None else moved_at()) + PATIENCE_S - trio.current_time()
            if left_s <= 0:
                break
            with trio.move_on_after(min(left_s, PATIENCE_S)):
                await doing.ended.wait()
        if not doing.ended.is_set():
            self._note_late(log_dir, doing)
            raise _unresponsive(log_dir)
        if doing.error is not None:
            raise doing.error
        result: T = doing.result
        return result

    async def _do(self, log_dir: LogDir, step: Callable[[], Awaitable[T]], doing: _Step) -> None:
        began = trio.current_time()
        try:
            doing.result = await step()
        except (StorageError, OSError) as error:
            doing.error = error
        finally:
            doing.ended.set()
            if doing.is_late:
                self._note_end(log_dir, doing, trio.current_time() - began)

    def _note_late(self, log_dir: LogDir, doing: _Step) -> None:
        doing.is_late = True
        if log_dir not in self._late:
            logger.error(
                "log directory %s has not responded for %.0f s: its disk may hang; the other"
                " directories are used without it meanwhile",
                log_dir.path,
                PATIENCE_S,
            )
        self._late[log_dir] = self._late.get(log_dir, 0) + 1

    def _note_end(self, log_dir: LogDir, doing: _Step, seconds: float) -> None:
        self._late[log_dir] -= 1
        if not self._late[log_dir]:
            del self._late[log_dir]
            logger.warning("log directory %s responds again, after %.0f s", log_dir.path, seconds)
        if doing.error is not None:  # the caller has not waited for it
            logger.warning(
                "a late step in log directory %s has failed: %s", log_dir.path, doing.error
            )


def _unresponsive(log_dir: LogDir) -> UnresponsiveError:
    return UnresponsiveError(
        f"log directory {log_dir.path} does not respond: check whether its disk hangs", log_dir.path
    )
