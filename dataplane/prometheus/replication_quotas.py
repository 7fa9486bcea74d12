"""Metrics of replication quotas (KIP-73): throttled rates, their limits, and the replicas' lag."""

from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.dataplane.quotas.replication_quota import UNLIMITED
from metaquorum.dataplane.replication.isr_manager import IsrManager


def add_replication_quotas(page: Page, isr_manager: IsrManager) -> None:
    quotas = isr_manager.quotas
    now = quotas.monotonic()
    for quota, side in ((quotas.leader, "leader"), (quotas.follower, "follower")):
        rate = round(quota.rate(now), 3)
        page.add(f"kafka_server_{side}replication_byte_rate", rate)
        page.add("metaquorum_replication_throttled_bytes_total", quota.bytes, side=side)
        if quota.rate_limit != UNLIMITED:
            page.add("metaquorum_replication_throttled_rate_limit", quota.rate_limit, side=side)
    page.add("metaquorum_replica_lag_sum", isr_manager.fetchers.sum_of_lags())
