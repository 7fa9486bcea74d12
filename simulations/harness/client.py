"""Kafka client on a simulated machine: real wire bytes, one connection, responses in order."""

import struct
from collections import deque
from random import Random
from typing import Any, Final, Protocol

import trio

from metaquorum.runtime import Connection, Runtime
from metaquorum.simulations.kernel.world import World
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.protocol.headers import decode_response, encode_request
from metaquorum.wire.schema.message import Message

REQUEST_TIMEOUT_S: Final = 10.0
RECEIVE_BYTES: Final = 16 * 1024
MAX_RESPONSE_BYTES: Final = 1 << 24

# Errors that end a connection only: the client connects again.
BROKEN: Final = (OSError, EOFError, trio.TooSlowError, trio.ClosedResourceError)


class Order(Protocol):
    """Checker that is notified of the correlation id of each response."""

    world: World

    def answered(self, who: str, expected: int, correlation_id: int) -> None: ...


class ClientConnection:
    """Connection of a client. Requests may be pipelined; responses are received in order."""

    def __init__(
        self, connection: Connection, who: str, versions: dict[int, int], order: Order
    ) -> None:
        self._connection = connection
        self._who = who
        self._versions = versions
        self._order = order
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._next_id = 0
        self._received = bytearray()
        self._buffer = bytearray(RECEIVE_BYTES)

    def version(self, api: int) -> int:
        return self._versions[api]

    def use_version(self, api: int, version: int) -> None:
        self._versions[api] = version

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    async def send(self, api: int, message: Message, *, answered: bool = True) -> None:
        """Send a request; without `answered` no response is expected (acks=0)."""
        version = self._versions[api]
        self._next_id += 1
        data = encode_request(api, version, self._next_id, self._who, message)
        if answered:
            self._waiting.append((self._next_id, api, version))
        with trio.fail_after(REQUEST_TIMEOUT_S):
            await self._connection.send(data)

    async def receive(self, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Return the response to the oldest request that has none yet."""
        expected, api, version = self._waiting[0]
        with trio.fail_after(timeout_s):
            frame = await self._frame()
        (correlation_id,) = struct.unpack_from(">i", frame)
        self._order.answered(self._who, expected, correlation_id)
        if correlation_id != expected:
            raise EOFError("a response out of order")
        self._waiting.popleft()
        try:
            return decode_response(api, version, frame)[1]
        except WireError as error:
            self._order.world.violate("P1 Readable", f"{APIS[api].name} v{version}: {error}")
            raise EOFError from error

    async def call(self, api: int, message: Message, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        assert not self._waiting
        await self.send(api, message)
        return await self.receive(timeout_s)

    async def _frame(self) -> memoryview:
        received = self._received
        size = -1
        while size < 0 or len(received) < size + 4:
            if size < 0 and len(received) >= 4:
                (size,) = struct.unpack_from(">i", received)
                if not 0 <= size <= MAX_RESPONSE_BYTES:
                    raise EOFError(f"a response of {size} bytes")
                continue
            count = await self._connection.receive_into(self._buffer)
            if count == 0:
                raise EOFError("the node closed the connection")
            received += self._buffer[:count]
        frame = bytes(received[4 : size + 4])
        del received[: size + 4]
        return memoryview(frame)

    def close(self) -> None:
        self._connection.close()


# No simulated client sends these but the prober, which chooses the versions. A number drawn for
# them would turn each committed seed into another world.
_UNDRAWN: Final = frozenset(
    (
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    )
)


def draw_versions(draw: Random) -> dict[int, int]:
    """Draw one version per API: a client as old or new as the seed determines."""
    age = draw.choice(["oldest", "newest", "mixed"])
    versions: dict[int, int] = {}
    for key, api in APIS.items():
        if key in _UNDRAWN:
            versions[key] = api.max_version
            continue
        versions[key] = {
            "oldest": api.min_version,
            "newest": api.max_version,
            "mixed": draw.randint(api.min_version, api.max_version),
        }[age]
    # Simulated clients learn topic ids, which newer versions of Fetch and Produce need, from
    # CreateTopics (since version 7) or Metadata (since version 10).
    versions[ApiKey.CREATE_TOPICS] = max(versions[ApiKey.CREATE_TOPICS], 7)
    versions[ApiKey.METADATA] = max(versions[ApiKey.METADATA], 10)
    return versions


async def connect(
    runtime: Runtime,
    address: tuple[str, int],
    who: str,
    versions: dict[int, int],
    order: Order,
) -> ClientConnection:
    connection = await runtime.network.connect(*address)
    return ClientConnection(connection, who, versions, order)
