"""Memory limit of long polls with many partitions.

A long poll keeps its request and its rows, some hundreds of bytes per partition. With few
partitions it is as small as the rest of its connection and is not counted. Larger long polls are
counted here; while they exceed the limit, the oldest is answered at once with the records found so
far. A consumer must expect such a response at any time, and the oldest would time out first. A
client that sends many large long polls mostly shortens its own.
"""

from typing import Final

from metaquorum.dataplane.network.delayed import DelayedResponse

# Long polls with at most this many partitions are not counted.
UNCOUNTED_ROWS: Final = 64
# Memory per requested partition: its part of the request, its row and its watcher.
ROW_BYTES: Final = 640
MAX_PARKED_BYTES: Final = 64 << 20


class ParkedRequests:
    """Long polls of one worker with more than UNCOUNTED_ROWS partitions."""

    def __init__(self, limit_bytes: int = MAX_PARKED_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.early_count = 0  # long polls answered early because of the limit
        self._sizes: dict[DelayedResponse, int] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, poll: DelayedResponse, row_count: int) -> None:
        """Count `poll`; answer the oldest long polls while the limit is exceeded."""
        if row_count <= UNCOUNTED_ROWS:
            return
        size_bytes = self._sizes[poll] = row_count * ROW_BYTES
        self.used_bytes += size_bytes
        while self.used_bytes > self.limit_bytes:
            oldest = next(iter(self._sizes))
            self.remove(oldest)
            self.early_count += 1
            oldest.ready()

    def remove(self, poll: DelayedResponse) -> None:
        """Stop counting `poll`; idempotent."""
        self.used_bytes -= self._sizes.pop(poll, 0)
