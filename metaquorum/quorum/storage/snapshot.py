"""Snapshots of the metadata image on disk, which replace the journal before them.

A snapshot is a file of frames (`framing.py`), numbered from 0; the first byte of each body is its
kind:

    H  msgpack `[format, cluster_id, end_offset, index, term]`: end offset of the image, and
       position of the last entry of the replicated log that it contains
    R  metadata records, packed one after the other
    F  msgpack `[records]`: number of records; the last frame

A snapshot is written to a temporary file, synced, renamed, and its folder synced: a file with a
final name is complete, unless it was damaged later. The newest two snapshots are kept, and the
journal from the older one on: if the newer snapshot is damaged, the older one and the journal
contain the same image.
"""

import os
from collections.abc import Iterator
from typing import Final

import msgpack

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import (
    UNPACK_LIMITS,
    MetadataRecord,
    NewerVersionError,
    RecordEncoder,
    RecordError,
    record_from,
    unpack,
)
from metaquorum.quorum.storage.framing import (
    HEADER_BYTES,
    DamagedError,
    encode_frame,
    frame_bytes,
    read_frame,
)
from metaquorum.quorum.storage.journal_ops import LogPosition
from metaquorum.runtime.interfaces import Disk, File, StorageError
from metaquorum.wire.primitives.frozen import frozen

FORMAT: Final = 1
MAGIC: Final = b"MQS\x01"
SUFFIX: Final = ".snapshot"
TEMPORARY: Final = ".tmp"
DAMAGED: Final = ".damaged"
CHUNK_BYTES: Final = 16 << 10  # records of a frame, plus one record; takes about 3 ms to replay
MAX_CHUNK_RECORDS: Final = 500
SNAPSHOTS_KEPT: Final = 2


@frozen
class SnapshotName:
    """File of a snapshot. Its name contains the end offset and position, as does its header."""

    path: str
    end_offset: int
    position: LogPosition


@frozen
class SnapshotHeader:
    cluster_id: str
    end_offset: int
    position: LogPosition


def snapshot_path(directory: str, end_offset: int, position: LogPosition) -> str:
    name = f"{end_offset:020d}-{position.index:020d}-{position.term:010d}{SUFFIX}"
    return os.path.join(directory, name)


def snapshots(disk: Disk, directory: str) -> list[SnapshotName]:
    """Return the snapshots in a directory, newest first, ignoring other files."""
    found = []
    for name in disk.list(directory):
        parts = name.removesuffix(SUFFIX).split("-")
        if name.endswith(SUFFIX) and len(parts) == 3 and all(part.isdecimal() for part in parts):
            end_offset, index, term = (int(part) for part in parts)
            path = os.path.join(directory, name)
            found.append(SnapshotName(path, end_offset, LogPosition(index, term)))
    return sorted(found, key=lambda each: each.position.index, reverse=True)


def write_snapshot(
    disk: Disk, directory: str, image: MetadataImage, position: LogPosition
) -> SnapshotName:
    """Write a snapshot durably.

    `position`: position of the log entry whose batch was the last to be replayed into `image`.
    Blocking: call in `Disk.run`. Raises OSError, without a snapshot, if the disk fails.
    """
    path = snapshot_path(directory, image.end_offset, position)
    temporary = path + TEMPORARY
    try:
        file = disk.create_private(temporary)
        try:
            size_bytes = 0
            for sequence, body in enumerate(_bodies(image, position)):
                frame = encode_frame(MAGIC, sequence, body)
                file.write(frame, size_bytes)
                size_bytes += len(frame)
            file.sync()
        finally:
            file.close()
        disk.rename(temporary, path)
    except OSError:
        if disk.exists(temporary):
            disk.remove(temporary)
        raise
    disk.sync_dir(directory)
    return SnapshotName(path, image.end_offset, position)


