"""Task of a Spark job: loads the ranges of a lane one after the other. Does not import pyspark.

Ranges are the data of the job, which Spark may keep in files. Addresses and credentials of the
cluster are in the closure, which Spark keeps in memory.
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
    """Yield the index of each range and the reason why it could not be loaded; "": it was loaded.

    Stops the lane after a failure. Any error that is not in EXPECTED, a failure of the executor, is
    raised, so that Spark repeats the task.
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
