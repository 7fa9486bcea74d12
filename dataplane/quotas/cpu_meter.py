"""How much of the loop's time each client takes.

One thread runs one loop, and whatever a node does for a client it does in slices of that loop, from
one wait to the next. A slice of a connection begins with `resume` and ends with `pause`. A request
answered in between is charged (`charge`) with all since the last charge: receiving, parsing,
handling and encoding it. What is left at the end (sending, as a rule) is charged with the next one,
or when the connection ends. Time is that of the thread's CPU: what other processes of the
machine take is on nobody's account. Reads and writes beside the loop are not either; the validation
of a batch in a worker thread is (`add`).

Asking for a thread's time takes 0.2 microseconds, a small request twenty. A client that asks often
is not metered while it has `credit` (`dataplane.quotas.client_quota_manager`): the next slice that
is metered stands for those before it that were not. How many these are is drawn, so that nobody can
send what takes long just then, and what a client is charged with is right on the average.

So 100 percent is all that one loop can do. There is no second one in a process: a quota of 200
percent limits nobody, and half of what a node can do is 50. (In Apache Kafka, the whole is 100
times the number of its network and request threads.)
"""

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from dataplane.quotas.client_state import QuotaClient

T = TypeVar("T")

PERCENT: Final = 100.0


class CpuMeter:
    """`is_on`: anybody cares. `end(client)` is to be called when it asks for nothing more."""

    __slots__ = ("_cpu_s", "end", "is_on")

    def __init__(self, cpu_s: Callable[[], float], end: Callable[[QuotaClient], object]) -> None:
        self.is_on = False
        self._cpu_s = cpu_s
        self.end = end

    def resume(self, client: QuotaClient) -> bool:
        """Whether this slice is metered, and `pause` is to end it."""
        if client.quota.credit:
            client.quota.unmetered += 1
            client.quota.cpu_weight = 0
            return False
        client.quota.cpu_weight = 1 + client.quota.unmetered
        client.quota.unmetered = 0
        client.quota.cpu_from_s = self._cpu_s()
        return True

    def charge(self, client: QuotaClient) -> float:
        """What was used since it was last charged, in seconds of a percent of the loop."""
        used_s = client.quota.cpu_owed_s
        client.quota.cpu_owed_s = 0.0
        if client.quota.cpu_weight:
            now = self._cpu_s()
            used_s += (now - client.quota.cpu_from_s) * client.quota.cpu_weight
            client.quota.cpu_from_s = now
        return used_s * PERCENT

    def pause(self, client: QuotaClient) -> None:
        if not client.is_follower:  # other workers have no quota
            client.quota.cpu_owed_s += (
                self._cpu_s() - client.quota.cpu_from_s
            ) * client.quota.cpu_weight

    def add(self, client: QuotaClient, used_s: float) -> None:
        """A worker thread has used so much for the client: charged with its next request."""
        if self.is_on and not client.is_follower:
            client.quota.cpu_owed_s += used_s

    @types.coroutine
    def slices(self, client: QuotaClient, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """`work` is done, and metered."""
        value: Any = None
        error: BaseException | None = None
        while True:
            is_metered = self.resume(client)
            try:
                wait = work.send(value) if error is None else work.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            finally:
                if is_metered:
                    self.pause(client)
            value = error = None
            try:
                value = yield wait
            except BaseException as raised:  # noqa: BLE001  # it is for the work
                error = raised


OFF: Final = CpuMeter(lambda: 0.0, lambda client: None)
