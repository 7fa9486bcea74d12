"""Fixtures: a node with short session timeouts, and a cluster of three, both with groups."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conformance.groups.members import Members
from tests.conformance.groups.peers import SETTINGS, ThreeNodes, is_kafka, missing_groups
from tests.conformance.groups.peers import three_nodes as new_cluster
from tests.nodes import Elsewhere, KafkaNode, Node, Peer, elsewhere, missing_for_java, skip_without


@pytest.fixture(scope="session")
def served() -> None:
    """Skip a test of groups if the peer has none, or cannot be started."""
    if not elsewhere() and (reason := missing_groups()):
        pytest.skip(reason)
    if is_kafka() and (reason := missing_for_java()):
        skip_without(reason)


@pytest.fixture(scope="session")
def peer(served: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Run one node for the tests of this process; METAQUORUM_BOOTSTRAP names a running one."""
    if bootstrap := elsewhere():
        yield Elsewhere(bootstrap)
        return
    folder = tmp_path_factory.mktemp("groups")
    node: KafkaNode | Node = KafkaNode(folder, SETTINGS) if is_kafka() else Node(folder, SETTINGS)
    if isinstance(node, Node):
        node.is_executed = True
    node.start()
    yield node
    node.stop()


@pytest.fixture
def three_nodes(served: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    """Run a cluster of three nodes for one test, which may kill them."""
    cluster = new_cluster(tmp_path_factory.mktemp("three"))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def members() -> Iterator[Members]:
    """Start members of groups as processes, and kill those that are left at the end."""
    with ExitStack() as ended:
        yield Members(ended)
