"""The shipped admin client on a simulated machine, with a node that is killed repeatedly."""

import pytest
import trio

from metaquorum.client import InterruptedChangeError, TopicPartition, connect
from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.consumer import Consumer, Start
from metaquorum.client.producer import Producer, ProducerRecord
from metaquorum.client.values import NewTopic
from metaquorum.runtime.interfaces import Runtime
from metaquorum.simulations.harness.node import NodeOnMachine
from metaquorum.simulations.kernel.world import World

PORT = 9092
RECORDS = 60


async def scenario(world: World) -> None:
    """Produce and consume while the node is killed between any two changes of the disk."""
    draw = world.stream("kills")
    server, machine = world.machine("server"), world.machine("client")
    node = NodeOnMachine(world, server, PORT, {})
    where = TopicPartition("t", 0)
    values: list[bytes | None] = []
    done = trio.Event()

    async def work(runtime: Runtime) -> None:
        async with connect(f"server:{PORT}", timeout_s=60, runtime=runtime) as cluster:
            await _create(AdminClient(cluster))
            producer, consumer = Producer(cluster), Consumer(cluster)
            await consumer.assign({where: Start.beginning()})
            for number in range(RECORDS):
                await producer.send("t", [ProducerRecord(b"%d" % number)])
                if number % 10 == 9:
                    values.extend(record.value for record in await consumer.poll(0.1))
            while len(values) < RECORDS:
                values.extend(record.value for record in await consumer.poll(0.1))
        done.set()

    async def kill_now_and_then() -> None:
        while not done.is_set():
            server.stop_at_disk_change(draw.randint(10, 60), "kill")
            with trio.move_on_after(3):
                await server.fate.done.wait()
                world.count("kills")
                await node.start()

    await node.start()
    machine.start(work)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_now_and_then)
        with trio.fail_after(600):
            await done.wait()
        nursery.cancel_scope.cancel()
    assert values == [b"%d" % number for number in range(RECORDS)]
    await node.stop()


async def _create(admin: AdminClient) -> None:
    """Create the topic; an interrupted request may have created it, so look it up first."""
    while "t" not in [topic.name for topic in await admin.topics()]:
        try:
            await admin.create_topics([NewTopic("t", 1, 1, {"flush.messages": "1"})])
        except InterruptedChangeError:
            pass


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_the_node_is_killed() -> None:
    kills = 0
    for seed in range(12):
        world = World(seed)
        world.run(scenario)
        assert not world.violations
        kills += world.counts["kills"]
    assert kills > 10
