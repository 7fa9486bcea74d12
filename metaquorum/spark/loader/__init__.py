"""Loader of offset ranges of topics into Parquet files; after a crash, a re-run completes the load.

A plan fixes the ranges, a task reads each range and writes a file, and a manifest commits all files
at once. `table.recovery` has the rules, `coordinator` the driver, `tasks.range_task` the task, and
`table.layout` the paths. Tasks run in processes of this machine (`process_runner`) or on Spark's
executors (`spark_runner`). Start with `load_job`, which combines these parts.

Imports the rest of `metaquorum.spark`, `metaquorum.client` and below, `wire` and pyarrow; pyspark
in `spark_runner` only, fsspec in `storage.object_storage` only. I/O: files in `storage` and
`driver_lock`, the network in `tasks` and `planner`, processes in `process_runner`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaquorum.spark.loader.load_job import committed_files, load, plan_load, read_report

__all__ = ["committed_files", "load", "plan_load", "read_report"]


def __getattr__(name: str) -> Any:
    """Return a name of `load_job`, imported at first use: tasks do not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from metaquorum.spark.loader import load_job

    return getattr(load_job, name)
