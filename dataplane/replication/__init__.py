"""Replication: followers that fetch from leaders, in-sync replicas, truncation and its ledger.

Imports `fetch`, `network`, `partition` and below. Network I/O in `leader_connection` only, disk I/O
through `log`. Start with `replica_manager` (the partitions of this worker), `replica_fetcher`
(followers) and `isr_manager` (leaders).
"""
