"""Internal topics: only workers have them created, and no change of a client can remove state."""

from collections.abc import Sequence
from random import Random

import pytest

from metaquorum.config.definition import ConfigValue, Scope
from metaquorum.config.resolution import WorkerLayers
from metaquorum.metadata.image import MetadataImage, PartitionImage
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from metaquorum.metadata.records import (
    ELIGIBLE_LEADERS,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.config_changes import (
    ConfigChange,
    ConfigOp,
    ResourceChange,
    change_configs,
)
from metaquorum.quorum.controller.controller_configs import ControllerConfigs
from metaquorum.quorum.controller.internal_topics import CreateInternalTopic, create_internal_topic
from metaquorum.quorum.controller.leaders.elect_leaders import (
    ElectionSpec,
    ElectionType,
    elect_leader,
)
from metaquorum.quorum.controller.leaders.eligible_leaders import min_isr
from metaquorum.quorum.controller.topics import (
    NewPartitions,
    NewTopic,
    TopicDefaults,
    TopicOutcome,
    create_partitions,
    create_topic,
    delete_topic,
    topic_records,
)
from metaquorum.quorum.controller.worker_registration import fence_workers
from metaquorum.wire.primitives.errors import ErrorCode as E
from metaquorum.wire.primitives.errors import KafkaError
from tests.metaquorum.quorum.storage.histories import CLUSTER, history

SET, DELETE, APPEND, SUBTRACT = ConfigOp
TOPIC_ID = bytes(range(16))
# Workers 1 and 2 are live; worker 3 is registered and fenced.
IMAGE, _ = replay(
    MetadataImage.empty(CLUSTER),
    history([("register", 1, 1), ("register", 2, 1), ("restart", 3, 1)]),
)


def after(image: MetadataImage, *records: MetadataRecord) -> MetadataImage:
    return replay(image, records)[0]


def with_topic(
    name: str = CONSUMER_OFFSETS, replicas: tuple[int, ...] = (1, 2), **configs: str
) -> MetadataImage:
    """Return an image in which the topic exists, with configs written with _ for the dots."""
    texts = {key.replace("_", "."): text for key, text in configs.items()}
    return after(IMAGE, *topic_records(IMAGE, name, TOPIC_ID, texts, [replicas, replicas]))


def asked(image: MetadataImage = IMAGE, **fields: object) -> CreateInternalTopic:
    values: dict[str, object] = {
        "worker_id": 1,
        "broker_epoch": image.workers[1].broker_epoch,
        "name": CONSUMER_OFFSETS,
        "partitions": 50,
        "most_replicas": 3,
        "segment_bytes": 104_857_600,
    }
    return CreateInternalTopic(**(values | fields))  # type: ignore[arg-type]


def created(image: MetadataImage = IMAGE, **fields: object) -> MetadataImage:
    records = create_internal_topic(image, asked(image, **fields), Random(1)).all_records()
    return after(image, *records)


def partitions(image: MetadataImage) -> Sequence[PartitionImage]:
    topic = image.topic(CONSUMER_OFFSETS)
    assert topic is not None
    return tuple(topic.partitions)


# Creation


def test_a_worker_has_the_topic_created_with_kafkas_configs() -> None:
    image = created()
    assert len(partitions(image)) == 50
    assert image.topic_configs(CONSUMER_OFFSETS) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


def test_each_live_worker_has_a_replica_and_no_fenced_one() -> None:
    assert {frozenset(each.replicas) for each in partitions(created())} == {frozenset({1, 2})}
    alone = after(IMAGE, *fence_workers(IMAGE, {2}).all_records())
    assert {tuple(each.replicas) for each in partitions(created(alone))} == {(1,)}
    assert {len(each.replicas) for each in partitions(created(most_replicas=1))} == {1}
    assert {each.leader for each in partitions(created(most_replicas=1))} == {1, 2}


def test_a_topic_that_exists_is_not_created_again() -> None:
    image = created()
    assert create_internal_topic(image, asked(image), Random(2)).all_records() == []
    by_user = with_topic(cleanup_policy="delete")
    assert create_internal_topic(by_user, asked(by_user), Random(2)).all_records() == []


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"broker_epoch": 0}, E.STALE_BROKER_EPOCH, "registered with broker epoch"),
        ({"worker_id": 9}, E.BROKER_ID_NOT_REGISTERED, "not registered"),
        ({"name": "orders"}, E.INVALID_TOPIC_EXCEPTION, "do not create a topic named 'orders'"),
        ({"name": "__share_group_state"}, E.INVALID_TOPIC_EXCEPTION, "do not create"),
        ({"partitions": 0}, E.INVALID_PARTITIONS, "1 to 10000"),
        ({"partitions": 10_001}, E.INVALID_PARTITIONS, "1 to 10000"),
        ({"segment_bytes": 1}, E.INVALID_CONFIG, "segment.bytes"),
    ],
)
def test_a_request_that_no_worker_would_send_is_refused(
    fields: dict[str, object], code: E, message: str
) -> None:
    with pytest.raises(KafkaError, match=message) as refused:
        create_internal_topic(IMAGE, asked(**fields), Random(1))
    assert refused.value.code is code


