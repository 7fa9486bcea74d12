"""Producer snapshots: the producer state of a log at one offset, in `<offset>.snapshot`.

    version int16 (1) · crc uint32 (CRC-32C of all that follows) · entries: count int32, each
        producer_id int64 · epoch int16 · last_sequence int32 · last_offset int64 ·
        offset_delta int32 · timestamp int64 · coordinator_epoch int32 · txn_first_offset int64
    then our extension:  b"MQ01" · for each entry: count int8 of earlier batches, oldest first, each
        last_sequence int32 · last_offset int64 · offset_delta int32 · timestamp int64 ·
    then for each entry the timestamp int64 of its last batch

Kafka stores one batch per producer in this file: after a restart of a Kafka broker, a duplicate of
an earlier batch is an error. The extension adds the other four after the entries. Kafka's reader
covers the whole file with its checksum but ignores the extension, so each side reads the other's
snapshots. `timestamp` in the entries is the time of the producer's last append, which decides its
expiry.
"""

from collections.abc import Iterable
from struct import Struct
from struct import error as struct_error
from typing import Final

from metaquorum.dataplane.log.segments.producers import (
    NO_SEQUENCE,
    REMEMBERED_BATCHES,
    BatchMetadata,
    ProducerEntry,
    ProducerStateTable,
)
from metaquorum.runtime.interfaces import Buffer
from metaquorum.wire.records.crc import crc32c

_VERSION: Final = 1
_HEAD: Final = Struct(">hI")
_COUNT: Final = Struct(">i")
_ENTRY: Final = Struct(">qhiqiqiq")
_EXTENSION: Final = b"MQ01"
_MARK: Final = Struct(">iqiq")
_TIME: Final = Struct(">q")


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the content of a snapshot file with these producers."""
    body = bytearray()
    extension = bytearray(_EXTENSION)
    times = bytearray()
    count = 0
    for entry in entries:
        count += 1
        last = entry.batches[-1] if entry.batches else BatchMetadata(NO_SEQUENCE, -1, 0, -1)
        body += _ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            entry.last_seen_ms,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        )
        earlier = entry.batches[:-1]
        extension.append(len(earlier))
        for mark in earlier:
            extension += _MARK.pack(*mark)
        times += _TIME.pack(last.timestamp)
    body[:0] = _COUNT.pack(count)
    if count:
        body += extension + times
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: Buffer) -> ProducerStateTable:
    """Decode a snapshot file. Raises ValueError if it is malformed or truncated.

    The entries take at most ten times the memory of the file: counts are checked against its size.
    """
    if len(data) < _HEAD.size + _COUNT.size:
        raise ValueError(f"a snapshot cannot have {len(data)} bytes")
    view = memoryview(data)
    version, crc = _HEAD.unpack_from(view)
    body = view[_HEAD.size :]
    if version != _VERSION:
        raise ValueError(f"unknown snapshot version {version}")
    if crc32c(body) != crc:
        raise ValueError("the checksum does not match")
    (count,) = _COUNT.unpack_from(body)
    if not 0 <= count <= (len(body) - _COUNT.size) // _ENTRY.size:
        raise ValueError(f"{count} entries do not fit into {len(body)} bytes")
    end = _COUNT.size + count * _ENTRY.size
    entries = [_entry(fields) for fields in _ENTRY.iter_unpack(body[_COUNT.size : end])]
    if bytes(body[end : end + len(_EXTENSION)]) == _EXTENSION:
        try:
            _read_extension(body, end + len(_EXTENSION), entries)
        except (struct_error, IndexError):
            raise ValueError("the extension with earlier batches is truncated") from None
    return ProducerStateTable(entries)


def _entry(fields: tuple[int, ...]) -> ProducerEntry:
    producer_id, epoch, sequence, offset, delta, seen_ms, coordinator, transaction = fields
    marks = [] if offset < 0 else [BatchMetadata(sequence, offset, delta, seen_ms)]
    return ProducerEntry(producer_id, epoch, seen_ms, marks, coordinator, transaction)


def _read_extension(body: memoryview, at: int, entries: list[ProducerEntry]) -> None:
    for entry in entries:
        count = body[at]
        at += 1
        if count >= REMEMBERED_BATCHES:
            raise ValueError(f"{count} earlier batches of one producer are too many")
        marks = []
        for _ in range(count):
            marks.append(BatchMetadata(*_MARK.unpack_from(body, at)))
            at += _MARK.size
        entry.batches[:0] = marks
    for entry in entries:
        (timestamp,) = _TIME.unpack_from(body, at)
        at += _TIME.size
        if entry.batches:
            entry.batches[-1] = entry.batches[-1]._replace(timestamp=timestamp)
