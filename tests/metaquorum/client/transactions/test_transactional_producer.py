"""Transactions take effect as a whole, at every level of transaction.version."""

from collections.abc import Iterator
from typing import Any

import pytest
import trio

from metaquorum.client import connect as connect_trio
from metaquorum.client.administration.admin import LATEST
from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import BrokerError, UnreachableError
from metaquorum.client.groups.blocking import BlockingGroupAdmin, open_group_consumer
from metaquorum.client.groups.group_config import GroupConfig, OffsetReset
from metaquorum.client.groups.values import GroupMetadata
from metaquorum.client.producer import Producer
from metaquorum.client.socket_transport import BlockingAdmin, BlockingProducer
from metaquorum.client.transactions.blocking import BlockingTransactionAdmin
from metaquorum.client.transactions.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFencedError,
    UnknownOutcomeError,
)
from metaquorum.client.transactions.transaction_state import State, WrongStateError
from metaquorum.client.transactions.transactional_producer import TransactionalProducer
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.schema.message import Message
from tests.metaquorum.client.transactions.together import (
    LEVELS,
    connected,
    losing,
    new_topic,
    producer,
    read,
    values,
)
from tests.nodes import PATIENCE_S, Peer, unique, wait_until


@pytest.fixture
def cluster(with_transactions: Peer) -> Iterator[Cluster]:
    with connected(with_transactions) as cluster:
        yield cluster


def committed(cluster: Cluster, group: str) -> list[int]:
    outcome = BlockingGroupAdmin(cluster).committed_offsets([group])[group]
    assert not isinstance(outcome, BrokerError)
    return [outcome[where].offset for where in sorted(outcome)]


def assert_read(cluster: Cluster, topic: str, expected: list[str]) -> None:
    """Check what read_committed reads up to the high watermark, once all markers are written."""
    where = TopicPartition(topic, 0)
    admin = BlockingAdmin(cluster)

    def is_settled() -> bool:
        stable, end = (
            admin.list_offsets({where: LATEST}, read_committed=committed)[where]
            for committed in (True, False)
        )
        return stable == end

    wait_until(is_settled)
    assert read(cluster, topic) == expected


def assert_committed(cluster: Cluster, group: str, expected: list[int]) -> None:
    wait_until(lambda: committed(cluster, group) == expected)


@pytest.mark.parametrize("level", LEVELS)
def test_records_and_offsets_take_effect_together(cluster: Cluster, level: int) -> None:
    topic, group = new_topic(cluster, 2), unique("g")
    one = producer(cluster, unique("id"), level)
    one.init()
    for number in range(3):
        with one.transaction():
            one.send(topic, [*values(f"{number}a"), *values(f"{number}b", partition=1)])
            one.send_offsets({TopicPartition(topic, 0): number + 1}, GroupMetadata(group))
            one.send(topic, values(f"{number}c"))
            assert f"{number}a" not in read(cluster, topic, partitions=2)
    wait_until(lambda: len(read(cluster, topic, partitions=2)) == 9)
    assert sorted(read(cluster, topic, partitions=2)) == [
        f"{number}{letter}" for number in range(3) for letter in "abc"
    ]
    assert_committed(cluster, group, [3])
    epoch = one.client.producer[1]
    assert epoch == (3 if level == 2 else 0)  # KIP-890: an epoch for each transaction


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_of_an_aborted_transaction_takes_effect(cluster: Cluster, level: int) -> None:
    topic, group = new_topic(cluster), unique("g")
    one = producer(cluster, unique("id"), level)
    one.init()

    def fail() -> None:
        with one.transaction():
            one.send(topic, values("lost"))
            one.send_offsets({TopicPartition(topic, 0): 1}, GroupMetadata(group))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with one.transaction():
        one.send(topic, values("kept"))
    assert_read(cluster, topic, ["kept"])
    assert read(cluster, topic, committed=False) == ["lost", "kept"]
    assert_committed(cluster, group, [])


def test_an_open_transaction_is_not_read(cluster: Cluster) -> None:
    topic = new_topic(cluster)
    one = producer(cluster, unique("id"))
    one.init()
    one.begin()
    one.send(topic, values("open"))
    assert read(cluster, topic) == []
    assert read(cluster, topic, committed=False) == ["open"]
    one.commit()
    assert_read(cluster, topic, ["open"])


@pytest.mark.parametrize("level", LEVELS)
def test_an_empty_transaction_sends_nothing(cluster: Cluster, level: int) -> None:
    one = producer(cluster, unique("id"), level)
    one.init()
    before = one.client.producer
    one.begin()
    one.commit()
    one.begin()
    one.abort()
    assert one.client.producer == before
    assert one.client.state is State.READY


