"""A follower's connection to a leader after the exchange of hellos: its proof, then fetches.

One fetch request is pending at a time. The first one is sent before the response to the proof has
arrived; the leader responds in order.

A whole exchange can take place in one step of `Connection.pump`: a response arrives and is handled,
and the next request is sent, without another turn of the event loop or a task switch.
"""

from collections.abc import Callable
from typing import Final

from metaquorum.runtime import Connection
from metaquorum.wire.messages.authenticate_replica import (
    AuthenticateReplicaRequest,
    AuthenticateReplicaResponse,
)
from metaquorum.wire.messages.fetch import FetchRequest, FetchResponse
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol.frames import FrameBuffer
from metaquorum.wire.protocol.headers import decode_response_as, encode_request
from metaquorum.wire.schema.message import Message

# More than any leader sends: the first batch may exceed the requested size.
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
# Responses up to this size are received into the same buffer.
BUFFER_BYTES: Final = 128 * 1024


class LeaderConnection:
    """Connection of a follower to a leader; an OSError, EOFError or WireError ends it."""

    def __init__(
        self, connection: Connection, version: int, client_id: str, *, kept_bytes: int = 0
    ) -> None:
        """Create the connection; a larger receive buffer is kept, too, up to `kept_bytes`."""
        self._connection = connection
        self._version = version
        self._client_id = client_id
        self._frames = FrameBuffer(MAX_ANSWER_BYTES, BUFFER_BYTES, kept_bytes=kept_bytes)
        self._last_id = 0
        self._unsent: bytes | memoryview = b""
        self._proved: Callable[[AuthenticateReplicaResponse], None] | None = None
        self._proof_id = 0
        self.is_asked = False  # a fetch request is pending

    @property
    def is_sent(self) -> bool:
        return not self._unsent

    def prove_nowait(
        self, token: bytes, proved: Callable[[AuthenticateReplicaResponse], None]
    ) -> None:
        """Send the last message of the handshake.

        `proved` is called with the response, before the first fetch response is returned, and may
        raise an error of the handshake.
        """
        assert not self._last_id, "the proof comes before all fetches"
        self._proved = proved
        message = AuthenticateReplicaRequest(auth_bytes=token)
        self._proof_id = self._send_nowait(message, AuthenticateReplicaRequest.VERSIONS.first)

    def ask_nowait(self, request: FetchRequest) -> None:
        """Send as much of the request as the network accepts now; `pump` sends the rest."""
        assert not self.is_asked
        self.is_asked = True
        self._send_nowait(request, self._version)

    def _send_nowait(self, request: Message, version: int) -> int:
        """Return the correlation id of the request."""
        self._last_id += 1
        data = encode_request(request.API, version, self._last_id, self._client_id, request)
        if self._unsent:
            self._unsent = b"".join((self._unsent, data))
            return self._last_id
        sent = self._connection.send_nowait(data)
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
        return self._last_id

    async def pump(self, step: Callable[[], bool]) -> None:
        """Send the rest of the request, then call `step` whenever response bytes may have arrived.

        Returns when `step` returns False.
        """
        if self._unsent:
            await self._connection.send(self._unsent)
            self._unsent = b""
        await self._connection.pump(step)

    def answer_nowait(self) -> tuple[FetchResponse, int] | None:
        """Return the response and its size in bytes; None if it is not complete yet.

        Its records are views of a buffer, valid until the next call. Raises EOFError if the leader
        closed the connection, WireError for an invalid response, and any error of `proved`.
        """
        frames = self._frames
        count = self._connection.receive_nowait(frames.writable())
        if count <= 0:
            if count == 0:
                raise EOFError("the leader closed the connection")
            return None
        frames.received(count)
        frame = frames.next_frame()
        if frame is not None and self._proved is not None:
            self._take_proof(frame, self._proved)
            frame = frames.next_frame()
        if frame is None:
            return None
        correlation_id, response = decode_response_as(FetchResponse, self._version, frame)
        self._check(correlation_id, self._last_id)
        self.is_asked = False
        return response, len(frame)

    def _take_proof(
        self, frame: memoryview, proved: Callable[[AuthenticateReplicaResponse], None]
    ) -> None:
        version = AuthenticateReplicaRequest.VERSIONS.first
        correlation_id, response = decode_response_as(AuthenticateReplicaResponse, version, frame)
        self._check(correlation_id, self._proof_id)
        proved(response)
        self._proved = None

    @staticmethod
    def _check(correlation_id: int, due: int) -> None:
        if correlation_id != due:
            raise WireError(
                f"the leader's response has correlation id {correlation_id}, expected {due}: the "
                "server may not be a metaquorum worker"
            )
