"""Damage that a test does to a shared cluster is found at the end of its module."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.clusters import Cluster, shared
from tests.conformance.clients import admin
from tests.nodes import PATIENCE_S, elsewhere, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="starts clusters of our own")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path, (1,), (1, 2), {"broker.session.timeout.ms": 1000})
    found.start()
    yield found
    found.kill()


def test_a_killed_worker_and_its_replicas_are_found(cluster: Cluster) -> None:
    made = admin(cluster.bootstrap).create_topics([NewTopic("t", 1, 2)])
    made["t"].result(PATIENCE_S)
    wait_until(lambda: cluster.damage() == [])
    cluster[2].kill()
    expected = {"live_workers is 1, not 2", "under_replicated is 1, not 0"}
    wait_until(lambda: expected <= set(cluster.damage()))
    cluster.start(2)
    wait_until(lambda: cluster.damage() == [])


def test_an_error_in_a_log_is_found(cluster: Cluster) -> None:
    wait_until(lambda: cluster.damage() == [])
    with cluster[1].errors.open("a") as log:
        log.write("2026-01-01T00:00:00.000Z ERROR   log: the disk is on fire\n")
    line = "node 1: 2026-01-01T00:00:00.000Z ERROR   log: the disk is on fire"
    wait_until(lambda: cluster.damage() == [line])


def test_a_cluster_is_whole_after_a_test_that_only_uses_it(tmp_path: Path) -> None:
    with shared(Cluster(tmp_path, (1,), (1, 2))) as cluster:
        made = admin(cluster.bootstrap).create_topics([NewTopic("t", 2, 2)])
        made["t"].result(PATIENCE_S)
    assert not any(node.is_running for node in cluster.nodes.values())
