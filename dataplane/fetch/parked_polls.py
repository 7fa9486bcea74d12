"""What long polls of many partitions hold in memory, and which is answered early when it is much.

A long poll keeps what it asked for and what it found, some hundreds of bytes for each partition.
Of few partitions it is as small as the rest of its connection. Larger ones are counted here, and
while all of them hold more than the limit the oldest is answered at once, with what there is: an
answer that a consumer must expect at any time, and which was due to the oldest first. A client that
sends many large ones thereby ends its own, and does not keep others from waiting.
"""

from typing import Final

from dataplane.network.delayed import DelayedResponse

# Such a poll is part of its connection, and not counted.
UNCOUNTED_ROWS: Final = 64
# Of a partition that was asked for: its part of the request, its row, and its watcher.
ROW_BYTES: Final = 640
MAX_PARKED_BYTES: Final = 64 << 20


class ParkedRequests:
    """Those of one worker."""

    def __init__(self, limit_bytes: int = MAX_PARKED_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.early_count = 0  # of those that were answered for want of room
        self._sizes: dict[DelayedResponse, int] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, poll: DelayedResponse, row_count: int) -> None:
        """`poll` waits from now on, unless it is answered early, or others are."""
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
        """It waits no more. Any number of times."""
        self.used_bytes -= self._sizes.pop(poll, 0)
