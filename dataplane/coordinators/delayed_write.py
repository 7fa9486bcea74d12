"""The delayed answer of a write, which waits for the commit of its records."""

from typing import Any, TypeVar, cast

import trio

from dataplane.coordinators.shard import Write
from dataplane.network.delayed import DelayedResponse, Timer
from wire.primitives.errors import KafkaError

T = TypeVar("T")


class DelayedWrite(DelayedResponse):
    """The delayed answer of a write: that of the operation, or a KafkaError.

    It is ready once the records are replayed, the time limit has passed, or the shard is unloaded.
    """

    __slots__ = ("_answer", "_refused", "_result", "timer")

    def __init__(self, write: Write[Any]) -> None:
        super().__init__()
        self._answer = write.answer
        self._refused = write.refused
        self._result: Any = None
        self.timer: Timer | None = None  # calls `refuse` at the time limit

    def replayed(self) -> None:
        """Answer as the operation decided, unless the write has been answered."""
        self._finish(self._answer)

    def refuse(self, error: KafkaError) -> None:
        """Answer with the error, and report it to the operation, unless it has been answered."""
        if not self.is_ready and self._refused is not None:
            self._refused(error)
        self._finish(error)

    def drop(self, error: KafkaError) -> None:
        """Answer with the error because the shard is unloaded, unless it has been answered."""
        self._finish(error)

    def _finish(self, result: Any) -> None:
        if not self.is_ready:
            self._result = result
            self._stop_timer()
            self.ready()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def complete(self) -> Any:
        """Return the answer of the operation, or a KafkaError."""
        assert self.is_ready
        return self._result

    def cancel(self) -> None:
        """Drop the response. The write cannot be withdrawn, and may still be refused later."""
        self.on_ready(_no_op)
        if self._refused is None:
            self._stop_timer()


def _no_op() -> None:
    pass


async def wait_answer(result: T | DelayedWrite) -> T:
    """Return the answer of a `call`, after a wait if it is delayed. Raises its KafkaError."""
    if not isinstance(result, DelayedWrite):
        return result
    ready = trio.Event()
    result.on_ready(ready.set)
    try:
        await ready.wait()
    finally:
        if not result.is_ready:
            result.cancel()
    answer = result.complete()
    if isinstance(answer, KafkaError):
        raise answer
    return cast(T, answer)
