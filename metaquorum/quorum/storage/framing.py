"""Frames of journal segments and snapshots, each with its own checksums.

    magic 4 | body bytes 4 | sequence 8 | CRC-32C of the body 4 | CRC-32C of these 20 bytes 4 | body

An unreadable frame is either torn or damaged. A torn frame is the last write before a power loss:
it was never acknowledged, and recovery removes it. A damaged frame was synced and has changed
since: it may have been acknowledged, and recovery must not guess its content. A file grows by one
frame between two syncs. A frame is therefore torn if no readable frame follows and a part of it
never reached the disk: the file ends before the frame does, or one of its sectors is all zeros,
which is the content of a sector that was allocated but not written.
"""

import struct
from typing import Final, NamedTuple

from metaquorum.runtime.interfaces import Buffer, StorageError
from metaquorum.wire.records.crc import crc32c

MAX_BODY_BYTES: Final = 16 << 20
SECTOR_BYTES: Final = 512
_HEADER: Final = struct.Struct("<4sIQII")
_CHECKED: Final = struct.Struct("<4sIQI")
HEADER_BYTES: Final = _HEADER.size


class DamagedError(StorageError):
    """Raised if a file does not contain the bytes written; the message gives file and position."""


class Frame(NamedTuple):
    sequence: int
    body: memoryview
    end: int  # position after the frame


def encode_frame(magic: bytes, sequence: int, body: bytes) -> bytes:
    assert len(body) <= MAX_BODY_BYTES
    checked = _CHECKED.pack(magic, len(body), sequence, crc32c(body))
    return checked + struct.pack("<I", crc32c(checked)) + body


def frame_bytes(magic: bytes, header: Buffer) -> int | None:
    """Return the size of the frame that begins with `header`; None if it is not a header."""
    if len(header) < HEADER_BYTES:
        return None
    found, body_bytes, _, _, header_crc = _HEADER.unpack_from(header)
    if (
        found != magic
        or body_bytes > MAX_BODY_BYTES
        or crc32c(memoryview(header)[: _CHECKED.size]) != header_crc
    ):
        return None
    size: int = HEADER_BYTES + body_bytes
    return size


def read_frame(magic: bytes, data: Buffer, position: int) -> Frame | None:
    """Return the frame at `position`; None if there is no complete and valid frame."""
    view = memoryview(data)
    size = frame_bytes(magic, view[position : position + HEADER_BYTES])
    if size is None or position + size > len(view):
        return None
    _, _, sequence, body_crc, _ = _HEADER.unpack_from(view, position)
    body = view[position + HEADER_BYTES : position + size]
    if crc32c(body) != body_crc:
        return None
    return Frame(sequence, body, position + size)


def is_torn(magic: bytes, data: bytes, position: int) -> bool:
    """Return whether the bytes after `position`, which are not a valid frame, were never synced."""
    size = frame_bytes(magic, data[position : position + HEADER_BYTES])
    end = len(data) if size is None else position + size
    if end > len(data) or len(data) - position < HEADER_BYTES:
        return not _frame_follows(magic, data, position + 1)
    return _has_blank_sector(data, position, end) and not _frame_follows(magic, data, position + 1)


def _has_blank_sector(data: bytes, position: int, end: int) -> bool:
    start = position - position % SECTOR_BYTES
    view = memoryview(data)
    return any(
        not any(view[max(sector, position) : min(sector + SECTOR_BYTES, end)])
        for sector in range(start, end, SECTOR_BYTES)
    )


def _frame_follows(magic: bytes, data: bytes, position: int) -> bool:
    while (position := data.find(magic, position)) >= 0:
        if read_frame(magic, data, position) is not None:
            return True
        position += 1
    return False
