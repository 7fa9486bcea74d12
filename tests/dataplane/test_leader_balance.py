"""Three nodes: leaders return by themselves once the nodes are back."""

from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import batch_of


async def roll(cluster: Together) -> list[int]:
    """Restart all nodes, one by one; return the leaders of `a`, `b` and `c` afterwards."""
    topics = {"a": (1, 2, 3), "b": (2, 3, 1), "c": (3, 1, 2)}
    for topic, replicas in topics.items():
        await cluster.create(topic, replicas)
    for node in (1, 2, 3):
        await cluster.restart(node)
        await cluster.until(lambda: all(len(cluster.state(topic, 1).isr) == 3 for topic in topics))
    return [cluster.state(topic, 1).leader for topic in topics]


@together(leader_imbalance_check_interval_seconds=20)
async def test_after_a_rolling_restart_leaders_return(cluster: Together) -> None:
    await roll(cluster)
    await cluster.until(
        lambda: [cluster.state(topic, 1).leader for topic in "abc"] == [1, 2, 3], 25.0
    )
    # Each worker applies the metadata when they come to it.
    await cluster.until(lambda: cluster.replica(3, "c").is_leader)
    client = await cluster.connect(3)
    await client.produce("c", batch_of(b"x"))


@together(leader_imbalance_check_interval_seconds=20, auto_leader_rebalance_enable="false")
async def test_leaders_stay_where_that_is_wanted(cluster: Together) -> None:
    leaders = await roll(cluster)
    assert leaders != [1, 2, 3]
    await cluster.world.sleep(60.0)
    assert [cluster.state(topic, 1).leader for topic in "abc"] == leaders
