"""Requests, counted and timed between the connection and the dispatcher.

Only where somebody asked for metrics: it costs some half a microsecond a request. The time of a
request is from when its frame is whole to when its answer is ready; waits are in it.
"""

from collections.abc import Generator
from functools import partial
from typing import Any, Final

from dataplane.connection import Client, Handle, LaterReply, PendingReply, Reply
from dataplane.metrics.histogram import Times
from metaquorum.runtime import Clock
from wire.apis import APIS

OTHER_VERSION: Final = -1


class RequestMeter:
    """`counts` are by API key and version, `times` by API key; of what is served only."""

    def __init__(self, clock: Clock) -> None:
        self.counts: dict[tuple[int, int], int] = {}
        self.times: dict[int, Times] = {}
        self._monotonic = clock.monotonic

    def metered(self, handle: Handle) -> Handle:
        """Does as `handle` does, and is counted here."""
        counts, monotonic, record = self.counts, self._monotonic, self._record

        def metered(frame: memoryview, client: Client) -> Reply | PendingReply | LaterReply:
            began = monotonic()
            reply = handle(frame, client)
            key = frame[0] << 8 | frame[1], frame[2] << 8 | frame[3]
            try:
                counts[key] += 1
            except KeyError:
                self._first(key)
            if isinstance(reply, PendingReply):
                return _MeteredReply(reply, self, key[0], began)
            if isinstance(reply, LaterReply):
                reply.when_given(partial(self.ended, key[0], began))
                return reply
            record(key[0], began)
            return reply

        return metered

    def _first(self, key: tuple[int, int]) -> None:
        """It was answered, so the API is served, but ApiVersions answers any version."""
        api_key, version = key
        if not APIS[api_key].serves(version):
            key = api_key, OTHER_VERSION
        self.counts[key] = self.counts.get(key, 0) + 1

    def count(self, api_key: int) -> int:
        return sum(count for key, count in self.counts.items() if key[0] == api_key)

    def _record(self, api_key: int, began: float) -> None:
        now = self._monotonic()
        times = self.times.get(api_key)
        if times is None:
            times = self.times[api_key] = Times()
        times.record(now - began, now)

    def ended(self, api_key: int, began: float) -> None:
        """A request that had to wait has its answer."""
        self._record(api_key, began)


class _MeteredReply(PendingReply):
    __slots__ = ("_api_key", "_began", "_meter", "_reply")

    def __init__(
        self, reply: PendingReply, meter: RequestMeter, api_key: int, began: float
    ) -> None:
        self._reply = reply
        self._meter = meter
        self._api_key = api_key
        self._began = began

    def __await__(self) -> Generator[Any, Any, Reply]:
        reply = yield from self._reply.__await__()
        self._meter.ended(self._api_key, self._began)
        return reply

    def close(self) -> None:
        self._reply.close()
