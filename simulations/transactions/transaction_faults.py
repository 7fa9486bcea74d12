"""Faults of narrow worlds of transactions: an order of events that random faults rarely reach.

| kind | what happens |
|---|---|
| `slow workers` | packets between workers are late: markers, but not requests of clients |
| `verified before a loss` | a batch is verified before the state of its transaction is lost |
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import trio

from metaquorum.dataplane.coordinators.partitioning import partition_of
from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from metaquorum.quorum.controller.leaders import elect_leaders
from metaquorum.runtime.interfaces import Runtime
from metaquorum.simulations.cluster.faults import ActiveFault, FaultFunction, delayed
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.replication.crossing_faults import REPLICATED, Interleaving
from metaquorum.simulations.replication.replica_faults import ReplicaFaults
from metaquorum.simulations.replication.replicas import PartitionHistory, Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.transactions.transaction_checkers import TransactionsEnd
from metaquorum.simulations.transactions.transactional_clients import (
    CrashError,
    RefusedError,
    TransactionalClient,
)

SLOW_WORKERS: Final = "slow workers"
SLOW_WORKERS_S: Final = (0.005, 0.01)  # delays of packets between workers
VERIFIED_BEFORE_LOSS: Final = "verified before a loss"
VERIFIED: Final = "verified"  # name and transactional id of the client
TIMEOUT_MS: Final = 5_000
# Time in which a coordinator answers, looks for open transactions, or appends a batch.
HANDLED_S: Final = 0.3


def fault_kinds(cluster_state: ReplicatedClusterState) -> Mapping[str, FaultFunction]:
    return {
        **ReplicaFaults(cluster_state).kinds,
        SLOW_WORKERS: partial(slow_workers, cluster_state),
        VERIFIED_BEFORE_LOSS: partial(verified_before_loss, cluster_state),
    }


def unclean_internal_topics() -> AbstractContextManager[None]:
    """Let clients ask for unclean elections of internal topics, which controllers refuse.

    Otherwise only a worker that has lost power, and with it all verifications, becomes a
    coordinator whose states may be lost, unless an answer to a worker takes as long as that.
    """
    return swapped(elect_leaders, "is_internal", lambda _: lambda name: False)


async def slow_workers(cluster_state: ReplicatedClusterState, fault: ActiveFault) -> None:
    names = [worker.name for worker in cluster_state.workers]
    pairs = [(one, other) for one in names for other in names if one != other]
    await delayed(fault, pairs, SLOW_WORKERS_S)


async def verified_before_loss(cluster_state: ReplicatedClusterState, fault: ActiveFault) -> None:
    """Let a leader become the coordinator before it gets the answer of the one before it.

    leader asks the coordinator -> the answer is late -> the leader is elected uncleanly as the
    coordinator, with a log that ends before the transaction -> the answer arrives
    """
    this = Interleaving(cluster_state, fault)
    await this.until(this.all_serve)
    client = TransactionalClient(
        cluster_state, VERIFIED, cluster_state.world.stream(VERIFIED), VERIFIED, TIMEOUT_MS
    )
    work = _VerifiedBeforeLoss(this, client)
    machine = cluster_state.world.machine(VERIFIED)
    fate = machine.start(work.client_works)
    await work.play()
    if machine.running:
        machine.kill()
    await fate.done.wait()
    if fate.error is not None:
        raise fate.error


class _VerifiedBeforeLoss:
    def __init__(self, this: Interleaving, client: TransactionalClient) -> None:
        self._this = this
        self._client = client
        self._place: Place | None = None
        self._is_known = trio.Event()  # the first transaction has ended
        self._is_cut = trio.Event()

    async def client_works(self, runtime: Runtime) -> None:
        client = self._client
        try:
            await client.learn_level(runtime)
            await client.init_producer(runtime)
            for number in range(2):
                if number:
                    self._is_known.set()
                    await self._is_cut.wait()
                transaction = await client.begin(runtime)
                while self._place is None:
                    await self._this.world.sleep(0.01)
                values = client.new_values(transaction, self._place, 1)
                await client.produce(
                    runtime, transaction, REPLICATED, self._place, values, [b"key"]
                )
                if not number:
                    await client.end(runtime, transaction, commits=True)
        except (CrashError, RefusedError) as error:
            client.say(f"{error!r}")
        client.close_links()

    def _states(self) -> PartitionHistory | None:
        cluster_history = self._this.cluster_state.cluster_history
        topic = cluster_history.image.topic(TRANSACTION_STATE)
        if topic is None:
            return None
        index = partition_of(VERIFIED, len(topic.partitions))
        return cluster_history.history(topic.topic_id, index)

    def _pending(self, worker_id: int, history: PartitionHistory) -> bool:
        partition = self._this.partition(worker_id, history)
        return partition is not None and bool(partition.log.producers.verifications.pending)

    def _is_fenced(self, worker_id: int) -> bool:
        return not self._this.cluster_state.cluster_history.image.is_live(worker_id)

    async def play(self) -> None:
        """Bring about the order of events, each as soon as the one before has happened."""
        this, fault = self._this, self._this.fault
        await this.until(lambda: (s := self._states()) is not None and this.state(s).leader > 0)
        states = self._states()
        if states is None:
            return
        coordinator = this.state(states).leader
        replicas = [*this.state(states).replicas]
        if len(replicas) < 2:
            return
        leader, *others = [each for each in replicas if each != coordinator]
        (history,) = await this.topic((leader,), records=0)
        self._place = history.place
        this.cluster_state.checker(TransactionsEnd).must_end.add(history.place)
        await this.until(self._is_known.is_set)

        def is_replicated() -> bool:
            ends = {this.end(each, states) for each in replicas}
            return len(ends) == 1 and len(this.state(states).isr) == len(replicas)

        await this.world.sleep(HANDLED_S)  # its end is written, too
        await this.until(is_replicated)
        this.stall_replication(coordinator, leader)
        before = this.end(coordinator, states)
        self._is_cut.set()
        is_asked = await this.until(
            lambda: (
                self._pending(leader, history) and this.high_watermark(coordinator, states) > before
            )
        )
        await this.world.sleep(HANDLED_S)
        is_asked = is_asked and self._pending(leader, history)
        for worker_id in (*others, coordinator):
            this.part_from_controller(worker_id)
            await this.until(partial(self._is_fenced, worker_id))
        await this.until(lambda: this.state(states).leader < 0)
        await this.client.elect(leader, states, unclean=True)
        is_elected = await this.until(lambda: this.leads(leader, states))
        await this.world.sleep(HANDLED_S)
        this.heal_replication(coordinator, leader)
        await this.world.sleep(HANDLED_S)
        if is_asked and is_elected:
            fault.count()
        this.heal()
