"""Long polls: responses that wait for records without a task."""

from collections.abc import Callable
from typing import Final, TypeAlias

from metaquorum.dataplane.fetch.long_polls import LongPolls
from metaquorum.dataplane.fetch.parked_polls import ParkedRequests
from metaquorum.dataplane.fetch.reader import FetchReader
from metaquorum.dataplane.network.delayed import DelayedResponse
from metaquorum.dataplane.partition.waiting import FetchWaiter
from metaquorum.dataplane.scheduling.time_slices import Steps
from metaquorum.wire.messages.fetch import FetchRequest, FetchResponse

# Longest long poll; a client with a longer max_wait_ms gets an empty response after it.
MAX_WAIT_MS: Final = 5 * 60 * 1000

Answer: TypeAlias = FetchResponse | DelayedResponse


class DelayedFetch(DelayedResponse):
    """Long poll: ready when enough bytes are available, at its timeout, or at another event."""

    __slots__ = (
        "_answer",
        "_dropped",
        "_parked",
        "_polls",
        "_timer",
        "_unwatch",
        "_wait_s",
        "waiter",
    )

    def __init__(
        self,
        polls: LongPolls,
        message: FetchRequest,
        missing_bytes: int,
        answer: Callable[[], FetchResponse | Steps[FetchResponse]],
        unwatch: Callable[["DelayedFetch"], None],
        dropped: Callable[[], None] | None = None,
    ) -> None:
        """Start the long poll; the caller adds `waiter` to partitions or a session.

        `unwatch` removes `waiter` again. `dropped` is called if the response is not needed.
        """
        super().__init__()
        self.waiter = FetchWaiter(missing_bytes, self.ready)
        self._answer = answer
        self._unwatch = unwatch
        self._dropped = dropped
        self._parked: ParkedRequests | None = None
        self._polls = polls
        self._wait_s = min(message.max_wait_ms, MAX_WAIT_MS) / 1000
        self._timer = polls.hold(self.waiter, self._wait_s, self.ready)

    def wait_for_quota(self, reader: FetchReader) -> None:
        """End the wait once a partition may be read that the replication quota has omitted."""
        throttled = reader.throttled
        if throttled is None or not throttled.omitted or throttled.wait_s >= self._wait_s:
            return
        self._timer.cancel()
        self._timer = self._polls.hold(self.waiter, throttled.wait_s, self.ready)

    def park(self, parked: ParkedRequests, row_count: int) -> "DelayedFetch":
        """Count the waiting request and its rows in `parked`."""
        self._parked = parked
        parked.add(self, row_count)
        return self

    def complete(self) -> FetchResponse | Steps[FetchResponse]:
        self.end()
        return self._answer()

    def cancel(self) -> None:
        self.end()
        if self._dropped is not None:
            self._dropped()

    def end(self) -> None:
        """End the wait: stop the timer and the watch."""
        self._timer.cancel()
        if self._parked is not None:
            self._parked.remove(self)
        self._polls.release(self.waiter)
        self._unwatch(self)
        self.waiter.end()  # breaks a reference cycle
