"""A lane of ranges, one after the other, on an executor. No pyspark in here.

Tasks come to executors in the data of a job, and what they need to know of the cluster in its
closure: Spark keeps data of jobs in files, and closures in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from metaquorum.spark.loader.storage.interface import open_storage
from metaquorum.spark.loader.tasks.cluster_readers import cluster_readers
from metaquorum.spark.loader.tasks.range_task import load_range
from metaquorum.spark.loader.tasks.task_spec import RangeTask, TaskContext
from metaquorum.spark.loader.tasks.worker import EXPECTED


def run_lanes(
    context: TaskContext, lanes: Iterable[Sequence[RangeTask]]
) -> Iterator[tuple[int, str]]:
    """Of each range its index, and why it could not be loaded; "": it has a result.

    What is no failure of a range, but of the executor, is raised, for Spark to try again.
    """
    storage = open_storage(context.output, context.storage_options)
    with cluster_readers(context.fetch.connecting) as open_reader:
        for lane in lanes:
            for task in lane:
                try:
                    load_range(storage, context, task, open_reader, lambda progress: None)
                except EXPECTED as error:
                    yield task.index, str(error) or type(error).__name__
                    break
                yield task.index, ""
