"""Requests, counted and timed between the connection and the dispatcher.

Only where somebody asked for metrics: it costs about a microsecond a request. The time of a request
is from when its frame is whole to when its answer is ready; waits are in it.
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

_api_and_version = struct.Struct(">HH").unpack_from
_first_four = struct.Struct(">I").unpack_from


class _Version:
    """One version of one API."""

    __slots__ = ("api_key", "count", "local", "remote", "times", "version")

    def __init__(
        self, api_key: int, version: int, times: Histogram, local: Histogram, remote: Histogram
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.count = 0
        # Of all versions together.
        self.times = times
        self.local = local
        self.remote = remote


class RequestMeter:
    """Of what is served only. Times are by API key.

    `local_times` end when an answer is ready or has to wait; `remote_times` are how long those that
    had to have waited.
    """

    def __init__(self, clock: Clock) -> None:
        self.times: dict[int, Histogram] = {}
        self.local_times: dict[int, Histogram] = {}
        self.remote_times: dict[int, Histogram] = {}
        self._versions: dict[tuple[int, int], _Version] = {}
        # As above, by the first four bytes of a request.
        self._by_bytes: dict[int, _Version] = {}
        self._monotonic = clock.monotonic

    def metered(self, handle: Handle) -> Handle:
        """Does as `handle` does, and is counted here."""
        known, monotonic = self._by_bytes, self._monotonic

        def metered(frame: memoryview, client: Client) -> Reply | PendingReply | DelayedReply:
            began = monotonic()
            reply = handle(frame, client)
            version = known.get(_first_four(frame)[0]) or self._first(frame)
            version.count += 1
            now = monotonic()
            version.local.record(now - began, now)
            if isinstance(reply, PendingReply):
                return _MeteredReply(reply, self, version, began, now)
            if isinstance(reply, DelayedReply):
                reply.on_complete(partial(self.ended, version, began, now))
                return reply
            version.times.record(now - began, now)
            return reply

        return metered

    def counts(self) -> Iterator[tuple[int, int, int]]:
        """API key, version, and how often it was answered."""
        for (api_key, version), counted in sorted(self._versions.items()):
            yield api_key, version, counted.count

    def count(self, api_key: int) -> int:
        return sum(count for key, _, count in self.counts() if key == api_key)

    def ended(self, version: _Version, began: float, waited_from: float) -> None:
        """A request that had to wait has its answer."""
        now = self._monotonic()
        version.times.record(now - began, now)
        version.remote.record(now - waited_from, now)

    def _first(self, frame: memoryview) -> _Version:
        """It was answered, so the API is served, but ApiVersions answers any version.

        What is no request, as a token of a login may be, is not counted.
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
    __slots__ = ("_began", "_meter", "_reply", "_version", "_waited_from")

    def __init__(
        self,
        reply: PendingReply,
        meter: RequestMeter,
        version: _Version,
        began: float,
        waited_from: float,
    ) -> None:
        self._reply = reply
        self._meter = meter
        self._version = version
        self._waited_from = waited_from
        self._began = began

    def __await__(self) -> Generator[Any, Any, Reply | DelayedReply]:
        reply = yield from self._reply.__await__()
        if isinstance(reply, DelayedReply):
            reply.on_complete(
                partial(self._meter.ended, self._version, self._began, self._waited_from)
            )
            return reply
        self._meter.ended(self._version, self._began, self._waited_from)
        return reply

    def close(self) -> None:
        self._reply.close()
