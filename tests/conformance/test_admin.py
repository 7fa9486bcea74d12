"""Administration by independent clients: configs, partitions, records, descriptions."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import kafka
import kafka.admin
import kafka.errors
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tests.conformance.clients import TIMEOUT_S, Librdkafka, Record, admin, create, reconnected
from tests.conftest import NewNode
from tests.nodes import Peer, elsewhere, unique, wait_until

TOPIC, BROKER = ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER
SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE
APPEND, SUBTRACT = AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT
Change = tuple[AlterConfigOpType, str, str | None]


def change(peer: Peer, type_: Any, name: str, *changes: Change, **options: object) -> None:
    entries = [
        ConfigEntry(config, value, incremental_operation=op) for op, config, value in changes
    ]
    resource = ConfigResource(type_, name, incremental_configs=entries)
    admin(peer.bootstrap).incremental_alter_configs([resource], **options)[resource].result(
        TIMEOUT_S
    )


def configs(peer: Peer, type_: Any, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(type_, name)
    found: dict[str, ConfigEntry] = (
        admin(peer.bootstrap).describe_configs([resource])[resource].result(TIMEOUT_S)
    )
    return found


def in_force(peer: Peer, type_: Any, name: str, config: str, value: str | None) -> None:
    """Wait until Kafka's brokers have applied the change, which it acknowledges earlier."""
    wait_until(lambda: config not in (all_ := configs(peer, type_, name)) or (
        all_[config].value == value
    ), what=f"{config}={value}")  # fmt: skip


def refused(action: Callable[[], object]) -> int:
    with pytest.raises(KafkaException) as caught:
        action()
    return int(caught.value.args[0].code())


@pytest.fixture
def client(node: Peer) -> Iterator[kafka.admin.KafkaAdminClient]:
    made = kafka.admin.KafkaAdminClient(bootstrap_servers=node.bootstrap)
    yield made
    made.close()


# Configs


def test_a_topics_config_is_set_and_deleted(node: Peer) -> None:
    topic = create(node.bootstrap, unique("config"), config={"retention.bytes": "1000000"})
    change(node, TOPIC, topic, (SET, "retention.ms", "60000"), (SET, "max.message.bytes", "2000"))
    in_force(node, TOPIC, topic, "retention.ms", "60000")
    found = configs(node, TOPIC, topic)
    for name, value in (
        ("retention.ms", "60000"),
        ("max.message.bytes", "2000"),
        ("retention.bytes", "1000000"),
    ):
        assert found[name].value == value
        assert found[name].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        assert not found[name].is_default
    change(node, TOPIC, topic, (DELETE, "retention.ms", None))
    in_force(node, TOPIC, topic, "retention.ms", "604800000")
    assert configs(node, TOPIC, topic)["retention.ms"].source == (ConfigSource.DEFAULT_CONFIG.value)


def test_a_changed_limit_is_in_force(node: Peer) -> None:
    topic = create(node.bootstrap, unique("config"))
    big = [Record(None, b"x" * 5000)]
    Librdkafka().send(node.bootstrap, topic, big, "none")
    change(node, TOPIC, topic, (SET, "max.message.bytes", "2000"))
    in_force(node, TOPIC, topic, "max.message.bytes", "2000")
    with pytest.raises(AssertionError):
        Librdkafka().send(node.bootstrap, topic, big, "none")
    change(node, TOPIC, topic, (DELETE, "max.message.bytes", None))
    in_force(node, TOPIC, topic, "max.message.bytes", "1048588")
    assert Librdkafka().send(node.bootstrap, topic, big, "none") == [1]


