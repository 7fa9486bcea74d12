"""What must always hold of one node, one small class each, named by its invariant.

Imports `harness` and `kernel`. No I/O. `all` lists them; those of clusters are in `cluster` and
`replication`.
"""
