"""Files of one attempt at a range: its records, and the records with rejected values."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from metaquorum.spark.loader.storage.interface import Storage
from metaquorum.spark.loader.table.layout import rejected_staged_path, staged_path
from metaquorum.spark.loader.table.range_result import StagedFile
from metaquorum.spark.loader.tasks.parquet_file import ParquetFile
from metaquorum.spark.loader.tasks.task_spec import RangeTask, TaskContext
from metaquorum.spark.value_schemas import ValueDecoder, open_decoder, split

if TYPE_CHECKING:
    import pyarrow as pa


def write_range(
    storage: Storage, context: TaskContext, task: RangeTask, batches: Iterable[pa.RecordBatch]
) -> tuple[StagedFile | None, StagedFile | None]:
    """Write the batches, and return the files of the records and of the rejected records.

    A file is None if it would have no row. After an error, unfinished files are discarded.
    """
    attempt = secrets.token_hex(4)
    spec = context.settings.value_schema
    decoder = None if spec is None else open_decoder(spec, context.registry_auth)
    rows = LazyFile(storage, context, task, staged_path(context.staging, task.index, attempt))
    side = LazyFile(
        storage, context, task, rejected_staged_path(context.staging, task.index, attempt)
    )
    try:
        for batch in batches:
            if decoder is None:
                rows.write(batch)
            else:
                for kept, rejected in split_batch(batch, decoder, context):
                    rows.write(kept)
                    side.write(rejected)
        return rows.close(), side.close()
    except BaseException:
        rows.discard()
        side.discard()
        raise


def split_batch(
    batch: pa.RecordBatch, decoder: ValueDecoder, context: TaskContext
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield decoded and rejected records; columns read only for the latter are dropped."""
    settings = context.settings
    unwanted = set(settings.read_columns) - set(settings.file_columns)
    for kept, rejected in split(batch, decoder):
        yield kept.select([name for name in kept.schema.names if name not in unwanted]), rejected


class LazyFile:
    """A Parquet file that is created at its first row."""

    def __init__(self, storage: Storage, context: TaskContext, task: RangeTask, path: str) -> None:
        self._storage = storage
        self._compression = context.settings.compression
        self._task = task
        self._path = path
        self._file: ParquetFile | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._file is None:
            self._file = ParquetFile(
                self._storage.open_output(self._path),
                self._path,
                batch.schema,
                compression=self._compression,
                metadata=_metadata(self._task),
            )
        self._file.write(batch)

    def close(self) -> StagedFile | None:
        return None if self._file is None else self._file.close()

    def discard(self) -> None:
        if self._file is not None:
            self._file.discard()


def _metadata(task: RangeTask) -> dict[str, str]:
    """Return the metadata of the file: the same facts as its path."""
    range_ = task.range
    return {
        "metaquorum.topic": range_.topic,
        "metaquorum.partition": str(range_.partition),
        "metaquorum.start_offset": str(range_.start),
        "metaquorum.end_offset": str(range_.end),
    }
