"""The quorum address of a controller: one port, for voters and workers alike."""

import errno
import logging
from typing import Final

import trio

from metaquorum.channel.endpoint import Endpoint
from metaquorum.channel.handshake import HandshakeError, Hello, Refusal
from metaquorum.channel.identity import StreamKind
from metaquorum.channel.mesh import PeerMesh
from metaquorum.channel.rpc_server import RpcServer
from metaquorum.channel.stream import Stream
from metaquorum.channel.timing import LogThrottle
from metaquorum.runtime.interfaces import Connection, Listener, sleep

log = logging.getLogger(__name__)

# Beyond it the oldest of those that are not believed yet makes room: each has its time, however
# many knock.
MAX_IN_HANDSHAKE: Final = 128
MAX_RPC_STREAMS: Final = 1_024
ACCEPT_RETRY_SECONDS: Final = 0.1
# The listener itself is gone. Whatever else accept(2) says concerns one connection, or passes.
_NO_LISTENER: Final = frozenset((errno.EBADF, errno.EINVAL, errno.ENOTSOCK))


class ChannelListener:
    """`listen`, then `run` in a task; that ends by being cancelled."""

    def __init__(
        self, endpoint: Endpoint, peers: PeerMesh | None = None, rpc: RpcServer | None = None
    ) -> None:
        self._endpoint = endpoint
        self._peers = peers
        self._rpc = rpc
        self._listener: Listener | None = None
        self._in_handshake: dict[Connection, trio.CancelScope] = {}  # in the order of their coming
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
        """Connections are taken from now on, and served once `run` does. OSError."""
        assert self._listener is None
        self._listener = await self._endpoint.runtime.network.listen(host, port)

    async def run(self) -> None:
        """Whoever knocks is served, for ever."""
        assert self._listener is not None, "not listening yet"
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        connection = await self._listener.accept()
                    except OSError as error:
                        if error.errno in _NO_LISTENER:
                            raise
                        self._say(f"cannot accept connections between nodes: {error.strerror}")
                        await sleep(self._endpoint.runtime.clock, ACCEPT_RETRY_SECONDS)
                        continue
                    scope = self._make_room_for(connection)
                    nursery.start_soon(self._serve, connection, scope)
        finally:
            self.close()

    def close(self) -> None:
        """Nobody is taken any more."""
        if self._listener is not None:
            self._listener.close()

    def _make_room_for(self, connection: Connection) -> trio.CancelScope:
        if len(self._in_handshake) >= MAX_IN_HANDSHAKE:
            oldest = next(iter(self._in_handshake))
            self._in_handshake.pop(oldest).cancel()
            self._say(f"more than {MAX_IN_HANDSHAKE} connections are not shown to be of nodes")
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
            await self._rpc.serve(stream)
        finally:
            self._rpc_streams -= 1

    async def _believed(self, connection: Connection, scope: trio.CancelScope) -> Stream | None:
        """The stream, once the other side is believed; None: it is closed, and the log says why."""
        host = connection.peer[0]
        try:
            with scope:
                return await self._endpoint.accept(connection, self._admit)
        except HandshakeError as error:
            self._say(f"refused a connection from {host}: {error}")
        except TimeoutError:
            self._say(f"refused a connection from {host}: it did not show in time who it is")
        except OSError as error:
            self._say(f"a connection from {host} broke in its handshake: {error}")
        finally:
            self._in_handshake.pop(connection, None)
        return None

    def _admit(self, peer: Hello) -> HandshakeError | None:
        if peer.kind is StreamKind.PEER:
            if self._peers is None:
                return HandshakeError(Refusal.UNWELCOME, "this node is no voter")
            return self._peers.admit(peer)
        if peer.kind is not StreamKind.RPC:
            return HandshakeError(Refusal.UNWELCOME, f"this port takes no {peer.kind.name} streams")
        if self._rpc is None:
            return HandshakeError(Refusal.UNWELCOME, "this node answers no calls")
        if self._rpc_streams >= MAX_RPC_STREAMS:
            return HandshakeError(Refusal.BUSY, f"{MAX_RPC_STREAMS} connections are open")
        return None

    def _say(self, line: str) -> None:
        if self._log_throttle.is_due(line):
            log.warning("%s", line)
