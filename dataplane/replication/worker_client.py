"""Requests of this worker to other workers, other than fetches: one connection for each of them.

A connection is opened for the first request, authenticated as a fetcher's is, and kept. A request
on a connection that has failed meanwhile is sent again, once, on a new one: these requests only
read.
"""

from collections.abc import Callable
from typing import Any, Final

import trio

from metaquorum.client.connection import BrokerConnection
from metaquorum.client.errors import BrokerError, NotServedError
from metaquorum.client.security import Login
from metaquorum.client.trio_transport import TrioTransport
from metaquorum.dataplane.replication.leader_handshake import authenticate
from metaquorum.quorum.channel import Endpoint, HandshakeError
from metaquorum.runtime import Runtime
from metaquorum.security.tls_context import ReloadedContext
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError
from metaquorum.wire.schema.message import Message

_BROKEN: Final = (OSError, EOFError, WireError)
_FAILED: Final = (*_BROKEN, NotServedError, BrokerError, HandshakeError)


class WorkerClient:
    """Client of the other workers of the cluster. `close` it, or its connections stay open."""

    def __init__(
        self,
        worker_id: int,
        runtime: Runtime,
        address_of: Callable[[int], tuple[str, int] | None],
        endpoint: Endpoint | None,
        login: Login | None,
        tls: ReloadedContext | None,
    ) -> None:
        """Create the client; `address_of` returns the address of a worker in the metadata."""
        self._client_id = f"worker-{worker_id}"
        self._runtime = runtime
        self._address_of = address_of
        self._endpoint = endpoint
        self._login = login
        self._tls = tls
        self._connections: dict[int, BrokerConnection] = {}
        self._locks: dict[int, trio.Lock] = {}
        self._is_closed = False

    async def ask(self, worker_id: int, request: Message, *, timeout_s: float) -> Any:
        """Send the request and return the response; requests to one worker wait for each other.

        Raises KafkaError (NETWORK_EXCEPTION) if the worker does not answer in time.
        """
        deadline = self._runtime.clock.monotonic() + timeout_s
        try:
            async with self._locks.setdefault(worker_id, trio.Lock()):
                return await self._ask(worker_id, request, deadline)
        except _FAILED as error:
            raise KafkaError(
                ErrorCode.NETWORK_EXCEPTION, f"worker {worker_id} did not answer: {error}"
            ) from error

    async def _ask(self, worker_id: int, request: Message, deadline: float) -> Any:
        address = self._address_of(worker_id)
        known = self._connections.get(worker_id)
        if known is not None and known.address == address:
            try:
                return await self._exchange(worker_id, known, request, deadline)
            except _BROKEN:
                if self._runtime.clock.monotonic() >= deadline:
                    raise
        if known is not None:
            self._drop(worker_id, known)
        if address is None:
            raise ConnectionError("the metadata have no address of it")
        opened = await self._open(worker_id, address, deadline)
        return await self._exchange(worker_id, opened, request, deadline)

    async def _exchange(
        self, worker_id: int, connection: BrokerConnection, request: Message, deadline: float
    ) -> Any:
        try:
            await connection.send(request, deadline)
            return await connection.receive(deadline)
        except NotServedError:  # nothing was sent
            raise
        except BaseException:
            self._drop(worker_id, connection)
            raise

    async def _open(
        self, worker_id: int, address: tuple[str, int], deadline: float
    ) -> BrokerConnection:
        runtime = self._runtime
        context = None if self._tls is None else self._tls.current
        transport = TrioTransport(runtime.clock, runtime.network, context)
        stream = await transport.connect(*address, deadline)
        connection = BrokerConnection(
            stream, address, self._client_id, self._login, runtime.clock.monotonic, runtime.random
        )
        try:
            await authenticate(connection, self._endpoint, worker_id, address, deadline)
            if self._is_closed:
                raise ConnectionError("this worker is stopping")
        except BaseException:
            connection.close()
            raise
        self._connections[worker_id] = connection
        return connection

    def _drop(self, worker_id: int, connection: BrokerConnection) -> None:
        connection.close()
        if self._connections.get(worker_id) is connection:
            del self._connections[worker_id]

    def close(self) -> None:
        """Close all connections, because the worker stops."""
        self._is_closed = True
        for worker_id, connection in list(self._connections.items()):
            self._drop(worker_id, connection)
