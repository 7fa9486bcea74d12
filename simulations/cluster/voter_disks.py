"""Durable metadata log of a voter: the part that a power loss would leave on its disk.

The log is read from the durable bytes and file names of the simulated disk, never from the voter's
memory. The decoders are the shipped ones; other tests check them.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from metaquorum.quorum.raft.receiving import RECEIVED
from metaquorum.quorum.storage.framing import read_frame
from metaquorum.quorum.storage.journal import MAGIC, SUFFIX
from metaquorum.quorum.storage.journal_ops import (
    NO_VOTE,
    Begin,
    Entry,
    HardState,
    LogPosition,
    Op,
    Reset,
    Truncate,
    decode_ops,
)
from metaquorum.quorum.storage.snapshot import MAGIC as SNAPSHOT_MAGIC
from metaquorum.quorum.storage.snapshot import SUFFIX as SNAPSHOT_SUFFIX
from metaquorum.simulations.kernel.storage import Inode, Storage

# Suffix of a complete snapshot from the leader; it counts once the log was reset to it.
_RECEIVED: Final = SNAPSHOT_SUFFIX + RECEIVED
METADATA_DIR: Final = "/data/metadata"


@dataclass(slots=True)
class DurableLog:
    """Metadata log of one voter, as a power loss at this moment would leave it."""

    base: LogPosition = field(default_factory=lambda: LogPosition(0, 0))
    entries: dict[int, Entry] = field(default_factory=dict)
    hard_state: HardState = field(default_factory=lambda: HardState(0, NO_VOTE))
    # (end offset, position) of whole snapshots.
    snapshots: list[tuple[int, LogPosition]] = field(default_factory=list)
    payloads: frozenset[bytes] = frozenset()

    @property
    def snapshot_offset(self) -> int:
        return max((end_offset for end_offset, _ in self.snapshots), default=0)

    def holds(self, payload: bytes, end_offset: int) -> bool:
        """Return whether the batch, which ends at `end_offset`, is in the log or in a snapshot."""
        return payload in self.payloads or self.snapshot_offset >= end_offset

    def take(self, op: Op) -> None:
        match op:
            case Entry():
                self.entries[op.index] = op
            case HardState():
                self.hard_state = op
            case Truncate():
                for index in [index for index in self.entries if index >= op.end_index]:
                    del self.entries[index]
            case Reset():
                self.entries.clear()
                self.base = LogPosition(op.index, op.term)
            case Begin():
                self.hard_state = op.hard_state
                if not self.entries:
                    self.base = LogPosition(op.index, op.term)


class DurableLogs:
    """Reader of disks that caches each log until the disk changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, DurableLog]] = {}
        self._segments: dict[tuple[str, str], _Segment] = {}

    def of(self, name: str, storage: Storage) -> DurableLog:
        files = storage.durable_files(METADATA_DIR)
        state = tuple((path, id(inode), inode.version) for path, inode in files.items())
        known = self._known.get(name)
        if known is None or known[0] != state:
            known = state, self._read(name, files)
            self._known[name] = known
        return known[1]

    def _read(self, name: str, files: dict[str, Inode]) -> DurableLog:
        log = DurableLog()
        for path, inode in files.items():
            if path.endswith(SUFFIX) and path.removesuffix(SUFFIX).isdecimal():
                segment = self._segments.setdefault((name, path), _Segment())
                for op in segment.ops_of(bytes(inode.durable)):
                    log.take(op)
        for path, inode in files.items():
            suffix = next((s for s in (SNAPSHOT_SUFFIX, _RECEIVED) if path.endswith(s)), None)
            if suffix is None or not _is_whole(bytes(inode.durable)):
                continue
            end_offset, index, term = map(int, path.removesuffix(suffix).split("-"))
            position = LogPosition(index, term)
            if suffix == SNAPSHOT_SUFFIX or position == log.base:
                log.snapshots.append((end_offset, position))
        log.payloads = frozenset(entry.payload for entry in log.entries.values())
        return log


class _Segment:
    """A journal segment with a cache of its operations: most segments only grow."""

    __slots__ = ("_data", "_end", "_ops")

    def __init__(self) -> None:
        self._data = b""
        self._end = 0
        self._ops: list[Op] = []

    def ops_of(self, data: bytes) -> list[Op]:
        """Return the operations before the first unreadable frame, as a voter would recover."""
        if not data.startswith(self._data[: self._end]):
            self._end, self._ops = 0, []
        while (frame := read_frame(MAGIC, data, self._end)) is not None:
            self._ops += _decoded(bytes(frame.body))
            self._end = frame.end
        self._data = data
        return self._ops


@lru_cache(maxsize=4096)
def _decoded(body: bytes) -> tuple[Op, ...]:
    return tuple(decode_ops(memoryview(body)))


@lru_cache(maxsize=256)
def _is_whole(data: bytes) -> bool:
    position, last = 0, b""
    while (frame := read_frame(SNAPSHOT_MAGIC, data, position)) is not None:
        last, position = bytes(frame.body[:1]), frame.end
    return last == b"F" and position == len(data)
