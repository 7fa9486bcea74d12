"""Listening, and how many may connect."""

import errno
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Final

import trio

from dataplane.instruments.log_rate_limit import LogRateLimiter
from dataplane.network.connection import ClientConnection, ListenerContext
from dataplane.network.connection_limits import (
    MAX_PROVISIONAL,
    PROVISIONAL_S,
    ConnectionLimiter,
    ConnectionLimits,
    LimitedConnection,
    PeerListener,
    ProvisionalConnection,
)
from dataplane.network.pipeline import Wait
from dataplane.network.unread_responses import UnreadResponses
from dataplane.quotas.connection_rates import ConnectionRates
from dataplane.quotas.cpu_meter import OFF, CpuMeter
from dataplane.scheduling.request_memory import RequestMemory, StalledRequests
from dataplane.scheduling.time_slices import TimeSlicer
from metaquorum.runtime import Clock, Connection, Disk, Listener, Runtime, sleep
from wire.primitives.frozen import frozen
from wire.protocol.frames import BufferPool

log = logging.getLogger(__name__)

# Out of file descriptors or memory: what has ended in the meantime makes room.
ACCEPT_RETRY_SECONDS: Final = 0.1
# The listener itself is gone. Whatever else accept(2) says concerns one connection, or passes.
_NO_LISTENER: Final = frozenset((errno.EBADF, errno.EINVAL, errno.ENOTSOCK))
# The same refusal is logged at most so often.
REFUSAL_LOG_SECONDS: Final = 10.0
# Refused connections that are kept for a while; more are closed at once.
MAX_CLOSING_LATER: Final = 1000
IDLE_SWEEPS: Final = 10  # sweeps in connections.max.idle.ms
LEAST_SWEEP_SECONDS: Final = 0.05
CLOSED_AT_ONCE: Final = 50  # of many that are idle, before others have their turn
TARDY_SWEEP_SECONDS: Final = 0.5


@frozen
class ServerLimits:
    max_request_bytes: int
    max_queued_request_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_idle_ms: int  # negative: any time
    max_connections_by_listener: Mapping[str, int] = field(default_factory=dict)
    max_connections_by_ip: Mapping[str, int] = field(default_factory=dict)
    drain_seconds: float = 5.0

    @property
    def places(self) -> ConnectionLimits:
        return ConnectionLimits(
            self.max_connections,
            self.max_connections_per_ip,
            self.max_connections_by_listener,
            self.max_connections_by_ip,
        )


class Server:
    """Accepts connections and serves each in a task of its own."""

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
        """`slicer`: those that the handlers of the entrances take, if any do."""
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
        self._connections: dict[ClientConnection, int] = {}  # in the order of their coming
        self._limiter = ConnectionLimiter(limits.places, peers)
        self._provisional: dict[
            ClientConnection, ProvisionalConnection
        ] = {}  # in the order of their coming
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
        """New connections are counted against these; none that is open ends for it."""
        self._limits = limits
        self._limiter.limits = limits.places

    async def serve(self) -> None:
        """Returns when `drain` was called and the last connection has ended."""
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
        """No new connection is taken; those there are answer what they have read, then close."""
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
                if self._is_stopping():  # closed in the turn in which one came
                    return
                if not isinstance(error, OSError) or error.errno in _NO_LISTENER:
                    raise
                self._log_refusal(f"cannot accept connections: {error.strerror}")
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
        """It is served, and the next one taken in due time; or it is refused, after a delay."""
        host = connection.peer[0]
        if (refusal_s := rates.refusal_s(host)) > 0:
            self._log_refusal(
                f"refused a connection from {host}: it connects more often than "
                f"{rates.quota(host):g} times a second (connection_creation_rate)"
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
        """It counts from now on; its task, which ends that, has yet to start."""
        served = self._connection(connection, listener_context)
        if (ending := self._limiter.add(served)) is not None:
            self._end_for(ending, f"there is one by {listener_context.listener}")
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
        """It has no place, but may be another worker's."""
        if len(self._provisional) >= MAX_PROVISIONAL:
            oldest = next(iter(self._provisional))
            del self._provisional[oldest]
            oldest.abort()

        def passed(worker_id: int) -> None:
            self._provisional.pop(served, None)
            for each in self._limiter.add_worker_connection(served, worker_id):
                self._end_for(each, f"worker {worker_id} has come")

        provisional = ProvisionalConnection(listener_context.handle, passed, lambda: served.abort())
        served = self._connection(connection, replace(listener_context, handle=provisional.handle))
        self._provisional[served] = provisional
        return served, provisional

    async def _try(
        self, served: ClientConnection, provisional: ProvisionalConnection, refusal: str
    ) -> None:
        """Served if it is a worker's and shows that in time."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_provisional, served)
                await self._serve_one(served)
                nursery.cancel_scope.cancel()
        finally:
            self._provisional.pop(served, None)
            provisional.end(may_go_on=False)
            if not provisional.has_passed:
                self._log_refusal(refusal)

    async def _end_provisional(self, served: ClientConnection) -> None:
        await sleep(self._clock, PROVISIONAL_S)
        if served in self._provisional:
            served.abort()

    def _end_for(self, connection: LimitedConnection, whom: str) -> None:
        """What is the least recently used makes room."""
        assert isinstance(connection, ClientConnection)
        connection.abort()
        now = self._clock.monotonic()
        if now - self._ending_logged_at >= REFUSAL_LOG_SECONDS:
            self._ending_logged_at = now
            log.warning(
                "closed the connection from %s, the least recently used: all that max.connections"
                " allows are open, and %s",
                connection.client,
                whom,
            )

    async def _serve_one(self, served: ClientConnection) -> None:
        try:
            await served.serve()
        except Exception:  # a bug that one client meets must not end the others
            log.exception("a bug: closed the connection from %s", served.client)
        finally:
            del self._connections[served]
            self._limiter.remove(served)
            if not self._connections and self._accepting.cancel_called:
                self._all_closed.set()

    async def _close_idle(self) -> None:
        """Connections without progress for connections.max.idle.ms (and up to a tenth more) end."""
        period_seconds = max(self._limits.max_idle_ms / 1000 / IDLE_SWEEPS, LEAST_SWEEP_SECONDS)
        still = dict.fromkeys(self._connections, 0)
        while True:
            await sleep(self._clock, period_seconds)
            idle: list[ClientConnection] = []
            for connection, progress in list(self._connections.items()):
                waits = connection.waits_for in (Wait.MEMORY, Wait.MUTE)
                if connection.progress != progress or waits:
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
        """In a shortage of memory, who holds some and does not send its request makes room."""
        while True:
            await self._memory.wait_short()
            stalled = StalledRequests()
            while self._memory.is_short:
                for connection in stalled.among(self._connections, self._clock.monotonic()):
                    log.warning(
                        "closed the connection from %s: others wait for memory, and %d of %d "
                        "bytes have not come",
                        connection.client,
                        connection.missing_bytes,
                        connection.reserved_bytes,
                    )
                    connection.abort()
                await sleep(self._clock, TARDY_SWEEP_SECONDS)