def _bodies(image: MetadataImage, position: LogPosition) -> Iterator[bytes]:
    header = (FORMAT, image.cluster_id, image.end_offset, position.index, position.term)
    yield b"H" + msgpack.packb(header)
    count = 0
    chunk = bytearray(b"R")
    chunk_records = 0
    encode = RecordEncoder(image.features).encode  # the snapshot may be sent to other voters
    for record in image.records():
        chunk += encode(record)
        chunk_records += 1
        if len(chunk) >= CHUNK_BYTES or chunk_records == MAX_CHUNK_RECORDS:
            yield bytes(chunk)
            count += chunk_records
            chunk, chunk_records = bytearray(b"R"), 0
    if chunk_records:
        yield bytes(chunk)
    yield b"F" + msgpack.packb((count + chunk_records,))


def tidy_up(disk: Disk, directory: str, keep: int = SNAPSHOTS_KEPT) -> list[SnapshotName]:
    """Remove unfinished snapshots and all but the newest `keep`, which are returned.

    Blocking: call in `Disk.run`.
    """
    for name in disk.list(directory):
        if name.endswith(SUFFIX + TEMPORARY):
            disk.remove(os.path.join(directory, name))
    found = snapshots(disk, directory)
    for old in found[keep:]:
        disk.remove(old.path)
    disk.sync_dir(directory)
    return found[:keep]


def set_aside(disk: Disk, path: str) -> None:
    """Rename a damaged snapshot so that it is no longer used. Blocking: call in `Disk.run`."""
    disk.rename(path, path + DAMAGED)
    disk.sync_dir(os.path.dirname(path))


class SnapshotReader:
    """Reader of one snapshot: `header`, then `next_records` until it returns None.

    All methods, and the constructor, are blocking (call them in `Disk.run`) and raise DamagedError
    if the snapshot is damaged, or StorageError if it cannot be read.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._path = path
        self._position = 0
        self._sequence = 0
        self._count = 0
        try:
            self._file: Final[File] = disk.open(path)
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}") from error
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def next_records(self) -> list[MetadataRecord] | None:
        """Return the next records; None after the last one. Checks their number."""
        start = self._position
        kind, body = self._next_body()
        try:
            if kind == b"R":
                records = unpack_records(body)
                self._count += len(records)
                return records
            if kind == b"F":
                if unpack(body) != (self._count,):
                    raise RecordError(
                        f"it has {self._count} records, another number than in its last frame"
                    )
                if self._file.size() != self._position:
                    raise RecordError("bytes after the end")
                return None
            raise RecordError("frame of unknown kind")
        except NewerVersionError as error:
            raise StorageError(f"cannot read {self._path}: {error}") from None
        except RecordError as error:
            raise self._damaged(start, str(error)) from None

    def close(self) -> None:
        self._file.close()

    def _read_header(self) -> SnapshotHeader:
        kind, body = self._next_body()
        try:
            row = unpack(body)
        except RecordError as error:
            raise self._damaged(0, str(error)) from None
        match row:
            case (int(form), *_) if kind == b"H" and form > FORMAT:
                raise StorageError(
                    f"{self._path} has format {form} of a newer version; this version reads format"
                    f" {FORMAT}; start the newer version"
                )
            case (1, str(cluster_id), int(end_offset), int(index), int(term)) if kind == b"H":
                return SnapshotHeader(cluster_id, end_offset, LogPosition(index, term))
        raise self._damaged(0, "the snapshot header is malformed")

    def _next_body(self) -> tuple[bytes, bytes]:
        try:
            header = self._file.read(HEADER_BYTES, self._position)
            size_bytes = frame_bytes(MAGIC, header) or 0
            frame = read_frame(MAGIC, self._file.read(size_bytes, self._position), 0)
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error}") from error
        if frame is None or frame.sequence != self._sequence:
            raise self._damaged(self._position, "unreadable frame")
        self._position += frame.end
        self._sequence += 1
        return bytes(frame.body[:1]), bytes(frame.body[1:])

    def _damaged(self, position: int, what: str) -> DamagedError:
        return DamagedError(f"{self._path} is damaged at byte {position}: {what}")


def unpack_records(data: bytes) -> list[MetadataRecord]:
    """Return the records packed in `data`. Raises RecordError if they are malformed."""
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(data), 1), **UNPACK_LIMITS)
    unpacker.feed(data)
    records = []
    try:
        while unpacker.tell() < len(data):
            records.append(record_from(unpacker.unpack()))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise RecordError(f"not msgpack ({error!r})") from None
    return records
