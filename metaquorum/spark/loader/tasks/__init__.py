"""What a task does with its range, in a worker process or on an executor of Spark's.

Imports the packages `table` and `storage` beside it, pyarrow, and the reader of ranges; no pyspark.
I/O: the network through the reader, files through a `Storage`, and the pipes of `worker`. Start
with `range_task`.
"""
