"""Client for calls to a controller: many calls at a time on one stream, each with a deadline.

A call ends in one of four ways:

    returned           the server executed the call and answered
    RemoteError        the handler raised a KafkaError
    CallNotSentError   not executed: the call has not left this process, or the server was too busy
    CallLostError      unknown: no answer before the deadline or before the end of the stream
"""

import trio

from metaquorum.quorum.channel.calls import Kind, Reply, decode_reply, encode_call, encode_cancel
from metaquorum.quorum.channel.endpoint import Endpoint
from metaquorum.quorum.channel.identity import StreamKind
from metaquorum.quorum.channel.rpc_server import MAX_CALL_BYTES_IN_FLIGHT, MAX_CALLS_IN_FLIGHT
from metaquorum.quorum.channel.stream import End, Stream
from metaquorum.wire.primitives.errors import KafkaError, WireError


class CallError(Exception):
    """Raised if a call ends without an answer."""


class CallNotSentError(CallError):
    """Raised if the server certainly has not executed the call and will not."""


class CallLostError(CallError):
    """Raised if the server may have executed the call, or may yet execute it."""


class RemoteError(KafkaError):
    """Raised if the handler at the server raised a KafkaError."""


class _PendingCall:
    __slots__ = ("deadline", "done", "expired", "number", "reply", "size_bytes")

    def __init__(self, deadline: float, size_bytes: int, number: int) -> None:
        self.deadline = deadline
        self.size_bytes = size_bytes
        self.number = number  # sequence number among all messages queued on the stream
        self.done = trio.Event()
        self.reply: Reply | None = None
        self.expired = False


class RpcClient:
    """Client of one controller: `connect`, then `run` in a task, and `call` from any task."""

    def __init__(self, endpoint: Endpoint, stream: Stream) -> None:
        self.node_id = stream.peer.sender
        self.closed = trio.Event()
        self.end: End | None = None
        self._clock = endpoint.runtime.clock
        self._stream = stream
        self._next_id = 0
        self._pending: dict[int, _PendingCall] = {}
        self._pending_bytes = 0
        self._nap = trio.CancelScope()
        self._nap_until = float("-inf")
        self._has_pending = trio.Event()

    @classmethod
    async def connect(cls, endpoint: Endpoint, node_id: int, host: str, port: int) -> "RpcClient":
        """Return a client connected to node `node_id`.

        Raises OSError (including TimeoutError) or HandshakeError if the connection fails.
        """
        return cls(endpoint, await endpoint.dial(StreamKind.RPC, node_id, host, port))

    async def run(self) -> End:
        """Receive answers until the stream ends; then fail the calls that have no answer."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._expire_calls)
                self.end = await self._stream.run(self._receive)
                nursery.cancel_scope.cancel()
        finally:
            self.end = self._stream.end
            self.closed.set()
            for pending in self._pending.values():
                pending.done.set()
        assert self.end is not None
        return self.end

    def close(self) -> None:
        self._stream.close()

    async def call(self, method: str, payload: bytes, timeout_s: float) -> bytes:
        """Call `method` and return the answer; the module describes the errors.

        Cancelling this coroutine also cancels the handler if it still runs at the server.
        """
        call_id, self._next_id = self._next_id, self._next_id + 1
        pending = self._send(call_id, method, payload, timeout_s)
        try:
            await pending.done.wait()
        finally:
            del self._pending[call_id]
            self._pending_bytes -= pending.size_bytes
            if pending.reply is None:
                self._stream.send(encode_cancel(call_id))
        return self._outcome(pending, method, timeout_s)

    def _send(self, call_id: int, method: str, payload: bytes, timeout_s: float) -> _PendingCall:
        if self._stream.end is not None:
            raise CallNotSentError(f"no connection to node {self.node_id}: {self._stream.end}")
        if (
            len(self._pending) >= MAX_CALLS_IN_FLIGHT
            or self._pending_bytes + len(payload) > MAX_CALL_BYTES_IN_FLIGHT
        ):
            raise CallNotSentError(f"too many calls to node {self.node_id} are in flight")
        if not self._stream.send(encode_call(call_id, method, payload)):
            raise CallNotSentError(f"no connection to node {self.node_id}: {self._stream.end}")
        deadline = self._clock.monotonic() + timeout_s
        pending = _PendingCall(deadline, len(payload), self._stream.queued_count)
        self._pending[call_id] = pending
        self._pending_bytes += len(payload)
        if deadline < self._nap_until:
            self._nap.cancel()
        self._has_pending.set()
        return pending

    def _outcome(self, pending: _PendingCall, method: str, timeout_s: float) -> bytes:
        reply = pending.reply
        if reply is None:
            what = f"{method} of node {self.node_id}"
            if pending.expired:
                raise CallLostError(f"{what} was not answered within {timeout_s:g} s")
            if pending.number > self._stream.sent_count:
                raise CallNotSentError(f"{what} was not sent: {self.end}")
            raise CallLostError(f"{what} was not answered: {self.end}")
        if reply.kind is Kind.ANSWER:
            return reply.payload
        if reply.kind is Kind.REFUSED:
            raise CallNotSentError(f"node {self.node_id} refused {method}: {reply.text}")
        raise RemoteError(reply.code, reply.text)

    def _receive(self, message: bytes) -> None:
        reply = decode_reply(message)
        pending = self._pending.get(reply.call_id)
        if pending is None:
            if reply.call_id >= self._next_id:
                raise WireError(f"reply: no call has the id {reply.call_id}")
            return  # the call has expired or was cancelled
        pending.reply = reply
        pending.done.set()

    async def _expire_calls(self) -> None:
        """Expire calls at their deadlines: sleep until the earliest deadline, and repeat."""
        while True:
            await self._has_pending.wait()
            self._has_pending = trio.Event()
            while self._pending:
                self._nap_until = min(pending.deadline for pending in self._pending.values())
                with trio.CancelScope() as self._nap:
                    await self._clock.sleep_until(self._nap_until)
                self._nap_until = float("-inf")
                self._expire(self._clock.monotonic())

    def _expire(self, now: float) -> None:
        for pending in self._pending.values():
            if pending.deadline <= now and not pending.done.is_set():
                pending.expired = True
                pending.done.set()
