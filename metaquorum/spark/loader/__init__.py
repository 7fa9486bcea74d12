"""Load offset ranges of topics into Parquet files, so that any death is recovered by a re-run.

A plan fixes the ranges; a task for each range reads it and writes a file; a manifest commits them
all at once. `table.recovery` has the rules, `coordinator` the driver, `tasks.range_task` the task;
`table.layout` says where everything lies. Tasks run in processes of this machine (`process_runner`)
or on Spark's executors (`spark_runner`). `load_job` puts all of it together.

Imports the rest of `metaquorum.spark`, `metaquorum.client` and below, `wire` and pyarrow; pyspark
in `spark_runner` only, fsspec in `storage.object_storage` only. I/O: files in `storage` and
`driver_lock`, the network in `tasks` and `planner`, processes in `process_runner`.
"""
