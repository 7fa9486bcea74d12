"""Requests that wait for a partition: fetches for records, and producers for their replication.

A `Watcher` is in the partition's sets of those that wait for an offset to move
(`metaquorum.dataplane.partition.partition`); a `CommitWaiter` waits for one high watermark.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

import trio

# Watchers that an append notifies directly, some µs each; more are notified in slices.
NOTIFIED_AT_ONCE: Final = 1000


class Watcher(Protocol):
    """Receiver of a partition's notifications."""

    def note(self, new_bytes: int) -> bool:
        """Handle `new_bytes` more readable bytes; 0 means that the log start offset moved.

        Returns False to stop watching.
        """

    def wake(self) -> None:
        """Handle any other change, such as a new leader or a failed log directory."""


class FetchWaiter:
    """Long poll that is woken when its partitions together have enough new bytes."""

    __slots__ = ("_woken", "missing_bytes")

    def __init__(self, missing_bytes: int, woken: Callable[[], object]) -> None:
        """`woken` may be called more than once."""
        self.missing_bytes = missing_bytes
        self._woken = woken

    def note(self, new_bytes: int) -> bool:
        self.missing_bytes -= new_bytes
        if self.missing_bytes <= 0:
            self._woken()
        return True

    def wake(self) -> None:
        self._woken()

    def end(self) -> None:
        """Drop the callback, so that this object wakes nothing and keeps nothing in memory."""
        self._woken = _no_op


def _no_op() -> None:
    pass


@dataclass(slots=True, eq=False)
class _PendingNotification:
    """Pending notification of a partition's watchers."""

    watchers: set[Watcher]
    notified: tuple[Watcher, ...]  # the watchers at the last event
    new_bytes: int | None


class WatcherNotifier:
    """Notifier in slices, for partitions with more than NOTIFIED_AT_ONCE watchers.

    Events before a notification starts are merged into it. So each set of watchers has at most one
    notification running and one waiting, however fast producers append.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, _PendingNotification] = {}  # by the id of their set
        self._added = trio.Event()

    def add(self, watchers: set[Watcher], new_bytes: int | None) -> None:
        """Notify the current watchers of new bytes, or with None wake them.

        A watcher added after an earlier call may also be notified of that earlier event.
        """
        waiting = self._waiting.get(id(watchers))
        if waiting is None:
            self._waiting[id(watchers)] = _PendingNotification(watchers, tuple(watchers), new_bytes)
        else:
            waiting.notified = tuple(watchers)
            if waiting.new_bytes is None or new_bytes is None:
                waiting.new_bytes = None
            else:
                waiting.new_bytes += new_bytes
        self._added.set()

    async def run(self) -> None:
        while True:
            await self._added.wait()
            while self._waiting:
                notification = self._waiting.pop(next(iter(self._waiting)))
                watchers, new_bytes = notification.watchers, notification.new_bytes
                each = iter(notification.notified)
                while some := list(islice(each, NOTIFIED_AT_ONCE)):
                    for watcher in some:
                        if watcher not in watchers:  # it has stopped watching since
                            continue
                        if new_bytes is None:
                            watcher.wake()
                        elif not watcher.note(new_bytes):
                            watchers.discard(watcher)
                    await trio.lowlevel.checkpoint()
            self._added = trio.Event()


class CommitWaiter:
    """Producer that waits until the high watermark reaches `offset`, or the leadership ends."""

    __slots__ = ("_woken", "is_woken", "offset")

    def __init__(self, offset: int, woken: Callable[[], object]) -> None:
        self.offset = offset
        self.is_woken = False
        self._woken = woken

    def wake(self) -> None:
        self.is_woken = True
        self._woken()
