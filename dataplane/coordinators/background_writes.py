"""Writes of background tasks, which no request waits for, and checks to repeat after failures."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import trio

from metaquorum.dataplane.coordinators.client_budget import COORDINATOR
from metaquorum.dataplane.coordinators.runtime import CoordinatorRuntime
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord, Write
from metaquorum.dataplane.network.delayed import Timers
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

T = TypeVar("T")

# Uncommitted writes of one task: more would wait in memory, fewer for the network.
MAX_WRITES: Final = 16
# Seconds until the first and the last attempts after a failure.
RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 60.0


class BackgroundWrites:
    """Writes to one shard, in order: none is appended after one that was not."""

    def __init__(self, runtime: CoordinatorRuntime[Any], index: int) -> None:
        self.failure = ErrorCode.NONE  # the first one
        self._runtime = runtime
        self._index = index
        self._uncommitted = 0
        self._changed = trio.Event()

    @property
    def has_failed(self) -> bool:
        return self.failure is not ErrorCode.NONE

    def write(self, records: Sequence[CoordinatorRecord]) -> None:
        """Append the records, if there are any and no write has failed."""
        if not records or self.has_failed:
            return
        self._uncommitted += 1
        try:
            self._runtime.call(
                self._index,
                lambda _: Write(records, ErrorCode.NONE, client=COORDINATOR),
                self._ended,
                self._ended,
            )
        except KafkaError as error:
            self._ended(error.code)

    def _ended(self, code: ErrorCode) -> None:
        self._uncommitted -= 1
        if not self.has_failed:
            self.failure = code
        self._changed.set()

    async def wait_room(self) -> bool:
        """Wait until another write may be appended; return False if one has failed."""
        return await self._wait_uncommitted(MAX_WRITES - 1)

    async def wait_all(self) -> bool:
        """Wait until all writes are committed; return False if one has failed."""
        return await self._wait_uncommitted(0)

    async def _wait_uncommitted(self, most: int) -> bool:
        while self._uncommitted > most:
            self._changed = trio.Event()
            await self._changed.wait()
        return not self.has_failed


class PendingChecks(Generic[T]):
    """Subjects that a background task has to check, each once, and again after a failure."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._wanted: dict[T, None] = {}
        self._delays_s: dict[T, float] = {}  # until the next retry of a failed check
        self._has_wanted = trio.Event()

    def add(self, subject: T) -> None:
        """Check `subject` soon, also if it waits for its retry."""
        self._wanted[subject] = None
        self._has_wanted.set()

    async def next(self) -> T:
        """Wait for a subject and take it; `ended` or `retry` must follow."""
        while not self._wanted:
            self._has_wanted = trio.Event()
            await self._has_wanted.wait()
        subject = next(iter(self._wanted))
        del self._wanted[subject]
        return subject

    def ended(self, subject: T) -> None:
        self._delays_s.pop(subject, None)

    def retry(self, subject: T) -> None:
        """Check `subject` again after RETRY_S, or twice the time before its last retry."""
        delay_s = self._delays_s.get(subject, RETRY_S)
        self._delays_s[subject] = min(2 * delay_s, MAX_RETRY_S)
        self._timers.call_after(delay_s, partial(self.add, subject))
