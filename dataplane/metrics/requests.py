"""Requests, counted and timed between the connection and the dispatcher.

Only where somebody asked for metrics: it costs about a microsecond a request. The time of a request
is from when its frame is whole to when its answer is ready; waits are in it.
"""

import struct
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any, Final

from dataplane.connection import Client, Handle, LaterReply, PendingReply, Reply
from dataplane.metrics.histogram import Times
from metaquorum.runtime import Clock
from wire.apis import APIS

OTHER_VERSION: Final = -1

_api_and_version = struct.Struct(">HH").unpack_from
_first_four = struct.Struct(">I").unpack_from


class _Version:
    """One version of one API."""

    __slots__ = ("api_key", "count", "times", "version")

    def __init__(self, api_key: int, version: int, times: Times) -> None:
        self.api_key = api_key
        self.version = version
        self.count = 0
        self.times = times  # of all versions together


class RequestMeter:
    """Of what is served only. `times` are by API key."""

    def __init__(self, clock: Clock) -> None:
        self.times: dict[int, Times] = {}
        self._versions: dict[tuple[int, int], _Version] = {}
        # As above, by the first four bytes of a request.
        self._by_bytes: dict[int, _Version] = {}
        self._monotonic = clock.monotonic

    def metered(self, handle: Handle) -> Handle:
        """Does as `handle` does, and is counted here."""
        known, monotonic = self._by_bytes, self._monotonic

        def metered(frame: memoryview, client: Client) -> Reply | PendingReply | LaterReply:
            began = monotonic()
            reply = handle(frame, client)
            version = known.get(_first_four(frame)[0]) or self._first(frame)
            version.count += 1
            if isinstance(reply, PendingReply):
                return _MeteredReply(reply, self, version.times, began)
            if isinstance(reply, LaterReply):
                reply.when_given(partial(self.ended, version.times, began))
                return reply
            now = monotonic()
            version.times.record(now - began, now)
            return reply

        return metered

    def counts(self) -> Iterator[tuple[int, int, int]]:
        """API key, version, and how often it was answered."""
        for (api_key, version), counted in sorted(self._versions.items()):
            yield api_key, version, counted.count

    def count(self, api_key: int) -> int:
        return sum(count for key, _, count in self.counts() if key == api_key)

    def ended(self, times: Times, began: float) -> None:
        """A request that had to wait has its answer."""
        now = self._monotonic()
        times.record(now - began, now)

    def _first(self, frame: memoryview) -> _Version:
        """It was answered, so the API is served, but ApiVersions answers any version.

        What is no request, as a token of a login may be, is not counted.
        """
        api_key, version = _api_and_version(frame)
        api = APIS.get(api_key)
        if api is None:
            return _Version(api_key, version, Times())
        is_served = api.serves(version)
        if not is_served:
            version = OTHER_VERSION
        counted = self._versions.get((api_key, version))
        if counted is None:
            times = self.times.setdefault(api_key, Times())
            counted = self._versions[api_key, version] = _Version(api_key, version, times)
        if is_served:
            self._by_bytes[_first_four(frame)[0]] = counted
        return counted


class _MeteredReply(PendingReply):
    __slots__ = ("_began", "_meter", "_reply", "_times")

    def __init__(
        self, reply: PendingReply, meter: RequestMeter, times: Times, began: float
    ) -> None:
        self._reply = reply
        self._meter = meter
        self._times = times
        self._began = began

    def __await__(self) -> Generator[Any, Any, Reply]:
        reply = yield from self._reply.__await__()
        self._meter.ended(self._times, self._began)
        return reply

    def close(self) -> None:
        self._reply.close()
