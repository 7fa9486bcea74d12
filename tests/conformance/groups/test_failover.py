"""Groups survive `kill -9` of their coordinator, on a cluster of three processes."""

import threading

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from metaquorum.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.conformance.clients import admin
from tests.conformance.groups.members import (
    LIMIT_S,
    Members,
    owners_by_generation,
    read_by,
    wait_shared,
)
from tests.conformance.groups.peers import NODES, ThreeNodes, coordinator_node, is_kafka
from tests.conformance.groups.raw import Connection, coordinator_of
from tests.conformance.groups.test_delivery import EACH, PARTITIONS, places, send
from tests.nodes import Elsewhere, unique, wait_until

FEW = 20  # commits before the coordinator is killed, and after

pytestmark = pytest.mark.slow


def all_nodes(nodes: ThreeNodes) -> str:
    return ",".join(nodes.addresses)


def other_nodes(nodes: ThreeNodes, killed: int) -> str:
    others = [each for number, each in enumerate(nodes.addresses, 1) if number != killed]
    return ",".join(others)


def new_topic(nodes: ThreeNodes, partitions: int) -> str:
    """Create a topic with a replica on each node."""
    name = unique("survives")
    topic = NewTopic(name, partitions, NODES)
    admin(all_nodes(nodes)).create_topics([topic])[name].result(LIMIT_S)
    return name


def committed(bootstrap: str, group: str) -> dict[int, int]:
    """Return the committed offsets by partition, from the group's coordinator.

    Apache Kafka 4.3.1 may answer older ones at first: those below the high watermark that the new
    coordinator knows. A metaquorum coordinator loads the group after its high watermark.
    """
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    with Connection(coordinator_of(bootstrap, group)) as connection:
        (row,) = connection.call(asked).groups
    assert row.error_code == 0
    return {
        each.partition_index: each.committed_offset
        for topic in row.topics
        for each in topic.partitions
    }


@pytest.mark.parametrize("client", ["librdkafka", "kafka-python"])
def test_members_keep_their_partitions_when_their_coordinator_is_killed(
    three_nodes: ThreeNodes, members: Members, client: str
) -> None:
    topic, group = new_topic(three_nodes, PARTITIONS), unique("group")
    bootstrap = all_nodes(three_nodes)
    both = [members.start(client, bootstrap, group, topic) for _ in range(2)]
    wait_shared(both, places(topic))
    before = send(Elsewhere(bootstrap), topic)
    wanted = dict.fromkeys(range(PARTITIONS), EACH)
    wait_until(lambda: committed(bootstrap, group) == wanted, LIMIT_S)
    killed = coordinator_node(three_nodes, group)
    three_nodes.kill(killed)
    left = other_nodes(three_nodes, killed)
    if not is_kafka():
        assert committed(left, group) == wanted
    wait_until(lambda: committed(left, group) == wanted, LIMIT_S)
    after = send(Elsewhere(left), topic, EACH)
    wait_until(lambda: set(read_by(both)) == before | after, LIMIT_S)
    again = before & {value for value, times in read_by(both).items() if times > 1}
    assert is_kafka() or not again, "records were read again: commits were lost"
    wait_shared(both, places(topic))
    assert {len(ids) for ids in owners_by_generation(both).values()} == {1}


def test_no_acknowledged_commit_is_lost_when_the_coordinator_is_killed(
    three_nodes: ThreeNodes,
) -> None:
    topic, group = new_topic(three_nodes, 1), unique("group")
    bootstrap = all_nodes(three_nodes)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 2})
    acknowledged = [0]
    is_over = threading.Event()

    def commit_in_order() -> None:
        while not is_over.is_set():
            at = TopicPartition(topic, 0, acknowledged[-1] + 1)
            try:
                (done,) = consumer.commit(offsets=[at], asynchronous=False)
            except KafkaException:
                continue
            if done.error is None:
                acknowledged.append(done.offset)

    thread = threading.Thread(target=commit_in_order)
    thread.start()
    try:
        wait_until(lambda: len(acknowledged) > FEW, LIMIT_S)
        killed = coordinator_node(three_nodes, group)
        three_nodes.kill(killed)
        last = acknowledged[-1]
        found = committed(other_nodes(three_nodes, killed), group)[0]
        wait_until(lambda: acknowledged[-1] > last + FEW, LIMIT_S)
    finally:
        is_over.set()
        thread.join(LIMIT_S)
        consumer.close()
    assert is_kafka() or found >= last
    assert committed(other_nodes(three_nodes, killed), group)[0] >= acknowledged[-1]


@pytest.mark.parametrize("client", ["librdkafka", "kafka-python", "aiokafka"])
def test_members_go_on_while_each_node_is_restarted(
    three_nodes: ThreeNodes, members: Members, client: str
) -> None:
    """Each node is killed and started again while records arrive; none is skipped."""
    topic, group = new_topic(three_nodes, PARTITIONS), unique("group")
    bootstrap = all_nodes(three_nodes)
    both = [members.start(client, bootstrap, group, topic) for _ in range(2)]
    wait_shared(both, places(topic))
    sent: set[str] = set()
    for number in range(1, NODES + 1):
        three_nodes.kill(number)
        sent |= send(Elsewhere(other_nodes(three_nodes, number)), topic, number * EACH)
        wait_until(lambda: set(read_by(both)) == sent, LIMIT_S)  # noqa: B023
        three_nodes.restart(number)
        wait_until(lambda: is_in_sync(bootstrap, topic), LIMIT_S, what="all replicas in sync")
    wanted = dict.fromkeys(range(PARTITIONS), NODES * EACH)
    wait_until(lambda: committed(bootstrap, group) == wanted, LIMIT_S)
    assert {len(ids) for ids in owners_by_generation(both).values()} == {1}


def is_in_sync(bootstrap: str, topic: str) -> bool:
    """Return whether the topics of the test and of the groups have all replicas in sync."""
    topics = admin(bootstrap).list_topics(timeout=LIMIT_S).topics
    return all(
        len(partition.isrs) == NODES
        for name in (topic, "__consumer_offsets")
        for partition in topics[name].partitions.values()
    )