def test_altering_without_increments_replaces_all_of_a_resource(node: Peer) -> None:
    topic = create(node.bootstrap, unique("config"), config={"retention.bytes": "1000000"})
    resource = ConfigResource(TOPIC, topic, set_config={"retention.ms": "70000"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        answer = admin(node.bootstrap).alter_configs([resource])[resource]
    answer.result(TIMEOUT_S)
    in_force(node, TOPIC, topic, "retention.ms", "70000")
    assert configs(node, TOPIC, topic)["retention.bytes"].value == "-1"


def test_lists_lose_and_gain_items(node: Peer) -> None:
    topic = create(node.bootstrap, unique("config"))
    change(node, TOPIC, topic, (APPEND, "cleanup.policy", "delete"))
    assert configs(node, TOPIC, topic)["cleanup.policy"].value == "delete"
    change(node, TOPIC, topic, (SUBTRACT, "cleanup.policy", "compact"))
    assert configs(node, TOPIC, topic)["cleanup.policy"].value == "delete"


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        ("", ((SET, "retention.ms", "soon"),), KafkaError.INVALID_CONFIG),
        ("", ((SET, "no.such.config", "1"),), KafkaError.INVALID_CONFIG),
        ("", ((APPEND, "retention.ms", "1"),), KafkaError.INVALID_CONFIG),
        ("", ((SET, "retention.bytes", "1"), (SET, "segment.bytes", "-1")),
         KafkaError.INVALID_CONFIG),
        ("missing", ((SET, "retention.ms", "1"),), KafkaError.UNKNOWN_TOPIC_OR_PART),
        ("not a name", ((SET, "retention.ms", "1"),), KafkaError.TOPIC_EXCEPTION),
    ],
)  # fmt: skip
def test_a_topics_change_is_refused_whole(
    node: Peer, name: str, changes: tuple[Change, ...], code: int
) -> None:
    topic = name or create(node.bootstrap, unique("config"))
    assert refused(lambda: change(node, TOPIC, topic, *changes)) == code
    if not name:
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        assert [c for c in configs(node, TOPIC, topic).values() if c.source == own] == []


def test_validating_changes_nothing(node: Peer) -> None:
    topic = create(node.bootstrap, unique("config"))
    change(node, TOPIC, topic, (SET, "retention.ms", "1"), validate_only=True)
    bad: Change = (SET, "retention.ms", "soon")
    assert refused(lambda: change(node, TOPIC, topic, bad, validate_only=True)) == (
        KafkaError.INVALID_CONFIG
    )
    assert configs(node, TOPIC, topic)["retention.ms"].value == "604800000"


def test_a_brokers_configs_show_through_in_topics_and_survive_kill(start_node: NewNode) -> None:
    node = start_node()
    topic = create(node.bootstrap, unique("config"))
    change(node, BROKER, "1", (SET, "log.retention.ms", "90000"))
    in_force(node, TOPIC, topic, "retention.ms", "90000")
    node.kill()
    node.start()
    reconnected(node.bootstrap)
    found = configs(node, TOPIC, topic)["retention.ms"]
    assert (found.value, found.source) == ("90000", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    assert found.synonyms["log.retention.ms"].value == "90000"
    assert configs(node, BROKER, "1")["log.retention.ms"].value == "90000"
    change(node, BROKER, "1", (DELETE, "log.retention.ms", None))
    in_force(node, TOPIC, topic, "retention.ms", "604800000")


def test_read_only_configs_of_a_broker_are_refused(node: Peer) -> None:
    for name in ("node.id", "num.partitions", "auto.create.topics.enable"):
        spec: Change = (SET, name, "1")
        assert refused(partial(change, node, BROKER, "1", spec)) == KafkaError.INVALID_REQUEST
    assert configs(node, BROKER, "1")["node.id"].is_read_only
    assert not configs(node, BROKER, "1")["log.retention.ms"].is_read_only


def test_kafka_python_changes_and_lists_configs(
    node: Peer, client: kafka.admin.KafkaAdminClient
) -> None:
    topic = create(node.bootstrap, unique("config"))
    type_ = kafka.admin.ConfigResourceType.TOPIC

    def own() -> dict[str, str]:
        asked = [kafka.admin.ConfigResource(type_, topic)]
        found = client.describe_configs(asked, config_filter="modified")["topic"][topic]
        return {name: entry["value"] for name, entry in found.items() if name == "flush.ms"}

    spec = kafka.admin.ConfigResource(type_, topic, {"flush.ms": "1000"})
    client.alter_configs([spec])
    wait_until(lambda: own() == {"flush.ms": "1000"})
    client.reset_configs([kafka.admin.ConfigResource(type_, topic, ["flush.ms"])])
    wait_until(lambda: own() == {})
    listed = client.list_config_resources(["TOPIC", "BROKER"])
    assert topic in listed["topic"]
    assert listed["broker"] == ["1"]


# Partitions


def add(peer: Peer, topic: str, count: int, **options: Any) -> None:
    assigned = options.pop("assigned", None)
    new = NewPartitions(topic, count, **({"replica_assignment": assigned} if assigned else {}))
    admin(peer.bootstrap).create_partitions([new], **options)[topic].result(TIMEOUT_S)


def test_added_partitions_take_records_and_the_old_keep_theirs(node: Peer) -> None:
    topic = create(node.bootstrap, unique("grown"), 2)
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"old")], "none", partition=1)
    add(node, topic, 4)
    add(node, topic, 5, assigned=[[1]])
    wait_until(
        lambda: (
            len(admin(node.bootstrap).list_topics(topic, TIMEOUT_S).topics[topic].partitions) == 5
        )
    )
    for partition in range(5):
        value = b"new %d" % partition
        sent = Librdkafka().send(
            node.bootstrap, topic, [Record(None, value)], "none", partition=partition
        )
        assert sent == [1 if partition == 1 else 0]
        (*_, last) = Librdkafka().read(node.bootstrap, topic, sent[0] + 1, partition=partition)
        assert last.record.value == value


