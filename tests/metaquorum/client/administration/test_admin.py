"""The admin client, tested against this project's node and Apache Kafka."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as other_murmur2

from metaquorum.client import (
    BrokerError,
    Cluster,
    InterruptedChangeError,
    NotServedError,
    TopicPartition,
    UnreachableError,
    connect,
    socket_transport,
)
from metaquorum.client.administration.admin import EARLIEST, HIGH_WATERMARK, LATEST, AdminClient
from metaquorum.client.cluster import address_text, parse_bootstrap
from metaquorum.client.connection import BrokerConnection
from metaquorum.client.consumer import ConsumedRecord, Consumer, Start
from metaquorum.client.partitioning import murmur2
from metaquorum.client.producer import Producer, ProducerRecord
from metaquorum.client.security import Login, Security, Tls
from metaquorum.client.socket_transport import BlockingAdmin, BlockingConsumer, BlockingProducer
from metaquorum.client.values import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.records.records import Codec
from tests.conftest import NewNode
from tests.metaquorum.security.certificates import Authority
from tests.nodes import PATIENCE_S, Node, Peer, free_port, unique, wait_until


@pytest.fixture
def cluster(either: Peer) -> Iterator[Cluster]:
    with socket_transport.connect(either.bootstrap, timeout_s=PATIENCE_S) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> BlockingAdmin:
    return BlockingAdmin(cluster)


def new_topic(admin: BlockingAdmin, partitions: int = 1, **configs: str) -> str:
    name = unique("admin")
    made = admin.create_topics([NewTopic(name, partitions, 1, configs)])
    assert not isinstance(made[name], BrokerError), made
    wait_until(lambda: not isinstance(admin.describe_topics([name])[name], BrokerError))
    return name


def read_all(cluster: Cluster, topic: str, partitions: int = 1) -> list[ConsumedRecord]:
    consumer = BlockingConsumer(Consumer(cluster))
    places = [TopicPartition(topic, index) for index in range(partitions)]
    consumer.assign({where: Start.beginning() for where in places})
    ends = consumer.end_offsets()
    records: list[ConsumedRecord] = []
    while any(consumer.client.positions[where] < ends[where] for where in places):
        records += consumer.poll()
    return records


def test_topics_are_created_described_and_deleted(admin: BlockingAdmin) -> None:
    name = new_topic(admin, 3)
    described = admin.describe_topics([name, "no-such-topic"])
    topic, missing = described.values()
    assert not isinstance(topic, BrokerError)
    assert len(topic.topic_id) == 22
    assert [p.index for p in topic.partitions] == [0, 1, 2]
    assert topic.replication_factor == 1
    assert topic.under_replicated == 0
    assert isinstance(missing, BrokerError)
    assert missing.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert str(missing) == "topic no-such-topic: there is no such topic"
    assert name in [topic.name for topic in admin.topics()]
    again = admin.create_topics([NewTopic(name)])[name]
    assert isinstance(again, BrokerError)
    assert again.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert admin.delete_topics([name]) == {name: None}
    wait_until(lambda: name not in [topic.name for topic in admin.topics()])


def test_what_is_only_validated_is_not_done(admin: BlockingAdmin) -> None:
    name = unique("validated")
    assert not isinstance(
        admin.create_topics([NewTopic(name)], validate_only=True)[name], BrokerError
    )
    assert name not in [topic.name for topic in admin.topics()]


@pytest.mark.parametrize("codec", Codec)
def test_records_are_read_as_they_were_sent(
    cluster: Cluster, admin: BlockingAdmin, codec: Codec
) -> None:
    topic = new_topic(admin)
    sent = [
        ProducerRecord(b"value", b"key", (("h", b"1"), ("h", None))),
        ProducerRecord(None, b"tombstone"),
        ProducerRecord(b"", None, timestamp_ms=1_700_000_000_000),
        *[ProducerRecord(b"x" * 1000, b"k%d" % n) for n in range(500)],
    ]
    producer = BlockingProducer(Producer(cluster, codec=codec, batch_bytes=50_000))
    appended = producer.send(topic, sent)
    assert len(appended) > 5
    assert sum(batch.records for batch in appended) == len(sent)
    records = read_all(cluster, topic)
    assert [r.offset for r in records] == list(range(len(sent)))
    assert [(r.key, r.value, r.headers) for r in records] == [
        (s.key, s.value, s.headers) for s in sent
    ]
    assert records[2].timestamp_ms == 1_700_000_000_000


def test_keys_go_where_kafka_s_own_client_puts_them(either: Peer, admin: BlockingAdmin) -> None:
    topic = new_topic(admin, 7)
    keys = [b"", b"a", "ключ".encode(), *[b"key-%d" % n for n in range(50)]]
    theirs = confluent_kafka.Producer(
        {"bootstrap.servers": either.bootstrap, "partitioner": "murmur2_random"}
    )
    for key in keys[1:]:  # librdkafka sends records with an empty key to any partition
        theirs.produce(topic, b"theirs", key)
    assert theirs.flush(PATIENCE_S) == 0
    ours = BlockingProducer(Producer(admin.client.cluster))
    ours.send(topic, [ProducerRecord(b"ours", key) for key in keys])
    records = read_all(admin.client.cluster, topic, 7)
    by_value = {
        value: {r.key: r.partition for r in records if r.value == value and r.key}
        for value in (b"theirs", b"ours")
    }
    assert len(by_value[b"ours"]) == len(keys) - 1
    assert by_value[b"theirs"] == by_value[b"ours"]


def test_records_without_keys_spread_batch_by_batch(cluster: Cluster, admin: BlockingAdmin) -> None:
    topic = new_topic(admin, 4)
    producer = BlockingProducer(Producer(cluster, batch_bytes=500))
    producer.send(topic, [ProducerRecord(b"x" * 100) for _ in range(200)])
    counts = [0] * 4
    for record in read_all(cluster, topic, 4):
        counts[record.partition] += 1
    assert sum(counts) == 200
    assert min(counts) > 0


@given(st.binary(max_size=100))
def test_murmur2_is_that_of_others(data: bytes) -> None:
    assert murmur2(data) == other_murmur2(data) & 0xFFFFFFFF


def test_a_batch_that_is_sent_again_is_not_appended_again(
    cluster: Cluster, admin: BlockingAdmin
) -> None:
    topic = new_topic(admin)
    producer = Producer(cluster)
    socket_transport.wait(producer.send(topic, [ProducerRecord(b"first")]))
    where = TopicPartition(topic, 0)
    queue = [ProducerRecord(b"second")]
    batch = producer._batch(where, queue)
    for _ in range(2):
        socket_transport.wait(producer._produce(1, [batch], cluster.deadline()))
    assert [r.value for r in read_all(cluster, topic)] == [b"first", b"second"]


@pytest.mark.parametrize("acks", [0, 1])
def test_fewer_acks(cluster: Cluster, admin: BlockingAdmin, acks: int) -> None:
    topic = new_topic(admin)
    # A broker that is not leader yet silently drops a record sent with acks=0, and Kafka's
    # metadata name a leader before it serves: its answer to ListOffsets shows that it does.
    assert read_all(cluster, topic) == []
    producer = BlockingProducer(Producer(cluster, acks=acks, idempotent=False))
    producer.send(topic, [ProducerRecord(b"1")])
    producer.send(topic, [ProducerRecord(b"2")])
    wait_until(lambda: [r.value for r in read_all(cluster, topic)] == [b"1", b"2"])


def test_consumers_start_where_they_are_told(cluster: Cluster, admin: BlockingAdmin) -> None:
    topic = new_topic(admin)
    where = TopicPartition(topic, 0)
    times = [1_600_000_000_000 + n * 1000 for n in range(10)]
    BlockingProducer(Producer(cluster)).send(
        topic, [ProducerRecord(b"%d" % n, timestamp_ms=time) for n, time in enumerate(times)]
    )
    starts = {
        Start.beginning(): 0,
        Start.end(): 10,
        Start.at_offset(4): 4,
        Start.last(3): 7,
        Start.last(99): 0,
        Start.at_time(times[5] - 1): 5,
        Start.at_time(times[9] + 1): 10,
    }
    for start, offset in starts.items():
        consumer = BlockingConsumer(Consumer(cluster))
        consumer.assign({where: start})
        assert [r.offset for r in consumer.poll(0.01)] == list(range(offset, 10))


def test_one_poll_takes_all_the_small_batches_of_an_answer(
    cluster: Cluster, admin: BlockingAdmin
) -> None:
    topic = new_topic(admin)
    producer = BlockingProducer(Producer(cluster))
    values = [b"%d" % number for number in range(600)]
    for value in values:
        producer.send(topic, [ProducerRecord(value)])
    wait_until(lambda: len(read_all(cluster, topic)) == len(values))
    consumer = BlockingConsumer(Consumer(cluster))
    consumer.assign({TopicPartition(topic, 0): Start.beginning()})
    assert [record.value for record in consumer.poll()] == values


def test_an_offset_that_is_not_there_is_refused_with_those_that_are(
    cluster: Cluster, admin: BlockingAdmin
) -> None:
    topic = new_topic(admin)
    consumer = BlockingConsumer(Consumer(cluster))
    with pytest.raises(
        BrokerError, match="offset 5 is out of range: the partition begins at 0 and ends before"
    ):
        consumer.assign({TopicPartition(topic, 0): Start.at_offset(5)})


def test_what_lies_before_a_damaged_batch_is_read(node: Node) -> None:
    with socket_transport.connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        topic = new_topic(BlockingAdmin(cluster))
        producer = BlockingProducer(Producer(cluster))
        for value in (b"first", b"second", b"third"):
            producer.send(topic, [ProducerRecord(value)])
        log = node.data_dir / f"{topic}-0" / "00000000000000000000.log"
        log.write_bytes(log.read_bytes().replace(b"second", b"2econd"))

        consumer = BlockingConsumer(Consumer(cluster))
        consumer.assign({TopicPartition(topic, 0): Start.beginning()})
        assert [record.value for record in consumer.poll()] == [b"first"]
        with pytest.raises(BrokerError, match="the data at offset 1 is damaged"):
            consumer.poll()


def test_only_the_committed_is_read(either: Peer, admin: BlockingAdmin) -> None:
    if not served(admin, 26):
        pytest.skip("no transactions here yet")
    cluster = admin.client.cluster
    topic = new_topic(admin)
    settings = {"bootstrap.servers": either.bootstrap, "transactional.id": topic}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(PATIENCE_S)
    for value, commit in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(PATIENCE_S)
        if commit:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    consumer = BlockingConsumer(Consumer(cluster, read_committed=True))
    consumer.assign({TopicPartition(topic, 0): Start.beginning()})
    assert [r.value for r in wait_until(consumer.poll)] == [b"committed"]
    assert [r.value for r in read_all(cluster, topic)] == [b"aborted", b"committed"]


def test_offsets_by_time(cluster: Cluster, admin: BlockingAdmin) -> None:
    topic = new_topic(admin, 2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    record = ProducerRecord(b"v", partition=0)
    BlockingProducer(Producer(cluster)).send(topic, [record, record])
    found = admin.list_offsets({first: LATEST, second: LATEST})
    assert [(where, getattr(answer, "offset", answer)) for where, answer in found.items()] == [
        (first, 2),
        (second, 0),
    ]
    earliest = admin.list_offsets({first: EARLIEST})[first]
    assert not isinstance(earliest, BrokerError)
    assert earliest.offset == 0
    with pytest.raises(BrokerError, match=r"there is no such partition; topic .* has 2"):
        admin.list_offsets({TopicPartition(topic, 9): LATEST})


def served(admin: BlockingAdmin, key: int) -> bool:
    return key in [api.key for api in admin.apis()]


def when_served(admin: BlockingAdmin, key: int, do: Callable[[], object]) -> bool:
    """Return whether the call succeeded; False if the cluster does not serve the API."""
    if served(admin, key):
        do()
        return True
    with pytest.raises(NotServedError, match=rf"this cluster does not serve \w+ \(API {key}\)"):
        do()
    return False


def test_partitions_are_added(admin: BlockingAdmin) -> None:
    topic = new_topic(admin, 1)
    if when_served(admin, 37, lambda: admin.create_partitions(topic, 3)):
        wait_until(
            lambda: len(getattr(admin.describe_topics([topic])[topic], "partitions", ())) == 3
        )
        with pytest.raises(BrokerError) as refused:
            admin.create_partitions(topic, 2)
        assert refused.value.code is ErrorCode.INVALID_PARTITIONS


def test_records_are_deleted(cluster: Cluster, admin: BlockingAdmin) -> None:
    topic = new_topic(admin)
    where = TopicPartition(topic, 0)
    BlockingProducer(Producer(cluster)).send(topic, [ProducerRecord(b"v")] * 5)

    def delete() -> None:
        assert admin.delete_records({where: 2}) == {where: 2}

    if when_served(admin, 21, delete):
        assert [r.offset for r in read_all(cluster, topic)] == [2, 3, 4]
        assert admin.delete_records({where: HIGH_WATERMARK}) == {where: 5}


def test_log_dirs_tell_what_lies_in_them(cluster: Cluster, admin: BlockingAdmin) -> None:
    topic = new_topic(admin)
    BlockingProducer(Producer(cluster)).send(topic, [ProducerRecord(b"v" * 1000)])

    def describe() -> None:
        (replica,) = [
            replica
            for log_dir in admin.describe_log_dirs()
            for replica in log_dir.replicas
            if replica.topic == topic
        ]
        assert replica.size_bytes > 1000

    when_served(admin, 35, describe)


def test_configs_are_described_with_their_sources(admin: BlockingAdmin) -> None:
    topic = ConfigResource(ResourceType.TOPIC, new_topic(admin, **{"retention.ms": "12345"}))
    (entry,) = admin.describe_configs(topic, ["retention.ms"], synonyms=True, documentation=True)
    assert (entry.value, entry.source) == ("12345", ConfigSource.DYNAMIC_TOPIC)
    assert entry.synonyms[0].value == "12345"
    assert entry.documentation
    missing = ConfigResource(ResourceType.TOPIC, "no-such-topic")
    with pytest.raises(BrokerError) as refused:
        admin.describe_configs(missing)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_configs_are_altered(admin: BlockingAdmin) -> None:
    topic = ConfigResource(ResourceType.TOPIC, new_topic(admin))

    def value() -> str | None:
        return admin.describe_configs(topic, ["retention.ms"])[0].value

    def change(operation: ConfigOperation, value: str | None = None) -> None:
        admin.alter_configs(topic, [ConfigChange("retention.ms", operation, value)])

    if when_served(admin, 44, lambda: change(ConfigOperation.SET, "777")):
        wait_until(lambda: value() == "777")
        with pytest.raises(BrokerError, match=r"Not a number"):
            change(ConfigOperation.SET, "abc")
        change(ConfigOperation.DELETE)
        wait_until(lambda: value() == "604800000")


def test_the_cluster_is_described(either: Peer, admin: BlockingAdmin) -> None:
    described = admin.describe_cluster()
    assert described.controller == 1
    assert [node.address for node in described.nodes] == [either.bootstrap]
    assert described.cluster_id
    apis = {api.key: api for api in admin.apis()}
    assert apis[3].name == "Metadata"
    assert apis[3].served
    assert apis[3].spoken
    with pytest.raises(BrokerError, match="there is no such node; the nodes are: 1"):
        admin.apis(77)


def test_on_trio(either: Peer) -> None:
    async def main() -> None:
        async with connect(either.bootstrap) as cluster:
            admin = AdminClient(cluster)
            name = unique("trio")
            await admin.create_topics([NewTopic(name, 1, 1)])
            await Producer(cluster).send(name, [ProducerRecord(b"v")])
            consumer = Consumer(cluster)
            await consumer.assign({TopicPartition(name, 0): Start.beginning()})
            with trio.fail_after(PATIENCE_S):
                while not (
                    found := await consumer.poll()
                ):  # the leader of a new topic may not serve yet
                    pass
            assert [r.value for r in found] == [b"v"]
            with trio.move_on_after(0.05) as scope:
                while await consumer.poll(10) == []:
                    pass
            assert (
                scope.cancelled_caught
            )  # the connection with the outstanding response is not used again
            assert await consumer.poll(0.01) == []

    trio.run(main)


# Without a cluster, or with one that fails


def test_a_taken_wrong_address_is_told_at_once() -> None:
    port = free_port()
    with (
        socket_transport.connect(f"127.0.0.1:{port}") as cluster,
        pytest.raises(UnreachableError, match=f"127.0.0.1:{port}: Connection refused"),
    ):
        BlockingAdmin(cluster).topics()


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server that handles each connection with `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_who_does_not_speak_kafka_is_named() -> None:
    def http(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with (
        server(http) as address,
        socket_transport.connect(address) as cluster,
        pytest.raises(UnreachableError, match="the peer speaks HTTP"),
    ):
        BlockingAdmin(cluster).topics()


def test_silence_ends_at_the_deadline() -> None:
    release = threading.Event()
    with server(lambda connection: release.wait(PATIENCE_S) and None) as address:
        with (
            socket_transport.connect(address, timeout_s=0.2) as cluster,
            pytest.raises(UnreachableError, match="no answer in time"),
        ):
            BlockingAdmin(cluster).topics()
        release.set()


@contextmanager
def hung(events: list[str]) -> Iterator[str]:
    """Run a broker that accepts connections and never answers, like a paused process.

    `events` records what happens to each connection, in order.
    """

    def wait_end(connection: socket.socket) -> None:
        events.append("hung: connected")
        connection.settimeout(PATIENCE_S)
        with suppress(ConnectionError):
            while connection.recv(1000):
                pass
        events.append("hung: ended")

    with server(wait_end) as address:
        yield address


def tell_answers(cluster: Cluster, events: list[str], address: str) -> None:
    """Record in `events` when a connection to `address` has negotiated versions."""
    opened = cluster._open

    async def open_and_tell(place: tuple[str, int], deadline: float) -> BrokerConnection:
        connection = await opened(place, deadline)
        if address_text(place) == address:
            events.append("ok: answered")
        return connection

    cluster._open = open_and_tell  # type: ignore[method-assign]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a hanging broker until another broker answers."""
    monkeypatch.setattr("metaquorum.client.cluster.CONNECT_TIMEOUT_S", PATIENCE_S)


