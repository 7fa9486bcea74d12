"""Three nodes: groups and transactions continue while the partition of their coordinator moves."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from metaquorum.dataplane.coordinators.transaction.transaction import State
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from metaquorum.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from metaquorum.wire.messages.end_txn import EndTxnRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.groups.clients import GroupClient
from tests.dataplane.replication.moves.moving import is_gone, move
from tests.dataplane.replication.together import NODES, Together, together

E = ErrorCode
RETRIABLE = {
    E.COORDINATOR_NOT_AVAILABLE,
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.NOT_COORDINATOR,
    E.CONCURRENT_TRANSACTIONS,
}
CONFIGS = {
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 2,
    "transaction_state_log_num_partitions": 1,
    "transaction_state_log_replication_factor": 2,
    "group_initial_rebalance_delay_ms": 0,
}
GROUP, TRANSACTION = 0, 1  # types of a key in FindCoordinator
PAUSE_S = 0.005
LONGEST_S = 1.0  # most virtual seconds of one operation, retries included


class Coordinated:
    """A client of the coordinators of group `g` and of transactional id `tx`."""

    def __init__(self, cluster: Together) -> None:
        self._cluster = cluster
        self._clients: dict[int, GroupClient] = {}
        self.longest_s = 0.0
        self.retried: set[int] = set()  # error codes
        self.coordinators: dict[int, list[int]] = {GROUP: [], TRANSACTION: []}

    async def _client(self, node: int) -> GroupClient:
        if node not in self._clients:
            self._clients[node] = GroupClient(await self._cluster.connect(node))
        return self._clients[node]

    async def _find(self, kind: int) -> GroupClient:
        asked = FindCoordinatorRequest(coordinator_keys=["g" if kind == GROUP else "tx"])
        asked.key_type = kind
        while True:
            client = await self._client(1)
            (found,) = (await client.call(ApiKey.FIND_COORDINATOR, asked)).coordinators
            if found.error_code == E.NONE:
                known = self.coordinators[kind]
                if known[-1:] != [found.node_id]:
                    known.append(found.node_id)
                return await self._client(found.node_id)
            assert found.error_code in RETRIABLE
            await self._cluster.world.sleep(PAUSE_S)

    async def ask(self, kind: int, operation: Callable[[GroupClient], Awaitable[int]]) -> None:
        """Repeat the operation at the coordinator until it succeeds."""
        began = self._cluster.world.now
        while code := await operation(await self._find(kind)):
            assert code in RETRIABLE, E(code)
            self.retried.add(code)
            await self._cluster.world.sleep(PAUSE_S)
        self.longest_s = max(self.longest_s, self._cluster.world.now - began)

    async def call(self, kind: int, api: ApiKey, asked: Any, version: int) -> Any:
        """Send the request to the coordinator until it succeeds; return the response."""
        answers = []

        async def send(client: GroupClient) -> int:
            answers.append(await client.call(api, asked, version))
            return int(answers[-1].error_code)

        await self.ask(kind, send)
        return answers[-1]


class Member(Coordinated):
    """The only member of the group, which commits increasing offsets."""

    def __init__(self, cluster: Together) -> None:
        super().__init__(cluster)
        self.committed = 0
        self.joined: Any = None

    async def join(self) -> None:
        client = await self._find(GROUP)
        worker = self._cluster.worker(self.coordinators[GROUP][-1])
        await self._cluster.until(lambda: worker.groups.shards and not worker.groups.is_loading)
        self.joined = await client.stable()

    async def commit(self) -> None:
        offset = self.committed + 1

        async def send(client: GroupClient) -> int:
            of = {"generation": self.joined.generation_id, "member_id": self.joined.member_id}
            (code,) = await client.commit(offset, **of)
            return code

        await self.ask(GROUP, send)
        self.committed = offset

    async def is_in_its_generation(self) -> bool:
        return await (await self._find(GROUP)).heartbeat(self.joined) == E.NONE

    async def read(self) -> int:
        return (await (await self._find(GROUP)).committed())[0]


class Transactor(Coordinated):
    """A producer that commits increasing offsets of the group `g` in transactions."""

    def __init__(self, cluster: Together) -> None:
        super().__init__(cluster)
        self.committed = 0
        self._fields: dict[str, Any] = {}

    async def init(self) -> None:
        asked = InitProducerIdRequest(
            transactional_id="tx", transaction_timeout_ms=60_000, producer_id=-1
        )
        answer = await self.call(TRANSACTION, ApiKey.INIT_PRODUCER_ID, asked, 5)
        producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        self._fields = {"transactional_id": "tx", **producer}

    async def transact(self, *, commit: bool = True) -> None:
        offset = self.committed + 1
        adding = AddOffsetsToTxnRequest(group_id="g", **self._fields)
        await self.call(TRANSACTION, ApiKey.ADD_OFFSETS_TO_TXN, adding, 3)
        row = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset if commit else -7, committed_metadata=""
        )
        topics = [TxnOffsetCommitRequestTopic(name="t", partitions=[row])]
        committing = TxnOffsetCommitRequest(group_id="g", topics=topics, **self._fields)

        async def send(client: GroupClient) -> int:
            answer = await client.call(ApiKey.TXN_OFFSET_COMMIT, committing, 3)
            return int(answer.topics[0].partitions[0].error_code)

        await self.ask(GROUP, send)
        ending = EndTxnRequest(committed=commit, **self._fields)
        await self.call(TRANSACTION, ApiKey.END_TXN, ending, 4)
        if commit:
            self.committed = offset


async def prepare(cluster: Together) -> None:
    """Create the internal topics, and the topic of the offsets."""
    await cluster.create("t")
    for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        await cluster.worker(1).internal_topics.ensure(topic)
    await cluster.until(
        lambda: all(
            cluster.worker(node).image.topic(topic)
            for node in NODES
            for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE)
        )
    )


async def moved_under_load(
    cluster: Together, topic: str, load: Callable[[], Awaitable[None]]
) -> list[int]:
    """Move the topic's partition among the workers during `load`; return the targets' leaders."""
    first, second = cluster.state(topic, 1).replicas
    (third,) = set(NODES) - {first, second}
    targets = [(third,), (second, first), (third, first)]
    is_over = False
    async with trio.open_nursery() as nursery:

        async def keep_on() -> None:
            while not is_over:
                await load()

        nursery.start_soon(keep_on)
        await cluster.world.sleep(0.2)
        for target in targets:
            await move(cluster, topic, *target)
            await cluster.world.sleep(0.3)
        is_over = True
    await cluster.until(lambda: is_gone(cluster, second, topic))
    return [target[0] for target in targets]


@together(**CONFIGS)
async def test_a_group_goes_on_while_the_partition_of_its_coordinator_moves(
    cluster: Together,
) -> None:
    await prepare(cluster)
    member = Member(cluster)
    await member.join()
    leaders = await moved_under_load(cluster, CONSUMER_OFFSETS, member.commit)
    assert member.coordinators[GROUP][1:] == leaders
    assert member.longest_s < LONGEST_S
    assert member.retried
    assert member.committed > 50
    await member.commit()
    assert await member.read() == member.committed
    assert await member.is_in_its_generation()


@pytest.mark.parametrize(
    ("topic", "kind"), [(TRANSACTION_STATE, TRANSACTION), (CONSUMER_OFFSETS, GROUP)]
)
@together(**CONFIGS)
async def test_transactions_go_on_while_the_partition_of_a_coordinator_moves(
    cluster: Together, topic: str, kind: int
) -> None:
    await prepare(cluster)
    producer = Transactor(cluster)
    await producer.init()
    leaders = await moved_under_load(cluster, topic, producer.transact)
    assert producer.coordinators[kind][-3:] == leaders
    assert producer.longest_s < LONGEST_S
    assert producer.retried
    assert producer.committed > 20
    await producer.transact(commit=False)
    await producer.transact()

    def has_ended() -> bool:
        coordinators = [cluster.worker(node).transactions for node in NODES]
        return sum(each.counts()[State.COMPLETE_COMMIT] for each in coordinators) == 1

    await cluster.until(has_ended)
    assert await Member(cluster).read() == producer.committed
