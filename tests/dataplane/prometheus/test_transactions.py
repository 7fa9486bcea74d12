"""Metrics of transactions: states, outcomes, markers that wait, verifications, late ones."""

from pathlib import Path
from typing import Any

import trio

from metaquorum.config.definition import Scope
from metaquorum.dataplane.coordinators.transaction.transaction import State
from metaquorum.dataplane.coordinators.transaction.transaction_shard import Expected
from metaquorum.dataplane.log.segments.markers import MARKER_BYTES
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.prometheus.collector import LATE_AFTER_MS
from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.dataplane.prometheus.transactions import STATES, add_transactions
from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from metaquorum.metadata.records import ConfigRecord
from metaquorum.quorum.controller.decision import Decision
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.prometheus.test_collector import (
    Samples,
    exchange_with,
    get,
    read,
    samples_of,
    scrape,
    value,
)
from tests.dataplane.replication.together import NODES, Together, run_together, together
from tests.dataplane.serving import (
    RawClient,
    Simulated,
    batch_of,
    in_trio,
    produce_message,
    serving,
    simulated,
)

CONFIGS = {"transaction_state_log_num_partitions": 1}
IDS = "metaquorum_transactional_ids"
ENDED = "metaquorum_transactions_ended_total"
TIMED_OUT = "metaquorum_transactions_timed_out_total"
MARKERS = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
VERIFICATION = "kafka_server_addpartitionstotxnmanager_verification"
COORDINATOR = "kafka_server_transaction_coordinator_metrics_"
REPLICAS = "kafka_server_replicamanager_"
TIMEOUT_MS = 60_000
VERIFIES, TOPIC = 11, 2
LATE = "partitionswithlatetransactionscount"
MAX_TIMEOUT_MS, METRICS_PORT = 2000, 9464


def page_of(worker: Any) -> Samples:
    page = Page()
    add_transactions(page, worker)
    return read(b"".join(page.texts()).decode())


def states(samples: Samples) -> dict[str, float]:
    """Return the states that transactional ids have."""
    found = {state.title: value(samples, IDS, state=state.title) for state in STATES}
    return {title: count for title, count in found.items() if count}


async def begin(worker: Any, name: str, topic: str = "t", timeout_ms: int = TIMEOUT_MS) -> Expected:
    begun = await worker.transactions.init_producer_id(name, timeout_ms, None)
    producer = Expected(begun.producer_id, begun.producer_epoch)
    assert await worker.transactions.add_to(name, producer, [(topic, 0)]) == ErrorCode.NONE
    return producer


async def end(worker: Any, name: str, producer: Expected, *, is_commit: bool = True) -> None:
    ended = await worker.transactions.end(name, producer, is_commit=is_commit, client_version=0)
    assert ended.code == ErrorCode.NONE


