"""Transactions that no client ends, on three workers."""

from collections.abc import Callable

import trio

from metaquorum.dataplane.coordinators.transaction.transaction import State
from metaquorum.dataplane.coordinators.transaction.transaction_shard import Expected
from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from tests.dataplane.replication.together import Together, together

COUNT = 50
TIMEOUT_MS = 5000


@together(
    transaction_state_log_num_partitions=1,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=6000,
)
async def test_many_transactions_are_aborted_together(cluster: Together) -> None:
    """Each abort waits for other replicas: one after another, the last would wait for long."""
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


class LoopSteps(trio.abc.Instrument):
    """The largest growth of a count in one turn of the event loop."""

    def __init__(self, count: Callable[[], int]) -> None:
        self.most = self._last = 0
        self._count = count

    def before_io_wait(self, timeout: float) -> None:
        now = self._count()
        self.most, self._last = max(self.most, now - self._last), now


@together(
    transaction_state_log_num_partitions=1,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=6000,
)
async def test_aborts_of_large_transactions_are_not_all_in_one_turn_of_the_event_loop(
    cluster: Together,
) -> None:
    """The record of each takes up to 5 ms; 100 of them were encoded in one turn."""
    topic = await cluster.worker(1).internal_topics.ensure(TRANSACTION_STATE)
    await cluster.create("t", (1,))
    coordinator = cluster.worker(topic.partitions[0].leader).transactions
    await cluster.until(lambda: 0 in coordinator.shards)
    for number in range(COUNT):
        begun = await coordinator.init_producer_id(f"x-{number}", TIMEOUT_MS, None)
        producer = Expected(begun.producer_id, begun.producer_epoch)
        assert not await coordinator.add_to(f"x-{number}", producer, [("t", 0)])
    shard = coordinator.shards[0]
    turns = LoopSteps(lambda: sum(shard.is_pending(f"x-{each}") for each in range(COUNT)))
    trio.lowlevel.add_instrument(turns)
    await cluster.until(lambda: not coordinator.counts()[State.ONGOING])
    trio.lowlevel.remove_instrument(turns)
    assert 1 <= turns.most <= 4
