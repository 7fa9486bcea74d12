"""Calls a controller: many at a time on one stream, each with a deadline.

How a call ends, which must not be mixed up:

    returned           executed, and this is the answer
    RemoteError        the handler refused it, as a KafkaError
    CallNotSentError   surely not executed: it has not left this process, or was refused unseen
    CallLostError      nobody knows: no answer in time, or the stream has ended before it
"""

import trio

from metaquorum.channel.calls import Kind, Reply, decode_reply, encode_call, encode_cancel
from metaquorum.channel.endpoint import Endpoint
from metaquorum.channel.identity import StreamKind
from metaquorum.channel.rpc_server import MAX_CALL_BYTES_IN_FLIGHT, MAX_CALLS_IN_FLIGHT
from metaquorum.channel.stream import End, Stream
from wire.primitives.errors import KafkaError, WireError


class CallError(Exception):
    """A call without an answer."""


class CallNotSentError(CallError):
    """It is surely not executed."""


class CallLostError(CallError):
    """It may have been executed, or yet be."""


class RemoteError(KafkaError):
    """What the handler raised."""


class _PendingCall:
    __slots__ = ("deadline", "done", "expired", "number", "reply", "size_bytes")

    def __init__(self, deadline: float, size_bytes: int, number: int) -> None:
        self.deadline = deadline
        self.size_bytes = size_bytes
        self.number = number  # its place among all that the stream was given
        self.done = trio.Event()
        self.reply: Reply | None = None
        self.expired = False


class RpcClient:
    """`connect`, then `run` in a task of yours; `call` from any number of tasks."""

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
        """OSError (TimeoutError among them) or HandshakeError."""
        return cls(endpoint, await endpoint.dial(StreamKind.RPC, node_id, host, port))

    async def run(self) -> End:
        """Answers were taken until the stream's end; all calls without one have failed."""
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
        """The answer; see above. Cancelled here, it is cancelled there if it is still under way."""
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
            raise CallNotSentError(f"too many calls of node {self.node_id} are under way")
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
                raise WireError(f"reply: nobody has called {reply.call_id}")
            return  # it came too late
        pending.reply = reply
        pending.done.set()

    async def _expire_calls(self) -> None:
        """One task for the deadlines of all: it naps until the earliest that it knows of."""
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