def test_partitions_that_cannot_be_added_say_why(
    node: Peer, client: kafka.admin.KafkaAdminClient
) -> None:
    topic = create(node.bootstrap, unique("grown"), 3)
    for count in (1, 3):
        assert refused(partial(add, node, topic, count)) == KafkaError.INVALID_PARTITIONS
    assert refused(lambda: add(node, unique("missing"), 3)) == KafkaError.UNKNOWN_TOPIC_OR_PART
    for assigned in ([[7]], [[1], [1]]):
        with pytest.raises(kafka.errors.InvalidReplicationAssignmentError):
            client.create_partitions({topic: {"count": 4, "assignments": assigned}})
    add(node, topic, 9, validate_only=True)
    assert len(admin(node.bootstrap).list_topics(topic, TIMEOUT_S).topics[topic].partitions) == 3


def test_topics_are_described_page_by_page(
    node: Peer, client: kafka.admin.KafkaAdminClient
) -> None:
    names = sorted(create(node.bootstrap, unique("paged"), count) for count in (3, 1, 4))
    found: list[tuple[str, int]] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        page = client.describe_topic_partitions(names, response_partition_limit=2, cursor=cursor)
        for topic in page["topics"]:
            assert topic["error_code"] == 0
            found += [(topic["name"], p["partition_index"]) for p in topic["partitions"]]
        cursor, pages = page["next_cursor"], pages + 1
    counts = [len([n for n, _ in found if n == name]) for name in names]
    assert sorted(counts) == [1, 3, 4]
    assert found == [(n, p) for n, count in zip(names, counts, strict=True) for p in range(count)]
    assert pages == 4


# Records


def delete_before(peer: Peer, topic: str, offset: int, partition: int = 0) -> int:
    where = TopicPartition(topic, partition, offset)
    (answer,) = admin(peer.bootstrap).delete_records([where]).values()
    return int(answer.result(TIMEOUT_S).low_watermark)


def first_offset(peer: Peer, topic: str) -> int:
    return Librdkafka().read(peer.bootstrap, topic, 1)[0].offset


def test_deleted_records_are_gone_and_stay_gone_after_kill(start_node: NewNode) -> None:
    node = start_node()
    topic = create(node.bootstrap, unique("trimmed"))
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"%d" % i) for i in range(10)], "none")
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"%d" % i) for i in range(10)], "none")
    assert delete_before(node, topic, 13) == 13
    assert delete_before(node, topic, 4) == 13
    assert first_offset(node, topic) == 13
    if not elsewhere():  # Kafka writes the checkpoint within a minute
        node.kill()
        node.start()
        reconnected(node.bootstrap)
    assert first_offset(node, topic) == 13
    assert delete_before(node, topic, -1) == 20
    assert Librdkafka().send(node.bootstrap, topic, [Record(None, b"after")], "none") == [20]
    assert first_offset(node, topic) == 20


