"""Metrics of the groups that a worker coordinates."""

from collections import Counter
from typing import Final

from metaquorum.dataplane.coordinators.group.group_coordinator import GroupCoordinator
from metaquorum.dataplane.coordinators.group.rebalancing import GroupState
from metaquorum.dataplane.coordinators.hosted_shard import State
from metaquorum.dataplane.prometheus.budgets import add_budget
from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.dataplane.prometheus.group_lags import GroupLags
from metaquorum.dataplane.prometheus.slices import Slices
from metaquorum.dataplane.worker.context import Worker

SLICE_GROUPS: Final = 2000

_GROUPS: Final = "kafka_coordinator_group_groupmetadatamanager_num"
_COORDINATOR: Final = "kafka_server_group_coordinator_metrics_"


async def add_groups(page: Page, worker: Worker, lags: GroupLags, slices: Slices) -> None:
    coordinator, now = worker.groups, worker.clock.monotonic()
    states = await _count_states(coordinator, slices)
    page.add(_GROUPS + "groups", states.total())
    for state in GroupState:
        page.add(f"{_GROUPS}groups{state.value.lower()}", states[state])
    shards = coordinator.shards.values()
    page.add(_GROUPS + "offsets", sum(shard.offsets.offset_count for shard in shards))
    statistics = coordinator.statistics
    rebalances, loads = statistics.rebalance_times, statistics.load_times
    for name, count in (
        ("offset_commit_count", statistics.committed_count),
        ("offset_expiration_count", statistics.expired_count),
        ("offset_deletion_count", statistics.deleted_count),
        ("group_completed_rebalance_count", rebalances.count),
    ):
        page.add(_COORDINATOR + name, count)
    page.add_times("metaquorum_group_rebalance_ms", rebalances, now)
    partitions = coordinator.runtime.counts()
    for each in (State.LOADING, State.ACTIVE, State.FAILED):
        page.add(_COORDINATOR + "num_partitions", partitions[each], state=each.value)
    average_s = loads.total_s / loads.count if loads.count else 0.0
    (most_s,) = loads.quantiles([1.0], now)
    page.add(_COORDINATOR + "partition_load_time_avg", round(average_s * 1000, 3))
    page.add(_COORDINATOR + "partition_load_time_max", round(most_s * 1000, 3))
    page.add("metaquorum_group_partition_loads_total", loads.count)
    page.add("metaquorum_group_memory_bytes", coordinator.budget.used_bytes)
    page.add("metaquorum_group_offset_memory_bytes", coordinator.offsets_budget.used_bytes)
    for budget in (coordinator.budget, coordinator.offsets_budget):
        add_budget(page, budget)
    found = await lags.collect(slices)
    for lag in found.lags:
        of = {"group": lag.group, "topic": lag.topic, "partition": lag.partition}
        page.add("metaquorum_group_lag_records", lag.records, **of)
        if lag.seconds is not None:
            page.add("metaquorum_group_lag_seconds", round(lag.seconds, 3), **of)
    page.add("metaquorum_metrics_left_out", found.left_out, what="group lags")


async def _count_states(coordinator: GroupCoordinator, slices: Slices) -> Counter[GroupState]:
    """Count the groups by state; a group with committed offsets only is Empty."""
    states: Counter[GroupState] = Counter()
    for shard in list(coordinator.shards.values()):
        states[GroupState.EMPTY] += shard.offsets.group_count
        for number, group in enumerate(list(shard.groups.values()), 1):
            states[group.state] += 1
            states[GroupState.EMPTY] -= shard.offsets.has_committed(group.group_id)
            if number % SLICE_GROUPS == 0:
                await slices.rest()
    return states