async def produce(client: RawClient, name: str, producer: Expected, topic: str = "t") -> int:
    batch = batch_of(
        b"x",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    asked = produce_message(topic, batch, acks=-1)
    asked.transactional_id = name
    answer = await client.call(ApiKey.PRODUCE, asked, VERIFIES)
    return int(answer.responses[0].partition_responses[0].error_code)


@in_trio
async def test_states_outcomes_and_verifications_are_collected(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=True, **CONFIGS) as served:
        client, worker = await served.connect(), served.worker
        await client.create("t")
        await worker.internal_topics.ensure(TRANSACTION_STATE)
        while 0 not in worker.transactions.shards:
            await trio.lowlevel.checkpoint()
        before = await scrape(served)
        assert states(before) == {}
        assert value(before, VERIFICATION + "timems_count") == 0
        assert value(before, REPLICAS + "produceridcount") == 0
        open_, committed, aborted = [await begin(worker, name) for name in "oca"]
        for name, producer in (("c", committed), ("a", aborted)):
            assert await produce(client, name, producer) == ErrorCode.NONE
            await end(worker, name, producer, is_commit=name == "c")
        await worker.transactions.init_producer_id("e", TIMEOUT_MS, None)
        stranger = Expected(open_.producer_id + 1000, 0)
        assert await produce(client, "o", stranger) != ErrorCode.NONE
        while len(worker.transactions.markers):
            await trio.lowlevel.checkpoint()
        samples = await scrape(served)
        assert states(samples) == {
            "Empty": 1,
            "Ongoing": 1,
            "CompleteCommit": 1,
            "CompleteAbort": 1,
        }
        assert value(samples, ENDED, outcome="commit") == 1
        assert value(samples, ENDED, outcome="abort") == 1
        assert value(samples, TIMED_OUT) == 0
        assert value(samples, "metaquorum_transaction_markers_ms_count") == 2
        assert value(samples, "metaquorum_transaction_markers_ms_sum") > 0
        assert value(samples, "metaquorum_transaction_memory_bytes") > 1500
        assert value(samples, MARKERS + "unknowndestinationqueuesize") == 0
        assert value(samples, MARKERS + "logappendretryqueuesize") == 0
        assert value(samples, VERIFICATION + "failurerate_count") == 1
        assert value(samples, VERIFICATION + "timems_count") == 3
        assert value(samples, REPLICAS + "produceridcount") == 2
        assert value(samples, REPLICAS + LATE) == 0
        assert value(samples, "metaquorum_transaction_partitions", state="active") == 1
        assert value(samples, "metaquorum_transaction_partitions", state="failed") == 0
        assert value(samples, "metaquorum_transaction_partition_loads_total") == 1
        assert value(samples, COORDINATOR + "partition_load_time_max") > 0
        assert value(samples, COORDINATOR + "partition_load_time_avg") > 0


async def coordinated(cluster: Together) -> tuple[Any, int, int]:
    """Create `__transaction_state`; return its coordinator, and the numbers of the other two."""
    topic = await cluster.worker(1).internal_topics.ensure(TRANSACTION_STATE)
    leader = topic.partitions[0].leader
    worker = cluster.worker(leader)
    await cluster.until(lambda: 0 in worker.transactions.shards)
    others = [node_id for node_id in NODES if node_id != leader]
    return worker, others[0], others[1]


@together(**CONFIGS)
async def test_markers_wait_for_a_leader_and_completions_for_replicas(cluster: Together) -> None:
    worker, lost, _ = await coordinated(cluster)
    await cluster.create("t", (lost,))
    client = await cluster.connect(worker.worker_id)
    producer = await begin(worker, "x")
    await cluster.kill(lost)
    await cluster.until(lambda: cluster.state("t", worker.worker_id).leader < 0)
    isr = lambda: cluster.state(TRANSACTION_STATE, worker.worker_id).isr  # noqa: E731
    await cluster.until(lambda: len(isr()) == 2)
    await end(worker, "x", producer)
    await cluster.until(lambda: worker.transactions.markers.leaderless_count)
    waiting = page_of(worker)
    assert states(waiting) == {"PrepareCommit": 1}
    assert value(waiting, MARKERS + "unknowndestinationqueuesize") == 1
    assert value(waiting, ENDED, outcome="commit") == 1
    assert value(waiting, "metaquorum_transaction_markers_ms_count") == 0
    await cluster.until(lambda: worker.transactions.markers.retry_count > 3)
    assert value(page_of(worker), "metaquorum_transaction_marker_retries_total") > 3
    assert value(page_of(worker), MARKERS + "unknowndestinationqueuesize") == 1
    await set_min_isr(cluster, 3)
    await cluster.until(lambda: log_of(cluster, worker).config.min_insync_replicas == 3)
    await client.delete("t")  # so no marker is missing any longer
    shard = worker.transactions.shards[0]
    await cluster.until(lambda: shard.unwritten_count)
    refused = page_of(worker)
    assert states(refused) == {"PrepareCommit": 1}
    assert value(refused, MARKERS + "unknowndestinationqueuesize") == 0
    assert value(refused, MARKERS + "logappendretryqueuesize") == 1
    assert value(refused, "metaquorum_transaction_markers_ms_count") == 1
    await set_min_isr(cluster, 2)
    await cluster.until(lambda: worker.transactions.counts()[State.COMPLETE_COMMIT])
    done = page_of(worker)
    assert states(done) == {"CompleteCommit": 1}
    assert value(done, MARKERS + "logappendretryqueuesize") == 0
    assert value(done, ENDED, outcome="commit") == 1


def log_of(cluster: Together, worker: Any) -> Any:
    return cluster.replica(worker.worker_id, TRANSACTION_STATE)


async def set_min_isr(cluster: Together, least: int) -> None:
    """Set the value as a version without bounds of internal topics did."""
    record = ConfigRecord(int(Scope.TOPIC), TRANSACTION_STATE, "min.insync.replicas", str(least))
    running: list[Any] = [node for node in cluster.nodes.values() if node.machine.running]
    roles = [each.node.controller_role for each in running]
    (controller,) = [role.controller for role in roles if role.quorum.is_active]
    await controller._proposer.change(lambda _: Decision(None, [record]))


@together(**CONFIGS)
async def test_counts_by_state_follow_the_leader_of_the_partition(cluster: Together) -> None:
    worker, other, another = await coordinated(cluster)
    await cluster.create("t", (other,))
    await end(worker, "c", await begin(worker, "c"))
    await begin(worker, "o")
    await cluster.until(lambda: worker.transactions.counts()[State.COMPLETE_COMMIT])
    await cluster.kill(worker.worker_id)
    rest = [cluster.worker(node_id) for node_id in (other, another)]
    await cluster.until(lambda: any(each.transactions.shards for each in rest))
    (heir,) = [each for each in rest if each.transactions.shards]
    samples = page_of(heir)
    assert states(samples) == {"Ongoing": 1, "CompleteCommit": 1}
    assert value(samples, ENDED, outcome="commit") == 0  # which another worker decided
    assert value(samples, "metaquorum_transaction_partition_loads_total") == 1


@simulated(
    transactional_id_expiration_ms=10_000,
    transaction_remove_expired_transaction_cleanup_interval_ms=1000,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=1000,
    **CONFIGS,
)
async def test_transactions_that_time_out_are_counted_and_expired_ids_are_not(
    node: Simulated,
) -> None:
    client, worker = await node.connect(), node.worker
    await client.create("t")
    await worker.internal_topics.ensure(TRANSACTION_STATE)
    while 0 not in worker.transactions.shards:
        await node.world.sleep(0.01)
    await begin(worker, "x", timeout_ms=1000)
    assert states(page_of(worker)) == {"Ongoing": 1}
    while not worker.transactions.counts()[State.COMPLETE_ABORT]:
        await node.world.sleep(0.1)
    samples = page_of(worker)
    assert states(samples) == {"CompleteAbort": 1}
    assert value(samples, TIMED_OUT) == 1
    assert value(samples, ENDED, outcome="abort") == 1
    while worker.transactions.shards[0].transactions:
        await node.world.sleep(0.1)
    assert states(page_of(worker)) == {}


def test_partitions_with_late_transactions_are_counted_by_their_leader() -> None:
    """Such a transaction has no coordinator that would end it: verification was disabled."""

    async def scenario(cluster: Together) -> None:
        async def late(node_id: int) -> tuple[float, float]:
            address = f"node-{node_id}", METRICS_PORT
            page = samples_of(await exchange_with(cluster.runtime.network, address, get()))
            counts = [value(page, REPLICAS + name) for name in ("produceridcount", LATE)]
            return counts[0], counts[1]

        await cluster.create("t", (1, 2))
        client = await cluster.connect(1)
        assert await late(1) == (0, 0)
        assert await produce(client, "ghost", Expected(777, 0)) == ErrorCode.NONE
        assert await late(1) == (1, 0)
        await cluster.world.sleep(MAX_TIMEOUT_MS / 1000 + LATE_AFTER_MS / 1000 - 1)
        assert await late(1) == (1, 0)
        await cluster.world.sleep(2)
        assert await late(1) == (1, 1)
        assert await late(2) == (1, 0)  # a follower
        assert await late(3) == (0, 0)
        partition = cluster.replica(1, "t")
        marker = TransactionMarker(777, 0, 0, is_commit=False)
        partition.log.append_marker(marker, partition.leader_epoch, 1)
        partition.appended(MARKER_BYTES)
        assert await late(1) == (1, 0)

    run_together(
        scenario,
        transaction_max_timeout_ms=MAX_TIMEOUT_MS,
        transaction_partition_verification_enable="false",
        node_options=lambda node_id: {"metrics_listen": (f"node-{node_id}", METRICS_PORT)},
    )
