"""The replies that a handler returns: the response, or an object that returns it later."""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeAlias

from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.delayed import DelayedResponse
from metaquorum.wire.primitives.types import RecordsHole

Parts: TypeAlias = list[bytes | RecordsHole]
Reply: TypeAlias = bytes | Parts | None


class PendingReply:
    """A coroutine that returns a reply or a `DelayedReply`; await it, or call `close`."""

    __slots__ = ("_closed", "_on_complete", "_work")

    def __init__(
        self,
        work: "Coroutine[Any, Any, Reply | DelayedReply]",
        closed: Callable[[], object] | None = None,
    ) -> None:
        """`closed` is called if the reply is not awaited: its connection has ended."""
        self._work = work
        self._closed = closed
        self._on_complete: Callable[[], object] | None = None

    def on_complete(self, call: Callable[[], object]) -> None:
        """Let `call` be called once the reply is complete."""
        self._on_complete = call

    def __await__(self) -> "Generator[Any, Any, Reply | DelayedReply]":
        reply = yield from self._work.__await__()
        if self._on_complete is not None:
            if isinstance(reply, DelayedReply):
                reply.on_complete(self._on_complete)
            else:
                self._on_complete()
        return reply

    def close(self) -> None:
        self._work.close()
        if self._closed is not None:
            self._closed()


class DelayedReply:
    """The reply that a `DelayedResponse` completes with; `reply_of` may return a `PendingReply`."""

    __slots__ = ("_delayed", "_on_complete", "_reply_of")

    def __init__(
        self, delayed: DelayedResponse, reply_of: Callable[[Any], Reply | PendingReply]
    ) -> None:
        self._delayed = delayed
        self._reply_of = reply_of
        self._on_complete: Callable[[], object] | None = None

    @property
    def is_ready(self) -> bool:
        return self._delayed.is_ready

    @property
    def allows_pipelining(self) -> bool:
        return self._delayed.allows_pipelining

    @property
    def may_outlast_idle(self) -> bool:
        return self._delayed.may_outlast_idle

    def on_ready(self, callback: Callable[[], object]) -> None:
        self._delayed.on_ready(callback)

    def on_complete(self, call: Callable[[], object]) -> None:
        """Let `call` be called once the reply is complete."""
        self._on_complete = call

    def complete(self) -> Reply | PendingReply:
        reply = self._reply_of(self._delayed.complete())
        if self._on_complete is not None:
            if isinstance(reply, PendingReply):
                reply.on_complete(self._on_complete)
            else:
                self._on_complete()
        return reply

    def cancel(self) -> None:
        self._delayed.cancel()


Handle: TypeAlias = Callable[[memoryview, Client], "Reply | PendingReply | DelayedReply"]


class CloseConnectionError(Exception):
    """Raised by a handler to close the connection without a response; the message is the reason."""


class CloseAfterResponseError(CloseConnectionError):
    """Raised to close the connection after the response that `answer` returns is sent."""

    def __init__(self, why: str, answer: Callable[[], Awaitable[bytes]]) -> None:
        super().__init__(why)
        self.answer = answer