def test_without_a_live_worker_the_topic_is_not_created() -> None:
    image = after(IMAGE, *fence_workers(IMAGE, {1, 2}).all_records())
    with pytest.raises(KafkaError, match="No worker is live") as refused:
        created(image)
    assert refused.value.code is E.INVALID_REPLICATION_FACTOR


def test_a_cluster_of_the_first_level_is_told_how_to_raise_it() -> None:
    image = after(IMAGE, FeatureLevelRecord("metadata.version", 1))
    with pytest.raises(KafkaError) as refused:
        created(image)
    assert refused.value.code is E.UNSUPPORTED_VERSION
    for words in (
        "'__consumer_offsets' needs level 2 of metadata.version",
        "the cluster runs at level 1",
        "mq-admin cluster upgrade metadata.version=2",
        "kafka-features.sh upgrade --feature metadata.version=2",
    ):
        assert words in refused.value.message


def test_the_topic_of_transactions_has_kafkas_configs_and_each_live_worker() -> None:
    image = created(name=TRANSACTION_STATE, min_isr=2)
    topic = image.topic(TRANSACTION_STATE)
    assert topic is not None
    assert dict(image.topic_configs(TRANSACTION_STATE)) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": str(asked().segment_bytes),
        "unclean.leader.election.enable": "false",
    }
    assert {frozenset(each.replicas) for each in topic.partitions} == {frozenset({1, 2})}


def test_transactions_need_their_level() -> None:
    image = after(IMAGE, FeatureLevelRecord("metadata.version", 2))
    with pytest.raises(KafkaError, match="'__transaction_state' needs level 3") as refused:
        created(image, name=TRANSACTION_STATE)
    assert refused.value.code is E.UNSUPPORTED_VERSION
    assert created(image).topic(CONSUMER_OFFSETS) is not None


def test_a_colliding_topic_of_an_earlier_version_is_named() -> None:
    with pytest.raises(KafkaError, match=r"collides with existing topic '__consumer\.offsets'"):
        created(with_topic("__consumer.offsets"))


# Clients


@pytest.mark.parametrize("name", [CONSUMER_OFFSETS, TRANSACTION_STATE])
def test_clients_cannot_create_internal_topics(name: str) -> None:
    for configs in ({}, {"cleanup.policy": "compact"}):
        decision = create_topic(IMAGE, NewTopic(name, configs=configs), TopicDefaults(), Random(1))
        assert decision.all_records() == []
        assert decision.answer.code is E.INVALID_TOPIC_EXCEPTION
        assert "a worker creates it on the first use" in str(decision.answer.message)


def test_clients_cannot_create_what_an_internal_topic_would_collide_with() -> None:
    decision = create_topic(IMAGE, NewTopic("__consumer.offsets"), TopicDefaults(), Random(1))
    assert decision.all_records() == []
    assert decision.answer.code is E.INVALID_TOPIC_EXCEPTION
    assert "collides with internal topic: __consumer_offsets" in str(decision.answer.message)


