"""How the client reaches brokers: streams with deadlines, and a clock.

The client (everything else in this package) is straight-line `async` code that waits for nothing
but a transport. It therefore runs on trio over the seams of a node
(`metaquorum.client.trio_transport`), real or simulated; and without any event loop over blocking
sockets (`metaquorum.client.socket_transport`), where no `await` ever suspends. A command of a tenth
of a second need not import trio for as long again.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from wire.primitives.errors import WireError
from wire.primitives.types import Buffer

# How an attempt to reach a broker fails, where another broker may do better.
BROKEN: Final = (OSError, EOFError, WireError)


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)
Attempt: TypeAlias = Callable[[], Coroutine[Any, Any, C]]


class AllFailedError(Exception):
    """No attempt of a race succeeded; `failures` are in the order of the attempts."""

    def __init__(self, failures: Sequence[Exception]) -> None:
        super().__init__("; ".join(map(str, failures)))
        self.failures = failures


class Stream(Protocol):
    """A byte stream to one broker. OSError: it broke; TimeoutError: not before the deadline.

    After either the stream is of no more use than to be closed.
    """

    async def send(self, data: Buffer, deadline: float) -> None:
        """All of `data` has been handed to the network."""

    async def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """At least one byte has been put at the start of `buffer`; 0: the broker has ended."""

    def close(self) -> None: ...


class Transport(Protocol):
    """Deadlines are in the time of `monotonic`."""

    def monotonic(self) -> float: ...

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC."""

    async def sleep_until(self, deadline: float) -> None: ...

    async def connect(self, host: str, port: int, deadline: float) -> Stream:
        """Connected; OSError says why not."""

    async def race(self, attempts: Sequence[Attempt[C]], stagger_s: float) -> C:
        """The result of the attempt that succeeds first; the others are ended, theirs closed.

        An attempt begins when all before it have failed, at the latest `stagger_s` after the one
        before it. AllFailedError; an error that is not BROKEN ends the race.
        """
