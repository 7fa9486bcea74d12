"""Three complete nodes, each controller and worker, in a simulated world with virtual time."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from metaquorum.dataplane.network.worker_addresses import live_worker_ids
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.runtime import Runtime
from metaquorum.simulations.harness.node import NodeOnMachine
from metaquorum.simulations.kernel.machine import Fate
from metaquorum.simulations.kernel.world import World
from metaquorum.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import RawClient
from tests.suite.first_argument import IN_CLUSTER, given_first

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
PORT = 9092
QUORUM_PORT = 9093
NODES = (1, 2, 3)


class Together:
    """The nodes by number, and a client's machine."""

    def __init__(self, world: World, nodes: dict[int, NodeOnMachine], runtime: Runtime) -> None:
        self.world = world
        self.nodes = nodes
        self.runtime = runtime
        self._network = runtime.network

    async def connect(self, node_id: int, port: int = PORT) -> RawClient:
        return RawClient(await self._network.connect(f"node-{node_id}", port))

    def worker(self, node_id: int) -> Any:
        node = self.nodes[node_id].node
        assert node is not None
        assert node.worker is not None
        return node.worker

    def replica(self, node_id: int, topic: str, index: int = 0) -> Partition:
        found: Partition = self.worker(node_id).replica_manager.by_name(topic, index)
        return found

    async def until(self, condition: Callable[[], object], limit_s: float = 30.0) -> None:
        """Wait for the condition. Raises AssertionError after `limit_s` of virtual time."""
        with trio.move_on_after(limit_s):
            while not condition():
                await self.world.sleep(0.01)
        assert condition()

    async def kill(self, node_id: int) -> None:
        self.nodes[node_id].machine.kill()
        await trio.lowlevel.checkpoint()

    async def restart(self, node_id: int) -> Fate:
        if self.nodes[node_id].machine.running:
            await self.nodes[node_id].stop()
        return await self.nodes[node_id].start()

    # Client operations

    async def create(
        self, topic: str, replicas: tuple[int, ...] = NODES, **configs: object
    ) -> None:
        """Create a topic with one partition on those workers; wait until all live nodes know it.

        The cluster has given out the first block of producer ids then: tests may use ids of it.
        """
        live = [node_id for node_id in self.nodes if self.nodes[node_id].serving]
        client = await self.connect(live[0])
        await client.call(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None))
        asked = CreatableTopic(
            name=topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))],
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
                for key, value in configs.items()
            ],
        )
        answer = await client.call(
            ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked], timeout_ms=20_000)
        )
        assert answer.topics[0].error_code == ErrorCode.NONE, answer.topics[0]
        topic_id = answer.topics[0].topic_id
        client.connection.close()

        def is_everywhere() -> bool:
            images = [self.worker(node_id).image for node_id in live]
            return all(image.topic_by_id(topic_id) is not None for image in images)

        await self.until(is_everywhere)

    async def create_offsets_topic(self) -> int:
        """Create the offsets topic as worker 1 does on first use; return the first leader's id."""
        topic = await self.worker(1).internal_topics.ensure()
        live = [node_id for node_id in self.nodes if self.nodes[node_id].serving]
        await self.until(
            lambda: all(self.worker(node_id).image.topic(topic.name) for node_id in live)
        )
        return int(topic.partitions[0].leader)

    async def described(self, node_id: int, topic: str) -> Any:
        """Return the first partition of the topic, as that worker describes it."""
        client = await self.connect(node_id)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        answer = await client.call(ApiKey.METADATA, asked)
        client.connection.close()
        return answer.topics[0].partitions[0]

    def state(self, topic: str, seen_by: int) -> Any:
        """Return the first partition's state in the worker's metadata; None without the topic."""
        found = self.worker(seen_by).image.topic(topic)
        return None if found is None else found.partitions[0]


def run_together(
    scenario: Callable[[Together], Awaitable[None]], *, seed: int = 1, **options: object
) -> World:
    """Run the scenario to its end with three running nodes; return the world.

    Options are worker configs with _ for the dots, and `node_options`: fields of each NodeConfig.
    """
    world = World(seed)
    node_options: Callable[[int], dict[str, Any]] = options.pop(  # type: ignore[assignment]
        "node_options", lambda _: {}
    )
    texts = {key.replace("_", "."): str(value) for key, value in options.items()}

    async def main(world: World) -> None:
        other = world.machine("client")
        controllers = {node_id: (f"node-{node_id}", QUORUM_PORT) for node_id in NODES}
        nodes = {
            node_id: NodeOnMachine(
                world,
                world.machine(f"node-{node_id}"),
                PORT,
                texts,
                node_id=node_id,
                controllers=controllers,
                cluster_id=CLUSTER_ID,
                secret=b"a secret of the cluster, and long",
                **node_options(node_id),
            )
            for node_id in NODES
        }
        async with trio.open_nursery() as nursery:
            for node in nodes.values():
                nursery.start_soon(node.start)

        async def client(runtime: Runtime) -> None:
            cluster = Together(world, nodes, runtime)
            everybody = set(NODES)
            await cluster.until(
                lambda: all(
                    everybody == set(live_worker_ids(cluster.worker(n).image)) for n in NODES
                )
            )
            await scenario(cluster)

        told = other.start(client)
        await told.done.wait()
        failed.extend(
            fate.error
            for fate in (*(node.machine.fate for node in nodes.values()), told)
            if fate.error is not None
        )

    failed: list[BaseException] = []
    world.run(main)
    for error in failed:
        raise error
    for violation in world.violations:
        raise violation
    return world


def together(**options: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an async test with three running nodes; `options` are those of `run_together`."""
    return given_first(partial(run_together, **options), **{IN_CLUSTER: True})
