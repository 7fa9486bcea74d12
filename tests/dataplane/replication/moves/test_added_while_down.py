"""Three nodes: a move adds a replica to a worker that is down, and whose disk is new."""

from tests.dataplane.replication.moves.moving import start
from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.together import Together, together

RECORDS = 5


@together()
async def test_a_log_that_a_move_has_added_is_not_lost_although_the_disk_is_new(
    cluster: Together,
) -> None:
    await cluster.create("t", (1, 3))
    await fill(await cluster.connect(1), "t", RECORDS)
    await cluster.kill(2)
    cluster.nodes[2].machine.lose_disk()
    await start(cluster, "t", 1, 2)
    await cluster.restart(2)
    blank: set[tuple[int, ...]] = set()

    def has_moved() -> bool:
        state = cluster.state("t", 1)
        blank.add(state.blank)
        return bool(state.isr == (1, 2))

    await cluster.until(has_moved)
    assert blank == {()}
    assert list(cluster.worker(2).replica_manager.replication.ledger) == []
    await cluster.until(lambda: cluster.replica(2, "t").log.log_end_offset == RECORDS)
