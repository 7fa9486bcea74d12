"""Nodes and servers in the test's own process, and a client that sends and receives frames.

`serving` runs the shipped node on this machine, on a free port; `simulated` runs it on a simulated
machine, where time is virtual: a test of a timeout takes no time, and none of it needs luck.
"""

import dataclasses
import functools
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ParamSpec

import trio

from metaquorum.config.resolution import WorkerLayers
from metaquorum.dataplane.network.listeners import client_listeners, replicating
from metaquorum.dataplane.node import Node
from metaquorum.dataplane.node_config import NodeConfig
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.runtime import Buffer, Clock, Connection, Disk, File, Network, Runtime
from metaquorum.runtime.system import RealDisk, RealFile, real_runtime
from metaquorum.simulations.harness.node import INLINE_APPEND_BYTES, NodeOnMachine
from metaquorum.simulations.kernel.clock import EPOCH_S
from metaquorum.simulations.kernel.world import World
from metaquorum.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.protocol.headers import decode_response, encode_request
from metaquorum.wire.records.records import (
    Record,
    batches,
    decode_records,
    encode_batch,
    parse_header,
)
from metaquorum.wire.schema.message import Message
from tests.nodes import PATIENCE_S
from tests.suite.first_argument import given_first

P = ParamSpec("P")

WORLD_BEGAN_MS = int(EPOCH_S * 1000)  # when simulated time begins; long past on this machine
# Both know topics by their names, so that tests need not learn ids first.
PRODUCE_VERSION = 9
FETCH_VERSION = 12


def in_trio(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a coroutine test under trio, with a timeout."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            with trio.fail_after(PATIENCE_S):
                await test(*args, **kwargs)

        trio.run(main)

    return run


class RawClient:
    """Client with one connection to a node."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._received = bytearray()
        self._buffer = bytearray(1 << 16)
        self._next_id = 0

    async def send(self, data: bytes) -> None:
        await self.connection.send(data)

    async def ask(self, api: int, message: Message, version: int | None = None) -> int:
        """Send the request; return its correlation id."""
        self._next_id += 1
        await self.send(request(api, message, version, self._next_id))
        return self._next_id

    async def frame(self) -> bytes:
        """Return the next response, without its size. Raises EOFError at the connection's end."""
        received = self._received
        while True:
            if len(received) >= 4:
                (size,) = struct.unpack_from(">i", received)
                if len(received) >= 4 + size:
                    frame = bytes(received[4 : 4 + size])
                    del received[: 4 + size]
                    return frame
            count = await self.connection.receive_into(self._buffer)
            if count == 0:
                raise EOFError
            received += self._buffer[:count]

    async def correlation_id(self) -> int:
        return int(struct.unpack_from(">i", await self.frame())[0])

    async def answer(self, api: int, version: int | None = None) -> Any:
        frame = await self.frame()
        return decode_response(api, version_of(api, version), memoryview(frame))[1]

    async def call(self, api: int, message: Message, version: int | None = None) -> Any:
        await self.ask(api, message, version)
        return await self.answer(api, version)

    async def is_closed(self) -> bool:
        """Wait for the end of the connection; return False if a response arrives instead."""
        try:
            await self.frame()
        except (EOFError, OSError):
            return True
        return False

    # Common operations

    async def delete(self, name: str) -> int:
        """Delete the topic; return its error code."""
        asked = DeleteTopicsRequest(topic_names=[name], timeout_ms=100_000)
        answer = await self.call(ApiKey.DELETE_TOPICS, asked, 5)
        return int(answer.responses[0].error_code)

    async def create(self, name: str, partitions: int = 1, **configs: object) -> Any:
        """Create the topic; return its row. Configs are written with _ for the dots.

        The cluster has given out the first block of producer ids then: tests may use ids of it.
        """
        await self.call(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None))
        texts = {key.replace("_", "."): str(value) for key, value in configs.items()}
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=k, value=v) for k, v in texts.items()],
        )
        asked = CreateTopicsRequest(topics=[topic], timeout_ms=100_000)
        return (await self.call(ApiKey.CREATE_TOPICS, asked)).topics[0]

    async def produce(
        self,
        topic: str,
        batch: bytes | bytearray | None,
        *,
        partition: int = 0,
        acks: int = -1,
        error: int = ErrorCode.NONE,
    ) -> Any:
        """Produce to the partition; return its row, which must have `error`."""
        message = produce_message(topic, batch, partition=partition, acks=acks)
        answer = await self.call(ApiKey.PRODUCE, message, PRODUCE_VERSION)
        row = answer.responses[0].partition_responses[0]
        assert row.error_code == error, row
        return row

    async def fetch(self, topic: str, offset: int = 0, **options: int) -> Any:
        """Fetch from the partition; return its row of the response."""
        message = fetch_message({topic: [(0, offset)]}, **options)
        answer = await self.call(ApiKey.FETCH, message, FETCH_VERSION)
        return answer.responses[0].partitions[0]

    async def values(self, topic: str, offset: int = 0) -> list[bytes | None]:
        """Return the values of all records from `offset` to the log end offset of this moment."""
        found: list[bytes | None] = []
        end = None
        while end is None or offset < end:
            row = await self.fetch(topic, offset)
            assert row.error_code == 0, row
            end = row.high_watermark if end is None else end
            records = records_of(row)
            if not records:
                return found
            found += [record.value for record in records if record.offset >= offset]
            offset = records[-1].offset + 1
        return found


