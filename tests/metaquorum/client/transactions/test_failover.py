"""Transactions of this client while nodes are killed: each record once, or not at all."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import AdminError, BrokerError
from metaquorum.client.groups.blocking import BlockingGroupAdmin
from metaquorum.client.groups.coordinators import (
    GROUPS,
    TRANSACTIONS,
    CoordinatorKind,
    find_coordinators,
)
from metaquorum.client.groups.values import GroupMetadata
from metaquorum.client.socket_transport import BlockingAdmin, connect, wait
from metaquorum.client.transactions.blocking import BlockingTransactionalProducer
from metaquorum.client.transactions.errors import AbortableTransactionError, UnknownOutcomeError
from metaquorum.client.values import NewTopic
from tests.conformance.groups.peers import ThreeNodes, is_kafka
from tests.conformance.groups.peers import three_nodes as new_cluster
from tests.metaquorum.client.transactions.together import producer, read, values
from tests.nodes import PATIENCE_S, elsewhere, missing_for_java, skip_without, unique, wait_until

pytestmark = pytest.mark.slow

STAGES = ("begun", "sent", "offsets sent", "committed")


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    if elsewhere():
        pytest.skip("the nodes of METAQUORUM_BOOTSTRAP are not killed")
    if is_kafka() and (reason := missing_for_java()):
        skip_without(reason)
    cluster = new_cluster(tmp_path_factory.mktemp("three"))
    cluster.start()
    yield cluster
    cluster.stop()


def coordinator(cluster: Cluster, name: str, kind: CoordinatorKind = TRANSACTIONS) -> int:
    def found() -> int:
        outcome = wait(find_coordinators(cluster, [name], cluster.deadline(), kind))[name]
        return 0 if isinstance(outcome, BrokerError) else outcome

    return wait_until(found)


def leader(cluster: Cluster, topic: str) -> int:
    return wait(cluster.partition(TopicPartition(topic, 0), refresh=True)).leader_id


def attempt(
    one: BlockingTransactionalProducer, topic: str, group: str, text: str, at: Callable[[str], None]
) -> bool:
    """Run a transaction of two records and an offset; return whether it was committed."""
    one.begin()
    at("begun")
    try:
        one.send(topic, values(f"{text}a"))
        at("sent")
        one.send(topic, values(f"{text}b"))
        one.send_offsets({TopicPartition(topic, 0): int(text) + 1}, GroupMetadata(group))
        at("offsets sent")
    except (AbortableTransactionError, AdminError):
        one.abort()
        return False
    while True:
        with suppress(UnknownOutcomeError):
            one.commit()
            at("committed")
            return True


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("role", ["coordinator", "leader"])
def test_a_node_is_killed_at_each_stage(nodes: ThreeNodes, level: int, role: str) -> None:
    topic, name, group = unique("txn"), unique("id"), unique("g")
    with connect(",".join(nodes.addresses), timeout_s=PATIENCE_S) as cluster:
        admin = BlockingAdmin(cluster)
        admin.create_topics([NewTopic(topic, 1, 3)])
        wait_until(lambda: topic in [each.name for each in admin.topics()])
        one = producer(cluster, name, level)
        one.init()
        coordinator(cluster, group, GROUPS)  # with three nodes, the topic gets three replicas
        killed: list[int] = []

        def kill_at(stage: str) -> Callable[[str], None]:
            def at(now: str) -> None:
                if now == stage:
                    is_coordinator = role == "coordinator"
                    number = (
                        coordinator(cluster, name) if is_coordinator else leader(cluster, topic)
                    )
                    nodes.kill(number)
                    killed.append(number)

            return at

        committed = []
        for number, stage in enumerate(STAGES):
            if attempt(one, topic, group, str(number), kill_at(stage)):
                committed.append(number)
            nodes.restart(killed[-1])
            wait_until(lambda: in_sync(admin, topic))
        assert len(killed) == len(STAGES)
        expected = [f"{number}{letter}" for number in committed for letter in "ab"]
        wait_until(lambda: read(cluster, topic) == expected, what=f"{expected}")
        outcome = BlockingGroupAdmin(cluster).committed_offsets([group])[group]
        assert not isinstance(outcome, BrokerError)
        assert [each.offset for each in outcome.values()] == [committed[-1] + 1]


def in_sync(admin: BlockingAdmin, topic: str) -> bool:
    return all(
        len(partition.isr) == len(partition.replicas)
        for each in admin.topics()
        if each.name in (topic, "__transaction_state", "__consumer_offsets")
        for partition in each.partitions
    )
