"""Server for calls of other nodes: many calls at a time on one stream, each in its own task."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import trio

from metaquorum.quorum.channel.calls import (
    Call,
    decode_request,
    encode_answer,
    encode_error,
    encode_refusal,
)
from metaquorum.quorum.channel.stream import Cause, End, Stream
from metaquorum.quorum.channel.timing import LogThrottle
from metaquorum.wire.primitives.errors import KafkaError, WireError

log = logging.getLogger(__name__)

# Limits of one stream. The server refuses calls above them instead of waiting, so that it keeps
# reading and notices the end of the stream.
MAX_CALLS_IN_FLIGHT: Final = 1_024
MAX_CALL_BYTES_IN_FLIGHT: Final = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """The other end of one stream."""

    node_id: int  # TOOL_ID: a program that is not a node
    incarnation: int  # the same for all streams of one process
    address: tuple[str, int]
    closed: trio.Event = field(default_factory=trio.Event)


Handler: TypeAlias = Callable[[Caller, str, bytes], Awaitable[bytes]]


class RpcServer:
    """Server that answers the calls of accepted streams."""

    def __init__(
        self,
        handler: Handler,
        *,
        opened: Callable[[Caller], None] = lambda _: None,
        ended: Callable[[Caller, End], None] = lambda _caller, _end: None,
    ) -> None:
        """Serve calls with `handler`, whose KafkaErrors are sent to the caller.

        The server cancels running handlers when the stream ends. It calls `opened` before the
        first call of a stream, and `ended` once after its end.
        """
        self._handler = handler
        self._opened = opened
        self._ended = ended

    async def serve(self, stream: Stream, lines: LogThrottle) -> None:
        """Answer the calls of `stream` until the stream ends.

        The end is logged with the limits of `lines`: one line for each caller, host and cause.
        """
        peer = stream.peer
        caller = Caller(peer.sender, peer.incarnation, stream.address)
        self._opened(caller)
        try:
            async with trio.open_nursery() as nursery:
                session = _Session(stream, caller, self._handler, nursery)
                end = await stream.run(session.receive)
                caller.closed.set()
                nursery.cancel_scope.cancel()
        finally:
            caller.closed.set()
            self._ended(caller, stream.end or End(Cause.CLOSED))
        is_fault = end.cause in (Cause.NONSENSE, Cause.OVERFLOW)
        if not log.isEnabledFor(logging.WARNING if is_fault else logging.DEBUG):
            return
        if not lines.is_due(f"end of {peer.sender} at {stream.address[0]}: {end.cause.value}"):
            return
        if is_fault:
            log.warning("closed the connection from %s: %s", stream, end)
        else:
            log.debug("the connection from %s has ended: %s", stream, end)


class _Session:
    def __init__(
        self, stream: Stream, caller: Caller, handler: Handler, nursery: trio.Nursery
    ) -> None:
        self._stream = stream
        self._caller = caller
        self._handler = handler
        self._nursery = nursery
        self._calls: dict[int, trio.CancelScope] = {}
        self._call_bytes = 0

    def receive(self, message: bytes) -> None:
        """Start or cancel a call. Raises WireError if `message` is malformed."""
        request = decode_request(message)
        if isinstance(request, int):
            if (scope := self._calls.get(request)) is not None:
                scope.cancel()
            return
        if request.call_id in self._calls:
            raise WireError(f"call: id {request.call_id} is already in flight")
        if (
            len(self._calls) >= MAX_CALLS_IN_FLIGHT
            or self._call_bytes + len(request.payload) > MAX_CALL_BYTES_IN_FLIGHT
        ):
            self._stream.send(encode_refusal(request.call_id, "too many calls are in flight"))
            return
        scope = self._calls[request.call_id] = trio.CancelScope()
        self._call_bytes += len(request.payload)
        self._nursery.start_soon(self._answer, request, scope)

    async def _answer(self, call: Call, scope: trio.CancelScope) -> None:
        try:
            with scope:
                self._stream.send(await self._reply(call))
        except Exception:  # a bug in one handler must not end the streams of other callers
            log.exception("closed the connection from %s: bug in %s", self._stream, call.method)
            self._stream.close("bug in a handler")
        finally:
            del self._calls[call.call_id]
            self._call_bytes -= len(call.payload)

    async def _reply(self, call: Call) -> bytes:
        try:
            payload = await self._handler(self._caller, call.method, call.payload)
        except KafkaError as error:
            return encode_error(call.call_id, error)
        return encode_answer(call.call_id, payload)
