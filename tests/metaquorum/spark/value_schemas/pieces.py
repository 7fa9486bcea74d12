"""Decoded pieces of a batch, checked and joined."""

from collections.abc import Sequence

import pyarrow as pa

from metaquorum.spark.value_schemas import Decoded, ValueDecoder
from metaquorum.spark.value_schemas.decoded import MAX_REASON_CHARACTERS


def decode_all(decoder: ValueDecoder, values: Sequence[bytes | None]) -> Decoded:
    """Return the pieces as one, after a check that each value is in one of them, in order."""
    pieces = list(decoder.decode(pa.array(values, pa.binary())))
    for piece in pieces:
        piece.columns.validate(full=True)
        assert piece.columns.schema == decoder.arrow_schema
        assert len(piece.kept) == piece.columns.num_rows
        assert len(piece.rejected) == len(piece.reasons)
        assert all(len(each.as_py()) <= MAX_REASON_CHARACTERS for each in piece.reasons)
    indices = [sorted([*p.kept.to_pylist(), *p.rejected.to_pylist()]) for p in pieces]
    assert [index for piece in indices for index in piece] == list(range(len(values)))
    rows = pa.Table.from_batches([piece.columns for piece in pieces], schema=decoder.arrow_schema)
    whole = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
    return Decoded(
        columns=whole[0],
        kept=pa.array([index for piece in pieces for index in piece.kept.to_pylist()], pa.int64()),
        rejected=pa.array(
            [index for piece in pieces for index in piece.rejected.to_pylist()], pa.int64()
        ),
        reasons=pa.array(
            [reason for piece in pieces for reason in piece.reasons.to_pylist()], pa.string()
        ),
    )
