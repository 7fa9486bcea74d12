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

    __slots__ = ("_answer", "_reply_of")

    def __init__(self, answer: Coroutine[Any, Any, Any], reply_of: Callable[[Any], Reply]) -> None:
        self._answer = answer
        self._reply_of = reply_of

    def __await__(self) -> "Generator[Any, Any, Reply | DelayedReply]":
        return self._reply_of((yield from self._answer.__await__()))

    def close(self) -> None:
        self._answer.close()


class _PendingThen(PendingReply):
    """The reply of `pending`; `call` is called once `pending` has returned it."""

    __slots__ = ("_call", "_pending")

    def __init__(self, pending: PendingReply, call: Callable[[], object]) -> None:
        self._pending = pending
        self._call = call

    def __await__(self) -> "Generator[Any, Any, Reply | DelayedReply]":
        reply = yield from self._pending.__await__()
        self._call()
        return reply

    def close(self) -> None:
        self._pending.close()


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
        self._on_complete = call

    def complete(self) -> Reply | PendingReply:
        reply = self._reply_of(self._delayed.complete())
        if self._on_complete is None:
            return reply
        if isinstance(reply, PendingReply):
            return _PendingThen(reply, self._on_complete)
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
