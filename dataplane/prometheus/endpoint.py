"""`GET /metrics` over HTTP for Prometheus: h11 parses HTTP, `metaquorum.runtime` does the I/O.

There is no authentication: any host that can connect can read the metrics. The number of
connections and the size and duration of a request are bounded, and one page is collected at a time.
A connection beyond MAX_CONNECTIONS is accepted and another is closed for it: of the host with the
most connections, the one idle longest. So half-open connections cannot shut Prometheus out.
"""

import logging
from collections import Counter
from typing import Final

import h11
import trio

from metaquorum.dataplane.instruments.log_rate_limit import LogRateLimiter
from metaquorum.dataplane.prometheus.collector import Collector
from metaquorum.dataplane.prometheus.exposition import CONTENT_TYPE
from metaquorum.runtime import Clock, Connection, Listener, Runtime, sleep
from metaquorum.runtime.one_line import one_line

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
MAX_HEAD_BYTES: Final = 16 * 1024
RECEIVE_BYTES: Final = 16 * 1024
# From connecting, or from a later request's first byte, to the end of its head. Prometheus gives up
# a scrape after ten seconds by default.
HEAD_S: Final = 10.0
IDLE_S: Final = 120.0  # between two requests of a connection
ANSWER_S: Final = 60.0  # to collect a page and send it
ACCEPT_RETRY_S: Final = 0.1
PATH: Final = "/metrics"

_SERVER: Final = ("server", "metaquorum")
_HINT: Final = b"The metrics are at /metrics.\n"


class _Client:
    """One connection, closed when `scope` is cancelled."""

    __slots__ = ("connection", "host", "is_answered", "scope", "since")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.host = connection.peer[0]
        self.scope = trio.CancelScope()
        self.is_answered = False  # whether a response is being prepared or sent
        self.since = trio.current_time()  # start of that response, or end of the last one

    def turn(self, *, is_answered: bool) -> None:
        self.is_answered = is_answered
        self.since = trio.current_time()


class MetricsEndpoint:
    def __init__(self, runtime: Runtime, listener: Listener, collector: Collector) -> None:
        self._clock: Clock = runtime.clock
        self._listener = listener
        self.collector = collector
        self._collecting = trio.Lock()
        self._clients: dict[_Client, None] = {}
        self._lines = LogRateLimiter(runtime.clock.monotonic())

    async def run(self) -> None:
        """Accept and serve connections until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection = await self._listener.accept()
                except OSError as error:  # no descriptors left, or the client has disconnected
                    self._log("", f"cannot accept a connection for metrics: {error}")
                    await sleep(self._clock, ACCEPT_RETRY_S)
                    continue
                client = _Client(connection)
                self._clients[client] = None
                if len(self._clients) > MAX_CONNECTIONS:
                    self._make_room(client)
                nursery.start_soon(self._serve_one, client)

    def _make_room(self, newcomer: _Client) -> None:
        """Close a connection other than `newcomer`."""
        counts = Counter(client.host for client in self._clients)
        most = max(counts.values())
        closed = min(
            (each for each in self._clients if counts[each.host] == most and each is not newcomer),
            key=lambda each: (each.is_answered, each.since),
        )
        self._log(
            closed.host, f"closing the metrics connection from {closed.host}: too many connections"
        )
        del self._clients[closed]
        closed.scope.cancel()

    def _log(self, host: str, line: str) -> None:
        """Log at DEBUG what the clients of a host have caused, with a limited rate."""
        if log.isEnabledFor(logging.DEBUG):
            more = self._lines.take(host, self._clock.monotonic())
            if more is not None:
                log.debug("%s%s", one_line(line), more)

    async def _serve_one(self, client: _Client) -> None:
        connection = client.connection
        try:
            with client.scope:
                await self._serve(client)
        except (
            OSError,
            h11.RemoteProtocolError,
            trio.TooSlowError,
            trio.ClosedResourceError,
            trio.BrokenResourceError,
        ) as error:
            self._log(client.host, f"closed the connection for metrics from {client.host}: {error}")
        finally:
            self._clients.pop(client, None)
            connection.close()

    async def _serve(self, client: _Client) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        patience_s = HEAD_S
        while True:
            with trio.fail_after(patience_s) as waiting:
                request = await _request(http, client.connection, waiting)
            if request is None:
                return
            client.turn(is_answered=True)
            with trio.fail_after(ANSWER_S):
                await self._answer(http, client.connection, request)
            client.turn(is_answered=False)
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                return
            http.start_next_cycle()
            patience_s = IDLE_S

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


async def _request(
    http: h11.Connection, connection: Connection, waiting: trio.CancelScope
) -> h11.Request | None:
    """Return the next request after its body, which is ignored; None if the client has closed.

    After its first byte the rest must arrive within HEAD_S: the deadline of `waiting` is shortened.
    """
    buffer = bytearray(RECEIVE_BYTES)
    request: h11.Request | None = None
    has_begun = False
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            count = await connection.receive_into(buffer)
            if not has_begun:
                has_begun = True
                waiting.deadline = min(waiting.deadline, trio.current_time() + HEAD_S)
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