def test_clients_cannot_delete_internal_topics_by_name_or_id() -> None:
    image = with_topic()
    for name, topic_id in ((CONSUMER_OFFSETS, None), (None, TOPIC_ID)):
        decision = delete_topic(image, name, topic_id)
        assert decision.all_records() == []
        outcome: TopicOutcome = decision.answer
        assert (outcome.name, outcome.topic_id) == (name, topic_id)
        assert outcome.code is E.INVALID_REQUEST
        assert "consumer groups and cannot be deleted" in str(outcome.message)
    missing = delete_topic(IMAGE, CONSUMER_OFFSETS, None).answer
    assert missing.code is E.UNKNOWN_TOPIC_OR_PARTITION


def test_clients_cannot_add_partitions_to_internal_topics() -> None:
    decision = create_partitions(with_topic(), NewPartitions(CONSUMER_OFFSETS, 3), Random(1))
    assert decision.all_records() == []
    assert decision.answer is not None
    assert decision.answer.code is E.INVALID_REQUEST
    assert "given more partitions" in str(decision.answer.message)


def test_an_unclean_election_of_an_internal_topic_is_refused() -> None:
    """Replicas 1 and 2, of which only 2 is live and only 1 in sync."""
    for name, code in ((CONSUMER_OFFSETS, E.INVALID_REQUEST), ("orders", E.NONE)):
        image = after(with_topic(name), PartitionRecord(TOPIC_ID, 0, (1, 2), (1,), -1, 1, 1))
        image = after(image, *fence_workers(image, {1}).all_records())
        decision = elect_leader(image, ElectionSpec(name, 0, ElectionType.UNCLEAN))
        assert (E.NONE if decision.answer is None else decision.answer.code) is code
        assert bool(decision.all_records()) == (code is E.NONE)


def test_unclean_elections_are_never_enabled_for_internal_topics() -> None:
    configs = ControllerConfigs(1, {"unclean.leader.election.enable": "true"})
    image = with_topic(unclean_leader_election_enable="true")
    assert not configs.may_be_unclean(image, CONSUMER_OFFSETS)
    assert configs.may_be_unclean(image, "orders")


COMPACTED, DELETED = with_topic(cleanup_policy="compact"), with_topic(cleanup_policy="delete")
WITHOUT_OWN = with_topic()


@pytest.mark.parametrize(
    ("image", "name", "op", "value", "is_allowed"),
    [
        (COMPACTED, "segment.bytes", SET, "1048576", True),
        (COMPACTED, "min.insync.replicas", SET, "2", True),
        (COMPACTED, "retention.ms", SET, "1", True),
        (COMPACTED, "min.insync.replicas", SET, "3", False),
        (COMPACTED, "cleanup.policy", SET, "compact,delete", False),
        (COMPACTED, "cleanup.policy", SET, "compact", True),
        (COMPACTED, "cleanup.policy", APPEND, "delete", False),
        (COMPACTED, "max.message.bytes", SET, "1048587", False),
        (COMPACTED, "max.message.bytes", SET, "1048588", True),
        (COMPACTED, "message.timestamp.type", SET, "LogAppendTime", False),
        (COMPACTED, "min.compaction.lag.ms", SET, "86400001", False),
        (COMPACTED, "min.compaction.lag.ms", SET, "86400000", True),
        (COMPACTED, "max.compaction.lag.ms", SET, "1000", False),
        (COMPACTED, "min.cleanable.dirty.ratio", SET, "1", False),
        (COMPACTED, "segment.ms", SET, "100", False),
        (COMPACTED, "segment.index.bytes", SET, "12", False),
        (COMPACTED, "internal.segment.bytes", SET, "14", False),
        (COMPACTED, "file.delete.delay.ms", SET, "604800001", False),
        (COMPACTED, "delete.retention.ms", SET, "0", True),
        (COMPACTED, "cleanup.policy", SET, "delete", False),
        (COMPACTED, "cleanup.policy", SUBTRACT, "compact", False),
        (COMPACTED, "cleanup.policy", DELETE, None, False),
        (COMPACTED, "unclean.leader.election.enable", SET, "true", False),
        (COMPACTED, "unclean.leader.election.enable", SET, "TRUE", False),
        (COMPACTED, "unclean.leader.election.enable", SET, "false", True),
        (COMPACTED, "unclean.leader.election.enable", DELETE, None, True),
        # Created by a user of an earlier version.
        (DELETED, "segment.bytes", SET, "1048576", True),
        (DELETED, "cleanup.policy", SET, "compact", True),
        (DELETED, "cleanup.policy", DELETE, None, False),
        (WITHOUT_OWN, "segment.bytes", SET, "1048576", True),
        (WITHOUT_OWN, "cleanup.policy", SET, "compact", True),
        (WITHOUT_OWN, "cleanup.policy", SET, "delete", False),
    ],
)
def test_config_changes_cannot_remove_state(
    image: MetadataImage, name: str, op: ConfigOp, value: str | None, *, is_allowed: bool
) -> None:
    change = ResourceChange(Scope.TOPIC, CONSUMER_OFFSETS, [ConfigChange(name, op, value)])
    error = change_configs(image, change).answer
    assert (error is None) == is_allowed, error
    if error is not None:
        assert error.code is E.INVALID_REQUEST
        assert "consumer groups" in str(error.message)


