"""Moves of 40 partitions among three whole nodes in virtual time, as in the test plan of KIP-73.

The plan has 100 partitions; what is moved, and its rate, do not depend on the number of partitions
that hold it, but each fetch looks at all of them.

A topic is filled, and its partitions are moved with the throttles that `kafka-reassign-partitions
--throttle` sets: replicas that a partition has already are throttled as leaders, those that it gets
as followers.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any

from metaquorum.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from metaquorum.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.test_admin_changes import BROKER, TOPIC, change
from tests.dataplane.replication.together import Together
from tests.dataplane.serving import PRODUCE_VERSION, batch_of, produce_message

PARTITIONS = 40
RATE = 60_000
BATCH = bytes(batch_of(bytes(2_000)))
BATCH_BYTES = len(BATCH)
SIDES = ("leader", "follower")
# Replicas before and after, the leader first.
Move = tuple[tuple[int, ...], tuple[int, ...]]
Moves = tuple[Move, ...]
# Small fetches, so that the size of a response does not show in the rates.
SMALL = {
    "replica_fetch_max_bytes": BATCH_BYTES,
    "replica_fetch_response_max_bytes": 4 * BATCH_BYTES,
}


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


class Experiment:
    """Topic t, whose partitions move from some replicas to others.

    `moves` has the replicas before and after: partition n moves as entry n % len(moves).
    """

    def __init__(self, cluster: Together, *moves: Move) -> None:
        self.cluster = cluster
        self.moves = {n: moves[n % len(moves)] for n in range(PARTITIONS)}
        self.produced = 0  # bytes, by `produce`

    def adding(self, partition: int) -> list[int]:
        before, after = self.moves[partition]
        return [each for each in after if each not in before]

    # Steps

    async def fill(self, batches: int) -> None:
        """Create the topic, with that many batches in each partition; all replicas are in sync."""
        await create(self.cluster, "t", {n: before for n, (before, _) in self.moves.items()})
        for leader, partitions in self._by_leader().items():
            client = await self.cluster.connect(leader)
            for _ in range(batches):
                rows = [PartitionProduceData(index=n, records=bytearray(BATCH)) for n in partitions]
                message = ProduceRequest(
                    acks=-1,
                    timeout_ms=10_000,
                    topic_data=[TopicProduceData(name="t", partition_data=rows)],
                )
                answer = await client.call(ApiKey.PRODUCE, message, PRODUCE_VERSION)
                errors = {row.error_code for row in answer.responses[0].partition_responses}
                assert errors == {ErrorCode.NONE}

    def _by_leader(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for n, state in enumerate(self.states()):
            found.setdefault(state.leader, []).append(n)
        return found

    async def produce(self, bytes_per_s: float) -> None:
        """Produce to one partition after the other at this rate, until cancelled."""
        clients = {n: await self.cluster.connect(n) for n in self.cluster.nodes}
        began = self.cluster.world.now
        for number in count():
            due = began + number * BATCH_BYTES / bytes_per_s
            await self.cluster.world.sleep(max(0.0, due - self.cluster.world.now))
            n = number % PARTITIONS
            message = produce_message("t", bytearray(BATCH), partition=n, acks=1)
            code = None
            while code != ErrorCode.NONE:  # a client finds the new leader when it has changed
                client = clients[self.states()[n].leader]
                answer = await client.call(ApiKey.PRODUCE, message, PRODUCE_VERSION)
                code = answer.responses[0].partition_responses[0].error_code
                assert code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.produced += BATCH_BYTES

    async def throttle(self, rate: int, *sides: str) -> None:
        """Throttle as `kafka-reassign-partitions --throttle`: the replicas, and all workers."""
        replicas = {
            "leader": [f"{n}:{id_}" for n, (before, _) in self.moves.items() for id_ in before],
            "follower": [f"{n}:{id_}" for n in self.moves for id_ in self.adding(n)],
        }
        client = await self.cluster.connect(1)
        lists = {
            f"{side}.replication.throttled.replicas": ",".join(replicas[side])
            for side in sides or SIDES
        }
        assert await change(client, TOPIC, "t", lists) == ErrorCode.NONE
        await self.limit(rate, *sides)

    async def limit(self, rate: int, *sides: str, worker: int | None = None) -> None:
        """Set the rate of that worker, or of all."""
        client = await self.cluster.connect(1)
        limits = {f"{side}.replication.throttled.rate": rate for side in sides or SIDES}
        name = "" if worker is None else str(worker)
        assert await change(client, BROKER, name, limits) == ErrorCode.NONE
        ids = list(self.cluster.nodes) if worker is None else [worker]
        await self.cluster.until(
            lambda: all(
                getattr(self.cluster.worker(id_).isr_manager.quotas, side).rate_limit == rate
                for id_ in ids
                for side in sides or SIDES
            )
        )

    async def start(self) -> None:
        client = await self.cluster.connect(1)
        rows = [
            ReassignablePartition(partition_index=n, replicas=list(after))
            for n, (_, after) in self.moves.items()
        ]
        asked = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name="t", partitions=rows)]
        )
        answer = await client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, asked)
        assert {row.error_code for row in answer.responses[0].partitions} == {ErrorCode.NONE}

    # Observations

    def states(self, seen_by: int = 1) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self.cluster.worker(seen_by).image.topic("t").partitions
        return found

    def has_moved(self) -> bool:
        return all(
            state.replicas == after and not state.is_moving
            for state, (_, after) in zip(self.states(), self.moves.values(), strict=True)
        )

    def earlier_replicas_are_in_sync(self) -> bool:
        """Return whether those that a partition had before are in sync while it moves."""
        return all(
            set(before) <= set(state.isr) or not state.is_moving
            for state, (before, _) in zip(self.states(), self.moves.values(), strict=True)
        )

    def missing(self) -> int:
        """Return the bytes that the added replicas do not have yet."""
        return BATCH_BYTES * sum(
            self.cluster.replica(state.leader, "t", n).log.log_end_offset
            - self.cluster.replica(id_, "t", n).log.log_end_offset
            for n, state in enumerate(self.states())
            for id_ in self.adding(n)
        )

    def lag(self) -> int:
        """Return SumReplicaLag of all workers: committed records that followers are missing."""
        return sum(
            self.cluster.worker(id_).fetchers.sum_of_lags()
            for id_, node in self.cluster.nodes.items()
            if node.serving
        )

    def throttled_bytes(self) -> dict[tuple[str, int], int]:
        """Return the bytes that each side of each worker has counted for its throttle."""
        return {
            (side, id_): getattr(self.cluster.worker(id_).isr_manager.quotas, side).bytes
            for side in SIDES
            for id_ in self.cluster.nodes
        }

    async def rates(self, seconds: float) -> tuple[dict[tuple[str, int], float], float, float]:
        """Return bytes per second from now on: throttled by side and worker, caught up, produced.

        What is caught up is the decrease of the bytes that are missing.
        """
        world = self.cluster.world
        began, before, missing, produced = (
            world.now,
            self.throttled_bytes(),
            self.missing(),
            self.produced,
        )
        await world.sleep(seconds)
        took_s, after = world.now - began, self.throttled_bytes()
        throttled = {at: (after[at] - before[at]) / took_s for at in before}
        caught_up = (missing - self.missing()) / took_s
        return throttled, caught_up, (self.produced - produced) / took_s
