"""Which leader epoch began at which offset (KIP-101, KIP-279).

Offsets are not enough to compare two replicas' logs: after a change of leader the same offset may
hold different records. (epoch, offset) does name one record, so a follower asks the leader where
its own last epoch ended there, cuts its log to that, and goes on. Entries ascend in both columns.
"""

from bisect import bisect_left, bisect_right
from typing import Final

from metaquorum.runtime.interfaces import Buffer

UNDEFINED: Final = -1
MAX_CHECKPOINT_BYTES: Final = 16 << 20
_VERSION: Final = "0"


class LeaderEpochs:
    """The epochs of one log, with the offset each began at. Plain state."""

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
        """`start_offset` begins `epoch`, unless that epoch began before; True if that is news.

        What contradicts it (a later epoch, or a later start) is forgotten.
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
        """The largest known epoch ≤ `epoch` and where it ended, as OffsetForLeaderEpoch answers.

        (-1, -1) for an epoch later than any here. An epoch before the first known one is said to
        end where the first one starts.
        """
        if epoch == UNDEFINED or not self._epochs or epoch > self.latest:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        after = bisect_right(self._epochs, epoch)
        return (self._epochs[after - 1] if after else epoch), self._starts[after]

    def epoch_at(self, offset: int, default: int = UNDEFINED) -> int:
        """The epoch of the record at `offset`; `default` before the first entry."""
        after = bisect_right(self._starts, offset)
        return self._epochs[after - 1] if after else default

    def truncate_from_end(self, end_offset: int) -> bool:
        """No epoch begins at or after `end_offset`; True if one did."""
        keep = bisect_left(self._starts, end_offset)
        changed = keep < len(self._starts)
        del self._epochs[keep:], self._starts[keep:]
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Nothing is known before `start_offset`; the epoch there begins there."""
        before = bisect_right(self._starts, start_offset)
        if before == 0 or (before == 1 and self._starts[0] == start_offset):
            return False
        del self._epochs[: before - 1], self._starts[: before - 1]
        self._starts[0] = start_offset
        return True

    def encode(self) -> bytes:
        """As the text of a `leader-epoch-checkpoint`."""
        lines = [_VERSION, str(len(self._epochs))]
        lines += [f"{epoch} {start}" for epoch, start in self.entries]
        return ("\n".join(lines) + "\n").encode()


def decode_leader_epochs(data: Buffer) -> LeaderEpochs:
    """ValueError when this is no leader-epoch checkpoint."""
    if len(data) > MAX_CHECKPOINT_BYTES:
        raise ValueError("too large")
    lines = bytes(data).decode("ascii").splitlines()
    if len(lines) < 2 or lines[0] != _VERSION or int(lines[1]) != len(lines) - 2:
        raise ValueError("not a checkpoint of version 0, or cut short")
    epochs = LeaderEpochs()
    for line in lines[2:]:
        epoch, start = (int(word) for word in line.split(" "))
        count = len(epochs)
        if epoch < 0 or start < 0 or not epochs.assign(epoch, start) or len(epochs) != count + 1:
            raise ValueError(f"epochs do not ascend at {line!r}")
    return epochs