def test_a_broker_that_hangs_does_not_keep_a_command_from_the_next_one(
    either: Peer, patient: None
) -> None:
    events: list[str] = []
    with (
        hung(events) as address,
        socket_transport.connect(f"{address},{either.bootstrap}", timeout_s=PATIENCE_S) as cluster,
    ):
        tell_answers(cluster, events, either.bootstrap)
        BlockingAdmin(cluster).topics()
        wait_until(lambda: "hung: ended" in events)
    assert events[0] == "hung: connected", "who is named first is asked first"
    assert events.index("ok: answered") < events.index("hung: ended"), "it was waited for"
    assert events.count("hung: connected") == 1


def test_on_trio_a_broker_that_hangs_does_not_keep_a_program_from_the_next_one(
    either: Peer, patient: None
) -> None:
    events: list[str] = []

    async def scenario(address: str) -> None:
        bootstrap = f"{address},{either.bootstrap}"
        async with connect(bootstrap, timeout_s=PATIENCE_S) as cluster:
            tell_answers(cluster, events, either.bootstrap)
            await AdminClient(cluster).topics()
            while "hung: ended" not in events:
                await trio.sleep(0.01)

    with hung(events) as address:
        trio.run(scenario, address)
    assert events[0] == "hung: connected"
    assert events.index("ok: answered") < events.index("hung: ended")


