"""Consumers in groups, with a cluster and next to members of other projects."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import confluent_kafka
import pytest
import trio

from metaquorum.client import BrokerError, Cluster, TopicPartition, connect, socket_transport
from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.cluster import Node
from metaquorum.client.connection import BrokerConnection, VersionRange
from metaquorum.client.consumer import ConsumedRecord
from metaquorum.client.errors import UnsendableError
from metaquorum.client.groups import trio_consumer
from metaquorum.client.groups.admin import GroupAdmin
from metaquorum.client.groups.assigned_partitions import NotAssignedError
from metaquorum.client.groups.blocking import (
    BlockingGroupAdmin,
    BlockingGroupConsumer,
    open_group_consumer,
)
from metaquorum.client.groups.group_config import GroupConfig, OffsetReset
from metaquorum.client.groups.group_consumer import (
    LogTruncationError,
    NoOffsetError,
    RebalanceListener,
)
from metaquorum.client.groups.values import CommittedOffset, GroupDescription
from metaquorum.client.producer import Producer, ProducerRecord
from metaquorum.client.socket_transport import BlockingAdmin, BlockingProducer, BlockingTransport
from metaquorum.client.values import NewTopic
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.heartbeat import HeartbeatRequest
from metaquorum.wire.messages.join_group import JoinGroupRequest
from metaquorum.wire.messages.leave_group import LeaveGroupRequest
from metaquorum.wire.messages.offset_commit import OffsetCommitRequest
from metaquorum.wire.messages.offset_fetch import OffsetFetchRequest
from metaquorum.wire.messages.sync_group import SyncGroupRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.schema.message import Message
from tests.dataplane.serving import Simulated, run_simulated
from tests.nodes import PATIENCE_S, Peer, unique, wait_until

STICKY = ("cooperative-sticky",)


class Calls(RebalanceListener):
    """Listener that keeps its calls, as "assigned 0 1"."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _note(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(" ".join([what, *(str(where.partition) for where in partitions)]))

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("revoked", partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("lost", partitions)


class Member:
    """A consumer with a cluster of its own, and all records that it has received."""

    def __init__(self, consumer: BlockingGroupConsumer, calls: Calls) -> None:
        self.consumer = consumer
        self.client = consumer.client
        self.listener = calls
        self.records: list[ConsumedRecord] = []

    def poll(self, max_wait_s: float = 0.05) -> list[ConsumedRecord]:
        records = self.consumer.poll(max_wait_s)
        self.records += records
        return records

    @property
    def partitions(self) -> list[int]:
        return [where.partition for where in self.consumer.assignment]

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


class Group:
    """A group on a cluster: its members, a topic, and a producer."""

    def __init__(self, peer: Peer, stack: ExitStack) -> None:
        self.bootstrap = peer.bootstrap
        self.name = unique("g")
        self._stack = stack
        self.cluster = stack.enter_context(
            socket_transport.connect(peer.bootstrap, timeout_s=PATIENCE_S)
        )
        self.admin = BlockingAdmin(self.cluster)
        self.groups = BlockingGroupAdmin(self.cluster)
        self.topic = self.new_topic(4)

    def new_topic(self, partitions: int, name: str | None = None) -> str:
        name = name or unique("groups")
        self.admin.create_topics([NewTopic(name, partitions, 1)])
        wait_until(lambda: not isinstance(self.admin.describe_topics([name])[name], BrokerError))
        return name

    def produce(self, partition: int, *values: str, topic: str | None = None) -> None:
        producer = BlockingProducer(Producer(self.cluster))
        records = [ProducerRecord(value.encode(), partition=partition) for value in values]
        producer.send(topic or self.topic, records)

    def config(self, **config: Any) -> GroupConfig:
        given = {"auto_offset_reset": OffsetReset.EARLIEST, "heartbeat_interval_s": 0.1}
        return GroupConfig(self.name, **(given | config))

    @contextmanager
    def opened(self, topics: Any = None, **config: Any) -> Iterator[Member]:
        calls = Calls()
        with (
            socket_transport.connect(self.bootstrap, timeout_s=PATIENCE_S) as cluster,
            open_group_consumer(
                cluster, self.config(**config), topics or [self.topic], calls
            ) as consumer,
        ):
            yield Member(consumer, calls)

    def member(self, topics: Any = None, **config: Any) -> Member:
        """Return a member that leaves at the end of the test."""
        return self._stack.enter_context(self.opened(topics, **config))

    def described(self) -> GroupDescription:
        found = self.groups.describe_groups([self.name])[self.name]
        assert not isinstance(found, BrokerError), found
        return found

    def committed(self) -> dict[int, int]:
        found = self.groups.committed_offsets([self.name])[self.name]
        assert not isinstance(found, BrokerError), found
        return {where.partition: offset.offset for where, offset in found.items()}


@pytest.fixture
def group(with_groups: Peer) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(with_groups, stack)


def until(condition: Callable[[], Any], *members: Member) -> None:
    """Poll all members until the condition is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [member.listener.calls for member in members]
        for member in members:
            member.poll()


def shared(*members: Member) -> Callable[[], bool]:
    """Return whether the members share the four partitions equally."""

    def are_shared() -> bool:
        own = [partition for member in members for partition in member.partitions]
        sizes = {len(member.partitions) for member in members}
        return sorted(own) == [0, 1, 2, 3] and len(sizes) == 1

    return are_shared


# Rebalances


@pytest.mark.parametrize("assignors", [("range",), ("roundrobin",), STICKY])
def test_members_share_the_partitions_and_read_each_record_once(
    group: Group, assignors: tuple[str, ...]
) -> None:
    values = [f"{partition}-{n}" for partition in range(4) for n in range(5)]
    for value in values:
        group.produce(int(value[0]), value)
    one = group.member(assignors=assignors)
    until(lambda: len(one.records) == 20, one)
    with group.opened(assignors=assignors) as two:
        until(shared(one, two), one, two)
        assert group.described().protocol == assignors[0]
        for value in values:
            group.produce(int(value[0]), f"{value}-again")
        until(lambda: len(one.records) + len(two.records) == 40, one, two)
        assert len(two.records) == 10
        read = one.values + two.values
    assert sorted(read) == sorted(v.encode() for value in values for v in (value, value + "-again"))
    until(lambda: one.partitions == [0, 1, 2, 3], one)
    assert one.poll(0.2) == []  # the leaving member had committed
    assert group.committed() == dict.fromkeys(range(4), 10)


def test_an_eager_member_gives_all_partitions_up_and_a_cooperative_one_those_that_move(
    group: Group,
) -> None:
    for assignors, moved in ((("range",), "revoked 0 1 2 3"), (STICKY, "revoked 2 3")):
        group.name = unique("g")
        with group.opened(assignors=assignors) as one:
            until(lambda one=one: one.partitions == [0, 1, 2, 3], one)
            with group.opened(assignors=assignors) as two:
                until(shared(one, two), one, two)
                assert one.listener.calls[:2] == ["assigned 0 1 2 3", moved]
                assert [call for call in two.listener.calls if call != "assigned"][:1] == [
                    "assigned " + " ".join(map(str, two.partitions))
                ]
            assert two.listener.calls[-1].startswith("revoked")


def test_a_cooperative_member_receives_records_during_a_rebalance(group: Group) -> None:
    one = group.member(assignors=STICKY)
    two = group.member(assignors=STICKY)
    until(shared(one, two), one, two)
    three = group.member(assignors=STICKY)
    three.poll()  # JoinGroup is sent, and waits for the others
    until(lambda: group.described().state == "PreparingRebalance", one)
    # `two` does not poll, so that the rebalance does not end.
    group.produce(one.partitions[0], "meanwhile")
    until(lambda: one.values == [b"meanwhile"], one)
    assert group.described().state == "PreparingRebalance"
    until(lambda: not commits(one), one)  # it has sent its JoinGroup
    until(
        lambda: sorted(one.partitions + two.partitions + three.partitions) == [0, 1, 2, 3],
        *(one, two, three),
    )
    until(lambda: commits(one), one, two, three)


def commits(member: Member) -> bool:
    """Commit; return whether the coordinator took it, as outside of rebalances."""
    try:
        member.consumer.commit()
    except BrokerError as error:
        if "poll, then commit again" not in str(error):
            raise
        return False
    return True


@contextmanager
def librdkafka(group: Group, assignor: str) -> Iterator[confluent_kafka.Consumer]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": group.bootstrap,
            "group.id": group.name,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": assignor,
            "heartbeat.interval.ms": 100,
            "log_level": 2,
        }
    )
    try:
        consumer.subscribe([group.topic])
        yield consumer
    finally:
        consumer.close()


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
@pytest.mark.parametrize("leads", [True, False], ids=["as leader", "as follower"])
def test_a_group_may_have_members_of_librdkafka(group: Group, assignor: str, leads: bool) -> None:
    def assignment(consumer: confluent_kafka.Consumer) -> list[int]:
        consumer.poll(0.02)
        return sorted(where.partition for where in consumer.assignment())

    if leads:
        ours = group.member(assignors=(assignor,))
        until(lambda: ours.partitions == [0, 1, 2, 3], ours)
    with librdkafka(group, assignor) as theirs:
        if not leads:
            wait_until(lambda: assignment(theirs) == [0, 1, 2, 3])
            ours = group.member(assignors=(assignor,))

        def is_shared() -> bool:
            own, other = ours.partitions, assignment(theirs)
            return len(own) == 2 and sorted(own + other) == [0, 1, 2, 3]

        until(is_shared, ours)
        described = group.described()
        assert described.protocol == assignor
        owners = {where.partition: member.member_id for where, member in described.owners().items()}
        own = sorted(p for p, owner in owners.items() if owner == ours.client.member_id)
        assert own == ours.partitions


def test_a_member_that_does_not_poll_leaves_and_has_lost_its_partitions(group: Group) -> None:
    idle = group.member(max_poll_interval_s=0.5)
    until(lambda: idle.partitions == [0, 1, 2, 3], idle)
    group.produce(0, "a")
    until(lambda: idle.records, idle)
    before = idle.client.member_id
    wait_until(lambda: group.described().state == "Empty")
    with pytest.raises(BrokerError) as refused:
        idle.consumer.commit()
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    until(lambda: idle.listener.calls[-1] == "assigned 0 1 2 3" and len(idle.records) > 1, idle)
    lost = idle.listener.calls.count("lost 0 1 2 3")  # more than once if this process has paused
    again = ["lost 0 1 2 3", "assigned 0 1 2 3"] * lost
    assert idle.listener.calls == ["assigned 0 1 2 3", *again]
    assert set(idle.values) == {b"a"}  # it was not committed
    assert idle.client.member_id != before


class CountingCluster(Cluster):
    """A client that counts the heartbeats which it sends."""

    heartbeats = 0

    async def open_connection(self, node: Node, deadline: float) -> BrokerConnection:
        connection = await super().open_connection(node, deadline)
        send = connection.send

        async def counting(request: Message, deadline: float, **options: Any) -> None:
            await send(request, deadline, **options)
            self.heartbeats += isinstance(request, HeartbeatRequest)

        connection.send = counting  # type: ignore[method-assign]
        return connection


def test_a_thread_sends_heartbeats_between_polls(group: Group) -> None:
    with (
        contextlib.closing(
            CountingCluster(BlockingTransport(), group.bootstrap, timeout_s=PATIENCE_S)
        ) as cluster,
        open_group_consumer(cluster, group.config(), [group.topic]) as consumer,
    ):
        wait_until(lambda: consumer.poll(0.05) == [] and consumer.assignment)
        before = cluster.heartbeats
        wait_until(lambda: cluster.heartbeats > before + 2)
        assert group.described().state == "Stable"


@pytest.mark.parametrize("are_sent", [True, False], ids=["sent", "not sent"])
def test_a_member_that_only_processes_stays_by_its_heartbeats(are_sent: bool) -> None:
    """In virtual time, for five session timeouts."""
    session_s, calls = 6.0, Calls()

    async def scenario(node: Simulated) -> None:
        async with connect([("server", 9092)], runtime=node.runtime) as cluster:
            await AdminClient(cluster).create_topics([NewTopic("t", 4, 1)])
            config = GroupConfig("g", session_timeout_s=session_s, heartbeat_interval_s=1.0)
            async with trio_consumer.open_group_consumer(cluster, config, ["t"], calls) as busy:
                while not busy.assignment:
                    await busy.poll(0.1)
                if not are_sent:
                    busy.heartbeats.target = None  # the background sends nothing
                await trio.sleep(5 * session_s)
                found = (await GroupAdmin(cluster).describe_groups(["g"]))["g"]
                assert not isinstance(found, BrokerError)
                assert found.state == ("Stable" if are_sent else "Empty")
                if are_sent:
                    await busy.poll(0.1)
                    assert calls.calls == ["assigned 0 1 2 3"]

    run_simulated(scenario)


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(group: Group) -> None:
    other = group.member(instance_id="other")
    with group.opened(instance_id="restarted") as static:
        until(shared(other, static), other, static)
        own, generation = static.partitions, static.client.generation
    assert {each.instance_id for each in group.described().members} == {"other", "restarted"}
    with group.opened(instance_id="restarted") as static:
        until(lambda: static.partitions, other, static)
        assert (static.partitions, static.client.generation) == (own, generation)
        assert shared(other, static)()


def test_a_second_consumer_with_the_instance_id_fences_the_first(group: Group) -> None:
    first = group.member(instance_id="i")
    until(lambda: first.partitions, first)
    second = group.member(instance_id="i")
    until(lambda: second.partitions, second)

    def is_fenced() -> bool:
        try:
            first.poll()
        except BrokerError as error:
            return error.code is ErrorCode.FENCED_INSTANCE_ID
        return False

    wait_until(is_fenced)
    assert is_fenced()
    second.poll()
    assert second.partitions == [0, 1, 2, 3]


def test_new_partitions_and_topics_are_assigned_when_they_appear(group: Group) -> None:
    late = unique("groups")
    one = group.member([group.topic, late], metadata_max_age_s=0.2)
    until(lambda: one.partitions == [0, 1, 2, 3], one)
    group.admin.create_partitions(group.topic, 5)
    until(lambda: one.partitions == [0, 1, 2, 3, 4], one)
    group.new_topic(1, late)
    group.produce(0, "late", topic=late)
    until(lambda: one.values == [b"late"], one)
    group.admin.delete_topics([late])
    until(lambda: one.partitions == [0, 1, 2, 3, 4], one)


@pytest.mark.parametrize("assignors", [("range",), STICKY])
def test_an_error_of_a_listener_is_raised_and_the_rebalance_repeated(
    group: Group, assignors: tuple[str, ...]
) -> None:
    one = group.member(assignors=assignors)
    until(lambda: one.partitions == [0, 1, 2, 3], one)
    raised: list[str] = []

    def on_revoked(partitions: Sequence[TopicPartition]) -> None:
        if not raised:
            with pytest.raises(RuntimeError, match="a rebalance listener cannot call poll"):
                one.poll()
            raised.append("revoked")
            raise LookupError("the program's own")

    one.listener.on_revoked = on_revoked  # type: ignore[method-assign]
    two = group.member(assignors=assignors)
    with pytest.raises(LookupError, match="the program's own"):
        until(shared(one, two), one, two)
    until(shared(one, two), one, two)


def test_a_pattern_subscribes_to_the_topics_that_match(group: Group) -> None:
    prefix = unique("pattern")
    one = group.member(re.compile(prefix + "-.*"), metadata_max_age_s=0.2)
    one.poll()
    assert one.client.subscription == frozenset()
    names = {group.new_topic(1, f"{prefix}-{n}") for n in range(2)}
    until(lambda: {where.topic for where in one.consumer.assignment} == names, one)
    assert one.client.subscription == names
    one.client.subscribe([group.topic])
    until(lambda: {where.topic for where in one.consumer.assignment} == {group.topic}, one)


# Offsets


def test_positions_are_committed_with_leader_epochs(group: Group) -> None:
    group.produce(0, "a", "b", "c")
    where = TopicPartition(group.topic, 0)
    with group.opened(auto_commit_interval_s=None, max_poll_records=2) as one:
        until(lambda: one.values == [b"a", b"b"], one)
        assert one.consumer.position(where) == 2
        assert set(one.consumer.committed([where]).values()) == {None}
        one.consumer.commit()
        (epoch,) = {record.leader_epoch for record in one.records}
        assert epoch >= 0
        assert one.consumer.committed([where]) == {where: CommittedOffset(2, epoch)}
        until(lambda: len(one.records) == 3, one)
        one.consumer.commit({where: CommittedOffset(1, epoch, "because")})
    with group.opened(auto_commit_interval_s=None) as two:
        assert set(two.consumer.committed([where]).values()) == {
            CommittedOffset(1, epoch, "because")
        }
        until(lambda: len(two.records) == 2, two)
        assert two.values == [b"b", b"c"]


def test_a_truncation_before_the_committed_offset_is_found_by_its_leader_epoch(
    group: Group,
) -> None:
    """An offset of the current leader epoch after the end of the log: its records were lost."""
    group.produce(0, "a", "b", "c")
    where = TopicPartition(group.topic, 0)
    with group.opened(auto_commit_interval_s=None) as one:
        until(lambda: len(one.records) == 3, one)
        epoch = one.records[0].leader_epoch
        others = {each: CommittedOffset(0) for each in one.consumer.assignment}
        one.consumer.commit(others | {where: CommittedOffset(20, epoch)})
    with group.opened(auto_commit_interval_s=None, auto_offset_reset=OffsetReset.NONE) as strict:
        with pytest.raises(LogTruncationError, match="was truncated: the position is 20") as found:
            until(lambda: False, strict)
        assert (found.value.partition, found.value.offset) == (where, 3)
        strict.client.seek(where, 2)
        until(lambda: strict.values == [b"c"], strict)
    with group.opened(auto_commit_interval_s=None) as lenient:
        until(lambda: lenient.partitions and lenient.consumer.position(where) == 3, lenient)
        group.produce(0, "d")
        until(lambda: lenient.values == [b"d"], lenient)  # not from the beginning


def test_started_commits_are_completed_by_later_calls(group: Group) -> None:
    where = TopicPartition(group.topic, 0)
    done: list[tuple[int, BrokerError | None]] = []
    one = group.member(auto_commit_interval_s=None)
    with pytest.raises(BrokerError) as refused:
        one.consumer.start_commit({where: 1})
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    until(lambda: one.partitions, one)
    for offset in range(40):  # more than a connection takes at a time
        one.consumer.start_commit(
            {where: offset}, lambda offsets, error: done.append((offsets[where].offset, error))
        )
    until(lambda: len(done) == 40, one)
    assert done == [(offset, None) for offset in range(40)]
    assert group.committed() == {0: 39}
    one.consumer.start_commit(
        {TopicPartition(unique("absent"), 0): 1}, lambda _, error: done.append((-1, error))
    )
    one.consumer.commit({where: 40})
    (_, error) = done[-1]
    assert error is not None
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_are_committed_at_an_interval(group: Group) -> None:
    group.produce(0, "a")
    one = group.member(auto_commit_interval_s=0.05)
    until(lambda: group.committed().get(0) == 1, one)


def test_the_reset_decides_without_a_committed_offset(group: Group) -> None:
    group.produce(0, "old")
    where = TopicPartition(group.topic, 0)
    with group.opened(auto_offset_reset=OffsetReset.LATEST) as latest:
        until(lambda: latest.partitions, latest)
        assert latest.consumer.position(where) == 1
    group.name = unique("g")
    none = group.member(auto_offset_reset=OffsetReset.NONE)
    with pytest.raises(NoOffsetError, match="has no valid committed offset") as missing:
        until(lambda: False, none)
    assert len(missing.value.partitions) == 4
    with pytest.raises(NoOffsetError):
        none.poll()
    none.client.seek_to_beginning(none.consumer.assignment)
    until(lambda: none.values == [b"old"], none)


def test_an_offset_out_of_range_is_reset(group: Group) -> None:
    group.produce(0, "a", "b")
    where = TopicPartition(group.topic, 0)
    group.groups.commit_offsets(group.name, {where: 1})
    group.admin.delete_records({where: 2})
    group.produce(0, "c")
    one = group.member()
    until(lambda: one.values == [b"c"], one)
    one.client.seek(where, 99)
    until(lambda: len(one.records) == 2, one)
    assert one.values == [b"c", b"c"]


def test_seek_pause_and_resume(group: Group) -> None:
    group.produce(0, "a", "b")
    where = TopicPartition(group.topic, 0)
    one = group.member()
    until(lambda: one.values == [b"a", b"b"], one)
    one.client.seek(where, 1)
    assert one.consumer.position(where) == 1
    until(lambda: one.values[2:] == [b"b"], one)
    one.client.pause([where])
    assert one.client.paused == (where,)
    group.produce(0, "c")
    group.produce(1, "d")
    until(lambda: len(one.records) == 4, one)
    assert one.values[3:] == [b"d"]
    assert one.poll(0.2) == []
    one.client.resume([where])
    until(lambda: one.values[4:] == [b"c"], one)
    one.client.seek_to_end([where])
    assert one.consumer.position(where) == 3
    with pytest.raises(NotAssignedError):
        one.client.seek(TopicPartition("absent", 0), 1)
    with pytest.raises(TypeError, match="a list of names"):
        one.client.subscribe("topic")


# Programs with trio


def test_a_trio_program_polls_while_its_heartbeats_are_a_task(group: Group) -> None:
    group.produce(0, "a")
    values: list[bytes | None] = []
    calls: list[int] = []

    class Listener(RebalanceListener):
        async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:  # type: ignore[override]
            await trio.lowlevel.checkpoint()
            calls.append(len(partitions))

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with (
                connect(group.bootstrap) as cluster,
                trio_consumer.open_group_consumer(
                    cluster, group.config(), [group.topic], Listener()
                ) as consumer,
            ):
                while not values:
                    values.extend(record.value for record in await consumer.poll(0.1))
                # The poll that is cancelled loses nothing.
                with trio.move_on_after(0.01):
                    await consumer.poll(5)
                group.produce(0, "b")
                while len(values) < 2:
                    values.extend(record.value for record in await consumer.poll(0.1))

    trio.run(main)
    assert (values, calls) == ([b"a", b"b"], [4])
    assert group.committed()[0] == 2
    assert group.described().state == "Empty"  # it has left


def test_a_cancelled_block_leaves_the_group_and_raises_the_error_of_its_body(group: Group) -> None:
    async def main() -> None:
        async with (
            connect(group.bootstrap) as cluster,
            trio_consumer.open_group_consumer(cluster, group.config(), [group.topic]) as consumer,
        ):
            while not consumer.assignment:
                await consumer.poll(0.1)
            raise LookupError("the program's own")

    with pytest.raises(LookupError, match="the program's own"):
        trio.run(main)
    assert group.described().state == "Empty"


def test_a_closed_consumer_refuses_calls(group: Group) -> None:
    with group.opened() as one:
        pass
    for call in (one.consumer.poll, one.consumer.commit):
        with pytest.raises(RuntimeError, match="the consumer is closed"):
            call()


def test_the_cluster_of_a_consumer_serves_other_calls_too(group: Group) -> None:
    with socket_transport.connect(group.bootstrap) as cluster:
        own: Cluster = cluster
        with open_group_consumer(own, group.config(), [group.topic]) as consumer:
            wait_until(lambda: consumer.poll(0.05) == [] and consumer.assignment)
            producer = BlockingProducer(Producer(own))
            producer.send(group.topic, [ProducerRecord(b"x")])
            wait_until(lambda: [r.value for r in consumer.poll(0.05)] == [b"x"])


# Brokers with older versions

OLD = {
    JoinGroupRequest: 1,
    SyncGroupRequest: 0,
    HeartbeatRequest: 0,
    LeaveGroupRequest: 2,
    OffsetCommitRequest: 2,
    OffsetFetchRequest: 1,
    FindCoordinatorRequest: 0,
}


class OldCluster(Cluster):
    """A client that takes its brokers for ones of Kafka 0.10.1."""

    async def open_connection(self, node: Node, deadline: float) -> BrokerConnection:
        connection = await super().open_connection(node, deadline)
        for request, last in OLD.items():
            first = connection.versions[request.API].first
            connection.versions[request.API] = VersionRange(first, last)
        return connection


def test_members_of_older_brokers_join_commit_and_leave(group: Group) -> None:
    group.produce(0, "a", "b")
    with contextlib.closing(
        OldCluster(BlockingTransport(), group.bootstrap, timeout_s=PATIENCE_S)
    ) as cluster:
        with open_group_consumer(cluster, group.config(), [group.topic]) as consumer:
            values: list[bytes | None] = []

            def has_both() -> bool:
                values.extend(record.value for record in consumer.poll(0.05))
                return values == [b"a", b"b"]

            wait_until(has_both)
            consumer.commit()
            where = TopicPartition(group.topic, 0)
            committed = consumer.committed([where])[where]
            assert committed is not None
            assert committed.offset == 2
            assert group.described().state == "Stable"
        assert group.described().state == "Empty"
        with pytest.raises(UnsendableError, match="JoinGroup cannot encode"):  # noqa: SIM117
            with open_group_consumer(
                cluster, group.config(instance_id="i"), [group.topic]
            ) as consumer:
                wait_until(lambda: consumer.poll(0.05))
