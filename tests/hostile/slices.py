"""Measurement of the time that a node in this process blocks its event loop: CPU time per slice.

A slice is a step of a task, or a step of a connection, which the loop calls outside of tasks.
Garbage collections are not counted: their time depends on the memory of the whole test process, not
on the request.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

from metaquorum.runtime import Connection, Listener
from metaquorum.runtime.system import RealNetwork

# design limit for one synchronous slice on the loop
MAX_SLICE_S: Final = 0.010


class Watch(trio.abc.Instrument):
    """The longest slices since `start`, as (seconds, owner)."""

    def __init__(self) -> None:
        self.longest: list[tuple[float, str]] = []
        self._began = 0.0
        self._collecting_s = 0.0
        self._collection_began = 0.0
        self._own_task: trio.lowlevel.Task | None = None  # tasks of the test itself

    def start(self) -> None:
        self.longest.clear()

    def _now(self) -> float:
        return time.thread_time() - self._collecting_s

    def _ended(self, began: float, whose: str) -> None:
        took = self._now() - began
        if took > MAX_SLICE_S / 4:
            self.longest = sorted([*self.longest, (took, whose)], reverse=True)[:10]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = self._now()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._own_task:
            self._ended(self._began, task.name)

    def step(self, step: Callable[[], bool]) -> Callable[[], bool]:
        def watched() -> bool:
            began = self._now()
            try:
                return step()
            finally:
                self._ended(began, "a step of a connection")

        return watched

    def collects(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            self._collecting_s += time.thread_time() - self._collection_began

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._own_task = trio.lowlevel.current_task()
        trio.lowlevel.add_instrument(self)
        gc.callbacks.append(self.collects)
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