def test_records_that_cannot_be_deleted_say_why(
    node: Peer, client: kafka.admin.KafkaAdminClient
) -> None:
    topic = create(node.bootstrap, unique("trimmed"))
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"v")] * 3, "none")
    assert refused(lambda: delete_before(node, topic, 4)) == KafkaError.OFFSET_OUT_OF_RANGE
    where = kafka.TopicPartition(topic, 0)
    assert client.delete_records({where: 2})[where]["low_watermark"] == 2
    with pytest.raises(kafka.errors.OffsetOutOfRangeError):
        client.delete_records({where: 99})


# Descriptions


def test_log_dirs_are_described(node: Peer, client: kafka.admin.KafkaAdminClient) -> None:
    topic = create(node.bootstrap, unique("sized"), 2)
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"x" * 5000)], "none", partition=1)
    (broker,) = client.describe_log_dirs({topic: [0, 1]})
    (log_dir,) = broker["log_dirs"]
    assert log_dir["error_code"] == 0
    assert log_dir["total_bytes"] > log_dir["usable_bytes"] > 0
    (described,) = log_dir["topics"]
    assert described["name"] == topic
    sizes = {p["partition_index"]: p["partition_size"] for p in described["partitions"]}
    assert sizes[0] == 0
    assert 5000 < sizes[1] < 5200
    assert {p["offset_lag"] for p in described["partitions"]} == {0}


def test_idempotent_producers_are_described(
    node: Peer, client: kafka.admin.KafkaAdminClient
) -> None:
    topic = create(node.bootstrap, unique("producers"))
    where = kafka.TopicPartition(topic, 0)
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"v")], "none")
    assert client.describe_producers([where])[where].active_producers == []
    records = [Record(None, b"v")] * 3
    Librdkafka().send(node.bootstrap, topic, records, "none", enable_idempotence=True)
    (producer,) = client.describe_producers([where])[where].active_producers
    assert producer.producer_id >= 0
    assert (producer.producer_epoch, producer.last_sequence) == (0, 2)
    missing = kafka.TopicPartition(topic, 9)
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        client.describe_producers([missing], broker_id=1)


def test_there_is_no_authorizer(node: Peer) -> None:
    client = admin(node.bootstrap)
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    one = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    for answer in (
        *client.create_acls([one]).values(),
        *client.delete_acls([everything]).values(),
    ):
        assert refused(partial(answer.result, TIMEOUT_S)) == KafkaError.SECURITY_DISABLED


def test_there_are_no_scram_credentials(node: Peer) -> None:
    client = admin(node.bootstrap)
    assert "nobody" not in client.describe_user_scram_credentials().result(TIMEOUT_S)
    asked = client.describe_user_scram_credentials(["nobody"])["nobody"]
    assert refused(lambda: asked.result(TIMEOUT_S)) == KafkaError.RESOURCE_NOT_FOUND
    deletion = UserScramCredentialDeletion("nobody", ScramMechanism.SCRAM_SHA_256)
    deleted = client.alter_user_scram_credentials([deletion])["nobody"]
    assert refused(lambda: deleted.result(TIMEOUT_S)) == KafkaError.RESOURCE_NOT_FOUND


def test_scram_credentials_are_set_described_and_deleted(node: Peer) -> None:
    client, user = admin(node.bootstrap), unique("user")
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 5000)
    upsertion = UserScramCredentialUpsertion(user, info, b"secret", b"salt")
    client.alter_user_scram_credentials([upsertion])[user].result(TIMEOUT_S)

    def described() -> object:
        try:
            found = client.describe_user_scram_credentials([user])[user].result(TIMEOUT_S)
        except KafkaException:  # Kafka answers before the change is visible
            return None
        return [(i.mechanism, i.iterations) for i in found.scram_credential_infos]

    shown = wait_until(described, TIMEOUT_S)
    assert shown == [(ScramMechanism.SCRAM_SHA_256, 5000)]
    deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)
    client.alter_user_scram_credentials([deletion])[user].result(TIMEOUT_S)
    wait_until(lambda: described() is None, TIMEOUT_S)
