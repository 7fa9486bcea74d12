"""Measurement of how a node in this process blocks its event loop: CPU time and objects per slice.

A slice is a step of a task, or a step of a connection, which the loop calls outside of tasks.
Garbage collections are not counted: their time depends on the memory of the whole test process, not
on the request.

CPU time depends on the machine. The number of objects that a slice creates or frees does not, on a
`CountedClock`: work in slices then ends a slice after the same number of rows everywhere. Rows that
are all created or freed in one slice differ from it by their number.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import trio

from metaquorum.runtime import Connection, Listener
from metaquorum.runtime.system import RealClock, RealNetwork

# design limit for one synchronous slice on the loop
MAX_SLICE_S: Final = 0.010
# A slice may exceed the limit because the host counts time of other guests.
TOLERANCE: Final = 3
# Objects that a slice creates or frees on a `CountedClock`, while the largest requests have 50,000
# to 100,000 rows: at most 3,072 rows of up to 13 objects.
MAX_SLICE_OBJECTS: Final = 42_000
# A slice of half the limit ends with its third piece of work.
_LOOK_S: Final = MAX_SLICE_S / 3
# A slice has at least two pieces of work, because the first look at the clock begins it.
_SHORTEST_LOOK_S: Final = MAX_SLICE_S


class _Reading(NamedTuple):
    """CPU time of this thread, and objects of this process; or a difference of two readings."""

    cpu_s: float
    objects: int

    def since(self, other: "_Reading") -> "_Reading":
        return _Reading(self.cpu_s - other.cpu_s, self.objects - other.objects)


def _reading() -> _Reading:
    return _Reading(time.thread_time(), sys.getallocatedblocks())


class CountedClock(RealClock):
    """A clock on which time passes only while one looks at it.

    A slice has three pieces of work; with `shortest` two, which is the least.
    """

    def __init__(self, *, shortest: bool = False) -> None:
        self._looks = 0
        self._look_s = _SHORTEST_LOOK_S if shortest else _LOOK_S

    def cpu_s(self) -> float:  # type: ignore[override]
        self._looks += 1
        return self._looks * self._look_s


class Watch(trio.abc.Instrument):
    """The slices since `start`: the longest, and those that created or freed the most objects.

    As (seconds, owner) and (objects, owner). The limits are `share` of what a slice may take, for
    requests with `share` of the rows of the largest ones.
    """

    def __init__(self, share: float = 1.0) -> None:
        self.max_s = TOLERANCE * MAX_SLICE_S * share
        self.max_objects = MAX_SLICE_OBJECTS * share
        self.longest: list[tuple[float, str]] = []
        self.largest: list[tuple[int, str]] = []
        self._began = self._collection_began = self._collected = _Reading(0.0, 0)
        # After the last slice. The next one begins with as many: a look at all blocks of a process
        # takes longer than most slices, and the loop itself keeps nothing between two of them.
        self._objects = 0
        self._own_task: trio.lowlevel.Task | None = None  # tasks of the test itself

    def start(self) -> None:
        self.longest.clear()
        self.largest.clear()
        self._objects = self._now().objects

    def too_long(self) -> list[str]:
        """Return the slices above a limit, the worst first."""
        slow = [
            f"{1000 * took_s:.1f} ms: {whose}"
            for took_s, whose in self.longest
            if took_s >= self.max_s
        ]
        large = [f"{n} objects: {whose}" for n, whose in self.largest if n >= self.max_objects]
        return slow + large

    def _now(self) -> _Reading:
        return _reading().since(self._collected)

    def _begins(self) -> _Reading:
        return _Reading(time.thread_time() - self._collected.cpu_s, self._objects)

    def _ended(self, began: _Reading, whose: str) -> None:
        now = self._now()
        self._objects = now.objects
        took = now.since(began)
        if took.cpu_s > self.max_s / 12:
            self.longest = sorted([*self.longest, (took.cpu_s, whose)], reverse=True)[:10]
        if abs(took.objects) > self.max_objects / 4:
            self.largest = sorted([*self.largest, (abs(took.objects), whose)], reverse=True)[:10]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = self._begins()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._own_task:
            self._objects = self._now().objects
        else:
            self._ended(self._began, task.name)

    def step(self, step: Callable[[], bool]) -> Callable[[], bool]:
        def watched() -> bool:
            began = self._begins()
            try:
                return step()
            finally:
                self._ended(began, "a step of a connection")

        return watched

    def collects(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = self._now()
        else:
            # All that was read after the start, and before this, was the collection's.
            self._collected = _reading().since(self._collection_began)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._own_task = trio.lowlevel.current_task()
        trio.lowlevel.add_instrument(self)
        gc.callbacks.append(self.collects)
        self.start()  # steps of connections so far began with an unknown number
        try:
            yield
        finally:
            gc.callbacks.remove(self.collects)
            trio.lowlevel.remove_instrument(self)


class _WatchedConnection:
    def __init__(self, connection: Connection, watch: Watch) -> None:
        self._connection = connection
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def pump(self, step: Callable[[], bool]) -> None:
        await self._connection.pump(self._watch.step(step))

    def call_soon(self, step: Callable[[], bool]) -> None:
        self._connection.call_soon(self._watch.step(step))


class _WatchedListener:
    def __init__(self, listener: Listener, watch: Watch) -> None:
        self._listener = listener
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)

    async def accept(self) -> Any:
        return _WatchedConnection(await self._listener.accept(), self._watch)


class WatchedNetwork(RealNetwork):
    """The network of this machine, with measured connection steps."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    async def listen(self, host: str, port: int) -> Any:
        return _WatchedListener(await super().listen(host, port), self._watch)
