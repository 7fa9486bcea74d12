"""A follower's connection to a leader, once versions are agreed upon: fetches, one at a time.

All of an exchange can happen in one step of `Connection.pump`: an answer comes, is looked at, and
the next request leaves, without a turn of the loop or a task that wakes.
"""

from collections.abc import Callable
from typing import Final

from metaquorum.runtime import Connection
from wire.errors import WireError
from wire.frames import FrameBuffer
from wire.headers import decode_response_as, encode_request
from wire.messages.fetch import FetchRequest, FetchResponse

# More than a leader ever gives: one batch may be larger than what was asked for.
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
# Answers up to here are received into the same buffer.
BUFFER_BYTES: Final = 128 * 1024


class FetchLink:
    """What it raises (OSError, EOFError, WireError) is its end."""

    def __init__(self, connection: Connection, version: int, client_id: str) -> None:
        self._connection = connection
        self._version = version
        self._client_id = client_id
        self._frames = FrameBuffer(MAX_ANSWER_BYTES, BUFFER_BYTES)
        self._last_id = 0
        self._unsent: bytes | memoryview = b""
        self.is_asked = False  # and not answered yet

    @property
    def is_sent(self) -> bool:
        return not self._unsent

    def ask_nowait(self, request: FetchRequest) -> None:
        """As much of it has left as the network takes now."""
        assert not self.is_asked
        self.is_asked = True
        self._last_id += 1
        data = encode_request(
            FetchRequest.API, self._version, self._last_id, self._client_id, request
        )
        sent = self._connection.send_nowait(data)
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]

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
        if frame is None:
            return None
        correlation_id, response = decode_response_as(FetchResponse, self._version, frame)
        if correlation_id != self._last_id:
            raise WireError(f"answer {correlation_id} where {self._last_id} was due: not Kafka?")
        self.is_asked = False
        return response, len(frame)
