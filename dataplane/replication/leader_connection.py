"""A follower's connection to a leader, once hellos are exchanged: its proof, then fetches.

Fetches go one at a time; the first does not wait for the answer to the proof, which comes before
its own.

All of an exchange can happen in one step of `Connection.pump`: an answer comes, is looked at, and
the next request leaves, without a turn of the loop or a task that wakes.
"""

from collections.abc import Callable
from typing import Final

from metaquorum.runtime import Connection
from wire.messages.authenticate_replica import (
    AuthenticateReplicaRequest,
    AuthenticateReplicaResponse,
)
from wire.messages.fetch import FetchRequest, FetchResponse
from wire.primitives.errors import WireError
from wire.protocol.frames import FrameBuffer
from wire.protocol.headers import decode_response_as, encode_request
from wire.schema.message import Message

# More than a leader ever gives: one batch may be larger than what was asked for.
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
# Answers up to here are received into the same buffer.
BUFFER_BYTES: Final = 128 * 1024


class LeaderConnection:
    """What it raises (OSError, EOFError, WireError) is its end."""

    def __init__(self, connection: Connection, version: int, client_id: str) -> None:
        self._connection = connection
        self._version = version
        self._client_id = client_id
        self._frames = FrameBuffer(MAX_ANSWER_BYTES, BUFFER_BYTES)
        self._last_id = 0
        self._unsent: bytes | memoryview = b""
        self._proved: Callable[[AuthenticateReplicaResponse], None] | None = None
        self._proof_id = 0
        self.is_asked = False  # and not answered yet

    @property
    def is_sent(self) -> bool:
        return not self._unsent

    def prove_nowait(
        self, token: bytes, proved: Callable[[AuthenticateReplicaResponse], None]
    ) -> None:
        """The last message of the handshake is on its way; `proved` gets the answer, or raises.

        No answer to a fetch is given before that.
        """
        assert not self._last_id, "the proof comes before all fetches"
        self._proved = proved
        message = AuthenticateReplicaRequest(auth_bytes=token)
        self._proof_id = self._send_nowait(message, AuthenticateReplicaRequest.VERSIONS.first)

    def ask_nowait(self, request: FetchRequest) -> None:
        """As much of it has left as the network takes now."""
        assert not self.is_asked
        self.is_asked = True
        self._send_nowait(request, self._version)

    def _send_nowait(self, request: Message, version: int) -> int:
        """Its correlation id."""
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
        """The request is sent, and `step()` called when its answer, or a part, may have come."""
        if self._unsent:
            await self._connection.send(self._unsent)
            self._unsent = b""
        await self._connection.pump(step)

    def answer_nowait(self) -> tuple[FetchResponse, int] | None:
        """The answer, if all of it has come, and its bytes.

        Records in it are views of a buffer, void when this is called again.
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
            raise WireError(f"answer {correlation_id} where {due} was due: not Kafka?")
