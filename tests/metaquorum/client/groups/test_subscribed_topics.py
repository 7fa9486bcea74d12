"""When the topics of a subscription are looked up again, with a model broker and virtual time."""

from __future__ import annotations

from random import Random
from typing import Any

from metaquorum.client.cluster import Cluster
from metaquorum.client.groups.assignors import AssignedMember
from metaquorum.client.groups.consumer_protocol import Subscription
from metaquorum.client.groups.subscribed_topics import ABSENT_TOPIC_AGE_S, SubscribedTopics
from metaquorum.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode
from tests.metaquorum.spark.model_broker import ModelBroker, PartitionLog, blocking

MAX_AGE_S = 60.0
MEMBERS = [AssignedMember("m", None, Subscription(("a", "b"), b""))]


class TopicsBroker(ModelBroker):
    """A broker with `counts` partitions of each topic, some with an error."""

    def __init__(self, **counts: int) -> None:
        super().__init__(PartitionLog())
        self.counts = counts
        self.errors: dict[str, ErrorCode] = {}

    def _metadata(self, node: int, request: Any) -> MetadataResponse:
        response = super()._metadata(node, request)
        response.topics = [self._topic(one.name) for one in request.topics]
        return response

    def _topic(self, name: str) -> MetadataResponseTopic:
        code = self.errors.get(name, ErrorCode.NONE)
        if name not in self.counts:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        rows = [
            MetadataResponsePartition(partition_index=number, leader_id=0)
            for number in range(0 if code else self.counts[name])
        ]
        return MetadataResponseTopic(error_code=code, name=name, partitions=rows)


class Leader:
    """The topics that the leader of a group subscribes to, with another member's."""

    def __init__(self, broker: TopicsBroker) -> None:
        self.broker = broker
        self.cluster = Cluster(broker, [("model", 0)], random=Random(0))
        self.rejoins: list[str] = []
        self.topics = SubscribedTopics(self.cluster, MAX_AGE_S, self.rejoins.append)
        self.topics.subscribe(["a", "b"])

    def refreshed_after(self, seconds: float) -> dict[str, int]:
        blocking(self.broker.sleep_until(self.broker.monotonic() + seconds))
        blocking(self.topics.refresh(MEMBERS))
        return self.topics.counts


def test_one_topic_that_does_not_exist_is_looked_up_again_soon() -> None:
    leader = Leader(TopicsBroker(a=2))
    assert leader.refreshed_after(0) == {"a": 2, "b": 0}
    leader.broker.counts["b"] = 3
    assert leader.refreshed_after(ABSENT_TOPIC_AGE_S / 2) == {"a": 2, "b": 0}
    assert leader.refreshed_after(ABSENT_TOPIC_AGE_S / 2) == {"a": 2, "b": 3}
    leader.broker.counts["b"] = 4
    assert leader.refreshed_after(MAX_AGE_S - 1) == {"a": 2, "b": 3}
    assert leader.refreshed_after(1) == {"a": 2, "b": 4}


def test_an_error_that_passes_does_not_change_the_count_and_begins_no_rebalance() -> None:
    leader = Leader(TopicsBroker(a=2, b=1))
    leader.refreshed_after(0)
    assert blocking(leader.topics.counts_to_assign(MEMBERS)) == {"a": 2, "b": 1}
    leader.broker.errors["a"] = ErrorCode.LEADER_NOT_AVAILABLE
    assert leader.refreshed_after(MAX_AGE_S) == {"a": 2, "b": 1}
    assert leader.rejoins == []
    leader.broker.errors["a"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert leader.refreshed_after(MAX_AGE_S) == {"a": 0, "b": 1}
    assert leader.rejoins == ["partitions were added or deleted"]


def test_metadata_of_a_topic_are_not_cached_beyond_a_change_of_its_partitions() -> None:
    leader = Leader(TopicsBroker(a=2, b=1))
    leader.refreshed_after(0)
    assert len(blocking(leader.cluster.topic("a")).partitions) == 2
    leader.broker.counts["a"] = 3
    leader.refreshed_after(MAX_AGE_S)
    assert len(blocking(leader.cluster.topic("a")).partitions) == 3
