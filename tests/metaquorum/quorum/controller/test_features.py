"""Feature levels: valid changes, and the record versions that a level permits."""

from dataclasses import replace

import pytest

from metaquorum.metadata import records
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import (
    FeatureLevelRecord,
    FeatureRange,
    Field,
    RecordEncoder,
    RegisterControllerRecord,
    RegisterWorkerRecord,
    RemoveScramCredentialRecord,
    Schema,
    TopicRecord,
    WorkerChangeRecord,
    decode_record,
    encode_record,
)
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.features import (
    MOVES_LEVEL,
    SUPPORTED_FEATURES,
    FeatureUpdate,
    UpgradeType,
    check_covered,
    found_cluster,
    nodes_with_features,
    update_features,
)
from metaquorum.quorum.controller.worker_registration import WorkerRegistration, register_worker
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.metaquorum.quorum.storage.histories import CLUSTER, history

LEVEL, GROUPS = "metadata.version", "group.version"
IMAGE, _ = replay(
    MetadataImage.empty(CLUSTER), [FeatureLevelRecord(LEVEL, 2), FeatureLevelRecord(GROUPS, 1)]
)
NODES = {
    "Local controller 1": (FeatureRange(LEVEL, 1, 4), FeatureRange(GROUPS, 0, 2)),
    "Broker 7": (FeatureRange(LEVEL, 1, 3), FeatureRange(GROUPS, 0, 2)),
}
UP, SAFE, UNSAFE = UpgradeType


def test_a_level_that_every_node_reaches_is_taken() -> None:
    updates = [FeatureUpdate(LEVEL, 3), FeatureUpdate(GROUPS, 1)]
    assert update_features(IMAGE, updates, NODES, {}).all_records() == [
        FeatureLevelRecord(LEVEL, 3)
    ]
    lower = [FeatureUpdate(GROUPS, 0, SAFE)]
    assert update_features(IMAGE, lower, NODES, {}).all_records() == [FeatureLevelRecord(GROUPS, 0)]


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (FeatureUpdate(LEVEL, 4), "Broker 7 only supports versions 1-3"),
        (FeatureUpdate(LEVEL, 5), "Local controller 1 only supports versions 1-4"),
        (FeatureUpdate(LEVEL, 0, SAFE), "Local controller 1 only supports versions 1-4"),
        (FeatureUpdate("what", 1), "Local controller 1 does not support this feature"),
        (FeatureUpdate(LEVEL, -1), "cannot be less than 0"),
        (FeatureUpdate(LEVEL, 3, 0), "does not support the given upgrade type"),
        (FeatureUpdate(LEVEL, 3, SAFE), "Can't downgrade to a newer version"),
        (FeatureUpdate(LEVEL, 1), "without setting the upgrade type"),
        (FeatureUpdate(LEVEL, 1, SAFE), "might delete metadata information"),
        (FeatureUpdate(LEVEL, 1, UNSAFE), "Unsafe metadata downgrade is not supported"),
    ],
)
def test_a_level_that_cannot_be_is_refused_and_all_others_with_it(
    update: FeatureUpdate, message: str
) -> None:
    with pytest.raises(KafkaError, match=message) as refused:
        update_features(IMAGE, [FeatureUpdate(GROUPS, 2), update], NODES, {})
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION


TRANSACTIONS = records.TRANSACTION_VERSION


def at_levels(**levels: int) -> MetadataImage:
    """Return an image with the levels, written with _ for the dots."""
    features = [FeatureLevelRecord(name.replace("_", "."), of) for name, of in levels.items()]
    return replay(MetadataImage.empty(CLUSTER), features)[0]


def test_a_new_cluster_starts_at_the_highest_levels() -> None:
    image, _ = replay(
        MetadataImage.empty(CLUSTER), found_cluster(MetadataImage.empty(CLUSTER)).all_records()
    )
    assert image.features == {LEVEL: 4, records.ELIGIBLE_LEADERS: 1, TRANSACTIONS: 2}


