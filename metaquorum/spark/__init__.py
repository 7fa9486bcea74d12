"""Load exact offset ranges of a Kafka-compatible cluster: into Spark, or into Parquet files.

An offset range [start, end) of one partition is the unit of work, of retry, of a data file and of
the report. A plan (`planning`) fixes the ranges, the topic ids and the leader epochs once. A task
reads its range (`range_reader`) by the plan alone, so that a repeated task reads the same records.
`source` is a PySpark data source, `loader` writes Parquet files.

Imports `metaquorum.client` over blocking sockets, `metaquorum.runtime`, `wire` and pyarrow; pyspark
only in `source` and `loader.spark_runner`. I/O: network through `metaquorum.client`, files in
`loader` only. Start with `range_reader`. Deliberately absent: trio, pysyncobj, msgpack, click,
rich, yaml and h11, because this package runs on Spark's executors without a node's dependencies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaquorum.spark.loader.load_job import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """Return `load`, imported at first use: executors that only read ranges need no loader."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from metaquorum.spark.loader.load_job import load

    return load
