"""Workers that died are listed with their address for some seconds after the next election."""

from collections.abc import Sequence

from metaquorum.dataplane.worker.recently_fenced import LISTED_S
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.together import Together, together

NAMED = (MetadataRequestTopic(name="t"),)


async def listed(cluster: Together, topics: Sequence[MetadataRequestTopic] | None) -> list[int]:
    client = await cluster.connect(2)
    asked = MetadataRequest(topics=None if topics is None else list(topics))
    response = await client.call(ApiKey.METADATA, asked)
    client.connection.close()
    return sorted(broker.node_id for broker in response.brokers)


@together()
async def test_a_killed_worker_is_listed_beside_the_next_leader(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3))
    await cluster.kill(1)
    await cluster.until(lambda: cluster.state("t", 2).leader == 2)
    assert cluster.worker(2).image.workers[1].fenced
    assert await listed(cluster, NAMED) == [1, 2, 3]
    assert await listed(cluster, None) == [2, 3]
    assert await listed(cluster, ()) == [2, 3]
    await cluster.world.sleep(LISTED_S)
    assert await listed(cluster, NAMED) == [2, 3]


@together()
async def test_a_worker_that_shut_down_is_not_listed(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3))
    await cluster.nodes[1].stop()
    await cluster.until(lambda: cluster.worker(2).image.workers[1].fenced)
    assert await listed(cluster, NAMED) == [2, 3]


@together()
async def test_a_worker_that_is_back_is_listed_once(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3))
    await cluster.kill(1)
    await cluster.until(lambda: cluster.worker(2).image.workers[1].fenced)
    await cluster.restart(1)
    await cluster.until(lambda: not cluster.worker(2).image.workers[1].fenced)
    assert await listed(cluster, NAMED) == [1, 2, 3]