def version_of(api: int, version: int | None) -> int:
    return APIS[api].max_version if version is None else version


def request(
    api: int, message: Message, version: int | None = None, correlation_id: int = 1
) -> bytes:
    return bytes(encode_request(api, version_of(api, version), correlation_id, "test", message))


def frame(api: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """Return a request with any content, in a version that is not flexible."""
    header = struct.pack(">hhih", api, version, correlation_id, 4) + b"test"
    return struct.pack(">i", len(header + body)) + header + body


def produce_message(
    topic: str, batch: bytes | bytearray | None, *, partition: int = 0, acks: int = -1
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def fetch_message(
    topics: Mapping[str, list[tuple[int, int]]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
) -> FetchRequest:
    """`topics`: name to (partition, offset)."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=[
            FetchTopic(
                topic=name,
                partitions=[
                    FetchPartition(
                        partition=index,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        current_leader_epoch=current_leader_epoch,
                        last_fetched_epoch=last_fetched_epoch,
                    )
                    for index, offset in partitions
                ],
            )
            for name, partitions in topics.items()
        ],
    )


def batch_of(*values: bytes, timestamp: int = WORLD_BEGAN_MS, **options: Any) -> bytearray:
    return encode_batch([Record(i, timestamp, None, v) for i, v in enumerate(values)], **options)


def append_unvalidated(partition: Partition, batch: bytearray) -> None:
    """Append the batch without validation, as a version that did not check records would."""
    header = parse_header(batch)
    partition.log.append(batch, header, partition.leader_epoch, header.max_timestamp)
    partition.appended(header.batch_bytes)


def records_of(row: Any) -> list[Record]:
    """Return the records of the complete batches in a row of a fetch response."""
    data = bytes(row.records or b"")
    return [record for at, _ in batches(data) for record in decode_records(data, at)]


def config(data_dir: Path | str, log_dirs: Sequence[Path] = (), **configs: object) -> NodeConfig:
    return NodeConfig(
        node_id=1,
        data_dir=str(data_dir),
        log_dirs=tuple(str(path) for path in log_dirs),
        listen=("127.0.0.1", 0),
        advertise=("127.0.0.1", None),
        inline_append_bytes=INLINE_APPEND_BYTES,
        configs={key.replace("_", "."): str(value) for key, value in configs.items()},
    )


class FaultyDisk(RealDisk):
    """This machine's disk, with failures that a test injects."""

    def __init__(self) -> None:
        self.faults: dict[str, tuple[str, int]] = {}  # action to (part of the path, errno)
        self.synced: list[str] = []
        self.refused: list[str] = []  # paths of the actions that have failed

    def fail(self, action: str, path_part: str, number: int) -> None:
        """Make `action` fail from now on: open, write, sync, rename, sync_dir or read."""
        self.faults[action] = path_part, number

    def check(self, action: str, path: str) -> None:
        path_part, number = self.faults.get(action, ("", 0))
        if number and path_part in path:
            self.refused.append(path)
            raise OSError(number, os.strerror(number), path)

    def open(self, path: str, *, create: bool = False) -> File:
        if create or not self.exists(path):
            self.check("create", path)
        self.check("open", path)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return FaultyFile(path, os.open(path, flags, 0o644), self)

    def read_file(self, path: str) -> bytes:
        self.check("read", path)
        return super().read_file(path)

    def rename(self, source: str, target: str) -> None:
        self.check("rename", source)
        super().rename(source, target)

    def remove_tree(self, path: str) -> None:
        self.check("remove_tree", path)
        super().remove_tree(path)

    def sync_all(self, path: str) -> bool:
        return False  # file by file, each of which may fail

    def sync_dir(self, path: str) -> None:
        self.check("sync_dir", path)
        super().sync_dir(path)


class FaultyFile(RealFile):
    def __init__(self, path: str, fd: int, disk: FaultyDisk) -> None:
        super().__init__(path, fd, disk)
        self._disk = disk

    def write(self, data: Buffer, position: int) -> None:
        self._disk.check("write", self.path)
        super().write(data, position)

    def read(self, size: int, position: int) -> bytes:
        self._disk.check("read", self.path)
        return super().read(size, position)

    def sync(self) -> None:
        self._disk.check("sync", self.path)
        super().sync()
        self._disk.synced.append(self.path)


class Served:
    """A running node and its clients."""

    def __init__(self, node: Node, network: Network) -> None:
        self.node = node
        self.clients: list[RawClient] = []
        self._network = network
        self._address = node.address

    @property
    def worker(self) -> Any:
        assert self.node.worker is not None
        return self.node.worker

    async def connect(self) -> RawClient:
        self.clients.append(RawClient(await self._network.connect(*self._address)))
        return self.clients[-1]


@asynccontextmanager
async def serving(
    data_dir: Path,
    *,
    disk: Disk | None = None,
    network: Network | None = None,
    clock: Clock | None = None,
    log_dirs: Sequence[Path] = (),
    metrics: bool = False,
    **configs: object,
) -> AsyncIterator[Served]:
    """Run a node on this machine, and stop it cleanly after the block."""
    real = real_runtime()
    runtime = Runtime(clock or real.clock, network or real.network, disk or real.disk, real.random)
    asked = config(data_dir, log_dirs, **configs)
    if metrics:
        asked = dataclasses.replace(asked, metrics_listen=("127.0.0.1", 0))
    node = Node(asked, runtime)
    ready, ended = trio.Event(), trio.Event()

    async def run() -> None:
        try:
            await node.run(lambda _: ready.set())
        finally:
            ready.set()
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await ready.wait()
        if not ended.is_set():
            served = Served(node, runtime.network)
            try:
                yield served
            finally:
                for client in served.clients:
                    client.connection.close()
                node.stop()


def listening(texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a NodeConfig that say where clients come in, as these configs do."""
    static = WorkerLayers(texts).worker_configs()
    listeners = client_listeners(static)
    return {
        "listeners": listeners,
        "replicating": replicating(static, listeners) if listeners else None,
    }


class Simulated:
    """A node on a machine of a simulated world, and the client's machine."""

    def __init__(self, world: World, node: NodeOnMachine, runtime: Runtime, port: int) -> None:
        self.world = world
        self.on_machine = node
        self.runtime = runtime
        self._port = port
        self._others: dict[str, Runtime] = {}  # runtimes by machine, but for the client's

    @property
    def worker(self) -> Any:
        assert self.on_machine.node is not None
        assert self.on_machine.node.worker is not None
        return self.on_machine.node.worker

    @property
    def now(self) -> float:
        return self.world.now

    async def connect(self, host: str | None = None) -> RawClient:
        """Connect from the client's machine, or from another one, which is created."""
        runtime = self.runtime if host is None else await self._runtime_of(host)
        name = self.on_machine.machine.name
        return RawClient(await runtime.network.connect(name, self._port))

    async def _runtime_of(self, host: str) -> Runtime:
        if host not in self._others:
            runtimes: list[Runtime] = []

            async def idle(runtime: Runtime) -> None:
                runtimes.append(runtime)
                await trio.sleep_forever()

            self.world.machine(host).start(idle)
            while not runtimes:
                await trio.lowlevel.checkpoint()
            (self._others[host],) = runtimes
        return self._others[host]


def run_simulated(
    scenario: Callable[[Simulated], Awaitable[None]],
    *,
    seed: int = 1,
    log_dirs: Sequence[str] = (),
    dotted: Mapping[str, str] | None = None,
    **configs: object,
) -> World:
    """Run the scenario to its end with a node of its own; return the world.

    Configs are written with _ for the dots; `dotted` ones as they are.
    """
    world = World(seed)

    async def main(world: World) -> None:
        machine, other = world.machine("server"), world.machine("client")
        texts = {key.replace("_", "."): str(value) for key, value in configs.items()}
        texts |= dotted or {}
        node = NodeOnMachine(
            world, machine, 9092, texts, log_dirs=tuple(log_dirs), **listening(texts)
        )
        fate = await node.start()
        assert not fate.done.is_set(), fate.error

        async def client(runtime: Runtime) -> None:
            await scenario(Simulated(world, node, runtime, 9092))

        told = other.start(client)
        await told.done.wait()
        if told.error is not None:
            raise told.error

    world.run(main)
    for violation in world.violations:
        raise violation
    return world


def simulated(**options: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an async test with a node of its own; `options` are those of `run_simulated`."""
    return given_first(functools.partial(run_simulated, **options))
