"""Three nodes, seen by independent clients and Kafka's own tools."""

import asyncio
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic, TopicMetadata
from kafka import KafkaAdminClient
from kafka import TopicPartition as OtherTopicPartition
from kafka.admin import NewTopic as OtherNewTopic
from kafka.errors import KafkaError as OtherKafkaError

from tests.clusters import Cluster, shared
from tests.conformance.clients import Librdkafka, Record
from tests.conftest import KafkaTool
from tests.nodes import PATIENCE_S, elsewhere, unique, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="starts clusters of our own")

CREATE_TIMEOUT_S = 5  # for requests that may fail
ENOUGH = 20  # topics created before and after a fault
TIMED_OUT = {"REQUEST_TIMED_OUT", "_TIMED_OUT", "RequestTimedOutError", "KafkaTimeoutError"}
# kafka-python requests the metadata from any worker and sends admin requests to it; that worker may
# be killed.
NODE_GONE = {"KafkaConnectionError", "NodeNotReadyError", "UnknownBrokerIdError"}
# It retries after the timeout of its request, and the topic may have been created by then.
ASKED_AGAIN = {"TopicAlreadyExistsError"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests here, which leave all nodes running."""
    with shared(Cluster(tmp_path_factory.mktemp("cluster"))) as made:
        yield made


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create(client: AdminClient, name: str, partitions: int, timeout_s: float = PATIENCE_S) -> None:
    new = NewTopic(name, partitions, 1)
    client.create_topics([new], request_timeout=timeout_s)[name].result()


def is_seen(bootstrap: str, topic: str, partitions: int) -> bool:
    """Wait until the worker shows the change; only the worker that acknowledged it shows it at
    once.
    """
    found = admin(bootstrap).list_topics(topic, PATIENCE_S).topics[topic].partitions
    return len(found) == partitions and all(each.leader > 0 for each in found.values())


# Clients


@pytest.fixture(params=["shared", "fresh"])
def any_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Run a test with the cluster that others have used, and with a new one."""
    if request.param == "shared":
        yield request.getfixturevalue("cluster")
        return
    with shared(Cluster(tmp_path / "fresh")) as made:
        yield made


def test_aiokafka_reaches_all_workers_from_any_of_them(any_cluster: Cluster) -> None:
    cluster = any_cluster

    async def through(bootstrap: str, topic: str) -> list[int]:
        partitions = range(6)
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        for partition in partitions:
            await producer.send_and_wait(topic, b"%d" % partition, partition=partition)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([AioTopicPartition(topic, partition) for partition in partitions])
        found: list[int] = []
        while len(found) < len(partitions):
            for messages in (await consumer.getmany(timeout_ms=1000)).values():
                found += [message.partition for message in messages]
        await consumer.stop()
        return sorted(found)

    for number in cluster.workers:
        topic = unique("aio")
        create(admin(cluster[number].bootstrap), topic, 6)
        reading = asyncio.wait_for(through(cluster[number].bootstrap, topic), PATIENCE_S)
        assert asyncio.run(reading) == list(range(6))


def test_java_reaches_all_workers_from_any_of_them(cluster: Cluster, kafka_tool: KafkaTool) -> None:
    topic = unique("java")
    create(admin(cluster[1].bootstrap), topic, 6)
    lines = [f"line-{number}" for number in range(60)]
    at = ["--bootstrap-server", cluster[3].bootstrap, "--topic", topic]
    # Without keys a producer fills one batch after the other; small batches reach all partitions.
    small = ["--command-property", "batch.size=1"]
    done = kafka_tool("console-producer", *at, *small, stdin="\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    at[1] = cluster[2].bootstrap
    wait_until(lambda: is_seen(at[1], topic, 6))
    offsets = kafka_tool("get-offsets", *at).stdout.split()
    ends = [int(row.rpartition(":")[2]) for row in offsets]
    assert (len(ends), sum(ends)) == (6, 60)


def test_every_replica_tells_which_producers_it_knows(cluster: Cluster) -> None:
    """kafka-transactions find-hanging --broker-id asks the given worker, leader or not."""
    bootstrap, topic = cluster[1].bootstrap, unique("producers")
    creating = admin(bootstrap)
    creating.create_topics([NewTopic(topic, 1, len(cluster.workers))])[topic].result()
    records = [Record(None, b"v")] * 3
    Librdkafka().send(bootstrap, topic, records, "none", enable_idempotence=True)
    client, where = KafkaAdminClient(bootstrap_servers=bootstrap), OtherTopicPartition(topic, 0)

    def known(worker: int) -> list[int]:
        found = client.describe_producers([where], broker_id=worker)[where]
        return [producer.last_sequence for producer in found.active_producers]

    for number in cluster.workers:
        wait_until(lambda number=number: known(number) == [2], what=f"worker {number} knows it")
    client.close()


# Controllers that stop, pause and return


class Creations:
    """Topics created one by one in a thread, by librdkafka and kafka-python alternately."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[str] = []
        self.unknown: list[str] = []
        self.refusals: set[str] = set()
        self._done = threading.Event()
        self._bootstrap = bootstrap
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Creations":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(PATIENCE_S)

    def wait_more(self) -> None:
        least = len(self.acknowledged) + ENOUGH
        # A client of a paused node waits for its request timeout, and perhaps for a second one.
        wait_until(lambda: len(self.acknowledged) >= least, what="topics are made")

    def _run(self) -> None:
        one = admin(self._bootstrap)
        other = KafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=10_000)
        number = 0
        while not self._done.is_set():
            number += 1
            name = unique("made")
            try:
                if number % 2:
                    create(one, name, 2, CREATE_TIMEOUT_S)
                else:
                    new = OtherNewTopic(name, 2, 1)
                    other.create_topics([new], timeout_ms=CREATE_TIMEOUT_S * 1000)
            except (KafkaException, OtherKafkaError) as error:
                self.unknown.append(name)
                is_old = isinstance(error, KafkaException)
                self.refusals.add(error.args[0].name() if is_old else type(error).__name__)
            else:
                self.acknowledged.append(name)
        other.close()

    def check(self, bootstrap: str) -> None:
        """Check that acknowledged topics exist completely, and others once or not at all."""
        assert self.refusals <= TIMED_OUT | NODE_GONE | ASKED_AGAIN
        client, acknowledged = admin(bootstrap), set(self.acknowledged)

        def made() -> dict[str, TopicMetadata]:
            topics = client.list_topics(timeout=PATIENCE_S).topics
            return {name: topics[name] for name in topics.keys() & everything}

        def leaders() -> set[int]:
            return {p.leader for topic in made().values() for p in topic.partitions.values()}

        everything = {*self.acknowledged, *self.unknown}
        # A worker that was paused catches up later. It is fenced until its next heartbeat, and
        # the partitions that only it hosts have no leader until then.
        wait_until(lambda: acknowledged <= made().keys(), what="all topics are seen")
        wait_until(lambda: leaders() <= {1, 2, 3}, what="all partitions have leaders")
        assert {len(topic.partitions) for topic in made().values()} == {2}


def caught_up(cluster: Cluster, number: int) -> bool:
    client = admin(cluster[number].bootstrap)
    return len(client.list_topics(timeout=PATIENCE_S).brokers) == len(cluster.workers)


@pytest.mark.parametrize("which", ["active", "another"])
def test_a_controller_that_stands_still_costs_nothing_that_was_acknowledged(
    cluster: Cluster, which: str
) -> None:
    active = cluster.active_controller()
    number = active if which == "active" else active % 3 + 1
    asked = next(each for each in cluster.workers if each != number)
    with Creations(cluster[asked].bootstrap) as creations:
        creations.wait_more()
        os.kill(cluster[number].pid, signal.SIGSTOP)
        try:
            creations.wait_more()
            meanwhile = cluster.active_controller()
        finally:
            os.kill(cluster[number].pid, signal.SIGCONT)
        wait_until(lambda: caught_up(cluster, number))
        creations.wait_more()
    for each in cluster.workers:
        creations.check(cluster[each].bootstrap)
    if which == "active":
        assert meanwhile != active


def test_a_killed_active_controller_is_replaced(cluster: Cluster) -> None:
    active = cluster.active_controller()
    asked = next(each for each in cluster.workers if each != active)
    client = admin(cluster[asked].bootstrap)
    create(client, unique("before"), 1)
    with Creations(cluster[asked].bootstrap) as creations:
        creations.wait_more()
        cluster[active].kill()
        create(client, unique("after"), 1)
        creations.wait_more()
        cluster[active].start()
        creations.wait_more()
    for each in cluster.workers:
        wait_until(lambda at=each: caught_up(cluster, at))  # type: ignore[misc]
        creations.check(cluster[each].bootstrap)


# Kafka's tools


def test_metadata_quorum_shows_voters_who_lag_by_nothing(
    cluster: Cluster, kafka_tool: KafkaTool
) -> None:
    def described(number: int, option: str) -> str:
        at = ["--bootstrap-server", cluster[number].bootstrap, "describe"]
        done = kafka_tool("metadata-quorum", *at, option)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def shows_leader(number: int) -> str:
        shown = described(number, "--status")
        leader = rf"^LeaderId: +{cluster.active_controller()}$"
        return shown if re.search(leader, shown, re.M) else ""  # the leader may have changed

    for number in cluster.workers:
        status = wait_until(lambda number=number: shows_leader(number))  # type: ignore[misc]
        assert re.search(r"^HighWatermark: +[1-9]\d*$", status, re.M)
        for controller, address in (each.split("@") for each in cluster.quorum.split(",")):
            assert f'"id": {controller}' in status
            assert f"CONTROLLER://{address}" in status

    def nobody_lags() -> bool:
        shown = described(cluster.workers[-1], "--replication")
        rows = [line.split() for line in shown.splitlines()[1:]]
        assert Counter(row[-1] for row in rows) == {"Leader": 1, "Follower": 2}
        return {row[3] for row in rows} == {"0"}

    wait_until(nobody_lags)


def test_cluster_tool_shows_who_is_fenced_and_forgets_who_is_gone(
    tmp_path: Path, kafka_tool: KafkaTool
) -> None:
    cluster = Cluster(tmp_path / "cluster", controllers=(1,), workers=(2, 3))
    cluster.start()
    try:
        at = ["--bootstrap-server", cluster[2].bootstrap]

        def roles() -> Counter[str]:
            shown = kafka_tool("metadata-quorum", *at, "describe", "--replication").stdout
            return Counter(re.findall(r"(Leader|Observer)\s*$", shown, re.M))

        wait_until(lambda: roles() == {"Leader": 1, "Observer": 2})
        cluster[3].kill()
        wait_until(
            lambda: len(admin(cluster[2].bootstrap).list_topics(timeout=PATIENCE_S).brokers) == 1
        )

        def states() -> dict[str, str]:
            shown = kafka_tool("cluster", "list-endpoints", *at, "--include-fenced-brokers").stdout
            return {row[0]: row[4] for row in map(str.split, shown.splitlines()[1:])}

        wait_until(lambda: states() == {"2": "unfenced", "3": "fenced"})
        gone = kafka_tool("cluster", "unregister", *at, "--id", "3")
        assert "Broker 3 is no longer registered." in gone.stdout, gone
        shown = kafka_tool("cluster", "list-endpoints", *at, "--include-fenced-brokers").stdout
        assert [row.split()[0] for row in shown.splitlines()[1:]] == ["2"]
        again = kafka_tool("cluster", "unregister", *at, "--id", "3")
        assert "Broker ID 3 is not currently registered" in again.stderr + again.stdout
        cluster[3].start()
        wait_until(
            lambda: len(admin(cluster[2].bootstrap).list_topics(timeout=PATIENCE_S).brokers) == 2
        )
        levels = kafka_tool("features", *at, "describe")
        assert re.search(
            r"^Feature: metadata.version .*FinalizedVersionLevel:", levels.stdout, re.M
        )
        elr = "eligible.leader.replicas.version"
        for verb, level in (("", 1), ("downgrade", 0), ("upgrade", 1)):
            if verb:
                done = kafka_tool("features", *at, verb, "--feature", f"{elr}={level}")
                assert f"{elr} was {verb}d to {level}." in done.stdout, done
            told = kafka_tool("features", *at, "describe").stdout
            assert re.search(rf"{elr}.*Min.*: 0.*Max.*: 1.*FinalizedVersionLevel: {level}", told)
        refused = kafka_tool("features", *at, "upgrade", "--feature", "share.version=9")
        assert "does not support this feature" in refused.stdout + refused.stderr
        cluster.stop()
    finally:
        cluster.kill()


def test_requests_that_time_out_say_so(tmp_path: Path) -> None:
    """Two of three controllers are down: no change is possible, and clients get a timeout error."""
    cluster = Cluster(tmp_path / "cluster")
    cluster.start()
    try:
        cluster[1].kill()
        cluster[2].kill()
        began = time.monotonic()
        with pytest.raises(KafkaException) as refused:
            create(admin(cluster[3].bootstrap), "refused", 1, CREATE_TIMEOUT_S)
        assert time.monotonic() - began < CREATE_TIMEOUT_S + PATIENCE_S / 2
        assert refused.value.args[0].code() in (
            KafkaError.REQUEST_TIMED_OUT,
            KafkaError._TIMED_OUT,
        )
        cluster.start(1)
        create(admin(cluster[3].bootstrap), "made", 1)
    finally:
        cluster.kill()
