"""The shipped group consumer on simulated machines: members die, and the node is killed."""

from collections import Counter

import pytest
import trio

from metaquorum.client import InterruptedChangeError, connect
from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.errors import AdminError, BrokerError
from metaquorum.client.groups.group_config import GroupConfig, OffsetReset
from metaquorum.client.groups.trio_consumer import open_group_consumer
from metaquorum.client.producer import Producer, ProducerRecord
from metaquorum.client.values import NewTopic
from metaquorum.runtime.interfaces import Runtime
from metaquorum.simulations.harness.node import NodeOnMachine
from metaquorum.simulations.kernel.machine import Fate, Machine
from metaquorum.simulations.kernel.world import World

PORT = 9092
PARTITIONS = 3
RECORDS = 150
BURST = 10  # more than a poll returns: records wait in the consumer
MEMBERS = 3
CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "2",
}
BOOTSTRAP = f"server:{PORT}"


class Scenario:
    """Members that process each record before its offset is committed."""

    def __init__(self, world: World, assignors: tuple[str, ...]) -> None:
        self.world = world
        self.config = GroupConfig(
            "g",
            session_timeout_s=5.0,
            heartbeat_interval_s=0.5,
            max_poll_interval_s=20.0,
            assignors=assignors,
            auto_offset_reset=OffsetReset.EARLIEST,
            auto_commit_interval_s=0.5,
            max_poll_records=2,
        )
        self.processed: Counter[bytes | None] = Counter()
        self.done = trio.Event()
        self.fates: list[Fate] = []
        server = world.machine("server")
        self.node = NodeOnMachine(world, server, PORT, CONFIGS)

    async def member(self, runtime: Runtime) -> None:
        """Consume until the end; after an error that a program would restart for, join again."""
        while not self.done.is_set():
            try:
                async with (
                    connect(BOOTSTRAP, timeout_s=60, runtime=runtime) as cluster,
                    open_group_consumer(cluster, self.config, ["t"]) as consumer,
                ):
                    while not self.done.is_set():
                        for record in await consumer.poll(0.2):
                            self.processed[record.value] += 1
                            await runtime.clock.sleep_until(runtime.clock.monotonic() + 0.1)
                        self.world.count("polls")
            except (AdminError, BrokerError):
                self.world.count("restarts")

    async def produce(self, runtime: Runtime) -> None:
        async with connect(BOOTSTRAP, timeout_s=60, runtime=runtime) as cluster:
            await create(AdminClient(cluster))
            producer = Producer(cluster)
            for first in range(0, RECORDS, BURST):
                partition = first // BURST % PARTITIONS
                burst = [
                    ProducerRecord(b"%d" % number, partition=partition)
                    for number in range(first, first + BURST)
                ]
                await producer.send("t", burst)
                await runtime.clock.sleep_until(runtime.clock.monotonic() + 0.5)
            while len(self.processed) < RECORDS:
                await runtime.clock.sleep_until(runtime.clock.monotonic() + 0.2)
            self.done.set()

    async def kill_nodes(self) -> None:
        draw = self.world.stream("kills")
        server = self.node.machine
        while not self.done.is_set():
            server.stop_at_disk_change(draw.randint(40, 160), "kill")
            with trio.move_on_after(5):
                await server.fate.done.wait()
                self.world.count("kills")
                await self.node.start()

    async def kill_members(self, machines: list[Machine]) -> None:
        draw = self.world.stream("members")
        while not self.done.is_set():
            await trio.sleep(draw.uniform(2, 6))
            machine = draw.choice(machines)
            machine.kill()
            self.world.count("members killed")
            await trio.sleep(draw.uniform(0, 2))
            self.fates.append(machine.start(self.member))

    async def run(self) -> None:
        await self.node.start()
        machines = [self.world.machine(f"member{number}") for number in range(MEMBERS)]
        for machine in machines:
            self.fates.append(machine.start(self.member))
        producer = self.world.machine("producer")
        fate = producer.start(self.produce)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.kill_nodes)
            nursery.start_soon(self.kill_members, machines)
            with trio.fail_after(900):
                await fate.done.wait()
            nursery.cancel_scope.cancel()
        for each in (fate, *self.fates):
            if each.error is not None:
                raise each.error
        assert set(self.processed) == {b"%d" % number for number in range(RECORDS)}


async def create(admin: AdminClient) -> None:
    """Create the topic; an interrupted request may have created it, so look it up first."""
    while "t" not in [topic.name for topic in await admin.topics()]:
        try:
            await admin.create_topics([NewTopic("t", PARTITIONS, 1, {"flush.messages": "1"})])
        except InterruptedChangeError:
            pass


@pytest.mark.slow
def test_every_record_is_processed_while_members_and_the_node_are_killed() -> None:
    totals: Counter[str] = Counter()
    for seed in range(5):
        for assignors in (("range",), ("cooperative-sticky",)):
            world = World(seed)

            async def main(world: World, assignors: tuple[str, ...] = assignors) -> None:
                await Scenario(world, assignors).run()

            world.run(main)
            assert not world.violations
            totals.update(world.counts)
    assert totals["kills"] > 5
    assert totals["members killed"] > 10
