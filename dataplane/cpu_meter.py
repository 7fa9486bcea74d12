"""How much of the loop's time each client takes.

One thread runs one loop, and whatever a node does for a client it does in slices of that loop, from
one wait to the next. A slice of a connection begins with `resume` and ends with `pause`. A request
answered in between is charged (`charge`) with all since the last charge: receiving, parsing,
handling and encoding it. What is left at the end (sending, as a rule) is charged with the next one,
or when the connection ends. Time is that of the thread's CPU: what other processes of the
machine take is on nobody's account. Reads and writes beside the loop are not either.

So 100 percent is all that one loop can do. There is no second one in a process: a quota of 200
percent limits nobody, and half of what a node can do is 50. (In Apache Kafka, the whole is 100
times the number of its network and request threads.)
"""

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Protocol, TypeVar

from dataplane.muting import Name

T = TypeVar("T")

PERCENT: Final = 100.0


class Metered(Protocol):
    """What is kept with a connection's client: up to when it was charged, and as whom."""

    cpu_from_s: float
    cpu_owed_s: float  # used since then, in slices that are over
    asked_as: Name | None  # None: it has not yet asked for anything
    is_follower: bool


class CpuMeter:
    """`used(name, percent_s)` takes what a connection leaves behind; `is_on`: anybody cares."""

    __slots__ = ("_cpu_s", "_used", "is_on")

    def __init__(self, cpu_s: Callable[[], float], used: Callable[[Name, float], object]) -> None:
        self.is_on = False
        self._cpu_s = cpu_s
        self._used = used

    def resume(self, client: Metered) -> None:
        client.cpu_from_s = self._cpu_s()

    def charge(self, client: Metered) -> float:
        """What was used since it was last charged, in seconds of a percent of the loop."""
        now = self._cpu_s()
        used_s = now - client.cpu_from_s + client.cpu_owed_s
        client.cpu_from_s = now
        client.cpu_owed_s = 0.0
        return used_s * PERCENT

    def pause(self, client: Metered) -> None:
        if not client.is_follower:  # other workers have no quota
            client.cpu_owed_s += self._cpu_s() - client.cpu_from_s

    def end(self, client: Metered) -> None:
        """It asks for nothing more."""
        if client.asked_as is not None and client.cpu_owed_s:
            self._used(client.asked_as, client.cpu_owed_s * PERCENT)
            client.cpu_owed_s = 0.0

    @types.coroutine
    def slices(self, client: Metered, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """`work` is done, and metered."""
        value: Any = None
        error: BaseException | None = None
        while True:
            self.resume(client)
            try:
                wait = work.send(value) if error is None else work.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            finally:
                self.pause(client)
            value = error = None
            try:
                value = yield wait
            except BaseException as raised:  # noqa: BLE001  # it is for the work
                error = raised


OFF: Final = CpuMeter(lambda: 0.0, lambda name, percent_s: None)
