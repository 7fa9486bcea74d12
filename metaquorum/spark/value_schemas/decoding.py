"""Decoding of the values of a batch in pieces: rows until some MB of memory, then one Arrow batch.

No value stops its topic: any error that a library raises for a value, while it is decoded or put
into a column, is the reason of its rejection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from metaquorum.spark.errors import LoadError
from metaquorum.spark.value_schemas.decoded import (
    MAX_REASON_CHARACTERS,
    TOMBSTONE,
    Decoded,
    RejectedValueError,
    bounded,
)
from metaquorum.spark.value_schemas.decoded_size import TEXT_BYTES, Meter

# Rows that are held as Python objects, by their estimated size. With the last of them, they take at
# most MAX_VALUE_BYTES more.
PIECE_BYTES: Final = 16 << 20
_REASON_BYTES: Final = TEXT_BYTES + MAX_REASON_CHARACTERS


def decode_each(
    values: pa.BinaryArray,
    schema: pa.Schema,
    decode_one: Callable[[bytes], Sequence[Any]],
    meter: Meter,
) -> Iterator[Decoded]:
    """Yield the decoded values in pieces of consecutive values, each of about PIECE_BYTES.

    `decode_one` returns the columns of a value, and charges `meter` with their size, or raises
    RejectedValueError. A null value (a tombstone) is rejected: a row of nulls would mean a value
    without fields.
    """
    piece = _Piece(schema)
    for index, value in enumerate(values.to_pylist()):
        if value is None:
            piece.reject(index, TOMBSTONE)
        else:
            meter.used = 0
            try:
                piece.keep(index, decode_one(value), meter.used)
            except RejectedValueError as error:
                piece.reject(index, error.reason)
            except (LoadError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - of a library, about these bytes
                piece.reject(index, _odd(error))
        if piece.bytes >= PIECE_BYTES:
            yield piece.decoded()
            piece = _Piece(schema)
    if piece.bytes:
        yield piece.decoded()


def _odd(error: Exception) -> str:
    return bounded(f"$: {type(error).__name__}: {error}")


class _Piece:
    """Rows and reasons of consecutive values; `bytes` is their estimated size."""

    def __init__(self, schema: pa.Schema) -> None:
        self.bytes = 0
        self._schema = schema
        self._rows: dict[int, Sequence[Any]] = {}
        self._reasons: dict[int, str] = {}

    def keep(self, index: int, row: Sequence[Any], size_bytes: int) -> None:
        self._rows[index] = row
        self.bytes += max(1, size_bytes)

    def reject(self, index: int, reason: str) -> None:
        self._reasons[index] = reason
        self.bytes += _REASON_BYTES

    def decoded(self) -> Decoded:
        columns = self._columns()
        rejected = sorted(self._reasons)
        return Decoded(
            columns=columns,
            kept=pa.array(self._rows, pa.int64()),
            rejected=pa.array(rejected, pa.int64()),
            reasons=pa.array([self._reasons[index] for index in rejected], pa.string()),
        )

    def _columns(self) -> pa.RecordBatch:
        """Return the rows as a batch; rows that Arrow refuses are moved to the rejected ones."""
        try:
            return self._batch(self._rows.values())
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - Arrow's, or of Python's integers
            for index, row in list(self._rows.items()):
                try:
                    self._batch([row])
                except MemoryError:
                    raise
                except Exception as error:  # noqa: BLE001
                    del self._rows[index]
                    self._reasons[index] = _odd(error)
        return self._batch(self._rows.values())

    def _batch(self, rows: Collection[Sequence[Any]]) -> pa.RecordBatch:
        columns = [
            pa.array([row[at] for row in rows], field.type) for at, field in enumerate(self._schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
