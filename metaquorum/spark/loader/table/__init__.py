"""The table in the output: plans, results of ranges and manifests, as values and as JSON.

Imports `metaquorum.spark.loader.storage`. I/O: in `committed_table` only, through a `Storage`.
Start with `layout` (paths in the output) and `recovery` (the next step of a driver).
"""
