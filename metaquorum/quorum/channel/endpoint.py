"""One node's end of all its streams: dials other nodes, and authenticates those that connect."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from metaquorum.quorum.channel.handshake import (
    MAX_HANDSHAKE_BYTES,
    NONCE_BYTES,
    AcceptorHandshake,
    Admit,
    DialerHandshake,
    Established,
    HandshakeError,
    Hello,
    Refusal,
)
from metaquorum.quorum.channel.identity import ChannelIdentity, StreamKind
from metaquorum.quorum.channel.stream import Stream
from metaquorum.quorum.channel.timing import ChannelTimings, within
from metaquorum.runtime.interfaces import Connection, Runtime
from metaquorum.security.tls_connection import TlsConnection
from metaquorum.security.tls_context import ReloadedContext, client_context, server_context

_INCARNATION_BITS: Final = 64


@dataclass
class Endpoint:
    """Factory of streams, one per process.

    Its constructor raises TlsFilesError if the TLS files of the identity cannot be used.
    """

    runtime: Runtime
    identity: ChannelIdentity
    timings: ChannelTimings = field(default_factory=ChannelTimings)

    def __post_init__(self) -> None:
        self._attempts = 0
        self._incarnation = self.runtime.random.getrandbits(_INCARNATION_BITS)
        tls = self.identity.tls
        self._server_context: ReloadedContext | None = None
        self._client_context: ReloadedContext | None = None
        self.contexts: tuple[ReloadedContext, ...] = ()  # for `keep_reloading`
        if tls is not None:
            self._server_context = ReloadedContext(
                tls, lambda: server_context(tls, client_certificates="required")
            )
            self._client_context = ReloadedContext(tls, lambda: client_context(tls))
            self.contexts = self._server_context, self._client_context

    async def dial(self, kind: StreamKind, node_id: int, host: str, port: int) -> Stream:
        """Return a new stream to node `node_id`.

        Raises OSError (including TimeoutError) or HandshakeError if there is none.
        """
        dialing = self.dialing(kind, node_id)

        made: list[Stream] = []

        async def connect() -> None:
            connection = await self.runtime.network.connect(host, port)
            try:
                if self._client_context is not None:
                    connection = tls = TlsConnection(
                        connection, self._client_context.current, server_hostname=host
                    )
                    await tls.handshake()
                made.append(self._stream(connection, await shake_hands(connection, dialing)))
            except BaseException:
                connection.close()
                raise

        return await self._made(made, self.timings.dial_s, connect)

    async def accept(self, connection: Connection, admit: Admit) -> Stream:
        """Authenticate the peer of an accepted connection and return the stream.

        Closes the connection and raises OSError (including TimeoutError) or HandshakeError if the
        handshake fails or `admit` refuses the peer.
        """
        handshake = self.accepting(admit)

        made: list[Stream] = []

        async def believe() -> None:
            outer = connection
            try:
                if self._server_context is not None:
                    outer = tls = TlsConnection(connection, self._server_context.current)
                    await tls.handshake()
                made.append(self._stream(outer, await shake_hands(outer, handshake)))
            except BaseException:
                outer.close()
                raise

        try:
            return await self._made(made, self.timings.handshake_s, believe)
        except HandshakeError as error:
            if (peer := handshake.peer) is not None:
                raise HandshakeError(
                    error.refusal, f"{error} (the peer claims to be node {peer.sender})"
                ) from None
            raise

    def dialing(
        self, kind: StreamKind, node_id: int, incarnation: int | None = None
    ) -> DialerHandshake:
        """Return the dialer's side of a new handshake with node `node_id`, over any transport.

        Both proofs cover `incarnation` in place of the number that this process has drawn.
        """
        self._attempts += 1
        identity = self.identity
        hello = Hello(
            kind,
            identity.node_id,
            node_id,
            self._incarnation if incarnation is None else incarnation,
            self._attempts,
            self._nonce(),
            identity.cluster_id,
        )
        return DialerHandshake(identity, hello)

    def accepting(self, admit: Admit) -> AcceptorHandshake:
        """Return the acceptor's side of a new handshake, over any transport."""
        return AcceptorHandshake(self.identity, self._incarnation, self._nonce(), admit)

    async def _made(
        self, made: list[Stream], seconds: float, make: Callable[[], Awaitable[None]]
    ) -> Stream:
        """Return the stream that `make` puts into `made`; close the stream on cancellation."""
        try:
            await within(self.runtime.clock, seconds, make)
        except BaseException:
            for stream in made:
                stream.close()
            raise
        return made[0]

    def _nonce(self) -> bytes:
        return self.runtime.random.getrandbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "big")

    def _stream(self, connection: Connection, established: Established) -> Stream:
        return Stream(connection, self.runtime.clock, established, self.timings)


async def shake_hands(
    connection: Connection, handshake: DialerHandshake | AcceptorHandshake
) -> Established:
    """Run the handshake over `connection`. Raises HandshakeError or OSError if it fails."""
    buffer = bytearray(MAX_HANDSHAKE_BYTES)
    while True:
        if data := handshake.data_to_send():
            await connection.send(data)
        if handshake.established is not None:
            return handshake.established
        count = await connection.receive_into(memoryview(buffer)[: handshake.room])
        if count == 0:
            raise HandshakeError(Refusal.OK, "the peer closed the connection during the handshake")
        try:
            handshake.receive(bytes(buffer[:count]))
        except HandshakeError:
            if data := handshake.data_to_send():
                connection.send_nowait(data)
            raise