@pytest.mark.parametrize("level", LEVELS)
def test_a_new_producer_fences_the_one_before_and_ends_its_transaction(
    cluster: Cluster, level: int
) -> None:
    topic, name = new_topic(cluster), unique("id")
    old, new = producer(cluster, name, level), producer(cluster, name, level)
    old.init()
    old.begin()
    old.send(topic, values("old"))
    new.init()
    with pytest.raises(ProducerFencedError):
        old.commit()
    with pytest.raises(ProducerFencedError):
        old.begin()
    with new.transaction():
        new.send(topic, values("new"))
    assert_read(cluster, topic, ["new"])


@pytest.mark.parametrize("level", LEVELS)
def test_a_failed_step_can_only_be_aborted(cluster: Cluster, level: int) -> None:
    topic = new_topic(cluster)
    one = producer(cluster, unique("id"), level)
    one.init()
    one.begin()
    one.send(topic, values("lost"))
    with pytest.raises(AbortableTransactionError) as refused:
        one.send(topic, values("x" * 2_000_000))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    for call in (one.commit, one.begin):
        with pytest.raises(AbortableTransactionError):
            call()
    before = one.client.producer
    one.abort()
    assert one.client.producer[1] > before[1]  # so that no lost batch can be appended later
    with one.transaction():
        one.send(topic, values("kept"))
    assert_read(cluster, topic, ["kept"])


@pytest.mark.parametrize("level", LEVELS)
def test_a_failure_before_the_first_answer_is_aborted(cluster: Cluster, level: int) -> None:
    topic = new_topic(cluster)
    one = producer(cluster, unique("id"), level)
    one.init()
    one.begin()
    with pytest.raises(AbortableTransactionError):
        one.send(topic, values("x" * 2_000_000))
    one.abort()
    one.begin()
    with pytest.raises(AbortableTransactionError):
        one.send(unique("absent"), values("v"))
    one.abort()
    with one.transaction():
        one.send(topic, values("kept"))
    assert_read(cluster, topic, ["kept"])


def test_the_coordinator_aborts_a_transaction_after_its_timeout(cluster: Cluster) -> None:
    topic, name = new_topic(cluster), unique("id")
    one = producer(cluster, name, timeout_s=0.5)
    one.init()
    admin = BlockingTransactionAdmin(cluster)

    def is_aborted() -> bool:
        described = admin.describe_transactions([name])[name]
        return not isinstance(described, BrokerError) and described.state == "CompleteAbort"

    def commit_late() -> None:
        one.begin()
        one.send(topic, values("late"))  # refused if it takes longer than the timeout
        wait_until(is_aborted)
        one.commit()

    with pytest.raises(FatalTransactionError, match="timed out"):
        commit_late()
    assert read(cluster, topic) == []


def test_calls_in_the_wrong_order_are_refused(cluster: Cluster) -> None:
    one = producer(cluster, unique("id"))
    with pytest.raises(WrongStateError, match="is new"):
        one.begin()
    one.init()
    for call in (one.commit, one.abort, lambda: one.send("t", [])):
        with pytest.raises(WrongStateError, match="is ready"):
            call()


@pytest.mark.parametrize("level", LEVELS)
def test_offsets_of_a_member_that_has_left_are_refused(cluster: Cluster, level: int) -> None:
    topic, group = new_topic(cluster), unique("g")
    config = GroupConfig(group, auto_offset_reset=OffsetReset.EARLIEST, auto_commit_interval_s=None)
    one = producer(cluster, unique("id"), level)
    one.init()
    with open_group_consumer(cluster, config, [topic]) as consumer:
        wait_until(lambda: consumer.poll(0.1) is not None and consumer.assignment)
        member = consumer.client.group_metadata
        with one.transaction():
            one.send_offsets(consumer.client.positions() or {TopicPartition(topic, 0): 0}, member)
    assert_committed(cluster, group, [0])
    one.begin()
    with pytest.raises(AbortableTransactionError) as refused:
        one.send_offsets({TopicPartition(topic, 0): 9}, member)
    assert refused.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
    one.abort()
    assert_committed(cluster, group, [0])


