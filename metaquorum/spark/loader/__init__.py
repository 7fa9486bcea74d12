"""Load offset ranges of topics into Parquet files, so that any death is recovered by a re-run.

A plan fixes the ranges; a task for each range reads it and writes a file; a manifest commits them
all at once. `recovery` has the rules, `coordinator` the driver, `range_task` the task; `layout`
says where everything lies. Tasks run in processes of this machine (`process_runner`) or on Spark's
executors (`spark_runner`).

Imports the rest of `metaquorum.spark`, `metaquorum.client` and below, `wire` and pyarrow; pyspark
in `spark_runner` only, fsspec in `object_storage` only. I/O: files in `local_storage`,
`object_storage` and `driver_lock`, the network in `range_task` and `planner`, processes in
`process_runner`.
"""
