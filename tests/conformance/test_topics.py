"""Topics created, described and deleted by clients."""

import confluent_kafka
import kafka
import kafka.admin
import kafka.errors
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import NewTopic

from tests.conformance.clients import (
    CLIENTS,
    TIMEOUT_S,
    Client,
    Librdkafka,
    Record,
    admin,
    create,
)
from tests.conftest import NewNode
from tests.nodes import Peer, unique, wait_until


def refusal(bootstrap: str, topic: NewTopic, **options: object) -> int:
    (answer,) = admin(bootstrap).create_topics([topic], **options).values()
    with pytest.raises(KafkaException) as caught:
        answer.result(TIMEOUT_S)
    return int(caught.value.args[0].code())


def partitions(bootstrap: str, topic: str) -> dict[int, tuple[int, list[int], list[int]]]:
    found = admin(bootstrap).list_topics(topic, TIMEOUT_S).topics[topic]
    assert found.error is None, found.error
    return {p.id: (p.leader, p.replicas, p.isrs) for p in found.partitions.values()}


def topic_id(bootstrap: str, topic: str) -> str:
    described = admin(bootstrap).describe_topics(TopicCollection([topic]))
    return str(described[topic].result(TIMEOUT_S).topic_id)


def test_a_created_topic_is_seen_by_every_client(node: Peer) -> None:
    topic = create(node.bootstrap, unique("seen"), 3)
    assert partitions(node.bootstrap, topic) == {p: (1, [1], [1]) for p in range(3)}
    consumer = kafka.KafkaConsumer(bootstrap_servers=node.bootstrap)
    try:
        assert topic in consumer.topics()
        assert consumer.partitions_for_topic(topic) == {0, 1, 2}
    finally:
        consumer.close()


def test_kafka_python_creates_and_deletes(node: Peer) -> None:
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=node.bootstrap)
    topic = unique("kafka-python")
    try:
        client.create_topics([kafka.admin.NewTopic(topic, 2, 1)])
        assert set(partitions(node.bootstrap, topic)) == {0, 1}
        client.delete_topics([topic])
        wait_until(lambda: topic not in client.list_topics())
    finally:
        client.close()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "a:b", "ä", "x" * 250], ids=lambda name: repr(name)[:9]
)
def test_bad_names_are_refused(node: Peer, name: str) -> None:
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=node.bootstrap)
    try:
        with pytest.raises(kafka.errors.InvalidTopicError):
            client.create_topics([kafka.admin.NewTopic(name, 1, 1)])
    finally:
        client.close()


def test_names_that_differ_only_in_dots_and_underscores_collide(node: Peer) -> None:
    topic = create(node.bootstrap, unique("a.b"))
    twin = NewTopic(topic.replace(".", "_"), 1, 1)
    assert refusal(node.bootstrap, twin) == KafkaError.TOPIC_EXCEPTION


def test_the_longest_name_works(node: Peer) -> None:
    topic = create(node.bootstrap, unique("long").ljust(249, "x"))
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"v")], "none")
    assert len(Librdkafka().read(node.bootstrap, topic, 1)) == 1


def test_what_cannot_be_created_says_why(node: Peer) -> None:
    def topic(
        partitions: int = 1, replicas: int = 1, config: dict[str, str] | None = None
    ) -> NewTopic:
        return NewTopic(unique("refused"), partitions, replicas, config=config or {})

    existing = NewTopic(create(node.bootstrap, unique("existing")), 1, 1)
    assert refusal(node.bootstrap, existing) == KafkaError.TOPIC_ALREADY_EXISTS
    assert refusal(node.bootstrap, topic(replicas=2)) == KafkaError.INVALID_REPLICATION_FACTOR
    for config in ({"no.such.config": "1"}, {"retention.ms": "soon"}, {"segment.bytes": "-1"}):
        assert refusal(node.bootstrap, topic(config=config)) == KafkaError.INVALID_CONFIG
    stranger = NewTopic(unique("refused"), 1, replica_assignment=[[7]])
    assert refusal(node.bootstrap, stranger) == KafkaError.INVALID_REPLICA_ASSIGNMENT


def test_no_partitions_are_refused(node: Peer) -> None:
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=node.bootstrap)
    try:
        with pytest.raises(kafka.errors.InvalidPartitionsError):
            client.create_topics([kafka.admin.NewTopic(unique("none"), 0, 1)])
    finally:
        client.close()


def test_validate_only_creates_nothing(node: Peer) -> None:
    client = admin(node.bootstrap)
    topic = unique("validated")
    client.create_topics([NewTopic(topic, 3, 1)], validate_only=True)[topic].result(TIMEOUT_S)
    assert topic not in client.list_topics(timeout=TIMEOUT_S).topics
    assert refusal(node.bootstrap, NewTopic(topic, 1, 5), validate_only=True) == (
        KafkaError.INVALID_REPLICATION_FACTOR
    )


