"""Producers of other projects commit and abort; readers with both isolation levels."""

import asyncio
from collections import Counter
from collections.abc import Callable

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import KafkaException

from tests.conformance.clients import create
from tests.conformance.transactions.copiers import Reader
from tests.nodes import PATIENCE_S, Peer, unique, wait_until

PARTITIONS = 3
EACH = 20

pytestmark = pytest.mark.slow

Produce = Callable[[str, str, str, int, bool], None]


def librdkafka(bootstrap: str, topic: str, name: str, number: int, commits: bool) -> None:
    producer = rdk_producer(bootstrap, name)
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for index in range(EACH):
        producer.produce(topic, f"{number}:{index}", partition=index % PARTITIONS)
    if commits:
        producer.commit_transaction(PATIENCE_S)
    else:
        producer.flush(PATIENCE_S)
        producer.abort_transaction(PATIENCE_S)


def rdk_producer(bootstrap: str, name: str) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, "log_level": 2}
    )


def kafka_python(bootstrap: str, topic: str, name: str, number: int, commits: bool) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    for index in range(EACH):
        producer.send(topic, f"{number}:{index}".encode(), partition=index % PARTITIONS)
    if commits:
        producer.commit_transaction()
    else:
        producer.flush()
        producer.abort_transaction()
    producer.close()


def aiokafka(bootstrap: str, topic: str, name: str, number: int, commits: bool) -> None:
    async def produce() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await producer.start()
        await producer.begin_transaction()
        sent = [
            await producer.send(topic, f"{number}:{index}".encode(), partition=index % PARTITIONS)
            for index in range(EACH)
        ]
        await asyncio.gather(*sent)
        if commits:
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
        await producer.stop()

    asyncio.run(produce())


PRODUCERS: dict[str, Produce] = {
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


def values(numbers: list[int]) -> Counter[str]:
    return Counter(f"{number}:{index}" for number in numbers for index in range(EACH))


@pytest.mark.parametrize("client", PRODUCERS)
def test_committed_records_are_read_and_aborted_ones_are_not(peer: Peer, client: str) -> None:
    topic, name = create(peer.bootstrap, unique("txn"), PARTITIONS), unique("id")
    for number, commits in enumerate((True, False, True, False, False, True)):
        PRODUCERS[client](peer.bootstrap, topic, name, number, commits)
    with (
        Reader(peer.bootstrap, topic) as committed,
        Reader(peer.bootstrap, topic, committed=False) as uncommitted,
    ):
        everything = values([0, 1, 2, 3, 4, 5])
        wait_until(lambda: uncommitted.read() == everything, PATIENCE_S, what="all records")
        wait_until(lambda: committed.read() == values([0, 2, 5]), PATIENCE_S, what="committed")
    assert read_by_kafka_python(peer, topic) == values([0, 2, 5])
    assert asyncio.run(read_by_aiokafka(peer, topic)) == values([0, 2, 5])


def read_by_kafka_python(peer: Peer, topic: str) -> Counter[str]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=peer.bootstrap, isolation_level="read_committed"
    )
    places = [kafka.TopicPartition(topic, index) for index in range(PARTITIONS)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    ends = consumer.end_offsets(places)
    read: Counter[str] = Counter()
    while any(consumer.position(place) < end for place, end in ends.items()):
        for messages in consumer.poll(1000).values():
            read.update(each.value.decode() for each in messages)
    consumer.close()
    return read


async def read_by_aiokafka(peer: Peer, topic: str) -> Counter[str]:
    consumer = AIOKafkaConsumer(bootstrap_servers=peer.bootstrap, isolation_level="read_committed")
    await consumer.start()
    places = [AioTopicPartition(topic, index) for index in range(PARTITIONS)]
    consumer.assign(places)
    await consumer.seek_to_beginning(*places)
    ends = await consumer.end_offsets(places)
    read: Counter[str] = Counter()
    while True:
        positions = {place: await consumer.position(place) for place in places}
        if all(positions[place] >= end for place, end in ends.items()):
            break
        for messages in (await consumer.getmany(timeout_ms=1000)).values():
            read.update(each.value.decode() for each in messages)
    await consumer.stop()
    return read


def test_records_of_an_open_transaction_hold_back_later_ones(peer: Peer) -> None:
    topic = create(peer.bootstrap, unique("txn"))
    opened = rdk_producer(peer.bootstrap, unique("open"))
    opened.init_transactions(PATIENCE_S)
    opened.begin_transaction()
    opened.produce(topic, "held", partition=0)
    opened.flush(PATIENCE_S)
    plain = confluent_kafka.Producer({"bootstrap.servers": peer.bootstrap, "log_level": 2})
    plain.produce(topic, "plain", partition=0)
    plain.flush(PATIENCE_S)
    with (
        Reader(peer.bootstrap, topic) as committed,
        Reader(peer.bootstrap, topic, committed=False) as uncommitted,
    ):
        both = Counter(["held", "plain"])
        wait_until(lambda: uncommitted.read() == both, PATIENCE_S, what="both records")
        assert not committed.read()
        opened.commit_transaction(PATIENCE_S)
        wait_until(lambda: committed.read() == both, PATIENCE_S, what="both records, committed")


def test_a_second_producer_with_the_same_id_fences_the_first(peer: Peer) -> None:
    topic, name = create(peer.bootstrap, unique("txn")), unique("id")
    first, second = rdk_producer(peer.bootstrap, name), rdk_producer(peer.bootstrap, name)
    first.init_transactions(PATIENCE_S)
    first.begin_transaction()
    first.produce(topic, "first", partition=0)
    first.flush(PATIENCE_S)
    second.init_transactions(PATIENCE_S)
    second.begin_transaction()
    second.produce(topic, "second", partition=0)
    second.commit_transaction(PATIENCE_S)
    with pytest.raises(KafkaException) as raised:
        first.commit_transaction(PATIENCE_S)
    assert raised.value.args[0].fatal()
    with Reader(peer.bootstrap, topic) as committed:
        wait_until(lambda: committed.read() == Counter(["second"]), PATIENCE_S, what="second")


def test_a_transaction_is_aborted_after_its_timeout(peer: Peer) -> None:
    topic = create(peer.bootstrap, unique("txn"))
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": peer.bootstrap,
            "transactional.id": unique("slow"),
            "transaction.timeout.ms": 1000,
            "message.timeout.ms": 1000,
            "log_level": 2,
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, "late", partition=0)
    producer.flush(PATIENCE_S)
    plain = confluent_kafka.Producer({"bootstrap.servers": peer.bootstrap, "log_level": 2})
    plain.produce(topic, "plain", partition=0)
    plain.flush(PATIENCE_S)
    with Reader(peer.bootstrap, topic) as committed:
        wait_until(
            lambda: committed.read() == Counter(["plain"]), PATIENCE_S, what="the plain record"
        )
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_S)
