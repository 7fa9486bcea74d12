"""Frames: the pieces of which journal segments and snapshots are made, each checked by itself.

    magic 4 | body bytes 4 | sequence 8 | CRC-32C of the body 4 | CRC-32C of these 20 bytes 4 | body

Torn or damaged? A frame that cannot be read is either the last thing written before power went (it
never was acknowledged, and goes) or bytes that were once synced and have changed since (they may
have been acknowledged, and nothing may be guessed). A file only ever grows by one frame between two
syncs, so the frame is torn when nothing readable follows it and part of it never reached the disk:
the file ends before it, or one of its sectors is still all zero, as what a file grew by reads then.
"""

import struct
from typing import Final, NamedTuple

from metaquorum.runtime.interfaces import Buffer, StorageError
from wire.records.crc import crc32c

MAX_BODY_BYTES: Final = 16 << 20
SECTOR_BYTES: Final = 512
_HEADER: Final = struct.Struct("<4sIQII")
_CHECKED: Final = struct.Struct("<4sIQI")
HEADER_BYTES: Final = _HEADER.size


class DamagedError(StorageError):
    """A file holds other bytes than were written; the message names file and position."""


class Frame(NamedTuple):
    sequence: int
    body: memoryview
    end: int  # the position behind it


def encode_frame(magic: bytes, sequence: int, body: bytes) -> bytes:
    assert len(body) <= MAX_BODY_BYTES
    checked = _CHECKED.pack(magic, len(body), sequence, crc32c(body))
    return checked + struct.pack("<I", crc32c(checked)) + body


def frame_bytes(magic: bytes, header: Buffer) -> int | None:
    """The size of the frame that begins with `header`; None when that is no header."""
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
    """The frame that stands at `position`, whole and unharmed; None when there is none."""
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
    """Whether what follows `position`, where no frame can be read, never was synced."""
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
