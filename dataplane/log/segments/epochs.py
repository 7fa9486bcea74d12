"""Leader epochs of a log, with the start offset of each (KIP-101, KIP-279).

Offsets are not enough to compare two replicas' logs: after a change of leader the same offset may
have different records. A pair (leader epoch, offset) identifies one record: a follower asks the
leader for the end offset of the follower's last epoch, truncates its log to that, and continues to
fetch. Entries ascend in both columns.
"""

from bisect import bisect_left, bisect_right
from typing import Final

from metaquorum.runtime.interfaces import Buffer

UNDEFINED: Final = -1
MAX_CHECKPOINT_BYTES: Final = 16 << 20
_VERSION: Final = "0"


class LeaderEpochs:
    """Leader epochs of one log and their start offsets. Plain state."""

    __slots__ = ("_epochs", "_starts", "latest")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = UNDEFINED
        for epoch, start in entries or ():
            self.assign(epoch, start)

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` begins at `start_offset`. Return whether that is a change.

        Nothing changes if `epoch` is the latest epoch and began at or before `start_offset`.
        Otherwise entries with the same or a later epoch or start offset are removed.
        """
        assert epoch >= 0
        assert start_offset >= 0
        if epoch == self.latest and start_offset >= self._starts[-1]:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch ≤ `epoch` and its end offset, for OffsetForLeaderEpoch.

        Return (-1, -1) for an epoch later than all known ones. For an epoch before the first known
        one, return that epoch and the start offset of the first.
        """
        if epoch == UNDEFINED or not self._epochs or epoch > self.latest:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        after = bisect_right(self._epochs, epoch)
        return (self._epochs[after - 1] if after else epoch), self._starts[after]

    def epoch_at(self, offset: int, default: int = UNDEFINED) -> int:
        """Return the epoch of the record at `offset`; `default` before the first entry."""
        after = bisect_right(self._starts, offset)
        return self._epochs[after - 1] if after else default

    def truncate_from_end(self, end_offset: int) -> bool:
        """Remove entries that start at or after `end_offset`. Return whether there were any."""
        keep = bisect_left(self._starts, end_offset)
        changed = keep < len(self._starts)
        del self._epochs[keep:], self._starts[keep:]
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Remove entries before `start_offset`; the epoch at `start_offset` now starts there.

        Return whether anything changed.
        """
        before = bisect_right(self._starts, start_offset)
        if before == 0 or (before == 1 and self._starts[0] == start_offset):
            return False
        del self._epochs[: before - 1], self._starts[: before - 1]
        self._starts[0] = start_offset
        return True

    def encode(self) -> bytes:
        """Return the content of a `leader-epoch-checkpoint` file."""
        lines = [_VERSION, str(len(self._epochs))]
        lines += [f"{epoch} {start}" for epoch, start in self.entries]
        return ("\n".join(lines) + "\n").encode()

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        assert len(self._epochs) == len(self._starts)
        assert self.latest == (self._epochs[-1] if self._epochs else UNDEFINED)
        for column in (self._epochs, self._starts):
            assert column == sorted(set(column)), column
            assert not column or column[0] >= 0, column


def decode_leader_epochs(data: Buffer) -> LeaderEpochs:
    """Decode a `leader-epoch-checkpoint` file. Raises ValueError if it is malformed."""
    if len(data) > MAX_CHECKPOINT_BYTES:
        raise ValueError("larger than 16 MiB")
    lines = bytes(data).decode("ascii").splitlines()
    if len(lines) < 2 or lines[0] != _VERSION or int(lines[1]) != len(lines) - 2:
        raise ValueError("not a checkpoint of version 0, or truncated")
    epochs = LeaderEpochs()
    for line in lines[2:]:
        epoch, start = (int(word) for word in line.split(" "))
        count = len(epochs)
        if epoch < 0 or start < 0 or not epochs.assign(epoch, start) or len(epochs) != count + 1:
            raise ValueError(f"epochs or start offsets do not ascend at {line!r}")
    return epochs
