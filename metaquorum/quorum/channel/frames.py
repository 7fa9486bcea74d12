"""Frames of an established stream, each authenticated and checked for its sequence number.

    size of the rest 4 | sequence 8 | MAC 16 | message

The MAC is HMAC-SHA256, truncated to 16 bytes, with the key of this direction, over the size, the
sequence number and the message. The receiver therefore detects a frame that was changed, repeated,
dropped, reordered, or copied from the other direction or another connection, and closes the
connection.
"""

import hmac
import struct
from typing import Final

from metaquorum.runtime.interfaces import Buffer
from metaquorum.wire.primitives.errors import WireError

MAC_BYTES: Final = 16
MAX_MESSAGE_BYTES: Final = 8 << 20
_COUNTED: Final = struct.Struct(">iQ")  # size, sequence
_SEQUENCE: Final = struct.Struct(">Q")
_SIZE_BYTES: Final = 4
_INNER_BYTES: Final = _SEQUENCE.size + MAC_BYTES
OVERHEAD_BYTES: Final = _SIZE_BYTES + _INNER_BYTES
MAX_FRAME_BYTES: Final = _INNER_BYTES + MAX_MESSAGE_BYTES


class Sealer:
    """The sending end of one direction."""

    __slots__ = ("_keyed", "_sequence")

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._sequence = 0

    def seal(self, message: Buffer) -> bytes:
        """Return the bytes that precede `message` in its frame."""
        assert len(message) <= MAX_MESSAGE_BYTES
        counted = _COUNTED.pack(_INNER_BYTES + len(message), self._sequence)
        self._sequence += 1
        return counted + _mac(self._keyed, counted, message)


class Opener:
    """The receiving end of one direction."""

    __slots__ = ("_keyed", "_sequence")

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._sequence = 0

    def open(self, frame: memoryview) -> memoryview:
        """Return the message of `frame` (which excludes the size field).

        Raises WireError if the MAC or the sequence number is wrong.
        """
        if len(frame) < _INNER_BYTES:
            raise WireError(f"frame: {len(frame)} bytes, fewer than its header has")
        message = frame[_INNER_BYTES:]
        (sequence,) = _SEQUENCE.unpack_from(frame)
        mac = _mac(self._keyed, _COUNTED.pack(len(frame), sequence), message)
        if not hmac.compare_digest(mac, frame[_SEQUENCE.size : _INNER_BYTES]):
            raise WireError(f"frame {self._sequence}: wrong MAC")
        if sequence != self._sequence:
            raise WireError(f"frame {self._sequence}: received frame {sequence} instead")
        self._sequence += 1
        return message


def _mac(keyed: hmac.HMAC, counted: bytes, message: Buffer) -> bytes:
    mac = keyed.copy()
    mac.update(counted)
    mac.update(message)
    return mac.digest()[:MAC_BYTES]
