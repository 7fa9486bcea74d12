"""The journal: the replicated log's entries and a voter's hard state, on one disk.

Segments are rows of frames (`framing.py`) of operations (`journal_ops.py`), and are only ever
appended to; a suffix of the log that has to go is struck out by an operation, and a prefix goes by
removing segments. Operations are *staged* by plain calls, and `sync` alone writes them: what stands
behind its `await` may rely on them, and nothing else can be mistaken for durable.

Order of the disk's operations, between any two of which power may go:

    sync        write one frame at the end; fdatasync. No second frame before the first is synced.
    roll        a `.tmp` with the first frame; fdatasync; rename; sync the folder; only then used
    removal     the oldest segment; sync the folder; then the next
    opening     stray `.tmp` go; a torn tail is cut off; the last frame is written once more (after
                a failed fdatasync the kernel takes it for clean, though the disk never had it);
                fdatasync, sync the folder; only then used

A segment is named by the sequence number of its first frame, and that frame repeats where the log
stood: a segment that is missing, or another log's, is noticed.
"""

import errno
import os
from collections.abc import Callable, Iterator
from typing import Final

from metaquorum.runtime.interfaces import Disk, File, StorageError
from metaquorum.security.private_files import keep_private
from metaquorum.storage.framing import (
    HEADER_BYTES,
    DamagedError,
    encode_frame,
    frame_bytes,
    is_torn,
    read_frame,
)
from metaquorum.storage.journal_index import JournalIndex
from metaquorum.storage.journal_ops import (
    FORMAT,
    MAX_FRAME_OPS,
    MAX_PAYLOAD_BYTES,
    NO_VOTE,
    Begin,
    Closed,
    Entry,
    HardState,
    LogPosition,
    Op,
    Reset,
    Truncate,
    decode_ops,
    encode_ops,
    op_bytes,
)

MAGIC: Final = b"MQJ\x01"
SUFFIX: Final = ".journal"
TEMPORARY: Final = ".tmp"
SEGMENT_BYTES: Final = 16 << 20
MAX_FRAME_BYTES: Final = MAX_PAYLOAD_BYTES + (4 << 20)


class JournalFullError(StorageError):
    """There is no room; what was staged is not written, never will be, and is staged no more."""


