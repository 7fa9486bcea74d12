"""How the client reaches brokers: streams with deadlines, and a clock.

The client (everything else in this package) is straight-line `async` code that waits for nothing
but a transport. It therefore runs on trio over the seams of a node (`metaquorum.admin.seams`), real
or simulated; and without any event loop over blocking sockets (`metaquorum.admin.blocking`), where
no `await` ever suspends. A command of a tenth of a second need not import trio for as long again.
"""

from typing import Protocol

from wire.types import Buffer


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
