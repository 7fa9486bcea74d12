"""Transport on trio, over the interfaces of a node: for async programs and the simulator."""

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import trio

from metaquorum.client.transport import BROKEN, AllFailedError, Attempt, C
from metaquorum.runtime.interfaces import Buffer, Clock, Connection, Network
from metaquorum.security.tls_connection import TlsConnection


class TrioStream:
    """`Stream` over a connection of the runtime interfaces."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.connection = connection  # for callers that do not need a deadline for each step
        self._clock = clock

    async def send(self, data: Buffer, deadline: float) -> None:
        with _until(deadline, self._clock):
            await self.connection.send(data)

    async def receive_into(self, buffer: memoryview, deadline: float) -> int:
        with _until(deadline, self._clock):
            return await self.connection.receive_into(buffer)

    def close(self) -> None:
        self.connection.close()


class TrioTransport:
    """`Transport` over the runtime interfaces, with TLS if a context is given."""

    def __init__(self, clock: Clock, network: Network, tls: ssl.SSLContext | None = None) -> None:
        self._clock = clock
        self._network = network
        self._tls = tls

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def sleep_until(self, deadline: float) -> None:
        await self._clock.sleep_until(deadline)

    async def connect(self, host: str, port: int, deadline: float) -> TrioStream:
        with _until(deadline, self._clock):
            connection = await self._network.connect(host, port)
            if self._tls is None:
                return TrioStream(connection, self._clock)
            secured = TlsConnection(connection, self._tls, server_hostname=host)
            try:
                await secured.handshake()
            except BaseException:
                secured.close()
                raise
            return TrioStream(secured, self._clock)

    async def race(self, attempts: Sequence[Attempt[C]], stagger_s: float) -> C:
        won: list[C] = []
        failures: dict[int, Exception] = {}
        ended = trio.Event()  # an attempt has failed; the waiter replaces the event

        async def run(number: int, everything: trio.CancelScope) -> None:
            nonlocal ended
            try:
                result = await attempts[number]()
            except BROKEN as error:
                failures[number] = error
                ended.set()
                return
            if won:
                result.close()
            won.append(result)
            everything.cancel()

        try:
            async with trio.open_nursery() as nursery:
                for number in range(len(attempts)):
                    nursery.start_soon(run, number, nursery.cancel_scope)
                    deadline = self._clock.monotonic() + stagger_s
                    while len(failures) <= number:
                        left_s = max(0.0, deadline - self._clock.monotonic())
                        with trio.move_on_after(left_s) as waiting:
                            await ended.wait()
                            ended = trio.Event()
                        if waiting.cancelled_caught:
                            break
        except BaseException as error:  # noqa: BLE001 - it is raised; a result must not be lost, whatever ends the race
            for result in won:
                result.close()
            raise _first_of(error) from None
        if won:
            return won[0]
        raise AllFailedError([failures[number] for number in range(len(attempts))])


def _first_of(error: BaseException) -> BaseException:
    """Return the first error of a group that is not a cancellation, if there is one."""
    while isinstance(error, BaseExceptionGroup):
        error = (error.subgroup(Exception) or error).exceptions[0]
    return error


@contextmanager
def _until(deadline: float, clock: Clock) -> Iterator[None]:
    """Translate timeouts and closed resources of trio into the errors of a `Transport`."""
    try:
        with trio.fail_after(max(0.0, deadline - clock.monotonic())):
            yield
    except trio.TooSlowError:
        raise TimeoutError("timed out") from None
    except trio.ClosedResourceError:
        raise ConnectionError("closed") from None
