"""Three and five voters: elections, commits, restarts, and every kind of failure."""

import pytest
import trio

from metaquorum.metadata.batch import Batch
from metaquorum.quorum.storage.journal import Journal
from metaquorum.quorum.storage.journal_ops import Entry
from tests.metaquorum.quorum.raft.cluster import CLUSTER, DIRECTORY, Cluster


@pytest.mark.parametrize("voters", [1, 3, 5])
def test_voters_elect_one_commit_and_agree(voters: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active(2)
        for _ in range(20):
            await cluster.create(leader, 3)
        assert len(cluster.acknowledged) == 60
        await cluster.wait_equal()

    Cluster(voters).run(scenario)


def test_a_killed_leader_is_replaced_within_a_second_and_nothing_acknowledged_is_lost() -> None:
    times = []

    async def scenario(cluster: Cluster) -> None:
        for _ in range(5):
            leader = await cluster.wait_active()
            await cluster.create(leader, 5)
            began = trio.current_time()
            await leader.stop(power=True)
            await cluster.wait_active()
            times.append(trio.current_time() - began)
            await cluster.start(leader.node_id)
            await cluster.wait_equal()
        assert len(cluster.acknowledged) == 25

    for seed in range(4):
        Cluster(3, seed).run(scenario)
    assert max(times) < 1


def test_a_journal_without_entries_that_begin_terms_is_a_log_like_any_other() -> None:
    cluster = Cluster(1)
    node = cluster.nodes[1]

    async def write() -> None:
        journal = Journal(node.disk, DIRECTORY, CLUSTER)
        journal.open()
        journal.set_hard_state(1, 1)
        for number in range(3):
            name, record = cluster.record()
            journal.append(Entry(number + 1, 1, Batch(1, 1, number, number, 1, record).encode()))
            cluster.acknowledged.append(name)
        await journal.sync()
        await journal.close()

    async def scenario(cluster: Cluster) -> None:
        assert node.voter.status.end_offset == 3
        assert node.voter.status.term == 2
        assert await cluster.create(node, 2)

    trio.run(write)
    cluster.run(scenario)


async def trouble(cluster: Cluster, rounds: int) -> None:
    """Propose continuously while links and machines fail, then repair everything."""
    random, network = cluster.random, cluster.network

    async def propose() -> None:
        while True:
            node = cluster.active()
            if node is not None:
                with trio.move_on_after(5):
                    await cluster.create(node, random.randint(1, 8), random.choice([0, 0, 200]))
            await trio.sleep(random.uniform(0, 0.2))

    async def fault() -> None:
        ids = list(cluster.nodes)
        kind = random.choice(
            ["kill", "power", "power all", "cut", "stall", "close", "heal", "wait"]
        )
        node_id = random.choice(ids)
        if kind in ("kill", "power"):
            await restart(cluster, [node_id], power=kind == "power")
        elif kind == "power all":
            await restart(cluster, ids, power=True)
        elif kind in ("cut", "stall"):
            network.isolate(node_id, silently=kind == "stall")
        elif kind == "close":
            network.close(*random.sample(ids, 2))
        elif kind == "full":
            await fill_up(cluster, node_id)
        elif kind == "heal":
            network.heal()
        await trio.sleep(random.uniform(0, 1.5))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(propose)
        for _ in range(rounds):
            await fault()
        network.heal()
        await cluster.wait_active(20)
        await trio.sleep(3)
        nursery.cancel_scope.cancel()
    await cluster.wait_equal()
    leader = await cluster.wait_active()
    assert await cluster.create(leader, 3)


async def restart(cluster: Cluster, node_ids: list[int], *, power: bool) -> None:
    for node_id in node_ids:
        await cluster.nodes[node_id].stop(power=power)
    await trio.sleep(cluster.random.uniform(0, 0.5))
    for node_id in node_ids:
        await cluster.start(node_id)


async def fill_up(cluster: Cluster, node_id: int) -> None:
    """Fill the disk for a while; restart the voter if a vote found no space and it stopped."""
    node = cluster.nodes[node_id]
    disk = node.disk
    disk.full_at_bytes = disk.used_bytes() + cluster.random.randint(0, 500)
    await trio.sleep(cluster.random.uniform(0, 1))
    disk.full_at_bytes = None
    if node.failure is not None:
        await restart(cluster, [node_id], power=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9))
def test_nothing_is_lost_or_forked_whatever_fails(seed: int) -> None:
    cluster = Cluster(
        3 if seed % 3 else 5, seed, snapshot_interval_bytes=[2_000, 10_000, 1 << 20][seed % 3]
    )

    async def scenario(cluster: Cluster) -> None:
        await trouble(cluster, 15)
        assert len(cluster.acknowledged) > 50

    cluster.run(scenario)
