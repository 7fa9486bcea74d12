"""Small valid and invalid batches for tests."""

import struct
from typing import Any

from metaquorum.wire.records.records import (
    HEADER_BYTES,
    Record,
    encode_batch,
    pack_batch,
    parse_header,
)

NOW = 1_700_000_000_000


def sample(count: int = 3, **options: Any) -> bytearray:
    records = [Record(i, NOW + i, b"key %d" % i, b"value", (("h", b"1"),)) for i in range(count)]
    return encode_batch(records, **options)


def rewritten(batch: bytearray, **fields: int) -> bytearray:
    """Return the batch with these header fields and a matching checksum."""
    header = parse_header(batch)._replace(**fields)
    return pack_batch(header, bytes(batch[HEADER_BYTES:]))


def legacy(magic: int) -> bytes:
    body = bytes([magic, 0]) + bytes(8 * magic) + struct.pack(">i1si1s", 1, b"k", 1, b"v")
    return struct.pack(">qiI", 0, len(body) + 4, 0) + body


def damaged(batch: bytearray, position: int) -> bytearray:
    batch[position] ^= 1
    return batch
