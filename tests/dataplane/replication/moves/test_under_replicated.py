"""A partition that moves is not under-replicated for the replicas that the move adds (KIP-352)."""

from collections.abc import Mapping
from typing import Any

from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.prometheus.collector import add_partitions
from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.dataplane.prometheus.slices import Slices
from tests.dataplane.prometheus.test_collector import TRAFFIC, read, value
from tests.dataplane.replication.moves.moving import move, start
from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import batch_of

REPLICAS = "kafka_server_replicamanager_"


def is_behind(partition: Partition) -> bool:
    return partition.is_under_replicated


@together()
async def test_adding_replicas_do_not_count_as_behind(cluster: Together) -> None:
    await cluster.create("t", (1, 3))
    await cluster.kill(2)
    await start(cluster, "t", 1, 2, 3)
    leader = cluster.replica(1, "t")
    await cluster.until(lambda: leader.state.adding == (2,))
    assert len(leader.isr) < len(leader.replicas)
    assert not is_behind(leader)
    await cluster.until(lambda: set(leader.isr) == {1, 3})
    await cluster.restart(2)
    await cluster.until(lambda: leader.state.isr == (1, 2, 3))
    await cluster.kill(2)
    await cluster.until(lambda: leader.state.isr == (1, 3))
    assert is_behind(leader)
    assert not is_behind(cluster.replica(3, "t"))


async def samples_of(cluster: Together, node: int) -> Mapping[Any, float]:
    page, worker = Page(), cluster.worker(node)
    await add_partitions(page, worker, Slices(worker.clock))
    return read(b"".join(page.texts()).decode())


@together()
async def test_metrics_tell_the_partitions_that_move_and_their_bytes(cluster: Together) -> None:
    for topic in ("t", "u"):
        await cluster.create(topic, (1, 2))
    client = await cluster.connect(1)
    batch = batch_of(bytes(100))
    for _ in range(5):
        await client.produce("t", batch)
    await cluster.kill(3)
    await cluster.until(lambda: cluster.worker(1).image.workers[3].fenced)
    await start(cluster, "t", 3, 2, 1)
    samples = await samples_of(cluster, 1)
    assert value(samples, REPLICAS + "reassigningpartitions") == 1
    assert value(samples, REPLICAS + "underreplicatedpartitions") == 0
    of_t = {"topic": "t", "partition": 0}
    assert value(samples, "kafka_cluster_partition_replicascount", **of_t) == 2
    assert value(samples, "kafka_cluster_partition_underreplicated", **of_t) == 0
    assert value(await samples_of(cluster, 2), REPLICAS + "reassigningpartitions") == 0
    await cluster.restart(3)
    await cluster.until(lambda: not cluster.state("t", 1).is_moving)
    await client.produce("t", batch)
    await cluster.until(lambda: cluster.replica(3, "t").high_watermark == 6)
    samples = await samples_of(cluster, 1)
    assert value(samples, REPLICAS + "reassigningpartitions") == 0
    assert value(samples, "kafka_cluster_partition_replicascount", **of_t) == 3
    assert value(samples, TRAFFIC + "reassignmentbytesout_total") == 5 * len(batch)
    assert value(samples, TRAFFIC + "reassignmentbytesin_total") == 0
    samples = await samples_of(cluster, 3)
    assert value(samples, TRAFFIC + "reassignmentbytesin_total") == 5 * len(batch)
    assert value(samples, TRAFFIC + "replicationbytesin_total") == 6 * len(batch)
    await move(cluster, "t", 3)
    samples = await samples_of(cluster, 1)
    assert value(samples, TRAFFIC + "reassignmentbytesout_total") == 5 * len(batch)


@together()
async def test_a_move_to_one_replica_needs_one_in_sync_on_the_way(cluster: Together) -> None:
    await cluster.create("t", (1,), min_insync_replicas=2)
    client = await cluster.connect(1)
    await fill(client, "t", 1)
    await cluster.kill(3)
    await cluster.until(lambda: cluster.worker(1).image.workers[3].fenced)
    await start(cluster, "t", 3)
    assert cluster.state("t", 1).replicas == (3, 1)
    await fill(client, "t", 1)
    assert cluster.replica(1, "t").high_watermark == 2
