"""Fixtures: a cluster of three nodes with two log directories each, for all tests of moves."""

from collections.abc import Iterator

import pytest

from tests.clusters import Cluster
from tests.conformance.groups.peers import KafkaThree, OurThree, ThreeNodes, is_kafka
from tests.nodes import elsewhere, missing_for_java, skip_without, wait_until

LOG_DIRS = ("a", "b")


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    """Run three nodes until the end of the session; METAQUORUM_TEST_PEER=kafka: Apache Kafka's."""
    if elsewhere():
        pytest.skip("starts clusters of our own")
    if is_kafka() and (reason := missing_for_java()):
        skip_without(reason)
    folder = tmp_path_factory.mktemp("three")
    nodes = KafkaThree(folder, {}, LOG_DIRS) if is_kafka() else OurThree(folder, {}, LOG_DIRS)
    nodes.start()
    yield nodes
    if isinstance(nodes, OurThree):
        wait_until(lambda: not nodes.cluster.damage(), what="no test left any damage")
    nodes.stop()


@pytest.fixture(scope="session")
def cluster(three: ThreeNodes) -> Cluster:
    """Return the cluster of three metaquorum nodes; a test that kills one starts it again."""
    if not isinstance(three, OurThree):
        pytest.skip("for metaquorum")
    return three.cluster
