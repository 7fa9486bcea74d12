"""Decisions of the controller with Kafka's messages, and the time of its answers."""

from random import Random

import pytest
import trio

from metaquorum.config.definition import INT_MAX
from metaquorum.metadata.ids import new_topic_id
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import FeatureLevelRecord, PartitionRecord, TopicRecord
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.features import check_features
from metaquorum.quorum.controller.topics import (
    MAX_PARTITIONS_PER_TOPIC,
    NewPartitions,
    NewTopic,
    TopicDefaults,
    TopicOutcome,
    create_partitions,
    create_topic,
)
from metaquorum.quorum.controller.worker_registration import (
    fence_workers,
    register_worker,
    shut_down_worker,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.metaquorum.quorum.raft.test_alone import Node
from tests.metaquorum.quorum.storage.crash_disk import CrashDisk
from tests.metaquorum.quorum.storage.histories import CLUSTER, history, registration

THREE, _ = replay(
    MetadataImage.empty(CLUSTER),
    history([("register", 1, 1), ("register", 2, 1), ("register", 3, 1), ("create", "c.d", 1)]),
)
E = ErrorCode


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (NewTopic(""), E.INVALID_TOPIC_EXCEPTION, "the empty string is not allowed"),
        (NewTopic("."), E.INVALID_TOPIC_EXCEPTION, "'.' or '..' is not allowed"),
        (NewTopic("a" * 250), E.INVALID_TOPIC_EXCEPTION, "longer than the max allowed length 249"),
        (NewTopic("a b"), E.INVALID_TOPIC_EXCEPTION, "other than ASCII alphanumerics"),
        (NewTopic("größe"), E.INVALID_TOPIC_EXCEPTION, "other than ASCII alphanumerics"),
        (NewTopic("a\n"), E.INVALID_TOPIC_EXCEPTION, "other than ASCII alphanumerics"),
        (NewTopic("__cluster_metadata"), E.INVALID_REQUEST, "is prohibited"),
        (NewTopic("c.d"), E.TOPIC_ALREADY_EXISTS, "Topic 'c.d' already exists."),
        (NewTopic("c_d"), E.INVALID_TOPIC_EXCEPTION, "collides with existing topic: c.d"),
        (NewTopic("t", 0), E.INVALID_PARTITIONS, "non-positive"),
        (NewTopic("t", -2), E.INVALID_PARTITIONS, "non-positive"),
        (NewTopic("t", MAX_PARTITIONS_PER_TOPIC + 1), E.INVALID_PARTITIONS, "at most"),
        (NewTopic("t", INT_MAX), E.INVALID_PARTITIONS, "at most"),
        (NewTopic("t", 1, 0), E.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (NewTopic("t", 1, 4), E.INVALID_REPLICATION_FACTOR, "only 3 broker(s) are registered"),
        (NewTopic("t", 2, -1, {0: (1,)}), E.INVALID_REQUEST, "numPartitions was not set"),
        (NewTopic("t", -1, 1, {0: (1,)}), E.INVALID_REQUEST, "replication factor was not set"),
        (NewTopic("t", assignments={1: (1,)}), E.INVALID_REPLICA_ASSIGNMENT, "consecutive"),
        (NewTopic("t", assignments={0: ()}), E.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
        (NewTopic("t", assignments={0: (9,)}), E.INVALID_REPLICA_ASSIGNMENT, "no such broker"),
        (NewTopic("t", assignments={0: (1, 1)}), E.INVALID_REPLICA_ASSIGNMENT, "more than once"),
        (
            NewTopic("t", assignments={0: (1, 2), 1: (1,)}),
            E.INVALID_REPLICA_ASSIGNMENT,
            "1 replica(s), but this is not consistent with previous partitions, which have 2",
        ),
        (NewTopic("t", configs={"no.such": "1"}), E.INVALID_CONFIG, "no.such"),
        (NewTopic("t", configs={"retention.ms": None}), E.INVALID_CONFIG, "Null value"),
        (NewTopic("t", configs={"retention.ms": "x"}), E.INVALID_CONFIG, "type LONG"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_in_kafkas_words(
    topic: NewTopic, code: ErrorCode, message: str
) -> None:
    decision = create_topic(THREE, topic, TopicDefaults(), Random(1))
    assert decision.answer.code is code
    assert message in (decision.answer.message or "")
    assert decision.all_records() == []


def test_counts_that_are_left_open_are_the_defaults() -> None:
    decision = create_topic(THREE, NewTopic("t"), TopicDefaults(4, 1), Random(1))
    assert (decision.answer.partitions, decision.answer.replication_factor) == (4, 1)
    partitions = [each for each in decision.all_records() if isinstance(each, PartitionRecord)]
    assert [len(each.replicas) for each in partitions] == [1] * 4
    assert all(each.isr == each.replicas for each in partitions)
    assert all(each.leader == each.replicas[0] for each in partitions)


def test_given_assignments_are_followed() -> None:
    topic = NewTopic("t", assignments={1: (3,), 0: (2,)}, configs={"retention.ms": "7"})
    decision = create_topic(THREE, topic, TopicDefaults(), Random(1))
    image, _ = replay(THREE, decision.all_records())
    assert [each.replicas for each in image.topics["t"].partitions] == [(2,), (3,)]
    assert image.topic_configs("t") == decision.answer.configs == {"retention.ms": "7"}


def test_fenced_workers_are_replicas_where_the_others_are_too_few_and_then_not_in_sync() -> None:
    fenced, _ = replay(THREE, fence_workers(THREE, {2}).all_records())
    for seed in range(5):
        decision = create_topic(fenced, NewTopic("t", 4, 3), TopicDefaults(), Random(seed))
        image, _ = replay(fenced, decision.all_records())
        for partition in image.topics["t"].partitions:
            assert partition.replicas[2] == 2
            assert {*partition.isr} == {1, 3}
            assert partition.leader == partition.replicas[0]
        grown = create_partitions(image, NewPartitions("t", 6), Random(seed))
        image, _ = replay(image, grown.all_records())
        assert [{*each.isr} for each in image.topics["t"].partitions] == [{1, 3}] * 6


def test_a_worker_that_is_just_leaving_is_given_no_replica_until_it_has_left() -> None:
    epoch = THREE.broker_epoch(2)
    leaving, _ = replay(THREE, shut_down_worker(THREE, 2, epoch).all_records())
    spec = NewTopic("t", 1, 3)
    answer = create_topic(leaving, spec, TopicDefaults(), Random(1)).answer
    assert answer.code is E.INVALID_REPLICATION_FACTOR
    assert "only 2 broker(s) are registered" in (answer.message or "")
    left, _ = replay(leaving, fence_workers(leaving, {2}).all_records())
    assert create_topic(left, spec, TopicDefaults(), Random(1)).answer.code is E.NONE


def test_fenced_workers_are_given_nothing_but_by_hand_and_then_do_not_lead() -> None:
    fenced, _ = replay(THREE, fence_workers(THREE, {2, 3}).all_records())
    for seed in range(5):
        made = create_topic(fenced, NewTopic("t", 4), TopicDefaults(), Random(seed)).all_records()
        assert {each.leader for each in made if isinstance(each, PartitionRecord)} == {1}
    by_hand = NewTopic("t", assignments={0: (1,), 1: (2,)})
    answer = create_topic(fenced, by_hand, TopicDefaults(), Random(1)).answer
    assert answer.code is E.INVALID_REPLICA_ASSIGNMENT
    assert "for partition 1 are fenced or in controlled shutdown" in (answer.message or "")
    none, _ = replay(fenced, fence_workers(fenced, {1}).all_records())
    answer = create_topic(none, NewTopic("t"), TopicDefaults(), Random(1)).answer
    assert answer.code is E.INVALID_REPLICATION_FACTOR
    assert "All brokers are currently fenced" in (answer.message or "")


def test_topic_ids_are_random_uuids() -> None:
    ids = [new_topic_id(Random(seed)) for seed in range(50)]
    assert len(set(ids)) == 50
    assert all(each[6] >> 4 == 4 and each[8] >> 6 == 2 for each in ids)


def test_the_same_incarnation_registers_once_and_another_raises_the_epochs_first() -> None:
    again = register_worker(THREE, registration(1, 1))
    assert again.all_records() == []
    other = register_worker(THREE, registration(1, 2)).all_records()
    image, _ = replay(THREE, other)
    assert image.workers[1].broker_epoch == THREE.end_offset + len(other) - 1
    assert all(isinstance(record, PartitionRecord) for record in other[:-1])


def test_levels_of_a_newer_version_are_refused() -> None:
    image, _ = replay(MetadataImage.empty(CLUSTER), [FeatureLevelRecord("metadata.version", 99)])
    with pytest.raises(KafkaError, match="level 99") as caught:
        check_features(image)
    assert caught.value.code is E.UNSUPPORTED_VERSION


def codes(outcomes: list[TopicOutcome]) -> list[tuple[str | None, ErrorCode]]:
    return [(outcome.name, outcome.code) for outcome in outcomes]


def test_a_topic_whose_creation_is_on_its_way_exists_already() -> None:
    answers: list[tuple[str | None, ErrorCode]] = []

    async def work(node: Node) -> None:
        async def one() -> None:
            answers.extend(codes(await node.controller_client.create_topics([NewTopic("t")])))
            assert node.loader.image.topic("t") is not None, "answered before it was committed"

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one)

    trio.run(Node(CrashDisk()).run, work)
    assert sorted(answers) == [("t", E.NONE)] + [("t", E.TOPIC_ALREADY_EXISTS)] * 4


def test_one_request_has_an_outcome_for_each_topic() -> None:
    async def work(node: Node) -> None:
        controller_client = node.controller_client
        specs = [NewTopic("a"), NewTopic("b", 3), NewTopic("c!"), NewTopic("d"), NewTopic("d")]
        outcomes = await controller_client.create_topics(specs)
        assert sorted(codes(outcomes)) == [
            ("a", E.NONE),
            ("b", E.NONE),
            ("c!", E.INVALID_TOPIC_EXCEPTION),
            ("d", E.INVALID_REQUEST),
        ]
        assert node.loader.visible.topics["b"].partitions
        made = node.loader.image.topics["a"]
        deleted = await controller_client.delete_topics(
            [("b", None), ("zz", None), (None, made.topic_id), (None, bytes(16))]
        )
        assert codes(deleted) == [
            ("b", E.NONE),
            ("zz", E.UNKNOWN_TOPIC_OR_PARTITION),
            ("a", E.NONE),
            (None, E.UNKNOWN_TOPIC_ID),
        ]
        assert not node.loader.visible.topics

    trio.run(Node(CrashDisk()).run, work)


def test_validating_makes_nothing() -> None:
    async def work(node: Node) -> None:
        before = node.voter.status.replicas[0].last_index
        specs = [NewTopic("t", 5), NewTopic("u", 1, 9)]
        outcomes = await node.controller_client.create_topics(specs, validate_only=True)
        assert codes(outcomes) == [("t", E.NONE), ("u", E.INVALID_REPLICATION_FACTOR)]
        assert outcomes[0].partitions == 5
        assert outcomes[0].topic_id is None
        assert node.voter.status.replicas[0].last_index == before

    trio.run(Node(CrashDisk()).run, work)


def test_producer_id_blocks_never_overlap_and_need_the_current_epoch() -> None:
    async def work(node: Node) -> None:
        epoch = node.loader.image.workers[1].broker_epoch
        blocks = []

        async def one() -> None:
            blocks.append(await node.controller_client.allocate_producer_ids(1, epoch))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one)
        assert sorted(block.first for block in blocks) == [0, 1000, 2000, 3000, 4000]
        assert {block.count for block in blocks} == {1000}
        with pytest.raises(KafkaError) as stale:
            await node.controller_client.allocate_producer_ids(1, epoch + 1)
        assert stale.value.code is E.STALE_BROKER_EPOCH
        with pytest.raises(KafkaError) as unknown:
            await node.controller_client.allocate_producer_ids(2, epoch)
        assert unknown.value.code is E.BROKER_ID_NOT_REGISTERED

    trio.run(Node(CrashDisk()).run, work)


def test_a_proposal_that_missed_its_offset_is_decided_anew() -> None:
    async def work(node: Node) -> None:
        status = node.voter.status
        record = TopicRecord("other", bytes(16))
        from metaquorum.metadata.records import encode_record

        # Another voter's batch takes the offset on which the controller decides.
        node.voter.propose(status.term, status.end_offset, [encode_record(record)])
        outcomes = await node.controller_client.create_topics([NewTopic("a"), NewTopic("b")])
        assert codes(outcomes) == [("a", E.NONE), ("b", E.NONE)]
        assert sorted(node.loader.image.topics) == ["a", "b", "other"]

    trio.run(Node(CrashDisk()).run, work)


@pytest.mark.slow
def test_a_large_registration_is_several_batches_and_all_epochs_are_raised() -> None:
    disk = CrashDisk()
    epochs = []

    async def work(node: Node) -> None:
        if not node.loader.image.topics:
            for name in "a", "b":
                (made,) = await node.controller_client.create_topics([NewTopic(name, 7_000)])
                assert made.code is E.NONE
        for topic in node.loader.image.topics.values():
            epochs.append({partition.leader_epoch for partition in topic.partitions})

    for seed in (1, 2):
        trio.run(Node(disk, seed).run, work)
    assert epochs == [{0}, {0}, {2}, {2}]  # without a leader in between


def test_who_does_not_lead_says_so() -> None:
    async def main() -> None:
        node = Node(CrashDisk())
        with pytest.raises(KafkaError) as caught:
            await node.controller_client.create_topics([NewTopic("a")])
        assert caught.value.code is E.NOT_CONTROLLER

    trio.run(main)
