"""The event loop time that each client takes (`request_percentage`).

One thread runs one event loop, and a node works for a client in slices of that loop, from one wait
to the next. A slice of a connection begins with `resume` and ends with `pause`. A request answered
in between is charged (`charge`) with the CPU time since the last charge: receiving, parsing,
handling and encoding. The rest of a slice (usually sending) is charged with the next request, or
when the connection ends. CPU time is that of the thread: time taken by other processes is charged
to no client. File reads and writes in worker threads are not charged; the validation of a batch in
a worker thread is (`add`).

Reading the CPU time of a thread takes 0.2 microseconds, a small request twenty. A busy client is
not metered while it has `credit` (`metaquorum.dataplane.quotas.client_quota_manager`): the next
metered slice also counts for the unmetered slices before it. The credit is random, so that a client
cannot place expensive requests into unmetered slices, and the charge is right on average.

100 percent is all the time of the one event loop of a process: a quota of 200 percent limits no
client, and 50 percent is half of a node. (In Apache Kafka, the whole is 100
times the number of network and request threads.)
"""

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from metaquorum.dataplane.quotas.client_state import QuotaClient

T = TypeVar("T")

PERCENT: Final = 100.0


class CpuMeter:
    """The meter of event loop time.

    `is_on`: whether any quota needs it. Call `end(client)` when the client's connection ends.
    """

    __slots__ = ("_cpu_s", "end", "is_on")

    def __init__(self, cpu_s: Callable[[], float], end: Callable[[QuotaClient], object]) -> None:
        self.is_on = False
        self._cpu_s = cpu_s
        self.end = end

    def resume(self, client: QuotaClient) -> bool:
        """Begin a slice. Return whether it is metered and `pause` must end it."""
        if client.quota.credit:
            client.quota.unmetered += 1
            client.quota.cpu_weight = 0
            return False
        client.quota.cpu_weight = 1 + client.quota.unmetered
        client.quota.unmetered = 0
        client.quota.cpu_from_s = self._cpu_s()
        return True

    def charge(self, client: QuotaClient) -> float:
        """Return the use since the last charge, in percent times seconds of the event loop."""
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
        """Add CPU seconds of a worker thread, to be charged with the client's next request."""
        if self.is_on and not client.is_follower:
            client.quota.cpu_owed_s += used_s

    @types.coroutine
    def slices(self, client: QuotaClient, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run `work` to its end, metered. Return its value."""
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
            except BaseException as raised:  # noqa: BLE001  # rethrown into the work
                error = raised


OFF: Final = CpuMeter(lambda: 0.0, lambda client: None)
