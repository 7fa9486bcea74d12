"""Writer of one Parquet file by row groups, which computes the file's checksum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from metaquorum.spark.loader.storage.interface import OutputFile
from metaquorum.spark.loader.table.range_result import StagedFile
from metaquorum.wire.primitives.types import Buffer
from metaquorum.wire.records.crc import crc32c

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# A row group ends at the first of these limits; a task holds it besides the fetch response.
ROW_GROUP_ROWS: Final = 1 << 20
ROW_GROUP_BYTES: Final = 128 << 20

_LEVEL_BYTES: Final = 4  # a definition and a repetition level of 16 bits
_ARRAY_BYTES: Final = 256

# Differences of consecutive offsets and timestamps are small, so delta encoding suits them. Most
# keys and values are distinct, so a dictionary would not make them smaller.
_DELTA_COLUMNS: Final = ("offset", "timestamp")
_DICTIONARY_COLUMNS: Final = ("timestampType",)
# Minimum and maximum of keys and values would not help queries, and cost a comparison each.
_STATISTICS_COLUMNS: Final = ("offset", "timestamp", "timestampType")


class ChecksummedFile:
    """A file object for pyarrow that counts bytes and computes their checksum."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file
        self.bytes = 0
        self.crc32c = 0
        self.closed = False
        self.is_discarded = False

    def write(self, data: Buffer) -> int:
        view = memoryview(data)
        if self.is_discarded:
            return view.nbytes
        self.crc32c = crc32c(view, self.crc32c)
        self.bytes += view.nbytes
        self._file.write(view)
        return view.nbytes

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        """Do nothing: `write` does not buffer."""

    def close(self) -> None:
        """Mark the object as closed for pyarrow; the owner closes the file itself."""
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class ParquetFile:
    """Writer of one Parquet file; the owner calls `close` or `discard`.

    It owns `file`, and discards it if the constructor fails.
    """

    def __init__(
        self,
        file: OutputFile,
        path: str,
        schema: pa.Schema,
        *,
        compression: str,
        metadata: Mapping[str, str],
    ) -> None:
        import pyarrow.parquet as pq

        self._path = path
        self._output = file
        self._counted = ChecksummedFile(file)
        self._batches: list[pa.RecordBatch] = []
        self._batch_rows = self._batch_bytes = 0
        self._rows = 0
        self._schema = schema.with_metadata({**(schema.metadata or {}), **metadata})
        options: dict[str, Any] = {
            "compression": compression,
            "use_dictionary": _present(schema, _DICTIONARY_COLUMNS),
            "write_statistics": _present(schema, _STATISTICS_COLUMNS),
            "column_encoding": dict.fromkeys(
                _present(schema, _DELTA_COLUMNS), "DELTA_BINARY_PACKED"
            ),
        }
        try:
            self._writer: pq.ParquetWriter = pq.ParquetWriter(
                self._counted, self._schema, **options
            )
        except BaseException:
            file.discard()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._batch_rows += batch.num_rows
        self._batch_bytes += held_bytes(batch)
        if self._batch_rows >= ROW_GROUP_ROWS or self._batch_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def close(self) -> StagedFile:
        """Write the rest and close the file, which is then durable; return its facts."""
        if self._batches:
            self._write_row_group()
        self._writer.close()
        self._output.close()
        return StagedFile(self._path, self._counted.bytes, self._rows, self._counted.crc32c)

    def discard(self) -> None:
        self._batches.clear()
        self._output.discard()
        self._counted.is_discarded = True
        self._writer.close()  # its footer is dropped

    def _write_row_group(self) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(self._batches).replace_schema_metadata(self._schema.metadata)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._rows += table.num_rows
        self._batches.clear()
        self._batch_rows = self._batch_bytes = 0


def held_bytes(batch: pa.RecordBatch) -> int:
    """Return the memory of the batch, with what the writer needs for a row group of it.

    A column may have no bytes (nulls), or a bit for each item, but the writer makes two levels for
    each item of a list, and an array has a size of its own.
    """
    from pyarrow import types as pa_types

    waiting, items, arrays = list(batch.columns), 0, 0
    while waiting:
        array = waiting.pop()
        arrays += 1
        items += len(array)
        kind = array.type
        if pa_types.is_struct(kind):
            waiting += [array.field(at) for at in range(kind.num_fields)]
        elif pa_types.is_map(kind):
            waiting += [array.keys, array.items]
        elif pa_types.is_list(kind):
            waiting.append(array.values)
    return int(batch.nbytes) + _LEVEL_BYTES * items + _ARRAY_BYTES * arrays


def _present(schema: pa.Schema, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name in schema.names]