def test_transaction_version_needs_the_level_of_transactions() -> None:
    nodes = {"Local controller 1": SUPPORTED_FEATURES}
    image = at_levels(metadata_version=2)
    for level in (1, 2):
        with pytest.raises(
            KafkaError, match=r"level 3 of metadata\.version.* runs at level 2"
        ) as no:
            update_features(image, [FeatureUpdate(TRANSACTIONS, level)], nodes, {})
        assert no.value.code is ErrorCode.INVALID_UPDATE_VERSION
    # Together, in either order: the cluster never has the one without the other.
    both = [FeatureUpdate(TRANSACTIONS, 2), FeatureUpdate(LEVEL, 3)]
    for updates in (both, both[::-1]):
        changed = update_features(image, updates, nodes, {}).all_records()
        assert changed == [FeatureLevelRecord(LEVEL, 3), FeatureLevelRecord(TRANSACTIONS, 2)]


def test_transaction_version_can_be_lowered_and_raised_again() -> None:
    nodes = {"Local controller 1": SUPPORTED_FEATURES}
    image = at_levels(metadata_version=3, transaction_version=2)
    for update in (
        FeatureUpdate(TRANSACTIONS, 1, SAFE),
        FeatureUpdate(TRANSACTIONS, 0, UNSAFE),
        FeatureUpdate(TRANSACTIONS, 2),
    ):
        changed = update_features(image, [update], nodes, {}).all_records()
        assert changed == [FeatureLevelRecord(TRANSACTIONS, update.level)]
        image, _ = replay(image, changed)
    with pytest.raises(KafkaError, match="without setting the upgrade type"):
        update_features(image, [FeatureUpdate(TRANSACTIONS, 1)], nodes, {})


def test_a_node_without_transaction_version_keeps_the_cluster_at_level_0() -> None:
    earlier = (FeatureRange(LEVEL, 1, 2), FeatureRange(records.ELIGIBLE_LEADERS, 0, 1))
    nodes = {"Local controller 1": SUPPORTED_FEATURES, "Broker 7": earlier}
    image = at_levels(metadata_version=2)
    raised = [FeatureUpdate(LEVEL, 3), FeatureUpdate(TRANSACTIONS, 1)]
    with pytest.raises(KafkaError, match="Broker 7 only supports versions 1-2"):
        update_features(image, raised, nodes, {})
    with pytest.raises(KafkaError, match="Broker 7 does not support this feature"):
        update_features(image, raised[1:], nodes, {})
    assert not update_features(image, [FeatureUpdate(TRANSACTIONS, 0)], nodes, {}).all_records()
    check_covered(image, earlier, "worker 7")
    with pytest.raises(KafkaError, match=r"level 1 of transaction\.version, which worker 7"):
        check_covered(at_levels(metadata_version=2, transaction_version=1), earlier, "worker 7")


def test_every_controller_must_have_told_what_it_supports() -> None:
    image, _ = replay(MetadataImage.empty(CLUSTER), history([("register", 7, 1)]))
    assert nodes_with_features(image, 1, (1,)).keys() == {"Local controller 1", "Broker 7"}
    with pytest.raises(KafkaError, match="Controller 2 has not registered its supported versions"):
        update_features(image, [FeatureUpdate(LEVEL, 4)], nodes_with_features(image, 1, (1, 2)), {})
    told, _ = replay(
        image, [RegisterControllerRecord(2, bytes(16), "h", 1, NODES["Local controller 1"])]
    )
    update_features(told, [FeatureUpdate(LEVEL, 4)], nodes_with_features(told, 1, (1, 2)), {})


def test_a_record_is_written_in_the_newest_version_that_the_level_allows() -> None:
    schema = Schema(99, 2, TopicRecord, (), levels=(1, 3, 3))
    assert [schema.version_at(level) for level in (1, 2, 3, 9)] == [0, 0, 2, 2]
    with pytest.raises(ValueError, match="needs level 1"):
        schema.version_at(0)
    for each in records.SCHEMAS:
        assert len(each.levels) == each.version + 1
        assert list(each.levels) == sorted(each.levels)


def test_what_an_older_version_cannot_say_is_not_written_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = records._BY_TYPE[WorkerChangeRecord]
    newer = Schema(
        known.id,
        1,
        WorkerChangeRecord,
        (*known.fields[:-1], Field("in_controlled_shutdown", known.fields[-1].kind, since=1)),
        levels=(1, 2),
    )
    monkeypatch.setattr(records, "_BY_TYPE", {WorkerChangeRecord: newer})
    plain, shutting_down = WorkerChangeRecord(1, 2, True), WorkerChangeRecord(1, 2, None, True)
    assert RecordEncoder({LEVEL: 1}).encode(plain) == encode_record(plain, 0)
    assert RecordEncoder({LEVEL: 2}).encode(shutting_down) == encode_record(shutting_down, 1)
    with pytest.raises(ValueError, match="does not exist in version 0"):
        RecordEncoder({LEVEL: 1}).encode(shutting_down)


