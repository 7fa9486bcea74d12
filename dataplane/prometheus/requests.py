"""Request counts and times, measured between the connection and the dispatcher.

Used only if metrics are enabled. All requests are counted. The time of a request runs from the
complete frame until the response is ready, waits included. Taking it costs as much as a tenth of a
small request: of a busy API, a random sample of the requests is timed, at least some 250 a second.
A timed request also counts for those before it that were not: sums and quantiles are right on
average.
"""

import struct
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any, Final

from dataplane.instruments.histogram import Histogram
from dataplane.network.client import Client
from dataplane.network.replies import DelayedReply, Handle, PendingReply, Reply
from metaquorum.runtime import Clock
from wire.protocol.apis import APIS

OTHER_VERSION: Final = -1
# Mean seconds between two timed requests of a busy API, and the limit on requests between them.
SAMPLE_S: Final = 0.004
MOST_UNTIMED: Final = 31

_api_and_version = struct.Struct(">HH").unpack_from
_first_four = struct.Struct(">I").unpack_from


class _Version:
    """Count of one API version, and the histograms of its API."""

    __slots__ = (
        "api_key",
        "count",
        "credit",
        "granted",
        "local",
        "remote",
        "timed_at",
        "times",
        "version",
    )

    def __init__(
        self, api_key: int, version: int, times: Histogram, local: Histogram, remote: Histogram
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.count = 0
        self.granted = 0  # requests that the next timed one counts for, besides itself
        self.credit = 0  # the part of `granted` that is still to come
        self.timed_at = 0.0
        # Shared by all versions of the API.
        self.times = times
        self.local = local
        self.remote = remote


class RequestMeter:
    """Counts and times of served requests; times by API key.

    `local_times` end when the response is ready or begins to wait; `remote_times` are the waits of
    the responses that had to wait.
    """

    def __init__(self, clock: Clock) -> None:
        self.times: dict[int, Histogram] = {}
        self.local_times: dict[int, Histogram] = {}
        self.remote_times: dict[int, Histogram] = {}
        self._versions: dict[tuple[int, int], _Version] = {}
        # The same, by the first four bytes of a request.
        self._by_bytes: dict[int, _Version] = {}
        self._monotonic = clock.monotonic
        self._dice = 1

    def metered(self, handle: Handle) -> Handle:
        """Return `handle` wrapped so that requests are counted and timed."""
        known, monotonic = self._by_bytes, self._monotonic

        def metered(frame: memoryview, client: Client) -> Reply | PendingReply | DelayedReply:
            version = known.get(_first_four(frame)[0])
            if version is not None and version.credit:
                reply = handle(frame, client)
                version.credit -= 1
                version.count += 1
                return reply
            began = monotonic()
            reply = handle(frame, client)
            if version is None:
                version = self._first(frame)
            version.count += 1
            now = monotonic()
            weight = 1 + version.granted
            self._grant(version, weight, now)
            version.local.record(now - began, now, weight)
            if isinstance(reply, PendingReply):
                return _MeteredReply(reply, self, version, weight, began, now)
            if isinstance(reply, DelayedReply):
                reply.on_complete(partial(self.ended, version, weight, began, now))
                return reply
            version.times.record(now - began, now, weight)
            return reply

        return metered

    def _grant(self, version: _Version, requests: int, now: float) -> None:
        """Choose how many requests after this one are not timed; `requests` came since the last."""
        since_s, version.timed_at = now - version.timed_at, now
        version.granted = version.credit = 0
        if 0.0 < since_s < SAMPLE_S * requests:
            most = min(2 * int(requests * SAMPLE_S / since_s), version.count >> 6, MOST_UNTIMED)
            # A linear congruential generator: cheap, and the same in each run of the simulator.
            self._dice = (self._dice * 1103515245 + 12345) & 0x7FFFFFFF
            version.granted = version.credit = (self._dice >> 12) % (most + 1)

    def counts(self) -> Iterator[tuple[int, int, int]]:
        """Yield API key, version and number of responses."""
        for (api_key, version), counted in sorted(self._versions.items()):
            yield api_key, version, counted.count

    def count(self, api_key: int) -> int:
        return sum(count for key, _, count in self.counts() if key == api_key)

    def ended(self, version: _Version, weight: int, began: float, waited_from: float) -> None:
        """Record the times of a request whose response had to wait."""
        now = self._monotonic()
        version.times.record(now - began, now, weight)
        version.remote.record(now - waited_from, now, weight)

    def _first(self, frame: memoryview) -> _Version:
        """Return the counter for the version of `frame`.

        ApiVersions is answered in any version; unsupported versions share OTHER_VERSION. A frame
        that is not a request, such as a raw SASL token, gets a counter that no metric reads.
        """
        api_key, version = _api_and_version(frame)
        api = APIS.get(api_key)
        if api is None:
            return _Version(api_key, version, Histogram(), Histogram(), Histogram())
        is_served = api.serves(version)
        if not is_served:
            version = OTHER_VERSION
        counted = self._versions.get((api_key, version))
        if counted is None:
            all_times = (self.times, self.local_times, self.remote_times)
            of_api = [times.setdefault(api_key, Histogram()) for times in all_times]
            counted = self._versions[api_key, version] = _Version(api_key, version, *of_api)
        if is_served:
            self._by_bytes[_first_four(frame)[0]] = counted
        return counted


class _MeteredReply(PendingReply):
    __slots__ = ("_began", "_meter", "_reply", "_version", "_waited_from", "_weight")

    def __init__(
        self,
        reply: PendingReply,
        meter: RequestMeter,
        version: _Version,
        weight: int,
        began: float,
        waited_from: float,
    ) -> None:
        self._reply = reply
        self._weight = weight
        self._meter = meter
        self._version = version
        self._waited_from = waited_from
        self._began = began

    def __await__(self) -> Generator[Any, Any, Reply | DelayedReply]:
        reply = yield from self._reply.__await__()
        if isinstance(reply, DelayedReply):
            reply.on_complete(
                partial(
                    self._meter.ended, self._version, self._weight, self._began, self._waited_from
                )
            )
            return reply
        self._meter.ended(self._version, self._weight, self._began, self._waited_from)
        return reply

    def close(self) -> None:
        self._reply.close()
