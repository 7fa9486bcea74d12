"""The server, which accepts connections within the limits, serves them and closes idle ones."""

import errno
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Final

import trio

from metaquorum.dataplane.instruments.log_rate_limit import LogRateLimiter
from metaquorum.dataplane.network.connection import ClientConnection, ListenerContext
from metaquorum.dataplane.network.connection_limits import (
    MAX_PROVISIONAL,
    PROVISIONAL_S,
    ConnectionLimiter,
    ConnectionLimits,
    LimitedConnection,
    PeerListener,
    ProvisionalConnection,
)
from metaquorum.dataplane.network.unread_responses import UnreadResponses
from metaquorum.dataplane.quotas.connection_rates import ConnectionRates
from metaquorum.dataplane.quotas.cpu_meter import OFF, CpuMeter
from metaquorum.dataplane.scheduling.request_memory import RequestMemory, StalledRequests
from metaquorum.dataplane.scheduling.time_slices import TimeSlicer
from metaquorum.runtime import Clock, Connection, Disk, Listener, Runtime, sleep
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.protocol.frames import BufferPool

log = logging.getLogger(__name__)

# Wait before the next accept when file descriptors or memory are exhausted.
ACCEPT_RETRY_SECONDS: Final = 0.1
# The listening socket is closed. Other errors of accept(2) concern one connection or are temporary.
_NO_LISTENER: Final = frozenset((errno.EBADF, errno.EINVAL, errno.ENOTSOCK))
# Least seconds between two log lines about refused, or about evicted connections.
REFUSAL_LOG_SECONDS: Final = 10.0
# Refused connections whose close is delayed; further ones are closed immediately.
MAX_CLOSING_LATER: Final = 1000
IDLE_SWEEPS: Final = 10  # sweeps in connections.max.idle.ms
LEAST_SWEEP_SECONDS: Final = 0.05
CLOSED_AT_ONCE: Final = 50  # idle connections, before other tasks run
TARDY_SWEEP_SECONDS: Final = 0.5


@frozen
class ServerLimits:
    """Limits of one server; see `ConnectionLimits` for those on connections."""

    max_request_bytes: int
    max_queued_request_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_idle_ms: int  # negative: idle connections are not closed
    max_connections_by_listener: Mapping[str, int] = field(default_factory=dict)
    max_connections_by_ip: Mapping[str, int] = field(default_factory=dict)
    drain_seconds: float = 5.0
    max_descriptors: int | None = None  # descriptors for connections; None: no limit

    @property
    def places(self) -> ConnectionLimits:
        return ConnectionLimits(
            self.max_connections,
            self.max_connections_per_ip,
            self.max_connections_by_listener,
            self.max_connections_by_ip,
            self.max_descriptors,
        )


