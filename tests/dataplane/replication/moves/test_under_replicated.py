"""A partition that moves is not under-replicated for the replicas that the move adds (KIP-352)."""

from tests.dataplane.replication.moves.moving import start
from tests.dataplane.replication.together import Together, together


def test_adding_replicas_do_not_count_as_behind() -> None:
    async def scenario(cluster: Together) -> None:
        await cluster.create("t", (1, 3))
        await cluster.kill(2)
        await start(cluster, "t", 1, 2, 3)
        leader = cluster.replica(1, "t")
        await cluster.until(lambda: leader.state.adding == (2,))
        assert len(leader.isr) < len(leader.replicas)
        assert not leader.is_under_replicated
        await cluster.until(lambda: set(leader.isr) == {1, 3})
        await cluster.restart(2)
        await cluster.until(lambda: leader.state.isr == (1, 2, 3))
        await cluster.kill(2)
        await cluster.until(lambda: leader.state.isr == (1, 3))
        assert leader.is_under_replicated
        assert not cluster.replica(3, "t").is_under_replicated

    together(scenario)
