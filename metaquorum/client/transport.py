"""Interface of the client to the network: streams with deadlines, and a clock.

The client (all other modules of this package) is `async` code that awaits nothing but a transport.
It therefore runs on trio over the interfaces of a real or simulated node
(`metaquorum.client.trio_transport`), and without an event loop over blocking sockets
(`metaquorum.client.socket_transport`), where `await` never suspends. Importing trio takes about
0.1 s, as long as a whole command.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.primitives.types import Buffer

# Errors of one connection, after which another broker may be tried.
BROKEN: Final = (OSError, EOFError, WireError)


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)
Attempt: TypeAlias = Callable[[], Coroutine[Any, Any, C]]


class AllFailedError(Exception):
    """Raised if no attempt of a race succeeded; `failures` are in the order of the attempts."""

    def __init__(self, failures: Sequence[Exception]) -> None:
        super().__init__("; ".join(map(str, failures)))
        self.failures = failures


class Stream(Protocol):
    """A byte stream to one broker.

    Its methods raise OSError if the connection fails, and TimeoutError at the deadline. After
    either error the stream can only be closed, except that `receive_into` may be called again after
    a TimeoutError: no byte is lost.
    """

    async def send(self, data: Buffer, deadline: float) -> None:
        """Send all of `data`."""

    async def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """Receive at least one byte into `buffer`; return the count, 0 at the end of the stream."""

    def close(self) -> None: ...


class Transport(Protocol):
    """Network and clock of a client. Deadlines are times of `monotonic`, in seconds."""

    def monotonic(self) -> float: ...

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 UTC."""

    async def sleep_until(self, deadline: float) -> None: ...

    async def connect(self, host: str, port: int, deadline: float) -> Stream:
        """Return a stream to the address. Raises OSError if the connection fails."""

    async def race(self, attempts: Sequence[Attempt[C]], stagger_s: float) -> C:
        """Return the result of the attempt that succeeds first; cancel the others.

        An attempt begins when all previous ones have failed, at the latest `stagger_s` seconds
        after the previous one. Raises AllFailedError if all attempts fail. An error that is not
        one of BROKEN ends the race and is raised.
        """
