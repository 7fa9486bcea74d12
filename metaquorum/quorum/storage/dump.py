"""Content of a journal segment or a snapshot as rows of plain data, for `log dump`.

Files are only read, and may belong to a running node, whose incomplete write then appears as a torn
tail. Content after damage is not decoded: the last row gives the position of the damage.

A batch takes effect if the log ends at its expected offset and the batch was proposed in the term
of its entry. Every replica drops other batches; the rows mark them if that is known (`Offsets`).
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from metaquorum.metadata.batch import Batch, decode_batch
from metaquorum.metadata.records import MetadataRecord, RecordError, schema_of, unpack
from metaquorum.quorum.storage.framing import HEADER_BYTES, frame_bytes, is_torn, read_frame
from metaquorum.quorum.storage.journal import MAGIC as JOURNAL_MAGIC
from metaquorum.quorum.storage.journal_ops import (
    NO_VOTE,
    Begin,
    Closed,
    Entry,
    HardState,
    Op,
    Reset,
    Truncate,
    decode_ops,
)
from metaquorum.quorum.storage.snapshot import MAGIC as SNAPSHOT_MAGIC
from metaquorum.quorum.storage.snapshot import unpack_records
from metaquorum.wire.primitives.types import uuid_to_text

Row: TypeAlias = dict[str, Any]

MAX_SEGMENT_BYTES: Final = 64 << 20  # several times the size of a full segment
MAGIC_BYTES: Final = len(JOURNAL_MAGIC)


@dataclass
class Offsets:
    """End offset of the metadata after each entry, where it is known."""

    end: int | None = None
    by_index: dict[int, int] = field(default_factory=dict)

    def begin(self, index: int) -> None:
        self.end = 0 if index == 0 else self.by_index.get(index, self.end)

    def truncate(self, end_index: int) -> None:
        self.end = self.by_index.get(end_index - 1)

    def dropped(self, entry: Entry, batch: Batch) -> str | None:
        """Return why replicas drop the batch; None if it takes effect or if that is unknown."""
        if batch.term != entry.term:
            return f"it was proposed in term {batch.term}"
        if self.end is not None and batch.expected_offset != self.end:
            return f"the log ended at offset {self.end}"
        self.end = batch.end_offset
        return None

    def note(self, index: int) -> None:
        if self.end is not None:
            self.by_index[index] = self.end


def is_journal(head: bytes) -> bool:
    return head.startswith(JOURNAL_MAGIC)


def is_snapshot(head: bytes) -> bool:
    return head.startswith(SNAPSHOT_MAGIC)


def journal_rows(data: bytes, offsets: Offsets) -> Iterator[Row]:
    """Yield a row for each operation; a row with `damage` or `torn_bytes` is the last."""
    position = 0
    while position < len(data):
        frame = read_frame(JOURNAL_MAGIC, data, position)
        if frame is None:
            left = len(data) - position
            if position and is_torn(JOURNAL_MAGIC, data, position):
                yield {"position": position, "torn_bytes": left}
            else:
                yield _damage(position, "unreadable frame")
            return
        try:
            ops = decode_ops(frame.body)
        except ValueError as error:
            yield _damage(position, str(error))
            return
        for op in ops:
            yield {"position": position, "frame": frame.sequence} | _op_row(op, offsets)
        position = frame.end


def _op_row(op: Op, offsets: Offsets) -> Row:
    match op:
        case Entry():
            return _entry_row(op, offsets)
        case HardState():
            return {"op": "vote", "term": op.term, "vote": _vote(op.vote)}
        case Truncate():
            offsets.truncate(op.end_index)
            return {"op": "truncate", "end_index": op.end_index, "last_term": op.last_term}
        case Reset():
            offsets.end = offsets.by_index.get(op.index)
            return {"op": "reset", "index": op.index, "term": op.term}
        case Begin():
            offsets.begin(op.index)
            return {
                "op": "begin",
                "format": op.format,
                "cluster_id": op.cluster_id,
                "index": op.index,
                "term": op.term,
                "current_term": op.hard_state.term,
                "vote": _vote(op.hard_state.vote),
            }
        case Closed():
            return {"op": "closed"}


def _vote(vote: int) -> int | None:
    return None if vote == NO_VOTE else vote


def _entry_row(entry: Entry, offsets: Offsets) -> Row:
    row: Row = {"op": "entry", "index": entry.index, "term": entry.term}
    if entry.payload:  # an entry without payload marks the beginning of a term
        try:
            row["batch"] = _batch_row(entry, decode_batch(entry.payload), offsets)
        except RecordError as error:
            row["damage"] = str(error)
    offsets.note(entry.index)
    return row


def _batch_row(entry: Entry, batch: Batch, offsets: Offsets) -> Row:
    return {
        "base_offset": batch.expected_offset,
        "end_offset": batch.end_offset,
        "proposer": batch.proposer,
        "sequence": batch.sequence,
        "bytes": len(batch.body),
        "dropped": offsets.dropped(entry, batch),
        "records": [record_row(record) for record in batch.records()],
    }


def snapshot_rows(path: str) -> Iterator[Row]:
    """Yield a row for the header, each record, and the end; a row with `damage` is the last."""
    count = position = sequence = 0
    with open(path, "rb") as file:
        while True:
            header = file.read(HEADER_BYTES)
            size = frame_bytes(SNAPSHOT_MAGIC, header)
            frame = size and read_frame(SNAPSHOT_MAGIC, header + file.read(size - HEADER_BYTES), 0)
            if not frame or frame.sequence != sequence:
                yield _damage(position, "unreadable frame")
                return
            kind, body = bytes(frame.body[:1]), bytes(frame.body[1:])
            try:
                rows, is_end = _snapshot_frame(kind, body, count)
            except RecordError as error:
                yield _damage(position, str(error))
                return
            for row in rows:
                yield {"position": position} | row
            position += frame.end
            if is_end:
                if left := os.fstat(file.fileno()).st_size - position:
                    yield _damage(position, f"{left} bytes after the end")
                return
            count += len(rows) if kind == b"R" else 0
            sequence += 1


def _snapshot_frame(kind: bytes, body: bytes, count: int) -> tuple[list[Row], bool]:
    """Return the rows of a frame, and whether it is the last. Raises RecordError if malformed."""
    if kind == b"R":
        rows = [{"op": "record", "record": record_row(each)} for each in unpack_records(body)]
        return rows, False
    match unpack(body):
        case (int(form), str(cluster_id), int(end), int(index), int(term)) if kind == b"H":
            header = {"format": form, "cluster_id": cluster_id, "end_offset": end}
            return [{"op": "snapshot", **header, "index": index, "term": term}], False
        case (int(records),) if kind == b"F" and records == count:
            return [{"op": "end", "records": records}], True
        case (int(records),) if kind == b"F":
            raise RecordError(f"{count} records, expected {records}")
    raise RecordError("frame of unknown kind")


def _damage(position: int, what: str) -> Row:
    return {"position": position, "damage": what}


def record_row(record: MetadataRecord) -> Row:
    """Return the type and fields of a record, with ids in the form of Kafka's tools."""
    schema = schema_of(record)
    fields = {
        each.name: "[hidden]" if each.is_secret else _plain(getattr(record, each.name))
        for each in schema.fields
    }
    return {"type": type(record).__name__.removesuffix("Record"), **fields}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return uuid_to_text(value)
    if hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
