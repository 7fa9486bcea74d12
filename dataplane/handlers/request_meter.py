"""Request counts and times, taken by the dispatcher.

Used only if metrics are enabled. All requests are counted. The time of a request runs from its
decoded header until the response is ready, waits included. Taking it costs as much as a tenth of a
small request: of a busy API, a random sample of the requests is timed, at least some 250 a second.
A timed request also counts for those before it that were not: sums and quantiles are right on
average.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from metaquorum.dataplane.instruments.histogram import Histogram
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.replies import DelayedReply, Handle, PendingReply, Reply
from metaquorum.runtime import Clock

OTHER_VERSION: Final = -1
# Mean seconds between two timed requests of a busy API, and the limit on requests between them.
SAMPLE_S: Final = 0.004
MOST_UNTIMED: Final = 255


class RequestCounter:
    """Count of the requests of one API version, and the histograms of its API.

    Who handles a request takes one from `credit`, which is all that an untimed request costs. If
    there is none, `RequestMeter.timed` gives credit for the request, and times it.
    """

    __slots__ = (
        "_granted_in_all",
        "credit",
        "granted",
        "local",
        "remote",
        "timed_at",
        "times",
    )

    def __init__(self, times: Histogram, local: Histogram, remote: Histogram) -> None:
        self.granted = 0  # requests that the next timed one counts for, besides itself
        self.credit = 0  # the part of `granted` that is still to come
        self._granted_in_all = 0  # timed requests included
        self.timed_at = 0.0
        # Shared by all versions of the API.
        self.times = times
        self.local = local
        self.remote = remote

    @property
    def count(self) -> int:
        return self._granted_in_all - self.credit

    def grant(self, untimed: int) -> None:
        """Let that many requests pass without being timed."""
        self.granted = self.credit = untimed
        self._granted_in_all += untimed

    def take_back_credit(self) -> None:
        """Let the next request be timed."""
        self._granted_in_all -= self.credit
        self.granted -= self.credit
        self.credit = 0

    def count_timed(self) -> None:
        self._granted_in_all += 1


class RequestMeter:
    """Counts and times of served requests; times by API key.

    `local_times` end when the response is ready or begins to wait; `remote_times` are the waits of
    the responses that had to wait.
    """

    def __init__(self, clock: Clock) -> None:
        self.times: dict[int, Histogram] = {}
        self.local_times: dict[int, Histogram] = {}
        self.remote_times: dict[int, Histogram] = {}
        self._counters: dict[tuple[int, int], RequestCounter] = {}
        self._monotonic = clock.monotonic
        self._dice = 1

    def counter(self, api_key: int, version: int) -> RequestCounter:
        """Return the counter of an API version. Unsupported versions share OTHER_VERSION."""
        counter = self._counters.get((api_key, version))
        if counter is None:
            all_times = (self.times, self.local_times, self.remote_times)
            of_api = [times.setdefault(api_key, Histogram()) for times in all_times]
            counter = self._counters[api_key, version] = RequestCounter(*of_api)
        return counter

    def timed(
        self, counter: RequestCounter, handle: Handle, frame: memoryview, client: Client
    ) -> Reply | PendingReply | DelayedReply:
        """Let `handle` take the request, without credit, and time it."""
        began = self._monotonic()
        counter.credit = 1
        counter.count_timed()
        reply = handle(frame, client)
        now = self._monotonic()
        weight = 1 + counter.granted
        self._grant(counter, weight, now)
        counter.local.record(now - began, now, weight)
        if isinstance(reply, PendingReply | DelayedReply):
            reply.on_complete(partial(self.ended, counter, weight, began, now))
            return reply
        counter.times.record(now - began, now, weight)
        return reply

    def _grant(self, counter: RequestCounter, requests: int, now: float) -> None:
        """Choose how many requests after this one are not timed; `requests` came since the last."""
        since_s, counter.timed_at = now - counter.timed_at, now
        untimed = 0
        if 0.0 < since_s < SAMPLE_S * requests:
            most = min(2 * int(requests * SAMPLE_S / since_s), counter.count >> 6, MOST_UNTIMED)
            # A linear congruential generator: cheap, and the same in each run of the simulator.
            self._dice = (self._dice * 1103515245 + 12345) & 0x7FFFFFFF
            untimed = (self._dice >> 12) % (most + 1)
        counter.grant(untimed)

    def time_next(self) -> None:
        """Let the next request of each version be timed.

        Otherwise credit of a busy time might last for minutes in a quiet one.
        """
        for counter in self._counters.values():
            counter.take_back_credit()

    def counts(self) -> Iterator[tuple[int, int, int]]:
        """Yield API key, version and number of requests."""
        for (api_key, version), counter in sorted(self._counters.items()):
            yield api_key, version, counter.count

    def count(self, api_key: int) -> int:
        return sum(count for key, _, count in self.counts() if key == api_key)

    def ended(self, counter: RequestCounter, weight: int, began: float, waited_from: float) -> None:
        """Record the times of a request whose response had to wait."""
        now = self._monotonic()
        counter.times.record(now - began, now, weight)
        counter.remote.record(now - waited_from, now, weight)
