"""Producers and readers of transactions for tests, and a network that loses answers."""

from collections.abc import Iterator
from contextlib import contextmanager

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.consumer import Consumer, Start
from metaquorum.client.producer import ProducerRecord
from metaquorum.client.socket_transport import (
    BlockingAdmin,
    BlockingConsumer,
    BlockingStream,
    BlockingTransport,
    connect,
)
from metaquorum.client.transactions.blocking import BlockingTransactionalProducer
from metaquorum.client.transactions.transactional_producer import TransactionalProducer
from metaquorum.client.values import NewTopic
from metaquorum.wire.primitives.types import Buffer
from tests.nodes import PATIENCE_S, Peer, unique, wait_until

LEVELS = (0, 1, 2)


class AtLevel(TransactionalProducer):
    """Producer that takes a level of transaction.version for that of the cluster.

    A cluster at level 2 serves producers of the lower levels, too.
    """

    fixed_level: int | None = None

    async def _feature_level(self, deadline: float) -> int:
        own = await super()._feature_level(deadline)
        return own if self.fixed_level is None else self.fixed_level


def producer(
    cluster: Cluster, name: str, level: int | None = None, timeout_s: float = 60.0
) -> BlockingTransactionalProducer:
    client = AtLevel(cluster, name, transaction_timeout_s=timeout_s)
    client.fixed_level = level
    return BlockingTransactionalProducer(client)


def values(*texts: str, partition: int | None = 0) -> list[ProducerRecord]:
    return [ProducerRecord(text.encode(), partition=partition) for text in texts]


def read(cluster: Cluster, topic: str, *, committed: bool = True, partitions: int = 1) -> list[str]:
    """Return the values of a topic, from its start to what the isolation level reads."""
    where = [TopicPartition(topic, index) for index in range(partitions)]
    consumer = BlockingConsumer(Consumer(cluster, read_committed=committed))
    consumer.assign(dict.fromkeys(where, Start.beginning()))
    ends = consumer.end_offsets()
    found = []
    while any(consumer.client.positions[each] < ends[each] for each in where):
        found += [str(bytes(record.value or b""), "utf-8") for record in consumer.poll(1.0)]
    return found


def new_topic(cluster: Cluster, partitions: int = 1) -> str:
    name = unique("txn")
    admin = BlockingAdmin(cluster)
    admin.create_topics([NewTopic(name, partitions, 1)])

    def is_led() -> bool:
        topics = {topic.name: topic for topic in admin.topics()}
        return name in topics and all(p.leader is not None for p in topics[name].partitions)

    wait_until(is_led)
    return name


class LosingTransport(BlockingTransport):
    """Network that loses the answers to requests of some APIs: the connection fails instead.

    `losses`: the number of answers to lose, by API key.
    """

    def __init__(self) -> None:
        super().__init__()
        self.losses: dict[int, int] = {}
        self.lost = 0

    async def connect(self, host: str, port: int, deadline: float) -> BlockingStream:
        return _LosingStream(await super().connect(host, port, deadline), self)


class _LosingStream(BlockingStream):
    def __init__(self, stream: BlockingStream, transport: LosingTransport) -> None:
        super().__init__(stream._socket)
        self._transport = transport
        self._is_losing = False

    async def send(self, data: Buffer, deadline: float) -> None:
        api = int.from_bytes(bytes(memoryview(data)[4:6]), "big")  # after the size of the frame
        if self._transport.losses.get(api, 0) > 0:
            self._transport.losses[api] -= 1
            self._is_losing = True
        await super().send(data, deadline)

    async def receive_into(self, buffer: memoryview, deadline: float) -> int:
        count = await super().receive_into(buffer, deadline)
        if self._is_losing:  # the broker has processed the request
            self._transport.lost += 1
            raise ConnectionResetError("the test lost the answer")
        return count


@contextmanager
def losing(peer: Peer) -> Iterator[tuple[Cluster, LosingTransport]]:
    transport = LosingTransport()
    cluster = Cluster(transport, peer.bootstrap, timeout_s=PATIENCE_S)
    try:
        yield cluster, transport
    finally:
        cluster.close()


@contextmanager
def connected(peer: Peer) -> Iterator[Cluster]:
    with connect(peer.bootstrap, timeout_s=PATIENCE_S) as cluster:
        yield cluster
