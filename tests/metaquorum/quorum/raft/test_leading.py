"""Leadership, its loss, and the outcomes of proposals of a deposed leader."""

import pytest
import trio

from metaquorum.metadata.replicated_log import NotCommittedError, OutcomeUnknownError
from tests.metaquorum.quorum.raft.cluster import Cluster, Node


def term_of(cluster: Cluster) -> int:
    return max(node.voter.status.term for node in cluster.up())


def follower(cluster: Cluster) -> Node:
    leader = cluster.active()
    return next(node for node in cluster.up() if node is not leader)


@pytest.mark.slow
@pytest.mark.parametrize("silently", [False, True], ids=["cut", "stalled"])
def test_a_follower_that_was_cut_off_deposes_nobody_when_it_returns(silently: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        term = term_of(cluster)
        cluster.network.isolate(follower(cluster).node_id, silently=silently)
        for _ in range(10):
            await cluster.create(leader, 2)
            await trio.sleep(1)
        cluster.network.heal()
        await cluster.wait_equal()
        assert cluster.active() is leader
        assert term_of(cluster) == term

    Cluster().run(scenario)


def test_a_connection_that_closes_between_leader_and_follower_changes_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        term = term_of(cluster)
        for _ in range(20):
            cluster.network.close(leader.node_id, follower(cluster).node_id)
            await cluster.create(leader, 2)
            await trio.sleep(0.2)
        assert len(cluster.acknowledged) == 40
        assert term_of(cluster) == term

    Cluster().run(scenario)


def test_a_leader_that_nobody_answers_resigns_and_another_leads() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        cluster.network.isolate(leader.node_id, silently=True)
        began = trio.current_time()
        other = await cluster.until(lambda: cluster.active() is not leader and cluster.active())
        assert trio.current_time() - began < 2
        await cluster.until(lambda: not leader.voter.status.is_active, 2)
        assert await cluster.create(other, 3)
        cluster.network.heal()

    Cluster().run(scenario)


def test_what_a_cut_off_leader_took_is_refused_once_another_change_stands_in_its_place() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        await cluster.create(leader)
        cluster.network.isolate(leader.node_id, silently=True)
        name, proposal = cluster.propose(leader, leader.voter.status.end_offset)
        other = await cluster.until(lambda: cluster.active() is not leader and cluster.active())
        await cluster.create(other, 3)
        cluster.network.heal()
        with pytest.raises(NotCommittedError) as caught:
            await proposal.wait()
        assert caught.value.retry
        cluster.refused.append(name)

    Cluster().run(scenario)


def test_what_a_cut_off_leader_took_is_unknown_after_a_while() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        cluster.network.isolate(leader.node_id, silently=True)
        name, proposal = cluster.propose(leader, leader.voter.status.end_offset)
        cluster.unknown.append(name)
        with trio.fail_after(5), pytest.raises(OutcomeUnknownError):
            await proposal.wait()
        with pytest.raises(NotCommittedError):
            cluster.propose(leader, leader.voter.status.end_offset)
        cluster.network.heal()

    Cluster().run(scenario)


def test_a_read_barrier_shows_what_was_acknowledged_before_and_fails_where_nobody_answers() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        await cluster.create(leader, 5)
        began = trio.current_time()
        assert await leader.voter.read_barrier() == leader.loader.image.end_offset
        assert trio.current_time() - began < 0.03
        with pytest.raises(OutcomeUnknownError):
            await follower(cluster).voter.read_barrier()
        cluster.network.isolate(leader.node_id, silently=True)
        with trio.fail_after(3), pytest.raises(OutcomeUnknownError):
            await leader.voter.read_barrier()
        other = await cluster.until(lambda: cluster.active() is not leader and cluster.active())
        made = await cluster.create(other, 2)
        await other.voter.read_barrier()
        assert set(made) <= set(other.loader.image.topics)
        cluster.network.heal()

    Cluster().run(scenario)


def test_the_leader_knows_how_far_each_voter_is() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        lost = follower(cluster)
        assert lost.voter.status.replicas == ()
        await lost.stop(power=False)
        await trio.sleep(1)
        await cluster.create(leader, 5)
        replicas = {each.voter_id: each for each in leader.voter.status.replicas}
        assert set(replicas) == set(cluster.nodes)
        assert replicas[lost.node_id].lag == 5
        assert replicas[leader.node_id].lag == 0
        silent_ms = leader.clock.now_ms() - replicas[lost.node_id].answered_ms
        assert 900 < silent_ms < 1300
        await cluster.start(lost.node_id)
        await cluster.wait_equal()
        await trio.sleep(0.3)
        assert {each.lag for each in leader.voter.status.replicas} == {0}

    Cluster().run(scenario)


def test_an_idle_quorum_sends_heartbeats_and_nothing_else() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.wait_active()
        await trio.sleep(1)
        before = cluster.network.sent
        await trio.sleep(10)
        assert cluster.network.sent - before <= 2 * 2 * 105

    Cluster().run(scenario)


def test_whoever_waits_for_the_leadership_is_told_of_each_change() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        watcher = follower(cluster)
        known = watcher.voter.leadership
        await leader.stop(power=False)
        with trio.fail_after(2):
            while known.leader_id in (leader.node_id, None):
                known = await watcher.voter.wait_change(known)
        await cluster.start(leader.node_id)

    Cluster().run(scenario)


def test_a_leader_is_not_active_before_the_beginning_of_its_term_is_committed() -> None:
    def leading(nodes: list[Node]) -> Node | None:
        return next(
            (n for n in nodes if n.voter._core is not None and n.voter._core.is_leader), None
        )

    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.wait_active()
        behind = [node for node in cluster.nodes.values() if node is not leader]
        for node in behind:
            node.loader.delay_s = 0.003
        await cluster.create(leader, 100)
        await cluster.until(lambda: min(n.voter.status.commit_index for n in behind) > 100)
        await leader.stop(power=False)
        while (other := leading(behind)) is None:
            await trio.sleep(0.0005)
        cluster.network.isolate(other.node_id, silently=True)
        await cluster.until(lambda: other.loader.image.end_offset == 100)
        await trio.sleep(0.1)
        assert other.voter._core is not None
        assert other.voter._core.is_leader
        assert not other.voter.status.is_active
        cluster.network.heal()
        await cluster.wait_active()
        await cluster.start(leader.node_id)

    Cluster().run(scenario)
