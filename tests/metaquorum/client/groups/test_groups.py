"""Groups of a cluster: lookups of coordinators, and brokers with older versions."""

from collections.abc import Iterator

import pytest

from metaquorum.client import AdminError, BrokerError, Cluster, TopicPartition, socket_transport
from metaquorum.client.cluster import ANY_BROKER
from metaquorum.client.connection import VersionRange
from metaquorum.client.errors import UnreachableError
from metaquorum.client.groups.blocking import BlockingGroupAdmin
from metaquorum.client.groups.coordinators import Outcomes, ask_coordinators, find_coordinators
from metaquorum.client.groups.reset import Reset, ResetTarget
from metaquorum.client.groups.values import CommittedOffset
from metaquorum.client.producer import Producer, ProducerRecord
from metaquorum.client.socket_transport import BlockingAdmin, BlockingProducer, wait
from metaquorum.client.values import NewTopic
from metaquorum.wire.messages.describe_groups import DescribeGroupsRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.list_groups import ListGroupsRequest
from metaquorum.wire.messages.offset_commit import OffsetCommitRequest
from metaquorum.wire.messages.offset_fetch import OffsetFetchRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.schema.message import Message
from tests.group_members import member
from tests.nodes import PATIENCE_S, Peer, unique, wait_until


@pytest.fixture
def cluster(with_groups: Peer) -> Iterator[Cluster]:
    with socket_transport.connect(with_groups.bootstrap, timeout_s=PATIENCE_S) as cluster:
        yield cluster


@pytest.fixture
def groups(cluster: Cluster) -> BlockingGroupAdmin:
    return BlockingGroupAdmin(cluster)


def new_topic(cluster: Cluster, partitions: int = 2, records: int = 0) -> str:
    name, admin = unique("groups"), BlockingAdmin(cluster)
    admin.create_topics([NewTopic(name, partitions, 1)])
    wait_until(lambda: not isinstance(admin.describe_topics([name])[name], BrokerError))
    producer = BlockingProducer(Producer(cluster))
    for index in range(partitions if records else 0):
        producer.send(name, [ProducerRecord(b"v", partition=index)] * records)
    return name


def committed(groups: BlockingGroupAdmin, name: str) -> object:
    return groups.committed_offsets([name])[name]


def limit(cluster: Cluster, *limits: tuple[type[Message], int]) -> None:
    """Make the client take the brokers for ones that serve these requests up to a version."""
    wait(cluster.refresh())
    for node_id in (ANY_BROKER, *cluster.nodes):
        connection = wait(cluster.connection(node_id, cluster.deadline()))
        for request, last in limits:
            first = connection.versions[request.API].first
            connection.versions[request.API] = VersionRange(first, last)


def test_offsets_are_committed_read_and_deleted(
    cluster: Cluster, groups: BlockingGroupAdmin
) -> None:
    topic, name = new_topic(cluster), unique("g")
    p0, p1, absent = (TopicPartition(topic, index) for index in (0, 1, 7))
    outcomes = groups.commit_offsets(name, {p0: 3, p1: 4, absent: 5})
    assert (outcomes[p0], outcomes[p1]) == (None, None)
    assert getattr(outcomes[absent], "code", None) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert committed(groups, name) == {p0: CommittedOffset(3), p1: CommittedOffset(4)}
    assert groups.delete_offsets(name, [p1]) == {p1: None}
    assert committed(groups, name) == {p0: CommittedOffset(3)}
    assert groups.delete_groups([name]) == {name: None}
    assert committed(groups, name) == {}
    (error,) = groups.delete_groups([name]).values()
    assert error is not None
    assert error.code is ErrorCode.GROUP_ID_NOT_FOUND
    with pytest.raises(BrokerError, match="there is no such group"):
        groups.delete_offsets(name, [p1])


def test_members_are_described_with_subscription_and_assignment(
    cluster: Cluster, groups: BlockingGroupAdmin, with_groups: Peer
) -> None:
    topic, name = new_topic(cluster), unique("g")
    with member(
        with_groups.bootstrap, name, [topic], "billing", group_instance_id="i-1"
    ) as consumer:
        group = groups.describe_groups([name])[name]
        assert not isinstance(group, BrokerError)
        (only,) = group.members
        assert (group.state, group.protocol_type, group.protocol) == ("Stable", "consumer", "range")
        assert (only.client_id, only.host, only.instance_id) == ("billing", "127.0.0.1", "i-1")
        assert only.subscription is not None
        assert only.subscription.topics == (topic,)
        owned = {TopicPartition(each.topic, each.partition) for each in consumer.assignment()}
        assert set(group.owners()) == owned == {TopicPartition(topic, index) for index in (0, 1)}
        (error,) = groups.delete_groups([name]).values()
        assert error is not None
        assert error.code is ErrorCode.NON_EMPTY_GROUP
        refused = groups.delete_offsets(name, [TopicPartition(topic, 0)])
        assert [each.code for each in refused.values() if each is not None] == [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        ]
        refused = groups.commit_offsets(name, {TopicPartition(topic, 0): 0})
        assert [each.code for each in refused.values() if each is not None] == [
            ErrorCode.UNKNOWN_MEMBER_ID
        ]