# Newest version of each record that nodes of level 1 read; they are nodes of commit 958e3c3.
READ_AT_LEVEL_1 = {
    "FeatureLevelRecord": 0,
    "TopicRecord": 0,
    "PartitionRecord": 3,
    "RemoveTopicRecord": 0,
    "ConfigRecord": 0,
    "RegisterWorkerRecord": 1,
    "UnregisterWorkerRecord": 0,
    "ProducerIdsRecord": 0,
    "WorkerChangeRecord": 0,
    "RegisterControllerRecord": 0,
    "ClientQuotaRecord": 0,
    "ScramCredentialRecord": 0,
    "RemoveScramCredentialRecord": 0,
}


@pytest.mark.parametrize("schema", records.SCHEMAS, ids=lambda schema: schema.record.__name__)
def test_nodes_of_level_1_can_read_what_is_written_at_level_1(schema: Schema) -> None:
    features = {LEVEL: 1, records.ELIGIBLE_LEADERS: 1}
    known = READ_AT_LEVEL_1.get(schema.record.__name__)
    if known is None:
        with pytest.raises(ValueError, match="needs level"):
            schema.version_at(1, features)
    else:
        assert schema.version_at(1, features) <= known


def test_fields_that_a_level_does_not_write_are_not_in_images() -> None:
    """Data directories of unreleased versions have them at level 1; snapshots would not."""
    worker = RegisterWorkerRecord(
        1, bytes(16), 9, (), "host", None, (), (), fenced=True, previous_broker_epoch=3
    )
    removed = RemoveScramCredentialRecord("alice", 1, b"salt", 4096)
    for level in (1, 2):
        levels = [FeatureLevelRecord(LEVEL, level)]
        image, _ = replay(MetadataImage.empty(CLUSTER), [*levels, worker, removed])
        encoder = RecordEncoder(image.features)
        decoded = [decode_record(encoder.encode(record)) for record in image.records()]
        again, _ = replay(MetadataImage.empty(CLUSTER), decoded)
        assert list(again.records()) == list(image.records())
        assert image.workers[1].previous_broker_epoch == (None if level == 1 else 3)
        assert len(image.deleted_scram) == level - 1


def test_a_worker_that_returns_at_level_1_is_registered_in_a_record_that_older_nodes_read() -> None:
    image, _ = replay(MetadataImage.empty(CLUSTER), [FeatureLevelRecord(LEVEL, 1)])
    marked = -1
    for incarnation in (b"1", b"2"):
        worker = WorkerRegistration(1, incarnation * 16, (), "h", previous_broker_epoch=marked)
        added = register_worker(image, worker).all_records()
        for record in added:
            RecordEncoder(image.features).encode(record)
        image, _ = replay(image, added)
        marked = image.workers[1].broker_epoch
    assert image.workers[1].incarnation_id == b"2" * 16


def test_moves_are_written_from_their_level_on() -> None:
    still = records.PartitionRecord(bytes(16), 0, (1, 2), (1, 2), 1, 0, 0)
    moving = replace(still, replicas=(1, 3, 2), adding=(3,), removing=(2,))
    for feature, level, version in (("", 3, 2), (records.ELIGIBLE_LEADERS, 3, 3), ("", 4, 4)):
        encoder = RecordEncoder({LEVEL: level, feature: 1})
        assert encoder.encode(still) == encode_record(still, version)
        if level < MOVES_LEVEL:
            with pytest.raises(ValueError, match=f"adding does not exist in version {version}"):
                encoder.encode(moving)
        else:
            assert decode_record(encoder.encode(moving)) == moving


def test_a_moving_partition_is_in_images_and_snapshots() -> None:
    topic = TopicRecord("t", bytes(16))
    moving = records.PartitionRecord(
        bytes(16), 0, (3, 1, 2), (1, 2), 1, 5, 9, adding=(3,), removing=(2,)
    )
    image, _ = replay(MetadataImage.empty(CLUSTER), [topic, moving])
    (state,) = image.topics["t"].partitions
    assert (state.target, state.is_moving) == ((3, 1), True)
    assert list(image.records()) == [topic, moving]
    assert state.in_next_epoch() == replace(state, partition_epoch=10)