class Journal:
    """One voter's journal. One task owns it. Indices count from 1, without a gap.

    `append`, `truncate`, `reset` and `set_hard_state` stage, in that order, what `sync` makes
    durable in one stroke; `durable` says what is.
    """

    def __init__(
        self, disk: Disk, directory: str, cluster_id: str, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Not to be used before `open`."""
        self._disk = disk
        self._directory = directory
        self._cluster_id = cluster_id
        self._segment_bytes = segment_bytes
        self._index = JournalIndex()
        self._segments: list[int] = []  # sequence of the first frame of each
        self._sequence = 0  # of the next frame
        self._file: File | None = None
        self._size_bytes = 0  # of the newest segment
        self._total_bytes = 0
        self._staged: list[Op] = []
        self._failure: str | None = "it is not open"
        self.torn_bytes = 0  # that `open` cut off

    @property
    def base(self) -> LogPosition:
        """The position before the first entry that is held."""
        return self._index.base

    @property
    def last(self) -> LogPosition:
        """The position of the last entry, staged ones included."""
        return self._index.last

    @property
    def durable(self) -> LogPosition:
        """The position of the last entry that a loss of power leaves."""
        return self._index.durable

    @property
    def hard_state(self) -> HardState:
        """As set last, staged or not."""
        return self._index.hard_state

    @property
    def segments(self) -> int:
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return self._total_bytes

    def term_at(self, index: int) -> int:
        """The term of the entry at `index`, or of the base."""
        return self._index.term_at(index)

    # Reading

    def read(self, first_index: int, last_index: int) -> list[Entry]:
        """The entries from one index to the other. Slow unless they are new: for `Disk.run`.

        How many is the caller's to bound. StorageError.
        """
        assert self.base.index < first_index
        assert last_index <= self.last.index
        return list(self.entries(first_index, last_index))

    def entries(self, first_index: int, last_index: int) -> Iterator[Entry]:
        """As `read`, one frame in memory at a time."""
        while first_index <= last_index:
            cached = self._index.cached(first_index, last_index)
            if cached is not None:
                yield from cached
                return
            start, last, segment, position = self._index.frames(first_index, last_index)[0]
            assert start == first_index
            for op in self._read_frame(segment, position):
                if isinstance(op, Entry) and first_index <= op.index <= last:
                    yield op
            first_index = last + 1

    def _read_frame(self, segment: int, position: int) -> list[Op]:
        path = self._path(segment)
        try:
            file = self._disk.open(path)
            try:
                header = file.read(HEADER_BYTES, position)
                data = file.read(frame_bytes(MAGIC, header) or 0, position)
            finally:
                file.close()
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error}") from error
        frame = read_frame(MAGIC, data, 0)
        if frame is None:
            raise _damaged(path, position, "a frame that cannot be read")
        return _decoded(path, position, frame.body)

    # Staging

    def append(self, entry: Entry) -> None:
        """The entry is staged behind the last one."""
        assert entry.index == self.last.index + 1
        assert entry.term >= self.last.term
        assert len(entry.payload) <= MAX_PAYLOAD_BYTES
        self._stage(entry)

    def truncate(self, end_index: int) -> None:
        """Staged: the entries from `end_index` on are gone."""
        assert self.base.index < end_index <= self.last.index
        self._stage(Truncate(end_index, self.term_at(end_index - 1)))

    def reset(self, position: LogPosition) -> None:
        """Staged: all entries are gone, and the next one comes behind `position`, a snapshot's."""
        self._stage(Reset(position.index, position.term))

    def set_hard_state(self, term: int, vote: int = NO_VOTE) -> None:
        """Staged: the voter is in `term`, and voted for `vote` in it."""
        assert term >= self.hard_state.term
        self._stage(HardState(term, vote))

    def _stage(self, op: Op) -> None:
        self._check_usable()
        self._staged.append(op)
        self._index.stage(op)

    # Writing

    async def sync(self) -> None:
        """Everything staged survives a loss of power.

        JournalFullError: nothing of it does, and the journal is as before it was staged.
        StorageError: nobody knows; the journal is of no use until it is opened again.
        """
        self._check_usable()
        while self._staged:
            if self._size_bytes >= self._segment_bytes:
                await self._write(lambda: self._make_segment(self._sequence))
                self._rolled()
            ops = _one_frame(self._staged)
            frame = encode_frame(MAGIC, self._sequence, encode_ops(ops))
            await self._write(lambda frame=frame: self._append_frame(frame))  # type: ignore[misc]
            del self._staged[: len(ops)]
            self._index.wrote(ops, self._segments[-1], self._size_bytes)
            self._sequence += 1
            self._size_bytes += len(frame)
            self._total_bytes += len(frame)
        self._index.settle()

    async def _write(self, function: Callable[[], None]) -> None:
        try:
            await self._disk.run(function)
        except JournalFullError:
            self._unstage()
            raise
        except OSError as error:
            raise self._fail(f"writing to {self._directory} failed: {error}") from error

    def _unstage(self) -> None:
        """The log is as written. Only entries can be given up; without a vote no voter goes on."""
        if not all(isinstance(op, Entry) for op in self._staged):
            raise self._fail(f"no room in {self._directory} for a vote or a truncation")
        self._staged.clear()
        written = self._index.written
        self._index.cut(written.index + 1, written.term)
        self._index.settle()

    def _append_frame(self, frame: bytes) -> None:
        file = self._file
        assert file is not None
        try:
            file.write(frame, self._size_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Not one of the entries may come back from the dead once they are reported as refused.
            file.truncate(self._size_bytes)
            file.sync()
            raise JournalFullError(f"no room in {self._directory}") from error
        file.sync()

    def _make_segment(self, sequence: int) -> None:
        path = self._path(sequence)
        written, hard_state = self._index.written, self._index.written_hard_state
        begin = Begin(FORMAT, self._cluster_id, written.index, written.term, hard_state)
        try:
            file = self._disk.create_private(path + TEMPORARY)
            try:
                file.write(encode_frame(MAGIC, sequence, encode_ops([begin])), 0)
                file.sync()
            finally:
                file.close()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise JournalFullError(f"no room in {self._directory}") from error
        self._disk.rename(path + TEMPORARY, path)
        self._disk.sync_dir(self._directory)

    def _rolled(self) -> None:
        """The segment just made is the newest one."""
        if self._file is not None:
            self._file.close()
        if self._segments:
            self._index.left(self._segments[-1])
        self._segments.append(self._sequence)
        path = self._path(self._sequence)
        self._file = self._disk.open(path)
        self._size_bytes = self._file.size()
        self._total_bytes += self._size_bytes
        self._sequence += 1

    async def drop_prefix(self, index: int) -> None:
        """Segments without entries behind `index` are removed; a durable snapshot reaches there."""
        self._check_usable()
        assert not self._staged
        while len(self._segments) > 1 and not self._index.needed(self._segments[0], index):
            path = self._path(self._segments[0])

            def remove(path: str = path) -> int:
                size_bytes = self._disk.size(path)
                self._disk.remove(path)
                self._disk.sync_dir(self._directory)
                return size_bytes

            try:
                self._total_bytes -= await self._disk.run(remove)
            except OSError as error:
                raise self._fail(f"{path} cannot be removed: {error}") from error
            self._index.removed(self._segments.pop(0))

    async def close(self) -> None:
        """Closed in good order: whatever is found unreadable from now on is damage, not a tear."""
        if self._failure is None:
            self._staged.append(Closed())
            try:
                await self.sync()
            except StorageError:
                pass  # the mark is all that is missing
        self.abandon()

    def abandon(self) -> None:
        """Closed as it is; what is staged is lost."""
        self._failure = self._failure or "it is closed"
        if self._file is not None:
            self._file.close()
            self._file = None

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StorageError(f"the journal cannot be used: {self._failure}")

    def _fail(self, reason: str) -> StorageError:
        self._failure = reason
        return StorageError(reason)

    def _path(self, sequence: int) -> str:
        return os.path.join(self._directory, f"{sequence:020d}{SUFFIX}")

    # Opening

    def open(self) -> None:
        """The journal holds what its folder does; a new one is begun where there is none.

        Slow: for `Disk.run`. DamagedError, StorageError.
        """
        self._failure = "it could not be opened"
        try:
            self._make_directory()
            self._disk.sync_dir(os.path.dirname(self._directory))
            names = self._tidy_up()
            for name in names:
                self._scan(name, newest=name == names[-1])
            self._index.settle()
            if not names:
                self._make_segment(0)
                self._rolled()
            else:
                self._disk.sync_dir(self._directory)
        except OSError as error:
            raise StorageError(f"{self._directory} cannot be used: {error}") from error
        self._failure = None

    def _make_directory(self) -> None:
        """The directory exists, and the process's user alone may use it: it holds credentials."""
        disk, directory = self._disk, self._directory
        if not disk.exists(directory):
            disk.make_dirs(directory)
            disk.make_private(directory)
            return
        files = (os.path.join(directory, name) for name in disk.list(directory))
        keep_private(disk, (directory, *files))

    def _tidy_up(self) -> list[int]:
        """The segments there are, oldest first."""
        found = []
        for name in self._disk.list(self._directory):
            if name.endswith(SUFFIX + TEMPORARY):
                self._disk.remove(os.path.join(self._directory, name))
            elif name.endswith(SUFFIX) and name.removesuffix(SUFFIX).isdecimal():
                found.append(int(name.removesuffix(SUFFIX)))
        return sorted(found)

    def _scan(self, segment: int, *, newest: bool) -> None:
        path = self._path(segment)
        if self._segments:
            if segment != self._sequence:
                raise DamagedError(
                    f"{self._path(self._sequence)} is missing: {path} does not follow on"
                    f" {self._path(self._segments[-1])}, or that one has lost its end"
                )
            self._index.left(self._segments[-1])
        self._segments.append(segment)
        self._sequence = segment
        data = self._disk.read_file(path)
        last_frame, end = self._replay(path, data)
        self._size_bytes = end
        self._total_bytes += end
        if not newest:
            if end < len(data):
                raise _damaged(path, end, "a frame that cannot be read")
            return
        self._file = self._disk.open(path)
        if end < len(data):
            self.torn_bytes = len(data) - end
            self._file.truncate(end)
        self._file.write(data[last_frame:end], last_frame)
        self._file.sync()

    def _replay(self, path: str, data: bytes) -> tuple[int, int]:
        """The segment's operations are in the index; where its last whole frame begins and ends."""
        last_frame = position = 0
        while position < len(data):
            frame = read_frame(MAGIC, data, position)
            if frame is None:
                if position == 0 or not is_torn(MAGIC, data, position):
                    raise _damaged(path, position, "a frame that cannot be read")
                break
            if frame.sequence != self._sequence:
                raise _damaged(
                    path, position, f"frame {frame.sequence} where {self._sequence} belongs"
                )
            ops = _decoded(path, position, frame.body)
            for number, op in enumerate(ops):
                if complaint := self._complaint(op, first=position == 0 and number == 0):
                    raise _damaged(path, position, complaint)
                self._index.stage(op)
            self._index.wrote(ops, self._segments[-1], position)
            self._sequence += 1
            last_frame, position = position, frame.end
        if position == 0:
            raise _damaged(path, 0, "nothing")
        return last_frame, position

    def _complaint(self, op: Op, *, first: bool) -> str | None:
        """Why the operation cannot come next; None when it can."""
        if isinstance(op, Begin) != first:
            return "a segment's beginning in the wrong place"
        match op:
            case Begin():
                return self._begin_complaint(op)
            case Entry() if op.index != self.last.index + 1 or op.term < self.last.term:
                return f"entry {op.index} of term {op.term} behind {self.last}"
            case HardState() if op.term < self.hard_state.term:
                return f"term {op.term} behind term {self.hard_state.term}"
            case Truncate() if not 0 < op.end_index <= self.last.index:
                return f"a truncation to {op.end_index} behind {self.last}"
        return None

    def _begin_complaint(self, op: Begin) -> str | None:
        position = LogPosition(op.index, op.term)
        if op.format > FORMAT:
            raise StorageError(
                f"{self._directory} has format {op.format}, written by a newer version; this one"
                f" reads format {FORMAT}"
            )
        if op.cluster_id != self._cluster_id:
            raise StorageError(
                f"{self._directory} belongs to cluster {op.cluster_id}, not to {self._cluster_id}"
            )
        if len(self._segments) == 1:
            self._index.stage(Reset(op.index, op.term))
            self._index.stage(op.hard_state)
            self._index.wrote([Reset(op.index, op.term), op.hard_state], self._segments[0], 0)
        elif position != self.last or op.hard_state != self.hard_state:
            return f"a segment that follows on {position}, not on {self.last}"
        return None


def _one_frame(staged: list[Op]) -> list[Op]:
    """As many operations as one frame takes; what strikes out entries begins a frame."""
    ops: list[Op] = []
    size_bytes = 0
    for op in staged:
        size_bytes += op_bytes(op)
        full = size_bytes > MAX_FRAME_BYTES or len(ops) == MAX_FRAME_OPS
        if ops and (full or isinstance(op, Truncate | Reset)):
            break
        ops.append(op)
    return ops


def _decoded(path: str, position: int, body: memoryview) -> list[Op]:
    try:
        return decode_ops(body)
    except ValueError as error:
        raise _damaged(path, position, str(error)) from None


def _damaged(path: str, position: int, what: str) -> DamagedError:
    return DamagedError(
        f"{path} is damaged at byte {position}: {what}; nothing behind it can be trusted, so this"
        " node does not start on it"
    )
