"""A client unregisters workers: live ones are rejected, and a paused one registers again."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.dataplane.replication.truncation_ledger import FILE_NAME, decode_lines
from metaquorum.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.messages.unregister_broker import UnregisterBrokerRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, encode_batch
from tests.clusters import Cluster
from tests.hostile.honest import Client
from tests.nodes import PATIENCE_S, elsewhere, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="a cluster of our own is needed")

E = ErrorCode
TOPIC = "t"
WORKERS = (1, 2, 3)
PARTITIONS = 3
LONG_S, SHORT_S = PATIENCE_S, 3.0  # session timeouts of workers


class Clients:
    """One connection to each node of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._clients: dict[int, Client] = {}

    def __getitem__(self, number: int) -> Client:
        if number not in self._clients:
            host, port = self.cluster[number].bootstrap.split(":")
            self._clients[number] = Client(host, int(port))
        return self._clients[number]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest.fixture
def clients(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Clients]:
    """Run three workers whose session timeout is the parameter."""
    session_ms = int(request.param * 1000)
    settings = {"broker.session.timeout.ms": session_ms, "broker.heartbeat.interval.ms": 300}
    cluster = Cluster(tmp_path / "cluster", settings=settings)
    cluster.start()
    clients = Clients(cluster)
    yield clients
    clients.close()
    cluster.kill()


def unregister(client: Client, worker_id: int) -> tuple[int, str]:
    answer = client.call(ApiKey.UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id=worker_id))
    return answer.error_code, answer.error_message or ""


def isrs(client: Client) -> list[tuple[int, ...]]:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    (topic,) = client.call(ApiKey.METADATA, asked).topics
    return [tuple(sorted(row.isr_nodes)) for row in topic.partitions]


def leaders(client: Client) -> list[int]:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    (topic,) = client.call(ApiKey.METADATA, asked).topics
    return [row.leader_id for row in sorted(topic.partitions, key=lambda row: row.partition_index)]


def produce(clients: Clients, index: int, value: bytes) -> None:
    """Produce a record; return when all in-sync replicas have acknowledged it."""
    data = PartitionProduceData(
        index=index, records=encode_batch([Record(0, int(time.time() * 1000), None, value)])
    )
    message = ProduceRequest(
        acks=-1,
        timeout_ms=int(PATIENCE_S * 1000),
        topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])],
    )

    def is_acknowledged() -> bool:
        at = leaders(clients[1])[index]
        if at < 0:
            return False
        answer = clients[at].call(ApiKey.PRODUCE, message)
        return bool(answer.responses[0].partition_responses[0].error_code == E.NONE)

    wait_until(is_acknowledged, what=f"partition {index} takes a record")


def create(clients: Clients) -> None:
    client = clients[1]
    topic = CreatableTopic(
        name=TOPIC,
        num_partitions=PARTITIONS,
        replication_factor=3,
        configs=[CreatableTopicConfig(name="min.insync.replicas", value="2")],
    )
    wait_until(
        lambda: (
            client.call(
                ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=100_000)
            )
            .topics[0]
            .error_code
            in (E.NONE, E.TOPIC_ALREADY_EXISTS)
        ),
        what="three workers are live",
    )
    wait_until(lambda: isrs(client) == [WORKERS] * PARTITIONS, what="all are in sync")


def losses(cluster: Cluster) -> list[str]:
    """Return the losses in the truncation ledgers of the workers."""
    found = []
    for number in WORKERS:
        path = cluster[number].data_dir / FILE_NAME
        entries, _ = decode_lines(path.read_bytes() if path.exists() else b"")
        found += [f"worker {number}: {entry}" for entry in entries]
    return found


@pytest.mark.parametrize("clients", [LONG_S], indirect=True)
def test_live_workers_are_not_unregistered(clients: Clients) -> None:
    create(clients)
    for number in range(12):
        code, why = unregister(clients[WORKERS[number % 3]], WORKERS[number // 2 % 3])
        assert code == E.INVALID_REQUEST
        assert "stop the worker" in why
        produce(clients, number % PARTITIONS, b"%d" % number)
    assert isrs(clients[1]) == [WORKERS] * PARTITIONS
    assert losses(clients.cluster) == []
    for number in WORKERS:
        assert "is unregistered" not in clients.cluster[number].errors.read_text()
    clients.cluster.stop()


@pytest.mark.parametrize("clients", [SHORT_S], indirect=True)
def test_a_worker_that_was_unregistered_while_it_was_paused_replicates_again(
    clients: Clients,
) -> None:
    """Without a restart; no acknowledged record is lost, and the ledger records no loss."""
    create(clients)
    for number in range(9):
        produce(clients, number % PARTITIONS, b"%d" % number)
    cluster = clients.cluster
    client, pid = clients[1], cluster[3].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: unregister(client, 3)[0] == E.NONE, what="worker 3 is unregistered")
        wait_until(lambda: isrs(client) == [(1, 2)] * PARTITIONS)
        for number in range(9):
            produce(clients, number % PARTITIONS, b"%d" % number)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: isrs(client) == [WORKERS] * PARTITIONS, what="worker 3 is in sync again")
    assert cluster[3].pid == pid
    # The worker counts for the ISR: with another worker down, two replicas are in sync.
    cluster[2].kill()
    # Until it is fenced, the metadata still has it as a leader, and its connection is closed.
    wait_until(lambda: 2 not in leaders(client), what="the others lead")
    for number in range(9):
        produce(clients, number % PARTITIONS, b"%d" % number)
    assert losses(clients.cluster) == []