def test_a_broker_that_hangs_in_the_handshake_of_tls_is_passed_by_and_let_go(
    start_node: NewNode, tmp_path: Path, patient: None
) -> None:
    authority = Authority(tmp_path)
    port = free_port()
    start_node(
        {
            "listeners": f"SSL://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{free_port()}",
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.location": authority.store("node"),
        }
    )
    security = Security(Tls(authorities=authority.path))
    events: list[str] = []
    with hung(events) as address:
        bootstrap = f"{address},127.0.0.1:{port}"

        async def on_trio() -> None:
            async with connect(bootstrap, security=security) as cluster:
                await AdminClient(cluster).topics()

        with socket_transport.connect(bootstrap, security=security) as cluster:
            BlockingAdmin(cluster).topics()
            wait_until(lambda: "hung: ended" in events)
        trio.run(on_trio)
        wait_until(lambda: events.count("hung: ended") == 2)


def test_all_of_several_addresses_are_named_where_none_answers() -> None:
    refused = [f"127.0.0.1:{free_port()}" for _ in range(2)]

    async def on_trio() -> None:
        async with connect(",".join(refused)) as cluster:
            await AdminClient(cluster).topics()

    with socket_transport.connect(",".join(refused)) as cluster:
        for ask in (BlockingAdmin(cluster).topics, partial(trio.run, on_trio)):
            with pytest.raises(UnreachableError) as caught:
                ask()
            assert all(f"{address}: Connection refused" in str(caught.value) for address in refused)


