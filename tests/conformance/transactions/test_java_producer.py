"""Java's transactional producer at each level of transaction.version, which changes while it runs.

The producer is that of kafka-producer-perf-test: with `--payload-monotonic`, the values are the
numbers of the records.
"""

import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import cycle

import pytest

from metaquorum.client.socket_transport import BlockingAdmin
from tests.conformance.clients import create
from tests.conformance.groups.peers import SETTINGS, ThreeNodes, is_kafka
from tests.conformance.test_java import at, output
from tests.conformance.transactions.copiers import Reader
from tests.conftest import KafkaTool
from tests.metaquorum.client.transactions.test_levels import FEATURE, lower
from tests.metaquorum.client.transactions.together import connected
from tests.nodes import KAFKA, PATIENCE_S, KafkaNode, Node, Peer, elsewhere, unique, wait_until

PARTITIONS = 3
RECORDS = 1000

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Run a node for one test, which changes its features."""
    if elsewhere():
        pytest.skip("the levels of METAQUORUM_BOOTSTRAP are not changed")
    kind = KafkaNode if is_kafka() else Node
    node = kind(tmp_path_factory.mktemp("own"), SETTINGS)
    node.start()
    yield node
    node.stop()


def arguments(bootstrap: str, topic: str, throughput: int) -> tuple[object, ...]:
    return (
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", RECORDS),
        *("--payload-monotonic", "--throughput", throughput),
        *("--transactional-id", unique("perf"), "--transaction-duration-ms", 20),
    )


def set_level(kafka_tool: KafkaTool, bootstrap: str, level: int) -> None:
    """Change the level of a new cluster, which is 2."""
    if level < 2:
        change = ("downgrade", "--feature", f"{FEATURE}={level}")
        output(kafka_tool("features", "--bootstrap-server", bootstrap, *change))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_all_records_are_committed(own: Peer, kafka_tool: KafkaTool, level: int) -> None:
    set_level(kafka_tool, own.bootstrap, level)
    topic = create(own.bootstrap, unique("perf"), PARTITIONS)
    shown = output(kafka_tool("producer-perf-test", *arguments(own.bootstrap, topic, -1)))
    assert shown.splitlines()[-1].startswith(f"{RECORDS} records sent")
    wanted = sorted(map(str, range(RECORDS)))
    read = kafka_tool(
        *("console-consumer", *at(own), "--topic", topic, "--from-beginning"),
        *("--isolation-level", "read_committed", "--max-messages", RECORDS),
        *("--timeout-ms", 170_000),
    )
    assert sorted(output(read).splitlines()) == wanted


def running(bootstrap: str, topic: str) -> "subprocess.Popen[str]":
    words = map(str, arguments(bootstrap, topic, 100))
    return subprocess.Popen(
        [KAFKA / "tool", "producer-perf-test", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # `exec`s java


def assert_all_are_committed(reader: Reader, process: "subprocess.Popen[str]") -> None:
    text, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, text[-3000:]
    assert f"{RECORDS} records sent" in text, text[-3000:]
    wanted = Counter(map(str, range(RECORDS)))
    wait_until(lambda: set(reader.read()) == set(wanted), what="all records")
    assert reader.read() == wanted


@pytest.mark.skipif(
    is_kafka(), reason="with Kafka 4.3.1 a commit ends with a timeout after CONCURRENT_TRANSACTIONS"
)
def test_levels_change_while_it_runs(own: Peer) -> None:
    topic = create(own.bootstrap, unique("perf"), PARTITIONS)
    process = running(own.bootstrap, topic)
    changes, now = 0, 2
    try:
        with connected(own) as cluster, Reader(own.bootstrap, topic) as reader:
            for level in cycle((1, 0, 1, 2, 0, 2)):
                before = len(reader.read())
                wait_until(
                    lambda before=before: (  # type: ignore[misc]
                        len(reader.read()) > before or process.poll() is not None
                    )
                )
                if process.poll() is not None:
                    break
                if level > now:
                    BlockingAdmin(cluster).raise_features({FEATURE: level})
                else:
                    lower(cluster, level)
                now = level
                changes += 1
            assert_all_are_committed(reader, process)
    finally:
        process.kill()
        process.wait()
    assert changes >= 6


@pytest.mark.parametrize("level", [0, 1, 2])
def test_nodes_are_killed_while_it_runs(
    three_nodes: ThreeNodes, kafka_tool: KafkaTool, level: int
) -> None:
    bootstrap = ",".join(three_nodes.addresses)
    set_level(kafka_tool, bootstrap, level)
    topic = create(bootstrap, unique("perf"), PARTITIONS, replicas=3)
    process = running(bootstrap, topic)
    try:
        with Reader(bootstrap, topic) as reader:

            def progress() -> None:
                """Wait for more records. On a slow machine the producer may have sent all."""
                known = len(reader.read())
                wait_until(
                    lambda: len(reader.read()) > known + 50 or process.poll() is not None,
                    what="more records",
                )

            for number in (1, 2):
                progress()
                three_nodes.kill(number)
                progress()
                three_nodes.restart(number)
            assert_all_are_committed(reader, process)
    finally:
        process.kill()
        process.wait()