def test_a_consumer_waits_for_pending_offsets_and_rewinds_after_an_abort(
    cluster: Cluster,
) -> None:
    topic, group = new_topic(cluster), unique("g")
    BlockingProducer(Producer(cluster)).send(topic, values("a", "b", "c"))
    config = GroupConfig(
        group,
        auto_offset_reset=OffsetReset.EARLIEST,
        auto_commit_interval_s=None,
        max_poll_records=1,
    )
    one = producer(cluster, unique("id"))
    one.init()
    with open_group_consumer(cluster, config, [topic]) as consumer:

        def poll() -> bytes | None:
            (record,) = wait_until(lambda: consumer.poll(1.0))
            return record.value

        def send_offsets() -> None:
            one.send_offsets(consumer.client.positions(), consumer.client.group_metadata)

        assert poll() == b"a"
        with one.transaction():
            send_offsets()
        assert poll() == b"b"
        one.begin()
        send_offsets()

        def is_unstable() -> bool:
            """Return whether the answer has that error; False if no answer comes in time."""
            with pytest.raises((BrokerError, UnreachableError)) as refused:
                consumer.committed([TopicPartition(topic, 0)], timeout_s=0.5)
            error = refused.value
            return isinstance(error, BrokerError) and (
                error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
            )

        wait_until(is_unstable)
        assert poll() == b"c"
        one.abort()
        consumer.client.rewind()
        assert poll() == b"b"


# Lost answers


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_a_lost_answer_to_the_end_is_asked_for_again(
    with_transactions: Peer, level: int, is_commit: bool
) -> None:
    with losing(with_transactions) as (cluster, transport):
        topic = new_topic(cluster)
        one = producer(cluster, unique("id"), level)
        one.init()
        for text in ("first", "second"):
            one.begin()
            one.send(topic, values(text))
            transport.losses[ApiKey.END_TXN] = 2
            one.commit() if is_commit else one.abort()
        assert transport.lost == 4
        assert_read(cluster, topic, ["first", "second"] if is_commit else [])


@pytest.mark.parametrize("level", LEVELS)
def test_other_lost_answers_are_asked_for_again(with_transactions: Peer, level: int) -> None:
    with losing(with_transactions) as (cluster, transport):
        topic, group = new_topic(cluster), unique("g")
        one = producer(cluster, unique("id"), level)
        keys = [ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT]
        if level < 2:
            keys += [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN]
        transport.losses.update(dict.fromkeys(keys, 1))
        one.init()
        with one.transaction():
            one.send(topic, values("once"))
            one.send_offsets({TopicPartition(topic, 0): 1}, GroupMetadata(group))
        assert transport.lost == len(keys)
        assert_read(cluster, topic, ["once"])
        assert_committed(cluster, group, [1])


def test_an_outcome_that_is_not_known_is_not_guessed(with_transactions: Peer) -> None:
    """The answer to a commit is lost, and another producer takes the id before the repetition."""
    with losing(with_transactions) as (cluster, transport):
        topic, name = new_topic(cluster), unique("id")
        one = producer(cluster, name)

        def lose_commits() -> UnknownOutcomeError:
            """Commit until an answer is lost; return the last error."""
            before, cluster.timeout_s = transport.lost, 1.0
            transport.losses[ApiKey.END_TXN] = 1_000_000
            while transport.lost == before:
                with pytest.raises(UnknownOutcomeError) as unknown:
                    one.commit()
            transport.losses.clear()
            cluster.timeout_s = PATIENCE_S
            return unknown.value

        one.init()
        one.begin()
        one.send(topic, values("committed"))
        assert not lose_commits().is_final
        assert one.client.state is State.COMMITTING
        for call in (one.abort, one.begin):  # the coordinator may have committed
            with pytest.raises(WrongStateError, match="committing"):
                call()
        one.commit()
        assert_read(cluster, topic, ["committed"])

        one.begin()
        one.send(topic, values("again"))
        lose_commits()
        producer(cluster, name).init()
        with pytest.raises(UnknownOutcomeError) as unknown:
            one.commit()
        assert unknown.value.is_final
        assert_read(cluster, topic, ["committed", "again"])


def test_an_interrupted_commit_is_not_guessed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes before the answer to a commit; then another producer takes the id."""
    topic, name = new_topic(cluster), unique("id")
    one = producer(cluster, name)
    one.init()
    one.begin()
    one.send(topic, values("committed"))
    call = cluster.call

    async def interrupted(request: Message, **more: Any) -> Any:
        await call(request, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.commit()
    monkeypatch.undo()
    assert one.client.state is State.COMMITTING
    wait_until(lambda: read(cluster, topic) == ["committed"])
    producer(cluster, name).init()
    with pytest.raises(UnknownOutcomeError) as unknown:
        one.commit()
    assert unknown.value.is_final


# With trio


def test_a_producer_runs_on_trio(with_transactions: Peer) -> None:
    async def main() -> None:
        async with connect_trio(with_transactions.bootstrap, timeout_s=PATIENCE_S) as cluster:
            one = TransactionalProducer(cluster, unique("id"))
            await one.init()
            async with one.transaction():
                await one.send(topic, values("v"))

    with connected(with_transactions) as cluster:
        topic = new_topic(cluster)
        trio.run(main)
        assert_read(cluster, topic, ["v"])