class Server:
    """The server of all listeners; each connection is served in its own task."""

    def __init__(
        self,
        runtime: Runtime,
        listener_contexts: Sequence[tuple[Listener, ListenerContext]],
        limits: ServerLimits,
        meter: CpuMeter = OFF,
        rates: ConnectionRates | None = None,
        peers: PeerListener | None = None,
        slicer: TimeSlicer | None = None,
    ) -> None:
        """Create the server. `slicer`: the time slicer that it shares with handlers, if any."""
        self._clock: Clock = runtime.clock
        self._slicer = TimeSlicer(runtime.clock.cpu_s) if slicer is None else slicer
        self._disk: Disk = runtime.disk
        self._listener_contexts = listener_contexts
        self._limits = limits
        self._meter = meter
        self._rates = rates
        self._closing_later = 0
        self._lines = LogRateLimiter(trio.current_time())
        self._memory = RequestMemory(limits.max_queued_request_bytes)
        self._buffers = BufferPool()
        self.unread = UnreadResponses()
        self._connections: dict[ClientConnection, int] = {}  # oldest first
        self._limiter = ConnectionLimiter(limits.places, peers)
        self._provisional: dict[ClientConnection, ProvisionalConnection] = {}  # oldest first
        self.logins = {
            listener_context.listener: listener_context.logins
            for _, listener_context in listener_contexts
        }
        self.accepted_counts = {
            listener_context.listener: 0 for _, listener_context in listener_contexts
        }
        self._all_closed = trio.Event()
        self._accepting = trio.CancelScope()
        self._refusal_logged_at = self._ending_logged_at = float("-inf")

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def connections_by_listener(self) -> Counter[str]:
        return Counter(each.client.listener for each in self._connections)

    def limit(self, limits: ServerLimits) -> None:
        """Replace the limits for new connections; open connections are not closed."""
        self._limits = limits
        self._limiter.limits = limits.places

    async def serve(self) -> None:
        """Serve until `drain` was called and the last connection has ended."""
        async with trio.open_nursery() as nursery:
            if self._limits.max_idle_ms >= 0:
                nursery.start_soon(self._close_idle)
            nursery.start_soon(self._close_stalled)
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    for listener, listener_context in self._listener_contexts:
                        accepting.start_soon(self._accept_all, listener, listener_context, nursery)
            if self._connections:
                await self._all_closed.wait()
            nursery.cancel_scope.cancel()

    async def drain(self) -> None:
        """Stop accepting, and close each connection after its pending responses are sent.

        Connections still open after `drain_seconds` are aborted.
        """
        self._accepting.cancel()
        for listener, _ in self._listener_contexts:
            listener.close()
        for connection in list(self._connections):
            connection.drain()
        with trio.move_on_after(self._limits.drain_seconds):
            if self._connections:
                await self._all_closed.wait()
        for connection in list(self._connections):
            connection.abort()

    def _is_stopping(self) -> bool:
        return self._accepting.cancel_called

    async def _accept_all(
        self, listener: Listener, listener_context: ListenerContext, nursery: trio.Nursery
    ) -> None:
        while not self._is_stopping():
            try:
                connection = await listener.accept()
            except (OSError, trio.ClosedResourceError) as error:
                if self._is_stopping():  # closed while accept was returning
                    return
                if not isinstance(error, OSError) or error.errno in _NO_LISTENER:
                    raise
                name = listener_context.listener
                self._log_refusal(
                    f"cannot accept connections on listener {name}: {error.strerror}; retrying"
                )
                await sleep(self._clock, ACCEPT_RETRY_SECONDS)
                continue
            if (lack := self._exceeded_limit(connection, listener_context)) is not None:
                refusal = f"refused a connection from {connection.peer[0]}: {lack}"
                peers = self._limiter.peer_listener(listener_context.listener)
                if peers is None or self._is_stopping():
                    self._log_refusal(refusal)
                    connection.close()
                else:
                    served, provisional = self._admit_provisionally(connection, listener_context)
                    nursery.start_soon(self._try, served, provisional, refusal)
                continue
            if self._rates is None:
                nursery.start_soon(self._serve_one, self._admit(connection, listener_context))
            else:
                await self._admit_at_rate(nursery, connection, listener_context, self._rates)

    async def _admit_at_rate(
        self,
        nursery: trio.Nursery,
        connection: Connection,
        listener_context: ListenerContext,
        rates: ConnectionRates,
    ) -> None:
        """Serve or refuse the connection under the connection_creation_rate quotas.

        A refused connection is closed after a delay. After a served one, the listener may pause
        before its next accept.
        """
        host = connection.peer[0]
        if (refusal_s := rates.refusal_s(host)) > 0:
            self._log_refusal(
                f"refused a connection from {host}: connection_creation_rate quota of "
                f"{rates.quota(host):g} connections per second exceeded"
            )
            if self._closing_later < MAX_CLOSING_LATER:
                nursery.start_soon(self._close_later, connection, refusal_s)
            else:
                connection.close()
            return
        nursery.start_soon(self._serve_one, self._admit(connection, listener_context))
        if (pause_s := rates.pause_s(listener_context.listener)) > 0:
            await sleep(self._clock, pause_s)

    async def _close_later(self, connection: Connection, seconds: float) -> None:
        self._closing_later += 1
        try:
            await sleep(self._clock, seconds)
        finally:
            self._closing_later -= 1
            connection.close()

    def _exceeded_limit(
        self, connection: Connection, listener_context: ListenerContext
    ) -> str | None:
        if self._is_stopping():
            return "the node is stopping"
        return self._limiter.exceeded_limit(listener_context.listener, connection.peer[0])

    def _log_refusal(self, sentence: str) -> None:
        now = self._clock.monotonic()
        if now - self._refusal_logged_at >= REFUSAL_LOG_SECONDS:
            self._refusal_logged_at = now
            log.warning("%s", sentence)

    def _admit(self, connection: Connection, listener_context: ListenerContext) -> ClientConnection:
        """Count a new connection against the limits; its task, started later, ends the count."""
        served = self._connection(connection, listener_context)
        if (ending := self._limiter.add(served)) is not None:
            self._end_for(ending, f"a client connected to {listener_context.listener}")
        return served

    def _connection(
        self, connection: Connection, listener_context: ListenerContext
    ) -> ClientConnection:
        served = ClientConnection(
            connection,
            listener_context,
            self._disk,
            self._memory,
            self._buffers,
            self._limits.max_request_bytes,
            self._slicer,
            self._meter,
            self._lines,
            self.unread,
        )
        self._connections[served] = 0
        self.accepted_counts[listener_context.listener] += 1
        return served

    def _admit_provisionally(
        self, connection: Connection, listener_context: ListenerContext
    ) -> tuple[ClientConnection, ProvisionalConnection]:
        """Accept a connection above the limits provisionally: it may be another worker's."""
        if len(self._provisional) >= MAX_PROVISIONAL:
            oldest = next(iter(self._provisional))
            del self._provisional[oldest]
            oldest.abort()

        def passed(worker_id: int) -> None:
            self._provisional.pop(served, None)
            for each in self._limiter.add_worker_connection(served, worker_id):
                self._end_for(each, f"worker {worker_id} connected")

        provisional = ProvisionalConnection(listener_context.handle, passed, lambda: served.abort())
        served = self._connection(connection, replace(listener_context, handle=provisional.handle))
        self._provisional[served] = provisional
        return served, provisional

    async def _try(
        self, served: ClientConnection, provisional: ProvisionalConnection, refusal: str
    ) -> None:
        """Serve a provisional connection; close it unless it authenticates as a worker in time."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_provisional, served)
                await self._serve_one(served)
                nursery.cancel_scope.cancel()
        finally:
            self._provisional.pop(served, None)
            provisional.end(may_go_on=False)
            if not provisional.has_passed:
                self._log_refusal(f"{refusal}; the client did not authenticate as a worker")

    async def _end_provisional(self, served: ClientConnection) -> None:
        await sleep(self._clock, PROVISIONAL_S)
        if served in self._provisional:
            served.abort()

    def _end_for(self, connection: LimitedConnection, whom: str) -> None:
        """Close a connection that the limiter evicted for a new one, described by `whom`."""
        assert isinstance(connection, ClientConnection)
        connection.abort()
        now = self._clock.monotonic()
        if now - self._ending_logged_at >= REFUSAL_LOG_SECONDS:
            self._ending_logged_at = now
            log.warning(
                "closed the connection from %s to stay within the connection limits"
                " (max.connections), because %s",
                connection.client,
                whom,
            )

    async def _serve_one(self, served: ClientConnection) -> None:
        try:
            await served.serve()
        except Exception:  # a bug triggered by one client must not end the other connections
            log.exception(
                "closed the connection from %s after an unexpected error, a bug:", served.client
            )
        finally:
            del self._connections[served]
            self._limiter.remove(served)
            if not self._connections and self._accepting.cancel_called:
                self._all_closed.set()

    async def _close_idle(self) -> None:
        """Close connections idle for connections.max.idle.ms (up to a tenth later)."""
        period_seconds = max(self._limits.max_idle_ms / 1000 / IDLE_SWEEPS, LEAST_SWEEP_SECONDS)
        still = dict.fromkeys(self._connections, 0)
        while True:
            await sleep(self._clock, period_seconds)
            idle: list[ClientConnection] = []
            for connection, progress in list(self._connections.items()):
                if connection.progress != progress or not connection.may_be_idle:
                    self._connections[connection] = connection.progress
                    still[connection] = 0
                    continue
                still[connection] = still.get(connection, 0) + 1
                if still[connection] > IDLE_SWEEPS:
                    idle.append(connection)
            for number, connection in enumerate(idle):
                if number % CLOSED_AT_ONCE == CLOSED_AT_ONCE - 1:
                    await trio.lowlevel.checkpoint()
                connection.close_idle()
            still = {c: n for c, n in still.items() if c in self._connections}

    async def _close_stalled(self) -> None:
        """Close connections that reserve memory and stopped sending, while memory is short."""
        while True:
            await self._memory.wait_short()
            stalled = StalledRequests()
            while self._memory.is_short:
                for connection in stalled.among(self._connections, self._clock.monotonic()):
                    log.warning(
                        "closed the connection from %s: request memory (queued.max.request.bytes) "
                        "is short, and %d of %d bytes of its request are still missing",
                        connection.client,
                        connection.missing_bytes,
                        connection.reserved_bytes,
                    )
                    connection.abort()
                await sleep(self._clock, TARDY_SWEEP_SECONDS)
