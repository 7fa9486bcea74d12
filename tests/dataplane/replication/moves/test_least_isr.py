"""min.insync.replicas is at most the size of a move's target, as for the controller."""

from tests.dataplane.replication.moves.moving import start
from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.together import Together, together


def test_the_only_replica_accepts_records_while_it_moves() -> None:
    async def scenario(cluster: Together) -> None:
        await cluster.create("t", (1,), min_insync_replicas=2)
        await cluster.kill(2)
        await start(cluster, "t", 2)
        await cluster.until(lambda: cluster.replica(1, "t").state.adding == (2,))
        await fill(await cluster.connect(1), "t", 3)
        assert cluster.replica(1, "t").high_watermark == 3
        await cluster.restart(2)
        await cluster.until(lambda: cluster.state("t", 2).replicas == (2,))
        await cluster.until(lambda: cluster.replica(2, "t").is_leader)
        assert cluster.replica(2, "t").high_watermark == 3

    together(scenario)
