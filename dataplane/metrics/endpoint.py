"""`GET /metrics` over HTTP, for Prometheus: h11 knows the protocol, the seams the network.

There is no login: whoever can connect can read. Bounded are the connections, what a request may be
long, how long one may take, and the pages: one at a time is made.
"""

import logging
from typing import Final

import h11
import trio

from dataplane.metrics.collecting import Collector
from dataplane.metrics.exposition import CONTENT_TYPE
from metaquorum.runtime import Clock, Connection, Listener, Runtime, sleep

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
MAX_HEAD_BYTES: Final = 16 * 1024
RECEIVE_BYTES: Final = 16 * 1024
IDLE_S: Final = 120.0  # between two requests of a connection
ANSWER_S: Final = 60.0  # to make a page, and for the other side to take it
ACCEPT_RETRY_S: Final = 0.1
PATH: Final = "/metrics"

_SERVER: Final = ("server", "metaquorum")
_HINT: Final = b"There is /metrics here.\n"


class MetricsEndpoint:
    def __init__(self, runtime: Runtime, listener: Listener, collector: Collector) -> None:
        self._clock: Clock = runtime.clock
        self._listener = listener
        self.collector = collector
        self._collecting = trio.Lock()
        self._connections = 0

    async def run(self) -> None:
        """For ever."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection = await self._listener.accept()
                except OSError as error:  # out of descriptors, or one that has ended already
                    log.debug("cannot accept a connection for metrics: %s", error)
                    await sleep(self._clock, ACCEPT_RETRY_S)
                    continue
                if self._connections >= MAX_CONNECTIONS:
                    connection.close()
                    continue
                self._connections += 1
                nursery.start_soon(self._serve_one, connection)

    async def _serve_one(self, connection: Connection) -> None:
        try:
            await self._serve(connection)
        except (
            OSError,
            h11.RemoteProtocolError,
            trio.TooSlowError,
            trio.ClosedResourceError,
            trio.BrokenResourceError,
        ) as error:
            log.debug("closed the connection for metrics from %s: %s", connection.peer[0], error)
        finally:
            self._connections -= 1
            connection.close()

    async def _serve(self, connection: Connection) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        while True:
            with trio.fail_after(IDLE_S):
                request = await _request(http, connection)
            if request is None:
                return
            with trio.fail_after(ANSWER_S):
                await self._answer(http, connection, request)
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                return
            http.start_next_cycle()

    async def _answer(
        self, http: h11.Connection, connection: Connection, request: h11.Request
    ) -> None:
        path = request.target.decode("ascii", "replace").partition("?")[0]
        is_head = request.method == b"HEAD"
        if request.method not in (b"GET", b"HEAD"):
            await _send(http, connection, 405, [_HINT], [("allow", "GET, HEAD")])
        elif path != PATH:
            await _send(http, connection, 404, [_HINT], is_head=is_head)
        else:
            async with self._collecting:
                pieces = []
                for piece in (await self.collector.collect()).texts():
                    pieces.append(piece)
                    await trio.lowlevel.checkpoint()
            await _send(http, connection, 200, pieces, is_head=is_head)


async def _request(http: h11.Connection, connection: Connection) -> h11.Request | None:
    """The next request, whose body (which means nothing) has come; None: there will be none."""
    buffer = bytearray(RECEIVE_BYTES)
    request: h11.Request | None = None
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            count = await connection.receive_into(buffer)
            http.receive_data(bytes(buffer[:count]))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            return None


async def _send(
    http: h11.Connection,
    connection: Connection,
    status: int,
    pieces: list[bytes],
    headers: list[tuple[str, str]] | None = None,
    *,
    is_head: bool = False,
) -> None:
    own = [
        _SERVER,
        ("content-type", CONTENT_TYPE),
        ("content-length", str(sum(map(len, pieces)))),
        *(headers or ()),
    ]
    await connection.send(http.send(h11.Response(status_code=status, headers=own)) or b"")
    for piece in () if is_head else pieces:
        await connection.send(http.send(h11.Data(data=piece)) or b"")
    await connection.send(http.send(h11.EndOfMessage()) or b"")
