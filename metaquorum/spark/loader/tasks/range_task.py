"""A range is read and written: the work of a task, on an executor or in a worker process.

An attempt writes a file of its own name, and then creates the result of the range, which names it.
Of attempts at the same range, one creates the result; the others delete what they wrote and return
that result. An attempt that dies leaves a file that no result names.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias

from metaquorum.spark.gaps import RangeReport
from metaquorum.spark.loader.errors import LoaderError
from metaquorum.spark.loader.storage.interface import Storage
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.loader.table.layout import result_path, staged_path
from metaquorum.spark.loader.table.range_result import RangeResult, StagedFile
from metaquorum.spark.loader.tasks.parquet_file import ParquetFile
from metaquorum.spark.loader.tasks.task_spec import RangeTask, TaskContext
from wire.primitives.frozen import frozen

if TYPE_CHECKING:
    import pyarrow as pa


@frozen
class TaskProgress:
    """So far, of one attempt: `position` is the offset that comes next."""

    position: int
    records: int
    bytes: int
    throttled_ms: int


class Reader(Protocol):
    """Batches of a range, in order; the report is there at their end."""

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
    """The range has a result, which is returned; so it has if it had one before."""
    table = Table(storage)
    if (known := table.result(context.staging, task.index)) is not None:
        return _checked(known, task)
    began = time.monotonic()
    attempt = secrets.token_hex(4)
    path = staged_path(context.staging, task.index, attempt)
    reader = open_reader(context, task, on_progress)
    file = _write(storage, path, context, task, reader)
    report = reader.report
    assert report is not None
    rows = 0 if file is None else file.rows
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
        None,
        report,
        round((time.monotonic() - began) * 1000),
    )
    try:
        storage.create(result_path(context.staging, task.index), result.to_bytes())
    except FileExistsError:
        if file is not None:
            storage.delete(file.path)
        winner = table.result(context.staging, task.index)
        if winner is None:
            raise LoaderError(
                f"the result of {task.range.name} has vanished from {context.output}: was the "
                "load discarded meanwhile?"
            ) from None
        return _checked(winner, task)
    return result


def _checked(result: RangeResult, task: RangeTask) -> RangeResult:
    if not result.is_of(task.range):
        raise LoaderError(
            f"the result that is there for {task.range.name} is of another range; "
            "run the load with --discard-unfinished"
        )
    return result


def _write(
    storage: Storage,
    path: str,
    context: TaskContext,
    task: RangeTask,
    batches: Iterable[pa.RecordBatch],
) -> StagedFile | None:
    """None: there is no record. A file that is not finished is not left."""
    file: ParquetFile | None = None
    try:
        for batch in batches:
            if file is None:
                file = ParquetFile(
                    storage.open_output(path),
                    path,
                    batch.schema,
                    compression=context.settings.compression,
                    metadata=_metadata(task),
                )
            file.write(batch)
        return None if file is None else file.close()
    except BaseException:
        if file is not None:
            file.discard()
        raise


def _metadata(task: RangeTask) -> dict[str, str]:
    """What the file's path says, for whoever has the file alone."""
    range_ = task.range
    return {
        "metaquorum.topic": range_.topic,
        "metaquorum.partition": str(range_.partition),
        "metaquorum.start_offset": str(range_.start),
        "metaquorum.end_offset": str(range_.end),
    }
