"""Snapshots: a whole image on disk, so that the journal before it need not be kept.

A file of frames (`framing.py`), numbered from 0; the first byte of each body says what it is:

    H  msgpack `[format, cluster_id, end_offset, index, term]`: the image's end offset, and the
       position of the last entry of the replicated log that it holds
    R  metadata records, packed one behind the other
    F  msgpack `[records]`: how many there were; nothing comes behind it

A snapshot is written under a temporary name, synced, renamed, and its folder synced; so one that
stands under its name is whole, or was damaged later. The newest two are kept, and the journal back
to the older one: when the newer one is found damaged, the older one and the journal give its image.
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
from metaquorum.runtime.interfaces import Disk, File, StorageError
from metaquorum.storage.framing import (
    HEADER_BYTES,
    DamagedError,
    encode_frame,
    frame_bytes,
    read_frame,
)
from metaquorum.storage.journal_ops import LogPosition
from wire.primitives.frozen import frozen

FORMAT: Final = 1
MAGIC: Final = b"MQS\x01"
SUFFIX: Final = ".snapshot"
TEMPORARY: Final = ".tmp"
DAMAGED: Final = ".damaged"
CHUNK_BYTES: Final = 16 << 10  # of records in a frame, and one record more: about 3 ms to replay
MAX_CHUNK_RECORDS: Final = 500
SNAPSHOTS_KEPT: Final = 2


@frozen
class SnapshotName:
    """A snapshot's file. Its name says what it holds; its header says so, too."""

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
    """The snapshots there are, newest first. Files that are none of ours are passed over."""
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
    """The snapshot is on disk, whole and durable. Slow: for `Disk.run`. OSError: it is not there.

    `position`: of the log entry whose batch was the last to be replayed into `image`.
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
    encode = RecordEncoder(image.features).encode  # other voters may be sent it
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
    """Only the newest `keep` snapshots are left, which are returned, and no unfinished ones.

    Slow: for `Disk.run`.
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
    """The damaged snapshot is none any more, but can be looked at. Slow: for `Disk.run`."""
    disk.rename(path, path + DAMAGED)
    disk.sync_dir(os.path.dirname(path))


class SnapshotReader:
    """One snapshot, read in slices: `header`, then `next_records` until it returns None.

    Every method may be slow (for `Disk.run`) and raises DamagedError, or StorageError.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._path = path
        self._position = 0
        self._sequence = 0
        self._count = 0
        try:
            self._file: Final[File] = disk.open(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error}") from error
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def next_records(self) -> list[MetadataRecord] | None:
        """The next records; None when all were read, and as many as were written."""
        start = self._position
        kind, body = self._next_body()
        try:
            if kind == b"R":
                records = unpack_records(body)
                self._count += len(records)
                return records
            if kind == b"F":
                if unpack(body) != (self._count,):
                    raise RecordError(f"{self._count} records are not what was written")
                if self._file.size() != self._position:
                    raise RecordError("bytes behind the end")
                return None
            raise RecordError("a frame of no known kind")
        except NewerVersionError as error:
            raise StorageError(f"{self._path} cannot be read: {error}") from None
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
                    f"{self._path} has format {form}, written by a newer version; this one reads"
                    f" format {FORMAT}"
                )
            case (1, str(cluster_id), int(end_offset), int(index), int(term)) if kind == b"H":
                return SnapshotHeader(cluster_id, end_offset, LogPosition(index, term))
        raise self._damaged(0, "no snapshot header")

    def _next_body(self) -> tuple[bytes, bytes]:
        try:
            header = self._file.read(HEADER_BYTES, self._position)
            size_bytes = frame_bytes(MAGIC, header) or 0
            frame = read_frame(MAGIC, self._file.read(size_bytes, self._position), 0)
        except OSError as error:
            raise StorageError(f"{self._path} cannot be read: {error}") from error
        if frame is None or frame.sequence != self._sequence:
            raise self._damaged(self._position, "a frame that cannot be read")
        self._position += frame.end
        self._sequence += 1
        return bytes(frame.body[:1]), bytes(frame.body[1:])

    def _damaged(self, position: int, what: str) -> DamagedError:
        return DamagedError(f"{self._path} is damaged at byte {position}: {what}")


def unpack_records(data: bytes) -> list[MetadataRecord]:
    """The records that are packed in `data`, one behind the other; RecordError."""
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(data), 1), **UNPACK_LIMITS)
    unpacker.feed(data)
    records = []
    try:
        while unpacker.tell() < len(data):
            records.append(record_from(unpacker.unpack()))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise RecordError(f"no msgpack ({error!r})") from None
    return records
