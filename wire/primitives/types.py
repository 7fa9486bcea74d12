"""The values messages are made of that Python has no name for.

A topic id, directory id or incarnation is a `Uuid`: its 16 bytes, as on the wire. `uuid.UUID` would
cost more to build than the message around it. People are shown Kafka's form, base64url of 22
characters.
"""

import base64
import binascii
import random
from typing import Final, Protocol, TypeAlias

Uuid: TypeAlias = bytes
Buffer: TypeAlias = bytes | bytearray | memoryview

BUFFERS: Final = frozenset({bytes, bytearray, memoryview})

ZERO_UUID: Final[Uuid] = bytes(16)
# Kafka keeps 0 ("none"), 1 ("one", its metadata topic) and 0..99 for the future.
RESERVED_UUIDS: Final = frozenset(number.to_bytes(16, "big") for number in range(100))


class RecordsHole(Protocol):
    """Records that stay where they are (a range of a file) while their message is encoded."""

    @property
    def size_bytes(self) -> int: ...


Records: TypeAlias = Buffer | RecordsHole


def uuid_to_text(value: Uuid) -> str:
    """Kafka's form: base64url without padding, 22 characters."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> Uuid:
    """The inverse of `uuid_to_text`; ValueError for anything else."""
    try:
        value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is not an id of 22 base64url characters") from error
    if len(value) != 16 or uuid_to_text(value) != text:  # "+/" too would pass
        raise ValueError(f"{text!r} is not an id of 22 base64url characters")
    return value


def random_uuid(source: random.Random) -> Uuid:
    """A fresh version 4 id, neither reserved nor with a text that starts like an option ("-")."""
    while True:
        bits = source.getrandbits(128)
        bits = bits & ~(0xF << 76) | 4 << 76
        bits = bits & ~(0x3 << 62) | 2 << 62
        value = bits.to_bytes(16, "big")
        if value not in RESERVED_UUIDS and not uuid_to_text(value).startswith("-"):
            return value
