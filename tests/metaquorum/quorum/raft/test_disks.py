"""Snapshots that replace the log, and disks that are lost, full or broken."""

import logging

import pytest
import trio

from metaquorum.metadata.replicated_log import NotCommittedError
from metaquorum.runtime.interfaces import StorageError
from metaquorum.wire.primitives.errors import ErrorCode
from tests.metaquorum.quorum.raft.cluster import Cluster, Node


def small_snapshots(seed: int = 0, voters: int = 3) -> Cluster:
    return Cluster(voters, seed, snapshot_interval_bytes=1_500, segment_bytes=1_000)


async def fill(cluster: Cluster, batches: int = 120) -> Node:
    """Create batches on a leader until the beginning of its log is deleted; return the leader."""
    leader = await cluster.wait_active()
    for _ in range(batches // 6):
        await cluster.create(leader, 6)
    await trio.sleep(0.5)
    assert leader.voter._core is not None
    assert leader.voter._core.log.anchor.index > 10
    return leader


def another(cluster: Cluster, node: Node) -> Node:
    return next(each for each in cluster.nodes.values() if each is not node)


def test_a_voter_that_fell_far_behind_gets_a_snapshot() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.wait_active()
        late = cluster.nodes[1]
        await late.stop(power=False)
        await fill(cluster)
        await cluster.start(1)
        await cluster.wait_equal(5)
        assert late.journal.base.index > 10
        await late.stop(power=True)
        await cluster.start(1)
        await cluster.wait_equal(5)

    small_snapshots().run(scenario)


def test_a_voter_that_lost_its_disk_comes_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await fill(cluster)
        late = another(cluster, leader)
        await late.stop(power=False)
        late.lose_disk()
        await cluster.start(late.node_id)
        await cluster.wait_equal(5)

    small_snapshots().run(scenario)


@pytest.mark.slow
def test_a_snapshot_overtakes_entries_that_are_still_being_applied() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        late = another(cluster, leader)
        late.loader.delay_s = 0.003
        await cluster.create(leader, 1000)
        await cluster.until(lambda: late.voter.status.commit_index > 1000)
        cluster.network.isolate(late.node_id, silently=False)
        await fill(cluster)
        cluster.network.heal()
        await cluster.until(lambda: late.journal.base.index > 10, 5)
        assert late.loader.image.end_offset < 1000
        await cluster.wait_equal(5)

    for seed in range(5):
        small_snapshots(seed).run(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_a_crash_at_any_point_of_taking_in_a_snapshot_is_recovered_from(power: bool) -> None:
    crashes = 0

    async def scenario(cluster: Cluster) -> None:
        nonlocal crashes
        leader = await fill(cluster)
        late = another(cluster, leader)
        for fail_at in range(45):
            await late.stop(power=power)
            late.lose_disk()
            late.durable_index = 0
            late.disk.fail_at = fail_at
            await cluster.start(late.node_id)
            with trio.move_on_after(1):
                await late.stopped.wait()
                crashes += 1
                await late.stop(power=power)
                await cluster.start(late.node_id)
            late.disk.fail_at = None
            await cluster.create(leader, 2)
            await cluster.wait_equal(5)

    small_snapshots().run(scenario)
    assert crashes > 20


def test_a_snapshot_that_is_damaged_is_noticed_and_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await fill(cluster)
        late = another(cluster, leader)
        await late.stop(power=False)
        late.lose_disk()
        newest = max(name for name in leader.disk.files if name.endswith(".snapshot"))
        leader.disk.files[newest].data[-30] ^= 1
        await cluster.start(late.node_id)
        await cluster.wait_equal(10)

    with caplog.at_level(logging.WARNING):
        small_snapshots().run(scenario)
    assert "is damaged" in caplog.text


def test_a_leader_with_a_full_disk_refuses_and_goes_on_when_there_is_room() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        await cluster.create(leader, 3)
        leader.disk.full_at_bytes = leader.disk.used_bytes() + 10
        name, proposal = cluster.propose(leader, leader.voter.status.end_offset)
        with pytest.raises(NotCommittedError) as caught:
            await proposal.wait()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        cluster.refused.append(name)
        leader.disk.full_at_bytes = None
        assert await cluster.create(leader, 3)
        assert cluster.active() is leader

    Cluster().run(scenario)


def test_a_follower_with_a_full_disk_holds_nobody_up_and_catches_up_when_there_is_room() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        full = another(cluster, leader)
        full.disk.full_at_bytes = full.disk.used_bytes() + 10
        for _ in range(20):
            assert await cluster.create(leader, 3)
            await trio.sleep(0.05)
        sent = cluster.network.sent
        await trio.sleep(2)
        assert cluster.network.sent - sent < 150, "it is requested repeatedly"
        assert full.is_up
        full.disk.full_at_bytes = None
        await cluster.wait_equal(5)

    Cluster().run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_voters_without_descriptors_do_not_stop(seed: int) -> None:
    """Segments, removals, votes, and a snapshot that replaces the log of one of the voters."""

    async def scenario(cluster: Cluster) -> None:
        leader = await fill(cluster)
        late = another(cluster, leader)
        await late.stop(power=False)
        late.lose_disk()
        await cluster.start(late.node_id)
        for node in cluster.nodes.values():
            node.disk.refusing = 0.5
        for _ in range(60):
            with trio.move_on_after(1):
                await cluster.create(await cluster.wait_active(10), 3)
            await trio.sleep(0.1)
        assert [node.failure for node in cluster.nodes.values()] == [None] * 3
        for node in cluster.nodes.values():
            node.disk.refusing = 0.0
        await cluster.wait_equal(40)
        await cluster.create(await cluster.wait_active(10), 3)
        await cluster.wait_equal(5)
        assert late.journal.base.index > 10

    small_snapshots(seed).run(scenario)


def test_a_voter_whose_disk_fails_stops_and_the_others_go_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        await cluster.create(leader, 3)
        leader.disk.failing_syncs = 1
        await cluster.create(leader, 3)
        await leader.stopped.wait()
        assert isinstance(leader.failure, StorageError)
        other = await cluster.wait_active(2)
        assert await cluster.create(other, 3)
        await leader.stop(power=True)
        await cluster.start(leader.node_id)
        await cluster.wait_equal()

    Cluster().run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_who_cannot_write_the_beginning_of_its_term_lets_another_lead(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        await cluster.create(leader, 3)
        full, _ = (node for node in cluster.nodes.values() if node is not leader)
        full.disk.full_at_bytes = full.disk.used_bytes() + 45  # space for one vote only
        await leader.stop(power=False)
        await trio.sleep(0.6)
        await cluster.start(leader.node_id)
        assert await cluster.wait_active(10) is not full
        full.disk.full_at_bytes = None
        if full.failure is not None:  # no space for another vote
            await full.stop(power=False)
            await cluster.start(full.node_id)

    Cluster(3, seed).run(scenario)
