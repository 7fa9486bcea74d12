"""Work of a task, on an executor or in a worker process: read a range and write its file.

An attempt writes a file with a unique name, and then creates the result of the range, which names
the file. Of several attempts at a range, one creates the result; the others delete their files and
return that result. An attempt that dies leaves a file that no result names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias

from metaquorum.spark.gaps import RangeReport
from metaquorum.spark.loader.errors import LoaderError
from metaquorum.spark.loader.storage.interface import Storage
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.loader.table.layout import result_path
from metaquorum.spark.loader.table.range_result import RangeResult
from metaquorum.spark.loader.tasks.range_files import write_range
from metaquorum.spark.loader.tasks.task_spec import RangeTask, TaskContext
from metaquorum.wire.primitives.frozen import frozen

if TYPE_CHECKING:
    import pyarrow as pa


@frozen
class TaskProgress:
    """Progress of one attempt: `position` is the next offset to read."""

    position: int
    records: int
    bytes: int
    throttled_ms: int


class Reader(Protocol):
    """Batches of a range, in order; the report is set at the end."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    @property
    def report(self) -> RangeReport | None: ...


OnProgress: TypeAlias = Callable[[TaskProgress], None]
OpenReader: TypeAlias = Callable[[TaskContext, RangeTask, OnProgress], "Reader"]


def load_range(
    storage: Storage,
    context: TaskContext,
    task: RangeTask,
    open_reader: OpenReader,
    on_progress: OnProgress,
) -> RangeResult:
    """Load the range unless it has a result already, and return the result. Blocking.

    Raises LoaderError or the reader's LoadError if the range cannot be loaded.
    """
    table = Table(storage)
    if (known := table.result(context.staging, task.index)) is not None:
        return _checked(known, task)
    began = time.monotonic()
    reader = open_reader(context, task, on_progress)
    file, rejected = write_range(storage, context, task, reader)
    report = reader.report
    assert report is not None
    rows = sum(each.rows for each in (file, rejected) if each is not None)
    if rows != report.records:
        raise LoaderError(
            f"{task.range.name}: {report.records} records were read and {rows} written; "
            "this is a defect of metaquorum: please report it"
        )
    result = RangeResult(
        task.index,
        task.range.topic,
        task.range.partition,
        task.range.start,
        task.range.end,
        file,
        rejected,
        report,
        round((time.monotonic() - began) * 1000),
    )
    try:
        storage.create(result_path(context.staging, task.index), result.to_bytes())
    except FileExistsError:
        for each in (file, rejected):
            if each is not None:
                storage.delete(each.path)
        winner = table.result(context.staging, task.index)
        if winner is None:
            raise LoaderError(
                f"the result of {task.range.name} has disappeared from {context.output}: another "
                "driver may have discarded the load; run it again"
            ) from None
        return _checked(winner, task)
    return result


def _checked(result: RangeResult, task: RangeTask) -> RangeResult:
    if not result.is_of(task.range):
        raise LoaderError(
            f"the existing result for {task.range.name} belongs to another range; "
            "run the load with --discard-unfinished"
        )
    return result
