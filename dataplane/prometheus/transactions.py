"""Metrics of the transactions that a worker coordinates, and of verifications that it asks for.

The coordinator keeps its counts by state, so the cost grows with its partitions, not with its ids.
"""

from typing import Final

from metaquorum.dataplane.coordinators.hosted_shard import State as ShardState
from metaquorum.dataplane.coordinators.transaction.transaction import State
from metaquorum.dataplane.prometheus.budgets import add_budget
from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.dataplane.worker.context import Worker

# States that records can have; the others are only ever pending.
STATES: Final = tuple(
    state for state in State if state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)
)

_COORDINATOR: Final = "kafka_server_transaction_coordinator_metrics_"
_MARKERS: Final = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
_VERIFIER: Final = "kafka_server_addpartitionstotxnmanager_verification"


def add_transactions(page: Page, worker: Worker) -> None:
    coordinator, now = worker.transactions, worker.clock.monotonic()
    counts = coordinator.counts()
    for state in STATES:
        page.add("metaquorum_transactional_ids", counts[state], state=state.title)
    page.add("metaquorum_transaction_memory_bytes", coordinator.budget.used_bytes)
    add_budget(page, coordinator.budget)
    statistics = coordinator.statistics
    for outcome, count in (
        ("commit", statistics.committed_count),
        ("abort", statistics.aborted_count),
    ):
        page.add("metaquorum_transactions_ended_total", count, outcome=outcome)
    page.add("metaquorum_transactions_timed_out_total", statistics.timed_out_count)
    markers, shards = coordinator.markers, coordinator.shards.values()
    page.add_times("metaquorum_transaction_markers_ms", statistics.marker_times, now)
    page.add("metaquorum_transaction_marker_retries_total", markers.retry_count)
    page.add(_MARKERS + "unknowndestinationqueuesize", markers.leaderless_count)
    unwritten_count = sum(shard.unwritten_count for shard in shards)
    page.add(_MARKERS + "logappendretryqueuesize", unwritten_count)
    partitions, loads = coordinator.runtime.counts(), statistics.load_times
    for each in (ShardState.LOADING, ShardState.ACTIVE, ShardState.FAILED):
        page.add("metaquorum_transaction_partitions", partitions[each], state=each.value)
    average_s = loads.total_s / loads.count if loads.count else 0.0
    (most_s,) = loads.quantiles([1.0], now)
    page.add(_COORDINATOR + "partition_load_time_avg", round(average_s * 1000, 3))
    page.add(_COORDINATOR + "partition_load_time_max", round(most_s * 1000, 3))
    page.add("metaquorum_transaction_partition_loads_total", loads.count)
    verifier = worker.transaction_verifier
    page.add(_VERIFIER + "failurerate_count", verifier.failed_count)
    page.add_times(_VERIFIER + "timems", verifier.times, now)
