"""Fixtures: metaquorum nodes, Apache Kafka nodes, and Kafka's own tools if Java is installed."""

import gc
import logging
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import engine

from tests.kafka_commands import KafkaCommands
from tests.nodes import (
    SHARED,
    Elsewhere,
    KafkaNode,
    Node,
    Peer,
    elsewhere,
    missing_for_java,
    new_node,
    shared_kafka,
    skip_without,
)
from tests.suite import rings
from tests.warm.process import WarmProcess

pytest_plugins = ["tests.suite.plugin"]

NewNode = Callable[..., "Node | KafkaNode"]
KafkaTool = Callable[..., "subprocess.CompletedProcess[str]"]

# The same examples in each run, without a deadline, so that only a change of the code can make a
# test fail. --hypothesis-profile=fresh draws other examples; `make quick` runs a fifth of them.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fresh", settings.get_profile("same"), derandomize=False)
settings.register_profile("quick", settings.get_profile("same"), max_examples=20)
settings.load_profile("same")

# Seconds in which Hypothesis looks for a smaller failing example, of 300 by its own limit: a model
# of groups took 169 s. It has no setting for that, but says that its constant may be changed.
MAX_SHRINKING_S: Final = 20
engine.MAX_SHRINKING_SECONDS = MAX_SHRINKING_S

# Connections to this machine must not use a proxy.
for name in ("no_proxy", "NO_PROXY"):
    os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost")))

# Programs in Java run for seconds here: the best compiler costs them more than it gains.
os.environ["KAFKA_SHORT_LIVED"] = "1"
for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# By default the console producer gives up after four attempts of 1.5 s.
TOOL_OPTIONS = {"console-producer": ("--request-timeout-ms", "60000")}


MOST_PROCESSES = 8
# Test processes per processor for `-n auto`: a test of a node, or of a client, waits for a part of
# its time. For `-n logical` (make quick) one: its tests do not wait.
PER_PROCESSOR = 2.0
PROCESS_BYTES = 1 << 29  # memory of one test process with its nodes, and sometimes Java

CLIENTS = "tests.conformance.clients"
# Clients that may leave a socket open until garbage collection, mostly after a timeout.
OTHERS = {"aiokafka", "confluent_kafka", "kafka"}
# Log records of their threads must not appear among the records that a test checks.
for name in OTHERS:
    logging.getLogger(name).propagate = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return the number of workers for `-n auto`, limited by processors and memory."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist uses this variable
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    each = 1.0 if config.option.numprocesses == "logical" else PER_PROCESSOR
    limits = [each * (count or 1), float(MOST_PROCESSES)]
    with suppress(OSError, ValueError):  # "max 100000": no limit; otherwise quota and period in us
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        limits.append(each * int(quota) / int(period))
    with suppress(OSError, ValueError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()) / PROCESS_BYTES)
    with suppress(OSError, ValueError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / PROCESS_BYTES)
    return max(1, int(min(limits)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rings.mark(items)
    uses_others: dict[object, bool] = {}
    for item in items:
        module = item.getparent(pytest.Module)
        if module not in uses_others:
            uses_others[module] = module is not None and any(
                _package(value) in OTHERS or getattr(value, "__module__", "") == CLIENTS
                for value in vars(module.obj).values()
            )
        if uses_others[module]:
            for what in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{what}"))


def pytest_unconfigure() -> None:
    WarmProcess.end_servers()


def _package(value: object) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return str(name).partition(".")[0]


@pytest.fixture(autouse=True, scope="module")
def leftovers() -> Iterator[None]:
    """Collect garbage after each module, so that its resource warnings appear in that module.

    Objects that the last test of a module holds are collected before the next module. Those alive
    then are exempt from later collections, each of which looks at the objects of one module only.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Run one node for all tests of this process; each test creates its own topics."""
    if bootstrap := elsewhere():
        yield Elsewhere(bootstrap)
        return
    running = Node(tmp_path_factory.mktemp("node"), SHARED)
    running.is_executed = True  # tests of the start itself aside, most nodes are forked
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session", params=["ours", "kafka"])
def either(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peer]:
    """Run a test of our clients with a metaquorum node, and with Apache Kafka if possible."""
    if request.param == "ours":
        yield request.getfixturevalue("node")
        return
    if elsewhere():
        pytest.skip("METAQUORUM_BOOTSTRAP selects the cluster to test")
    yield request.getfixturevalue("kafka")


PEERS = ("ours", "kafka")


@pytest.fixture(scope="session", params=PEERS)
def with_groups(request: pytest.FixtureRequest) -> Peer:
    """Run a test of consumer groups with a node and with Apache Kafka; skip without Java."""
    return _cluster_of(request)


@pytest.fixture(scope="session", params=PEERS)
def with_transactions(request: pytest.FixtureRequest) -> Peer:
    """Run a test of transactions with a node and with Apache Kafka; skip without Java."""
    return _cluster_of(request)


def _cluster_of(request: pytest.FixtureRequest) -> Peer:
    if elsewhere() and request.param != PEERS[0]:
        pytest.skip("METAQUORUM_BOOTSTRAP selects the cluster to test")
    is_kafka = request.param == "kafka" and not elsewhere()
    peer: Peer = request.getfixturevalue("kafka" if is_kafka else "node")
    return peer


@pytest.fixture(scope="session")
def kafka(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Run one Apache Kafka until the end of the session, also while tests use our node."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with shared_kafka(folder / "shared-kafka") as kafka:
        yield kafka


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[NewNode]:
    """Return a function that starts a node of this test alone, which the test may kill."""
    nodes: list[Node | KafkaNode] = []

    def start(settings: Mapping[str, object] | None = None) -> Node | KafkaNode:
        nodes.append(new_node(tmp_path / f"node{len(nodes)}", settings))
        nodes[-1].start()
        return nodes[-1]

    yield start
    for one in nodes:
        one.stop()


@pytest.fixture(scope="session")
def java() -> None:
    if reason := missing_for_java():
        skip_without(reason)


@pytest.fixture(scope="session")
def kafka_tool(java: None) -> Iterator[KafkaTool]:
    """Return a function that runs one of Kafka's command-line tools by its short name."""
    commands = KafkaCommands()

    def run(name: str, *arguments: object, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return commands.run(name, [*map(str, arguments), *TOOL_OPTIONS.get(name, ())], stdin)

    yield run
    commands.close()