def test_groups_are_listed_by_state_and_type(cluster: Cluster, groups: BlockingGroupAdmin) -> None:
    topic, name = new_topic(cluster), unique("g")
    groups.commit_offsets(name, {TopicPartition(topic, 0): 0})

    def names(*filters: tuple[str, ...]) -> list[str]:
        found = groups.list_groups(*filters)
        assert not found.failures
        return [each.group for each in found.groups if each.group == name]

    assert names() == names(("Empty",)) == names(("Empty", "Stable"), ("classic",)) == [name]
    assert names(("Stable",)) == names((), ("consumer",)) == []
    limit(cluster, (ListGroupsRequest, 3))
    assert names() == [name]
    (listing,) = [each for each in groups.list_groups().groups if each.group == name]
    assert (listing.state, listing.type) == (None, None)
    with pytest.raises(AdminError, match="too old to select groups by their state"):
        groups.list_groups(["Empty"])
    limit(cluster, (ListGroupsRequest, 4))
    assert names(("Empty",)) == [name]
    with pytest.raises(AdminError, match="too old to select groups by their type"):
        groups.list_groups(["Empty"], ["classic"])


def test_brokers_that_take_one_group_per_request_give_the_same(
    cluster: Cluster, groups: BlockingGroupAdmin
) -> None:
    topic, names = new_topic(cluster, records=3), [unique("g") for _ in range(3)]
    for number, name in enumerate(names[:2]):
        groups.commit_offsets(name, {TopicPartition(topic, 0): number})
    lags, offsets = groups.describe_lag(names), groups.committed_offsets(names)
    old = [(FindCoordinatorRequest, 3), (OffsetFetchRequest, 7), (OffsetCommitRequest, 2)]
    limit(cluster, *old, (DescribeGroupsRequest, 5))
    assert groups.committed_offsets(names) == offsets
    again = groups.describe_lag(names)
    assert [again[name] for name in names[:2]] == [lags[name] for name in names[:2]]
    for found in (lags, again):
        absent = found[names[2]]
        assert isinstance(absent, BrokerError)
        assert absent.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert set(groups.commit_offsets(names[2], {TopicPartition(topic, 1): 2}).values()) == {None}


def test_a_group_that_has_moved_is_asked_for_again(cluster: Cluster) -> None:
    names = [unique("g") for _ in range(3)]
    asked: list[list[str]] = []

    async def ask(node_id: int, own: list[str]) -> Outcomes[int]:
        asked.append(own)
        if len(asked) == 1:
            codes = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            moved = dict(zip(own[:2], map(BrokerError, codes), strict=True))
            return {own[2]: node_id, **moved}
        return dict.fromkeys(own, node_id)

    found = wait(ask_coordinators(cluster, names, ask, cluster.deadline()))
    coordinators = wait(find_coordinators(cluster, names, cluster.deadline()))
    assert found == coordinators
    assert asked == [names, names[:2]]


def test_an_error_that_lasts_is_the_outcome_at_the_deadline(cluster: Cluster) -> None:
    async def ask(node_id: int, own: list[str]) -> Outcomes[int]:
        return {group: BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) for group in own}

    name, timeout_s = unique("g"), 0.2

    def outcomes() -> Outcomes[int] | None:
        """Return None if the coordinator was not found in time; the next attempt has longer."""
        nonlocal timeout_s
        timeout_s *= 2
        try:
            return wait(ask_coordinators(cluster, [name], ask, cluster.deadline(timeout_s / 2)))
        except UnreachableError:
            return None

    found = wait_until(outcomes)
    assert found is not None
    assert getattr(found[name], "code", None) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_coordinator_that_cannot_be_reached_is_looked_up_again(cluster: Cluster) -> None:
    asked: list[int] = []

    async def ask(node_id: int, own: list[str]) -> Outcomes[int]:
        asked.append(node_id)
        if len(asked) == 1:
            raise UnreachableError("the node does not answer")
        return dict.fromkeys(own, node_id)

    name = unique("g")
    found = wait(ask_coordinators(cluster, [name], ask, cluster.deadline()))
    assert found == {name: asked[1]}


def test_lag_of_deleted_topics_is_unknown(cluster: Cluster, groups: BlockingGroupAdmin) -> None:
    topic, name = new_topic(cluster, records=5), unique("g")
    p0, p1 = (TopicPartition(topic, index) for index in (0, 1))
    groups.commit_offsets(name, {p0: 2})
    lag = groups.describe_lag([name])[name]
    assert not isinstance(lag, BrokerError)
    (row,) = lag.partitions
    assert (row.where, row.log_start, row.log_end, row.lag) == (p0, 0, 5, 3)
    plan = groups.plan_reset(name, [p0, p1], Reset(ResetTarget.LATEST))
    assert [(each.where, each.committed, each.new) for each in plan.offsets] == [
        (p0, 2, 5),
        (p1, None, 5),
    ]
    admin = BlockingAdmin(cluster)
    admin.delete_topics([topic])
    wait_until(lambda: isinstance(admin.describe_topics([topic])[topic], BrokerError))
    lag = groups.describe_lag([name])[name]  # the coordinator deletes the commit a little later
    if not isinstance(lag, BrokerError):
        assert [(each.log_end, each.lag) for each in lag.partitions] in ([(None, None)], [])
