"""The files of a partition as rows of plain data, for `mq-server log dump`.

Batches of a segment, aborted transactions of a `.txnindex`, producers of a `.snapshot`.

The file is only read, and may belong to a running node. A batch with a wrong checksum is shown and
marked; after a batch without a valid header nothing is shown.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, TypeAlias

from metaquorum.dataplane.log.segments.aborted import ENTRY, ENTRY_BYTES, VERSION
from metaquorum.dataplane.log.segments.producers import NO_OFFSET
from metaquorum.dataplane.log.segments.snapshots import decode_snapshot
from metaquorum.wire.primitives.errors import KafkaError, WireError
from metaquorum.wire.records.batches import (
    HEADER_BYTES,
    PREFIX_BYTES,
    BatchHeader,
    TimestampType,
    batch_crc,
    parse_header,
)
from metaquorum.wire.records.records import Record, decode_marker, iter_records

Row: TypeAlias = dict[str, Any]
# Returns the fields of a record by key and value; None if they are of an unknown kind.
Decode: TypeAlias = Callable[[bytes | None, bytes | None], Row | None]

MAX_BATCH_BYTES: Final = 256 << 20
_MAGIC_AT: Final = 16
_SIZE_AT: Final = 8


def segment_rows(
    path: str, *, records: bool = False, decode: Decode | None = None
) -> Iterator[Row]:
    """Yield a row for each batch, with its records if `records`, their fields by `decode`.

    The row of a damaged batch has the problem in `damage`; the last row of a file that ends within
    a batch has the number of bytes of that batch in `torn_bytes`. Raises OSError if the file cannot
    be read.
    """
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        position = 0
        while position < end:
            row, size = _row(file, position, end, records, decode)
            yield {"position": position} | row
            if not size:
                return
            position += size


def aborted_rows(path: str) -> Iterator[Row]:
    """Yield a row for each aborted transaction of a `.txnindex`. Raises OSError."""
    with open(path, "rb") as file:
        position = 0
        while data := file.read(ENTRY_BYTES):
            if len(data) < ENTRY_BYTES:
                yield {"position": position, "torn_bytes": len(data)}
                return
            version, producer_id, first_offset, last_offset, stable = ENTRY.unpack(data)
            row: Row = {
                "position": position,
                "aborted_producer_id": producer_id,
                "first_offset": first_offset,
                "last_offset": last_offset,
                "last_stable_offset": stable,
            }
            if version != VERSION:
                row["damage"] = f"unknown version {version}"
            yield row
            position += ENTRY_BYTES


def producer_rows(path: str) -> Iterator[Row]:
    """Yield a row for each producer of a producer snapshot. Raises OSError."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        producers = decode_snapshot(data)
    except ValueError as error:
        yield {"position": 0, "damage": str(error)}
        return
    for entry in producers.entries.values():
        first_offset = entry.transaction_first_offset
        yield {
            "position": 0,
            "snapshot_producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.batches[-1].last_offset if entry.batches else NO_OFFSET,
            "last_timestamp": entry.last_seen_ms,
            "transaction_first_offset": None if first_offset == NO_OFFSET else first_offset,
        }


def _row(
    file: BinaryIO, position: int, end: int, records: bool, decode: Decode | None
) -> tuple[Row, int]:
    """Return the row of the batch at `position` and its size; size 0 ends the listing."""
    head = os.pread(file.fileno(), HEADER_BYTES, position)
    if len(head) < HEADER_BYTES:
        return {"torn_bytes": end - position}, 0
    size = PREFIX_BYTES + int.from_bytes(head[_SIZE_AT:PREFIX_BYTES], "big", signed=True)
    if not HEADER_BYTES <= size <= MAX_BATCH_BYTES or head[_MAGIC_AT] != 2:
        return {"damage": "no batch begins at this position"}, 0
    if position + size > end:
        return {"torn_bytes": end - position}, 0
    data = os.pread(file.fileno(), size, position)
    try:
        header = parse_header(data)
    except KafkaError as error:
        return {"damage": error.message}, 0
    row = _batch_row(header)
    if batch_crc(data, 0, size) != header.crc:
        return row | {"damage": "the checksum does not match"}, size
    if records:
        try:
            row["records"] = [_record_row(record, header, decode) for record in iter_records(data)]
        except (WireError, KafkaError) as error:
            row["damage"] = str(error)
    return row, size


def _batch_row(header: BatchHeader) -> Row:
    try:
        codec = header.codec.name.lower()
    except WireError as error:
        codec = str(error)
    is_create_time = header.timestamp_type is TimestampType.CREATE_TIME
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "leader_epoch": header.leader_epoch,
        "bytes": header.batch_bytes,
        "records_count": header.record_count,
        "codec": codec,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "create" if is_create_time else "append",
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.delete_horizon_ms,
    }


def _record_row(record: Record, header: BatchHeader, decode: Decode | None) -> Row:
    row: Row = {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": record.key,
        "value_bytes": None if record.value is None else len(record.value),
        "headers": [name for name, _ in record.headers],
    }
    if header.is_control:
        marker = decode_marker(record)
        row["marker"] = None if marker is None else marker.control_type.name.lower()
        row["coordinator_epoch"] = None if marker is None else marker.coordinator_epoch
    elif decode is not None and (fields := decode(record.key, record.value)) is not None:
        row["fields"] = fields
    return row