def test_silence_of_all_ends_at_the_deadline() -> None:
    events: list[str] = []
    with hung(events) as one, hung(events) as other:
        with (
            socket_transport.connect(f"{one},{other}", timeout_s=0.6) as cluster,
            pytest.raises(UnreachableError, match=r"no answer in time.*no answer in time"),
        ):
            BlockingAdmin(cluster).topics()
        wait_until(lambda: events.count("hung: ended") == events.count("hung: connected"))


def test_a_wrong_password_is_told_at_once_though_another_broker_hangs(
    start_node: NewNode, patient: None
) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    port = free_port()
    node = start_node(
        {
            "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{free_port()}",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} user_a="b";',
        }
    )
    assert isinstance(node, Node)
    events: list[str] = []
    security = Security(login=Login("PLAIN", "a", "wrong"))
    with hung(events) as address:
        bootstrap = f"{address},127.0.0.1:{port}"

        async def on_trio() -> None:
            async with connect(bootstrap, security=security) as cluster:
                await AdminClient(cluster).topics()

        with socket_transport.connect(bootstrap, security=security) as cluster:
            for ask in (BlockingAdmin(cluster).topics, partial(trio.run, on_trio)):
                with pytest.raises(BrokerError, match="Invalid username or password"):
                    ask()
        wait_until(lambda: events.count("hung: ended") == 2)


