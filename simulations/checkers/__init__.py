"""Checkers of one node: one small class each, with the name of its invariant.

Imports `harness` and `kernel`. No I/O. `all` lists the checkers; those of clusters are in `cluster`
and `replication`.
"""
