"""Checkers of one node: small classes, each with the id of the invariant that it checks.

Decision 015 states the invariants. Imports `harness` and `kernel`. No I/O. `all` lists the
checkers; those of clusters are in `cluster` and `replication`.
"""
