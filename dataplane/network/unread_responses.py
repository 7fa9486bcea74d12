"""A limit on the memory of large responses that clients have not read.

A response of several megabytes is held in memory until its client has read it. A hostile client may
never read it, and until connections.max.idle.ms closes them, many such connections could together
hold any amount of memory. The bytes held for large responses are therefore counted; while they
exceed the limit, the connection that has read nothing for the longest time is closed. Clients that
keep reading are closed last.

Records are not counted: they are sent from their segment files.
"""

from typing import Final, Protocol

# Responses up to this size are not counted.
UNCOUNTED_BYTES: Final = 256 * 1024
# Counted bytes of all connections of a server.
MAX_UNREAD_BYTES: Final = 64 << 20


class Reader(Protocol):
    """A connection with a response that its client has not read."""

    def close_unread(self, unread_bytes: int) -> None: ...


class UnreadResponses:
    """Unread bytes of large responses, by connection, of one server. Plain state."""

    def __init__(self, limit_bytes: int = MAX_UNREAD_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._held: dict[Reader, int] = {}  # longest without a read first

    def __len__(self) -> int:
        return len(self._held)

    def note(self, reader: Reader, held_bytes: int) -> None:
        """Record that `held_bytes` are held for `reader`, after each piece that it has read.

        While the limit is exceeded, close the connection that has read nothing for the longest
        time; the last one stays open, because a single response may exceed the limit.
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
        """Remove `reader` after its client has read the response or disconnected. Idempotent."""
        self.used_bytes -= self._held.pop(reader, 0)