def test_given_assignments_are_taken(node: Peer) -> None:
    topic = unique("assigned")
    new = NewTopic(topic, 3, replica_assignment=[[1], [1], [1]])
    admin(node.bootstrap).create_topics([new])[topic].result(TIMEOUT_S)
    assert partitions(node.bootstrap, topic) == {p: (1, [1], [1]) for p in range(3)}


def test_the_brokers_default_number_of_partitions_is_one(node: Peer) -> None:
    topic = unique("default")
    admin(node.bootstrap).create_topics([NewTopic(topic)])[topic].result(TIMEOUT_S)
    assert set(partitions(node.bootstrap, topic)) == {0}


def test_a_deleted_topic_is_gone(node: Peer) -> None:
    client = admin(node.bootstrap)
    topic = create(node.bootstrap, unique("deleted"))
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"v")], "none")
    client.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_until(lambda: topic not in client.list_topics(timeout=TIMEOUT_S).topics)
    with pytest.raises(KafkaException) as caught:
        client.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_created_again_is_another_one(node: Peer) -> None:
    client = admin(node.bootstrap)
    topic = create(node.bootstrap, unique("again"), 2)
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"first")] * 5, "none")
    first = topic_id(node.bootstrap, topic)
    client.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_until(lambda: topic not in client.list_topics(timeout=TIMEOUT_S).topics)
    create(node.bootstrap, topic)
    assert topic_id(node.bootstrap, topic) != first
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"second")], "none")
    (stored,) = Librdkafka().read(node.bootstrap, topic, 1)
    assert (stored.offset, stored.record.value) == (0, b"second")


def test_a_record_above_the_topics_limit_is_refused(node: Peer) -> None:
    config = {"max.message.bytes": "10000"}
    topic = create(node.bootstrap, unique("limit"), config=config)
    errors: list[int] = []
    producer = Librdkafka().producer(node.bootstrap)
    producer.produce(topic, bytes(9_000), on_delivery=lambda e, _: errors.append(e and e.code()))
    producer.produce(topic, bytes(11_000), on_delivery=lambda e, _: errors.append(e and e.code()))
    producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert KafkaError.MSG_SIZE_TOO_LARGE in errors


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_sending_to_a_topic_that_is_not_there_makes_it(node: Peer, client: Client) -> None:
    topic = unique("auto")
    assert client.send(node.bootstrap, topic, [Record(b"k", b"v")], "none") == [0]
    (stored,) = client.read(node.bootstrap, topic, 1)
    assert stored.record.value == b"v"


def test_without_auto_create_a_missing_topic_stays_missing(start_node: NewNode) -> None:
    node = start_node({"auto.create.topics.enable": "false"})
    errors: list[KafkaError] = []
    producer = Librdkafka().producer(node.bootstrap, topic_metadata_propagation_max_ms=500)
    producer.produce("missing", b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    unknown = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
    assert {error.code() for error in errors} <= unknown
    assert len(errors) == 1
    assert "missing" not in admin(node.bootstrap).list_topics(timeout=TIMEOUT_S).topics


def test_settings_of_the_node_are_what_topics_begin_with(start_node: NewNode) -> None:
    node = start_node({"num.partitions": 5, "auto.create.topics.enable": "true"})
    Librdkafka().send(node.bootstrap, "made", [Record(None, b"v")], "none")
    assert set(partitions(node.bootstrap, "made")) == set(range(5))


def test_many_partitions_take_and_give_at_once(node: Peer) -> None:
    count, each = 200, 20
    topic = create(node.bootstrap, unique("wide"), count)
    failed: list[object] = []
    producer = Librdkafka().producer(node.bootstrap, enable_idempotence=True)
    for number in range(each):
        for p in range(count):
            producer.produce(
                topic,
                b"%d" % number,
                b"%d" % p,
                p,
                on_delivery=lambda error, _: error and failed.append(error),
            )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == []
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(count)])
        found: dict[int, list[bytes]] = {p: [] for p in range(count)}
        while sum(map(len, found.values())) < count * each:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            assert message.key() == b"%d" % message.partition()
            found[message.partition()].append(message.value())
    finally:
        consumer.close()
    assert found == {p: [b"%d" % number for number in range(each)] for p in range(count)}


def test_the_cluster_is_described(node: Peer) -> None:
    client = admin(node.bootstrap)
    cluster = client.describe_cluster().result(TIMEOUT_S)
    assert [f"{one.host}:{one.port}" for one in cluster.nodes] == [node.bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id == 1
    assert cluster.cluster_id == client.list_topics(timeout=TIMEOUT_S).cluster_id
    assert len(cluster.cluster_id) == 22
