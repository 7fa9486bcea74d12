"""Clusters with replicated topics: clients, faults, and what must hold among replicas.

Imports `cluster`, `workloads` and below. No I/O. `replication_scenario` and `crossings` are
scenarios; `probes` watches the shipped partitions, `replica_checkers` judges them.
"""
