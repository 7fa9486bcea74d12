"""Every action of Kafka's kafka-transactions, on a node whose leaders verify no transactions."""

import re
from collections.abc import Callable, Iterator

import pytest

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.transactions.blocking import BlockingTransactionalProducer
from metaquorum.client.transactions.errors import ProducerFencedError
from tests.conformance.groups.peers import is_kafka
from tests.conformance.test_java import at, output
from tests.conftest import KafkaTool
from tests.hanging import UNVERIFIED, hang
from tests.metaquorum.client.transactions.together import (
    connected,
    new_topic,
    producer,
    read,
    values,
)
from tests.nodes import Elsewhere, KafkaNode, Node, Peer, elsewhere, unique, wait_until

TIMEOUT_S = 600  # a test starts Java several times in a transaction

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.fixture(scope="module")
def unverified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    if elsewhere():
        yield Elsewhere(elsewhere())
        return
    kind = KafkaNode if is_kafka() else Node
    node = kind(tmp_path_factory.mktemp("unverified"), UNVERIFIED)
    node.start()
    yield node
    node.stop()


@pytest.fixture
def cluster(unverified: Peer) -> Iterator[Cluster]:
    with connected(unverified) as cluster:
        yield cluster


@pytest.fixture
def rows(unverified: Peer, kafka_tool: KafkaTool) -> Callable[..., list[dict[str, str]]]:
    """Return a function that runs an action and returns the rows of its table by column."""

    def run(*arguments: object) -> list[dict[str, str]]:
        text = output(kafka_tool("transactions", *at(unverified), *arguments))
        lines = [[cell.strip() for cell in line.split("\t")] for line in text.splitlines()]
        return [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]

    return run


def opened(cluster: Cluster, topic: str, name: str) -> BlockingTransactionalProducer:
    one = producer(cluster, name, timeout_s=TIMEOUT_S)
    one.init()
    one.begin()
    one.send(topic, values("open"))
    return one


def test_transactions_are_listed_and_described(
    cluster: Cluster, rows: Callable[..., list[dict[str, str]]]
) -> None:
    topic, name = new_topic(cluster), unique("id")
    one = opened(cluster, topic, name)
    listed = {row["TransactionalId"]: row for row in rows("list")}
    assert (listed[name]["TransactionState"], listed[name]["Coordinator"]) == ("Ongoing", "1")
    assert listed[name]["ProducerId"] == str(one.client.producer[0])
    found = rows("list", "--transactional-id-pattern", re.escape(name)[:-1] + ".")
    assert [row["TransactionalId"] for row in found] == [name]
    assert rows("list", "--transactional-id-pattern", name[:-1]) == []  # no part of an id
    long = [row["TransactionalId"] for row in rows("list", "--duration-filter", 3_600_000)]
    assert name not in long
    assert name in [row["TransactionalId"] for row in rows("list", "--duration-filter", 1)]

    (row,) = rows("describe", "--transactional-id", name)
    assert (row["TransactionState"], row["TransactionTimeoutMs"]) == (
        "Ongoing",
        str(TIMEOUT_S * 1000),
    )
    assert (row["TopicPartitions"], row["CoordinatorId"]) == (f"{topic}-0", "1")
    assert int(row["TransactionDurationMs"]) >= 0
    one.commit()
    wait_until(
        lambda: (
            rows("describe", "--transactional-id", name)[0]["TransactionState"] == "CompleteCommit"
        )
    )
    (row,) = rows("describe", "--transactional-id", name)
    assert row["TopicPartitions"] == ""


def test_an_absent_transactional_id_is_not_described(
    unverified: Peer, kafka_tool: KafkaTool
) -> None:
    done = kafka_tool(
        "transactions", *at(unverified), "describe", "--transactional-id", unique("absent")
    )
    assert "failed because the ID could not be found" in done.stdout + done.stderr


def test_producers_are_described(
    cluster: Cluster, rows: Callable[..., list[dict[str, str]]]
) -> None:
    topic = new_topic(cluster)
    one = opened(cluster, topic, unique("id"))
    for more in ((), ("--broker-id", 1)):
        (row,) = rows("describe-producers", "--topic", topic, "--partition", 0, *more)
        producer_id, epoch = one.client.producer
        assert (row["ProducerId"], row["ProducerEpoch"]) == (str(producer_id), str(epoch))
        assert (row["LastSequence"], row["CurrentTransactionStartOffset"]) == ("0", "0")
        assert row["LatestCoordinatorEpoch"] == "-1"
    one.commit()
    assert read(cluster, topic, committed=False) == ["open"]

    def is_ended() -> bool:
        (row,) = rows("describe-producers", "--topic", topic, "--partition", 0)
        return (row["CurrentTransactionStartOffset"], row["LatestCoordinatorEpoch"]) == (
            "None",
            "0",
        )

    wait_until(is_ended)


def test_a_hanging_transaction_is_found_and_aborted(
    cluster: Cluster, rows: Callable[..., list[dict[str, str]]], unverified: Peer,
    kafka_tool: KafkaTool,
) -> None:  # fmt: skip
    topic = new_topic(cluster, 2)
    one = opened(cluster, topic, unique("id"))
    ghost, start = hang(cluster, TopicPartition(topic, 1))
    search = ("find-hanging", "--max-transaction-timeout", 0, "--topic", topic)
    (row,) = rows(*search)
    assert (row["Topic"], row["Partition"], row["ProducerId"]) == (topic, "1", str(ghost))
    assert (row["StartOffset"], row["CoordinatorEpoch"]) == (str(start), "-1")
    assert rows(*search, "--partition", 0) == []
    assert topic in [
        each["Topic"]
        for each in rows("find-hanging", "--max-transaction-timeout", 0, "--broker-id", 1)
    ]
    abort = ("transactions", *at(unverified), "abort", "--topic", topic, "--partition", 1)
    assert output(kafka_tool(*abort, "--start-offset", start)) == ""
    assert rows(*search) == []
    assert read(cluster, topic, partitions=2) == []

    ghost, start = hang(cluster, TopicPartition(topic, 1))
    epochs = ("--producer-epoch", 0, "--coordinator-epoch", -1)
    assert output(kafka_tool(*abort, "--producer-id", ghost, *epochs)) == ""
    assert rows(*search) == []
    done = kafka_tool(*abort, "--start-offset", start)
    assert "Could not find any open transactions starting at offset" in done.stdout + done.stderr
    one.commit()


def test_a_transaction_is_terminated(
    cluster: Cluster, rows: Callable[..., list[dict[str, str]]], unverified: Peer,
    kafka_tool: KafkaTool,
) -> None:  # fmt: skip
    topic, name = new_topic(cluster), unique("id")
    one = opened(cluster, topic, name)
    terminate = ("transactions", *at(unverified), "forceTerminateTransaction")
    output(kafka_tool(*terminate, "--transactionalId", name))
    with pytest.raises(ProducerFencedError):
        one.commit()
    (row,) = rows("describe", "--transactional-id", name)
    assert row["TransactionState"] in ("Empty", "CompleteAbort", "PrepareAbort")
    assert read(cluster, topic) == []
