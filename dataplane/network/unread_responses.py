"""How much memory answers may take that clients do not read.

An answer of several megabytes is held until its client has read it, which a stranger may never do:
before connections.max.idle.ms has passed, such connections could together hold any amount. So what
is held of large answers is counted, and while it exceeds a limit the connection that has read
nothing for longest is closed. A client that goes on reading is the last to be.

Records are not counted: they are sent from their files.
"""

from typing import Final, Protocol

# Of one answer; less is part of its connection.
UNCOUNTED_BYTES: Final = 256 * 1024
MAX_UNREAD_BYTES: Final = 64 << 20


class Reader(Protocol):
    """The connection of a client that has an answer to read."""

    def close_unread(self, unread_bytes: int) -> None: ...


class UnreadResponses:
    """Those of one server. Plain state."""

    def __init__(self, limit_bytes: int = MAX_UNREAD_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._held: dict[Reader, int] = {}  # who has read nothing for longest comes first

    def __len__(self) -> int:
        return len(self._held)

    def note(self, reader: Reader, held_bytes: int) -> None:
        """So much is held for `reader`, which has just begun to read, or read some of it.

        One answer alone may exceed the limit.
        """
        self.remove(reader)
        self._held[reader] = held_bytes
        self.used_bytes += held_bytes
        while self.used_bytes > self.limit_bytes and len(self._held) > 1:
            oldest = next(iter(self._held))
            unread_bytes = self._held[oldest]
            self.remove(oldest)
            oldest.close_unread(unread_bytes)

    def remove(self, reader: Reader) -> None:
        """Nothing is left to be read, or the connection has ended. Any number of times."""
        self.used_bytes -= self._held.pop(reader, 0)
