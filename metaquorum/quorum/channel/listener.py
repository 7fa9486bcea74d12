"""Listener of a controller: one port for both voters and workers."""

import errno
import logging
from typing import Final

import trio

from metaquorum.quorum.channel.endpoint import Endpoint
from metaquorum.quorum.channel.handshake import HandshakeError, Hello, Refusal
from metaquorum.quorum.channel.identity import StreamKind
from metaquorum.quorum.channel.mesh import PeerMesh
from metaquorum.quorum.channel.rpc_server import RpcServer
from metaquorum.quorum.channel.stream import Stream
from metaquorum.quorum.channel.timing import LogThrottle
from metaquorum.runtime.interfaces import Connection, Listener, sleep

log = logging.getLogger(__name__)

# Unauthenticated connections. Above the limit the oldest one is closed, so that a flood of new
# connections cannot keep a node from connecting.
MAX_IN_HANDSHAKE: Final = 128
MAX_RPC_STREAMS: Final = 1_024
ACCEPT_RETRY_SECONDS: Final = 0.1
# Errors of accept(2) that mean that the listening socket is closed. All other errors concern one
# connection or are temporary.
_NO_LISTENER: Final = frozenset((errno.EBADF, errno.EINVAL, errno.ENOTSOCK))


class ChannelListener:
    """Listener for streams from other nodes.

    Call `listen`, then `run` in a task, which runs until it is cancelled.
    """

    def __init__(
        self, endpoint: Endpoint, peers: PeerMesh | None = None, rpc: RpcServer | None = None
    ) -> None:
        self._endpoint = endpoint
        self._peers = peers
        self._rpc = rpc
        self._listener: Listener | None = None
        self._in_handshake: dict[Connection, trio.CancelScope] = {}  # oldest connection first
        self._rpc_streams = 0
        self._log_throttle = LogThrottle(endpoint.runtime.clock)

    @property
    def address(self) -> tuple[str, int]:
        assert self._listener is not None, "not listening yet"
        return self._listener.address

    @property
    def in_handshake_count(self) -> int:
        return len(self._in_handshake)

    @property
    def rpc_stream_count(self) -> int:
        return self._rpc_streams

    async def listen(self, host: str, port: int) -> None:
        """Open the listening socket; `run` accepts and serves its connections.

        Raises OSError if the address cannot be bound.
        """
        assert self._listener is None
        self._listener = await self._endpoint.runtime.network.listen(host, port)

    async def run(self) -> None:
        """Accept and serve connections until cancelled.

        Raises OSError if the listening socket is closed.
        """
        assert self._listener is not None, "not listening yet"
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        connection = await self._listener.accept()
                    except OSError as error:
                        if error.errno in _NO_LISTENER:
                            raise
                        self._say(f"cannot accept a connection from another node: {error.strerror}")
                        await sleep(self._endpoint.runtime.clock, ACCEPT_RETRY_SECONDS)
                        continue
                    scope = self._make_room_for(connection)
                    nursery.start_soon(self._serve, connection, scope)
        finally:
            self.close()

    def close(self) -> None:
        """Close the listening socket; open connections are not affected."""
        if self._listener is not None:
            self._listener.close()

    def _make_room_for(self, connection: Connection) -> trio.CancelScope:
        if len(self._in_handshake) >= MAX_IN_HANDSHAKE:
            oldest = next(iter(self._in_handshake))
            self._in_handshake.pop(oldest).cancel()
            self._say(
                f"more than {MAX_IN_HANDSHAKE} connections from other nodes are unauthenticated;"
                " closed the oldest one"
            )
        scope = self._in_handshake[connection] = trio.CancelScope()
        return scope

    async def _serve(self, connection: Connection, scope: trio.CancelScope) -> None:
        stream = await self._believed(connection, scope)
        if stream is None:
            return
        if stream.peer.kind is StreamKind.PEER:
            assert self._peers is not None
            await self._peers.serve(stream)
            return
        assert self._rpc is not None
        self._rpc_streams += 1
        try:
            await self._rpc.serve(stream, self._log_throttle)
        finally:
            self._rpc_streams -= 1

    async def _believed(self, connection: Connection, scope: trio.CancelScope) -> Stream | None:
        """Return the stream once the peer has authenticated.

        Logs the reason and returns None if the connection was closed instead.
        """
        host = connection.peer[0]
        try:
            with scope:
                return await self._endpoint.accept(connection, self._admit)
        except HandshakeError as error:
            self._say(f"refused a connection from {host}: {error}")
        except TimeoutError:
            self._say(f"refused a connection from {host}: the peer did not authenticate in time")
        except OSError as error:
            self._say(f"a connection from {host} failed during the handshake: {error}")
        finally:
            self._in_handshake.pop(connection, None)
        return None

    def _admit(self, peer: Hello) -> HandshakeError | None:
        if peer.kind is StreamKind.PEER:
            if self._peers is None:
                return HandshakeError(Refusal.UNWELCOME, "this node is not a voter")
            return self._peers.admit(peer)
        if peer.kind is not StreamKind.RPC:
            return HandshakeError(
                Refusal.UNWELCOME, f"this port does not accept {peer.kind.name} streams"
            )
        if self._rpc is None:
            return HandshakeError(Refusal.UNWELCOME, "this node does not serve RPC")
        if self._rpc_streams >= MAX_RPC_STREAMS:
            return HandshakeError(
                Refusal.BUSY, f"{MAX_RPC_STREAMS} RPC connections are open, which is the limit"
            )
        return None

    def _say(self, line: str) -> None:
        if self._log_throttle.is_due(line):
            log.warning("controller listener: %s", line)
