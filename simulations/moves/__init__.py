"""Worlds in which partitions move between workers all the time, with their checkers.

Imports `replication`, `transactions` and what those import; `scenarios` and the mutants import it.
No I/O but that of the simulated machines.
"""
