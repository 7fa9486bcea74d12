"""Confluent's wire format: a magic byte 0 and a schema id (int32, big-endian) before each value.

Source: "Wire format" of Confluent's Schema Registry documentation. Deliberately absent: magic byte
1 (a schema's GUID), and ids in record headers.
"""

from __future__ import annotations

from typing import Final

from metaquorum.spark.value_schemas.decoded import RejectedValueError

MAGIC: Final = 0
HEADER_BYTES: Final = 5


def split_header(data: bytes) -> tuple[int, bytes]:
    """Return the schema id and the bytes after it. Raises RejectedValueError without an id."""
    if len(data) < HEADER_BYTES:
        raise RejectedValueError(f"{len(data)} bytes are too few for a schema id")
    if data[0] != MAGIC:
        raise RejectedValueError(f"the magic byte is {data[0]}, not 0: no schema id follows it")
    return int.from_bytes(data[1:HEADER_BYTES], "big"), data[HEADER_BYTES:]
