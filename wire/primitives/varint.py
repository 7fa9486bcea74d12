"""Signed varints of record batches: zigzag encoding, then seven bits per byte, lowest first."""

from functools import lru_cache
from typing import Final

from metaquorum.wire.primitives.errors import WireError

VARINT_MAX_BYTES: Final = 5
VARLONG_MAX_BYTES: Final = 10

# Value of a one-byte varint, by the byte; None if the byte has the continuation bit.
ONE_BYTE: Final[tuple[int | None, ...]] = tuple(
    (byte >> 1) ^ -(byte & 1) if byte < 0x80 else None for byte in range(256)
)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the 32-bit value at `position` and the position after it.

    Raises IndexError if `data` ends inside the varint, WireError if the varint is too long.
    """
    first = data[position]
    if first < 0x80:
        return (first >> 1) ^ -(first & 1), position + 1
    second = data[position + 1]
    if second < 0x80:
        raw = first & 0x7F | second << 7
        return (raw >> 1) ^ -(raw & 1), position + 2
    third = data[position + 2]
    if third < 0x80:
        raw = first & 0x7F | (second & 0x7F) << 7 | third << 14
        return (raw >> 1) ^ -(raw & 1), position + 3
    return _read(data, position, VARINT_MAX_BYTES, 32)


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """Return the 64-bit value at `position` and the position after it, as `read_varint` does."""
    first = data[position]
    if first < 0x80:
        return (first >> 1) ^ -(first & 1), position + 1
    second = data[position + 1]
    if second < 0x80:
        raw = first & 0x7F | second << 7
        return (raw >> 1) ^ -(raw & 1), position + 2
    return _read(data, position, VARLONG_MAX_BYTES, 64)


def _read(data: bytes, position: int, max_bytes: int, bits: int) -> tuple[int, int]:
    raw = shift = 0
    for end in range(position + 1, position + max_bytes + 1):
        byte = data[end - 1]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> bits:
                raise WireError(f"varint at byte {position} exceeds {bits} bits")
            return (raw >> 1) ^ -(raw & 1), end
        shift += 7
    raise WireError(f"varint at byte {position} is longer than {max_bytes} bytes")


def write_varint(out: bytearray, value: int) -> None:
    """Append the varint of a signed value of at most 64 bits."""
    raw = value << 1 if value >= 0 else ~(value << 1)
    if raw <= 0x7F:
        out.append(raw)
        return
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


@lru_cache(1024)
def varint(value: int) -> bytes:
    """Return the varint of a signed value of at most 64 bits; remembers the usual lengths."""
    out = bytearray()
    write_varint(out, value)
    return bytes(out)
