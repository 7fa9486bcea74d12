"""Types of message fields that have no Python type: UUIDs, buffers, records.

A topic id, directory id or incarnation id is a `Uuid`: 16 bytes, as on the wire. Building a
`uuid.UUID` would take longer than building the message around it. Logs and command output have
Kafka's text form: base64url, 22 characters.
"""

import base64
import binascii
import random
from typing import Final, Protocol, TypeAlias

Uuid: TypeAlias = bytes
Buffer: TypeAlias = bytes | bytearray | memoryview

BUFFERS: Final = frozenset({bytes, bytearray, memoryview})

ZERO_UUID: Final[Uuid] = bytes(16)
# Reserved by Kafka: 0 ("none"), 1 ("one", the metadata topic), and the rest of 0..99 for later use.
RESERVED_UUIDS: Final = frozenset(number.to_bytes(16, "big") for number in range(100))


class RecordsHole(Protocol):
    """Records that are not copied when their message is encoded (a range of a file)."""

    @property
    def size_bytes(self) -> int: ...


Records: TypeAlias = Buffer | RecordsHole


def uuid_to_text(value: Uuid) -> str:
    """Return Kafka's text form: base64url without padding, 22 characters."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> Uuid:
    """Return the UUID with this text form. Raises ValueError for any other text."""
    try:
        value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is not an id of 22 base64url characters") from error
    if len(value) != 16 or uuid_to_text(value) != text:  # the decoder also accepts "+/"
        raise ValueError(f"{text!r} is not an id of 22 base64url characters")
    return value


def random_uuid(source: random.Random) -> Uuid:
    """Return a random version 4 UUID, not reserved, whose text does not start with "-".

    A text that starts with "-" would be parsed as a command line option.
    """
    while True:
        bits = source.getrandbits(128)
        bits = bits & ~(0xF << 76) | 4 << 76
        bits = bits & ~(0x3 << 62) | 2 << 62
        value = bits.to_bytes(16, "big")
        if value not in RESERVED_UUIDS and not uuid_to_text(value).startswith("-"):
            return value
