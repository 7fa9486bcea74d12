"""Transactions that no client ends, on three workers."""

from dataplane.coordinators.transaction.transaction import State
from dataplane.coordinators.transaction.transaction_shard import Expected
from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from tests.dataplane.replication.together import Together, together

COUNT = 50
TIMEOUT_MS = 5000


def test_many_transactions_are_aborted_together() -> None:
    """Each abort waits for other replicas: one after another, the last would wait for long."""

    async def scenario(cluster: Together) -> None:
        topic = await cluster.worker(1).internal_topics.ensure(TRANSACTION_STATE)
        await cluster.create("t", (1,))
        leader = topic.partitions[0].leader
        coordinator = cluster.worker(leader).transactions
        await cluster.until(lambda: 0 in coordinator.shards)
        for number in range(COUNT):
            begun = await coordinator.init_producer_id(f"x-{number}", TIMEOUT_MS, None)
            producer = Expected(begun.producer_id, begun.producer_epoch)
            assert not await coordinator.add_to(f"x-{number}", producer, [("t", 0)])
        assert coordinator.counts()[State.ONGOING] == COUNT
        await cluster.until(lambda: coordinator.counts()[State.ONGOING] < COUNT)
        began = cluster.worker(leader).clock.monotonic()
        await cluster.until(lambda: not coordinator.counts()[State.ONGOING])
        assert cluster.worker(leader).clock.monotonic() - began < 0.02

    together(
        scenario,
        transaction_state_log_num_partitions=1,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=6000,
    )