def test_replacing_all_configs_cannot_drop_compaction() -> None:
    lost = ResourceChange(
        Scope.TOPIC, CONSUMER_OFFSETS, [ConfigChange("segment.bytes", SET, "1048576")], replace=True
    )
    error = change_configs(COMPACTED, lost).answer
    assert error is not None
    assert error.code is E.INVALID_REQUEST
    kept = ResourceChange(
        Scope.TOPIC,
        CONSUMER_OFFSETS,
        [ConfigChange("cleanup.policy", SET, "compact")],
        replace=True,
    )
    assert change_configs(COMPACTED, kept).answer is None


@pytest.mark.parametrize("own", [{}, {"cleanup.policy": "delete", "max.message.bytes": "0"}])
@pytest.mark.parametrize(
    ("worker", "name", "value"),
    [
        ({"log.cleanup.policy": "delete"}, "cleanup.policy", ("compact",)),
        ({"message.max.bytes": "0"}, "max.message.bytes", 1_048_588),
        ({"min.insync.replicas": "3"}, "min.insync.replicas", 2),
        ({"log.cleaner.min.cleanable.ratio": "1"}, "min.cleanable.dirty.ratio", 0.9),
        ({"log.cleaner.min.compaction.lag.ms": "9" * 18}, "min.compaction.lag.ms", 86_400_000),
        ({"log.message.timestamp.type": "LogAppendTime"}, "message.timestamp.type", "CreateTime"),
        ({"log.roll.ms": "1"}, "segment.ms", 60_000),
        ({}, "max.compaction.lag.ms", 2**63 - 1),
    ],
)
def test_no_layer_of_configs_stops_or_removes_state(
    own: dict[str, str], worker: dict[str, str], name: str, value: ConfigValue
) -> None:
    layers = WorkerLayers(dynamic_default=worker)
    configs = layers.topic_configs(own, is_internal=True)
    assert configs[name] == configs.resolve(name).value == value
    plain = layers.topic_configs()
    assert plain[name] == plain.resolve(name).value
    assert (plain[name] != value) == bool(worker)


def test_the_controller_reckons_with_the_min_isr_in_force() -> None:
    for name, expected in ((CONSUMER_OFFSETS, 2), ("orders", 3)):
        image = after(with_topic(name), FeatureLevelRecord(ELIGIBLE_LEADERS, 1))
        of_all = ConfigChange("min.insync.replicas", SET, "3")
        decision = change_configs(image, ResourceChange(Scope.WORKER, "", [of_all]))
        assert min_isr(after(image, *decision.all_records()), name) == expected


def test_other_topics_are_not_protected() -> None:
    image = with_topic("orders", cleanup_policy="compact")
    change = ResourceChange(Scope.TOPIC, "orders", [ConfigChange("cleanup.policy", SET, "delete")])
    assert change_configs(image, change).all_records() == [
        ConfigRecord(int(Scope.TOPIC), "orders", "cleanup.policy", "delete")
    ]
    assert isinstance(
        create_topic(IMAGE, NewTopic("consumer_offsets"), TopicDefaults(), Random(1)).all_records()[
            0
        ],
        TopicRecord,
    )
