"""Hostile clients: random bytes, incomplete requests, invalid batches; clients that never read."""

import struct
from random import Random
from typing import Any, Final

import trio

from metaquorum.runtime import Connection, Runtime, sleep
from metaquorum.simulations.checkers.protocol import (
    AnnouncedIsServed,
    GarbageEndsItsConnection,
    LiesAreRefused,
)
from metaquorum.simulations.harness.client import BROKEN, ClientConnection, draw_versions
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.workloads.lying_batches import LIES, lying_batch
from metaquorum.wire.messages.api_versions import ApiVersionsRequest
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.protocol.headers import encode_request
from metaquorum.wire.schema.message import Message

ENDS_WITHIN_S: Final = 15.0
_PAUSE_S: Final = 0.1


class Hostile:
    def __init__(self, environment: Environment, name: str, draw: Random) -> None:
        self.environment = environment
        self.name = name
        self._draw = draw
        self._garbage = environment.checker(GarbageEndsItsConnection)

    async def run(self, runtime: Runtime) -> None:
        while not self.environment.closing:
            try:
                connection = await runtime.network.connect(*self.environment.address)
            except OSError:
                await sleep(runtime.clock, _PAUSE_S)
                continue
            try:
                await self._annoy(connection)
            except BROKEN:
                pass
            finally:
                connection.close()
            await sleep(runtime.clock, _PAUSE_S * self._draw.random())

    async def _annoy(self, connection: Connection) -> None:
        kind, data = self._nonsense()
        runs = self.environment.node.runs
        self.environment.world.say(self.name, f"sends {kind}")
        self.environment.world.count(f"malformed: {kind}")
        await connection.send(data)
        if kind == "half a request":
            await trio.sleep(self._draw.random())
            return
        ended = False
        with trio.move_on_after(ENDS_WITHIN_S):
            try:
                while await connection.receive_into(bytearray(4096)):
                    pass
            except OSError:
                pass
            ended = True
        if (
            self.environment.node.running
            and self.environment.node.runs == runs
            and not self._disturbed()
        ):
            self._garbage.sent_garbage(kind, ended)

    def _disturbed(self) -> bool:
        """Return whether a cut or a pause may delay the end of the connection."""
        return any(fault in self.environment.settings.faults for fault in ("cut", "pause"))

    def _nonsense(self) -> tuple[str, bytes]:
        draw = self._draw
        whole = encode_request(
            ApiKey.API_VERSIONS,
            3,
            1,
            "hostile",
            ApiVersionsRequest(client_software_name="x", client_software_version="y"),
        )
        kinds = {
            "a negative size": struct.pack(">i", -draw.randint(1, 1 << 31)),
            "a huge size": struct.pack(">i", draw.randint(1 << 28, (1 << 31) - 1)),
            "random bytes": struct.pack(">i", 64) + draw.randbytes(64),
            "an unknown api": struct.pack(">ihhih", 10, draw.randint(500, 30_000), 0, 1, -1),
            "a request cut short": struct.pack(">i", len(whole) - 7) + whole[4:-3],
            "half a request": whole[: draw.randint(1, len(whole) - 1)],
            "http": b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
        }
        return draw.choice(sorted(kinds.items()))


class Liar:
    """Produces invalid batches with correct checksums; the node must refuse all of them."""

    def __init__(self, environment: Environment, name: str, draw: Random) -> None:
        self.environment = environment
        self.name = name
        self._draw = draw
        self._lies = environment.checker(LiesAreRefused)

    async def run(self, runtime: Runtime) -> None:
        while not self.environment.closing:
            try:
                connection = await self.environment.connect(runtime, self.name, self._draw)
                try:
                    while not self.environment.closing:
                        await self._lie(runtime, connection)
                        await sleep(runtime.clock, _PAUSE_S * self._draw.random())
                finally:
                    connection.close()
            except BROKEN:
                await sleep(runtime.clock, _PAUSE_S)

    async def _lie(self, runtime: Runtime, connection: ClientConnection) -> None:
        topics = [t for t in self.environment.history.topics.values() if not t.delete_asked]
        if not topics:
            return
        draw = self._draw
        topic = draw.choice(topics)
        kind = draw.choice(list(LIES))
        batch = lying_batch(draw, kind, timestamp_ms=runtime.clock.now_ms())
        data = PartitionProduceData(index=draw.randrange(topic.partitions), records=batch)
        message = ProduceRequest(
            acks=draw.choice((1, -1)),
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[data])
            ],
        )
        answer = await connection.call(ApiKey.PRODUCE, message)
        code = answer.responses[0].partition_responses[0].error_code
        self.environment.world.count(f"lies: {kind}")
        self._lies.answered(kind, str(topic), code)


class Prober:
    """Sends ApiVersions, then a minimal valid request of every announced API and version."""

    def __init__(self, environment: Environment, draw: Random) -> None:
        self.environment = environment
        self._draw = draw
        self._announced = environment.checker(AnnouncedIsServed)

    async def run(self, runtime: Runtime) -> None:
        try:
            connection = await self._connect(runtime)
            versions = await connection.call(
                ApiKey.API_VERSIONS,
                ApiVersionsRequest(client_software_name="prober", client_software_version="1"),
            )
            for row in versions.api_keys:
                for version in range(row.min_version, row.max_version + 1):
                    await self._probe(connection, row.api_key, version)
            connection.close()
        except BROKEN as error:
            self._announced.asked("?", 0, f"the connection ended: {error!r}")

    async def _connect(self, runtime: Runtime) -> ClientConnection:
        connection = await runtime.network.connect(*self.environment.address)
        return ClientConnection(
            connection, "prober", draw_versions(self._draw), self.environment.order
        )

    async def _probe(self, connection: ClientConnection, key: int, version: int) -> None:
        api = APIS.get(key)
        if api is None:
            self._announced.asked(str(key), version, "announced, but not in the table")
            return
        connection.use_version(key, version)
        problem: str | None = None
        try:
            await connection.call(key, minimal_request(key))
        except (WireError, *BROKEN) as error:
            problem = repr(error)
        self._announced.asked(api.name, version, problem)
        if problem is not None:
            raise EOFError(problem)


def minimal_request(key: int) -> Message:
    """Return the smallest valid request of the API."""
    message: Any = APIS[key].request()
    if key == ApiKey.PRODUCE:
        message.acks = 1
    elif key == ApiKey.INIT_PRODUCER_ID:
        message.transactional_id = None
    elif key == ApiKey.API_VERSIONS:
        message.client_software_name, message.client_software_version = "prober", "1"
    return message  # type: ignore[no-any-return]
