"""Tasks: each reads and writes one range, in a worker process or on a Spark executor.

Imports the sibling packages `table` and `storage`, pyarrow, and the reader of ranges; no pyspark.
I/O: the network through the reader, files through a `Storage`, and the pipes of `worker`. Start
with `range_task`.
"""
