"""The metadata and connections of a client of a changing cluster, in virtual time."""

from random import Random

import pytest

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.consumer import Consumer, Start
from metaquorum.client.errors import BrokerError, UnreachableError
from metaquorum.wire.messages.fetch import FetchRequest
from metaquorum.wire.primitives.errors import ErrorCode
from tests.metaquorum.spark.model_broker import TOPIC, ModelBroker, PartitionLog, blocking

WHERE = TopicPartition(TOPIC, 0)


def cluster_of(broker: ModelBroker) -> Cluster:
    return Cluster(broker, [("model", 0)], timeout_s=10.0, random=Random(0))


def poll_often(consumer: Consumer) -> None:
    for _ in range(100):
        blocking(consumer.poll(0.0))


def test_a_topic_that_was_deleted_is_not_in_the_cache() -> None:
    broker = ModelBroker(PartitionLog())
    cluster = cluster_of(broker)
    assert blocking(cluster.topic(TOPIC)).partitions
    broker.exists = False
    assert blocking(cluster.topic(TOPIC)).partitions  # cached
    for refresh in (True, False):
        with pytest.raises(BrokerError, match="no such topic"):
            blocking(cluster.topic(TOPIC, refresh=refresh))


def test_a_node_that_has_left_has_no_connection() -> None:
    broker = ModelBroker(PartitionLog(), nodes=2)
    cluster = cluster_of(broker)
    known = blocking(cluster.connection(1, cluster.deadline()))
    assert blocking(cluster.connection(1, cluster.deadline())) is known
    broker.nodes = 1
    blocking(cluster.refresh())
    with pytest.raises(BrokerError, match="there is no such node"):
        blocking(cluster.connection(1, cluster.deadline()))


def test_failures_in_a_row_have_one_timeout_together() -> None:
    """Each poll has another attempt; the first success begins a new time."""
    broker = ModelBroker(PartitionLog(log_end=1, high_watermark=1, last_stable_offset=1))
    consumer = Consumer(cluster_of(broker))
    blocking(consumer.assign({WHERE: Start.beginning()}))
    began = broker.monotonic()
    is_failing = True

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if is_failing else None

    broker.before_fetch = on_fetch
    with pytest.raises((BrokerError, UnreachableError)):
        poll_often(consumer)
    assert 5 < broker.monotonic() - began <= 10
    is_failing = False
    blocking(consumer.poll(0.0))
    is_failing, began = True, broker.monotonic()
    with pytest.raises((BrokerError, UnreachableError)):
        poll_often(consumer)
    assert 5 < broker.monotonic() - began <= 10
