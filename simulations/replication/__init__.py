"""Scenarios of clusters with replicated topics: clients, faults, and checkers of the replicas.

Imports `cluster`, `workloads` and below. No I/O. Start reading at `replication_scenario` or
`crossings`, the scenarios; `probes` observes the partitions, `replica_checkers` checks them.
"""