def test_what_was_asked_is_asked_again_and_what_was_changed_is_not(start_node: NewNode) -> None:
    node = start_node()
    assert isinstance(node, Node) or node.bootstrap
    with socket_transport.connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        admin = BlockingAdmin(cluster)
        admin.topics()
        admin.describe_cluster()
        socket_transport.wait(cluster.connection(1, cluster.deadline()))
        node.kill()
        node.start()
        admin.topics()  # on a new connection
        socket_transport.wait(cluster.connection(1, cluster.deadline()))
        node.kill()
        with pytest.raises((InterruptedChangeError, UnreachableError)):
            admin.create_topics([NewTopic("t", 1, 1)])
        node.start()


def sent_until_interrupted(producer: BlockingProducer, topic: str) -> bool:
    """Send a record. Return whether that failed: the kernel accepts data for a closed connection
    until its peer refuses some.
    """
    try:
        producer.send(topic, [ProducerRecord(b"lost")])
    except InterruptedChangeError:
        return True
    return False


def test_without_acks_a_failed_connection_is_reported_and_replaced(start_node: NewNode) -> None:
    node = start_node()
    with socket_transport.connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        topic = new_topic(BlockingAdmin(cluster))
        producer = BlockingProducer(Producer(cluster, acks=0, idempotent=False))
        producer.send(topic, [ProducerRecord(b"before")])
        wait_until(lambda: len(read_all(cluster, topic)) == 1)
        node.kill()
        wait_until(lambda: sent_until_interrupted(producer, topic))
        node.start()
        producer.send(topic, [ProducerRecord(b"after")])
        wait_until(lambda: [r.value for r in read_all(cluster, topic)] == [b"before", b"after"])


