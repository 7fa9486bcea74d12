"""Readers of a cluster's ranges; the tasks of a process share its connections, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from metaquorum.client.cluster import Cluster
from metaquorum.spark.cluster_access import open_cluster
from metaquorum.spark.loader.table.load_plan import TableSettings
from metaquorum.spark.loader.tasks.range_task import OnProgress, OpenReader, Reader, TaskProgress
from metaquorum.spark.loader.tasks.task_spec import RangeTask, TaskContext
from metaquorum.spark.options import Connecting, FetchOptions
from metaquorum.spark.range_reader import Progress, RangeReader


@contextmanager
def cluster_readers(connecting: Connecting) -> Iterator[OpenReader]:
    """Hold the connections while the block runs; the value opens a reader for each task.

    Raises ValueError if the addresses or the TLS files cannot be used.
    """
    with open_cluster(connecting) as cluster:

        def open_reader(context: TaskContext, task: RangeTask, on_progress: OnProgress) -> Reader:
            return _open(cluster, context, task, on_progress)

        yield open_reader


def _open(
    cluster: Cluster, context: TaskContext, task: RangeTask, on_progress: OnProgress
) -> RangeReader:
    def tell(progress: Progress) -> None:
        on_progress(
            TaskProgress(progress.position, progress.records, progress.bytes, progress.throttled_ms)
        )

    return RangeReader(
        cluster,
        task.range,
        file_options(context.fetch, context.settings),
        is_compacted=task.is_compacted,
        on_progress=tell,
    )


def file_options(fetch: FetchOptions, settings: TableSettings) -> FetchOptions:
    """Return the fetch options for the columns in the files, without topic and partition."""
    return replace(fetch, columns=settings.read_columns, include_headers=settings.include_headers)
