"""The test plan of KIP-73 among whole nodes, in virtual time: 100 partitions of two replicas.

A worker that comes back after its log is far behind represents a worker that replicas move to.
"""

from collections.abc import Mapping
from functools import partial

import pytest
import trio

from tests.dataplane.replication.throttling.test_throttling import (
    BATCH,
    BATCH_BYTES,
    RATE,
    SMALL,
    throttle,
)
from tests.dataplane.replication.together import Together, together
from wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from wire.primitives.errors import ErrorCode
from wire.protocol.apis import ApiKey

PARTITIONS = 100


async def create(cluster: Together, topic: str, replicas: Mapping[int, tuple[int, ...]]) -> None:
    """Create the topic with the replicas of each partition; the first one leads."""
    client = await cluster.connect(1)
    asked = CreatableTopic(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(ids))
            for index, ids in replicas.items()
        ],
        configs=[],
    )
    message = CreateTopicsRequest(topics=[asked], timeout_ms=20_000)
    answer = await client.call(ApiKey.CREATE_TOPICS, message)
    assert answer.topics[0].error_code == ErrorCode.NONE
    await cluster.until(lambda: all(cluster.worker(n).image.topic(topic) for n in cluster.nodes))


class Backlog:
    """A topic whose followers, on the workers `behind`, have not fetched all records."""

    def __init__(
        self, cluster: Together, leaders: tuple[int, ...], behind: tuple[int, ...]
    ) -> None:
        self.cluster = cluster
        self.leader_of = {n: leaders[n % len(leaders)] for n in range(PARTITIONS)}
        self.follower_of = {n: behind[n // len(leaders) % len(behind)] for n in range(PARTITIONS)}
        self.behind = behind

    async def create(self) -> None:
        pairs = {n: (self.leader_of[n], self.follower_of[n]) for n in range(PARTITIONS)}
        await create(self.cluster, "t", pairs)

    def is_out(self, node_id: int) -> bool:
        """Return whether the follower on that worker has left all its ISRs."""
        states = enumerate(self.cluster.worker(1).image.topic("t").partitions)
        return not any(
            node_id in state.isr for n, state in states if self.follower_of[n] == node_id
        )

    async def produce(self, rounds: int, *, only: int | None = None, pause_s: float = 0.0) -> None:
        """Produce a batch to each partition in each round; `only` those of that follower."""
        clients = {n: await self.cluster.connect(n) for n in set(self.leader_of.values())}
        for _ in range(rounds):
            for partition, leader in self.leader_of.items():
                if only not in (None, self.follower_of[partition]):
                    continue
                await clients[leader].produce("t", bytearray(BATCH), partition=partition, acks=1)
                if pause_s:
                    await self.cluster.world.sleep(pause_s)

    def missing(self) -> dict[int, int]:
        """Return the number of batches that each follower is missing, by partition."""
        return {
            n: self.cluster.replica(self.leader_of[n], "t", n).log.log_end_offset
            - self.cluster.replica(self.follower_of[n], "t", n).log.log_end_offset
            for n in range(PARTITIONS)
        }


@pytest.mark.slow
@pytest.mark.parametrize("inbound", [0, RATE // 5 * 2])
@pytest.mark.parametrize(
    ("leaders", "behind", "side"),
    [
        ((1,), (3,), "leader"),
        ((1,), (3,), "follower"),
        ((1,), (2, 3), "leader"),  # one to two: the leader's rate holds
        ((1, 2), (3,), "follower"),  # two to one: the follower's rate holds
    ],
)
def test_replicas_move_at_the_rate_of_the_quota_less_the_inbound_rate(
    leaders: tuple[int, ...], behind: tuple[int, ...], side: str, inbound: int
) -> None:
    async def scenario(cluster: Together) -> None:
        backlog = Backlog(cluster, leaders, behind)
        await backlog.create()
        await throttle(cluster, side, ("t",), rate=1)
        for node_id in behind:
            await cluster.kill(node_id)
            await cluster.until(partial(backlog.is_out, node_id))
            await backlog.produce(6, only=node_id)
            await cluster.world.sleep(2)  # above replica.lag.time.max.ms
            await cluster.restart(node_id)
        await throttle(cluster, side, ("t",), rate=RATE)
        async with trio.open_nursery() as nursery:
            if inbound:
                pause_s = BATCH_BYTES / inbound
                rounds = round(100 / pause_s / PARTITIONS)
                nursery.start_soon(partial(backlog.produce, rounds, pause_s=pause_s))
            await cluster.world.sleep(11)  # the first window
            before, began = backlog.missing(), cluster.world.now
            await cluster.world.sleep(60)
            after, seconds = backlog.missing(), cluster.world.now - began
            progress = (sum(before.values()) - sum(after.values())) * BATCH_BYTES / seconds
            tolerance = 0.01 * RATE + 4 * BATCH_BYTES / seconds  # and one response
            assert progress == pytest.approx(RATE - inbound, abs=tolerance)
            assert min(after.values()) > 0
            nursery.cancel_scope.cancel()

    together(scenario, **SMALL)
