"""Nodes of the version without proofs of worker ids are upgraded one by one: all stay in sync."""

import pytest

from metaquorum.simulations.groups.node_versions import OLD_LEVEL, NodeVersions, mixed_versions
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.replication.test_replica_claims import LEADER, claim, row_of
from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.together import NODES, Together, run_together

E = ErrorCode
OLD, NEW = 2, 1


async def check_replication(cluster: Together, step: int) -> None:
    """Write to a new topic of each leader with acks=all; wait until all replicas have it."""
    for leader in NODES:
        topic = f"t-{step}-{leader}"
        replicas = (leader, *(each for each in NODES if each != leader))
        await cluster.create(topic, replicas, min_insync_replicas=3)
        await cluster.until(lambda name=topic: len(cluster.state(name, 1).isr) == 3)
        writer = await cluster.connect(leader)
        await fill(writer, topic, 5)
        writer.connection.close()
        for node in NODES:
            await cluster.until(
                lambda node=node, name=topic: cluster.replica(node, name).high_watermark == 5
            )


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 1, 3)])
def test_old_and_new_workers_replicate_from_each_other(order: tuple[int, ...]) -> None:
    versions = NodeVersions()
    versions.old = {f"node-{node}" for node in NODES}

    async def scenario(cluster: Together) -> None:
        assert cluster.worker(1).image.features["metadata.version"] == OLD_LEVEL
        await check_replication(cluster, 0)
        for step, node in enumerate(order, 1):
            versions.install(cluster.nodes[node].machine)
            await cluster.restart(node)
            await check_replication(cluster, step)
            for topic in (f"t-{n}-{leader}" for n in range(step) for leader in NODES):
                await cluster.until(
                    lambda name=topic: all(len(cluster.state(name, n).isr) == 3 for n in NODES),
                    limit_s=10.0,
                )

    with mixed_versions(versions):
        run_together(scenario)


def test_a_client_elsewhere_cannot_fetch_as_a_worker_that_is_not_upgraded() -> None:
    versions = NodeVersions()
    versions.old = {f"node-{node}" for node in NODES}

    async def scenario(cluster: Together) -> None:
        versions.install(cluster.nodes[NEW].machine)
        await cluster.restart(NEW)
        await cluster.create("t", (LEADER, 2, 3))
        writer, liar = await cluster.connect(LEADER), await cluster.connect(LEADER)
        await fill(writer, "t", 5)
        for _ in range(3):
            row = row_of(await claim(liar, cluster, OLD, offset=5))
            assert (row.error_code, row.records or b"") == (E.TOPIC_AUTHORIZATION_FAILED, b"")
            await cluster.world.sleep(1.0)
        assert len(cluster.state("t", 1).isr) == 3

    assert LEADER == NEW
    with mixed_versions(versions):
        run_together(scenario)