def test_without_acks_a_refused_batch_leads_to_new_metadata(node: Node) -> None:
    """A broker can only close the connection; the metadata, here the topic id, may be old."""
    with socket_transport.connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        admin = BlockingAdmin(cluster)
        topic = new_topic(admin)
        producer = BlockingProducer(Producer(cluster, acks=0, idempotent=False))
        producer.send(topic, [ProducerRecord(b"before")])
        wait_until(lambda: len(read_all(cluster, topic)) == 1)
        with socket_transport.connect(node.bootstrap, timeout_s=PATIENCE_S) as other:
            assert BlockingAdmin(other).delete_topics([topic]) == {topic: None}
            made = BlockingAdmin(other).create_topics([NewTopic(topic, 1, 1)])
            assert not isinstance(made[topic], BrokerError), made
            wait_until(lambda: sent_until_interrupted(producer, topic))
            producer.send(topic, [ProducerRecord(b"after")])
            wait_until(lambda: [r.value for r in read_all(other, topic)] == [b"after"])


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [("a", 1)]),
        (" a , b:2,", [("a", 9092), ("b", 2)]),
        ("[::1]:7", [("::1", 7)]),
        ("::1", [("::1", 9092)]),
    ],
)
def test_bootstrap_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", ",", "a:b", "a:0", "a:70000", ":1", "[::1", "::1]:7", "[a:7"])
def test_mistakes_in_bootstrap_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_bootstrap(text)


def test_a_coroutine_that_needs_a_loop_is_refused() -> None:
    with pytest.raises(RuntimeError, match="event loop"):
        socket_transport.wait(trio.lowlevel.checkpoint())
