"""Three nodes: a follower joins the ISR by a fetch, and by nothing that it had fetched before."""

from typing import Any

from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.together import NODES, Together, together

LAG_MS = 2000


def of_an_active_controller(cluster: Together) -> tuple[int, int, int]:
    """Return the ids of the node with the active controller, and of the two others."""
    (active,) = [
        node_id
        for node_id in NODES
        if cluster.nodes[node_id].node.controller_role.quorum.status.is_active  # type: ignore[union-attr]
    ]
    one, other = (node_id for node_id in NODES if node_id != active)
    return active, one, other


def cut(cluster: Together, one: int, other: int) -> None:
    cluster.world.internet.cut(f"node-{one}", f"node-{other}")
    cluster.world.internet.cut(f"node-{other}", f"node-{one}")


@together(replica_lag_time_max_ms=LAG_MS)
async def test_a_follower_that_is_cut_off_from_its_leader_leaves_the_isr_once(
    cluster: Together,
) -> None:
    """Below min.insync.replicas the high watermark stays at the offset that it had fetched."""
    active, leader, follower = of_an_active_controller(cluster)
    replicas = (leader, follower, active)
    await cluster.create("t", replicas, min_insync_replicas=3)
    client = await cluster.connect(leader)
    await fill(client, "t", 5)
    cut(cluster, leader, follower)
    await fill(client, "t", 5, acks=1)

    def isr() -> Any:
        return cluster.state("t", active).isr

    await cluster.until(lambda: isr() == (leader, active), 2 * LAG_MS / 1000)
    for _ in range(10 * LAG_MS // 1000 * 5):
        await cluster.world.sleep(0.1)
        assert isr() == (leader, active)
    assert follower in cluster.worker(active).image.workers
    assert not cluster.worker(active).image.workers[follower].fenced
    assert cluster.worker(leader).isr_manager.context.isr_shrinks == 1
    cluster.world.internet.heal_all()
    await cluster.until(lambda: set(isr()) == set(replicas))
    assert cluster.replica(leader, "t").high_watermark == 10


@together()
async def test_an_idle_follower_that_is_no_longer_fenced_joins_by_its_next_fetch(
    cluster: Together,
) -> None:
    """It has fetched up to the log end all the time, and nothing is appended."""
    active, leader, follower = of_an_active_controller(cluster)
    await cluster.create("t", (leader, follower))
    await fill(await cluster.connect(leader), "t", 5)
    await cluster.until(lambda: cluster.replica(follower, "t").high_watermark == 5)
    cut(cluster, active, follower)
    await cluster.until(lambda: cluster.state("t", leader).isr == (leader,))
    assert cluster.worker(leader).image.workers[follower].fenced
    cluster.world.internet.heal_all()
    await cluster.until(lambda: not cluster.worker(leader).image.workers[follower].fenced)
    await cluster.until(lambda: cluster.state("t", leader).isr == (leader, follower), 0.8)


@together(replica_lag_time_max_ms=LAG_MS)
async def test_an_idle_follower_that_a_leader_has_removed_too_early_joins_by_its_next_fetch(
    cluster: Together,
) -> None:
    """It reached the log end while the proposal to remove it was on its way."""
    active, leader, follower = of_an_active_controller(cluster)
    await cluster.create("t", (leader, follower))
    client = await cluster.connect(leader)
    await fill(client, "t", 5)
    cut(cluster, leader, follower)
    await fill(client, "t", 1, acks=1)
    partition = cluster.replica(leader, "t")
    link = cluster.world.internet.link(f"node-{leader}", f"node-{active}")
    link.delay_s = 1.0
    await cluster.until(lambda: partition.leader_state.proposed is not None)
    cluster.world.internet.heal_all()
    await cluster.until(lambda: partition.leader_state.follower(follower).log_end_offset == 6)
    assert cluster.state("t", leader).isr == (leader, follower)
    await cluster.until(lambda: cluster.state("t", leader).isr == (leader,))
    link.delay_s = cluster.world.internet.default.delay_s
    await cluster.until(lambda: cluster.state("t", leader).isr == (leader, follower), 2.0)
